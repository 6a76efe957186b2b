"""What dlt and DuckDB are told when rows are loaded: which table comes first, and when its rows are put together."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import duckdb
import pytest
from dlt.destinations.impl.duckdb.duck import DuckDbClient

from connector.job_order import records_first
from connector.sandbox import Service, serve
from connector.warehouse import Warehouse as Connected

from .conftest import Warehouse, service_token
from .test_guarantees import assert_equal

VACUUM, LOG = "max_vacuum_tasks", "wal_autocheckpoint_entries"
ROWS = 30_000  # fill no row group, and are too many to be added to one


@contextmanager
def held(warehouse: Warehouse) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection as dlt opens one to load, beside the one of a run."""
    pipeline = warehouse.pipeline()
    with Connected(pipeline).hold(), pipeline.sql_client() as client:
        yield client.native_connection


def setting(native: duckdb.DuckDBPyConnection, name: str) -> str:
    (value,) = native.execute("SELECT current_setting(?)", [name]).fetchall()[0]
    return str(value)


def row_groups(native: duckdb.DuckDBPyConnection) -> int:
    (count,) = native.execute("SELECT count(DISTINCT row_group_id) FROM pragma_storage_info('rows')").fetchall()[0]
    return int(count)


@pytest.fixture
def table(warehouse: Warehouse) -> None:
    with duckdb.connect(str(warehouse.file)) as native:
        native.execute("CREATE TABLE rows (n BIGINT, text VARCHAR)")


@pytest.mark.usefixtures("table")
def test_row_groups_are_joined_when_the_run_ends_and_not_before(warehouse: Warehouse) -> None:
    with held(warehouse) as native:
        for _ in range(3):
            native.execute(f"INSERT INTO rows SELECT i, repeat('x', 100) FROM range({ROWS}) numbers(i)")
            native.execute("CHECKPOINT")
        assert row_groups(native) == 3
        native.execute("CREATE TABLE last (n BIGINT)")  # as a run ends with its own row
    with duckdb.connect(str(warehouse.file)) as native:
        assert row_groups(native) == 1


@pytest.mark.usefixtures("table")
def test_rows_go_into_the_file_as_they_come(warehouse: Warehouse) -> None:
    """dlt has DuckDB collect a gigabyte in its log first."""
    log = warehouse.file.with_name(f"{warehouse.file.name}.wal")
    with held(warehouse) as native:
        for _ in range(2):  # only what is in the log already counts
            native.execute(f"INSERT INTO rows SELECT i, repeat('x', 100) FROM range({ROWS}) numbers(i)")
        assert not log.exists() or log.stat().st_size < 10_000


@pytest.mark.usefixtures("table")
def test_after_a_run_duckdb_is_as_it_was_and_what_somebody_has_set_stays(warehouse: Warehouse) -> None:
    with duckdb.connect(str(warehouse.file)) as native:
        with held(warehouse) as other:
            assert (setting(other, VACUUM), setting(other, LOG)) == ("0", "10")
        assert (setting(native, VACUUM), setting(native, LOG)) == ("100", "0")
        native.execute(f"SET {VACUUM} = 5; SET {LOG} = 7")
        for _ in range(2):
            with held(warehouse) as other:
                assert (setting(other, VACUUM), setting(other, LOG)) == ("5", "7")


def test_the_raw_rows_are_loaded_before_the_typed_ones(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(seed=1)
    for n in range(8):
        service.add_import(template=f"t{n}", rows=[{"n": n}])
    begun: dict[str, list[str]] = {}
    create = DuckDbClient.create_load_job

    def noting(self: DuckDbClient, table: Any, file: str, load_id: str, **named: Any) -> Any:
        begun.setdefault(load_id, []).append(table["name"])
        return create(self, table, file, load_id, **named)

    monkeypatch.setattr(DuckDbClient, "create_load_job", noting)
    load = import_module("dlt.load.load").__dict__
    as_dlt_does = load["filter_new_jobs"]
    tally = warehouse.run(service)

    assert load["filter_new_jobs"] is as_dlt_does
    (jobs,) = (begun[load_id] for load_id in tally.load_ids)
    assert jobs[0] == "records"
    assert {f"records_t{n}" for n in range(8)} <= set(jobs)
    assert_equal(service, warehouse)


@pytest.mark.parametrize("most", [200, 1_000, 6_000], ids="{} kB".format)
def test_a_disk_that_is_full_is_named_and_costs_nothing_but_another_run(warehouse: Warehouse, most: int) -> None:
    """Some files may not grow beyond that: the first tables do not fit, nor do some rows, nor what dlt writes."""
    service = Service(seed=1)
    service.add_generated("customers", 4, 6_000, "completed")
    with serve(service) as url:
        settings = {"BASE_URL": url, "ACCESS_TOKEN": service_token(service), "BATCH_ROWS": "12000"}
        ran = subprocess.run(
            [sys.executable, "-m", "connector", "run", "--to", f"duckdb:{warehouse.file}"],
            env={**os.environ, **{f"SOURCES__IMPORTER__{name}": value for name, value in settings.items()}},
            cwd=warehouse.folder,
            preexec_fn=partial(resource.setrlimit, resource.RLIMIT_FSIZE, (most * 1000, most * 1000)),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert ran.returncode == 1
    last = ran.stderr.strip().splitlines()[-1]
    assert "There was no room left on a disk" in last
    assert "make some and run again" in last
    assert len(last) < 400
    assert warehouse.run(service).status == "succeeded"
    assert_equal(service, warehouse)


def test_runs_that_overlap_leave_dlt_as_it_was() -> None:
    load = import_module("dlt.load.load").__dict__
    as_dlt_does = load["filter_new_jobs"]
    first, second = records_first(), records_first()
    first.__enter__()
    second.__enter__()
    assert load["filter_new_jobs"] is not as_dlt_does
    first.__exit__(None, None, None)
    assert load["filter_new_jobs"] is not as_dlt_does, "the second goes on"
    second.__exit__(None, None, None)
    assert load["filter_new_jobs"] is as_dlt_does
