"""DuckDB takes little memory during a run, more where that is not enough, and what its user allowed if that is said."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import dlt
import duckdb
import pyarrow as pa
import pytest
from dlt.destinations.job_client_impl import SqlLoadJob

from connector.load.disposition import IncomingRows, is_new
from connector.run.sync import sync
from connector.sandbox import Service, serve
from connector.settings import Settings
from connector.transform.schema import Field, Keys, TableSchema
from connector.warehouse import memory_limit
from connector.warehouse.adapters.duck import Duck
from connector.warehouse.connection import Connection
from connector.warehouse.failures import is_out_of_memory
from connector.warehouse.field_counts import TableTotals, totals
from connector.warehouse.memory_limit import MemoryLimit

from .conftest import Warehouse
from .test_guarantees import assert_equal, populated

pytestmark = pytest.mark.thorough

MIB = 2**20


def limit(native: duckdb.DuckDBPyConnection) -> str:
    return str(native.execute("SELECT current_setting('memory_limit')").fetchall()[0][0])


def test_the_allowance_grows_with_the_widest_table_and_never_shrinks() -> None:
    with duckdb.connect(":memory:", config={"threads": 2}) as native:
        given = MemoryLimit(native)
        default = limit(native)
        seen = []
        for columns, slice_bytes, replaced in ((8, 0, 0), (248, 0, 0), (8, 0, MIB), (100, MIB, 0), (0, 100 * MIB, 0)):
            given.fit(columns, slice_bytes, replaced)
            seen.append(limit(native))
        assert seen == ["112.0 MiB", "352.0 MiB", "352.0 MiB", "352.0 MiB", "904.0 MiB"]
        assert given.remove()
        assert limit(native) == default
        assert not given.remove()
        given.fit(10, 0, 0)
        assert limit(native) == default


def test_a_merge_is_allowed_more_the_more_rows_it_brings() -> None:
    with duckdb.connect(":memory:", config={"threads": 2}) as native:
        given = MemoryLimit(native)
        given.fit(8, 0, MIB)
        assert limit(native) == "208.0 MiB"


def test_a_limit_of_the_users_own_stays() -> None:
    with duckdb.connect(":memory:", config={"memory_limit": "1GiB"}) as native:
        given = MemoryLimit(native)
        given.fit(10, 0, MIB)
        assert limit(native) == "1.0 GiB"
        assert not given.remove()


def test_after_a_query_there_is_as_much_memory_as_before() -> None:
    with duckdb.connect(":memory:", config={"temp_directory": ""}) as native:
        limit = MemoryLimit(native)
        with limit.for_query(columns=1, slugs=1):
            pass
        native.execute("CREATE TABLE large AS SELECT md5(range::VARCHAR) AS text FROM range(2000000)")


def test_an_allowance_below_what_is_taken_already_is_none() -> None:
    with duckdb.connect(":memory:", config={"threads": 1, "temp_directory": ""}) as native:
        native.execute("CREATE TABLE taken AS SELECT md5(range::VARCHAR) AS text FROM range(5_000_000)")
        before = limit(native)
        given = MemoryLimit(native)
        given.fit(0, 0, 0)
        assert limit(native) == before
        assert not given.remove(), "there is no limit to remove"


def test_threads_of_the_users_own_come_back_and_count_for_memory() -> None:
    with duckdb.connect(":memory:", config={"threads": 3}) as native:
        given = MemoryLimit(native)
        given.one_thread()
        given.fit(8, 0, 0)
        assert limit(native) == "148.0 MiB"
        assert native.execute("SELECT current_setting('threads')").fetchall() == [(1,)]
        given.all_threads()
        assert native.execute("SELECT current_setting('threads')").fetchall() == [(3,)]


def test_a_number_of_threads_that_cannot_be_had_stops_nothing() -> None:
    with duckdb.connect(":memory:", config={"threads": 2, "external_threads": 2}) as native:
        given = MemoryLimit(native)
        given.one_thread()
        given.all_threads()
        assert native.execute("SELECT current_setting('threads')").fetchall() == [(2,)]


def slugs(first: int, count: int) -> pa.ChunkedArray[Any]:
    return pa.chunked_array([pa.array([hashlib.md5(str(n).encode()).hexdigest() for n in range(first, first + count)])])


@contextmanager
def connected(warehouse: Warehouse, table: str, columns: str, rows: int) -> Iterator[Connection]:
    """With a table in a file that was opened just now; `columns` may speak of `range`."""
    pipeline = warehouse.pipeline()
    with pipeline.sql_client() as client:
        client.create_dataset()
        name = client.make_qualified_table_name(table)
        client.native_connection.execute(f"CREATE TABLE {name} AS SELECT {columns} FROM range({rows})")
        client.native_connection.execute("CHECKPOINT")
    with pipeline.sql_client() as client:
        client.native_connection.execute("SET threads = 2")
        yield Connection(client, Duck(), MemoryLimit(client.native_connection))


def two_million_records(warehouse: Warehouse) -> AbstractContextManager[Connection]:
    """Of a hundred imports; their slugs take about 60 MB when DuckDB has read them."""
    columns = "md5(range::VARCHAR) AS slug, 'import-' || range // 20_000 AS import_slug"
    return connected(warehouse, "records", columns, 2_000_000)


def is_new_with(connection: Connection, records: pa.ChunkedArray[Any], import_: str) -> bool:
    return is_new(connection, IncomingRows("records", records, [import_], distinct=True, replacing=False))


def kept(native: duckdb.DuckDBPyConnection) -> int:
    found: Any = native.execute("SELECT sum(memory_usage_bytes) FROM duckdb_memory()").fetchall()
    return int(found[0][0])


def test_asking_whether_records_are_new_keeps_no_more_of_the_table_than_the_answer_takes(warehouse: Warehouse) -> None:
    with two_million_records(warehouse) as connection:
        native, given = connection.client.native_connection, connection.memory_limit
        default = limit(native)
        arriving = slugs(3_000_000, 20_000)
        assert is_new_with(connection, arriving, "import-new")
        assert kept(native) < 30 * MIB
        assert limit(native) == default
        assert not is_new_with(connection, slugs(1_999_999, 20_000), "import-new"), "one of the records is there"
        assert not is_new_with(connection, arriving, "import-7"), "the import is there"

        assert given is not None
        given.fit(8, 0, 0)
        assert is_new_with(connection, arriving, "import-new")
        assert (limit(native), kept(native) < 30 * MIB) == ("112.0 MiB", True)


def test_counting_the_values_of_a_table_keeps_little_of_it(warehouse: Warehouse) -> None:
    names = [f"c{n}" for n in range(8)]
    fields: dict[Keys, Field] = {(name,): Field((name,), name, "text", True, False) for name in names}
    values = [f"CASE WHEN range % 3 <> 0 THEN md5('{name}' || range) END AS {name}" for name in names]
    columns = ", ".join(["'i' AS _import_slug", "NULL::TIMESTAMP AS _deleted_at", *values])
    with connected(warehouse, "records_t", columns, 900_000) as connection:
        schema = TableSchema("records_t", fields, dict.fromkeys(names, "VARCHAR"))
        assert totals(connection, schema, ["another"]) == TableTotals(900_000, dict.fromkeys(fields, (600_000, 0)))
        assert kept(connection.client.native_connection) < 60 * MIB  # of about 110


def test_an_answer_that_takes_more_memory_than_foreseen_gets_it(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_limit, "QUERY_MB", 0)
    monkeypatch.setattr(memory_limit, "QUERY_SLUG_BYTES", 0)
    with two_million_records(warehouse) as connection:
        native, given = connection.client.native_connection, connection.memory_limit
        assert given is not None
        given.fit(8, 0, 0)
        assert is_new_with(connection, slugs(3_000_000, 200_000), "import-new")
        assert limit(native) == "112.0 MiB", "the limit of the load is not removed for that"


def test_a_limit_of_the_users_own_stays_while_records_are_looked_for() -> None:
    with (
        duckdb.connect(":memory:", config={"memory_limit": "1GiB"}) as native,
        MemoryLimit(native).for_query(10, 1_000),
    ):
        assert limit(native) == "1.0 GiB"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Out of Memory Error: failed to allocate data of size 32.0 KiB", True),
        ("TransactionContext Error: Failed to commit: could not allocate block of size 256.0 KiB", True),
        ("TransactionContext Error: Failed to commit: failed to pin block of size 392.0 KiB", True),
        ("TransactionContext Error: Conflict on tuple deletion!", True),
        ("Catalog Error: Table does not exist", False),
    ],
)
def test_running_out_of_memory_is_told_from_other_failures_however_deep(text: str, told: bool) -> None:
    failed = RuntimeError("the step load failed")
    failed.__cause__ = ValueError("a job failed")
    failed.__cause__.__context__ = duckdb.Error(text)
    assert is_out_of_memory(failed) is told


@pytest.mark.parametrize("again", [False, True], ids=["appended", "merged"])
def test_a_package_that_needs_more_is_loaded_all_the_same(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, again: bool
) -> None:
    service = Service(seed=1)
    row = {f"c{n}": f"value {n}" for n in range(300)}
    service.add_import("wide", [{**row, "n": n} for n in range(2_500)])
    if again:
        assert warehouse.run(service).status == "succeeded"
        slug = service.slugs()[0]
        service.edit_row(slug, next(iter(service.record_slugs(slug))), {**row, "n": -1})
    monkeypatch.setattr(memory_limit, "BASE_MB", 24)
    monkeypatch.setattr(memory_limit, "THREAD_MB", 0)
    monkeypatch.setattr(memory_limit, "COLUMN_MB", 0)
    monkeypatch.setattr(memory_limit, "COPIES", 0)
    monkeypatch.setattr(memory_limit, "REPLACED_BYTES", 0)

    with caplog.at_level(logging.INFO, "connector.run"):
        tally = warehouse.run(service)

    assert "DuckDB gets more memory to load this package." in caplog.messages
    assert len(tally.load_ids) == 1
    if tally.status != "succeeded":  # a commit that ran out of memory may have lost a row, which is noticed
        assert "it is read again next run" in str(tally.error)
        monkeypatch.undo()
        assert warehouse.run(service).status == "succeeded"
    assert_equal(service, warehouse)


def test_a_connection_of_the_users_keeps_its_limits(tmp_path: Path) -> None:
    service = populated()
    with duckdb.connect(str(tmp_path / "own.duckdb")) as own, serve(service) as url:
        asked = "SELECT current_setting('memory_limit'), current_setting('threads')"
        before = own.execute(asked).fetchall()
        pipeline = dlt.pipeline("own", destination=dlt.destinations.duckdb(own), pipelines_dir=str(tmp_path / "p"))
        for _ in range(2):
            assert sync(pipeline, Settings.load(base_url=url, access_token=service.token)).status == "succeeded"
            service.append_rows(service.slugs()[0], [{"name": "more"}])
        assert own.execute(asked).fetchall() == before


def test_a_database_that_is_not_itself_after_its_memory_ran_out_is_opened_anew(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A deletion that DuckDB rolled back for want of memory stands in the way of the next, until all is closed."""
    service = populated()
    warehouse.run(service)
    service.append_rows(service.slugs()[0], [{"name": "more"}])
    run, runs = SqlLoadJob.run, 0

    def not_itself(job: SqlLoadJob) -> None:
        nonlocal runs
        runs += 1
        client = job._job_client.sql_client
        if runs == 1:
            client.execute_sql("ATTACH ':memory:' AS spoilt")  # of this instance of DuckDB, not of the file
        with client.execute_query("SELECT 1 FROM duckdb_databases() WHERE database_name = 'spoilt'") as cursor:
            if cursor.fetchall():
                raise duckdb.TransactionException("TransactionContext Error: Conflict on tuple deletion!")
        run(job)

    monkeypatch.setattr(SqlLoadJob, "run", not_itself)
    monkeypatch.setenv("LOAD__RAISE_ON_MAX_RETRIES", "1")
    with caplog.at_level(logging.INFO, "connector.run"):
        tally = warehouse.run(service)

    assert "DuckDB gets more memory to load this package." in caplog.messages
    assert (tally.status, len(tally.load_ids)) == ("succeeded", 1)
    assert_equal(service, warehouse)


def test_memory_that_runs_out_before_there_is_a_package_is_no_success(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing waits to be loaded then, and loading nothing once more would look like having loaded all."""
    service = populated()
    fit = MemoryLimit.fit

    def too_much(given: MemoryLimit, columns: int, slice_bytes: int, replaced: int) -> None:
        fit(given, columns, slice_bytes, replaced)
        raise duckdb.OutOfMemoryException("Out of Memory Error: failed to allocate")

    monkeypatch.setattr(MemoryLimit, "fit", too_much)
    tally = warehouse.run(service)
    assert (tally.status, tally.records_loaded) == ("failed", 0)
    assert "give it more, by raising a memory_limit of yours" in str(tally.error)

    monkeypatch.undo()
    assert warehouse.run(service).status == "succeeded"
    assert_equal(service, warehouse)
