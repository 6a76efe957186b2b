"""Detect from all requests of a client together that the service does not answer at all.

Invariant: from the third failure in a row until the next reply, one request at a time is sent while all others wait;
and no request fails because of the outage before the service has been silent for `limit_s`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from random import Random

log = logging.getLogger("connector.service.client")

FAILURES = 3  # failures in a row, of all requests together, before requests wait
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 5.0  # single requests are no load, and the end of a restart is noticed soon


class Outage:
    """The outage seen by all requests of a client. With a `limit_s` of 0 it never begins."""

    def __init__(
        self,
        limit_s: float,
        *,
        sleep: Callable[[float], Awaitable[object]],
        monotonic: Callable[[], float],
        now: Callable[[], datetime],
        random: Random,
    ) -> None:
        self._limit_s = limit_s
        self._sleep = sleep
        self._monotonic = monotonic
        self._now = now
        self._random = random
        self._one_at_a_time = asyncio.Lock()
        self.number = 0  # of the current or latest outage
        self._reset()

    def _reset(self) -> None:
        self.since: datetime | None = None  # the first failure that no reply has followed
        self._since_s = self._latest_s = self._slept_s = 0.0
        self._failures = self._pauses = 0

    @property
    def began(self) -> bool:
        return self.since is not None

    @property
    def is_waited_for(self) -> bool:
        """Return whether requests wait for their turn."""
        return self._failures >= FAILURES and not self.is_over_limit

    @property
    def is_over_limit(self) -> bool:
        """Return whether the outage has lasted so long that requests fail instead of waiting."""
        return self.began and self._lasted_s() >= self._limit_s

    def _lasted_s(self) -> float:
        """Return the seconds since the outage began, or those slept in it if more, as with a stopped clock."""
        return max(self._monotonic() - self._since_s, self._slept_s)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Enter to send one request: at once while the service answers, else alone after a pause."""
        if self.is_waited_for:
            async with self._one_at_a_time:
                if self.is_waited_for:
                    await self._pause()
                    yield
                    return
        yield

    async def _pause(self) -> None:
        longest_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self._pauses, 30))
        self._pauses += 1
        pause_s = self._random.uniform(longest_s / 2, longest_s)
        await self._sleep(pause_s)
        self._slept_s += pause_s

    def wait_for(self, limit_s: float) -> None:
        """Set to `limit_s` how long to wait for the service from now on."""
        self._limit_s = limit_s

    def answered(self) -> None:
        """End the outage: the service replied to a request, whatever the reply."""
        if self._failures >= FAILURES:
            log.warning(
                "The service answers again, after %.0f s.", self._lasted_s(), extra={"event": "service.answers"}
            )
        if self.began:
            self._reset()

    def failed(self, words: str) -> None:
        """Count a request that got no answer; `words` complete "the service …"."""
        if self._limit_s <= 0:
            return
        now_s = self._monotonic()
        if self.began and now_s - self._latest_s > self._limit_s:
            self._reset()  # no request was sent for so long that this may be another outage
        if not self.began:
            self.since, self._since_s = self._now(), now_s
            self.number += 1
        self._latest_s = now_s
        self._failures += 1
        if self._failures == FAILURES and self.since is not None:
            log.warning(
                "The service has not answered since %s UTC (it %s); waiting up to %.0f s for it.",
                f"{self.since:%H:%M:%S}", words, self._limit_s,
                extra={"event": "service.silent", "since": self.since.isoformat()},
            )  # fmt: skip
