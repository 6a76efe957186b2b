"""Turn original keys into stable, readable column and table names.

Every name is unchanged by dlt's snake_case naming at 63 characters, so dlt never renames a column. Base names have at
most 53 characters to leave room for the longest variant suffix in PostgreSQL's 63.
"""

import json
import re
import unicodedata
from collections.abc import Container, Iterator, Mapping
from hashlib import sha256
from itertools import chain, count

from anyascii import anyascii

from connector.transform.escaping import storable

RULES_COLUMN = "_ruled_by"  # only in tables of which values are under privacy rules
SYSTEM_COLUMNS: frozenset[str] = frozenset(
    {
        RULES_COLUMN,
        "_record_slug",
        "_import_slug",
        "_sort",
        "_created_at",
        "_updated_at",
        "_deleted_at",
        "_dlt_load_id",
        "_dlt_id",
    }
)
# PostgreSQL refuses columns with these names in any table; names are the same on every destination.
_RESERVED_COLUMNS = frozenset({"ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"})
VERSION_COLUMNS = ("_valid_from", "_valid_to", "_change", "_run_id")  # only in history tables
CHANGED_COLUMN = "_changed_columns"  # only in history tables of tables that were rebuilt
TEXT_VARIANT = "__v_text"
DOUBLE_VARIANT = "__v_double"
VARIANTS = (TEXT_VARIANT, DOUBLE_VARIANT)
EARLIER_VARIANT = "__was_"  # and a number, in history tables: values of a column before a rebuild changed its type
_EARLIER = re.compile(f".*{EARLIER_VARIANT}[0-9]+", re.DOTALL)
MORE = "_more"  # the values of a row without a column of their own; a key of this name gets another column
UNTEMPLATED = "records_untemplated"

_TABLE_PREFIX = "records_"
_COLUMN_LIMIT = 53
_TABLE_LIMIT = 50
_DIGEST = 8

_NOT_WORD = re.compile(r"[^A-Za-z0-9_]+")
_CAPITALISED = re.compile(r"([^_])([A-Z][a-z]+)")
_CAMEL_HUMP = re.compile(r"([a-z0-9])([A-Z])")
_UNDERSCORES = re.compile(r"_{2,}")


def column_name(keys: tuple[str, ...], taken: Container[str]) -> str:
    """Return the column for a key path: a readable name if it is free, else one with a hash of the exact keys."""
    segments = [_segment(key) for key in keys]
    readable = "__".join(segment or "blank" for segment in segments)
    names = _candidates(readable, encode_keys(keys), _COLUMN_LIMIT, plain=all(segments))
    return next(name for name in names if _is_free(name, taken))


def more_column(taken: Container[str]) -> str:
    """Return the column for values without a column of their own: `_more`, unless an earlier version used that name."""
    return next(name for name in chain([MORE], (f"{MORE}_{n}" for n in count(2))) if name not in taken)


def overflowed_name(keys: tuple[str, ...]) -> str:
    """Return a stand-in for the column of a field without one: `_more.` and a name, which no column can have."""
    readable = "__".join(_segment(key) or "blank" for key in keys)
    return f"{MORE}.{next(_candidates(readable, encode_keys(keys), _COLUMN_LIMIT, plain=False))}"


def table_name(
    template_name: str | None, template_slug: str | None, taken: Mapping[str, str], foreign: Container[str] = ()
) -> str:
    """Return the typed table of a template; `taken` maps the known tables to the slug of their template, '' for none.

    A slug that already has a table keeps it, even if the template was renamed. `foreign` are names of tables and views
    that do not belong to this package.
    """
    identity = template_slug or template_name or ""
    known = next((table for table, slug in taken.items() if slug == identity), None)
    if known is not None:
        return known
    segment = _segment(template_name or identity).lstrip("_")
    readable = _TABLE_PREFIX + (segment or "blank") if identity else UNTEMPLATED
    names = _candidates(readable, identity, _TABLE_LIMIT, plain=bool(segment) or not identity)
    free = (name for name in names if name not in taken and name not in foreign)
    return next(name for name in free if name != UNTEMPLATED or not identity)


def display_path(keys: tuple[str, ...]) -> str:
    """Return the path as people write it, `address.city`. It is for display; `encode_keys` is the exact form.

    The path without keys stands for the column with the rest of the row.
    """
    if not keys:
        return MORE
    return ".".join(storable(key) for key in keys)


def encode_keys(keys: tuple[str, ...]) -> str:
    """Return the exact path as an ASCII JSON array, the same on every machine; `decode_keys` reads it back."""
    return json.dumps(keys, separators=(",", ":"))


def decode_keys(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))


def naming_order(keys: tuple[str, ...]) -> tuple[bool, tuple[str, ...]]:
    """Return the sort key for naming the new paths of one batch: a key that is already a readable name comes first.

    So `a_b` gets the name `a_b`, and `a-b` gets the hash, whatever the order of the rows.
    """
    return any(_segment(key) != key for key in keys), keys


def _is_free(name: str, taken: Container[str]) -> bool:
    if name in SYSTEM_COLUMNS or name in _RESERVED_COLUMNS or name in (*VERSION_COLUMNS, CHANGED_COLUMN, MORE):
        return False
    if name in taken or name.endswith(VARIANTS) or _EARLIER.fullmatch(name):
        return False
    return not any(name + suffix in taken for suffix in VARIANTS)


def _candidates(readable: str, identity: str, limit: int, *, plain: bool) -> Iterator[str]:
    if plain and len(readable) <= limit:
        yield readable
    attempt = 0
    while True:
        salted = identity if attempt == 0 else f"{identity}#{attempt}"
        stem = readable[: limit - _DIGEST - 1].rstrip("_")
        yield f"{stem}_{sha256(salted.encode('utf-8', 'backslashreplace')).hexdigest()[:_DIGEST]}"
        attempt += 1


def _segment(key: str) -> str:
    """Return one key as lower snake case, or "" if no character in it can be transcribed."""
    latin = _NOT_WORD.sub("_", anyascii(storable(key)))
    if not latin.strip("_"):
        latin = _NOT_WORD.sub("_", " ".join(unicodedata.name(char, "") for char in key.strip("_ ")))
    words = _CAMEL_HUMP.sub(r"\1_\2", _CAPITALISED.sub(r"\1_\2", latin)).lower()
    words = _UNDERSCORES.sub("_", words).rstrip("_")
    if not key.startswith("_") or words.startswith("_dlt"):
        words = words.lstrip("_")
    return f"_{words}" if words[:1].isdigit() else words
