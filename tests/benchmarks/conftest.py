"""A sync in this process against the fixture server in another, with every statement to the warehouse on record."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import dlt
import duckdb
import pytest
from dlt.destinations.impl.duckdb.sql_client import DuckDbSqlClient

from connector.run.sync import sync
from connector.runs import Tally
from connector.settings import Settings
from tests.benchmarks.fixture import TOKEN, Served

# What asks something of the warehouse; session settings come with every connection and cost nothing.
STATEMENT = re.compile(
    r"(SELECT|WITH|INSERT|DELETE|UPDATE|MERGE|CREATE|ALTER|DROP|TRUNCATE|COPY|BEGIN|COMMIT|CHECKPOINT|DESCRIBE)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Ran:
    """What one run did, as it says itself, as the server saw it, and as DuckDB logged it."""

    tally: Tally
    asked: dict[str, Any]
    sql: tuple[str, ...]

    @property
    def statements(self) -> int:
        return len(self.sql)


@dataclass(slots=True)
class Desk:
    """One warehouse and runs into it; DuckDB itself writes down every statement of every connection."""

    folder: Path

    def run(self, service: Served, **settings: Any) -> Ran:
        pipeline = dlt.pipeline(
            "importer",
            destination=dlt.destinations.duckdb(str(self.folder / "warehouse.duckdb")),
            dataset_name="importer_data",
            pipelines_dir=str(self.folder / "pipelines"),
        )
        service.reset()
        with statements(self.folder / "statements") as logged:
            tally = sync(pipeline, Settings.load(base_url=service.url, access_token=TOKEN, **settings))
        return Ran(tally, service.stats(), logged())

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with duckdb.connect(str(self.folder / "warehouse.duckdb"), read_only=True) as connection:
            return connection.execute(sql).fetchall()


@contextmanager
def statements(folder: Path) -> Iterator[Callable[[], tuple[str, ...]]]:
    """Has every connection, of dlt and of ours, log into a file of its own; yields what was logged."""
    open_connection = DuckDbSqlClient.open_connection
    folder.mkdir(exist_ok=True)
    for log in folder.iterdir():
        log.unlink()
    numbers = count()

    def open_and_log(self: DuckDbSqlClient) -> duckdb.DuckDBPyConnection:
        connection = open_connection(self)
        connection.execute(f"SET log_query_path = '{folder / str(next(numbers))}'")
        return connection

    def logged() -> tuple[str, ...]:
        lines = (line for log in folder.iterdir() for line in log.read_text().splitlines())
        return tuple(line for line in lines if STATEMENT.match(line))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DuckDbSqlClient, "open_connection", open_and_log)
        yield logged


@pytest.fixture
def make_desk(tmp_path: Path) -> Callable[[str], Desk]:
    def make(name: str) -> Desk:
        folder = tmp_path / name
        folder.mkdir()
        return Desk(folder)

    return make


@pytest.fixture
def desk(make_desk: Callable[[str], Desk]) -> Desk:
    return make_desk("desk")
