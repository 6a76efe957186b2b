"""What fields are called in the views for people: as they were written, made legal, distinct, and stable.

Blanks around a name and runs of them within go, since nobody sees them; so do characters that cannot be printed. Names
that differ only in case are the same name to DuckDB, and PostgreSQL cuts at 63 bytes: the field seen first keeps the
plain name, and each later one gets a mark of its own behind it, whatever comes after it.

Each field has a second name, for the column of the values that do not fit its type. It is taken from the moment the
field is there, so no field that comes later gets it, and no name changes with the first such value.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import sha256

LIMIT_BYTES = 63
MISFIT = "__misfit"
_MARK_CHARACTERS = 6


def label(written: str, column: str, taken: Collection[str]) -> str:
    """The name for the field in `column`; `taken` are casefolded. Without a visible character it is the column's."""
    readable = " ".join("".join(c if c.isprintable() else " " for c in written).split()) or column
    if len(readable.encode()) <= LIMIT_BYTES and readable.casefold() not in taken:
        return readable
    return _marked(readable, "", column, taken)


def misfit_label(named: str, column: str, taken: Collection[str]) -> str:
    """Return the name for what does not fit the field called `named`: it always ends in `__misfit`."""
    plain = named + MISFIT
    if len(plain.encode()) <= LIMIT_BYTES and plain.casefold() not in taken:
        return plain
    return _marked(named, MISFIT, column, taken)


def _marked(readable: str, ending: str, salt: str, taken: Collection[str]) -> str:
    while True:
        last = f" #{sha256(salt.encode()).hexdigest()[:_MARK_CHARACTERS]}{ending}"
        named = cut(readable, LIMIT_BYTES - len(last)) + last
        if named.casefold() not in taken:
            return named
        salt += "#"


def cut(text: str, limit: int) -> str:
    """As much of a text as fits, never half a character."""
    return text.encode()[:limit].decode(errors="ignore").rstrip()
