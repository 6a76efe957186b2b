"""Services that answer 429 above a rate: the share that is refused and the part of the rate that is used.

The client is the real one, retries included; the service is a bucket inside the process, and time passes by sleeping.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.service.client import ServiceClient
from connector.service.rate_limit import LearnedRate, RateCap
from tests.service.conftest import Ask
from tests.service.hostile import Reply, Seen, http, page, row
from tests.simulation.virtual_time import Answered, virtual_loop

CLIENT_WORK_S = 0.0006  # a request, of which the client can do no two at once
REQUESTS_AT_ONCE = 16
BODY = b'{"data":[{"slug":"r1","data":{"a":1}}],"metadata":{}}'
Refuse = Callable[[], bool]


@dataclass
class Bucket:
    """Holds `burst` requests, fills at `rate` a second, and answers after `latency_s`."""

    rate: float
    burst: float
    retry_after: str | None
    latency_s: float
    at_random: Refuse = lambda: False
    passed: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._level, self._filled_at, self._client_busy_until = self.burst, 0.0, 0.0

    @asynccontextmanager
    async def request(self, method: str, url: str, **_: Any) -> AsyncIterator[Answered]:
        now = asyncio.get_running_loop().time()
        self._level = min(self.burst, self._level + (now - self._filled_at) * self.rate)
        self._filled_at = now
        allowed = self._level >= 1 and not self.at_random()
        self._level -= allowed
        (self.passed if allowed else self.refused).append(now)
        self._client_busy_until = max(self._client_busy_until, now + self.latency_s) + CLIENT_WORK_S
        await asyncio.sleep(self._client_busy_until - now)
        if allowed:
            yield Answered(200, {}, BODY)
        else:
            yield Answered(429, {"retry-after": self.retry_after} if self.retry_after else {}, b"")

    async def close(self) -> None:
        pass

    @property
    def refused_share(self) -> float:
        return len(self.refused) / (len(self.refused) + len(self.passed))

    @property
    def used(self) -> float:
        return (len(self.passed) - 1) / (self.passed[-1] - self.passed[0]) / self.rate


def read(bucket: Bucket, requests: int, cap: float | None = None) -> Bucket:
    """All pages, many asked for at once, on a machine whose sleeps are up to two milliseconds late."""
    late = Random(3)

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds + late.uniform(0, 0.002))

    async def all_pages() -> None:
        clock = asyncio.get_running_loop().time
        client = ServiceClient(
            "http://127.0.0.1:1",
            "token",
            max_concurrency=REQUESTS_AT_ONCE,
            requests_per_second=cap,
            transport=bucket,
            sleep=sleep,
            monotonic=clock,
            random=Random(5),
        )
        pages = iter(range(1, requests + 1))

        async def some(mine: Iterator[int]) -> None:
            for number in mine:
                await client.list_records("imp", number)

        async with client:
            await asyncio.gather(*(some(pages) for _ in range(4 * REQUESTS_AT_ONCE)))

    with virtual_loop() as loop:
        loop.call(all_pages)
    assert len(bucket.passed) == requests
    return bucket


@pytest.mark.parametrize("retry_after", [None, "0", "1"])
@pytest.mark.parametrize("latency_s", [0.0, 0.05])
@pytest.mark.parametrize(("rate", "burst"), [(50, 10), (50, 50), (200, 40), (200, 200)])
def test_few_requests_are_refused_and_most_of_the_rate_is_used(
    rate: float, burst: float, latency_s: float, retry_after: str | None
) -> None:
    # pauses of a second, each of them lost, take longer to become rare
    lasting_s = 28 if rate < 100 or retry_after == "1" else 10
    bucket = read(Bucket(rate, burst, retry_after, latency_s), int(rate * lasting_s))
    assert bucket.refused_share < 0.05
    assert bucket.used > 0.85


def test_a_service_that_allows_no_burst_is_read_at_most_of_its_rate() -> None:
    bucket = read(Bucket(50, 1, "0", 0.0), 1_000)
    assert bucket.refused_share < 0.05
    assert bucket.used > 0.8


def test_long_pauses_are_honoured_by_all_and_become_rare() -> None:
    bucket = read(Bucket(50, 50, "10", 0.0), 3_000)
    assert bucket.refused_share < 0.02
    starts = sorted([*bucket.passed, *bucket.refused])
    pauses = [later for at, later in pairwise(starts) if later - at >= 10]
    assert 1 <= len(pauses) <= 5
    assert all(not any(at + 0.1 < start < at + 10 for start in starts) for at in bucket.refused)


@pytest.mark.parametrize(("share", "retry_after", "at_most_s"), [(0.05, "0", 3), (0.1, "1", 250), (0.3, "0", 50)])
def test_a_service_that_refuses_at_random_is_not_asked_ever_more_slowly(
    share: float, retry_after: str, at_most_s: float
) -> None:
    dice = Random(11)
    bucket = read(Bucket(1e6, 1e6, retry_after, 0.005, lambda: dice.random() < share), 500)
    assert bucket.passed[-1] < at_most_s


def test_a_rate_that_rises_is_found() -> None:
    bucket = Bucket(20, 4, "0", 0.01)

    def rises() -> bool:
        if len(bucket.passed) == 400:
            bucket.rate, bucket.burst = 200, 40
        return False

    bucket.at_random = rises
    read(bucket, 6_000)
    assert bucket.passed[-1] - bucket.passed[-1_000] < 1_000 / 200 / 0.75


def test_a_ceiling_of_our_own_holds_below_the_rate_of_the_service_and_above() -> None:
    unhurried = read(Bucket(1e6, 1e6, None, 0.0), 1_000, cap=100)
    times = unhurried.passed
    assert all(later - first >= 1 for first, later in zip(times, times[100:], strict=False))
    assert times[-1] - times[0] < 10.5
    hurried = read(Bucket(50, 10, "0", 0.0), 1_000, cap=100)
    assert hurried.refused_share < 0.05


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.3, 500),
    st.lists(st.floats(0, 0.4), min_size=30, max_size=120),
    st.booleans(),
)
def test_a_ceiling_holds_in_every_second_however_late_the_starts_are(
    rate: float, delays: list[float], idle: bool
) -> None:
    cap, now, starts = RateCap(rate), 100.0, []
    for index, delay_s in enumerate(delays):
        wanted = now + (3 * delay_s if idle and index % 7 == 0 else 0)
        now = max(wanted, cap.earliest()) + (delay_s if index % 5 == 0 else 0)
        cap.started(wanted, now)
        starts.append(now)
    allowed = max(1, int(rate))
    span_s = max(1.0, 1 / rate)
    for first, later in zip(starts, starts[allowed:], strict=False):
        assert later - first >= min(span_s, allowed / rate)


def test_what_a_busy_machine_was_late_with_is_made_up_for_but_not_what_nobody_wanted() -> None:
    late, idle = RateCap(100), RateCap(100)
    late.started(0.0, 0.0)
    idle.started(0.0, 0.0)
    late.started(wanted=0.0, at=0.1)
    idle.started(wanted=0.1, at=0.1)
    assert late.earliest() < 0.03
    assert idle.earliest() > 0.109


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 0.5), st.booleans(), st.sampled_from([0.0, 0.3, 30.0])), max_size=200))
def test_a_learned_pace_stays_within_reason(events: list[tuple[float, bool, float]]) -> None:
    learned, now, fresh = LearnedRate(), 50.0, -math.inf
    for gap_s, well, asked_s in events:
        now = max(now + gap_s, learned.earliest())
        learned.started(now, now)
        before = learned.rate
        if well:
            learned.accepted(now)
            assert learned.rate >= before or learned.rate == pytest.approx(before)
        else:
            learned.refused(now, now, asked_s)
            assert 0 < learned.rate <= max(before, 1.0)
            if learned.rate < before and asked_s:
                fresh = now + asked_s
        assert learned.earliest() >= fresh
        assert learned.earliest() - now <= 30 + 2.1


def test_over_sockets_a_bucket_refuses_few_and_is_used(ask: Ask) -> None:
    """Real connections, and time that passes only by sleeping: late sleepers find the time that others slept."""
    now, level, filled_at = 0.0, 40.0, 0.0
    passed: list[float] = []

    async def sleep(seconds: float) -> None:
        nonlocal now
        due = now + seconds
        await asyncio.sleep(0)
        now = max(now, due)

    def script(seen: Seen) -> Reply:
        nonlocal level, filled_at
        level, filled_at = min(40.0, level + (now - filled_at) * 200), now
        if level < 1:
            return http(429, "", [("Retry-After", "0")])
        level -= 1
        passed.append(now)
        return page(row())

    async def question(client: ServiceClient) -> None:
        await asyncio.gather(*(client.list_records("imp", number) for number in range(500)))

    answer = ask(script, question, max_concurrency=REQUESTS_AT_ONCE, sleep=sleep, monotonic=lambda: now)
    assert answer.error is None
    assert answer.stats.throttled < 60  # of which the first burst is a part of sixteen
    assert len(passed) == 500
    assert passed[-1] - passed[0] < 6
