"""Kill the real command, over real sockets into a real file, `--kills` times, and then check the warehouse."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import psycopg2
import pytest
from psycopg2.extras import RealDictCursor, register_default_json, register_default_jsonb

from connector.sandbox import Request, serve
from connector.settings import Settings
from connector.warehouse.adapters.delta_log import DeltaLog
from connector.warehouse.adapters.folder_store import FolderStore
from connector.warehouse.adapters.lake import Lake
from connector.warehouse.adapters.lake_log import Log
from connector.warehouse.adapters.parquet_log import ParquetLog
from connector.warehouse.adapters.s3_store import S3Store
from connector.warehouse.s3_address import S3Address
from tests.processes import Process, start
from tests.simulation.edits import random_edit
from tests.simulation.holdings import DATASET, Holdings
from tests.simulation.oracle import Ran, check_equal, check_run, check_versions, require
from tests.simulation.scenario import add_import
from tests.simulation.watching import Watch
from tests.simulation.world import PatchyService
from tests.support.mariadb import MariaDB, mariadb_server
from tests.support.s3_server import s3, s3_endpoint
from tests.types.conftest import postgres_uri

__all__ = ["mariadb_server", "postgres_uri", "s3", "s3_endpoint"]

pytestmark = pytest.mark.thorough

TEMPLATES = ["customers", "orders", "stock"]
PATIENCE_S = 30.0


class File:
    """A DuckDB file."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "warehouse.duckdb"
        self.address = f"duckdb:///{self._file}"

    def holdings(self) -> Holdings:
        if not self._file.exists():
            return Holdings()
        with duckdb.connect(str(self._file)) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            return Holdings.of(connection)


class Server:
    """A database of a PostgreSQL."""

    def __init__(self, uri: str, name: str) -> None:
        with closing(psycopg2.connect(uri)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            cursor.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            cursor.execute(f"CREATE DATABASE {name}")
        self.address = uri.removesuffix("postgres") + name

    def holdings(self) -> Holdings:
        with closing(psycopg2.connect(self.address, cursor_factory=RealDictCursor)) as connection:
            for register in (register_default_json, register_default_jsonb):
                register(connection, loads=str)
            with connection.cursor() as cursor:
                cursor.execute("SET TimeZone = 'UTC'")
                return Holdings.of_postgres(cursor)


class Light:
    """A SQLite file."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "warehouse.db"
        self.address = f"sqlite:///{self._file}"

    def holdings(self) -> Holdings:
        if not self._file.exists():
            return Holdings()
        with closing(sqlite3.connect(self._file)) as connection:
            return Holdings.of_sqlite(connection)


class Files:
    """A folder of Delta tables or of plain Parquet, or plain Parquet in S3."""

    def __init__(self, address: str, open_log: Callable[[], Log]) -> None:
        self.address, self._open_log = address, open_log

    @classmethod
    def of(cls, kind: str, folder: Path, request: pytest.FixtureRequest) -> Files:
        lake = folder / "lake"
        if kind == "delta":
            return cls(f"delta:///{lake}", lambda: DeltaLog(lake / DATASET))
        if kind == "parquet":
            return cls(f"filesystem:///{lake}", lambda: ParquetLog(FolderStore(lake / DATASET)))
        address = str(request.getfixturevalue("s3"))
        return cls(address, lambda: ParquetLog(S3Store(S3Address.of(address), DATASET)))

    def holdings(self) -> Holdings:
        """Return what a run begins with: it completes a commit in which one was killed."""
        log = self._open_log()
        log.complete()
        lake = Lake(log, DATASET)
        connection = lake.connect()
        return Holdings.of(connection) if lake.exists else Holdings()


class Maria:
    """A database of a MariaDB."""

    def __init__(self, server: MariaDB) -> None:
        self._server = server
        self.address = server.address
        server.drop("importer_data", "importer_data_staging")

    def holdings(self) -> Holdings:
        with closing(self._server.session()) as session, session.cursor() as cursor:
            return Holdings.of_mysql(cursor)


Kept = File | Server | Light | Files | Maria


class Rounds:
    """A service that is edited during requests, and the command, which is started and killed."""

    def __init__(self, folder: Path, warehouse: Kept, seed: int) -> None:
        self.folder = folder
        self.warehouse = warehouse
        self.dice = Random(seed)
        self.tears = Random(f"torn files {seed}")
        self.service = PatchyService(seed)
        for _ in range(8):
            add_import(self.service, self.dice, TEMPLATES)
        self.watch = Watch(self.service)
        self.watch.look()
        self.requests: list[Request] = []
        self.service.on_request = self._between_requests
        self.restless = True

    def _between_requests(self, request: Request) -> None:
        self.requests.append(request)
        if self.restless and self.dice.random() < 0.05:
            self.watch.edit(lambda: random_edit(self.service, self.dice))

    def start(self, url: str, *more: str) -> Process:
        self.requests.clear()
        environment = {
            **os.environ,
            "SOURCES__IMPORTER__BASE_URL": url,
            "SOURCES__IMPORTER__ACCESS_TOKEN": self.service.token,
            "SOURCES__IMPORTER__BATCH_ROWS": "150",
            "SOURCES__IMPORTER__HISTORY": "true",
            "DLT_DATA_DIR": str(self.folder / "dlt"),
        }
        command = ["--to", self.warehouse.address, "--json", "run", *more]
        return start(command, cwd=self.folder, env=environment)

    def kill_one(self, url: str) -> bool:
        """Kill a run at some time after its first request; return whether it was still alive."""
        process = self.start(url)
        deadline = time.monotonic() + PATIENCE_S
        while not self.requests and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(self.dice.uniform(0, 1.2))
        alive = process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate()
        return alive

    def round(self, url: str) -> bool:
        for _ in range(self.dice.choice((0, 2, 6))):
            self.watch.edit(lambda: random_edit(self.service, self.dice))
        if self.dice.random() < 0.2:
            shutil.rmtree(self.folder / "dlt", ignore_errors=True)
        before = self.warehouse.holdings()
        self.watch.begin()
        killed = self.kill_one(url)
        check_run(self._ran(before), self.watch)
        self._tear_a_file()
        return killed

    def _tear_a_file(self) -> None:
        """As a power cut does: dlt renames its files into place without waiting for the disk."""
        files = sorted(path for path in (self.folder / "dlt").rglob("*") if path.is_file())
        if files and self.tears.random() < 0.5:
            torn = self.tears.choice(files)
            whole = torn.read_bytes()
            torn.write_bytes(whole[: self.tears.randrange(len(whole) + 1)])

    def in_peace(self, url: str, *more: str, timeout_s: float = 60) -> tuple[dict[str, Any], Ran]:
        before = self.warehouse.holdings()
        self.watch.begin()
        process = self.start(url, *more)
        out, err = process.communicate(timeout=timeout_s)
        require(out, "the command says how it went", process.returncode, err[-2000:])
        return json.loads(out), self._ran(before, allow_mass_delete="--allow-mass-delete" in more)

    def _ran(self, before: Holdings, *, allow_mass_delete: bool = False) -> Ran:
        settings = Settings.load(base_url="https://service.example", access_token="x")
        return Ran(before, self.warehouse.holdings(), None, True, settings, allow_mass_delete)


def _empty(kind: str, folder: Path, request: pytest.FixtureRequest) -> Kept:
    if kind == "postgres":
        return Server(request.getfixturevalue("postgres_uri"), "killed")
    if kind == "mysql":
        return Maria(request.getfixturevalue("mariadb_server"))
    if kind in ("delta", "parquet", "s3"):
        return Files.of(kind, folder, request)
    return Light(folder) if kind == "sqlite" else File(folder)


@pytest.mark.parametrize(
    "kind",
    [
        "duckdb",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("postgres", "sqlite", "mysql", "delta", "parquet", "s3")
        ),
    ],
)
def test_a_command_killed_again_and_again_ends_equal_to_the_service(
    kind: str, tmp_path: Path, pytestconfig: pytest.Config, request: pytest.FixtureRequest
) -> None:
    kills: int = pytestconfig.getoption("--kills")
    rounds = Rounds(tmp_path, _empty(kind, tmp_path, request), seed=1)
    with serve(rounds.service) as url:
        killed = sum(rounds.round(url) for _ in range(kills))
        rounds.restless = False
        for slug in rounds.service.slugs():
            rounds.service.set_row_count(slug, None)
            rounds.service.set_status(slug, "completed")
        told, ran = rounds.in_peace(url, "--allow-mass-delete")
        asked = list(rounds.requests)
        _again, idle = rounds.in_peace(url)

    assert killed >= kills / 3, "most runs were over before they were killed, so little was shown"
    spoiled = any(truth.spoiled for truth in rounds.watch.truth.values())
    assert told["status"] == ("partial" if spoiled else "succeeded"), told
    check_equal(ran, rounds.watch)
    assert asked
    assert not [request for request in rounds.requests if request.path.endswith("/records")]
    assert idle.before.without_runs() == idle.after.without_runs()
    assert idle.before.versions == idle.after.versions
    assert "imports_history" in idle.after.versions
    check_versions(idle.after)
    statuses = [row["status"] for row in idle.after.of_table("sync_runs")]
    assert "running" not in statuses
    assert statuses.count("failed") <= killed
