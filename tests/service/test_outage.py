"""A service that does not answer for a while, over real sockets and a clock that passes by sleeping."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from random import Random
from typing import Any

import pytest

from connector.errors import ConnectorError, TransientError
from connector.service.client import ServiceClient
from connector.service.outage import FAILURES
from connector.service.retry import QUICK, WATCHED, RetryPolicy
from tests.service.conftest import NOW, TOKEN, Clock
from tests.service.hostile import Reply, Seen, hostile, http, page, row

GOOD = page(row())
LIMIT_S = RetryPolicy().outage_s
AWAY = {
    "503": http(503),
    "502": http(502, "<html>Bad Gateway</html>"),
    "reset": Reply(b"", "reset"),
    "closed": Reply(b"", "close"),
}


class Place:
    """A client, the clock it sleeps by, and the service: `away(seen)` is its reply while it is not there."""

    def __init__(self, away: Callable[[Seen], Reply | None], policy: RetryPolicy | None = None) -> None:
        self.clock = Clock()
        self.away = away
        self.policy = policy
        self.until_first_reply: RetryPolicy | None = None
        self.seen: list[Seen] = []

    def reply(self, seen: Seen) -> Reply:
        self.seen.append(seen)
        return self.away(seen) or GOOD

    def client(self, url: str) -> ServiceClient:
        return ServiceClient(
            url,
            TOKEN,
            retry=self.policy,
            until_first_reply=self.until_first_reply,
            sleep=self.clock.sleep,
            monotonic=self.clock.monotonic,
            now=lambda: NOW + timedelta(seconds=self.clock.at),
            random=Random(3),
        )

    def ask(self, question: Callable[[ServiceClient], Awaitable[Any]]) -> Any:
        async def talk() -> Any:
            async with hostile(self.reply) as service, self.client(service.url) as client:
                return await question(client)

        return asyncio.run(asyncio.wait_for(talk(), 20))


async def many(client: ServiceClient) -> list[Any]:
    calls = (client.list_records(f"imp{n}", 1) for n in range(40))
    return await asyncio.gather(*calls, return_exceptions=True)


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [vars(record)["event"] for record in caplog.records if record.levelno >= logging.INFO]


def test_only_a_service_that_was_there_is_waited_for_if_so_asked() -> None:
    """Who waits in front of the screen is told at once that nobody answers, and later that a restart is waited for."""
    absent = Place(lambda seen: AWAY["503"])
    absent.until_first_reply = WATCHED
    with pytest.raises(TransientError, match="503"):
        absent.ask(lambda client: client.list_imports(1, 5))
    assert (len(absent.seen), absent.clock.at - 1000 < 8) == (WATCHED.error_attempts, True)

    async def twice(client: ServiceClient) -> Any:
        await client.list_records("imp1", 1)
        return await client.list_records("imp2", 1)

    leaves = Place(lambda seen: AWAY["closed"] if len(leaves.seen) > 1 and leaves.clock.at < 1000 + 60 else None)
    leaves.until_first_reply = WATCHED
    assert leaves.ask(twice).size == 1
    assert leaves.clock.at >= 1000 + 60


@pytest.mark.parametrize("reply", AWAY.values(), ids=AWAY.keys())
@pytest.mark.parametrize("seconds", [10, 60])
def test_a_restart_is_waited_for_once_by_all(reply: Reply, seconds: float, caplog: pytest.LogCaptureFixture) -> None:
    place = Place(lambda seen: reply if place.clock.at < 1000 + seconds else None)
    pages = place.ask(many)
    assert [found.size for found in pages] == [1] * 40
    failed = len(place.seen) - 40
    assert failed <= 8 * FAILURES + 25, "one request at a time asks whether it is back"
    assert sum(place.clock.slept) <= seconds + 30
    words = events(caplog)
    assert words.count("service.silent") == words.count("service.answers") == 1
    assert words.count("request.retried") <= 8 * FAILURES
    assert place.ask(many)


def test_a_restart_that_refuses_connections_is_waited_for() -> None:
    async def talk() -> Any:
        place = Place(lambda seen: None)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        async with AsyncExitStack() as stack:
            sleep, started = place.clock.sleep, False

            async def slept(seconds: float) -> None:
                nonlocal started
                await sleep(seconds)
                if place.clock.at > 1055 and not started:
                    started = True
                    await stack.enter_async_context(hostile(place.reply, port))

            place.clock.sleep = slept  # type: ignore[method-assign]
            client = await stack.enter_async_context(place.client(f"http://127.0.0.1:{port}"))
            return await many(client)

    assert [found.size for found in asyncio.run(asyncio.wait_for(talk(), 20))] == [1] * 40


def test_a_service_that_comes_back_with_errors_at_first_is_waited_for() -> None:
    def away(seen: Seen) -> Reply | None:
        at = place.clock.at
        return AWAY["reset"] if at < 1020 else http(500) if at < 1050 else None

    place = Place(away)
    assert [found.size for found in place.ask(many)] == [1] * 40


@pytest.mark.parametrize("reply", AWAY.values(), ids=AWAY.keys())
def test_a_service_that_stays_away_fails_in_bounded_time_for_all(reply: Reply) -> None:
    place = Place(lambda seen: reply)

    async def talk(client: ServiceClient) -> list[Any]:
        errors = await many(client)
        waited_s, asked = place.clock.at - 1000, len(place.seen)
        assert LIMIT_S <= waited_s <= LIMIT_S + 30
        errors += await many(client)
        assert place.clock.at - 1000 == waited_s, "nobody waits again for what was waited for"
        assert len(place.seen) == asked + 40
        return errors

    errors = place.ask(talk)
    assert {type(error) for error in errors} == {TransientError}
    since = NOW + timedelta(seconds=1000)
    ending = f"; it has not answered since {since:%H:%M:%S} UTC, it may be down, try again later."
    assert all(str(error).endswith(ending) for error in errors)


def test_what_always_fails_alone_is_given_up_after_its_attempts() -> None:
    place = Place(lambda seen: http(503) if "poison" in seen.line else None)

    async def talk(client: ServiceClient) -> ConnectorError:
        poison = asyncio.ensure_future(client.list_records("poison", 1))
        while not poison.done():
            await client.list_records("imp", 1)
        error = poison.exception()
        assert isinstance(error, ConnectorError)
        return error

    assert "after 6 attempts" in str(place.ask(talk))
    assert place.clock.at - 1000 < LIMIT_S


def test_one_that_resets_its_connection_does_not_keep_the_others_from_being_read() -> None:
    place = Place(lambda seen: AWAY["reset"] if "poison" in seen.line else None)

    async def talk(client: ServiceClient) -> list[Any]:
        poison = (client.list_records("poison", n) for n in range(4))
        return await asyncio.gather(*poison, many(client), return_exceptions=True)

    *poison, others = place.ask(talk)
    assert [type(error) for error in poison] == [TransientError] * 4
    assert [found.size for found in others] == [1] * 40


def test_a_silence_that_nobody_saw_end_does_not_count_for_a_later_one() -> None:
    place = Place(lambda seen: http(503) if place.clock.at < 1500 or len(place.seen) == again + 1 else None)
    again = -1

    async def talk(client: ServiceClient) -> None:
        nonlocal again
        with pytest.raises(TransientError):
            await client.list_records("imp", 1)
        place.clock.at = 2000
        again = len(place.seen)
        await client.list_records("imp", 1)
        assert len(place.seen) == again + 2

    place.ask(talk)


def test_whoever_waits_in_front_of_the_screen_is_told_soon() -> None:
    place = Place(lambda seen: http(503), QUICK)

    async def talk(client: ServiceClient) -> None:
        with pytest.raises(TransientError, match=r"after 3 attempts; it may be down"):
            await client.list_records("imp", 1)

    place.ask(talk)
    assert sum(place.clock.slept) < 2


def test_a_clock_that_stands_still_makes_no_endless_wait() -> None:
    place = Place(lambda seen: http(503))
    place.clock.monotonic = lambda: 1000.0  # type: ignore[method-assign]

    async def talk(client: ServiceClient) -> None:
        with pytest.raises(TransientError):
            await client.list_records("imp", 1)

    place.ask(talk)
    assert LIMIT_S <= sum(place.clock.slept) <= LIMIT_S + 10


def test_the_moment_since_when_it_is_silent_is_that_of_the_first_failure(caplog: pytest.LogCaptureFixture) -> None:
    place = Place(lambda seen: http(503) if place.clock.at < 1030 else None)
    place.ask(many)
    [line] = [record for record in caplog.records if vars(record)["event"] == "service.silent"]
    assert datetime.fromisoformat(vars(line)["since"]) == NOW + timedelta(seconds=1000)
    assert "(it answered 503); waiting up to 90 s for it." in line.getMessage()
