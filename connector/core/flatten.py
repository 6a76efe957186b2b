"""Rows of any shape → Arrow columns that lose nothing.

Objects become `a__b__c` down to three levels of keys, deeper ones and arrays JSON text. A value that does not fit
the type its column has goes unchanged to the column's variant: `__v_double` for a fraction beside whole numbers,
`__v_text` for all else. Two things are not in the typed columns, only in the raw row: an empty string where the
column is neither text nor JSON, and the earlier values of a key that occurs twice in one object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from connector.core.cells import choose_kind
from connector.core.columns import FieldCount, place
from connector.core.parsing import MAX_DEPTH, Row, Value, read_exactly, read_rows
from connector.core.schema import Field, Keys, TableSchema, hint_for, parse_type
from connector.core.shapes import Leaf, shape_of

__all__ = ["FieldCount", "Flattened", "flatten", "leaf_values"]

_NULL = type(None)
_NO_MEMBERS: Row = {}
_NO_HINTS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Flattened:
    """A batch as columns of one length; a column of the schema that is missing here is null throughout."""

    schema: TableSchema
    columns: dict[str, pa.Array[Any]]
    counts: Mapping[Keys, FieldCount]


def flatten(
    rows: Sequence[bytes],
    schema: TableSchema,
    hints: Mapping[str, str] = _NO_HINTS,
    *,
    nul_safe: bool = False,
) -> Flattened:
    """The records' `data` objects, as JSON in UTF-8, against what is known of their table.

    `hints` name a type by column name or by original key. `nul_safe` is for destinations that hold no NUL
    character: see `connector.core.texts`.
    """
    shape = shape_of(tuple(schema.fields))
    leaves = None if shape is None else shape.read(rows)
    try:
        if leaves is not None:
            return _flatten(leaves, schema, hints, nul_safe)
        return _flatten(list(_leaves(read_rows(rows), ())), schema, hints, nul_safe)
    except RecursionError:  # nested deeper than can be written back as JSON: keep the source text
        return _flatten(list(_leaves([read_exactly(row) for row in rows], ())), schema, hints, nul_safe)


def leaf_values(rows: Sequence[bytes]) -> Iterator[tuple[Keys, Iterable[Value]]]:
    """Each path that `flatten` makes a column for, with what the rows hold there, nulls left out."""
    try:
        leaves = list(_leaves(read_rows(rows), ()))
    except RecursionError:
        leaves = list(_leaves([read_exactly(row) for row in rows], ()))
    for leaf in leaves:
        yield leaf.keys, (cell for cell in leaf.cells if cell is not None)


def _flatten(leaves: list[Leaf], schema: TableSchema, hints: Mapping[str, str], nul_safe: bool) -> Flattened:
    schema = schema.with_paths(leaf.keys for leaf in leaves)
    columns: dict[str, pa.Array[Any]] = {}
    counts: dict[Keys, FieldCount] = {}
    changed: list[Field] = []
    for leaf in leaves:
        if not leaf.kinds:
            counts[leaf.keys] = FieldCount(0, 0)
            continue
        known = schema.fields[leaf.keys]
        hint = hint_for(known, hints) if hints else None
        column_type = known.type or _first_type(known.column, leaf, schema, hint)
        hinted = hint is not None and parse_type(hint) == parse_type(column_type)
        placed = place(leaf.cells, leaf.kinds, column_type, hinted=hinted, nul_safe=nul_safe)
        typed = replace(
            known,
            type=column_type,
            has_text=known.has_text or placed.text is not None,
            has_double=known.has_double or placed.double is not None,
        )
        columns[typed.column] = placed.base
        if placed.text is not None:
            columns[typed.text_column] = placed.text
        if placed.double is not None:
            columns[typed.double_column] = placed.double
        if typed != known:
            changed.append(typed)
        counts[leaf.keys] = placed.count
    return Flattened(schema.with_fields(changed), columns, MappingProxyType(counts))


def _first_type(column: str, leaf: Leaf, schema: TableSchema, hint: str | None) -> str:
    """The type for ever: the warehouse's if the column is there already, else the hint's, else the values'."""
    given = schema.physical.get(column) or hint
    if given is not None:
        return str(parse_type(given))
    return choose_kind(cell for cell in leaf.cells if cell is not None).value


def _leaves(objects: Sequence[Row], prefix: Keys) -> Iterator[Leaf]:
    """One leaf per path that is a value in some object. An object above the last level is no value but members;
    an empty one has no member to stand for it, so it is a value."""
    for name, cells in _members(objects):
        keys = (*prefix, name)
        kinds = set(map(type, cells))
        if dict in kinds and len(keys) < MAX_DEPTH:
            yield from _leaves([cell if type(cell) is dict else _NO_MEMBERS for cell in cells], keys)
            if kinds == {dict} and all(cells):
                continue
            cells = [None if type(cell) is dict and cell else cell for cell in cells]
            kinds = set(map(type, cells))
            if kinds == {_NULL} and not any(name in members and members[name] is None for members in objects):
                continue
        kinds.discard(_NULL)
        yield Leaf(keys, cells, frozenset(kinds))


def _members(objects: Sequence[Row]) -> Iterator[tuple[str, Sequence[Value]]]:
    """Each name with what every object has there, null where it has nothing."""
    names = list(objects[0]) if objects else []
    if len(names) > 1 and set(map(len, objects)) == {len(names)}:
        try:
            # As many names as the first object and all of its names: the same names. Tuples are then the fast way.
            yield from zip(names, zip(*map(itemgetter(*names), objects), strict=True), strict=True)
        except KeyError:
            pass
        else:
            return
    for name in dict.fromkeys(chain.from_iterable(objects)):
        yield name, [members.get(name) for members in objects]
