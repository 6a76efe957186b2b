"""What `sync_fields` counts after a run that died between the tables of one package."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pytest

from connector import importer_source
from connector.maintain.rebuild import rebuild
from connector.run.ports import Ports
from connector.run.sync import sync
from connector.sandbox import Service, serve
from connector.settings import Settings
from connector.transform import width
from connector.transform.width import Width

from .conftest import Warehouse, service_token

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("stays", [0, 1], ids=["the table is empty now", "another import is left in it"])
def test_a_table_is_counted_anew_that_a_crashed_run_took_rows_out_of(warehouse: Warehouse, stays: int) -> None:
    """Of all tables of its package, the crashed run merged every one but `sync_fields`."""
    service = Service(seed=1)
    moved = service.add_import("t", [{"n": 1}, {"n": None}])
    for _ in range(stays):
        service.add_import("t", [{"n": 3}])
    assert warehouse.run(service).status == "succeeded"
    fields = "SELECT * FROM importer_data.sync_fields WHERE table_name = 'records_t'"
    with duckdb.connect(str(warehouse.file)) as connection:
        connection.execute(f"CREATE TABLE main.before AS {fields}")
    service.set_template(moved, "u")
    [load] = warehouse.run(service).load_ids
    with duckdb.connect(str(warehouse.file)) as connection:
        connection.execute("USE importer_data")
        connection.execute("DELETE FROM sync_fields WHERE table_name = 'records_t'")
        connection.execute("INSERT INTO sync_fields BY NAME FROM main.before")
        connection.execute("DELETE FROM _dlt_loads WHERE load_id = ?", [load])
        connection.execute("UPDATE sync_runs SET status = 'running' WHERE load_ids LIKE ?", [f"%{load}%"])

    assert warehouse.run(service).status == "succeeded"

    counts = "SELECT value_count, null_count FROM sync_fields WHERE table_name = ? AND path = 'n'"
    assert warehouse.query(counts, "records_t") == [(stays, 0)]
    assert warehouse.query(counts, "records_u") == [(1, 1)]


def test_counts_that_the_ledger_contradicts_are_not_added_to(warehouse: Warehouse) -> None:
    service = Service(seed=1)
    slug = service.add_import("t", [{"n": 1}])
    service.add_import("t", [{"n": 2}, {"n": None}])
    assert warehouse.run(service).status == "succeeded"
    with duckdb.connect(str(warehouse.file)) as connection:
        connection.execute("UPDATE importer_data.sync_fields SET null_count = 0 WHERE table_name = 'records_t'")
    service.append_rows(slug, [{"n": 3}])

    assert warehouse.run(service).status == "succeeded"

    counts = "SELECT value_count, null_count FROM sync_fields WHERE table_name = 'records_t' AND path = 'n'"
    assert warehouse.query(counts) == [(3, 1)]


@pytest.mark.parametrize("rebuilds", [False, True])
def test_a_field_that_no_row_has_any_more_was_last_seen_when_one_had_it(warehouse: Warehouse, rebuilds: bool) -> None:
    service = Service(seed=1)
    slug = service.add_import("t", [{"n": 1, "gone": "x"}])
    warehouse.run(service)
    seen = "SELECT path, last_seen_at FROM sync_fields WHERE table_name = 'records_t' ORDER BY path"
    [gone, n] = warehouse.query(seen)
    for number in (2, 3):
        [record] = service.record_slugs(slug)
        service.edit_row(slug, record, {"n": number})
        assert warehouse.run(service).status == "succeeded"
    if rebuilds:
        rebuild(warehouse.pipeline(), Settings.load(base_url="http://localhost", access_token="unused"))

    [still_gone, again] = warehouse.query(seen)
    assert still_gone == gone
    assert again[1] > n[1]


@pytest.mark.parametrize("value", [None, 7])
def test_values_are_counted_by_keys_beside_a_column_called_as_positions_are(
    warehouse: Warehouse, value: int | None
) -> None:
    """Where a column has that name, DuckDB takes `rowid` for the column."""
    service = Service(seed=1)
    service.add_import("t", [{"rowid": 7, "n": 0}])
    edited = service.add_import("t", [{"rowid": value, "n": 1}, {"rowid": value, "n": 2}])
    warehouse.run(service)
    [record, _] = service.record_slugs(edited)
    service.edit_row(edited, record, {"rowid": value, "n": 3})

    assert warehouse.run(service).status == "succeeded"

    counts = warehouse.query("SELECT path, value_count, null_count FROM sync_fields WHERE table_name = 'records_t'")
    filled = 1 + 2 * (value is not None)
    assert sorted(counts) == [("n", 3, 0), ("rowid", filled, 3 - filled)]


def test_a_rebuilt_table_is_counted_anew_after_a_crash_though_nothing_is_loaded_into_it(warehouse: Warehouse) -> None:
    """dlt does not know a table from its rebuild on until rows are loaded into it."""
    service = Service(seed=1)
    service.add_import("t", [{"n": 1}, {"n": None}])
    torn = service.add_import("u", [{"n": 1}, {"n": 2}])
    assert warehouse.run(service).status == "succeeded"
    rebuild(warehouse.pipeline(), Settings.load(base_url="https://service.example", access_token="x"), ["records_t"])
    with duckdb.connect(str(warehouse.file)) as connection:
        connection.execute("USE importer_data")
        connection.execute("DELETE FROM records_u WHERE _import_slug = ? AND n = 1", [torn])
        connection.execute("UPDATE sync_fields SET value_count = 7 WHERE table_name = 'records_t'")
        connection.execute("UPDATE sync_runs SET status = 'running'")

    assert warehouse.run(service).status == "succeeded"

    counts = "SELECT table_name, value_count, null_count FROM sync_fields WHERE path = 'n' ORDER BY 1"
    assert warehouse.query(counts) == [("records_t", 1, 1), ("records_u", 2, 0)]


@pytest.mark.parametrize("gone", ["excluded", "failed"])
def test_a_table_is_counted_anew_whose_rows_a_crashed_run_removed_with_an_import_that_was_not_synced(
    warehouse: Warehouse, gone: str
) -> None:
    """The rows of such an import are not compared with the ledger, so nothing else shows that they are gone."""
    service = Service(seed=1)
    deleted = service.add_import("t", [{"n": 1}, {"n": None}])
    service.add_import("t", [{"n": 3}])
    service.add_import("u", [{"n": 4}])
    settings: dict[str, Any] = {"exclude_templates": ["t"]} if gone == "excluded" else {}
    assert warehouse.run(service).status == "succeeded"
    if gone == "excluded":
        assert warehouse.run(service, **settings).status == "succeeded"
    else:
        with duckdb.connect(str(warehouse.file)) as connection:
            connection.execute("UPDATE importer_data.sync_imports SET state = 'failed' WHERE slug = ?", [deleted])
    before = ("sync_fields", "sync_imports", "imports")
    with duckdb.connect(str(warehouse.file)) as connection:
        for table in before:
            connection.execute(f"CREATE TABLE main.{table} AS SELECT * FROM importer_data.{table}")
    service.delete_import(deleted)
    [load] = warehouse.run(service, **settings).load_ids
    with duckdb.connect(str(warehouse.file)) as connection:
        connection.execute("USE importer_data")
        for table in before:
            connection.execute(f"DELETE FROM {table}")
            connection.execute(f"INSERT INTO {table} BY NAME FROM main.{table}")
        connection.execute("DELETE FROM _dlt_loads WHERE load_id = ?", [load])
        connection.execute("UPDATE sync_runs SET status = 'running' WHERE load_ids LIKE ?", [f"%{load}%"])

    assert warehouse.run(service, **settings).status == "succeeded"

    counts = "SELECT value_count, null_count FROM sync_fields WHERE table_name = 'records_t' AND path = 'n'"
    assert warehouse.query("SELECT count(n), count(*) - count(n) FROM records_t") == [(1, 0)]
    assert warehouse.query(counts) == [(1, 0)]


@pytest.mark.filterwarnings("ignore:The 'warn' method is deprecated:DeprecationWarning")  # dlt's, of a package left
def test_values_are_counted_anew_once_dlt_has_completed_a_package_late(warehouse: Warehouse) -> None:
    """The package brings the counts of its time, which agree with the ledger, but not with all rows."""
    service = Service(seed=1)
    changed, later = service.add_import("t", [{"n": 1}]), service.add_import("t", [{"n": 2}])
    assert warehouse.run(service).status == "succeeded"
    pipelines, aside = warehouse.folder / "pipelines", warehouse.folder / "aside"
    service.edit_row(changed, next(service.record_slugs(changed)), {"n": 3})
    with serve(service) as url:
        source = importer_source(base_url=url, access_token=service_token(service))
        warehouse.pipeline().extract(source)
        warehouse.pipeline().normalize()
        pipelines.rename(aside)
        service.edit_row(later, next(service.record_slugs(later)), {"n": None})
        assert warehouse.run(service).status == "succeeded"
        shutil.rmtree(pipelines)
        aside.rename(pipelines)
        warehouse.load_unguarded()

    assert warehouse.run(service).status == "succeeded"

    counts = "SELECT value_count, null_count FROM sync_fields WHERE table_name = 'records_t' AND path = 'n'"
    assert warehouse.query(counts) == [(1, 1)]


def test_a_field_without_column_gets_none_because_another_is_forgotten(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that is kept has a value in the column of a field that is not in `sync_fields` any more."""
    monkeypatch.setattr(width, "WIDTH", Width(columns=1, listed=5))
    service = Service(seed=1)
    kept = service.add_import("t", [{"x": 1, "more": 2}, {"x": 1}])
    warehouse.run(service)
    service.delete_import(kept)
    service.add_import("t", [{"more": 3}])
    warehouse.run(service, deletes="keep", mass_delete_limit=1.0)
    with duckdb.connect(str(warehouse.file)) as connection:
        connection.execute("DELETE FROM importer_data.sync_fields WHERE table_name = 'records_t' AND path = 'x'")
    service.add_import("t", [{"more": 4}])

    assert warehouse.run(service, deletes="keep").status == "succeeded"

    fields = "SELECT path, data_type FROM sync_fields WHERE table_name = 'records_t' AND path = 'more'"
    assert warehouse.query(fields) == [("more", "overflowed")]


def test_a_table_without_fields_is_new_once(warehouse: Warehouse) -> None:
    """Neither the imports have metadata nor the records of one template any value."""
    service = Service(seed=1)
    service.add_import("t", [{"n": 1}])
    warehouse.run(service)
    changes = []
    for n in range(2):
        service.add_import("t", [{"n": n}])
        service.add_import("empty", [{}])
        changes.append(warehouse.run(service).schema_changes)
    assert changes == [["records_empty is new, with 0 fields"], []]


def test_a_field_is_first_seen_after_those_before_it_whatever_the_clock_of_a_machine_is(warehouse: Warehouse) -> None:
    """Views give the plain name to the field that was there first."""
    service = Service(seed=1)
    service.add_import("t", [{"Name": 1}])
    assert warehouse.run(service).status == "succeeded"
    service.add_import("t", [{"name": 2, "NAME": 3}])
    behind = replace(Ports.real(), now=lambda: datetime.now(UTC) - timedelta(minutes=4))
    with serve(service) as url:
        settings = Settings.load(base_url=url, access_token=service.token)
        assert sync(warehouse.pipeline(), settings, ports=behind).status == "succeeded"
    fields = warehouse.query("SELECT path, first_seen_at FROM sync_fields WHERE table_name = 'records_t' ORDER BY 2, 1")
    assert [path for path, _ in fields] == ["Name", "NAME", "name"]
    assert fields[1][1] == fields[2][1]
