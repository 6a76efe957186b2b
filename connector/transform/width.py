"""Limit how many columns the rows of uploads may add, and decide which new fields get them.

Invariant: no import adds more columns than its `Room` allows, whatever its rows are. Which fields get a column depends
only on the set of its rows, not on their order. All other values are in the column `_more` of their row.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from connector.transform.json_rows import MAX_DEPTH, Row
from connector.transform.naming import naming_order
from connector.transform.schema import Keys, TableSchema

MOST_COUNTED = 200_000  # new fields of one import that are counted one by one


class TooWide(Exception):
    """Rows have more new fields than may get a column; nothing was built from them."""


@dataclass(frozen=True, slots=True)
class Room:
    """The room in a table: rows may add `new_fields` fields, up to `columns` columns in total."""

    new_fields: int = sys.maxsize
    columns: int = sys.maxsize


UNBOUNDED = Room()


@dataclass(frozen=True, slots=True)
class Width:
    """`columns` of fields and variants in a typed table, `new_fields` new fields per import once the table has some.

    Up to `listed` of the fields in `_more` are known by name. A table with that many is closed: every unknown field
    goes to `_more`, so that no field that was not listed can get a column later.
    """

    columns: int = 1_000
    new_fields: int = 200
    listed: int = 1_000

    def room(self, schema: TableSchema) -> Room:
        """Return the room for one import that is loaded into this table."""
        left = max(self.columns - schema.width, 0)
        return Room(min(left, self.new_fields) if any(schema.fields) else left, self.columns)

    def narrowed(self, schema: TableSchema, new: NewFields, room: Room) -> TableSchema:
        """Give columns to as many new fields as there is room for; the others never get one."""
        ranked = new.ranked()
        most = min(room.new_fields, len(ranked))
        while most and (excess := schema.with_paths(ranked[:most]).width - room.columns) > 0:
            most = max(most - excess, 0)  # columns that a run left when it died have variants
        return schema.with_paths(ranked[:most]).overflowing(ranked[most:], self.listed)


WIDTH = Width()


class NewFields:
    """The unknown fields of some rows; those in most rows rank first.

    Beyond `MOST_COUNTED` fields only the `most` first ones by name are kept.
    """

    def __init__(self, schema: TableSchema, most: int) -> None:
        self._schema = schema
        self._most = most
        self._counts: Counter[Keys] = Counter()
        self._cut = False

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self._add(row, ())
            if len(self._counts) > max(MOST_COUNTED, 2 * self._most):
                self._cut = True
                self._counts = Counter(dict.fromkeys(sorted(self._counts, key=naming_order)[: self._most], 0))

    def _add(self, members: Row, prefix: Keys) -> None:
        for name, value in members.items():
            keys = (*prefix, name)
            if type(value) is dict and value and len(keys) < MAX_DEPTH:
                self._add(value, keys)
            elif self._schema.admits(keys) and keys not in self._schema.fields:
                self._counts[keys] += value is not None

    def ranked(self) -> list[Keys]:
        counts = self._counts
        if self._cut:
            return sorted(counts, key=naming_order)[: self._most]
        return sorted(counts, key=lambda keys: (-counts[keys], naming_order(keys)))
