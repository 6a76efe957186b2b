"""The token goes to the service in one header, and nowhere else."""

from __future__ import annotations

import asyncio
import logging
import pickle
import traceback

import pytest

from connector.errors import ConfigError, ConnectorError
from connector.service.client import ServiceClient
from tests.service.conftest import TOKEN, Ask
from tests.service.hostile import Reply, gzipped, hostile, http, page, row

ENDINGS = {
    "401": http(401, f"bad token {TOKEN}"),
    "404": http(404, TOKEN),
    "422": http(422, TOKEN),
    "500": http(500, TOKEN),
    "429": http(429, TOKEN, [("Retry-After", "100")]),
    "redirect": http(302, "", [("Location", f"http://127.0.0.1:9/?{TOKEN}")]),
    "reset": Reply(b"", "reset"),
    "close": Reply(b"", "close"),
    "cut": Reply(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", "close"),
    "gzip": gzipped(b"{}", cut=2),
    "garbage": http(200, TOKEN),
    "not HTTP": Reply(TOKEN.encode() + b"\r\n\r\n", "close"),
    "wrong header": Reply(f"HTTP/1.1 200 OK\r\n{TOKEN}\r\n\r\n".encode(), "close"),
}


def everything_said(error: BaseException) -> str:
    said = ["".join(traceback.format_exception(error)), repr(error), str(error), repr(error.__dict__)]
    others = (error.__cause__, error.__context__)
    return "\n".join([*said, *(everything_said(other) for other in others if other is not None)])


@pytest.mark.parametrize("reply", ENDINGS.values(), ids=ENDINGS.keys())
@pytest.mark.parametrize("endpoint", ["records", "session"])
def test_no_error_and_no_log_line_shows_the_token(
    ask: Ask, caplog: pytest.LogCaptureFixture, reply: Reply, endpoint: str
) -> None:
    caplog.set_level(logging.DEBUG)
    asked = {
        "records": lambda client: client.list_records("imp", 3),
        "session": lambda client: client.create_session("s", None),
    }
    answer = ask([reply], asked[endpoint])
    assert isinstance(answer.error, ConnectorError)
    assert answer.error.__cause__ is None
    assert answer.error.__context__ is None
    assert TOKEN not in everything_said(answer.error)
    assert TOKEN not in caplog.text
    assert TOKEN.encode() not in pickle.dumps(answer.error)
    assert answer.service.seen[0].headers["authorization"] == f"Bearer {TOKEN}"


def test_the_client_does_not_show_it() -> None:
    client = ServiceClient("http://127.0.0.1:1", TOKEN)
    assert TOKEN not in repr(client) + str(client) + repr(vars(client))


def test_success_logs_one_line_without_it(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "connector.service.client")
    ask([http(503), page(row())])
    lines = [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.name == "connector.service.client"
    ]
    assert [level for level, _ in lines] == ["WARNING", "DEBUG"]
    assert lines[0][1].startswith(
        "GET /imports/imp/records page 3: the service answered 503 (attempt 1); trying again in"
    )


@pytest.mark.parametrize("token", ["", " ", "secret\r\nX-Evil: 1", "secret token", "secret-ü"])
def test_a_token_that_can_not_be_sent_is_refused_without_showing_it(token: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServiceClient("http://127.0.0.1:1", token)
    assert "secret" not in everything_said(caught.value)


def test_a_trailing_line_end_is_not_part_of_it() -> None:
    async def run() -> str:
        async with hostile([page()]) as service, ServiceClient(service.url, TOKEN + "\n") as client:
            await client.list_imports(1)
            return service.seen[0].headers["authorization"]

    assert asyncio.run(run()) == f"Bearer {TOKEN}"
