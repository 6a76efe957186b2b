"""Provide an event loop whose time passes only by sleeping, and an in-process network that runs on it.

Requests take random, seeded times to travel, so that replies to concurrent requests overtake each other; still every
run of a seed is the same, and none really waits.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from email.utils import format_datetime
from typing import Any, TypeVar

import aiohttp

from connector.sandbox import Request, Response

R = TypeVar("R")


class _VirtualSelector(selectors.SelectSelector):
    """A selector for a loop without external events: instead of waiting, it advances the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("the simulation waits for something that will never happen")
        self.time += max(timeout, 0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._patient = _VirtualSelector()
        super().__init__(self._patient)
        self._clock_resolution = 1e-6
        # tasks that die with the process need no message
        self.set_exception_handler(lambda *_: None)

    def time(self) -> float:
        return self._patient.time

    def call(self, func: Callable[..., Awaitable[R]], *args: Any) -> R:
        async def awaited() -> R:
            return await func(*args)

        return self.run_until_complete(awaited())


@contextmanager
def virtual_loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    try:
        yield loop
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.call(asyncio.sleep, 0)
        loop.call(loop.shutdown_asyncgens)
        loop.close()


@dataclass(frozen=True, slots=True)
class Answered:
    """A reply that never crossed a socket; `cut` loses the connection half-way through its body."""

    status: int
    headers: Mapping[str, str]  # with names in lower case
    body: bytes
    cut: bool = False

    @property
    def content(self) -> Answered:
        return self

    async def iter_any(self) -> AsyncIterator[bytes]:
        half = len(self.body) // 2
        yield self.body[:half]
        if self.cut:
            raise aiohttp.ClientPayloadError("the connection was lost")
        yield self.body[half:]


class Wire:
    """A transport from the client to `answer` and back; `travel()` is the time of one way, `step()` marks both ends.

    `date()` is the time in the header of a reply, if the service sends one.
    """

    def __init__(
        self,
        answer: Callable[[Request], Response],
        travel: Callable[[], float],
        step: Callable[[str], None],
        date: Callable[[], datetime | None] = lambda: None,
    ) -> None:
        self._answer = answer
        self._date = date
        self._travel = travel
        self._step = step

    @asynccontextmanager
    async def request(
        self, method: str, url: str, *, headers: Mapping[str, str], data: bytes | None, allow_redirects: bool
    ) -> AsyncIterator[Answered]:
        asked = Request.of(method, url)
        self._step(f"before {method} {asked.path}")
        await asyncio.sleep(self._travel())
        reply = self._answer(Request(asked.method, asked.path, asked.query, dict(headers), asked.body))
        date = self._date()
        await asyncio.sleep(self._travel())
        self._step(f"after {method} {asked.path}")
        if reply.fault == "reset":
            raise aiohttp.ServerDisconnectedError("the connection was reset")
        told = {**{name.lower(): text for name, text in reply.headers.items()}, "content-length": str(len(reply.body))}
        if date is not None:
            told["date"] = format_datetime(date, usegmt=True)
        yield Answered(reply.status, told, reply.body, reply.fault == "cut")

    async def close(self) -> None:
        pass
