"""Name fields in the views for people: the original names, but legal, distinct, and stable.

Blanks around a name and repeated blanks within are removed, because nobody sees them; so are unprintable characters.
DuckDB treats names that differ only in case as the same, and PostgreSQL cuts at 63 bytes: the field seen first keeps
the plain name, and each later one gets a suffix of its own, whatever fields follow.

Each field has a second name, for the column of the values that do not fit its type. It is reserved as soon as the field
exists, so no later field gets it, and no name changes with the first such value.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import sha256

LIMIT_BYTES = 63
MISFIT = "__misfit"
_MARK_CHARACTERS = 6


def label(written: str, column: str, taken: Collection[str]) -> str:
    """Return the name for the field in `column`; `taken` are casefolded names.

    Without a visible character, it is the name of the column.
    """
    readable = " ".join("".join(c if c.isprintable() else " " for c in written).split()) or column
    if len(readable.encode()) <= LIMIT_BYTES and readable.casefold() not in taken:
        return readable
    return _marked(readable, "", column, taken)


def misfit_label(named: str, column: str, taken: Collection[str]) -> str:
    """Return the name of the column for misfits of the field called `named`: it always ends in `__misfit`."""
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
    """Return as much of a text as fits in the limit, never half a character."""
    return text.encode()[:limit].decode(errors="ignore").rstrip()
