"""Hold one run: the state that earlier runs left, the rows to load, package by package, and its tally.

The same object serves both dlt resources and, in the command, all load packages of a run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta

from connector.extract.records import ImportRead, Verdict
from connector.ledger import Due
from connector.load.batches import BuiltImports
from connector.load.data_dictionary import Catalogue, schema_changes
from connector.load.disposition import IncomingRows, other_imports
from connector.load.package import Package
from connector.load.table_rows import TableRows, rows_that_create
from connector.models import Import
from connector.run.choice import Choice
from connector.run.crash_suspects import MAX_CRASHES, CrashSuspects, KilledTwice
from connector.run.import_rows import ImportRows
from connector.run.opening import prepare_dataset
from connector.run.pipeline import Failure
from connector.run.plan import FewerRecords, Planned
from connector.run.ports import Ports, Progress, Silent
from connector.run.reader import Reader
from connector.run.record import RunRecord
from connector.runs import CLOCKS_DIFFER, Tally, make_run_id, mode_of
from connector.settings import RunScope, Settings
from connector.warehouse import Connection, Warehouse
from connector.warehouse.connection import LOADS, VERSIONS
from connector.warehouse.due_imports import mark_due
from connector.warehouse.erasing import empty_staging, erase_deleted, erase_unlisted
from connector.warehouse.loads import forget_schemas
from connector.warehouse.ownership import Dataset, forget_staged
from connector.warehouse.repair import confirm_tombstones
from connector.warehouse.state import WarehouseState
from connector.warehouse.tables import (
    IMPORTS,
    LEDGER,
    OF_IMPORT,
    RECORDS,
    RUNS,
    SOURCE,
    SYSTEM_SCHEMAS,
)

log = logging.getLogger("connector.run")


class RunSession:
    """One run, from `open` to `close`. Not thread-safe."""

    def __init__(
        self,
        settings: Settings,
        scope: RunScope,
        warehouse: Warehouse,
        ports: Ports,
        *,
        progress: Progress | None = None,
        stop: Callable[[], int | None] = lambda: None,
        crash_suspects: CrashSuspects | None = None,
    ) -> None:
        self._settings = settings
        self._scope = scope
        self.warehouse = warehouse
        self._ports = ports
        self._progress = progress or Silent()
        self._asked_to_stop = stop
        self._crash_suspects = crash_suspects or CrashSuspects()
        self._reader: Reader | None = None
        self.state = WarehouseState()
        self.dataset: Dataset | None = None  # what is there, until something is loaded
        self.taken: frozenset[str] = frozenset()  # names that others use where rows are staged
        self.future_start: datetime | None = None  # start of an earlier run by a clock that was far ahead
        self._began_loading = self._began_records = self._noted = False
        self._reading = True
        self._read = 0  # number of imports that were read, or found to be gone
        self._import_rows: ImportRows | None = None
        self.typed_tables: list[str] = []
        self.incoming: list[IncomingRows] = []
        self.merged: set[str] = set()  # tables in which rows of other imports may have been replaced
        self.losing: set[str] = set()  # imports from which records moved, on destinations that find slugs
        self.unread: list[str] = []  # imports listed for the first time and deleted before they were read
        self.read_later: dict[str, datetime] = {}  # imports that had changed when they were read → `updated_at`
        self._racy = False  # an import was read within the resolution of its `updated_at`
        self._refused = False  # rows of an import are in no typed table, because the destination refuses them
        self.exhausted = False
        self.left = 0  # number of imports left to the next run
        self.largest_batch_bytes = 0  # bytes of the longest rows, which are built some thousands at a time
        now = ports.now()
        self.tally = Tally(
            make_run_id(now),
            mode_of(scope.mode, settings.status),
            now,
            scope.window,
            destination=warehouse.destination,
        )
        self.record = RunRecord(warehouse, self.tally, ports.now, self._count_requests)

    # -- life cycle ----------------------------------------------------------------------------------------------

    def open(self, *, reading: bool = True, listed: bool = True) -> None:
        """Load what earlier runs left, record that this one began, open the client and begin to list.

        With `reading`, records are read as soon as the imports are known. Both continue while the caller and dlt
        prepare. Without `listed`, only the imports that are read get their row in `imports`.
        """
        self._reading = reading
        with self.warehouse.connect() as connection:
            found = prepare_dataset(connection, self._settings, self._scope, self.tally, self._ports.now())
        self.state, self.dataset, self.taken = found.state, found.dataset, found.taken
        self.tally.needs_audit = self.tally.needs_audit or found.needs_audit
        self.tally.loads_seen, self.tally.noted = found.state.loads_seen, found.state.noted
        self._begin_after(found.latest)
        if RUNS in self.state.tables:
            self.record.begin(found.dataset.columns[RUNS])
        if self.state.repaired:
            log.warning(
                "%d imports in the warehouse were left partly loaded and are read again.",
                self.state.repaired,
                extra={"event": "imports.half_loaded", "imports": self.state.repaired},
            )
        self.catalogue = Catalogue.of(self.state)
        self._import_rows = ImportRows(
            self._settings, self._scope, self.warehouse, self.state, self.catalogue, listed=listed
        )
        self._reader = Reader(
            self._settings,
            self._scope,
            self.warehouse,
            self.state,
            self.tally,
            self._ports,
            progress=self._progress,
            stop=self._asked_to_stop,
            crash_suspects=self._crash_suspects,
            taken=self.taken,
            reading=reading,
        )
        self._reader.start()

    def _begin_after(self, latest: datetime | None) -> None:
        """Begin after the previous run, even if its clock was ahead, so that versions follow each other in time."""
        if latest is None or latest < self.tally.started_at:
            return
        if latest - self.tally.started_at <= CLOCKS_DIFFER:
            self.tally.started_at = latest + timedelta(microseconds=1)
        elif self._settings.history:
            self.future_start = latest

    @property
    def reader(self) -> Reader:
        """Return the reader, once the run is open. Raises RuntimeError before that."""
        if self._reader is None:
            raise RuntimeError("the run is not open")
        return self._reader

    @property
    def import_rows(self) -> ImportRows:
        """Return the queue of rows of `imports`. Raises RuntimeError before the run is open."""
        if self._import_rows is None:
            raise RuntimeError("the run is not open")
        return self._import_rows

    def pack(self) -> None:
        """Make DuckDB compress the raw rows, before the first of them arrive."""
        if self._settings.raw and self.warehouse.destination_type == "duckdb":
            with self.warehouse.connect() as connection:
                connection.pack_raw_rows()

    def close(self) -> None:
        """End the requests under way and the event loop; safe to call twice."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _count_requests(self) -> None:
        if self._reader is not None:
            self._reader.count_requests()

    def committed(self, load_id: str | None) -> None:
        """Count the last package, which is in the warehouse now."""
        done = self.record.committed(load_id, schema_changes(self.state.schemas, self.catalogue.schemas))
        self._progress.committed(done.records)
        self._crash_suspects.done(done.imports)

    # -- rows for dlt --------------------------------------------------------------------------------------------

    def _begin_loading(self) -> None:
        """Make dlt look at the staging tables, before the first package of this run."""
        if not self._began_loading:
            self._began_loading, self.dataset = True, None
            with self.warehouse.connect() as connection:
                forget_staged(connection)

    def import_tables(self, load_id: str) -> Iterator[TableRows]:
        """Yield the tombstones in `imports`, and its changed rows if no records are read to load them with."""
        self._begin_loading()
        self._note_decisions()
        if not self._reading:
            yield from self.listed_rows(load_id)
        yield from self.import_rows.tombstones(self.reader.discovered().deleted, load_id, self._ports.now())

    def _note_decisions(self) -> None:
        """Store, before anything is loaded, what later runs must know although this one may die after a part of it.

        The names of templates in `imports`, and the number of imports, tell something else once these are loaded.
        """
        if self._noted:
            return
        self._noted = True
        self.tally.noted = self.reader.discovered().noted
        if self.tally.noted != self.state.noted:
            self.record.note_for_later_runs()

    def listed_rows(self, load_id: str) -> Iterator[TableRows]:
        """Yield the changed rows of `imports`, if no records are read to load them with."""
        self._begin_loading()
        self._note_decisions()
        self.import_rows.add_changed(self.reader.discovered())
        yield from self._queued_rows(load_id)

    def erase(self, connection: Connection, dataset: Dataset) -> None:
        """Erase the copies of packages in the staging tables and, if this run mirrors, what the service erased."""
        if self._settings.deletes == "mirror" and self.reader.discovered().deleted:
            erase_deleted(connection, dataset)
        else:
            empty_staging(connection)
        self.erase_unlisted()

    def erase_unlisted(self) -> None:
        """Erase what earlier runs could not read in the listing, if this run mirrors and has listed everything."""
        has_all = self._settings.deletes == "mirror" and self.reader.discovered().whole_listing
        if self.state.unread_rejects and has_all:
            with self.warehouse.connect() as connection:
                erase_unlisted(connection, self.tally.run_id)

    def _queued_rows(self, load_id: str) -> Iterator[TableRows]:
        rows, tables = self.import_rows.take(load_id, self._ports.now())
        self.record.pending.tables[IMPORTS] += rows
        yield from tables

    def is_idle(self) -> bool:
        """Return whether there is nothing to load, so that dlt, which takes time even then, need not be called."""
        discovered = self.reader.discovered()
        work = (
            discovered.plan.read
            or discovered.deleted
            or discovered.rejects
            or discovered.excluded
            or discovered.off_status
            or self.state.miscounted
        )
        if work or self.import_rows.changed(discovered):
            return False
        self._note_decisions()
        return True

    def record_tables(self, load_id: str, limit: int | None = None) -> Iterator[TableRows]:
        """Yield records, typed rows, ledger, rejects and fields of about `limit` rows; an import is never split."""
        self._begin_loading()
        self._note_decisions()
        discovered = self.reader.discovered()
        absent = self.state.templates_without_table if self._settings.typed else ()
        to_fill = absent and any((each.import_.template_slug or "") in absent for each in discovered.plan.read)
        if (self.state.tables_to_create or to_fill) and VERSIONS in self.state.tables:
            with self.warehouse.connect() as connection:
                forget_schemas(connection, SOURCE)  # dlt creates only the tables for which a package has rows
        package = Package(
            load_id,
            self.tally.run_id,
            self._ports.now(),
            self._settings,
            self.state,
            self.catalogue,
            self.warehouse,
        )
        if not self._began_records:
            self._began_records = True
            for reject in discovered.rejects:
                package.rejects.add(reject.record_slug, None, f"{OF_IMPORT}{reject.reason}", reject.payload)
            for slug in discovered.deleted:
                package.add_deleted(slug, self.state.ledger.get(slug))
            self.record.pending.noted = discovered.noted_after
            for slug in discovered.off_status:
                package.add_off_status(self.state.ledger[slug])
            for import_ in discovered.excluded:
                package.add_excluded(import_, self.state.ledger.get(import_.slug))
            self.import_rows.add_unread(discovered)
        self.reader.read_next_suspect()
        while not self.exhausted:
            outcome = self.reader.next()
            if outcome is None:
                self.exhausted = self.reader.is_over
                break
            planned, result = outcome
            size = len(result) if isinstance(result, BuiltImports) else 0
            # after a signal, everything ready goes into this package, because another one would take time
            full = limit is not None and package.rows > 0 and package.rows + size > limit
            if full and self.reader.asked_to_stop() is None:
                self.reader.put_back(outcome)
                break
            if isinstance(result, Failure):
                self._fail(package, planned[0], result)
            else:
                yield from self._accept(package, planned, result)
        yield from package.finish()
        yield from self._queued_rows(load_id)
        self.record.pending.records = package.rows
        self.record.pending.tables.update(package.loaded)
        self.record.pending.templates.update(package.of_templates)
        self.tally.records_rejected += len(package.rejects)
        if package.refusals:
            self.tally.shortfall = self._refused = True
            self.tally.problems += package.refusals
        self.typed_tables = package.typed_tables
        self.largest_batch_bytes = max(self.largest_batch_bytes, package.largest_batch_bytes)
        self.incoming = package.incoming()

    @property
    def is_shard(self) -> bool:
        """Return whether the run is a shard: others read their parts at the same time."""
        return self._scope.selection.part is not None

    @property
    def bounded(self) -> bool:
        """Return whether the run considers only a part of the imports."""
        return Choice(self._settings, self._scope).is_bounded

    @property
    def is_whole(self) -> bool:
        """Return whether the run read all that the settings ask for: a record it did not find is gone, not moved.

        Invariant: each import that was to be read counts, so that no way to end early can be overlooked.
        """
        discovered = self.reader.discovered()
        unread = self.tally.imports_failed or self.tally.imports_unreconciled or self._refused
        ended = self.tally.interrupted_by is None and self.tally.fatal is None and not unread
        all_read = ended and self._read == len(discovered.plan.read)
        return all_read and not Choice(self._settings, self._scope).selects and discovered.complete

    def is_undisturbed(self) -> bool:
        """Return whether no import changed since it was read or listed: a record that was not found has not moved.

        A change within the resolution of `updated_at` would not show.
        """
        return not self._racy and self.reader.is_unchanged(self.read_later)

    @property
    def max_columns(self) -> int:
        """Return the number of columns of the widest typed table."""
        tables = self.catalogue.schemas.values()
        return max((sum(len(known.columns()) for known in table.fields.values()) for table in tables), default=0)

    def run_row(self, load_id: str) -> TableRows:
        """Return the row of `sync_runs`, for a run by dlt alone, because no step follows the load."""
        self._check_shared_records()
        self.committed(None)
        return self.record.row(load_id)

    def left_out_by_status(self, slugs: Sequence[str]) -> list[str]:
        """Return those of these imports that do not have the status that the settings select."""
        if self._settings.status is None or Choice(self._settings, self._scope).selects:
            return []
        selected = {import_.slug for import_ in self.reader.discovered().imports}
        return [slug for slug in slugs if slug not in selected]

    def _check_shared_records(self) -> None:
        """Mark imports as incomplete if a record came with two of them, because the warehouse has a record once."""
        with self.warehouse.connect() as connection:
            for rows in self.incoming:
                known = self.warehouse.traits.finds_slugs and rows.table in self.state.tables
                others = other_imports(connection, rows) if known else {}
                # those that the package clears have none of these records after it
                if not rows.distinct or any(live for slug, live in others.items() if slug not in rows.cleared):
                    self.tally.shortfall = self.tally.needs_audit = True
                    self.tally.problems.append(
                        f"Some records of {rows.table} came with more than one import and are stored once; the next "
                        "run reads the other imports again."
                    )

    @property
    def knows_all(self) -> bool:
        """Return whether the run knows all imports of the service, whatever their status: another one is gone."""
        return self.is_whole and not self.bounded

    def missing_tables(self) -> Iterator[TableRows]:
        """Yield tables without rows, so that every public table exists with all columns after any run."""
        incomplete = self._incomplete()
        self._begin_loading()
        yield from map(rows_that_create, incomplete)

    def lacks_tables(self) -> bool:
        return bool(self._incomplete())

    def tables_created(self, load_id: str | None) -> None:
        """Note that the tables of `missing_tables` were loaded, in a separate load."""
        self.record.count_load(load_id)
        self.pack()
        there = self.state.tables
        if LOADS not in there and load_id is not None:
            with self.warehouse.connect() as connection:
                confirm_tombstones(connection, load_id, there)
        if RUNS not in there:
            self.record.begin()

    def _incomplete(self) -> list[str]:
        state = self.state
        wanted = [*SYSTEM_SCHEMAS, *[RECORDS] * self._settings.raw]
        older = self.dataset.older if self.dataset else ()  # dlt adds only columns that have a value
        found = [table for table in wanted if table not in state.tables or table in state.dropped or table in older]
        return found or [LEDGER] * (LOADS not in state.tables)

    def _fail(self, package: Package, planned: Planned[Import], result: Failure) -> None:
        slug = planned.import_.slug
        self.record.pending.imports.append(slug)
        self.tally.imports_failed += 1
        self.import_rows.add_unloaded(planned.import_)
        self.tally.problems.append(f"Import {slug}: {result.error}")
        log.error("Import %s failed: %s", slug, result.error, extra={"event": "import.failed", "import_slug": slug})
        killed_runs = MAX_CRASHES if isinstance(result.error, KilledTwice) else None
        fewer = result.error.found if isinstance(result.error, FewerRecords) else None
        package.add_failure(planned.import_, self.state.ledger.get(slug), str(result.error), killed_runs, fewer)
        self._progress.read(slug, 0, "failed")

    def _accept(self, package: Package, planned: Sequence[Planned[Import]], built: BuiltImports) -> Iterator[TableRows]:
        if built.reads[0].verdict is Verdict.gone:
            self._accept_gone(planned[0], built)
            return
        if built.deferred or built.reads[0].verdict is Verdict.left:
            self._leave(planned[0], "needs a column" if built.deferred else "moved while it was read")
            return
        self._read += len(planned)
        for each, read, size in zip(planned, built.reads, built.sizes, strict=True):
            slug = each.import_.slug
            self.record.pending.imports.append(slug)
            if read.unproven:
                self._unreconciled(read)
            if read.import_.updated_at != each.import_.updated_at:
                self.read_later[slug] = read.import_.updated_at
            self._racy = self._racy or not self.reader.is_settled(read)
            self._progress.read(slug, size, read.verdict.value)
            self.import_rows.add_read(each.import_, read)
        known = [self.state.ledger.get(each.import_.slug) for each in planned]
        yield from package.add(built, known, [self.reader.due(read) for read in built.reads])

    def _leave(self, planned: Planned[Import], why: str) -> None:
        """Load nothing of an import that this run cannot load as it is now; it stays due, and the next run reads it."""
        slug = planned.import_.slug
        self.record.pending.imports.append(slug)
        self.left += 1
        if self._settings.status is None:  # otherwise it may be of another status now
            self.import_rows.add_unloaded(planned.import_)
            if not self.is_shard:
                self.tally.shortfall = True
                self.tally.problems.append(f"Import {slug} {why}; the next run reads it.")
        told = {"event": "import.left", "import_slug": slug}
        log.info("Import %s %s; the next run reads it.", slug, why, extra=told)
        self._progress.read(slug, 0, "left")

    def _accept_gone(self, planned: Planned[Import], built: BuiltImports) -> None:
        slug = planned.import_.slug
        self.record.pending.imports.append(slug)
        if self.reader.postpone(planned, built):
            return
        self._read += 1
        # deleted between listing and reading: the next listing lacks it, and the next run deletes it
        if slug in self.state.ledger:
            with self.warehouse.connect() as connection:
                mark_due(connection, [slug], Due.vanished)
        elif slug not in self.state.imports and self.tally.interrupted_by is None:
            self.unread.append(slug)
        log.info(
            "Import %s vanished while the run was under way.",
            slug,
            extra={"event": "import.vanished", "import_slug": slug},
        )
        self._progress.read(slug, 0, "gone")

    def _unreconciled(self, result: ImportRead) -> None:
        consequence = self._settings.reconcile if result.miscounted else "fail"
        if consequence == "off":
            return
        self.tally.imports_unreconciled += 1
        sentence = f"Import {result.import_.slug} does not reconcile: {result.why}."
        log.warning(sentence, extra={"event": "import.unreconciled", "import_slug": result.import_.slug})
        if consequence == "fail":
            self.tally.shortfall = True
            self.tally.problems.append(sentence)
