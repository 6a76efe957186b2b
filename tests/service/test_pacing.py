"""Ceilings: requests in flight, requests a second, and what a 429 does to both."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from connector.service.client import ClientStats, ServiceClient
from connector.service.rate_limit import RateLimiter
from tests.service.conftest import Ask, Clock, Question
from tests.service.hostile import Reply, Seen, http, import_row, page, row
from tests.simulation.virtual_time import Answered, virtual_loop


def many(count: int) -> Question:
    async def question(client: ServiceClient) -> int:
        half = [client.list_records("imp", number) for number in range(count // 2)]
        rest = [client.list_imports(number) for number in range(count - count // 2)]
        return len(await asyncio.gather(*half, *rest))

    return question


def either(seen: Seen) -> Reply:
    found = page(row()) if "/records" in seen.line else page(import_row())
    return Reply(found.wire, delay_s=0.01)


@pytest.mark.parametrize("limit", [1, 3, 8])
def test_no_more_requests_in_flight_than_allowed_and_as_many_as_allowed(ask: Ask, limit: int) -> None:
    answer = ask(either, many(40), max_concurrency=limit)
    assert answer.value == 40
    assert answer.service.in_flight_peak == limit


def test_a_request_that_waits_to_be_repeated_holds_no_place(ask: Ask) -> None:
    waiting, waited = asyncio.Event(), asyncio.Event()

    async def sleep(seconds: float) -> None:
        waiting.set()
        await waited.wait()

    async def question(client: ServiceClient) -> None:
        failing = asyncio.create_task(client.get_import("bad"))
        await waiting.wait()
        await client.list_records("good", 1)
        assert not failing.done()
        waited.set()
        await failing

    failed: list[str] = []

    def script(seen: Seen) -> Reply:
        if "bad" in seen.line and not failed:
            failed.append(seen.line)
            return http(503)
        return http(200, import_row()) if "bad" in seen.line else page(row())

    answer = ask(script, question, max_concurrency=1, sleep=sleep)
    assert answer.error is None
    assert len(answer.service.seen) == 3


@dataclass
class Scripted:
    """A service in the client's own process, so that time passes only by sleeping; `times` is when requests came."""

    answer: Callable[[int], Answered]
    times: list[float] = field(default_factory=list)

    @asynccontextmanager
    async def request(self, method: str, url: str, **_: Any) -> AsyncIterator[Answered]:
        self.times.append(asyncio.get_running_loop().time())
        answered = self.answer(len(self.times))
        await asyncio.sleep(0.01)
        yield answered

    async def close(self) -> None:
        pass


def in_virtual_time(service: Scripted, question: Question, **options: Any) -> ClientStats:
    async def talk() -> ClientStats:
        clock = asyncio.get_running_loop().time
        client = ServiceClient(
            "http://127.0.0.1:1", "token", transport=service, sleep=asyncio.sleep, monotonic=clock, **options
        )
        async with client:
            await question(client)
        return client.stats

    with virtual_loop() as loop:
        return loop.call(talk)


GOOD = Answered(200, {}, b'{"data":[{"slug":"r1","data":{"a":1}}],"metadata":{}}')


@pytest.mark.parametrize("ceiling", [20.0, 50.0])
def test_requests_a_second_are_held_in_every_window_retries_included(ceiling: float) -> None:
    async def question(client: ServiceClient) -> None:
        await asyncio.gather(*(client.list_records("imp", number) for number in range(int(ceiling))))

    service = Scripted(lambda count: Answered(500, {}, b"") if count % 5 == 0 else GOOD)
    in_virtual_time(service, question, requests_per_second=ceiling, random=Random(7))
    times = service.times
    assert len(times) >= ceiling * 1.2
    for first in times:
        assert sum(first <= at < first + 1 for at in times) <= ceiling
    assert times[-1] - times[0] < 2.5  # a ceiling, not a crawl


def test_starts_are_evenly_spaced() -> None:
    async def run() -> list[float]:
        clock = Clock()
        limiter = RateLimiter(100, 10, sleep=clock.sleep, monotonic=clock.monotonic)
        return sorted(await asyncio.gather(*(limiter.enter() for _ in range(30))))

    starts = asyncio.run(run())
    gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert all(0.1 <= gap < 0.11 for gap in gaps)


def test_the_limit_halves_on_429_once_a_round_and_grows_back() -> None:
    clock = Clock()
    limiter = RateLimiter(8, None, sleep=clock.sleep, monotonic=clock.monotonic)
    clock.at = 10
    limiter.throttled(started=9, pause_s=0)
    limiter.throttled(started=9.5, pause_s=0)
    assert limiter.limit == 4
    for started in (11, 12, 13, 14):
        clock.at = started + 0.5
        limiter.throttled(started=started, pause_s=0)
    assert limiter.limit == 1
    for _ in range(100):
        limiter.went_well()
    assert limiter.limit == 8


def test_a_429_with_retry_after_pauses_everyone() -> None:
    async def question(client: ServiceClient) -> None:
        refused = asyncio.create_task(client.list_records("imp", 1))
        await asyncio.sleep(0.1)
        assert client.stats.throttled == 1
        await asyncio.gather(refused, *(client.list_records("imp", number) for number in range(5)))

    service = Scripted(lambda count: Answered(429, {"retry-after": "1"}, b"") if count == 1 else GOOD)
    stats = in_virtual_time(service, question, random=Random(7))
    first, *later = service.times
    assert len(later) == 6
    assert min(later) - first >= 1
    assert stats.throttled == 1


def test_a_service_that_throttles_hard_is_still_read_to_the_end(ask: Ask) -> None:
    calls = 0

    def script(seen: Seen) -> Reply:
        nonlocal calls
        calls += 1
        return page(row()) if calls % 4 == 0 else http(429, "", [("Retry-After", "0")])

    answer = ask(script, lambda client: asyncio.gather(*(client.list_records("imp", n) for n in range(20))))
    assert answer.error is None
    assert answer.stats.retries == answer.stats.throttled == answer.stats.requests - 20


def test_cancelled_requests_give_their_places_back(ask: Ask) -> None:
    async def question(client: ServiceClient) -> None:
        tasks = [asyncio.create_task(client.list_records("slow", number)) for number in range(6)]
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.wait_for(asyncio.gather(*(client.list_records("imp", n) for n in range(6))), 10)

    def script(seen: Seen) -> Reply:
        return page(row()) if "/imp/" in seen.line else Reply(b"", "hang")

    answer = ask(script, question, max_concurrency=2)
    assert answer.error is None


def test_a_place_given_to_a_request_that_is_cancelled_at_that_moment_goes_on_to_the_next() -> None:
    async def run() -> None:
        clock = Clock()
        limiter = RateLimiter(1, None, sleep=clock.sleep, monotonic=clock.monotonic)
        await limiter.enter()
        unlucky, next_one = asyncio.create_task(limiter.enter()), asyncio.create_task(limiter.enter())
        await asyncio.sleep(0)
        limiter.leave()
        unlucky.cancel()
        await asyncio.wait_for(next_one, 10)

    asyncio.run(run())


def test_a_request_cancelled_while_it_waits_for_its_time_gives_its_place_back() -> None:
    async def run() -> None:
        limiter = RateLimiter(1, 0.001, sleep=asyncio.sleep, monotonic=time.monotonic)
        await limiter.enter()
        limiter.leave()
        early = asyncio.create_task(limiter.enter())
        await asyncio.sleep(0.01)
        early.cancel()
        await asyncio.gather(early, return_exceptions=True)
        assert limiter.in_flight == 0

    asyncio.run(run())


def test_what_is_urgent_waits_for_no_other_requests_that_wait() -> None:
    async def run() -> list[str]:
        clock = Clock()
        limiter = RateLimiter(1, None, sleep=clock.sleep, monotonic=clock.monotonic)
        entered: list[str] = []

        async def request(name: str, urgent: bool) -> None:
            await limiter.enter(urgent=urgent)
            entered.append(name)
            await asyncio.sleep(0)
            limiter.leave()

        asked = [("under way", False), ("a", False), ("b", False), ("urgent", True), ("c", False), ("as urgent", True)]
        await asyncio.gather(*(request(*one) for one in asked))
        assert limiter.in_flight == 0
        return entered

    assert asyncio.run(run()) == ["under way", "urgent", "as urgent", "a", "b", "c"]


def test_an_urgent_request_that_is_cancelled_while_it_waits_leaves_its_place() -> None:
    async def run() -> None:
        clock = Clock()
        limiter = RateLimiter(1, None, sleep=clock.sleep, monotonic=clock.monotonic)
        await limiter.enter()
        unlucky, next_one = asyncio.create_task(limiter.enter(urgent=True)), asyncio.create_task(limiter.enter())
        await asyncio.sleep(0)
        unlucky.cancel()
        await asyncio.sleep(0)
        limiter.leave()
        await asyncio.wait_for(next_one, 10)
        assert limiter.in_flight == 1

    asyncio.run(run())


def test_the_listing_is_not_kept_waiting_by_records(ask: Ask) -> None:
    order: list[str] = []

    async def question(client: ServiceClient) -> None:
        records = [asyncio.ensure_future(client.list_records("imp", number)) for number in range(1, 7)]
        await asyncio.sleep(0)
        await asyncio.gather(client.list_imports(1), *records)

    def script(seen: Seen) -> Reply:
        order.append("records" if "/records" in seen.line else "listing")
        return either(seen)

    assert ask(script, question, max_concurrency=2).error is None
    assert "listing" in order[:4]
