"""The command as a person or a scheduler starts it: a process of its own, in an empty directory, over real sockets."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pytest

from connector.sandbox import Service, serve
from tests.processes import Process, start

TOKEN = "very-secret-token-4711"
TIMEOUT_S = 120


@dataclass
class Ended:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Standard output as exactly one JSON document."""
        return json.loads(self.out)


@dataclass
class Command:
    directory: Path
    environment: dict[str, str]
    outputs: list[str] = field(default_factory=list)

    def start(self, *arguments: str, script: Path | None = None, **environment: str) -> Process:
        env = {**os.environ, **self.environment, **environment}
        return start(arguments, script=script, cwd=self.directory, env=env)

    def end(self, process: Process | subprocess.Popen[str], before: str = "") -> Ended:
        try:
            out, err = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
        self.outputs += [out, before + err]
        return Ended(process.wait(), out, before + err)

    def __call__(self, *arguments: str, script: Path | None = None, **environment: str) -> Ended:
        ended = self.end(self.start(*arguments, script=script, **environment))
        assert "Traceback" not in ended.err
        assert "leaked" not in ended.err
        return ended

    def rows(self, sql: str, file: str = "importer.duckdb") -> list[tuple[Any, ...]]:
        with duckdb.connect(str(self.directory / file), read_only=True) as connection:
            return connection.execute(sql).fetchall()


@pytest.fixture
def service() -> Service:
    service = Service(seed=1, token=TOKEN)
    service.add_generated("customers", imports=2, rows=120)
    service.add_generated("orders", imports=2, rows=60)
    return service


@pytest.fixture
def command(service: Service, tmp_path: Path) -> Iterator[Command]:
    """Configured for `service`; afterwards nothing that was printed or written may hold the token."""
    with serve(service) as url:
        command = Command(
            tmp_path,
            {
                "SOURCES__IMPORTER__BASE_URL": url,
                "SOURCES__IMPORTER__ACCESS_TOKEN": TOKEN,
                "DLT_DATA_DIR": str(tmp_path / "dlt"),
            },
        )
        yield command
    for output in command.outputs:
        assert TOKEN not in output
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert TOKEN.encode() not in path.read_bytes(), path
