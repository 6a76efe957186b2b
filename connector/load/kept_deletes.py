"""With `deletes = "keep"`: rows that the warehouse has and the service has no more stay, marked as deleted.

Invariant: such a row goes into the package that replaces its import, unless its record comes with that package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from connector.ledger import LedgerRow
from connector.load.batches import Rows
from connector.warehouse import Warehouse
from connector.warehouse.state import Memory
from connector.warehouse.tables import RECORDS, keys_of, mark_deleted


class KeptDeletes:
    """Rows carried over into one load package; none unless `keeps`."""

    def __init__(self, warehouse: Warehouse, memory: Memory, load_id: str, now: datetime, *, keeps: bool) -> None:
        self._warehouse = warehouse
        self._memory = memory
        self._load_id = load_id
        self._now = now
        self._keeps = keeps
        self._carried: list[tuple[str, pa.Table]] = []

    def vanished(
        self, slug: str, known: LedgerRow | None, incoming: Iterable[Rows], table: str | None
    ) -> dict[str, pa.Table]:
        """Return the rows of an import that do not come again, per table, marked as deleted."""
        if not self._keeps or known is None:
            return {}
        old: dict[str, pa.Table] = {}
        present = {value for rows in incoming for value in rows.slug.to_pylist()}
        # the table it comes to may have marked rows of it from an earlier stay
        homes = {*self._memory.homes.get(slug, ()), known.table_name, table} - {None}
        with self._warehouse.connect() as connection:
            for home in {RECORDS, *homes} & self._memory.tables:
                record, key = keys_of(home)
                rows = connection.rows_of(home, key, [slug])
                gone = [value not in present for value in rows.column(record).to_pylist()] if rows.num_rows else []
                if any(gone):
                    old[home] = mark_deleted(rows.filter(pa.array(gone)), self._now, self._load_id)
        return old

    def carry(self, table: str, rows: pa.Table) -> None:
        """Have these rows come with the package."""
        self._carried.append((table, rows))

    def rows(self, arrived: Callable[[str], pa.ChunkedArray[Any]]) -> Iterator[tuple[str, pa.Table]]:
        """Yield what is carried over, by table; not what came with another import: `arrived(table)` are its records."""
        for table, vanished in self._carried:
            known = pc.is_in(vanished.column(keys_of(table)[0]), value_set=arrived(table))
            rows = vanished.filter(pc.invert(known))
            if rows.num_rows:
                yield table, rows
