"""A merge that ends halfway changes nothing: dlt's own jobs delete first and insert then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import dlt
import pytest
from dlt.destinations import duckdb, postgres

from connector.sandbox import Service, serve
from connector.warehouse.destination import prepare_for_loading

from .conftest import Warehouse, service_token
from .test_guarantees import assert_equal

pytestmark = pytest.mark.thorough

CHILD = """
import os, signal, sys
import dlt
from dlt.destinations.impl.duckdb.sql_client import DuckDbSqlClient
from connector import importer_source
from connector.settings import Settings
from connector.run.sync import sync

folder, url, token, table, how = sys.argv[1:]

def one_by_one(client, statements, *args, **kwargs):
    for n, statement in enumerate(statements):
        if n == 1 and statements[0].startswith("DELETE") and f'"{table}" as d' in statements[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        client.execute_sql(statement)

DuckDbSqlClient.execute_many = one_by_one
destination = dlt.destinations.duckdb(f"{folder}/warehouse.duckdb")
pipeline = dlt.pipeline(
    "importer", destination=destination, dataset_name="importer_data", pipelines_dir=f"{folder}/pipelines"
)
if how == "sync":
    sync(pipeline, Settings.load(base_url=url, access_token=token))
else:
    pipeline.run(importer_source(base_url=url, access_token=token))
"""


@pytest.mark.parametrize("how", ["sync", "dlt alone"])
@pytest.mark.parametrize("table", ["sync_fields", "sync_imports"])
def test_a_run_killed_between_delete_and_insert_loses_no_row(warehouse: Warehouse, table: str, how: str) -> None:
    """Without its rows in `sync_fields`, another key could get the column of an import that is not read again."""
    service = Service(seed=1)
    service.add_import("T", [{"A": "upper", "only_here": 5}])
    changing = service.add_import("T", [{"A": "other"}])
    assert warehouse.run(service).status == "succeeded"
    rows = f"SELECT * FROM {table} ORDER BY ALL"
    before = warehouse.query(rows)
    service.append_rows(changing, [{"a": "lower"}])

    with serve(service) as url:
        arguments = [str(warehouse.folder), url, service_token(service), table, how]
        killed = subprocess.run([sys.executable, "-c", CHILD, *arguments], capture_output=True, timeout=60, check=False)
    assert killed.returncode == -9, killed.stderr

    assert warehouse.query(rows) == before
    assert warehouse.run(service).status == "succeeded"
    assert_equal(service, warehouse)
    fields = warehouse.query("SELECT path, value_count FROM sync_fields WHERE table_name = 'records_t' ORDER BY path")
    assert fields == [("A", 2), ("a", 1), ("only_here", 1)]


@pytest.mark.parametrize("kind", [duckdb, postgres])
def test_what_somebody_says_of_transactions_stays(tmp_path: Path, kind: type[duckdb] | type[postgres]) -> None:
    said = {}
    for name, given in (("nothing", {}), ("no", {"supports_transactions": False})):
        pipeline = dlt.pipeline(name, destination=kind(**given), pipelines_dir=str(tmp_path))  # type: ignore[arg-type]
        prepare_for_loading(pipeline)
        assert pipeline.destination is not None
        said[name] = pipeline.destination.capabilities().supports_transactions
    assert said == {"nothing": True, "no": False}
