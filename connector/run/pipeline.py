"""Read planned imports concurrently and build them in order, small ones together, a bounded number of rows ahead.

While the destination loads one package, the next one is read and built, because the interpreter is mostly idle during a
load.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from connector.errors import AuthError, ConnectorError, TransientError
from connector.extract.records import ImportRead, Verdict
from connector.extract.spill import BATCH_ROWS
from connector.load.batches import Builder, BuiltImports
from connector.models import Import
from connector.run.plan import Planned
from connector.run.ports import BackgroundRunner

log = logging.getLogger("connector.run")

UNIT_ROWS = 20_000  # of imports that are built at once
UNIT_BYTES = 16 * 2**20  # of their JSON
READ_AHEAD_ROWS = 25_000
BUILT_AHEAD_ROWS = 15_000
WAITING_TO_BE_BUILT = 1  # batch, so that the building thread need not wait for the event loop between two
READ_AHEAD_IMPORTS_PER_REQUEST = 4
FEW_ROWS = 500  # built on the event loop, because a switch to another thread would take longer
TAKEN_ROWS = 2_000  # at a time, for the same reason
POLL_S = 0.2
FAILURES_IN_A_ROW = 20
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Failure:
    """An import that could not be read."""

    error: Exception


ReadResult = tuple[tuple[Planned[Import], ...], BuiltImports | Failure]  # of one import, or of several of one template


class _BuildUnit:
    """Imports that were read and are built together, in the order in which they arrived."""

    def __init__(self) -> None:
        self.results: list[tuple[Planned[Import], ImportRead | Failure]] = []
        self.rows = 0
        self.size = 0

    def add(self, planned: Planned[Import], result: ImportRead | Failure, size: int) -> None:
        self.results.append((planned, result))
        self.rows += _rows_of(result)
        self.size += size


class Prefetcher:
    """A queue of imports that are read and built ahead, used on one event loop, from `start` to `aclose`.

    `fatal` and `stopped` tell why the queue ended early. `reading(import_)` reads one import. Imports of up to
    `unit_rows` rows are built together. `on_built` is called once nothing is left to build, which may be long before
    all results are taken.
    """

    def __init__(
        self,
        reading: Callable[[Import], asyncio.Task[ImportRead]],
        builder: Builder,
        planned: tuple[Planned[Import], ...],
        *,
        max_concurrency: int,
        run_in_background: BackgroundRunner,
        stop: Callable[[], int | None],
        on_built: Callable[[], None],
        unit_rows: int = UNIT_ROWS,
    ) -> None:
        self._reading = reading
        self._builder = builder
        self._planned = planned
        self._most_imports = READ_AHEAD_IMPORTS_PER_REQUEST * max_concurrency
        self._run_in_background = run_in_background
        self._stop = stop
        self._on_built = on_built
        self._unit_rows = unit_rows
        self._ready: asyncio.Queue[ReadResult | None] = asyncio.Queue()
        self._rows_ready = 0
        self._taken = asyncio.Event()
        self._filling: asyncio.Task[None] | None = None
        self._background_builds = (
            0  # batches that are built in the thread or wait for it: no other may be built meanwhile
        )
        self.fatal: ConnectorError | None = None
        self.stopped = False
        self.drained = False  # whether `take` has reached the end

    def start(self) -> None:
        self._filling = asyncio.ensure_future(self._fill())

    async def take(self) -> list[ReadResult]:
        """Return the next outcomes that are ready, roughly in planned order and limited in number; [] at the end."""
        taken: list[ReadResult] = []
        rows = 0
        while not taken or (rows < TAKEN_ROWS and not self._ready.empty()):
            outcome = await self._ready.get()
            if outcome is None:
                self._ready.put_nowait(None)
                break
            taken.append(outcome)
            rows += _size(outcome)
        self._rows_ready -= rows
        self._taken.set()
        if not taken and self._filling is not None:
            await self._filling
            self.drained = True
        return taken

    async def aclose(self) -> None:
        """Cancel all reading in progress."""
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.gather(self._filling, return_exceptions=True)

    async def _fill(self) -> None:
        building: deque[asyncio.Task[list[ReadResult]]] = deque()
        try:
            async with aclosing(self._gathered()) as gathered:
                async for unit in gathered:
                    building.append(asyncio.ensure_future(self._built(unit)))
                    del unit  # the records are not needed once rows are built
                    while len(building) > WAITING_TO_BE_BUILT:
                        await self._hand_over(building)
            while building:
                await self._hand_over(building)
        finally:
            for task in building:
                task.cancel()
            await asyncio.gather(*building, return_exceptions=True)
            self._ready.put_nowait(None)
            self._on_built()

    async def _gathered(self) -> AsyncGenerator[_BuildUnit]:
        """Yield what was read in units to build: small imports together, a large one alone."""
        unit = _BuildUnit()
        async with aclosing(self._read_all()) as reads:
            async for planned, result in reads:
                rows = _rows_of(result)
                size = UNIT_BYTES if rows > BATCH_ROWS else _bytes_of(result)
                if unit.results and not self._fit(unit.rows + rows, unit.size + size):
                    yield unit
                    unit = _BuildUnit()
                unit.add(planned, result, size)
                del result
                if not self._fit(unit.rows + 1, unit.size + 1):
                    yield unit
                    unit = _BuildUnit()
        if unit.results:
            yield unit

    def _fit(self, rows: int, size: int) -> bool:
        return rows <= self._unit_rows and size <= UNIT_BYTES

    async def _hand_over(self, building: deque[asyncio.Task[list[ReadResult]]]) -> None:
        """Pass on the first unit once it is built; then wait until there is room for the next."""
        for outcome in await building[0]:
            self._rows_ready += _size(outcome)
            self._ready.put_nowait(outcome)
            del outcome
        building.popleft()
        while self._rows_ready > BUILT_AHEAD_ROWS:
            self._taken.clear()
            await self._taken.wait()

    async def _built(self, unit: _BuildUnit) -> list[ReadResult]:
        if unit.rows <= FEW_ROWS and not self._background_builds:
            return _build(self._builder, unit)
        self._background_builds += 1
        try:
            return await self._run_in_background(partial(_build, self._builder, unit))
        finally:
            self._background_builds -= 1

    async def _read_all(self) -> AsyncGenerator[tuple[Planned[Import], ImportRead | Failure]]:
        waiting = deque(self._planned)
        running: dict[asyncio.Task[ImportRead], Planned[Import]] = {}
        done: deque[tuple[Planned[Import], ImportRead | Failure]] = deque()
        failures = 0
        try:
            while waiting or running:
                self._begin(running, done, waiting)
                await asyncio.wait(running, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
                if self._stop() is not None:
                    self.stopped = True
                    return
                # no variable may refer to a task or its result, because it would keep records that are already built
                done.extend((running.pop(task), _result(task)) for task in [t for t in running if t.done()])
                while done:
                    failures = failures + 1 if isinstance(done[0][1], Failure) else 0
                    self.fatal = _fatal(done[0][1], failures)
                    if self.fatal is not None:
                        return
                    self._begin(running, done, waiting)  # many may be done at once, and building them takes time
                    yield done.popleft()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _begin(
        self,
        running: dict[asyncio.Task[ImportRead], Planned[Import]],
        done: Collection[tuple[Planned[Import], ImportRead | Failure]],
        waiting: deque[Planned[Import]],
    ) -> None:
        rows = sum(_rows(planned) for planned in running.values()) + sum(_rows(planned) for planned, _ in done)
        while waiting and len(running) < self._most_imports:
            if (running or done) and rows + _rows(waiting[0]) > READ_AHEAD_ROWS:
                return
            following = waiting.popleft()
            rows += _rows(following)
            running[self._reading(following.import_)] = following


def _build(builder: Builder, unit: _BuildUnit) -> list[ReadResult]:
    outcomes: list[ReadResult] = []
    reads: dict[str, tuple[Planned[Import], ImportRead]] = {}
    for planned, result in unit.results:
        if isinstance(result, Failure):
            outcomes.append(((planned,), result))
        elif result.verdict in (Verdict.gone, Verdict.left):
            outcomes.append(((planned,), BuiltImports.of((result,), None, ())))
        else:
            reads[result.import_.slug] = planned, result
    unit.results.clear()
    if len(reads) == 1:
        ((planned, read),) = reads.values()
        try:
            return [*outcomes, ((planned,), builder.build(read))]
        except ConnectorError as error:
            return [*outcomes, ((planned,), Failure(error))]
    all_built = builder.build_all(read for _, read in reads.values())
    return outcomes + [(tuple(reads[read.import_.slug][0] for read in built.reads), built) for built in all_built]


def _rows_of(result: ImportRead | Failure) -> int:
    return 1 if isinstance(result, Failure) else max(len(result.records), 1)


def _bytes_of(result: ImportRead | Failure) -> int:
    return 0 if isinstance(result, Failure) else sum(len(record.data) for record in result.records)


def _rows(planned: Planned[Import]) -> int:
    return max(planned.import_.row_count, 1)


def _size(outcome: ReadResult) -> int:
    return len(outcome[1]) if isinstance(outcome[1], BuiltImports) else 0


def _result(task: asyncio.Task[ImportRead]) -> ImportRead | Failure:
    error = task.exception()
    if error is None:
        return task.result()
    if not isinstance(error, Exception):
        raise error
    if not isinstance(error, ConnectorError):
        log.exception("An import could not be read because of an unexpected error.", exc_info=error)
        error = ConnectorError(f"An unexpected {type(error).__name__} occurred while reading it; please report it.")
    return Failure(error)


def _fatal(result: ImportRead | Failure, failures: int) -> ConnectorError | None:
    """Return the error that ends the run, and not only the reading of one import; None for others."""
    if isinstance(result, Failure):
        if isinstance(result.error, AuthError) and result.error.status == 401:
            return result.error
        if isinstance(result.error, TransientError) and failures >= FAILURES_IN_A_ROW:
            return TransientError(f"{failures} imports in a row failed; the last error: {result.error}")
    return None
