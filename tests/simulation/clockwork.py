"""An event loop whose time passes only by sleeping, and a network inside the process that runs on it.

Requests take random, seeded times to travel, so replies to concurrent requests overtake each other, yet every run of
a seed is the same and none waits for anything.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx

from connector.sandbox import Request, Response

R = TypeVar("R")


class _Patient(selectors.SelectSelector):
    """Nothing outside the loop ever happens: what would be a wait moves the clock instead."""

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
        self._patient = _Patient()
        super().__init__(self._patient)
        self._clock_resolution = 1e-6
        # tasks that die with the process are not worth a word
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


class _Body(httpx.AsyncByteStream):
    def __init__(self, body: bytes, cut: bool) -> None:
        self._body = body
        self._cut = cut

    async def __aiter__(self) -> AsyncIterator[bytes]:
        half = len(self._body) // 2
        yield self._body[:half]
        if self._cut:
            raise httpx.ReadError("the connection was lost")
        yield self._body[half:]


class Wire(httpx.AsyncBaseTransport):
    """From the client to `answer` and back; `travel()` is how long one way takes, `step()` marks both ends."""

    def __init__(
        self,
        answer: Callable[[Request], Response],
        travel: Callable[[], float],
        step: Callable[[str], None],
    ) -> None:
        self._answer = answer
        self._travel = travel
        self._step = step

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        self._step(f"before {request.method} {url.path}")
        await asyncio.sleep(self._travel())
        asked = Request.of(request.method, str(url))
        reply = self._answer(Request(asked.method, asked.path, asked.query, dict(request.headers), asked.body))
        await asyncio.sleep(self._travel())
        self._step(f"after {request.method} {url.path}")
        if reply.fault == "reset":
            raise httpx.ReadError("the connection was reset")
        headers = {**reply.headers, "content-length": str(len(reply.body))}
        return httpx.Response(
            reply.status, headers=headers, stream=_Body(reply.body, reply.fault == "cut"), request=request
        )
