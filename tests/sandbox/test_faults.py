"""Faults: how often they strike, and what an HTTP client sees of them over a real connection."""

from __future__ import annotations

import asyncio
import gzip
import socket
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import SimpleNamespace

import httpx
import pytest

from connector.sandbox import Faults, Request, Service, Switches, make_app, serve, server

IMPORTS = "/api/v1/imports"


@pytest.fixture(scope="module")
def served():
    service = Service(seed=9)
    service.add_generated("orders", imports=3, rows=120)
    with serve(service) as base_url:
        assert service.base_url == base_url
        yield service
    assert service.base_url is None


@pytest.fixture
def client(served):
    served.faults, served.switches = Faults(), Switches()
    with httpx.Client(base_url=served.base_url, headers={"Authorization": "Bearer sandbox-token"}) as client:
        yield client
    served.faults, served.switches = Faults(), Switches()


def test_all_endpoints_over_a_socket(served, client):
    listed = client.get(IMPORTS, params={"page": 1, "per_page": 2}).json()["data"]
    assert listed == served.imports()[:2]
    slug = listed[0]["slug"]
    assert client.get(f"{IMPORTS}/{slug}").json() == listed[0]
    records = client.get(f"{IMPORTS}/{slug}/records", params={"per_page": 100}).json()["data"]
    assert records == list(served.records(slug))[:100]
    made = client.post("/api/v1/importer/sessions", json={"importer_slug": "demo", "metadata": {"ü": "ß"}})
    assert (made.status_code, set(made.json())) == (201, {"token"})
    assert client.get(IMPORTS, headers={"Authorization": "Bearer x"}).status_code == 401
    assert client.get("/elsewhere").status_code == 404
    assert client.put(IMPORTS).status_code == 405
    assert client.get(f"{IMPORTS}?page=%00&status=a+b%26c").status_code == 422


def test_reset(served, client):
    served.faults = Faults(reset=1.0)
    with pytest.raises(httpx.ReadError, match="reset by peer"):
        client.get(IMPORTS)
    served.faults = Faults()
    assert client.get(IMPORTS).status_code == 200


@pytest.mark.parametrize("packed", [False, True])
def test_cut(served, client, packed):
    served.faults, served.switches = Faults(cut=1.0), Switches(gzip=packed)
    with pytest.raises(httpx.RemoteProtocolError, match="without sending complete message body"):
        client.get(f"{IMPORTS}/{served.slugs()[0]}/records")
    served.faults = Faults()
    assert client.get(IMPORTS).status_code == 200


def test_cut_while_the_body_is_read(served, client):
    served.faults = Faults(cut=1.0)
    parts: list[bytes] = []
    with client.stream("GET", f"{IMPORTS}/{served.slugs()[0]}/records?per_page=100") as reply:
        assert reply.status_code == 200
        promised = int(reply.headers["content-length"])
        with pytest.raises(httpx.RemoteProtocolError):
            parts.extend(reply.iter_raw())
    assert sum(map(len, parts)) == promised // 2


def test_html_with_status_200(served, client):
    served.faults = Faults(html_200=1.0)
    reply = client.get(IMPORTS)
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/html")
    assert reply.text.startswith("<html>")


def test_server_errors_are_html_of_all_three_kinds(served, client):
    served.faults = Faults(server_error=1.0)
    replies = [client.get(IMPORTS) for _ in range(30)]
    assert {reply.status_code for reply in replies} == {500, 502, 503}
    assert all(reply.text.startswith("<html>") for reply in replies)


def test_retry_after_in_all_forms(served, client):
    def retry_after(form):
        served.faults = Faults(rate_limited=1.0, retry_after=form, retry_after_s=7)
        reply = client.get(IMPORTS)
        assert (reply.status_code, reply.json()["error"]) == (429, "rate_limited")
        return reply.headers.get("retry-after")

    assert retry_after("seconds") == "7"
    assert retry_after("zero") == "0"
    assert retry_after("missing") is None
    wait_s = (parsedate_to_datetime(retry_after("date")) - datetime.now(UTC)).total_seconds()
    assert 5 < wait_s <= 8
    mixed = [retry_after("mixed") for _ in range(40)]
    assert {"7", "0", None} < set(mixed)
    assert any(value and value.endswith("GMT") for value in mixed)


def test_latency_does_not_hold_up_others(served, client, monkeypatch):
    """No delay ends before all four requests are delayed at once."""
    slept = []
    together = asyncio.Barrier(4)

    async def sleep(seconds):
        slept.append(seconds)
        await together.wait()

    monkeypatch.setattr(server, "asyncio", SimpleNamespace(sleep=sleep))
    served.faults = Faults(latency=(0.15, 0.16))
    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda page: client.get(IMPORTS, params={"page": page}, timeout=60), range(1, 5)))
    assert all(reply.status_code == 200 for reply in replies)
    assert len(slept) == 4
    assert all(0.15 <= seconds <= 0.16 for seconds in slept)


def test_gzip_over_a_socket(served, client):
    plain = client.get(IMPORTS).content
    served.switches = Switches(gzip=True)
    with client.stream("GET", IMPORTS) as reply:
        packed = b"".join(reply.iter_raw())
    assert reply.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed) == plain


def test_an_import_that_always_fails(served, client):
    bad, good, _ = served.slugs()
    served.faults = Faults(failing_imports={bad}, max_consecutive=1)
    assert [client.get(f"{IMPORTS}/{bad}/records").status_code for _ in range(4)] == [500] * 4
    assert client.get(f"{IMPORTS}/{bad}").status_code == 200
    assert client.get(f"{IMPORTS}/{good}/records").status_code == 200


def test_an_import_that_is_listed_and_answers_404(served, client):
    lost, good, _ = served.slugs()
    served.faults = Faults(misrouted_imports={lost})
    assert lost in {row["slug"] for row in client.get(IMPORTS).json()["data"]}
    assert client.get(f"{IMPORTS}/{lost}").status_code == 404
    assert client.get(f"{IMPORTS}/{lost}/records").status_code == 200
    assert client.get(f"{IMPORTS}/{good}").status_code == 200


def test_serving_stops_without_waiting_for_clients_to_leave(monkeypatch):
    """The server may wait as long as it likes for connections to close, and this one stays open."""
    made = server._server

    def patient(service):
        patient_server = made(service)
        patient_server.config.timeout_graceful_shutdown = None
        return patient_server

    monkeypatch.setattr(server, "_server", patient)
    monkeypatch.setattr(server, "STOP_TIMEOUT_S", 60)
    service = Service()
    others = set(threading.enumerate())
    with httpx.Client() as client:
        with serve(service) as base_url:
            assert client.get(f"{base_url}{IMPORTS}").status_code == 401
            assert "sandbox" in {thread.name for thread in set(threading.enumerate()) - others}
        assert "sandbox" not in {thread.name for thread in set(threading.enumerate()) - others}
        with pytest.raises(httpx.ConnectError):
            client.get(f"{base_url}{IMPORTS}")


def test_two_services_at_once():
    one, two = Service(seed=1, token="one"), Service(seed=2, token="two")
    with serve(one) as first, serve(two) as second:
        assert first != second
        assert httpx.get(f"{first}{IMPORTS}", headers={"Authorization": "Bearer one"}).status_code == 200
        assert httpx.get(f"{second}{IMPORTS}", headers={"Authorization": "Bearer one"}).status_code == 401


def test_small_replies_come_at_once(client, monkeypatch):
    """The kernel would wait for an acknowledgement of the head before it sends each body."""
    without_delay = []
    send = server._send

    async def looked_at(reply, scope, *rest):
        peer = scope["state"][server.TRANSPORT].get_extra_info("socket")
        without_delay.append(peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        await send(reply, scope, *rest)

    monkeypatch.setattr(server, "_send", looked_at)
    assert client.get(IMPORTS).status_code == 200
    assert len(without_delay) == 1
    assert all(without_delay)


async def _ask_app(service):
    transport = httpx.ASGITransport(make_app(service))
    async with httpx.AsyncClient(transport=transport, base_url="http://sandbox") as client:
        return await client.get(IMPORTS, headers={"Authorization": "Bearer sandbox-token"})


def test_the_app_without_a_server():
    service = Service(seed=9)
    service.add_generated(imports=2)
    assert asyncio.run(_ask_app(service)).json()["data"] == service.imports()


def outcome(service, path):
    reply = service.handle(Request.of("GET", path, token="sandbox-token"))
    if reply.fault:
        return reply.fault
    if reply.status == 200 and reply.headers["content-type"].startswith("text/html"):
        return "html"
    return str(reply.status)


MANY = Faults(rate_limited=0.1, server_error=0.1, reset=0.1, cut=0.1, html_200=0.1)


def test_probabilities():
    service = Service(seed=9, faults=MANY)
    counts = Counter(outcome(service, f"{IMPORTS}?page={page}") for page in range(1, 2001))
    assert 900 < counts["200"] < 1100
    for kind in ("429", "reset", "cut", "html"):
        assert 140 < counts[kind] < 260
    assert 140 < counts["500"] + counts["502"] + counts["503"] < 260


def test_a_fault_depends_on_seed_url_and_visit_only():
    def visits(seed, noise):
        service = Service(seed=seed, faults=MANY)
        found = []
        for _ in range(30):
            found.append(outcome(service, f"{IMPORTS}?page=7"))
            for page in range(noise):
                outcome(service, f"{IMPORTS}?page={100 + page}")
        return found

    assert visits(1, 0) == visits(1, 3)
    assert visits(1, 0) != visits(2, 0)


def test_a_persistent_client_gets_through():
    service = Service(seed=9, faults=Faults(server_error=1.0, max_consecutive=3))
    seen = [outcome(service, IMPORTS) for _ in range(12)]
    assert [place for place, kind in enumerate(seen) if kind == "200"] == [3, 7, 11]


def test_latency_is_told_not_slept():
    service = Service(seed=9, faults=Faults(latency=(10, 20)))
    delays = {service.handle(Request.of("GET", IMPORTS)).delay_s for _ in range(20)}
    assert len(delays) == 20
    assert all(10 <= delay_s <= 20 for delay_s in delays)


def test_a_true_rate_limit():
    now = 100.0
    service = Service(faults=Faults(rate_limit_rps=2, rate_limit_burst=3), monotonic=lambda: now)
    assert [outcome(service, IMPORTS) for _ in range(5)] == ["200"] * 3 + ["429"] * 2
    refused = service.handle(Request.of("GET", IMPORTS, token="sandbox-token"))
    assert refused.headers["retry-after"] == "1"
    now += 0.5
    assert [outcome(service, IMPORTS) for _ in range(2)] == ["200", "429"]
    now += 60
    assert [outcome(service, IMPORTS) for _ in range(4)] == ["200"] * 3 + ["429"]


def test_probabilities_that_are_none():
    with pytest.raises(ValueError, match="probabilities"):
        Faults(reset=0.6, cut=0.6)
    with pytest.raises(ValueError, match="probabilities"):
        Faults(reset=-0.1)
