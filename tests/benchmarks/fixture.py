"""Starting the fixture server in a process of its own, and asking it what it saw."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from tests.benchmarks.workload import Shape

ROOT = Path(__file__).parents[2]
TOKEN = "benchmark"


@dataclass(frozen=True, slots=True)
class Served:
    """A running server; `url` is what a client takes for the service."""

    url: str
    port: int
    shape: Shape

    def stats(self) -> dict[str, Any]:
        """What was asked since the start or the last reset."""
        return self._control("stats")

    def reset(self) -> None:
        self._control("reset")

    def touch(self, imports: int) -> None:
        """Moves `updated_at` of that many imports."""
        self._control(f"touch?imports={imports}")

    def _control(self, what: str) -> dict[str, Any]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", f"/__{what}")
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
            return answer
        finally:
            connection.close()


@contextmanager
def served(shape: Shape, **manners: float) -> Iterator[Served]:
    """`manners` are the server's options: latency_ms, rate, burst, retry_after."""
    options = {**asdict(shape), "token": TOKEN, **manners}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    program = [sys.executable, "-m", "tests.benchmarks.server", *words]
    with subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = json.loads(process.stdout.readline())
            yield Served(address["url"], address["port"], shape)
        finally:
            process.kill()
