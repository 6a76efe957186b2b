"""Flatten the free-form objects of an import into columns of the table `imports`, within what table and row can hold.

Invariant: each top-level scalar of such an object is in the column of its key or in a variant of it, whatever values
other imports have. Arrays, objects, and scalars beyond the limits are only in the object's JSON. The result depends
only on the values of one import and the existing columns, so that `verify` computes the same.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from connector.transform.flatten import Flattened, flatten
from connector.transform.json_slices import object_members
from connector.transform.row_limits import within_row
from connector.transform.schema import Field, Keys, TableSchema

MOST_COLUMNS = 1000  # of the table, without variants
MOST_WITH_VARIANTS = 1400  # PostgreSQL has room for 1,600, which includes dropped columns

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


@dataclass(frozen=True, slots=True)
class Members:
    """The columns; `overflowed` names the objects that have a scalar without a column."""

    flat: Flattened
    overflowed: frozenset[str]


def flatten_members(
    rows: Sequence[Mapping[str, bytes | None]],
    known: TableSchema,
    *,
    other_columns: Collection[str],
    row_bytes: int | None,
    most_columns: int | None = None,
    nul_safe: bool,
) -> Members:
    """Flatten the objects of each row, given by name; `other_columns` are the other columns of the table.

    A scalar that does not fit into the `row_bytes` of its row has no column there; `most_columns` is the destination's
    limit.
    """
    fields: dict[Keys, Field] = {keys: each for keys, each in known.fields.items() if len(keys) == 2}
    schema = TableSchema(known.table, fields, known.physical)
    room = MOST_COLUMNS - len(_names(schema).union(other_columns))
    fresh: set[Keys] = set()
    overflowed: set[str] = set()
    texts: list[bytes] = []
    for row in rows:
        objects: list[str] = []
        for name, text in row.items():
            kept: list[str] = []
            for key, value in _scalars(text):
                keys = (name, key)
                if keys not in fields and keys not in fresh:
                    if len(fresh) >= room:
                        overflowed.add(name)
                        continue
                    fresh.add(keys)
                kept.append(f"{json.dumps(key)}:{value}")
            if kept:
                objects.append(f'"{name}":{{{",".join(kept)}}}')
        texts.append(f"{{{','.join(objects)}}}".encode())
    most = MOST_WITH_VARIANTS if most_columns is None else min(MOST_WITH_VARIANTS, most_columns)
    flat, cut = _within_table(flatten(texts, schema, nul_safe=nul_safe), _names(schema).union(other_columns), most)
    if row_bytes is not None:
        flat, unfit = _within_rows(flat, schema, row_bytes)
        cut |= unfit
    overflowed.update(each.keys[0] for each in flat.schema.fields.values() if cut & _places(each))
    return Members(flat, frozenset(overflowed))


def _scalars(text: bytes | None) -> Iterator[tuple[str, str]]:
    """Yield the top-level members that are neither object nor array, each value as its text."""
    if text is None or text[:1] != b"{":
        return
    members: Mapping[str, bytes | msgspec.Raw]
    try:
        members = _decode(text)
    except (ValueError, RecursionError):
        members = object_members(text)
    for key, value in members.items():
        found = bytes(value).decode()
        if found[:1] not in ("{", "["):
            yield key, found


def _within_table(flat: Flattened, before: set[str], most: int) -> tuple[Flattened, set[str]]:
    """Drop the new variants for which a table with the columns `before` has no room; return their names too.

    `most` is the number of columns that it may have.
    """
    names = before | {each.column for each in flat.schema.fields.values()}
    new = sorted(column for column in flat.columns if column not in names)
    cut = set(new[max(most - len(names), 0) :])
    if not cut:
        return flat, cut
    fields = [
        replace(
            each,
            has_text=each.has_text and each.text_column not in cut,
            has_double=each.has_double and each.double_column not in cut,
        )
        for each in flat.schema.fields.values()
    ]
    columns = {name: column for name, column in flat.columns.items() if name not in cut}
    return Flattened(flat.schema.with_fields(fields), columns, flat.counts), cut


def _within_rows(flat: Flattened, known: TableSchema, row_bytes: int) -> tuple[Flattened, set[str]]:
    """Leave values out that their rows have no room for; return the names of their columns too.

    A new field of which no value is left has no column yet, as if it were only null.
    """
    columns = within_row(flat.columns, row_bytes)
    cut = {name for name, column in columns.items() if column.null_count != flat.columns[name].null_count}
    existing = {name for each in known.fields.values() for name in each.columns()}
    filled = existing | {name for name, column in columns.items() if column.null_count < len(column)}
    fields: list[Field] = []
    for each in flat.schema.fields.values():
        if cut & _places(each):
            has_text, has_double = each.text_column in filled, each.double_column in filled
            kept = each.type if has_text or has_double or each.column in filled else None
            fields.append(replace(each, type=kept, has_text=has_text, has_double=has_double))
    schema = flat.schema.with_fields(fields)
    made = {name for each in schema.fields.values() for name in each.columns()}
    return replace(flat, schema=schema, columns={n: c for n, c in columns.items() if n in made}), cut


def _names(schema: TableSchema) -> set[str]:
    """Return every existing or future column; a field that was only null so far has one too."""
    fields = schema.fields.values()
    return {*schema.physical, *(each.column for each in fields), *(name for each in fields for name in each.columns())}


def _places(known: Field) -> set[str]:
    return {known.column, known.text_column, known.double_column}
