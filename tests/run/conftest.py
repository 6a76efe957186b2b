"""A pipeline into a DuckDB file of the test's own, and a run of the whole sync against a sandbox."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import dlt
import duckdb
import pytest
from dlt.pipeline.pipeline import Pipeline

from connector.load.dlt_bridge import LoadPackage, load_package
from connector.load.pending_packages import guard_loads
from connector.run.sync import sync
from connector.runs import Tally
from connector.sandbox import Service, serve
from connector.settings import RunScope, Settings
from connector.warehouse import Warehouse as Opened
from connector.warehouse.state import load_state


class Warehouse:
    """One DuckDB file, its pipeline, and queries on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "warehouse.duckdb"

    def pipeline(self) -> Pipeline:
        return dlt.pipeline(
            "importer",
            destination=dlt.destinations.duckdb(str(self.file)),
            dataset_name="importer_data",
            pipelines_dir=str(self.folder / "pipelines"),
        )

    def run(
        self,
        service: Service,
        scope: RunScope | None = None,
        stop: Callable[[], int | None] = lambda: None,
        load: LoadPackage = load_package,
        **settings: Any,
    ) -> Tally:
        with serve(service) as url:
            made = Settings.load(base_url=url, access_token=service_token(service), **settings)
            return sync(self.pipeline(), made, scope, stop=stop, load=load)

    def needs_audit(self) -> bool:
        """Return whether the next run would check all rows."""
        with Opened(self.pipeline()).connect() as connection:
            return load_state(connection).audited

    def load_unguarded(self) -> None:
        """Load pending packages as a process does that has not imported the source."""
        guard_loads()  # otherwise there is nothing to undo
        with mock.patch.object(Pipeline, "_load", vars(Pipeline)["_load"].__wrapped__):
            self.pipeline().load()

    @contextmanager
    def connect(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with duckdb.connect(str(self.file), read_only=True) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute("USE importer_data")
            yield connection

    def query(self, sql: str, *args: Any) -> list[tuple[Any, ...]]:
        with self.connect() as connection:
            return connection.execute(sql, args).fetchall()

    def rows(self, sql: str, *args: Any) -> list[dict[str, Any]]:
        with self.connect() as connection:
            cursor = connection.execute(sql, args)
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def service_token(service: Service) -> str:
    return str(service.token)


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(tmp_path)


@pytest.fixture
def make_warehouse(tmp_path: Path) -> Callable[[str], Warehouse]:
    def make(name: str) -> Warehouse:
        folder = tmp_path / name
        folder.mkdir()
        return Warehouse(folder)

    return make
