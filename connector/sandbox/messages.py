"""Define a request and its reply as plain values, so that the service can be called with or without sockets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit


@dataclass(frozen=True, slots=True)
class Request:
    """A client's request. Names in `headers` may be in any case."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @classmethod
    def of(cls, method: str, url: str, *, token: str | None = None, body: Any = None) -> Request:
        """Build one from a URL (its host is ignored), a bearer token and a body that becomes JSON."""
        parts = urlsplit(url)
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        content = b""
        if body is not None:
            headers["content-type"] = "application/json"
            content = json.dumps(body).encode()
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        return cls(method, unquote(parts.path), query, headers, content)

    def header(self, name: str) -> str | None:
        wanted = name.lower()
        return next((value for key, value in self.headers.items() if key.lower() == wanted), None)


@dataclass(frozen=True, slots=True)
class Response:
    """The service's reply, and the fault of its connection.

    `delay_s` is the delay before anything is sent. With `fault="reset"` nothing is sent at all; with `fault="cut"`
    the headers promise the whole `body` and half of it arrives.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    fault: Literal["reset", "cut"] | None = None
    delay_s: float = 0.0

    def json(self) -> Any:
        return json.loads(self.body)


def json_response(status: int, text: str, **headers: str) -> Response:
    """Return a JSON text as a response; lone surrogates in it are sent as they are, for clients to handle."""
    named = {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
    return Response(status, named, text.encode("utf-8", "surrogatepass"))


def error_response(status: int, code: str, message: str, **headers: str) -> Response:
    return json_response(status, json.dumps({"error": code, "message": message}), **headers)


def html_response(status: int, title: str, **headers: str) -> Response:
    """Return what a proxy in front of a service replies, whatever the client accepts."""
    page = f"<html><head><title>{title}</title></head><body><h1>{title}</h1></body></html>\n"
    named = {"content-type": "text/html; charset=utf-8", **{k.replace("_", "-"): v for k, v in headers.items()}}
    return Response(status, named, page.encode())
