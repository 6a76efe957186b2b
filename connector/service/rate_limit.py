"""Decide how many requests are in flight, and when each may start.

The number in flight adapts to the service: it grows by one per round while there are no errors and halves on a 429,
between 1 and the configured maximum. Starts follow the configured maximum rate, if there is one, and from the first 429
on a rate learned from the service, because fewer requests in flight do not slow down a client whose requests are
answered at once.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

# The window for the maximum rate is a little longer than a second: requests sent evenly do not arrive evenly.
_MARGIN = 1.02
_CAP_SLACK_S = 0.25  # a start delayed by up to this is made up for
_LEARNED_SLACK_S = 0.002  # the same for a learned rate: a service may allow no bursts at all
_LEAST_PAUSE_S = 0.1  # the shortest pause after a 429 that counts
_LATEST = 32  # latest replies to consider
_CLEARLY = 10  # so many 429s among them show that there is a limit
_HALF_LIFE = 2_000  # in replies, of the known lower bound of the limit, which may change
_KEEP = 0.97  # of the rate that got through
_SEARCH_S = 1.0  # time in which the rate doubles while little is known
_SLOWER = 8.0  # the factor by which each further 429 lengthens that
_CERTAIN_S = 60.0  # at most; longer if the service asks for long pauses, so that few are caused by trying
_WINDOW_S = 0.5  # over which the rate that gets through is measured
_WINDOW_REPLIES = 10  # at least, for slow services
_LEAST_RATE = 0.5
_MOST_DOUBLINGS = 20.0


class RateCap:
    """A limit of `rate` starts in any second, evenly spread; delays by a busy machine are made up for."""

    def __init__(self, rate: float) -> None:
        self._interval_s = _MARGIN / rate
        self._recent: deque[float] = deque(maxlen=max(1, int(rate)))
        self._next = -math.inf

    def earliest(self) -> float:
        """Return when the next request may start."""
        if len(self._recent) < (self._recent.maxlen or 0):
            return self._next
        return max(self._next, self._recent[0] + len(self._recent) * self._interval_s)

    def started(self, wanted: float, at: float) -> None:
        """Note a start at `at`, of a request that was ready since `wanted`."""
        self._next = max(self._next, wanted, at - _CAP_SLACK_S) + self._interval_s
        self._recent.append(at)


class LearnedRate:
    """The request rate learned from a service that answers 429.

    It is unlimited until a 429 asks for a pause, or many of the latest replies are 429s: a few 429s without a pause
    cost less than slowing down. Each further 429 sets the rate to the one that got through lately. The sooner it came,
    compared with the pause, the larger was the part of that rate that the service allowed as a burst, and the less of
    it is kept. From there the rate doubles in `_doubling_s`, slowly at first, then increasingly fast. Time without
    requests does not count, so that a rate is neither forgotten nor mistaken for the rate that was needed.
    """

    def __init__(self) -> None:
        self._base = math.inf
        self._doubling_s = _SEARCH_S
        self._age_s = 0.0  # seconds of sending requests since the last 429 that counted
        self._replies = 0  # in that time, 429s not counted
        self._accepted_ages: deque[float] = deque()  # the ages of the latest of them
        self._outcomes: deque[bool] = deque(maxlen=_LATEST)
        self._seen_at: float | None = None
        self._cut_at = -math.inf
        self._next = -math.inf
        # No limit on the rate is lower than the rate that got through from one 429 to the next. If 429s come at random,
        # a lower rate does not help.
        self._floor = 0.0
        self._pause_s = 0.0  # after the last 429 that counted

    @property
    def rate(self) -> float:
        if math.isinf(self._base):
            return math.inf
        doublings = min((self._age_s / self._doubling_s) ** 2, _MOST_DOUBLINGS)
        return self._base * math.exp2(doublings)

    def earliest(self) -> float:
        """Return when the next request may start."""
        return self._next

    def started(self, wanted: float, at: float) -> None:
        """Note a start at `at`, of a request that was ready since `wanted`."""
        self._advance(at)
        if math.isfinite(self._base):
            self._next = max(self._next, wanted, at - _LEARNED_SLACK_S) + 1 / self.rate

    def accepted(self, at: float) -> None:
        self._advance(at)
        self._replies += 1
        self._outcomes.append(True)
        ages = self._accepted_ages
        ages.append(self._age_s)
        while len(ages) > _WINDOW_REPLIES and self._age_s - ages[0] > _WINDOW_S:
            ages.popleft()

    def refused(self, started: float, at: float, asked_s: float) -> None:
        """Note a 429 that asks for a pause of `asked_s`; of those to requests sent at one rate, the first counts."""
        self._advance(at)
        self._outcomes.append(False)
        unlimited = math.isinf(self._base)
        clear = asked_s >= _LEAST_PAUSE_S or self._outcomes.count(False) >= _CLEARLY
        if started < self._cut_at or (unlimited and not (clear and self._replies)):
            return
        pause_s = max(asked_s, _LEAST_PAUSE_S)
        kept = _KEEP * self._recent_rate() * math.sqrt(self._age_s / (self._age_s + pause_s / 3))
        if not unlimited:
            outdated = self._floor * math.exp2(-self._replies / _HALF_LIFE)
            self._floor = max(outdated, self._replies / (self._pause_s + self._age_s))
            kept = min(self.rate, max(kept, self.rate / 2, self._floor))
            if self._age_s > self._doubling_s / 10:  # otherwise the rate was far too high, and still little is known
                certain_s = _CERTAIN_S * math.sqrt(max(1.0, pause_s))
                self._doubling_s = min(_SLOWER * self._doubling_s, certain_s)
        self._base = max(kept, _LEAST_RATE)
        self._age_s, self._replies, self._pause_s = 0.0, 0, pause_s
        self._accepted_ages.clear()
        self._cut_at = at
        self._next = self._seen_at = at + pause_s

    def _recent_rate(self) -> float:
        ages = self._accepted_ages
        since = ages[0] if len(ages) > _WINDOW_REPLIES else 0.0
        return len(ages) / max(self._age_s - since, 1e-3)

    def _advance(self, now: float) -> None:
        if self._seen_at is None:
            self._seen_at = now
        passed_s = max(0.0, now - self._seen_at)
        self._age_s += min(passed_s, 1.5 / self.rate) if math.isfinite(self._base) else passed_s
        self._seen_at = max(self._seen_at, now)


class RateLimiter:
    """The gate that every request passes: `enter` before it is sent, `leave` when its reply is read or lost."""

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
        self._urgent: deque[asyncio.Future[None]] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._cap = RateCap(requests_per_second) if requests_per_second else None
        self._learned = LearnedRate()
        self._start_lock = asyncio.Lock()
        self._paused_until = -math.inf
        self._limit_cut_at = -math.inf
        self._sleep = sleep
        self._monotonic = monotonic

    @property
    def limit(self) -> int:
        """Return how many requests may be in flight at present."""
        return int(self._limit)

    async def enter(self, *, urgent: bool = False) -> float:
        """Wait until the request may start, urgent requests first; return that time."""
        if self.in_flight < self.limit and not self._urgent and not self._waiting:
            self.in_flight += 1
        else:
            await self._queue(self._urgent if urgent else self._waiting)
        try:
            return await self._start()
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        self.in_flight -= 1
        self._admit()

    def went_well(self) -> None:
        """Note a reply other than a 429; a whole round of these allows one more request in flight."""
        self._learned.accepted(self._monotonic())
        if self._limit < self._max:
            self._limit = min(float(self._max), self._limit + 1 / self._limit)
            self._admit()

    def throttled(self, started: float, pause_s: float) -> None:
        """Note a 429 to a request that started at `started`: halve the limit, once a round, and pause for `pause_s`."""
        now = self._monotonic()
        self._learned.refused(started, now, pause_s)
        if started >= self._limit_cut_at:
            self._limit = max(1.0, self._limit / 2)
            self._limit_cut_at = now
        if pause_s > 0:
            self._paused_until = max(self._paused_until, now + pause_s)

    async def _queue(self, queue: deque[asyncio.Future[None]]) -> None:
        turn = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()
            else:
                with suppress(ValueError):
                    queue.remove(turn)
            raise

    def _admit(self) -> None:
        while (queue := self._urgent or self._waiting) and self.in_flight < self.limit:
            turn = queue.popleft()
            if not turn.done():
                self.in_flight += 1
                turn.set_result(None)

    def _earliest(self) -> float:
        cap = self._cap.earliest() if self._cap else -math.inf
        return max(self._paused_until, self._learned.earliest(), cap)

    async def _start(self) -> float:
        wanted = self._monotonic()
        async with self._start_lock:
            slept_until = -math.inf
            # a pause may begin during the sleep; an injected sleep need not advance the clock
            while (target := self._earliest()) > slept_until:
                if (wait_s := target - self._monotonic()) > 0:
                    await self._sleep(wait_s)
                slept_until = target
            now = max(self._monotonic(), slept_until)
            self._learned.started(wanted, now)
            if self._cap:
                self._cap.started(wanted, now)
            return now
