"""List the imports, decide which to read, read them concurrently, and return one outcome after the other.

HTTP runs on an event loop in a separate thread. The caller only requests the next outcomes from that loop, which limits
how far it reads ahead, so reading continues while a package is being loaded.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, TypeVar

from connector.errors import NotFoundError
from connector.extract.records import ImportRead, Verdict, read_import
from connector.ledger import Due
from connector.load.batches import Builder, BuiltImports
from connector.load.flatten_process import Flattener
from connector.models import Import
from connector.run.choice import Choice
from connector.run.crash_suspects import CrashSuspects, KilledTwice
from connector.run.decision import Discovered
from connector.run.discover import Discovery
from connector.run.pipeline import UNIT_ROWS, Failure, Prefetcher, ReadResult
from connector.run.plan import FewerRecords, Plan, Planned, Reason, lost_rows
from connector.run.ports import Ports, Progress
from connector.run.settling import REPLICAS_LAG, may_change_unseen
from connector.runs import Tally
from connector.settings import RunScope, Settings
from connector.transform import width
from connector.transform.row_limits import LIMITS
from connector.warehouse import Warehouse
from connector.warehouse.due_imports import mark_due
from connector.warehouse.state import WarehouseState

log = logging.getLogger("connector.run")

POLL_S = 0.2
R = TypeVar("R")


class Stopped(Exception):
    """A signal stopped the run; everything complete is committed."""


class Reader:
    """The reading of one run, from construction to `close`. Not thread-safe.

    `state` is what earlier runs left, `taken` are names of tables that belong to others. Without `reading`, only the
    listing is requested.
    """

    def __init__(
        self,
        settings: Settings,
        scope: RunScope,
        warehouse: Warehouse,
        state: WarehouseState,
        tally: Tally,
        ports: Ports,
        *,
        progress: Progress,
        stop: Callable[[], int | None],
        crash_suspects: CrashSuspects,
        taken: frozenset[str],
        reading: bool,
    ) -> None:
        self._settings = settings
        self._scope = scope
        self._warehouse = warehouse
        self._state = state
        self._tally = tally
        self._ports = ports
        self._progress = progress
        self._asked_to_stop = stop
        self._crash_suspects = crash_suspects
        self._names_taken = taken
        self._reading = reading
        self._choice = Choice(settings, scope)
        self._suspects: deque[Planned[Import]] = deque()  # each read alone, once all others are loaded
        self._listing: asyncio.Task[Discovered] | None = None
        self._discovered: Discovered | None = None
        self._prefetcher: Prefetcher | None = None
        self._ready: deque[ReadResult] = deque()  # outcomes that `next` returns before others
        self._missed: list[ReadResult] = []  # imports that answered 404 while they were read
        self._confirmed_deleted: frozenset[str] = frozenset()  # those of them that are not listed any more
        self._flattener = Flattener()
        self._exit = ExitStack()
        self._exit.callback(self._flattener.close)
        self._client = ports.open_client(settings)
        self._client.on_records_received = crash_suspects.add_bytes
        self._discovery = Discovery(
            settings,
            scope,
            state,
            self._client,
            tally,
            progress=progress,
            stop=self.asked_to_stop,
            now=ports.now(),
        )
        self._loop = self._exit.enter_context(ports.open_loop())

    def start(self) -> None:
        """Open the client and begin to list, and to read as soon as the imports are known; return meanwhile."""
        self._loop.call(self._client.__aenter__)
        self._exit.callback(self._loop.call, self._client.__aexit__, None, None, None)
        self._exit.callback(self._loop.call, self._end_reading)
        self._loop.call(self._start)

    def close(self) -> None:
        """End the requests under way and the event loop; safe to call twice."""
        self._exit.close()

    def discovered(self) -> Discovered:
        """Return the listing and the decisions on it, once both are done."""
        if self._discovered is None:
            self._discovered = self._loop.call(self._listed)
            plan = self._discovered.plan
            self._mark_due(self._discovered)
            self._tally.imports_changed = len(plan.read)
            self._tally.imports_deleted = len(self._discovered.deleted)
            rows = sum(max(p.import_.row_count, 0) for p in plan.read)
            self._progress.planned(len(plan.read), rows)
            log.info(
                "Listed %d imports: %d to read, %d unchanged, %d deleted.",
                self._tally.imports_listed,
                len(plan.read),
                plan.unchanged,
                len(self._discovered.deleted),
                extra={"event": "run.listed", "imports": self._tally.imports_listed, "to_read": len(plan.read)},
            )
        return self._discovered

    def next(self) -> ReadResult | None:
        """Return the next outcome; None if the current package is complete."""
        self.discovered()
        prefetcher = self._prefetcher
        if prefetcher is None:
            return None
        if not self._ready:
            self._ready.extend(self._loop.call(prefetcher.take))
        if not self._ready and self._missed:
            self._ready.extend(self._resolve_missed(stopped=prefetcher.stopped or prefetcher.fatal is not None))
        if self._ready:
            return self._ready.popleft()
        self._tally.fatal = self._tally.fatal or prefetcher.fatal
        if prefetcher.stopped:
            self._note_stop()
        return None

    def put_back(self, outcome: ReadResult) -> None:
        """Make `next` return this outcome again, for another package."""
        self._ready.appendleft(outcome)

    def postpone(self, planned: Planned[Import], built: BuiltImports) -> bool:
        """Postpone an import that answered 404 until it is known whether it is gone; return False if that is known."""
        if planned.import_.slug in self._confirmed_deleted:
            return False
        self._missed.append(((planned,), built))
        return True

    def read_next_suspect(self) -> None:
        """Once all others are loaded, start reading one suspect for the package that begins now."""
        if (
            self._prefetcher is None
            or self._ready
            or self._missed
            or not self._prefetcher.drained
            or not self._suspects
        ):
            return
        planned = self._suspects.popleft()
        log.info(
            "Import %s was being read when a run died; it is now read alone.",
            planned.import_.slug,
            extra={"event": "import.suspect", "import_slug": planned.import_.slug},
        )
        self._crash_suspects.read_alone(planned.import_)
        self._loop.call(self._read_suspect, planned)

    @property
    def is_over(self) -> bool:
        """Return whether no package follows: everything is read, or the run has to end earlier."""
        ending = self._prefetcher is None or self._prefetcher.stopped or self._prefetcher.fatal is not None
        return not self._suspects or ending

    def asked_to_stop(self) -> int | None:
        """Return the signal that asked the run to end; SIGTERM once the run has reached its time limit."""
        limit = self._settings.max_run_time
        overdue = limit is not None and self._ports.now() - self._tally.started_at >= limit
        return self._asked_to_stop() or (signal.SIGTERM if overdue else None)

    def due(self, read: ImportRead) -> Due | None:
        """Return why the import has to be read again: a change since it was read may not show.

        That is so even if a replica that lags behind the listing gave the records.
        """
        return None if self.is_settled(read, lag=REPLICAS_LAG) else Due.racy

    def is_settled(self, read: ImportRead, lag: timedelta = timedelta(0)) -> bool:
        """Return whether a later change of the import shows in its `updated_at`; `lag` is the age of any reply."""
        import_, unit = read.import_, self.discovered().unit
        return read.asked_at is not None and not may_change_unseen(
            import_.updated_at,
            read.asked_at,
            unit,
            naive=import_.updated_naive,
            clock_uncertainty=self._client.clock.uncertainty,
            clock_difference=self._client.clock.difference,
            age=max(self._client.clock.age_of(import_.slug), lag),
        )

    def is_unchanged(self, read: Mapping[str, datetime]) -> bool:
        """Return whether all imports are as they were read (see `Discovery.is_unchanged`); list them again for that."""
        try:
            unchanged: bool = self._loop.call(self._unless_stopped, self._discovery.is_unchanged(read))
            return unchanged
        except Stopped:
            return False

    def count_requests(self) -> None:
        """Store the number of requests so far in the tally."""
        stats = self._client.stats
        self._tally.requests = stats.requests
        self._tally.retries = stats.retries
        self._tally.bytes_received = stats.bytes_received

    async def _start(self) -> None:
        self._listing = asyncio.ensure_future(self._prepare())

    async def _end_reading(self) -> None:
        listing, self._listing = self._listing, None
        if listing is not None:
            listing.cancel()
            await asyncio.gather(listing, return_exceptions=True)
        prefetcher, self._prefetcher = self._prefetcher, None
        if prefetcher is not None:
            await prefetcher.aclose()

    def _mark_due(self, discovered: Discovered) -> None:
        """Mark as due the imports of a backfill that only the listing selects, and those that left the status."""
        rest = [planned.import_.slug for planned in discovered.plan.read if planned.reason is Reason.asked]
        if rest or discovered.left_status:
            with self._warehouse.connect() as connection:
                mark_due(connection, rest, Due.backfill)
                mark_due(connection, discovered.left_status, Due.status)

    async def _listed(self) -> Discovered:
        if self._listing is None:
            raise RuntimeError("the run is closed")
        return await self._listing

    async def _prepare(self) -> Discovered:
        try:
            discovered = await self._unless_stopped(self._discovery.make())
        except Stopped:
            self._note_stop()
            return Discovered((), (), Plan((), 0), (), noted=self._state.noted)
        if self._reading:
            self._prefetcher = self._make_prefetcher(self._without_suspects(discovered))
            self._prefetcher.start()
        return discovered

    def _is_suspect(self, import_: Import) -> bool:
        known = self._state.ledger.get(import_.slug)
        killed = known is not None and bool(known.killed_runs)
        return self._crash_suspects.is_persistent and (killed or self._crash_suspects.is_suspect(import_.slug))

    def _without_suspects(self, discovered: Discovered) -> tuple[Planned[Import], ...]:
        """Return imports that may be read concurrently; those that killed two runs fail unless they were named."""
        reading = {planned.import_.slug for planned in discovered.plan.read}
        self._crash_suspects.done(i.slug for i in discovered.imports if i.slug not in reading)
        others: list[Planned[Import]] = []
        for planned in discovered.plan.read:
            import_ = planned.import_
            if not self._is_suspect(import_):
                others.append(planned)
            elif self._crash_suspects.killed_twice(import_) and not self._scope.selection.slugs:
                self._ready.append(((planned,), Failure(KilledTwice(import_.slug))))
            else:
                self._suspects.append(planned)
        return tuple(others)

    async def _read_suspect(self, planned: Planned[Import]) -> None:
        self._prefetcher = self._make_prefetcher((planned,))
        self._prefetcher.start()

    async def _unless_stopped(self, work: Coroutine[Any, Any, R]) -> R:
        """Return the result of `work`. Raises Stopped once the run is asked to stop, and cancels it."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await asyncio.wait([task], timeout=POLL_S)
                if self.asked_to_stop() is not None:
                    raise Stopped  # even if it may be done: a listing that is stopped returns what it has
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _note_stop(self) -> None:
        if self._tally.interrupted_by is None and self._asked_to_stop() is None:
            self._tally.problems.append("The run reached max_run_time; the next run continues from there.")
        self._tally.interrupted_by = int(self.asked_to_stop() or signal.SIGINT)

    def _resolve_missed(self, *, stopped: bool) -> Iterator[ReadResult]:
        """Yield the imports that answered 404, once the deleted ones among them are known."""
        missed, self._missed = self._missed, []
        slugs = [planned.import_.slug for (planned,), _ in missed]
        self._confirmed_deleted = frozenset(slugs) if stopped else self._loop.call(self._confirm_deleted, slugs)
        for (planned,), result in missed:
            if planned.import_.slug in self._confirmed_deleted:
                yield (planned,), result
            else:
                error = NotFoundError("The service lists it but answers 404 for it.", status=404)
                yield (planned,), Failure(error)

    async def _confirm_deleted(self, slugs: list[str]) -> frozenset[str]:
        try:
            return await self._unless_stopped(self._discovery.confirm_deleted(slugs))
        except Stopped:
            self._note_stop()
            return frozenset(slugs)

    async def _read(self, import_: Import) -> ImportRead:
        """Read an import. Raise FewerRecords if it would lose rows although it has not changed; loaded rows stay."""
        read = await read_import(self._client, import_, self._discovery.convention)
        if read.verdict is Verdict.gone:
            return read
        if not self._choice.still_reads(import_, read.import_):
            return ImportRead(read.import_, Verdict.left)
        found, known = len(read.records), self._state.ledger.get(import_.slug)
        rejected_before = 0 if known is None else known.records_rejected
        by_rules = sum(reject.by_rules for reject in read.rejects)
        # a record that was loaded and is rejected now has become unreadable, maybe for a moment
        reconciles = read.verdict is Verdict.complete and len(read.rejects) - by_rules <= rejected_before
        if lost_rows(read.import_, found + by_rules, known, reconciles=reconciles, now=self._ports.now()):
            raise FewerRecords(found)
        return read

    @cached_property
    def _builder(self) -> Builder:
        return Builder(
            self._settings,
            self._state.schemas,
            self._state.template_tables,
            foreign=self._state.foreign | self._names_taken,
            frozen=self._state.shared,
            limits=LIMITS.get(self._warehouse.destination_type),
            width=width.WIDTH,
            nul_safe=not self._warehouse.traits.keeps_nul,
            flatten=self._flattener,
        )

    def _make_prefetcher(self, planned: tuple[Planned[Import], ...]) -> Prefetcher:
        return Prefetcher(
            lambda import_: asyncio.ensure_future(self._read(import_)),
            self._builder,
            planned,
            max_concurrency=self._settings.max_concurrency,
            run_in_background=self._ports.run_in_background,
            stop=self.asked_to_stop,
            on_built=self._flattener.close,  # memory is limited while the last package is loaded
            unit_rows=min(UNIT_ROWS, self._settings.batch_rows),  # a package is not cut within
        )
