"""What a service and the network can do to a request, over real sockets."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from connector.errors import (
    AuthError,
    ConfigError,
    ConnectorError,
    ContractError,
    NotFoundError,
    TransientError,
)
from connector.models import Session
from connector.service.client import ServiceClient
from connector.service.retry import QUICK, RetryPolicy
from tests.service.conftest import NOW, TOKEN, Ask
from tests.service.hostile import Reply, chunked, gzipped, hostile, http, import_row, page, row
from tests.simulation.virtual_time import Answered

GOOD = page(row())
WHOLE = b'{"data":[{"slug":"r1","data":{"a":1}}],"metadata":{}}'
HEAD = b"HTTP/1.1 200 OK\r\n"


def announced(size: int, body: bytes, then: str) -> Reply:
    return Reply(HEAD + b"Content-Length: %d\r\n\r\n" % size + body, then)


CUT = {
    "length": announced(len(WHOLE) + 50, WHOLE, "close"),
    "length, reset": announced(len(WHOLE) + 1, WHOLE, "reset"),
    "length, in the middle": announced(len(WHOLE), WHOLE[:20], "close"),
    "length, nothing": announced(len(WHOLE), b"", "close"),
    "length, only blanks missing": announced(len(WHOLE) + 2, WHOLE, "close"),
    "chunks without end": chunked(WHOLE, end=b"", then="close"),
    "chunks, end without its line": chunked(WHOLE, end=b"0\r\n", then="close"),
    "chunks, a bare zero": chunked(WHOLE, end=b"0", then="close"),
    "chunks, within one": chunked(WHOLE, end=b"ff\r\n ", then="close"),
    "chunks, reset": chunked(WHOLE, end=b"", then="reset"),
    "until close, in the middle": Reply(HEAD + b"\r\n" + WHOLE[:-9], "close"),
    "empty": http(200, b""),
    "blank": http(200, b" \n"),
    "no content": Reply(b"HTTP/1.1 204 No Content\r\n\r\n"),
    "gzip, trailer missing": gzipped(WHOLE, cut=8),
    "gzip, one byte missing": gzipped(WHOLE, cut=1),
    "gzip, in the middle": gzipped(WHOLE, cut=30),
    "gzip, junk after it": gzipped(WHOLE, tail=b"junk"),
    "gzip, chunks without end": chunked(
        gzip.compress(WHOLE), end=b"", headers="Content-Encoding: gzip\r\n", then="close"
    ),
}
NOT_BEGUN = {
    "head": Reply(HEAD + b"Content-Le", "close"),
    "nothing": Reply(b"", "close"),
    "reset": Reply(b"", "reset"),
}


@pytest.mark.parametrize("reply", CUT.values(), ids=CUT.keys())
def test_a_cut_reply_is_never_taken_for_a_whole_one(ask: Ask, reply: Reply) -> None:
    answer = ask([reply])
    assert isinstance(answer.error, TransientError)
    assert len(answer.service.seen) == answer.stats.requests == 6
    assert "GET /imports/imp/records page 3 after 6 attempts" in str(answer.error)
    recovered = ask([reply, GOOD])
    assert recovered.error is None
    assert recovered.value.size == 1


@pytest.mark.parametrize("reply", NOT_BEGUN.values(), ids=NOT_BEGUN.keys())
def test_a_reply_that_has_not_begun_is_never_taken_for_a_whole_one(ask: Ask, reply: Reply) -> None:
    answer = ask([reply])
    assert isinstance(answer.error, TransientError)
    recovered = ask([reply, GOOD])
    assert recovered.error is None
    assert (recovered.value.size, recovered.stats.requests) == (1, 2)


@pytest.mark.parametrize(
    "reply",
    [
        announced(len(WHOLE), WHOLE, "close"),
        chunked(WHOLE[:9], WHOLE[9:]),
        Reply(HEAD + b"\r\n" + WHOLE, "close"),
        gzipped(WHOLE),
        http(200, gzip.compress(WHOLE[:9]) + gzip.compress(WHOLE[9:]), [("Content-Encoding", "GZIP")]),
        http(200, b"\xef\xbb\xbf \n" + WHOLE + b"\n"),
        Reply(b"HTTP/1.0 200 OK\r\n\r\n" + WHOLE, "close"),
    ],
    ids=["length", "chunks", "until close", "gzip", "two gzip members", "BOM and blanks", "HTTP/1.0"],
)
def test_a_whole_reply_is_read_whatever_its_framing(ask: Ask, reply: Reply) -> None:
    answer = ask([reply])
    assert answer.error is None
    assert [record.data for record in answer.value.records] == [b'{"a":1}']
    assert answer.stats.requests == 1


@pytest.mark.parametrize(
    ("status", "kind", "requests"),
    [
        (401, AuthError, 1),
        (403, AuthError, 1),
        (404, NotFoundError, 1),
        (400, ContractError, 1),
        (422, ContractError, 1),
        (302, ContractError, 1),
        (206, ContractError, 1),
        (408, TransientError, 6),
        (425, TransientError, 6),
        (500, TransientError, 6),
        (501, TransientError, 6),
        (505, TransientError, 6),
    ],
)
def test_a_status_ends_in_its_error(ask: Ask, status: int, kind: type[ConnectorError], requests: int) -> None:
    answer = ask([http(status, '{"error":"no"}', [("Location", "http://127.0.0.1:1/elsewhere")])])
    assert type(answer.error) is kind
    assert len(answer.service.seen) == requests
    assert answer.stats.retries == requests - 1
    assert answer.error.status == status
    assert answer.error.page == 3
    assert answer.error.endpoint == "GET /imports/imp/records"
    tries = f" after {requests} attempts" if requests > 1 else ""
    assert str(answer.error).startswith(f"The service answered {status} to GET /imports/imp/records page 3{tries}; ")


def test_429_waits_as_told_in_both_forms_and_burns_no_attempts(ask: Ask) -> None:
    date = format_datetime(NOW + timedelta(seconds=5), usegmt=True)
    throttles = [http(429, "", [("Retry-After", "2")]), http(429, "", [("Retry-After", date)])]
    answer = ask([*throttles * 4, *[http(500)] * 5, GOOD])
    assert answer.error is None
    assert answer.stats.throttled == 8
    assert answer.clock.slept[:8] == pytest.approx([2, 5] * 4, abs=0.31)


def test_endless_429_ends_with_the_waiting_budget(ask: Ask) -> None:
    answer = ask([http(429, "", [("Retry-After", "60")])])
    assert isinstance(answer.error, TransientError)
    assert answer.error.status == 429
    assert sum(answer.clock.slept) <= 300
    assert len(answer.service.seen) == 5


@pytest.mark.parametrize(
    ("body", "requests", "words"),
    [
        ("<html>Sign in</html>", 3, "text/html"),
        ('{"data":[', 3, "not JSON"),
        ('{"data":[]}x', 3, "not JSON"),
        ('{"data":[1,,2]}', 3, "not JSON"),
        ("null", 1, "not an object"),
        ("[]", 1, "not an object"),
        ("{}", 1, "without data"),
        ('{"data":{}}', 1, "not a list"),
        ('{"data":null}', 1, "not a list"),  # often an error; as an empty page it could end a listing early
    ],
)
def test_a_reply_of_another_kind_breaks_the_contract(ask: Ask, body: str, requests: int, words: str) -> None:
    reply = http(200, body, [("Content-Type", "text/html; charset=utf-8")])
    answer = ask([reply])
    assert isinstance(answer.error, ContractError)
    assert words in str(answer.error)
    assert len(answer.service.seen) == requests
    if requests > 1:
        assert ask([reply, GOOD]).error is None


def test_what_is_not_http_breaks_the_contract(ask: Ask) -> None:
    answer = ask([Reply(b"SSH-2.0-OpenSSH\r\n\r\n", "close")])
    assert isinstance(answer.error, ContractError)
    assert len(answer.service.seen) == 3


def test_a_kept_connection_that_dies_is_retried_by_us_and_counted(ask: Ask) -> None:
    async def question(client: ServiceClient) -> None:
        for number in range(3):
            await client.list_records("imp", number)

    answer = ask([GOOD, Reply(b"", "close"), GOOD], question)
    assert answer.error is None
    assert len(answer.service.seen) == answer.stats.requests == 4
    assert answer.stats.retries == 1


def test_nobody_at_home() -> None:
    async def run(url: str) -> None:
        async def sleep(seconds: float) -> None:
            await asyncio.sleep(0)

        async with ServiceClient(url, TOKEN, sleep=sleep, retry=QUICK) as client:
            await client.get_import("x")

    async def free_port() -> str:
        async with hostile([GOOD]) as service:
            return service.url

    port = asyncio.run(free_port())
    with pytest.raises(
        TransientError, match=r"could not be reached \(connection refused\) at GET /imports/x after 3"
    ) as e:
        asyncio.run(run(port))
    assert "base_url may name the wrong host or port, or it may be down, try again later" in str(e.value)
    with pytest.raises(
        TransientError, match=r"\(the host name nosuch.invalid does not resolve\).*check how it is spelt"
    ):
        asyncio.run(run("https://nosuch.invalid"))


def test_a_dead_proxy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async def sleep(seconds: float) -> None:
            await asyncio.sleep(0)

        async with ServiceClient("https://service.example", TOKEN, sleep=sleep, retry=QUICK) as client:
            await client.get_import("x")

    for name in ("NO_PROXY", "no_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://ana:pass-word-12@127.0.0.1:9")
    words = r"\(the proxy 127.0.0.1:9 of the environment: connection refused\) .*check HTTPS_PROXY"
    with pytest.raises(TransientError, match=words) as raised:
        asyncio.run(run())
    assert "pass-word-12" not in str(raised.value)


@pytest.mark.parametrize(
    ("suffix", "path"),
    [
        ("", "/api/v1/imports"),
        ("/", "/api/v1/imports"),
        ("/api/v1", "/api/v1/imports"),
        ("/api/v1/", "/api/v1/imports"),
        ("/pre/fix//", "/pre/fix/api/v1/imports"),
        ("/pre/api/v1", "/pre/api/v1/imports"),
    ],
)
def test_the_prefix_is_added_once(suffix: str, path: str) -> None:
    async def run() -> str:
        async with hostile([page()]) as service, ServiceClient(service.url + suffix, TOKEN) as client:
            await client.list_imports(2, 50, status="a b&c")
            assert service.seen[0].headers["authorization"] == f"Bearer {TOKEN}"
            assert service.seen[0].headers["cache-control"] == "no-cache"
            return service.seen[0].line

    assert asyncio.run(run()) == f"GET {path}?page=2&per_page=50&status=a%20b%26c HTTP/1.1"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "service.example",
        "ftp://h",
        "http://",
        "//h",
        "http://h:port",
        "http://h:99999",
        "http://a b",
        "http://h\tx",
        "http://xn--a",
        "http://u:pw@h",
        "http://h?x=1",
        "http://h#x",
    ],
)
def test_an_address_that_can_not_be_used_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServiceClient(url, TOKEN)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize(
    ("slug", "path"),
    [("a/b", "a%2Fb"), ("a b?c#d", "a%20b%3Fc%23d"), ("ü", "%C3%BC"), ("a%2Fb", "a%252Fb"), ("a+b", "a%2Bb")],
)
def test_slugs_stay_one_segment(ask: Ask, slug: str, path: str) -> None:
    answer = ask([http(200, import_row())], lambda client: client.get_import(slug))
    assert answer.service.seen[0].line == f"GET /api/v1/imports/{path} HTTP/1.1"


@pytest.mark.parametrize("slug", ["", ".", ".."])
def test_slugs_that_would_change_the_path_are_not_sent(ask: Ask, slug: str) -> None:
    answer = ask([http(200, import_row())], lambda client: client.list_records(slug, 1))
    assert isinstance(answer.error, ConfigError)
    assert answer.service.seen == []


def test_cookies_are_not_kept() -> None:
    async def run() -> list[dict[str, str]]:
        async with hostile([http(200, WHOLE, [("Set-Cookie", "a=b; Path=/")])]) as service:
            # a name, since an address in numbers gets no cookies anyway
            async with ServiceClient(service.url.replace("127.0.0.1", "localhost"), TOKEN) as client:
                await client.list_records("imp", 1)
                await client.list_records("imp", 2)
            return [seen.headers for seen in service.seen]

    assert [headers.get("cookie") for headers in asyncio.run(run())] == [None, None]


@pytest.mark.parametrize("stray", [b"HTTP/1.1 408 Late\r\nContent-Length: 0\r\n\r\n", page(row("stray")).wire])
def test_a_reply_that_nobody_asked_for_is_not_taken_for_the_next_one(stray: bytes) -> None:
    """It comes while the connection is kept for the next request."""

    async def run() -> tuple[list[str], int]:
        replies = [Reply(page(row("first")).wire, drip=[b"", stray], pause_s=0.05), page(row("second"))]
        async with hostile(replies) as service, ServiceClient(service.url, TOKEN, max_concurrency=1) as client:
            first = await client.list_records("a", 1)
            await asyncio.sleep(0.3)
            second = await client.list_records("b", 1)
            return [record.slug for record in (*first.records, *second.records)], client.stats.retries

    assert asyncio.run(run()) == (["first", "second"], 0)


def test_a_length_that_does_not_fit_is_noticed_under_any_transport(ask: Ask) -> None:
    lengths = ["99", str(len(WHOLE))]

    class Transport:
        @asynccontextmanager
        async def request(self, *_: Any, **__: Any) -> AsyncIterator[Answered]:
            yield Answered(200, {"content-length": lengths.pop(0)}, WHOLE)

        async def close(self) -> None:
            pass

    answer = ask([GOOD], transport=Transport())
    assert answer.value.size == 1
    assert answer.stats.retries == 1


@pytest.mark.parametrize(("bypass", "reached"), [("", True), ("service.invalid", False)])
def test_a_proxy_from_the_environment_is_used(monkeypatch: pytest.MonkeyPatch, bypass: str, reached: bool) -> None:
    async def run() -> list[str]:
        async with hostile([GOOD]) as proxy:
            monkeypatch.setenv("http_proxy", proxy.url)
            monkeypatch.setenv("no_proxy", bypass)
            policy = RetryPolicy(error_attempts=1, outage_s=0)
            async with ServiceClient("http://service.invalid", TOKEN, retry=policy) as client:
                with suppress(TransientError):
                    await client.list_records("imp", 1)
            return [seen.line for seen in proxy.seen]

    line = "GET http://service.invalid/api/v1/imports/imp/records?page=1&per_page=100 HTTP/1.1"
    assert asyncio.run(run()) == ([line] if reached else [])


def session(client: ServiceClient) -> Awaitable[Session]:
    return client.create_session("my-slug", {"a": [1, "ü"]})


@pytest.mark.parametrize("status", [200, 201])
def test_a_session_is_created(ask: Ask, status: int) -> None:
    answer = ask([http(429), http(503), http(status, '{"token":"jwt-1","more":1}')], session)
    assert answer.value.token.get_secret_value() == "jwt-1"
    assert "jwt-1" not in repr(answer.value) + str(answer.value)
    assert answer.service.seen[0].line == "POST /api/v1/importer/sessions HTTP/1.1"
    assert answer.service.seen[0].headers["content-type"] == "application/json"
    assert json.loads(answer.service.seen[2].body) == {"importer_slug": "my-slug", "metadata": {"a": [1, "ü"]}}


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (http(401), AuthError),
        (http(404), NotFoundError),
        (http(422), ContractError),
        (http(500), TransientError),
        (http(504), TransientError),
        (Reply(b"", "reset"), TransientError),
        (Reply(b"", "close"), TransientError),
        (announced(99, b'{"token":"x"}', "close"), TransientError),
        (http(201, ""), TransientError),
        (http(201, "<html>"), ContractError),
        (http(201, "{}"), ContractError),
        (http(201, '{"token":7}'), ContractError),
        (http(201, '{"token":""}'), ContractError),
    ],
)
def test_a_session_is_asked_for_once(ask: Ask, reply: Reply, kind: type[ConnectorError]) -> None:
    answer = ask([reply], session)
    assert type(answer.error) is kind
    assert len(answer.service.seen) == answer.stats.requests == 1


def test_a_session_over_a_dying_kept_connection_is_not_sent_twice(ask: Ask) -> None:
    async def question(client: ServiceClient) -> None:
        await client.list_records("imp", 1)
        await session(client)

    answer = ask([GOOD, Reply(b"", "close")], question)
    assert isinstance(answer.error, TransientError)
    assert [seen.line[:4] for seen in answer.service.seen] == ["GET ", "POST"]


def test_metadata_that_is_not_json_is_refused(ask: Ask) -> None:
    answer = ask([GOOD], lambda client: client.create_session("s", {"a": float("nan")}))
    assert isinstance(answer.error, ConfigError)
    assert answer.service.seen == []


def test_counters(ask: Ask) -> None:
    async def question(client: ServiceClient) -> None:
        await client.list_records("imp", 1)
        await client.list_records("imp", 2)

    answer = ask([http(500), GOOD], question)
    assert answer.stats.by_endpoint == {"list_records": 3}
    assert answer.stats.bytes_received == 2 * len(WHOLE)


def test_a_client_is_used_within_its_context() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        asyncio.run(ServiceClient("http://h", TOKEN).get_import("x"))
