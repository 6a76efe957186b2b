"""DuckDB keeps the raw rows' `data` as zstd from the first run on; a table with rows stays as it is."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest

from connector.sandbox import Service
from connector.warehouse import Warehouse as Connected

from .conftest import Warehouse
from .test_guarantees import assert_equal

pytestmark = pytest.mark.thorough

COLUMNS = "SELECT column_name, data_type, is_nullable FROM information_schema.columns WHERE table_name = 'records'"


def compression(native: duckdb.DuckDBPyConnection) -> set[Any]:
    native.execute("CHECKPOINT")
    rows = native.execute(
        "SELECT compression FROM pragma_storage_info('importer_data.records') "
        "WHERE column_name = 'data' AND segment_type = 'VARCHAR'"
    ).fetchall()
    return {kind for (kind,) in rows}


def test_a_first_run_makes_it_so_and_changes_nothing_else(warehouse: Warehouse) -> None:
    service = Service(seed=1)
    service.add_generated("customers", 3, 400, "completed")
    assert warehouse.run(service).status == "succeeded"
    with duckdb.connect(str(warehouse.file)) as native:
        assert compression(native) == {"ZSTD"}
        made = native.execute(COLUMNS).fetchall()
        assert ("slug", "VARCHAR", "NO") in made
        assert ("data", "VARCHAR", "YES") in made
    service.add_generated("customers", 1, 400, "completed")
    service.edit_row(service.slugs()[0], next(iter(service.record_slugs(service.slugs()[0]))), {"a": 1})
    assert warehouse.run(service).status == "succeeded"
    with duckdb.connect(str(warehouse.file)) as native:
        assert compression(native) == {"ZSTD"}
        assert native.execute(COLUMNS).fetchall() == made


def test_a_table_with_rows_stays_as_it_is(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(seed=1)
    service.add_generated("customers", 1, 300, "completed")
    with monkeypatch.context() as patched:
        patched.setattr("connector.warehouse.Connection.pack_raw_rows", lambda _: None)
        assert warehouse.run(service).status == "succeeded"
    connected = Connected(warehouse.pipeline())
    with connected.hold(), connected.connect() as connection:
        connection.pack_raw_rows()
    assert_equal(service, warehouse)
    with duckdb.connect(str(warehouse.file)) as native:
        assert "ZSTD" not in compression(native)


def test_a_file_in_the_format_of_an_older_duckdb_is_loaded_unpacked(warehouse: Warehouse) -> None:
    with duckdb.connect() as native:
        native.execute(f"ATTACH '{warehouse.file}' AS older (STORAGE_VERSION 'v1.0.0')")
        native.execute("CREATE TABLE older.theirs AS SELECT 1 AS a")
        native.execute("DETACH older")
    service = Service(seed=1)
    service.add_generated("customers", 1, 300, "completed")
    tally = warehouse.run(service)
    assert tally.status == "succeeded", tally.error
    assert_equal(service, warehouse)
    with duckdb.connect(str(warehouse.file)) as native:
        assert "ZSTD" not in compression(native)
