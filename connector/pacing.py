"""How many requests are in flight, and when each may start.

The number in flight follows the service: it grows by one a round while all goes well and halves on a 429, between 1
and the configured maximum. Starts keep an even distance when there is a ceiling on requests a second.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

# Starts are a little further apart than the ceiling asks, since requests that leave evenly do not arrive evenly.
_MARGIN = 1.02


class Gate:
    """Every request passes here: `enter` before it is sent, `leave` when its reply is read or lost."""

    def __init__(
        self,
        max_concurrency: int,
        requests_per_second: float | None,
        *,
        sleep: Callable[[float], Awaitable[object]],
        monotonic: Callable[[], float],
    ) -> None:
        self._max = max_concurrency
        self._limit = float(max_concurrency)
        self.in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._interval_s = _MARGIN / requests_per_second if requests_per_second else 0.0
        self._start_lock = asyncio.Lock()
        self._next_start = -math.inf
        self._paused_until = -math.inf
        self._limit_cut_at = -math.inf
        self._sleep = sleep
        self._monotonic = monotonic

    @property
    def limit(self) -> int:
        """How many requests may be in flight at present."""
        return int(self._limit)

    async def enter(self) -> float:
        """Waits for a place and for the time to start; returns the time of the start."""
        if self.in_flight < self.limit and not self._waiting:
            self.in_flight += 1
        else:
            await self._queue()
        try:
            return await self._start()
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        self.in_flight -= 1
        self._admit()

    def went_well(self) -> None:
        """A reply without a 429: room for one more, after a round of such replies."""
        if self._limit < self._max:
            self._limit = min(float(self._max), self._limit + 1 / self._limit)
            self._admit()

    def throttled(self, started: float, pause_s: float) -> None:
        """A 429 to a request that started at `started`: halve, once a round, and let nothing start for `pause_s`."""
        now = self._monotonic()
        if started >= self._limit_cut_at:
            self._limit = max(1.0, self._limit / 2)
            self._limit_cut_at = now
        if pause_s > 0:
            self._paused_until = max(self._paused_until, now + pause_s)

    async def _queue(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()
            else:
                with suppress(ValueError):
                    self._waiting.remove(turn)
            raise

    def _admit(self) -> None:
        while self._waiting and self.in_flight < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self.in_flight += 1
                turn.set_result(None)

    async def _start(self) -> float:
        if not self._interval_s and self._paused_until <= (now := self._monotonic()):
            return now
        async with self._start_lock:
            slept_until = -math.inf
            # a pause may begin while this sleeps; an injected sleep need not move the clock
            while (target := max(self._paused_until, self._next_start)) > slept_until:
                if (wait_s := target - self._monotonic()) > 0:
                    await self._sleep(wait_s)
                slept_until = target
            now = max(self._monotonic(), slept_until)
            self._next_start = now + self._interval_s
            return now
