"""`check --destination-deep`: proves what holds, and notices what does not."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import Any

import duckdb
import pytest

from connector.cli import conformance
from connector.cli.conformance import prove
from connector.run.sync import sync
from connector.warehouse import destination
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
    monkeypatch.setattr(destination, "PROVEN", ())
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
