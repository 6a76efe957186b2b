"""One synced warehouse for all tests of the folder; each gets its own copy to break."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import dlt
import duckdb
import pytest
from dlt.pipeline.pipeline import Pipeline

from connector.maintain.doctor import DoctorReport, doctor
from connector.maintain.verify import verify
from connector.run.sync import sync
from connector.sandbox import Service, serve
from connector.settings import Settings


class Place:
    """A warehouse and its service."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "warehouse.duckdb"
        self.service = Service(seed=3)
        self.service.add_import("orders", [{"n": n} for n in range(5)])
        self.service.add_import("orders", [{"n": n} for n in range(3)])
        self.service.add_import("people", [{"name": "Ada"}])
        self.orders, self.more_orders, self.people = self.service.slugs()

    def pipeline(self, file: Path | None = None) -> Pipeline:
        return dlt.pipeline(
            "importer",
            destination=dlt.destinations.duckdb(str(file or self.file)),
            dataset_name="importer_data",
            pipelines_dir=str(self.folder / "pipelines"),
        )

    def sync(self) -> str:
        with serve(self.service) as url:
            tally = sync(self.pipeline(), Settings.load(base_url=url, access_token=self.service.token))
        return tally.status.value if tally.fatal is None else str(tally.fatal)

    def is_equal(self) -> bool:
        with serve(self.service) as url:
            made = Settings.load(base_url=url, access_token=self.service.token)
            return verify(self.pipeline(), made, True).exit_code == 0

    def doctor(self, *, repair: bool = False) -> DoctorReport:
        return doctor(self.pipeline(), repair=repair)

    def kinds(self) -> list[str]:
        return sorted(finding.kind for finding in self.doctor().findings)

    def execute(self, sql: str, *args: Any) -> list[tuple[Any, ...]]:
        with duckdb.connect(str(self.file)) as connection:
            connection.execute("USE importer_data")
            return connection.execute(sql, args).fetchall()


@pytest.fixture(scope="session")
def synced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("patient")
    place = Place(folder)
    assert place.sync() == "succeeded"
    return folder


@pytest.fixture
def place(synced: Path, tmp_path: Path) -> Place:
    shutil.copytree(synced, tmp_path / "patient")
    return Place(tmp_path / "patient")
