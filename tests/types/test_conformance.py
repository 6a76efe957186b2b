"""`check --destination-deep`: proves what holds, and notices what does not."""

from __future__ import annotations

import argparse
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest

from connector.cli import conformance
from connector.cli.commands import check
from connector.cli.configuration import open_pipeline
from connector.cli.conformance import prove
from connector.run.sync import sync
from connector.warehouse import suitability
from connector.warehouse.lock import sole_writer
from connector.warehouse.unused_file import remove_unused_file
from tests.types.conftest import DuckDB, PostgreSQL, Warehouse
from tests.types.test_ours import execute


def options(warehouse: Warehouse) -> argparse.Namespace:
    to = f"duckdb://{warehouse.file}" if isinstance(warehouse, DuckDB) else getattr(warehouse, "uri", None)
    return argparse.Namespace(to=to, destination=None, dataset=warehouse.dataset, pipeline_name="importer")


def schemas(warehouse: Warehouse) -> list[Any]:
    found = warehouse.tuples("SELECT schema_name FROM information_schema.schemata")
    return [name for (name,) in found if name.startswith(conformance.DATASET)]


@pytest.mark.long
@pytest.mark.dialect
def test_every_guarantee_is_proven_and_nothing_is_left(warehouse: Warehouse) -> None:
    found = list(prove(options(warehouse)))

    assert [each.name for each in found if not each.proven] == []
    assert len(found) == 9
    if isinstance(warehouse, PostgreSQL):
        execute(warehouse, f"CREATE SCHEMA {warehouse.dataset}")
        assert schemas(warehouse) == []
    else:
        assert list(warehouse.folder.iterdir()) == []


def test_a_destination_that_nobody_has_proven_is_tried(duck: DuckDB, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suitability, "PROVEN", ())
    with closing(prove(options(duck))) as tried:
        assert next(iter(tried)).proven


def test_a_row_that_is_lost_is_noticed(duck: DuckDB, monkeypatch: pytest.MonkeyPatch) -> None:
    def losing(pipeline: Any, settings: Any, scope: Any) -> Any:
        ran = sync(pipeline, settings, scope)
        with pipeline.sql_client() as client:
            client.execute_sql("DELETE FROM records WHERE slug = (SELECT min(slug) FROM records)")
        return ran

    with duckdb.connect(str(duck.file)) as connection:
        connection.execute(f"CREATE SCHEMA {duck.dataset}")
    monkeypatch.setattr(conformance, "sync", losing)
    with closing(prove(options(duck))) as tried:
        found = next(iter(tried))
    assert (found.name, found.proven) == ("values", False)
    assert "differences between service and warehouse" in found.detail
    assert schemas(duck) == []
    assert [path.name for path in duck.folder.iterdir()] == [duck.file.name]


@pytest.mark.dialect
@pytest.mark.parametrize("kind", ["duckdb", "sqlite"])
@pytest.mark.parametrize("meanwhile", ["nothing", "a table", "a reader", "a run"])
def test_a_file_is_removed_only_if_nothing_came_into_it_and_nobody_uses_it(
    tmp_path: Path, kind: str, meanwhile: str
) -> None:
    file = tmp_path / "w.db"
    place = argparse.Namespace(
        to=f"{kind}:///{file}", destination=None, dataset="importer_data", pipeline_name="importer"
    )
    pipeline = open_pipeline(place)
    with ExitStack() as held:
        connection = held.enter_context(
            closing(duckdb.connect(str(file)) if kind == "duckdb" else sqlite3.connect(str(file)))
        )
        connection.execute("CREATE TABLE t (n INTEGER)")
        if meanwhile != "a table":
            connection.execute("DROP TABLE t")
        connection.close()
        if meanwhile == "a reader":
            held.enter_context(held_open(kind, file))
        if meanwhile == "a run":
            held.enter_context(sole_writer(pipeline))
        assert remove_unused_file(pipeline) == (meanwhile == "nothing")
        assert file.exists() == (meanwhile != "nothing")
    assert meanwhile != "nothing" or list(tmp_path.iterdir()) == []


@contextmanager
def held_open(kind: str, file: Path) -> Iterator[None]:
    """Another process has the file open, in SQLite within a transaction."""
    opened = {
        "duckdb": f"import duckdb; c = duckdb.connect({str(file)!r})",
        "sqlite": f"import sqlite3; c = sqlite3.connect({str(file)!r}); c.execute('BEGIN IMMEDIATE')",
    }
    program = f"{opened[kind]}; print('open', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield
        process.communicate("\n")


def test_a_warehouse_that_a_run_makes_meanwhile_stays(duck: DuckDB, monkeypatch: pytest.MonkeyPatch) -> None:
    def running(pipeline: Any) -> None:
        with duckdb.connect(str(duck.file)) as connection:
            connection.execute("CREATE TABLE loaded_meanwhile (n INTEGER)")

    monkeypatch.setattr(check, "_write_and_drop", running)
    assert check._destination(open_pipeline(options(duck))) is None
    with duckdb.connect(str(duck.file)) as connection:
        assert connection.execute("SELECT count(*) FROM loaded_meanwhile").fetchall() == [(0,)]
