"""Keep the data dictionary: the typed tables, their fields, and the rows of `sync_fields`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from connector.transform.columns import FieldCount
from connector.transform.escaping import storable
from connector.transform.naming import display_path, encode_keys, overflowed_name
from connector.transform.schema import OVERFLOWED, Field, Keys, TableSchema
from connector.warehouse.field_counts import TableTotals
from connector.warehouse.state import WarehouseState
from connector.warehouse.tables import IMPORTS, LOAD_ID


@dataclass(slots=True)
class Catalogue:
    """The typed tables during a run: their schemas, their templates, and when fields were first and last seen.

    `text_conflicts` maps each import that has conflicts to its table and the counts in its ledger row. `totals` are the
    counts of the tables whose rows need not be counted, without the conflicts in `text_conflicts`.
    """

    schemas: dict[str, TableSchema]
    template_tables: dict[str, str]
    first_seen: dict[tuple[str, str], datetime]
    last_seen: dict[tuple[str, str], datetime]
    miscounted: set[str]
    text_conflicts: dict[str, tuple[str, Mapping[str, int]]]
    totals: dict[str, TableTotals] = field(default_factory=dict)

    @classmethod
    def of(cls, state: WarehouseState) -> Catalogue:
        known = dict(state.schemas), dict(state.template_tables), dict(state.first_seen), dict(state.last_seen)
        conflicts = {
            each.slug: (each.table_name, json.loads(each.text_conflicts))
            for each in state.ledger.values()
            if each.text_conflicts and each.table_name
        }
        return cls(*known, set(state.miscounted), conflicts, dict(state.totals))

    def keep_totals(self, table: str, totals: TableTotals, in_text: Mapping[str, int]) -> None:
        """Keep the totals of a table for the next package; `in_text` are those conflicts that are in text columns."""
        columns = {keys: known.column for keys, known in self.schema(table).fields.items()}
        fields = {k: (n, conflicts - in_text.get(columns[k], 0)) for k, (n, conflicts) in totals.fields.items()}
        self.totals[table] = TableTotals(totals.rows, fields)

    def forget_totals(self, tables: Collection[str]) -> None:
        """Make the next package count all rows of these tables, because not all that it loaded are there."""
        for table in tables:
            self.totals.pop(table, None)

    def text_conflicts_of(self, table: str, without: Collection[str] = ()) -> Counter[str]:
        """Return column → scalars that text columns of the table took from imports other than these."""
        found: Counter[str] = Counter()
        for slug, (table_of_import, counts) in self.text_conflicts.items():
            if table_of_import == table and slug not in without:
                found.update(counts)
        return found

    def schema(self, table: str) -> TableSchema:
        return self.schemas.setdefault(table, TableSchema(table))


def schema_changes(before: Mapping[str, TableSchema], after: Mapping[str, TableSchema]) -> Iterator[str]:
    """Yield the new tables, new fields, and fields with their first values of another type.

    Yield nothing for a first load, in which everything is new.
    """
    for table in sorted(after) if before.keys() - {IMPORTS} else ():
        old, now = before.get(table), after[table]
        if old is now:
            continue
        fields = {keys: each for keys, each in now.fields.items() if each.type is not None}
        if old is None or not any(each.type for each in old.fields.values()):
            if old is None or fields:
                yield f"{table} is new, with {len(fields):,} fields"
            continue
        for keys, each in fields.items():
            known = old.fields.get(keys)
            if known is None or known.type is None:
                yield f"{table} has a new field {display_path(keys)!r}: {each.column} ({each.type})"
            elif (each.has_text, each.has_double) != (known.has_text, known.has_double):
                yield f"{table}.{each.column} has its first values that are not {each.type}"


@dataclass(slots=True)
class FieldTotals:
    """The values of one field that are not null, and how many of them are not of the column's type."""

    values: int = 0
    conflicts: int = 0

    def add(self, count: FieldCount) -> None:
        self.values += count.values
        self.conflicts += count.conflicts


@dataclass(frozen=True, slots=True)
class FieldRows:
    """A maker of rows of `sync_fields`; it updates `first_seen` and `last_seen`.

    A field of which no row has a value any more keeps the time when it last had one. New fields are first seen later
    than all others of their table, even if another machine's clock is ahead, because views name them in that order.
    """

    first_seen: dict[tuple[str, str], datetime]
    last_seen: dict[tuple[str, str], datetime]
    now: datetime
    load_id: str
    nul_safe: bool
    _begins: dict[str, datetime] = field(default_factory=dict, init=False)  # table → when its new fields are first seen

    def row(
        self,
        table: str,
        known: Field,
        template: str | None = None,
        count: FieldTotals | None = None,
        live_rows: int = 0,
    ) -> dict[str, Any]:
        """Return the row of a field; without a `count`, its counts are null."""
        return {
            **self._named(table, known.column, known.keys, template, seen=count is None or count.values > 0),
            "data_type": known.type,
            "has_text": known.has_text,
            "has_double": known.has_double,
            "value_count": None if count is None else count.values,
            "null_count": None if count is None else live_rows - count.values,
            "conflict_count": None if count is None else count.conflicts,
        }

    def overflowed_rows(self, schema: TableSchema, template: str | None) -> Iterator[dict[str, Any]]:
        """Yield the rows of the fields that have no column."""
        for keys in sorted(schema.overflowed):
            uncounted = dict.fromkeys(("has_text", "has_double", "value_count", "null_count", "conflict_count"))
            named = self._named(schema.table, overflowed_name(keys), keys, template)
            yield {**named, "data_type": OVERFLOWED, **uncounted}

    def _named(self, table: str, column: str, keys: Keys, template: str | None, *, seen: bool = True) -> dict[str, Any]:
        key = table, column
        if key not in self.first_seen:
            self.first_seen[key] = self._begin(table)
        if seen or self.last_seen.get(key) is None:
            self.last_seen[key] = self.now
        return {
            "table_name": table,
            "column_name": column,
            "template_slug": template,
            "path": storable(display_path(keys), nul_safe=self.nul_safe),
            "keys": encode_keys(keys),
            "first_seen_at": self.first_seen[key],
            "last_seen_at": self.last_seen[key],
            LOAD_ID: self.load_id,
        }

    def _begin(self, table: str) -> datetime:
        if table not in self._begins:
            latest = max((at for (of, _), at in self.first_seen.items() if of == table and at), default=None)
            after = self.now if latest is None else latest + timedelta(microseconds=1)
            self._begins[table] = max(self.now, after)
        return self._begins[table]
