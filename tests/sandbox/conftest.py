"""What the sandbox's tests share: asking a service without a socket, and reading a whole list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from connector.sandbox import Request, Response, Service

Ask = Callable[..., Response]
ReadAll = Callable[..., list[Any]]

TOKEN = "sandbox-token"


@pytest.fixture
def ask() -> Ask:
    def _ask(service: Service, path: str, method: str = "GET", body: Any = None) -> Response:
        return service.handle(Request.of(method, f"/api/v1{path}", token=TOKEN, body=body))

    return _ask


@pytest.fixture
def read_all(ask: Ask) -> ReadAll:
    """All pages of a list: goes on for a few pages after the first empty one."""

    def _read_all(service: Service, path: str, per_page: int = 7) -> list[Any]:
        found: list[Any] = []
        empty = page = 0
        while empty < 3:
            page += 1
            shown = ask(service, f"{path}?page={page}&per_page={per_page}").json()["data"]
            empty = 0 if shown else empty + 1
            found.extend(shown)
        return found

    return _read_all
