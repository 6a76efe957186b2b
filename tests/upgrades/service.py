"""The service that the frozen warehouses were synced from: fixed imports, which no change of the sandbox touches.

It needs nothing but Python, for interpreters of earlier versions run it as well.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "frozen-token"
CUSTOMERS = {"slug": "t-customers", "name": "Customers"}
ORDERS = {"slug": "t-orders", "name": "Orders (2026)"}


@dataclass
class Import:
    slug: str
    template: dict[str, str] | None
    rows: list[dict[str, Any]]
    day: int
    status: str = "completed"
    metadata: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    def at(self) -> str:
        return f"2026-01-{self.day:02d}T08:00:00.123456Z"

    def shown(self) -> dict[str, Any]:
        return {
            "slug": self.slug,
            "row_count": len(self.rows),
            "created_at": "2026-01-01T08:00:00.000000Z",
            "updated_at": self.at(),
            "status": self.status,
            "metadata": self.metadata,
            "template": self.template,
            **self.extra,
        }

    def records(self) -> list[dict[str, Any]]:
        return [
            {
                "slug": f"{self.slug}-{n}",
                "sort": n,
                "created_at": "2026-01-01T08:00:00.000000Z",
                "updated_at": self.at(),
                "data": row,
            }
            for n, row in enumerate(self.rows)
        ]


def customers(first: int, count: int) -> list[dict[str, Any]]:
    numbers = range(first, first + count)
    return [{"Name": f"Ada {n}", "zip": f"{n:05d}", "age": n % 90, "Since": "2020-02-29"} for n in numbers]


def before() -> list[Import]:
    """What the service showed while the warehouse was written."""
    odd: list[dict[str, Any]] = [
        {"a": 1, "b": "x", "": "blank key", "größe (cm)": 12.5},
        {"a": 1.5, "b": 7, "nested": {"deep": {"deeper": {"deepest": [1, None]}}}},
        {"a": 9223372036854775808, "b": None, "nested": "no object"},
        {},
    ]
    return [
        Import("steady", CUSTOMERS, customers(0, 120), 2, metadata={"source": "crm", "n": 1}),
        Import("edited", CUSTOMERS, customers(200, 30), 3, metadata={"n": "one"}),
        Import("odd", ORDERS, odd, 4, metadata={"flag": True, "deep": {"k": [1]}}),
        Import("untemplated", None, [{"x": 1}, {"x": "two"}], 5),
        Import("unfinished", ORDERS, [{"a": n, "b": str(n)} for n in range(5)], 6, status="submitting"),
        Import("going", CUSTOMERS, customers(300, 10), 7),
        Import("empty", ORDERS, [], 8),
    ]


def between() -> list[Import]:
    """What it showed to a run that was killed while it replaced what had been loaded."""
    imports = before()
    imports[0].rows[5]["Name"] = "Edited for a while"
    imports[0].day = 8
    imports[1].rows = customers(500, 25)
    imports[1].day = 8
    return imports


def after() -> list[Import]:
    """What it shows to the version that takes over: one import changed, one is new, one is gone."""
    imports = [each for each in before() if each.slug != "going"]
    imports[1].rows[3]["Name"] = "Edited"
    imports[1].day = 9
    imports.append(Import("new", CUSTOMERS, customers(400, 20), 10, extra={"file_name": "new.xlsx"}))
    return imports


class Service:
    def __init__(self, imports: list[Import]) -> None:
        self.imports = imports
        self.read: list[str] = []  # whose records were asked for

    def answer(self, path: str, query: dict[str, list[str]]) -> tuple[int, Any]:
        page, size = int(query.get("page", ["1"])[0]), min(int(query.get("per_page", ["100"])[0]), 100)
        parts = path.removeprefix("/api/v1/imports").strip("/").split("/")
        if page < 1:
            return 422, {"error": "page"}
        if parts == [""]:
            return 200, {"data": [each.shown() for each in self.imports][(page - 1) * size : page * size]}
        found = next((each for each in self.imports if each.slug == parts[0]), None)
        if found is None:
            return 404, {"error": "not found"}
        if len(parts) == 1:
            return 200, found.shown()
        self.read.append(found.slug)
        return 200, {"metadata": found.metadata, "data": found.records()[(page - 1) * size : page * size]}


@contextmanager
def served(service: Service) -> Iterator[str]:
    """Serve on loopback and give the address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            status, document = service.answer(asked.path, parse_qs(asked.query))
            if self.headers["Authorization"] != f"Bearer {TOKEN}":
                status, document = 401, {"error": "token"}
            body = json.dumps(document, ensure_ascii=False).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
