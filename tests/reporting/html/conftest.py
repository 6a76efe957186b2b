"""A warehouse with one of everything that can be wrong, synced from a sandbox, and a browser to look at its page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import psycopg2
import pytest

from connector.reporting import html
from connector.reporting.html import Facts
from connector.sandbox import Faults, Service
from connector.warehouse import Warehouse as Reading
from tests.types.conftest import DuckDB, PostgreSQL, Warehouse, duck, make_warehouse, postgres_uri, warehouse

__all__ = ["duck", "make_warehouse", "postgres_uri", "warehouse"]

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
FIRST_DAY = datetime(2026, 10, 1, 8, tzinfo=UTC)
ENDS_SCRIPTS = '</script><img src="https://leak.example/x" onerror="document.title=\'broken\'"> & <!-- "quoted"'
TURNED = "invoice \u202etxt.exe"
LONG = "n" * 300
FIELD = 'it\'s "quoted" 🙂 <b>'
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
REQUIRED = bool(os.environ.get("CI")) or os.environ.get("IMPORTER_BROWSER") == "required"


class Calendar:
    """The sandbox's clock: a day passes with each edit."""

    def __init__(self) -> None:
        self._now = FIRST_DAY

    def __call__(self) -> datetime:
        self._now += timedelta(days=1)
        return self._now


@dataclass(frozen=True)
class Troubled:
    """Which import has which trouble."""

    failed: str
    unreconciled: str
    rejecting: str
    unfinished: str


def sound_service() -> Service:
    service = Service(seed=7, clock=Calendar())
    service.add_generated("customers", imports=2, rows=30)
    service.add_generated("orders", imports=1, rows=12)
    return service


def add_troubles(service: Service) -> Troubled:
    for name in (ENDS_SCRIPTS, TURNED, LONG):
        service.add_import(name, [{FIELD: 1, "</script>": None, "": True}, {FIELD: "two"}])
    troubled = Troubled(
        failed=service.add_generated("orders", imports=1, rows=5)[0],
        unreconciled=service.add_generated("customers", imports=1, rows=10)[0],
        rejecting=service.add_import("rejects", [{"ok": 1}, "[1, 2]"]),
        unfinished=service.add_import(None, [{"free": 1}], status="submitting"),
    )
    service.set_row_count(troubled.unreconciled, 12)
    service.faults = Faults(failing_imports={troubled.failed})
    return troubled


def facts_of(warehouse: Warehouse, now: datetime = NOW) -> Facts:
    return html.gather(Reading(warehouse.pipeline()), "a warehouse", warehouse.dataset, now)


def execute(warehouse: Warehouse, sql: str, *args: Any) -> None:
    """Changes the warehouse behind the connector's back."""
    if isinstance(warehouse, DuckDB):
        with duckdb.connect(str(warehouse.file)) as connection:
            connection.execute(f"SET TimeZone = 'UTC'; USE {warehouse.dataset}")
            connection.execute(sql.replace("%s", "?"), args)
        return
    assert isinstance(warehouse, PostgreSQL)
    with closing(psycopg2.connect(warehouse.uri)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(f"SET search_path = {warehouse.dataset}")
        cursor.execute(sql, args or None)


@pytest.fixture(scope="session")
def troubled_template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, Troubled]:
    """Synced once: two runs, the second of them partial."""
    synced = DuckDB(tmp_path_factory.mktemp("troubled"))
    service = sound_service()
    assert synced.run(service).status == "succeeded"
    troubled = add_troubles(service)
    assert synced.run(service).status == "partial"
    return synced.folder, synced.dataset, troubled


@pytest.fixture
def troubled(troubled_template: tuple[Path, str, Troubled], tmp_path: Path) -> tuple[Warehouse, Troubled]:
    """A copy, to spoil as the test likes."""
    folder, dataset, which = troubled_template
    shutil.copytree(folder, tmp_path / "troubled")
    copy = DuckDB(tmp_path / "troubled")
    copy.dataset = dataset
    return copy, which


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """While it is open an event loop runs in this thread: no other module's tests may see that."""
    if CHROMIUM is None:
        message = "there is no chromium here: apt-get install chromium"
        pytest.fail(message) if REQUIRED else pytest.skip(message)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()
