"""A server that takes down what is posted to it, and the command's fixtures."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.cli.conftest import command, service

__all__ = ["command", "service"]


@dataclass
class Posted:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Listener:
    """What came in; `status` and `location` say how it answers, and it answers once `may_answer` is set."""

    port: int = 0
    status: int = 200
    location: str | None = None
    may_answer: threading.Event = field(default_factory=threading.Event)
    posts: list[Posted] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture
def listener() -> Iterator[Listener]:
    listening = Listener()
    listening.may_answer.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            listening.posts.append(Posted(self.path, dict(self.headers.items()), body))
            listening.may_answer.wait(60)
            self.send_response(listening.status)
            self.send_header("Content-Length", "0")
            if listening.location is not None:
                self.send_header("Location", listening.location)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Not on the terminal."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    listening.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield listening
    listening.may_answer.set()
    server.shutdown()
    server.server_close()
    thread.join()
