"""Decide which rows of the table `imports` go into a package.

Invariant: a row is written if it differs from the listing or is marked as due, once for each import and package. If the
records are read, the row is in the package of the records, so that both have the same version.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from connector.extract.records import ImportRead
from connector.load.data_dictionary import Catalogue
from connector.load.imports_table import (
    ImportRow,
    StoredMetadata,
    import_table_rows,
    is_listed_as,
    listed_row,
    read_row,
    records_metadata_of,
    tombstones,
)
from connector.load.table_rows import TableRows
from connector.models import Import
from connector.run.decision import Discovered
from connector.settings import RunScope, Settings
from connector.transform.row_limits import LIMITS
from connector.warehouse import Warehouse
from connector.warehouse.state import WarehouseState
from connector.warehouse.tables import FIELDS, IMPORTS, IMPORTS_SCHEMA


class ImportRows:
    """The rows queued for the next package; without `listed`, only those of imports whose records are read."""

    def __init__(
        self,
        settings: Settings,
        scope: RunScope,
        warehouse: Warehouse,
        state: WarehouseState,
        catalogue: Catalogue,
        *,
        listed: bool,
    ) -> None:
        self._settings = settings
        self._rules = settings.protection.fingerprint_of_metadata
        self._force = scope.force
        self._is_shard = scope.selection.part is not None
        self._warehouse = warehouse
        self._state = state
        self._catalogue = catalogue
        self._listed = listed
        self._unread: list[Import] = []
        self._read: list[ImportRow] = []

    def changed(self, discovered: Discovered) -> list[Import]:
        """Return the imports whose row differs from the listing or is marked as due; none for a shard."""
        if self._is_shard:
            return []
        return [import_ for import_ in discovered.imports if self._is_due(import_)]

    def add_changed(self, discovered: Discovered) -> None:
        """Queue the rows of all changed imports, whether or not their records are read."""
        self._unread = self.changed(discovered)

    def add_unread(self, discovered: Discovered) -> None:
        """Queue the rows of imports whose records are not read."""
        if self._listed:
            read = {planned.import_.slug for planned in discovered.plan.read}
            self._unread += [import_ for import_ in self.changed(discovered) if import_.slug not in read]

    def add_unloaded(self, import_: Import) -> None:
        """Queue the row of an import whose records were to be read and are not loaded."""
        if self._listed and self._is_due(import_):
            self._unread.append(import_)

    def add_read(self, listed: Import, read: ImportRead) -> None:
        """Queue the row of an import whose records come with it."""
        # the listing's version, because the next listing is compared with it, and an import's own URL may show others
        # a shard writes the row as it was when the work was divided, so that `imports` gets no new column
        same = self._is_shard or listed.fingerprint == read.import_.fingerprint
        shown = listed if same else read.import_
        row = read_row(shown, read.records_metadata, self._rules)
        seen = self._state.imports.get(shown.slug)
        as_stored = seen is not None and (seen.content_hash, seen.rules) == (row.content_hash, self._rules)
        if self._force or seen is None or seen.deleted or not as_stored:
            self._read.append(row)

    def take(self, load_id: str, now: datetime) -> tuple[int, Iterator[TableRows]]:
        """Return the number of queued rows, and what the package loads for them; the queue is empty afterwards."""
        unread, self._unread = self._unread, []
        rows, self._read = self._read, []
        known = [import_.slug for import_ in unread if import_.slug in self._state.imports]
        kept: dict[str, StoredMetadata] = {}
        if known and "records_metadata" in self._state.schemas[IMPORTS].physical:
            with self._warehouse.connect() as connection:
                kept = records_metadata_of(connection.rows_of(IMPORTS, "slug", known))
        rows += [listed_row(import_, kept.get(import_.slug), self._rules) for import_ in unread]
        return len(rows), self._table_rows(rows, load_id, now)

    def tombstones(self, deleted: Sequence[str], load_id: str, now: datetime) -> Iterator[TableRows]:
        """Yield the tombstones of deleted imports."""
        seen = self._state.imports
        gone = [slug for slug in deleted if slug not in seen or not seen[slug].deleted]
        if gone:
            with self._warehouse.connect() as connection:
                known = IMPORTS in self._state.tables
                added = self._state.added.get(IMPORTS, ())
                old = (
                    connection.rows_of(IMPORTS, "slug", gone, without=added) if known else IMPORTS_SCHEMA.empty_table()
                )
            yield tombstones(old, gone, load_id, now, keeps=self._settings.deletes == "keep")

    def _is_due(self, import_: Import) -> bool:
        seen = self._state.imports.get(import_.slug)
        as_listed = seen is not None and not seen.deleted and is_listed_as(seen.content_hash, import_, self._rules)
        return self._force or not as_listed

    def _table_rows(self, rows: Sequence[ImportRow], load_id: str, now: datetime) -> Iterator[TableRows]:
        limits = LIMITS.get(self._warehouse.destination_type)
        for table_rows in import_table_rows(
            rows,
            self._catalogue,
            load_id,
            now,
            limits=limits,
            nul_safe=not self._warehouse.traits.keeps_nul,
        ):
            if not (self._is_shard and table_rows.table == FIELDS):  # all shards would write the same rows of it
                yield table_rows
