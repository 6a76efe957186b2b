"""One run over the service: list, decide, read, prove, and hand over what is to be loaded, package by package.

The same object serves both dlt resources and, in the command, all load packages of a run, so that reading goes on
while a package is being loaded. HTTP runs on an event loop in a thread of its own; the generators that dlt iterates
only ever ask that loop for the next outcome, which bounds how far it reads ahead.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import Counter, deque
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from typing import Any, TypeVar

from connector.errors import NewerFormatError, NotFoundError
from connector.extract.prefetch import HeadStart
from connector.extract.records import ImportRead, Verdict
from connector.ledger import Due
from connector.load.batches import Builder, Built
from connector.load.data_dictionary import Catalogue
from connector.load.disposition import IncomingRows, are_elsewhere
from connector.load.emission import Emission, without_rows
from connector.load.flatten_process import Flattener
from connector.load.imports_table import (
    EXTRA,
    METADATA,
    ImportRow,
    import_emissions,
    is_listed_as,
    read_row,
    records_metadata_of,
    tombstones,
)
from connector.load.package import Package
from connector.models import Import
from connector.run.choice import Choice
from connector.run.deaths import DEATHS, KilledTwice, UnderWay
from connector.run.discover import Decided, Decision
from connector.run.pipeline import TOGETHER_ROWS, Failure, Outcome, ReadAhead
from connector.run.plan import FewerRecords, Plan, Planned, Reason, lost_rows
from connector.run.ports import Outside, Progress, Silent
from connector.run.settling import may_change_unseen
from connector.runs import Status, Tally, make_run_id
from connector.settings import Scope, Settings
from connector.transform import width
from connector.transform.row_limits import LIMITS
from connector.warehouse import Connection, Warehouse
from connector.warehouse.connection import LOADS, VERSIONS
from connector.warehouse.erasing import empty_staging, erase_deleted, has_rejects_of_deleted
from connector.warehouse.history import is_due, record
from connector.warehouse.history_tables import histories, names_of_templates
from connector.warehouse.mending import keep_deleted, mend
from connector.warehouse.ownership import Dataset, prepare_staging, take_stock
from connector.warehouse.promises import PROMISED, ask_again, promise
from connector.warehouse.ruled_columns import ruled_columns
from connector.warehouse.runs_table import bury_dead_runs, note_progress, settle_dead_runs, write_run
from connector.warehouse.state import Memory, forget_schemas, loaded_late, recall
from connector.warehouse.tables import (
    IMPORTS,
    IMPORTS_SCHEMA,
    LEDGER,
    LOAD_ID,
    RECORDS,
    RUNS,
    RUNS_SCHEMA,
    SOURCE,
    SYSTEM_SCHEMAS,
    TYPED_SCHEMA,
    table_of,
)
from connector.warehouse.upgrades import take_over

log = logging.getLogger("connector.run")

POLL_S = 0.2
R = TypeVar("R")


class Stopped(Exception):
    """A signal asked the run to end; whatever is complete is committed."""


class Extraction:
    """From `open` to `close` one run. Not for use by several threads at once."""

    def __init__(
        self,
        settings: Settings,
        scope: Scope,
        warehouse: Warehouse,
        outside: Outside,
        *,
        progress: Progress | None = None,
        stop: Callable[[], int | None] = lambda: None,
        under_way: UnderWay | None = None,
    ) -> None:
        self._settings = settings
        self._scope = scope
        self.warehouse = warehouse
        self._outside = outside
        self._progress = progress or Silent()
        self._asked_to_stop = stop
        self._under_way = under_way or UnderWay()
        self._suspects: deque[Planned[Import]] = deque()  # each read alone, once all others are loaded
        self._accepted: list[str] = []  # imports in the package under way
        self._taken_where_staged: frozenset[str] = frozenset()
        self._exit = ExitStack()
        self._flattener = Flattener()
        self._exit.callback(self._flattener.close)
        self._listing: asyncio.Task[Decided] | None = None
        self._prepared: Decided | None = None
        self._ahead: ReadAhead | None = None
        self._taken: deque[Outcome] = deque()
        self._missed: list[Outcome] = []  # answered 404 while they were read
        self._departed: frozenset[str] = frozenset()  # and are not listed any more
        self._uncommitted = 0
        self._loaded: Counter[str] = Counter()  # rows of the package under way, by table
        self._began_records = False
        self._reading = True
        self._rows_of_unread = True  # whether the rows of `imports` that only the listing changed are to be loaded, too
        self._unread: list[Import] = []  # whose row is due with the next package, without its records
        self._rows_of_read: list[ImportRow] = []  # with them
        self.typed_tables: list[str] = []
        self.incoming: list[IncomingRows] = []
        self.merged: set[str] = set()  # tables in which rows of other imports may have been replaced
        self.unread: list[str] = []  # imports that were listed for the first time and gone before they were read
        self.exhausted = False
        self.heaviest = 0  # bytes of the longest rows as they are built, some thousands at once
        now = outside.now()
        self.tally = Tally(make_run_id(now), scope.mode, now, scope.window, destination=warehouse.destination)

    # -- life cycle ----------------------------------------------------------------------------------------------

    def open(self, *, reading: bool = True, listed: bool = True) -> None:
        """Recalls what earlier runs left, records that this one began, opens the client and begins to list.

        With `reading` records are read as soon as it is known which ones. Both go on while the caller and dlt get
        ready for them. Without `listed`, only the imports that are read get their row in `imports`.
        """
        self._reading, self._rows_of_unread = reading, listed
        with self.warehouse.connect() as connection:
            stock = take_stock(connection)
            stock.check()
            self._taken_where_staged = prepare_staging(connection, stock.ours)
            if take_over(connection, stock):
                stock = take_stock(connection)
            # where a column of the ledger is lost, every import differs from its row, and is read anyway
            if self._scope.force and {IMPORTS, LEDGER} <= stock.ours and stock.columns[LEDGER].keys() >= PROMISED:
                promise(connection, self._scope, self._settings.status)
                stock = take_stock(connection)
            self.memory: Memory = mend(connection, recall(connection, stock))
            if RUNS in self.memory.tables:
                dead = bury_dead_runs(connection, self._outside.now(), self.memory.tables)
                mirrors = self._settings.deletes == "mirror"
                if mirrors and (self.memory.audited or has_rejects_of_deleted(connection, stock)):
                    erase_deleted(connection, stock)
                for run_id in dead:
                    log.warning(
                        "Run %s died before it ended; its unfinished imports are read again.",
                        run_id,
                        extra={"event": "run.died", "dead_run_id": run_id},
                    )
                if self.memory.sound:
                    settle_dead_runs(connection)
                elif not {LEDGER, LOADS} <= self.memory.tables or loaded_late(connection):
                    self.tally.unsettled = True  # this run may be bounded, and not put all of it in order
        if RUNS in self.memory.tables:
            self.begin()
        if self.memory.repaired:
            log.warning(
                "%d imports in the warehouse were left half loaded and are read again.",
                self.memory.repaired,
                extra={"event": "imports.half_loaded", "imports": self.memory.repaired},
            )
        self.catalogue = Catalogue.of(self.memory)
        self._loop = self._exit.enter_context(self._outside.open_loop())
        self._client = self._outside.open_client(self._settings)
        self._client.arrived = self._under_way.arrived
        self._head_start = HeadStart(self._client, self._settings.max_concurrency)
        self._loop.call(self._client.__aenter__)
        self._loop.call(self._start, reading)

    async def _start(self, reading: bool) -> None:
        if not reading:
            self._head_start.settle(())
        self._listing = asyncio.ensure_future(self._prepare(reading))

    def pack(self) -> None:
        """Before the first raw rows come."""
        if self._settings.raw and self.warehouse.is_duckdb:
            with self.warehouse.connect() as connection:
                connection.pack_raw_rows()

    def begin(self) -> None:
        """Leaves word in `sync_runs` that this run is under way, for the next one should this one die."""
        with self.warehouse.connect() as connection:
            write_run(connection, self.tally, Status.running)

    def close(self) -> None:
        """Ends the requests under way and the event loop; safe to call twice."""
        if self._listing is not None:
            self._loop.call(self._end_reading)
        if hasattr(self, "_client"):
            self._loop.call(self._client.__aexit__, None, None, None)
            del self._client
        self._exit.close()

    async def _end_reading(self) -> None:
        listing, self._listing = self._listing, None
        if listing is not None:
            listing.cancel()
            await asyncio.gather(listing, return_exceptions=True)
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            await ahead.aclose()
        await self._head_start.aclose()

    def note_progress(self) -> None:
        """Writes to the run's row what is committed so far."""
        self.count_requests()
        with self.warehouse.connect() as connection:
            note_progress(connection, self.tally)

    def abort(self, error: BaseException) -> None:
        """The run failed before or while its package was built: nothing of the package is loaded."""
        self.tally.fatal = self.tally.fatal or error
        self._uncommitted = 0
        self._loaded.clear()
        self.finish()

    def finish(self) -> None:
        """Writes the run's row as it stands now, but not into a warehouse of a newer format."""
        self.count_requests()
        self.tally.finished_at = self._outside.now()
        if isinstance(self.tally.fatal, NewerFormatError):
            return
        with self.warehouse.connect() as connection:
            write_run(connection, self.tally)

    def count_requests(self) -> None:
        if hasattr(self, "_client"):
            stats = self._client.stats
            self.tally.requests = stats.requests
            self.tally.retries = stats.retries
            self.tally.bytes_received = stats.bytes_received

    def committed(self, load_id: str | None) -> None:
        """The package handed over last is in the warehouse."""
        self.tally.records_loaded += self._uncommitted
        if load_id is not None:
            self.tally.load_ids.append(load_id)
        self._progress.committed(self._uncommitted)
        self._uncommitted = 0
        self.tally.tables.update(self._loaded)
        self._loaded.clear()
        self._under_way.done(self._accepted)
        self._accepted = []

    # -- what dlt loads ------------------------------------------------------------------------------------------

    def import_tables(self, load_id: str) -> Iterator[Emission]:
        """The tombstones in `imports`; its rows that changed, where no records are read that they could come with."""
        prepared = self.prepare()
        seen = self.memory.imports
        if not self._reading:
            self._unread = self._changed(prepared)
            yield from self._import_rows(load_id)
        now = self._outside.now()
        gone = [slug for slug in prepared.deleted if slug not in seen or not seen[slug].deleted]
        if gone:
            with self.warehouse.connect() as connection:
                known = IMPORTS in self.memory.tables
                old = connection.rows_of(IMPORTS, "slug", gone) if known else IMPORTS_SCHEMA.empty_table()
            yield tombstones(old, gone, load_id, now, keeps=self._settings.deletes == "keep")

    def erase(self, connection: Connection, dataset: Dataset) -> None:
        """Leave nothing of what the service erased, and no copy of the last packages where they were staged."""
        if self.prepare().deleted:
            erase_deleted(connection, dataset)
        else:
            empty_staging(connection)

    def history_is_due(self) -> bool:
        """Whether there may be something to record though nothing is loaded: an earlier run died, or was not to."""
        known = self.memory
        if not self._settings.history:
            return known.audited
        if known.audited or IMPORTS not in known.tables:
            return True
        with self.warehouse.connect() as connection:
            return is_due(connection, take_stock(connection), self._settings.keeps_history_of)

    def record_history(self, connection: Connection, dataset: Dataset) -> None:
        """Make the versions of what was loaded, where `history` asks for them (`connector.warehouse.history`).

        Where it does not, versions that are there from before lose what was erased, and what is under a rule by now.
        """
        wanted = self._settings.keeps_history_of if self._settings.history else None
        if LEDGER not in dataset.ours or (wanted is None and not histories(dataset)):
            return
        if (allowance := self.warehouse.allowance) is not None:
            allowance.lift()  # the first run compares all of a table, which takes more than a package
        record(
            connection,
            dataset,
            wanted,
            started_at=self.tally.started_at,
            run_id=self.tally.run_id,
            keeps=self._settings.deletes == "keep",
            whole=not Choice(self._settings, self._scope).selects and self.tally.interrupted_by is None,
            ruled=partial(self._ruled, connection, dataset),
        )

    def _ruled(self, connection: Connection, dataset: Dataset, table: str, columns: Collection[str]) -> list[str]:
        """Return which columns of the versions of a table may hold a value that a privacy rule is about."""
        rules, fields = self._settings.protection, self.catalogue.schema(table).fields.items()
        if table == IMPORTS:  # the rules see what is inside of `metadata` and `extra`
            whole = {METADATA, EXTRA, "records_metadata"}
            inside = [(keys[1:], known) for keys, known in fields]
            found, system = [rules.of_metadata], set(IMPORTS_SCHEMA.names) - whole
        else:
            slug = dataset.templates.get(table) or None
            names = names_of_templates(connection, dataset).get(slug or "", set())
            inside, system = list(fields), set(TYPED_SCHEMA.names)
            found = [rules.of_template(slug, name) for name in (*names, None)]
        return ruled_columns([each for each in found if each is not None], inside, columns, system)

    def _changed(self, prepared: Decided) -> list[Import]:
        """Imports of which the row in `imports` is not as the listing has it, or is asked for."""
        return [i for i in prepared.imports if self._scope.force or not self._is_as_listed(i)]

    def _is_as_listed(self, import_: Import) -> bool:
        seen = self.memory.imports.get(import_.slug)
        return seen is not None and not seen.deleted and is_listed_as(seen.content_hash, import_)

    def _import_rows(self, load_id: str) -> Iterator[Emission]:
        """The rows of `imports` that are due, once for each import and package."""
        unread, self._unread = self._unread, []
        rows, self._rows_of_read = self._rows_of_read, []
        known = [i.slug for i in unread if i.slug in self.memory.imports]
        kept: dict[str, str | None] = {}
        if known and "records_metadata" in self.memory.schemas[IMPORTS].physical:
            with self.warehouse.connect() as connection:
                kept = records_metadata_of(connection.rows_of(IMPORTS, "slug", known))
        rows += [ImportRow(i, kept.get(i.slug)) for i in unread]
        self._loaded[IMPORTS] += len(rows)
        limits = LIMITS.get(self.warehouse.destination_type)
        yield from import_emissions(
            rows,
            self.catalogue,
            load_id,
            self._outside.now(),
            row_bytes=limits.row_bytes if limits else None,
            nul_safe=not self.warehouse.is_duckdb,
        )

    def is_idle(self) -> bool:
        """Whether there is nothing to load: then dlt need not be asked, which takes its time even so."""
        prepared = self.prepare()
        work = prepared.plan.read or prepared.deleted or prepared.rejects or prepared.excluded or self.memory.miscounted
        return not work and not self._changed(prepared)

    def record_tables(self, load_id: str, limit: int | None = None) -> Iterator[Emission]:
        """Records, typed rows, ledger, rejects and fields of about `limit` rows; an import is never split."""
        prepared = self.prepare()
        if self.memory.lacking and VERSIONS in self.memory.tables:
            with self.warehouse.connect() as connection:
                forget_schemas(connection, SOURCE)  # dlt makes only the tables that a package has rows for
        package = Package(
            load_id,
            self.tally.run_id,
            self._outside.now(),
            self._settings,
            self.memory,
            self.catalogue,
            self.warehouse,
        )
        if not self._began_records:
            self._began_records = True
            for reject in prepared.rejects:
                package.rejects.add(reject.record_slug, None, f"import: {reject.reason}", reject.payload)
            for slug in prepared.deleted:
                package.add_deleted(slug, self.memory.ledger.get(slug))
            for import_ in prepared.excluded:
                package.add_excluded(import_, self.memory.ledger.get(import_.slug))
            read = {planned.import_.slug for planned in prepared.plan.read}
            if self._rows_of_unread:
                self._unread += [i for i in self._changed(prepared) if i.slug not in read]
        self._begin_with_a_suspect()
        while not self.exhausted:
            outcome = self._next_outcome()
            if outcome is None:
                self.exhausted = not self._suspects or self._is_ending()
                break
            planned, result = outcome
            size = len(result) if isinstance(result, Built) else 0
            # asked to stop, what is ready goes at once, for time is short and a package of its own takes some
            if limit is not None and package.rows and package.rows + size > limit and self._stop() is None:
                self._taken.appendleft(outcome)
                break
            if isinstance(result, Failure):
                self._fail(package, planned[0], result)
            else:
                yield from self._accept(package, planned, result)
        yield from package.finish()
        yield from self._import_rows(load_id)
        self._uncommitted = package.rows
        self._loaded.update(package.loaded)
        self.tally.records_rejected += len(package.rejects)
        if package.withheld:
            self.tally.shortfall = True
            self.tally.problems += package.withheld
        self.typed_tables = package.typed_tables
        self.heaviest = max(self.heaviest, package.heaviest)
        self.incoming = package.incoming()

    @property
    def bounded(self) -> bool:
        """Whether the run looks at a part of the imports only."""
        return Choice(self._settings, self._scope).is_bounded

    @property
    def widest(self) -> int:
        """Columns of the widest typed table."""
        tables = self.catalogue.schemas.values()
        return max((sum(len(known.columns()) for known in table.fields.values()) for table in tables), default=0)

    def run_row(self, load_id: str) -> Emission:
        """The row of `sync_runs`, for a run that nobody follows up on after dlt has loaded it."""
        self._look_at_the_others()
        self.committed(None)
        self.tally.load_ids.append(load_id)
        self.count_requests()
        self.tally.finished_at = self._outside.now()
        return Emission(RUNS, table_of(RUNS_SCHEMA, [{**self.tally.as_row(), LOAD_ID: load_id}]))

    def _look_at_the_others(self) -> None:
        """A record that comes with two imports is in the warehouse once, so one of them falls short."""
        with self.warehouse.connect() as connection:
            for rows in self.incoming:
                known = self.warehouse.finds_slugs and rows.table in self.memory.tables
                if not rows.distinct or (known and are_elsewhere(connection, rows)):
                    self.tally.shortfall = self.tally.unsettled = True
                    self.tally.problems.append(
                        f"Some records of {rows.table} came with more than one import, and each is there once; the "
                        "imports that fall short are read again next run."
                    )

    def missing_tables(self) -> Iterator[Emission]:
        """Tables without rows, so that every table of the contract exists, and is whole, after any run."""
        yield from map(without_rows, self._incomplete())

    def lacks_tables(self) -> bool:
        return bool(self._incomplete())

    def made_tables(self, load_id: str | None) -> None:
        """What `missing_tables` yields was loaded, in a load of its own."""
        self.pack()
        there = self.memory.tables
        if LOADS not in there and load_id is not None:
            with self.warehouse.connect() as connection:
                keep_deleted(connection, load_id, there)
        if RUNS not in there:
            self.begin()

    def _incomplete(self) -> list[str]:
        memory = self.memory
        wanted = [*SYSTEM_SCHEMAS, *[RECORDS] * self._settings.raw]
        found = [table for table in wanted if table not in memory.tables or table in memory.dropped]
        return found or [LEDGER] * (LOADS not in memory.tables)

    def _fail(self, package: Package, planned: Planned[Import], result: Failure) -> None:
        slug = planned.import_.slug
        self._accepted.append(slug)
        self.tally.imports_failed += 1
        if self._rows_of_unread and (self._scope.force or not self._is_as_listed(planned.import_)):
            self._unread.append(planned.import_)
        self.tally.problems.append(f"Import {slug}: {result.error}")
        log.error("Import %s failed: %s", slug, result.error, extra={"event": "import.failed", "import_slug": slug})
        killed_runs = DEATHS if isinstance(result.error, KilledTwice) else None
        fewer = result.error.found if isinstance(result.error, FewerRecords) else None
        package.add_failure(planned.import_, self.memory.ledger.get(slug), str(result.error), killed_runs, fewer)
        self._progress.read(slug, 0, "failed")

    def _accept(self, package: Package, planned: Sequence[Planned[Import]], built: Built) -> Iterator[Emission]:
        if built.reads[0].verdict is Verdict.gone:
            self._accept_gone(planned[0], built)
            return
        for each, read, size in zip(planned, built.reads, built.sizes, strict=True):
            slug = each.import_.slug
            self._accepted.append(slug)
            if read.doubtful:
                self._unreconciled(read)
            self._progress.read(slug, size, read.verdict.value)
            self._note_row(each.import_, read)
        known = [self.memory.ledger.get(each.import_.slug) for each in planned]
        yield from package.add(built, known, [self._due(read) for read in built.reads])

    def _accept_gone(self, planned: Planned[Import], built: Built) -> None:
        slug = planned.import_.slug
        self._accepted.append(slug)
        if slug not in self._departed:
            self._missed.append(((planned,), built))
            return
        # deleted between listing and reading: the next listing will miss it, and it earns its deletion then
        if slug in self.memory.ledger:
            with self.warehouse.connect() as connection:
                ask_again(connection, [slug], Due.vanished)
        elif slug not in self.memory.imports and self.tally.interrupted_by is None:
            self.unread.append(slug)
        log.info(
            "Import %s vanished while the run was under way.",
            slug,
            extra={"event": "import.vanished", "import_slug": slug},
        )
        self._progress.read(slug, 0, "gone")

    def _due(self, read: ImportRead) -> Due | None:
        """Whether the import may have changed since it was read, without a trace."""
        import_, unit = read.import_, self.prepare().unit
        settled = read.asked_at is not None and not may_change_unseen(
            import_.updated_at, read.asked_at, unit, naive=import_.updated_naive, passed_by=self._client.passed_by
        )
        return None if settled else Due.racy

    def _note_row(self, listed: Import, read: ImportRead) -> None:
        # the listing and an import's own address may not show the same fields, and the listing is what is compared
        shown = listed if listed.fingerprint == read.import_.fingerprint else read.import_
        row = read_row(shown, read.records_metadata)
        seen = self.memory.imports.get(shown.slug)
        if self._scope.force or seen is None or seen.deleted or seen.content_hash != row.content_hash:
            self._rows_of_read.append(row)

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

    # -- reading -------------------------------------------------------------------------------------------------

    def prepare(self) -> Decided:
        """What was listed and decided, once both are done."""
        if self._prepared is None:
            self._prepared = self._loop.call(self._listed)
            plan = self._prepared.plan
            self._promise_the_rest(plan)
            self.tally.imports_changed = len(plan.read)
            self.tally.imports_deleted = len(self._prepared.deleted)
            rows = sum(max(p.import_.row_count, 0) for p in plan.read)
            self._progress.planned(len(plan.read), rows)
            log.info(
                "Listed %d imports: %d to read, %d unchanged, %d deleted.",
                len(self._prepared.imports),
                len(plan.read),
                plan.unchanged,
                len(self._prepared.deleted),
                extra={"event": "run.listed", "imports": len(self._prepared.imports), "to_read": len(plan.read)},
            )
        return self._prepared

    def _promise_the_rest(self, plan: Plan[Import]) -> None:
        """Of what a backfill asked for: imports of which only the service says that they are meant."""
        rest = [planned.import_.slug for planned in plan.read if planned.reason is Reason.asked]
        if rest:
            with self.warehouse.connect() as connection:
                ask_again(connection, rest, Due.backfill)

    async def _listed(self) -> Decided:
        if self._listing is None:
            raise RuntimeError("the extraction is closed")
        return await self._listing

    async def _prepare(self, reading: bool) -> Decided:
        self._decision = Decision(
            self._settings,
            self._scope,
            self.memory,
            self._client,
            self.tally,
            progress=self._progress,
            stop=self._stop,
            now=self._outside.now(),
            foreseen=lambda import_: None if self._is_suspect(import_) else self._head_start.offer(import_),
        )
        planned: tuple[Planned[Import], ...] = ()
        try:
            prepared = await self._unless_stopped(self._decision.make())
            planned = self._without_suspects(prepared) if reading else ()
        except Stopped:
            self._note_stop()
            return Decided((), (), Plan((), 0, 0), ())
        finally:
            self._head_start.settle(it.import_ for it in planned)
        if reading:
            self._ahead = self._read_ahead(planned)
            self._ahead.start()
        return prepared

    def _is_suspect(self, import_: Import) -> bool:
        known = self.memory.ledger.get(import_.slug)
        killed = known is not None and bool(known.killed_runs)
        return self._under_way.is_kept and (killed or self._under_way.is_suspect(import_.slug))

    def _without_suspects(self, prepared: Decided) -> tuple[Planned[Import], ...]:
        """What may be read side by side. Of the rest, what killed a run twice fails unless it was asked for."""
        reading = {planned.import_.slug for planned in prepared.plan.read}
        self._under_way.done(i.slug for i in prepared.imports if i.slug not in reading)
        others: list[Planned[Import]] = []
        for planned in prepared.plan.read:
            import_ = planned.import_
            if not self._is_suspect(import_):
                others.append(planned)
            elif self._under_way.killed_twice(import_) and not self._scope.selection.slugs:
                self._taken.append(((planned,), Failure(KilledTwice(import_.slug))))
            else:
                self._suspects.append(planned)
        return tuple(others)

    def _is_ending(self) -> bool:
        """Whether the run has to end before it has read all."""
        return self._ahead is None or self._ahead.stopped or self._ahead.fatal is not None

    def _begin_with_a_suspect(self) -> None:
        """Once all others are loaded, have one suspect read for the package that begins now."""
        if self._ahead is None or self._taken or self._missed or not self._ahead.drained or not self._suspects:
            return
        planned = self._suspects.popleft()
        log.info(
            "Import %s was under way when a run died; it is read alone.",
            planned.import_.slug,
            extra={"event": "import.suspect", "import_slug": planned.import_.slug},
        )
        self._under_way.read_alone(planned.import_)
        self._loop.call(self._read_on, planned)

    async def _read_on(self, planned: Planned[Import]) -> None:
        self._ahead = self._read_ahead((planned,))
        self._ahead.start()

    async def _unless_stopped(self, work: Coroutine[Any, Any, R]) -> R:
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await asyncio.wait([task], timeout=POLL_S)
                if self._stop() is not None:
                    raise Stopped  # though it may be done: what is asked to stop returns what it has
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _stop(self) -> int | None:
        """Return the signal that asked for the end; SIGTERM once the run has taken as long as it may."""
        limit = self._settings.max_run_time
        overdue = limit is not None and self._outside.now() - self.tally.started_at >= limit
        return self._asked_to_stop() or (signal.SIGTERM if overdue else None)

    def _note_stop(self) -> None:
        if self.tally.interrupted_by is None and self._asked_to_stop() is None:
            self.tally.problems.append("The run took as long as max_run_time allows; the next run goes on from there.")
        self.tally.interrupted_by = int(self._stop() or signal.SIGINT)

    def _next_outcome(self) -> Outcome | None:
        self.prepare()
        ahead = self._ahead
        if ahead is None:
            return None
        if not self._taken:
            self._taken.extend(self._loop.call(ahead.take))
        if not self._taken and self._missed:
            self._taken.extend(self._looked_for(stopped=ahead.stopped or ahead.fatal is not None))
        if self._taken:
            return self._taken.popleft()
        self.tally.fatal = self.tally.fatal or ahead.fatal
        if ahead.stopped:
            self._note_stop()
        return None

    def _looked_for(self, *, stopped: bool) -> Iterator[Outcome]:
        """The imports that answered 404, once it is known which of them were deleted while the run was under way."""
        missed, self._missed = self._missed, []
        slugs = [planned.import_.slug for (planned,), _ in missed]
        self._departed = frozenset(slugs) if stopped else self._loop.call(self._ask_for, slugs)
        for (planned,), result in missed:
            if planned.import_.slug in self._departed:
                yield (planned,), result
            else:
                error = NotFoundError("The service lists it and yet answers 404 for it.", status=404)
                yield (planned,), Failure(error)

    async def _ask_for(self, slugs: list[str]) -> frozenset[str]:
        try:
            return await self._unless_stopped(self._decision.departed(slugs))
        except Stopped:
            self._note_stop()
            return frozenset(slugs)

    async def _read(self, import_: Import) -> ImportRead:
        """Raises FewerRecords for an import that would lose rows though it has not changed: what is loaded stays."""
        read = await self._head_start.reading(import_)
        if read.verdict is Verdict.gone:
            return read
        found, known = len(read.records) + len(read.rejects), self.memory.ledger.get(import_.slug)
        reconciles = read.verdict is Verdict.complete
        if lost_rows(read.import_, found, known, reconciles=reconciles, now=self._outside.now()):
            raise FewerRecords(found)
        return read

    @cached_property
    def _builder(self) -> Builder:
        return Builder(
            self._settings,
            self.memory.schemas,
            self.memory.template_tables,
            foreign=self.memory.foreign | self._taken_where_staged,
            limits=LIMITS.get(self.warehouse.destination_type),
            width=width.WIDTH,
            nul_safe=not self.warehouse.is_duckdb,
            flatten=self._flattener,
        )

    def _read_ahead(self, planned: tuple[Planned[Import], ...]) -> ReadAhead:
        return ReadAhead(
            lambda import_: asyncio.ensure_future(self._read(import_)),
            self._builder,
            planned,
            max_concurrency=self._settings.max_concurrency,
            aside=self._outside.aside,
            stop=self._stop,
            on_built=self._flattener.close,  # memory is short while the last package is loaded
            together=min(TOGETHER_ROWS, self._settings.batch_rows),  # a package is not cut within
        )
