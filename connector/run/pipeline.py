"""Planned imports are read side by side and built one after the other, a bounded number of rows ahead of the load.

While the destination is busy with one package, the next one is being read and built: the load leaves the interpreter
alone for most of its time.
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
from connector.load.batches import Builder, Built
from connector.models import Import
from connector.run.plan import Planned
from connector.run.ports import Aside

log = logging.getLogger("connector.run")

READ_AHEAD_ROWS = 25_000
BUILT_AHEAD_ROWS = 15_000
WAITING_TO_BE_BUILT = 1  # import, so that the thread that builds need not wait for the event loop between two
READ_AHEAD_IMPORTS_PER_REQUEST = 4
FEW_ROWS = 500  # built at once, as going to another thread and back would take longer
TAKEN_ROWS = 2_000  # at a time, for the same reason
POLL_S = 0.2
FAILURES_IN_A_ROW = 20
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Failure:
    """An import that could not be read."""

    error: Exception


Outcome = tuple[Planned[Import], Built | Failure]


class ReadAhead:
    """Used on one event loop, from `start` to `aclose`. `fatal` and `stopped` say, at the end, why it came early.

    `reading(import_)` is the reading of one. `on_built` is called once nothing is left to build, which may be long
    before all of it is taken.
    """

    def __init__(
        self,
        reading: Callable[[Import], asyncio.Task[ImportRead]],
        builder: Builder,
        planned: tuple[Planned[Import], ...],
        *,
        max_concurrency: int,
        aside: Aside,
        stop: Callable[[], int | None],
        on_built: Callable[[], None],
    ) -> None:
        self._reading = reading
        self._builder = builder
        self._planned = planned
        self._most_imports = READ_AHEAD_IMPORTS_PER_REQUEST * max_concurrency
        self._aside = aside
        self._stop = stop
        self._on_built = on_built
        self._ready: asyncio.Queue[Outcome | None] = asyncio.Queue()
        self._rows_ready = 0
        self._taken = asyncio.Event()
        self._filling: asyncio.Task[None] | None = None
        self._aside_now = 0  # imports that are being built there, or wait for it: no other may be built meanwhile
        self.fatal: ConnectorError | None = None
        self.stopped = False
        self.drained = False  # whether `take` has come to the end

    def start(self) -> None:
        self._filling = asyncio.ensure_future(self._fill())

    async def take(self) -> list[Outcome]:
        """The next outcomes in about the order planned, as many as are there and not too many; none at the end."""
        taken: list[Outcome] = []
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
        """Ends whatever is being read."""
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.gather(self._filling, return_exceptions=True)

    async def _fill(self) -> None:
        building: deque[tuple[Planned[Import], asyncio.Task[Built | Failure]]] = deque()
        try:
            async with aclosing(self._read_all()) as reads:
                async for planned, result in reads:
                    building.append((planned, asyncio.ensure_future(self._built(result))))
                    del result  # its records are not needed once they are rows
                    while len(building) > WAITING_TO_BE_BUILT:
                        await self._hand_over(building)
            while building:
                await self._hand_over(building)
        finally:
            for _, task in building:
                task.cancel()
            await asyncio.gather(*(task for _, task in building), return_exceptions=True)
            self._ready.put_nowait(None)
            self._on_built()

    async def _hand_over(self, building: deque[tuple[Planned[Import], asyncio.Task[Built | Failure]]]) -> None:
        """The first of them, once it is built; then waits until there is room for the next."""
        planned, task = building[0]
        outcome = planned, await task
        building.popleft()
        del task
        self._rows_ready += _size(outcome)
        self._ready.put_nowait(outcome)
        del outcome
        while self._rows_ready > BUILT_AHEAD_ROWS:
            self._taken.clear()
            await self._taken.wait()

    async def _built(self, result: ImportRead | Failure) -> Built | Failure:
        if isinstance(result, Failure):
            return result
        if result.verdict is Verdict.gone:
            return Built(result)
        try:
            if len(result.records) <= FEW_ROWS and not self._aside_now:
                return self._builder.build(result)
            self._aside_now += 1
            try:
                return await self._aside(partial(self._builder.build, result))
            finally:
                self._aside_now -= 1
        except ConnectorError as error:
            return Failure(error)

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
                # no name is left here for a task or its result, as it would keep the records of what is built already
                done.extend((running.pop(task), _result(task)) for task in [t for t in running if t.done()])
                while done:
                    failures = failures + 1 if isinstance(done[0][1], Failure) else 0
                    self.fatal = _fatal(done[0][1], failures)
                    if self.fatal is not None:
                        return
                    self._begin(running, done, waiting)  # many may be done at once, and to build them takes its time
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


def _rows(planned: Planned[Import]) -> int:
    return max(planned.import_.row_count, 1)


def _size(outcome: Outcome) -> int:
    return len(outcome[1]) if isinstance(outcome[1], Built) else 0


def _result(task: asyncio.Task[ImportRead]) -> ImportRead | Failure:
    error = task.exception()
    if error is None:
        return task.result()
    if not isinstance(error, Exception):
        raise error
    if not isinstance(error, ConnectorError):
        log.exception("An import could not be read for a reason this connector did not foresee.", exc_info=error)
        error = ConnectorError(f"An unforeseen {type(error).__name__} stopped its reading; please report it.")
    return Failure(error)


def _fatal(result: ImportRead | Failure, failures: int) -> ConnectorError | None:
    """What ends the run, not just the reading of one import."""
    if isinstance(result, Failure):
        if isinstance(result.error, AuthError) and result.error.status == 401:
            return result.error
        if isinstance(result.error, TransientError) and failures >= FAILURES_IN_A_ROW:
            return TransientError(f"{failures} imports in a row failed, the last one so: {result.error}")
    return None
