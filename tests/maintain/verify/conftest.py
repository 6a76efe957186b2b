"""One synced warehouse for all tests of the folder; each gets its own copy of the file, to spoil as it likes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dlt
import duckdb
import pytest
from dlt.pipeline.pipeline import Pipeline

from connector.maintain.verify import VerifyReport, verify
from connector.run.sync import sync
from connector.sandbox import Service, serve
from connector.settings import RunScope, Settings

ROWS = [
    {"name": "Ada", "score": 1, "when": "2024-01-01", "deep": {"a": 1, "b": [1, 2]}},
    {"name": "Bob", "score": 2.5, "when": "2024-02-01", "deep": {"a": None}},
    {"name": 7, "score": 3, "when": "", "deep": {}},
    {"name": "Cy\u0000n", "score": 12345678901234567890, "when": None},
]


def make_service() -> Service:
    """The same data every time, for the sandbox is seeded."""
    service = Service(seed=11)
    service.add_generated("customers", imports=2, rows=130)
    service.add_import("mixed", ROWS, metadata={"source": "hand", "size": 4})
    service.add_import(None, [{"free": True}])
    service.add_import("empty", [])
    return service


def pipeline_at(folder: Path) -> Pipeline:
    return dlt.pipeline(
        "importer",
        destination=dlt.destinations.duckdb(str(folder / "warehouse.duckdb")),
        dataset_name="importer_data",
        pipelines_dir=str(folder / "pipelines"),
    )


class Place:
    """A warehouse and a service that began equal."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.service = make_service()

    def verify(self, deep: bool = False, **settings: Any) -> VerifyReport:
        with serve(self.service) as url:
            made = Settings.load(base_url=url, access_token=self.service.token, **settings)
            report = verify(pipeline_at(self.folder), made, deep)
        json.dumps(report.as_json())
        return report

    def sync(self, scope: RunScope | None = None, **settings: Any) -> str:
        with serve(self.service) as url:
            made = Settings.load(base_url=url, access_token=self.service.token, **settings)
            tally = sync(pipeline_at(self.folder), made, scope)
            return tally.error or "succeeded" if tally.status != "partial" else "partial"

    def execute(self, sql: str, *args: Any) -> list[tuple[Any, ...]]:
        with duckdb.connect(str(self.folder / "warehouse.duckdb")) as connection:
            connection.execute("USE importer_data")
            return connection.execute(sql, args).fetchall()

    def imports_of(self, template: str) -> list[str]:
        return [i["slug"] for i in self.service.imports() if (i.get("template") or {}).get("name") == template]


@pytest.fixture(scope="session")
def synced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("synced")
    assert Place(folder).sync() == "succeeded"
    return folder


@pytest.fixture
def place(synced: Path, tmp_path: Path) -> Place:
    shutil.copytree(synced, tmp_path / "place")
    return Place(tmp_path / "place")


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[[str], Place]:
    def make(name: str) -> Place:
        (tmp_path / name).mkdir()
        return Place(tmp_path / name)

    return make
