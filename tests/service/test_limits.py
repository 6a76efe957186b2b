"""Each limit of the table, tripped over a real socket, and what is just within it."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import fields, replace
from typing import Any, TypeVar

import pytest

from connector.errors import ContractError, TooLargeError, TransientError
from connector.service.client import ServiceClient
from connector.service.decode import WrongShape, decode_import_page, decode_record_page
from connector.service.limits import LIMITS, QUICK_LIMITS, Limits
from connector.service.retry import QUICK
from tests.service.conftest import TOKEN, Ask, records
from tests.service.hostile import Reply, Seen, gzipped, http, page, row
from tests.service.test_http import GOOD, WHOLE, announced

F = TypeVar("F", bound=Callable[..., Any])
_tripped: set[str] = set()


def trips(*limits: str) -> Callable[[F], F]:
    _tripped.update(limits)
    return lambda test: test


def test_each_limit_has_a_test_that_trips_it() -> None:
    assert _tripped == {each.name for each in fields(Limits)}


BLANKS = b'{"data":[' + b" " * LIMITS.reply_bytes + b"]}"


@trips("reply_bytes")
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("listing", [False, True])
def test_a_reply_without_measure_is_refused(ask: Ask, packed: bool, listing: bool) -> None:
    reply = gzipped(BLANKS) if packed else http(200, BLANKS)
    answer = ask([reply], (lambda client: client.list_imports(1)) if listing else records)
    assert isinstance(answer.error, TooLargeError)
    assert "more than 32 MiB" in str(answer.error)
    assert len(answer.service.seen) == 1


@trips("short_reply_bytes")
def test_a_page_of_few_records_may_be_larger(ask: Ask) -> None:
    few = lambda client: client.list_records("imp", 1, 10)  # noqa: E731
    answer = ask([gzipped(BLANKS)], few)
    assert (answer.error, answer.value.size) == (None, 0)
    answer = ask([gzipped(BLANKS)], few, limits=replace(LIMITS, short_reply_bytes=LIMITS.reply_bytes))
    assert isinstance(answer.error, TooLargeError)


@trips("gzip_members")
def test_gzip_data_of_many_parts_is_refused(ask: Ask) -> None:
    for more, error in ((98, type(None)), (100, ContractError)):
        parts = gzip.compress(WHOLE) + gzip.compress(b" ") * more + gzip.compress(b"\n") + b"\0" * 100_000
        answer = ask([http(200, parts, [("Content-Encoding", "gzip")])])
        assert isinstance(answer.error, error)
    assert "gzip data of more than 100 parts" in str(answer.error)


@pytest.mark.parametrize("size", [1, 70_000, 200_000])
def test_parts_of_gzip_data_are_put_together_wherever_they_end(ask: Ask, size: int) -> None:
    body = b'{"data":[{"slug":"r","data":{"a":"' + bytes(range(97, 123)) * size + b'"}}]}'
    cuts = [0, 3, len(body) // 2, len(body) // 2 + 1, len(body)]
    parts = [gzip.compress(body[begin:end], 1) for begin, end in itertools.pairwise(cuts)]
    answer = ask(
        [http(200, b"".join(parts) + b"\0\0", [("Content-Encoding", "gzip")])], lambda c: c.list_records("i", 1, 1)
    )
    assert answer.error is None
    assert answer.value.records[0].data in body


@trips("elements")
@pytest.mark.parametrize("element", [row(), "1", "{}", '{"slug":"x","data":[1]}'])
@pytest.mark.parametrize("listing", [False, True])
def test_a_page_of_too_many_elements_is_of_the_wrong_shape(ask: Ask, element: str, listing: bool) -> None:
    question = (lambda client: client.list_imports(1)) if listing else records
    answer = ask([page(*[element] * 1_001)], question)
    assert isinstance(answer.error, ContractError)
    assert "more than 1,000 elements" in str(answer.error)
    answer = ask([page(*[element] * 1_000)], question)
    assert (answer.error, answer.value.size) == (None, 1_000)


@pytest.mark.parametrize("listing", [False, True])
def test_millions_of_elements_are_not_even_counted(listing: bool) -> None:
    body = b'{"data":[' + b"1," * 10_000_000 + b"1]}"
    with pytest.raises(WrongShape, match="more than 1,000 elements"):
        (decode_import_page if listing else decode_record_page)(body)


@trips("nesting")
@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_an_element_that_is_nested_without_end_is_set_aside_alone(ask: Ask, opening: str) -> None:
    def nested(levels: int) -> str:
        closing = "]" if opening == "[" else "}"
        return row("deep", '{"a":' + opening * levels + "1" + closing * levels + "}")

    within, beyond = (ask([page(nested(levels), row("beside"))]).value for levels in (99_998, 99_999))
    assert [record.slug for record in within.records] == ["deep", "beside"]
    assert [record.slug for record in beyond.records] == ["beside"]
    assert [(reject.record_slug, reject.reason) for reject in beyond.rejects] == [
        ("deep", "the record is nested deeper than 100,000 levels")
    ]


@contextmanager
def full_house() -> Iterator[str]:
    """The address of a host that lets nobody in: its queue of connections is full, and it takes none of them."""
    with ExitStack() as opened, socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(8):
            client = opened.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@trips("connect_s")
def test_a_host_that_lets_nobody_in_times_out(ask: Ask) -> None:
    async def talk(url: str) -> None:
        limits = replace(LIMITS, connect_s=0.05)
        async with ServiceClient(url, TOKEN, limits=limits, retry=QUICK, sleep=lambda _: asyncio.sleep(0)) as client:
            await client.list_records("imp", 1)

    with full_house() as url, pytest.raises(TransientError, match=r"did not answer in time at .* after 3 attempts"):
        asyncio.run(asyncio.wait_for(talk(url), 30))


@trips("silence_s")
@pytest.mark.parametrize("reply", [Reply(b"", "hang"), announced(99, WHOLE, "hang")], ids=["no head", "half a body"])
def test_a_reply_that_stops_times_out(ask: Ask, reply: Reply) -> None:
    answer = ask([reply], limits=replace(LIMITS, silence_s=0.05))
    assert isinstance(answer.error, TransientError)
    assert "did not answer in time" in str(answer.error)
    assert len(answer.service.seen) == 6


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
ENDLESS = {
    "body": replace(announced(9_999, b"", "keep"), drip=[b" "] * 9_999, pause_s=0.001),
    "head": Reply(b"HTTP/1.1 200 OK\r\nX: ", drip=[b"x"] * 5_000, pause_s=0.001),
    "continue": Reply(drip=[CONTINUE] * 9_999, pause_s=0.001),
}


@trips("attempt_s")
@pytest.mark.parametrize("reply", ENDLESS.values(), ids=ENDLESS.keys())
def test_a_reply_that_drips_for_ever_times_out(ask: Ask, reply: Reply) -> None:
    answer = ask([reply], limits=replace(LIMITS, attempt_s=0.1))
    assert isinstance(answer.error, TransientError)
    assert "did not answer in time" in str(answer.error)
    assert len(answer.service.seen) == 6


@trips("least_rate", "slow_start_s")
def test_a_body_that_is_too_slow_times_out_and_one_that_begins_slowly_does_not(ask: Ask) -> None:
    slow = replace(announced(len(WHOLE), b"", "keep"), drip=[bytes([byte]) for byte in WHOLE], pause_s=0.005)
    fast = 1_000_000
    answer = ask([slow], limits=replace(LIMITS, slow_start_s=0.05, least_rate=fast))
    assert isinstance(answer.error, TransientError)
    assert "sent less than 1,000,000 bytes a second at" in str(answer.error)
    assert len(answer.service.seen) == 6
    for within in ({"least_rate": fast}, {"slow_start_s": 0.05, "least_rate": 1}):
        answer = ask([slow], limits=replace(LIMITS, **within))
        assert (answer.error, answer.value.size) == (None, 1)


@trips("call_s")
@pytest.mark.parametrize(
    ("reply", "requests"), [(http(500), 4), (http(429, "", [("Retry-After", "20")]), 2)], ids=["errors", "429"]
)
def test_a_call_ends_when_its_time_is_over(ask: Ask, reply: Reply, requests: int) -> None:
    """By a clock that stands still but for pauses: those before the fifth and the third request would end past it."""
    call_s = 2.0 if requests == 4 else 30.0
    answer = ask([reply], limits=replace(LIMITS, call_s=call_s))
    assert isinstance(answer.error, TransientError)
    assert sum(answer.clock.slept) < call_s
    assert len(answer.service.seen) < 6
    assert ask([reply]).stats.requests > len(answer.service.seen)


def test_the_last_attempt_of_a_call_has_what_is_left_of_its_time(ask: Ask) -> None:
    answer = ask([Reply(b"", "hang")], limits=replace(LIMITS, call_s=0.1), monotonic=asyncio_clock)
    assert isinstance(answer.error, TransientError)
    assert "did not answer in time at GET /imports/imp/records page 3;" in str(answer.error)
    assert len(answer.service.seen) == 1


def asyncio_clock() -> float:
    return asyncio.get_running_loop().time()


@trips("in_flight_bytes")
def test_large_replies_take_turns_and_small_ones_pass(ask: Ask) -> None:
    """The first large reply hangs behind its share; the second is whole long before, and is read only then."""
    ended: list[str] = []
    limits = replace(LIMITS, in_flight_bytes=8_000, attempt_s=0.3)
    large = b'{"data":[' + b" " * 50_000 + b"]}"

    def script(seen: Seen) -> Reply:
        if "/small/" in seen.line:
            return GOOD
        hangs = "/hangs/" in seen.line and not ended
        return announced(len(large), large[:-1], "hang") if hangs else http(200, large)

    async def question(client: ServiceClient) -> None:
        async def one(slug: str) -> None:
            await client.list_records(slug, 1)
            ended.append(slug)

        hanging = asyncio.create_task(one("hangs"))
        while not client._memory.large.locked():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        await asyncio.gather(one("large"), one("small"), hanging)

    answer = ask(script, question, limits=limits, max_concurrency=4)
    assert answer.error is None
    assert ended[0] == "small"
    assert sorted(ended[1:]) == ["hangs", "large"]
    assert answer.stats.requests == 4


def test_replies_that_are_large_arrive_one_at_a_time() -> None:
    limits = replace(LIMITS, in_flight_bytes=8_000)
    held: dict[int, int] = {}
    most: list[int] = []

    class Content:
        def __init__(self, number: int) -> None:
            self.number = number

        async def iter_any(self) -> AsyncIterator[bytes]:
            for piece in (WHOLE[:9], b" " * 900, *[b" " * 500] * 20, WHOLE[9:]):
                held[self.number] = held.get(self.number, 0) + len(piece)
                most.append(sum(size > 1_500 for size in held.values()))
                yield piece
                await asyncio.sleep(0)
            del held[self.number]

    class Big:
        status = 200

        def __init__(self, number: int) -> None:
            self.headers: dict[str, str] = {}
            self.content = Content(number)

    class Transport:
        numbers = iter(range(100))

        @asynccontextmanager
        async def request(self, *_: Any, **__: Any) -> AsyncIterator[Big]:
            yield Big(next(self.numbers))

        async def close(self) -> None:
            pass

    async def talk() -> list[int]:
        async with ServiceClient("http://h", TOKEN, transport=Transport(), limits=limits) as client:
            return [found.size for found in await asyncio.gather(*(client.list_records("imp", n) for n in range(30)))]

    assert asyncio.run(asyncio.wait_for(talk(), 10)) == [1] * 30
    assert max(most) == 1


def test_whoever_waits_in_front_of_the_screen_waits_for_a_minute_at_most() -> None:
    assert (QUICK_LIMITS.attempt_s, QUICK_LIMITS.call_s) == (30, 60)
    assert replace(LIMITS, attempt_s=30.0, call_s=60.0) == QUICK_LIMITS
