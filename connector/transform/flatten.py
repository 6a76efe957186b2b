"""Flatten rows of any shape into Arrow columns without loss.

Objects become `a__b__c` down to three levels of keys; deeper objects and arrays become JSON text. A value that does not
fit the type of its column goes unchanged to the column's variant: `__v_double` for a fraction among whole numbers,
`__v_text` for anything else. Two things are only in the raw row: an empty string in a column that is neither text nor
JSON, and the earlier values of a key that occurs twice in one object.

A value without a column is in `_more`, an object with the row's own keys: a field for which the table has no room
(`width`), or a value that needs a variant for which there is no room. It is not in `counts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from connector.transform.casting import choose_kind
from connector.transform.columns import FieldCount, Placed, place
from connector.transform.json_rows import MAX_DEPTH, Row, Value, has_minus_zero, read_exactly, read_rows
from connector.transform.naming import naming_order
from connector.transform.overflow import Overflow
from connector.transform.schema import OVERFLOW_KEYS, Field, Keys, TableSchema, hint_for, parse_type
from connector.transform.struct_decoder import Leaf, shape_of
from connector.transform.width import UNBOUNDED, Room, TooWide
from connector.transform.written import Hint, parse_hint

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
    room: Room = UNBOUNDED,
) -> Flattened:
    """Flatten the `data` objects of records, JSON in UTF-8, into columns of the table described by `schema`.

    `hints` name a type, and how strings are written, by column name or by original key. `nul_safe` is for destinations
    that hold no NUL character: see `connector.transform.escaping`. Raises TooWide for more new fields than there is
    room for.
    """
    shape = None if has_minus_zero(*rows) else shape_of(tuple(filter(None, schema.fields)))
    leaves = None if shape is None else shape.read(rows)
    try:
        if leaves is not None:
            return _flatten(leaves, Overflow(len(rows)), schema, hints, nul_safe, room)
        return _flatten_any(read_rows(rows), schema, hints, nul_safe, room)
    except RecursionError:  # nested deeper than msgspec can write
        return _flatten_any([read_exactly(row) for row in rows], schema, hints, nul_safe, room)


def leaf_values(rows: Sequence[bytes], schema: TableSchema) -> Iterator[tuple[Keys, Iterable[Value]]]:
    """Yield each path that `flatten` has a column for, with the values that the rows have there, without nulls."""
    try:
        objects = read_rows(rows)
        leaves = list(_leaves(Overflow(len(rows)).split(objects, schema) if schema.is_bounded else objects, ()))
    except RecursionError:
        objects = [read_exactly(row) for row in rows]
        leaves = list(_leaves(Overflow(len(rows)).split(objects, schema) if schema.is_bounded else objects, ()))
    for leaf in leaves:
        yield leaf.keys, (cell for cell in leaf.cells if cell is not None)


def _flatten_any(
    objects: Sequence[Row], schema: TableSchema, hints: Mapping[str, str], nul_safe: bool, room: Room
) -> Flattened:
    overflow = Overflow(len(objects))
    if schema.is_bounded:
        objects = overflow.split(objects, schema)
    leaves: list[Leaf] = []
    new_fields = 0
    for leaf in _leaves(objects, ()):
        new_fields += leaf.keys not in schema.fields
        if new_fields > room.new_fields:  # before their cells take memory
            raise TooWide
        leaves.append(leaf)
    return _flatten(leaves, overflow, schema, hints, nul_safe, room)


def _flatten(
    leaves: list[Leaf], overflow: Overflow, schema: TableSchema, hints: Mapping[str, str], nul_safe: bool, room: Room
) -> Flattened:
    named = schema.with_paths(leaf.keys for leaf in leaves)
    if named is not schema and named.width > room.columns:  # a column that a run left when it died may have variants
        raise TooWide
    schema = named
    counts: dict[Keys, FieldCount] = {}
    all_placed: dict[Keys, Placed] = {}
    typed: list[Field] = []
    for leaf in leaves:
        if not leaf.kinds:
            counts[leaf.keys] = FieldCount(0, 0)
            continue
        known = schema.fields[leaf.keys]
        given = hint_for(known, hints) if hints else None
        hint = None if given is None else parse_hint(given)
        column_type = known.type or _first_type(known.column, leaf, schema, hint)
        if hint is not None and hint.type != parse_type(column_type):
            hint = None
        all_placed[leaf.keys] = place(leaf.cells, leaf.kinds, column_type, hint=hint, nul_safe=nul_safe)
        if known.type is None:
            typed.append(replace(known, type=column_type))
    schema = _with_variants(schema.with_fields(typed), all_placed, leaves, overflow, room)
    columns: dict[str, pa.Array[Any]] = {}
    for keys, placed in all_placed.items():
        known = schema.fields[keys]
        columns[known.column] = placed.base
        if placed.text is not None:
            columns[known.text_column] = placed.text
        if placed.double is not None:
            columns[known.double_column] = placed.double
        counts[keys] = placed.count
    rest = overflow.column(nul_safe=nul_safe)
    if rest is not None:
        schema = schema.with_overflow_column()
        columns[schema.fields[OVERFLOW_KEYS].column] = rest
        counts[OVERFLOW_KEYS] = FieldCount(len(rest) - rest.null_count, 0)
    return Flattened(schema, columns, MappingProxyType(counts))


def _with_variants(
    schema: TableSchema, all_placed: dict[Keys, Placed], leaves: Iterable[Leaf], overflow: Overflow, room: Room
) -> TableSchema:
    """Return the table with the variants that these values need; values whose variant has no room go to `overflow`."""
    wanted: list[tuple[Keys, str]] = []
    for keys, placed in all_placed.items():
        known = schema.fields[keys]
        if placed.text is not None and not known.has_text:
            wanted.append((keys, "text"))
        if placed.double is not None and not known.has_double:
            wanted.append((keys, "double"))
    if not wanted:
        return schema
    left = max(room.columns - schema.width, 0)
    if left < len(wanted):
        wanted.sort(key=lambda variant: (naming_order(variant[0]), variant[1]))
        cells = {leaf.keys: leaf.cells for leaf in leaves}
        for keys, variant in wanted[left:]:
            all_placed[keys] = _moved(all_placed[keys], variant, keys, cells[keys], overflow)
    for keys, variant in wanted[:left]:
        known = schema.fields[keys]
        text, double = known.has_text or variant == "text", known.has_double or variant == "double"
        schema = schema.with_fields([replace(known, has_text=text, has_double=double)])
    return schema


def _moved(placed: Placed, variant: str, keys: Keys, cells: Sequence[Value], overflow: Overflow) -> Placed:
    """Move the values of the variant to `overflow` and return the column without the variant."""
    column = placed.text if variant == "text" else placed.double
    rows = [row for row, there in enumerate(() if column is None else column.is_valid().to_pylist()) if there]
    for row in rows:
        overflow.put(row, keys, cells[row])
    counted = placed.count
    left = FieldCount(counted.values - len(rows), counted.conflicts - len(rows), counted.kept_rows)
    if variant == "text":
        return replace(placed, text=None, count=left)
    return replace(placed, double=None, count=left)


def _first_type(column: str, leaf: Leaf, schema: TableSchema, hint: Hint | None) -> str:
    """Choose the column's permanent type: that of the column in the warehouse, else the hint's, else the values'."""
    there = schema.physical.get(column)
    if there is not None:
        return str(parse_type(there))
    if hint is not None:
        return str(hint.type)
    return choose_kind(cell for cell in leaf.cells if cell is not None).value


def _leaves(objects: Sequence[Row], prefix: Keys) -> Iterator[Leaf]:
    """Yield one leaf per path that is a value in some object.

    An object above the last level is not a value, but its members are; an empty object counts as a value.
    """
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
    """Yield each name with the value that each object has there, null where it has none."""
    names = list(objects[0]) if objects else []
    if len(names) > 1 and set(map(len, objects)) == {len(names)}:
        try:
            # An object with as many names as the first and all of its names has the same names; tuples are faster then.
            yield from zip(names, zip(*map(itemgetter(*names), objects), strict=True), strict=True)
        except KeyError:
            pass
        else:
            return
    for name in dict.fromkeys(chain.from_iterable(objects)):
        yield name, [members.get(name) for members in objects]
