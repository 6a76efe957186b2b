"""Keep rows that the service no longer has, marked as deleted, if `deletes = "keep"`.

Invariant: such a row goes into the package that replaces its import, unless its record comes with that package. It goes
without the columns that others added: dlt would take them for ours from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from connector.ledger import LedgerRow
from connector.load.batches import BuiltImports
from connector.transform.schema import Kind
from connector.warehouse import Warehouse
from connector.warehouse.state import WarehouseState
from connector.warehouse.tables import RECORDS, keys_of, mark_deleted


class KeptDeletes:
    """Rows carried over into one load package; none unless `keeps`."""

    def __init__(
        self, warehouse: Warehouse, state: WarehouseState, load_id: str, now: datetime, *, keeps: bool
    ) -> None:
        self._warehouse = warehouse
        self._state = state
        self._load_id = load_id
        self._now = now
        self._keeps = keeps
        self._carried: list[tuple[str, pa.Table]] = []
        self._json: dict[str, frozenset[str]] = {}

    def vanished(self, built: BuiltImports, known: Sequence[LedgerRow | None]) -> dict[str, pa.Table]:
        """Return the rows of records that none of the imports has any more, per table, marked as deleted."""
        before = [row for row in known if row is not None]
        if not self._keeps or not before:
            return {}
        return self._vanished_rows(before, {slug for rows in built.rows for slug in rows.slug.to_pylist()}, built.table)

    def vanished_all(self, known: LedgerRow | None) -> dict[str, pa.Table]:
        """Return all rows of an import that is deleted, per table, marked as deleted."""
        return {} if not self._keeps or known is None else self._vanished_rows([known], frozenset(), None)

    def _vanished_rows(self, known: Sequence[LedgerRow], present: Set[Any], table: str | None) -> dict[str, pa.Table]:
        old: dict[str, pa.Table] = {}
        slugs: dict[str, list[str]] = {}
        for row in known:
            # its new table may have rows of it that were marked as deleted earlier
            tables = {RECORDS, *self._state.tables_by_import.get(row.slug, ()), row.table_name, table}
            for each in tables & self._state.tables:
                slugs.setdefault(each, []).append(row.slug)
        with self._warehouse.connect() as connection:
            for each in sorted(slugs):
                record, key = keys_of(each)
                rows = connection.rows_of(each, key, slugs[each], without=self._state.added.get(each, ()))
                if not rows.num_rows:
                    continue
                records: list[Any] = rows.column(record).to_pylist()
                gone = [slug not in present for slug in records]
                if any(gone):
                    old[each] = mark_deleted(rows.filter(pa.array(gone)), self._now, self._load_id)
            if old:
                there = connection.columns()
                self._json.update({t: frozenset(c for c, kind in there[t].items() if kind == Kind.JSON) for t in old})
        return old

    def json_columns(self, table: str) -> frozenset[str]:
        """Return the JSON columns of rows that are carried over: they have every column of the table."""
        return self._json.get(table, frozenset())

    def carry(self, table: str, rows: pa.Table) -> None:
        """Add these rows to the package."""
        self._carried.append((table, rows))

    def rows(self, incoming: Callable[[str], pa.ChunkedArray[Any]]) -> Iterator[tuple[str, pa.Table]]:
        """Yield the rows that are carried over, by table, without records that came with another import.

        `incoming(table)` returns the slugs of those records.
        """
        for table, vanished in self._carried:
            known = pc.is_in(vanished.column(keys_of(table)[0]), value_set=incoming(table))
            rows = vanished.filter(pc.invert(known))
            if rows.num_rows:
                yield table, rows
