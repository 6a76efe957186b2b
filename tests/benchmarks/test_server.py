"""The fixture server itself: the same rows in pages of any size, and the manners it is asked for."""

from __future__ import annotations

import json
import socket
from http.client import HTTPConnection
from typing import Any

import pytest

from tests.benchmarks.fixture import TOKEN, Served, served
from tests.benchmarks.workload import Shape, Workload


def ask(service: Served, path: str, token: str = TOKEN) -> tuple[int, dict[str, str], Any]:
    connection = HTTPConnection("127.0.0.1", service.port, timeout=60)
    try:
        connection.request("GET", f"/api/v1/{path}", headers={"Authorization": f"Bearer {token}"})
        reply = connection.getresponse()
        return reply.status, dict(reply.getheaders()), json.loads(reply.read())
    finally:
        connection.close()


def rows_of(workload: Workload, slug: str, per_page: int) -> list[dict[str, Any]]:
    pages = range(1, workload.shape.rows // per_page + 2)
    return [row for page in pages for row in json.loads(workload.records(slug, page, per_page))["data"]]


@pytest.mark.parametrize("per_page", [1, 7, 99])
def test_rows_are_the_same_in_pages_of_any_size(per_page: int) -> None:
    workload = Workload(Shape(imports=2, rows=230))
    for slug in workload.by_slug:
        assert rows_of(workload, slug, per_page) == rows_of(workload, slug, 100)


def test_every_row_is_its_own() -> None:
    workload = Workload(Shape(imports=5, rows=2_130))
    rows = [row for slug in workload.by_slug for row in rows_of(workload, slug, 100)]
    assert len(rows) == workload.shape.total_rows
    assert len({row["slug"] for row in rows}) == len(rows)
    assert len({row["data"]["email"] for row in rows}) == len(rows)
    assert all(len(row["data"]) == 12 for row in rows)


def test_large_imports_stand_among_small_ones() -> None:
    workload = Workload(Shape(imports=30, rows=7, large=2, large_rows=230))
    listed = json.loads(workload.listing(1, 100))["data"]
    assert sorted(import_["row_count"] for import_ in listed) == [7] * 30 + [230] * 2
    slugs: list[str] = []
    for import_ in listed:
        pages = [json.loads(workload.records(import_["slug"], page, 100))["data"] for page in (1, 2, 3)]
        assert sum(map(len, pages)) == import_["row_count"]
        slugs += [row["slug"] for page in pages for row in page]
    assert len(set(slugs)) == len(slugs) == workload.shape.total_rows


def test_a_seed_makes_the_same_service_and_another_one_another() -> None:
    first, again, other = (Workload(Shape(imports=3, rows=10, seed=seed)).listing(1, 100) for seed in (1, 1, 2))
    assert first == again != other


def test_the_endpoints_answer_as_the_service_does() -> None:
    with served(Shape(imports=3, rows=120)) as service:
        _, _, listing = ask(service, "imports?page=1&per_page=2")
        slug = listing["data"][0]["slug"]
        assert len(listing["data"]) == 2
        assert ask(service, f"imports/{slug}")[2] == listing["data"][0]
        assert len(ask(service, f"imports/{slug}/records?page=2&per_page=100")[2]["data"]) == 20
        assert ask(service, f"imports/{slug}/records?page=3&per_page=100")[2]["data"] == []
        assert ask(service, "imports/nobody")[0] == ask(service, "nothing")[0] == 404
        assert ask(service, "imports", token="another")[0] == 401
        asked = service.stats()
        service.touch(1)
        assert ask(service, f"imports/{slug}")[2]["updated_at"] > listing["data"][0]["updated_at"]
    counted = {name: asked[name] for name in ("listing", "one_import", "records", "not_found", "unauthorized")}
    assert counted == {"listing": 1, "one_import": 1, "records": 2, "not_found": 2, "unauthorized": 1}
    assert asked["requests"] == 7


def test_what_comes_too_fast_is_refused() -> None:
    with served(Shape(imports=1, rows=1), rate=0.01, burst=3, retry_after=7) as service:
        replies = [ask(service, "imports") for _ in range(4)]
        assert [status for status, *_ in replies] == [200, 200, 200, 429]
        assert replies[-1][1]["Retry-After"] == "7"
        asked = service.stats()
    assert (asked["refused"], asked["listing"], asked["busiest_second"]) == (1, 3, 4)


def test_requests_sent_at_once_are_answered_in_order_and_late() -> None:
    shape = Shape(imports=2, rows=5)
    slugs = [import_.slug for import_ in Workload(shape).imports]
    requests = [f"GET /api/v1/imports/{s} HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n" for s in slugs]
    with served(shape, latency_ms=50) as service, socket.create_connection(("127.0.0.1", service.port)) as connection:
        text = "".join(requests).encode()
        connection.sendall(text[:90])
        connection.sendall(text[90:])
        received = b""
        while received.count(b"row_count") < 2:
            received += connection.recv(65_536)
        assert service.stats()["max_in_flight"] == 2, "neither was answered before both had come"
    assert received.index(slugs[0].encode()) < received.index(slugs[1].encode())
