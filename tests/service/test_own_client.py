"""A client of the user's own brings proxies, certificates and auth; what a reply counts as stays the same."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path

import dlt
import httpx
import pytest
from dlt.extract import DltSource

from connector import importer_source, sync, verify
from connector.errors import AuthError, ConfigError, ConnectorError, ContractError, TransientError
from connector.sandbox import Service, serve
from connector.service.own_client import OwnClient
from tests.run.conftest import service_token
from tests.service.conftest import TOKEN, Ask
from tests.service.hostile import Reply, gzipped, http
from tests.service.test_http import CUT, GOOD, NOT_BEGUN, WHOLE


def own() -> OwnClient:
    return OwnClient(httpx.AsyncClient)


@pytest.mark.parametrize("reply", [*CUT.values(), *NOT_BEGUN.values()], ids=[*CUT, *NOT_BEGUN])
def test_a_cut_reply_is_never_taken_for_a_whole_one(ask: Ask, reply: Reply) -> None:
    assert isinstance(ask([reply], transport=own()).error, TransientError)
    recovered = ask([reply, GOOD], transport=own())
    assert recovered.error is None
    assert recovered.value.size == 1


def test_a_packed_reply_is_read_whole(ask: Ask) -> None:
    answer = ask([gzipped(WHOLE)], transport=own())
    assert answer.error is None
    assert [record.data for record in answer.value.records] == [b'{"a":1}']
    assert answer.service.seen[0].headers["authorization"] == f"Bearer {TOKEN}"


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (http(401), AuthError),
        (http(302, "", [("Location", "http://127.0.0.1:1/elsewhere")]), ContractError),
        (http(500), TransientError),
        (Reply(b"SSH-2.0-OpenSSH\r\n\r\n", "close"), ContractError),
    ],
    ids=["401", "302", "500", "no HTTP"],
)
@pytest.mark.parametrize("raises", [False, True], ids=["no hook", "a hook that raises"])
def test_a_reply_ends_in_its_error(ask: Ask, reply: Reply, kind: type[ConnectorError], raises: bool) -> None:
    async def hook(response: httpx.Response) -> None:
        response.raise_for_status()

    hooks = {"response": [hook]} if raises else {}
    answer = ask([reply], transport=OwnClient(lambda: httpx.AsyncClient(event_hooks=hooks)))
    assert type(answer.error) is kind
    assert TOKEN not in repr(answer.error)
    assert (answer.error.__cause__, answer.error.__context__) == (None, None)


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (httpx.ReadTimeout("x"), "did not answer in time"),
        (httpx.ProxyError("x"), "the proxy of http_client refused"),
        (httpx.ConnectError("x"), "could not be reached (no connection)"),
    ],
)
def test_what_httpx_raises_is_said_in_words(ask: Ask, raised: Exception, words: str) -> None:
    def refuse(_: httpx.Request) -> httpx.Response:
        raise raised

    answer = ask([GOOD], transport=OwnClient(lambda: httpx.AsyncClient(transport=httpx.MockTransport(refuse))))
    assert isinstance(answer.error, TransientError)
    assert words in str(answer.error)


def test_a_certificate_that_is_not_trusted_is_said(ask: Ask) -> None:
    def refuse(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("x") from ssl.SSLCertVerificationError("x")

    answer = ask([GOOD], transport=OwnClient(lambda: httpx.AsyncClient(transport=httpx.MockTransport(refuse))))
    assert isinstance(answer.error, ConfigError)
    assert "certificate" in str(answer.error)


def test_what_is_no_client_is_refused(ask: Ask) -> None:
    answer = ask([GOOD], transport=OwnClient(httpx.Client))  # type: ignore[arg-type]
    assert isinstance(answer.error, ConfigError)
    assert "returned a Client" in str(answer.error)


class Signed(httpx.Auth):
    def auth_flow(self, request: httpx.Request) -> Iterator[httpx.Request]:  # type: ignore[override]
        request.headers["X-Signed"] = "yes"
        yield request


def test_each_run_asks_by_a_client_of_its_own_and_closes_it(tmp_path: Path) -> None:
    service = Service(seed=1)
    service.add_import("t", [{"n": n} for n in range(250)])
    made: list[httpx.AsyncClient] = []
    signed: list[bool] = []

    async def note(request: httpx.Request) -> None:
        signed.append("x-signed" in request.headers)
        await asyncio.sleep(0)

    def client() -> httpx.AsyncClient:
        made.append(httpx.AsyncClient(auth=Signed(), event_hooks={"request": [note]}))
        return made[-1]

    pipeline = dlt.pipeline(
        "importer",
        destination=dlt.destinations.duckdb(str(tmp_path / "w.duckdb")),
        dataset_name="data",
        pipelines_dir=str(tmp_path / "pipelines"),
    )
    with serve(service) as url:

        def source() -> DltSource:
            return importer_source(base_url=url, access_token=service_token(service), http_client=client)

        summary = sync(pipeline, source())
        assert (summary.status, summary.records_loaded) == ("succeeded", 250)
        assert verify(pipeline, source(), deep=True).equal
        pipeline.run(source())

    assert len(made) == 3
    assert all(each.is_closed for each in made)
    assert all(signed)
    assert len(signed) >= summary.requests
