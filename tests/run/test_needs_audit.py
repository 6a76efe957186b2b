"""No later run is green on what an earlier one left in disorder, nor on a record that two imports claim."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import dlt
import duckdb
import pytest
from dlt.destinations.exceptions import DatabaseTerminalException
from dlt.destinations.impl.duckdb.duck import DuckDbCopyJob
from dlt.pipeline.exceptions import PipelineStepFailed
from dlt.pipeline.pipeline import Pipeline

from connector import LockedError, importer_source
from connector.maintain.verify import verify
from connector.run.opening import prepare_dataset
from connector.sandbox import Service, Switches, serve
from connector.settings import Settings
from connector.warehouse import Connection
from connector.warehouse.lock import sole_writer

from .conftest import Warehouse, service_token
from .test_guarantees import assert_equal

pytestmark = pytest.mark.thorough

TWICE = '{"slug": "twice", "data": {"n": 2}}'
PREPARE = "connector.run.session.prepare_dataset"
KILLED_BEHIND_AN_APPEND = """
import os, sys, time, dlt
from connector.settings import Settings
from connector.run.sync import sync
from dlt.destinations.impl.duckdb.duck import DuckDbCopyJob
run = DuckDbCopyJob.run
def dying(job):
    if not os.path.basename(job._file_path).startswith(("records.", "records_t.")):
        time.sleep(60)
    run(job)
    time.sleep(0.5)
    os.kill(os.getpid(), 9)
DuckDbCopyJob.run = dying
url, token, file, folder = sys.argv[1:]
pipeline = dlt.pipeline("importer", destination=dlt.destinations.duckdb(file), dataset_name="importer_data",
                        pipelines_dir=folder)
sync(pipeline, Settings.load(base_url=url, access_token=token))
"""


@contextmanager
def disk_full(*tables: str) -> Iterator[None]:
    """The files of these tables cannot be loaded, once those of the others are."""
    run = DuckDbCopyJob.run

    def failing(job: DuckDbCopyJob) -> None:
        if os.path.basename(job._file_path).split(".")[0] in tables:  # noqa: PTH119
            time.sleep(1)
            raise DatabaseTerminalException(Exception("disk full"))
        run(job)

    with mock.patch.object(DuckDbCopyJob, "run", failing):
        yield


def differences(service: Service, warehouse: Warehouse) -> list[str]:
    with serve(service) as url:
        settings = Settings.load(base_url=url, access_token=service_token(service))
        return [d.sentence for d in verify(warehouse.pipeline(), settings, True).differences]


def emptied(service: Service, slug: str) -> None:
    for record in list(service.record_slugs(slug)):
        service.delete_row(slug, record)


def run_dlt(service: Service, warehouse: Warehouse) -> None:
    with serve(service) as url:
        warehouse.pipeline().run(importer_source(base_url=url, access_token=service_token(service)))


@pytest.mark.parametrize("lost", [pytest.param(("sync_imports",), marks=pytest.mark.long), ("sync_imports", "imports")])
@pytest.mark.parametrize(
    "change",
    [emptied, Service.delete_import, lambda service, slug: service.set_template(slug, "u")],
    ids=["emptied", "deleted", "another template"],
)
def test_what_a_failed_load_left_is_put_in_order(
    warehouse: Warehouse, change: Callable[[Service, str], object], lost: tuple[str, ...]
) -> None:
    service = Service(seed=1)
    service.add_import("u", [{"n": 1}])
    assert warehouse.run(service).status == "succeeded"
    slug = service.add_import("t", [{"n": n} for n in range(10)])
    with disk_full(*lost):
        failed = warehouse.run(service)
    assert failed.status == "failed"
    assert "disk full" in str(failed.error)
    change(service, slug)

    assert warehouse.run(service, mass_delete_limit=1).status == "succeeded"

    assert differences(service, warehouse) == []
    assert_equal(service, warehouse)


@pytest.mark.parametrize(
    "change",
    [emptied, Service.delete_import, lambda service, slug: service.set_template(slug, "u")],
    ids=["emptied", "deleted", "another template"],
)
@pytest.mark.parametrize(
    "loss",
    [
        "DELETE FROM importer_data.sync_imports WHERE slug = '{slug}'",
        "DELETE FROM importer_data.sync_imports",
        "ALTER TABLE importer_data.sync_imports DROP COLUMN table_name",
        "DELETE FROM importer_data.sync_imports WHERE slug = '{slug}'; "
        "DELETE FROM importer_data.imports WHERE slug = '{slug}'",
    ],
    ids=["its row", "all rows", "a column", "its rows in both tables"],
)
def test_rows_of_an_import_that_the_ledger_lost_are_not_left_behind(
    warehouse: Warehouse, change: Callable[[Service, str], object], loss: str
) -> None:
    """The ledger was changed by hand, and the service changes an import, of which a bounded run reads nothing."""
    service = Service(seed=1)
    service.add_import("u", [{"n": 1}])
    slug = service.add_import("t", [{"n": n} for n in range(10)])
    service.add_import("t", [{"n": 10}])
    assert warehouse.run(service).status == "succeeded"
    with duckdb.connect(str(warehouse.file)) as connection:
        connection.execute(loss.format(slug=slug))
    assert warehouse.run(service, status="created").status == "partial"  # it leaves out what is to be read
    change(service, slug)

    assert warehouse.run(service, mass_delete_limit=1).status == "succeeded"

    assert_equal(service, warehouse)
    assert differences(service, warehouse) == []


def test_a_package_that_dlt_finishes_late_doubles_nothing_for_long(warehouse: Warehouse) -> None:
    """Killed behind an append, put in order from another directory, and then dlt alone goes on in the first one."""
    service = Service(seed=1)
    service.add_import("u", [{"n": 1}])
    assert warehouse.run(service).status == "succeeded"
    service.add_import("t", [{"n": n} for n in range(10)])
    pipelines, aside = warehouse.folder / "pipelines", warehouse.folder / "aside"
    with serve(service) as url:
        arguments = [url, service_token(service), str(warehouse.file), str(pipelines)]
        at_once = os.environ | {"LOAD__WORKERS": "20"}  # so that no job that waits keeps another from starting
        command = [sys.executable, "-c", KILLED_BEHIND_AN_APPEND, *arguments]
        killed = subprocess.run(command, env=at_once, capture_output=True)
    assert killed.returncode == -9
    pipelines.rename(aside)
    for _ in range(2):
        assert warehouse.run(service).status == "succeeded"
    _move_clock(warehouse, 4)
    shutil.rmtree(pipelines)
    aside.rename(pipelines)
    warehouse.load_unguarded()

    assert warehouse.run(service).status == "succeeded"

    assert_equal(service, warehouse)
    assert differences(service, warehouse) == []


@pytest.mark.parametrize("minutes", [-4, 0, 4])
@pytest.mark.filterwarnings("ignore:The 'warn' method is deprecated:DeprecationWarning")  # dlt's, of a package left
def test_a_package_of_dlt_alone_with_the_row_of_its_run_is_noticed_if_it_ends_late(
    warehouse: Warehouse, minutes: int
) -> None:
    """dlt alone died in its load, a run from another directory put it in order, and then dlt goes on in the first."""
    service = Service(seed=1)
    slug = service.add_import("t", [{"n": 1}])
    service.add_import("u", [{"n": 1}])
    assert warehouse.run(service).status == "succeeded"
    pipelines, aside = warehouse.folder / "pipelines", warehouse.folder / "aside"
    [record] = service.record_slugs(slug)
    service.edit_row(slug, record, {"n": 2})
    with serve(service) as url:
        pipeline = warehouse.pipeline()
        pipeline.extract(importer_source(base_url=url, access_token=service_token(service)))
    pipeline.normalize()
    for job in pipelines.glob("importer/load/normalized/*/new_jobs/*"):
        if not job.name.startswith(("records_t.", "sync_runs.")):  # as if it had been loaded before the death
            job.unlink()
    pipelines.rename(aside)
    service.edit_row(slug, record, {"n": 3})
    assert warehouse.run(service).status == "succeeded"
    _move_clock(warehouse, minutes)
    shutil.rmtree(pipelines)
    aside.rename(pipelines)
    warehouse.load_unguarded()
    assert warehouse.query("SELECT n FROM records_t") == [(2,)]

    assert warehouse.run(service).status == "succeeded"

    assert_equal(service, warehouse)
    assert differences(service, warehouse) == []


def test_packages_that_dlt_alone_loads_in_time_need_no_audit(warehouse: Warehouse) -> None:
    service = Service(seed=1)
    slug = service.add_import("t", [{"n": 1}])
    for n in range(2):
        assert warehouse.run(service).status == "succeeded"
        for k in range(2):
            [record] = service.record_slugs(slug)
            service.edit_row(slug, record, {"n": 10 * n + k})
            run_dlt(service, warehouse)
    assert not warehouse.needs_audit()
    assert warehouse.run(service).status == "succeeded"
    assert_equal(service, warehouse)


@pytest.mark.parametrize("name", ["importer", "of_another_source"])
def test_an_unknown_package_of_this_source_is_noticed_once(warehouse: Warehouse, name: str) -> None:
    """Other sources may load into the dataset each day."""
    service = Service(seed=1)
    service.add_import("t", [{"n": 1}])
    assert warehouse.run(service).status == "succeeded"
    ours = warehouse.pipeline()
    folder = str(warehouse.folder / "pipelines")
    pipeline = dlt.pipeline(name, folder, destination=ours.destination, dataset_name=ours.dataset_name)
    pipeline.run([{"n": 1}], table_name="of_the_user")
    for noticed in (name == "importer", False):
        assert warehouse.needs_audit() is noticed
        assert warehouse.run(service).status == "succeeded"


def test_a_package_that_is_completed_twice_is_noticed(warehouse: Warehouse) -> None:
    """dlt finishes what a killed process left, and then the same again in a copy of its folder."""
    service = Service(seed=1)
    slug = service.add_import("t", [{"n": 1}])
    [record] = service.record_slugs(slug)
    assert warehouse.run(service).status == "succeeded"
    service.edit_row(slug, record, {"n": 2})
    with serve(service) as url:
        pipeline = warehouse.pipeline()
        pipeline.extract(importer_source(base_url=url, access_token=service_token(service)))
    pipeline.normalize()
    copy = shutil.copytree(warehouse.folder / "pipelines", warehouse.folder / "copy")
    pipeline.load()
    service.edit_row(slug, record, {"n": 3})
    assert warehouse.run(service).status == "succeeded"
    shutil.rmtree(warehouse.folder / "pipelines")
    copy.rename(warehouse.folder / "pipelines")
    warehouse.load_unguarded()
    assert warehouse.needs_audit()
    assert warehouse.run(service).status == "succeeded"
    assert_equal(service, warehouse)


def test_a_table_of_runs_that_is_not_ours_is_not_asked(warehouse: Warehouse) -> None:
    service = Service(seed=1)
    service.add_import("t", [{"n": 1}])
    assert warehouse.run(service).status == "succeeded"
    with duckdb.connect(str(warehouse.file)) as connection:
        connection.execute("ALTER TABLE importer_data.sync_runs DROP COLUMN error_kind")
    assert warehouse.needs_audit()


def test_an_unknown_package_is_noticed_until_dlt_alone_has_begun_anew(warehouse: Warehouse) -> None:
    """Its run that checks all rows removes the earlier numbers, with which the later ones never agree again."""
    service = Service(seed=1)
    slug = service.add_import("t", [{"n": 1}])
    [record] = service.record_slugs(slug)
    noticed = []
    for n in range(6):
        service.edit_row(slug, record, {"n": n})
        run_dlt(service, warehouse)
        if n == 1:
            warehouse.pipeline().run([{"n": 1}], table_name="of_the_user")
        noticed.append(warehouse.needs_audit())
    assert noticed == [False, True, False, False, False, False]


def test_a_package_that_is_completed_while_a_run_is_under_way_is_noticed(warehouse: Warehouse) -> None:
    """dlt may finish what a killed process left before it asks for the lock."""
    service = Service(seed=1)
    service.add_import("t", [{"n": 1}])
    assert warehouse.run(service).status == "succeeded"
    service.add_import("t", [{"n": 2}])

    def prepared(connection: Connection, *args: Any) -> Any:
        found = prepare_dataset(connection, *args)
        loads = connection.name("_dlt_loads")
        connection.execute(
            f"INSERT INTO {loads} (load_id, schema_name, status, inserted_at) "
            f"SELECT '1.5', 'importer', 0, max(inserted_at) FROM {loads}"
        )
        return found

    with mock.patch(PREPARE, prepared):
        assert warehouse.run(service).status == "succeeded"
    assert warehouse.needs_audit()


def test_a_run_that_could_not_open_has_seen_no_package(warehouse: Warehouse) -> None:
    service = Service(seed=1)
    service.add_import("t", [{"n": 1}])
    assert warehouse.run(service).status == "succeeded"
    with mock.patch(PREPARE, side_effect=OSError("no")):
        assert warehouse.run(service).status == "failed"
    assert warehouse.query("SELECT loads_seen FROM sync_runs ORDER BY started_at") == [(2,), (None,)]
    assert not warehouse.needs_audit()


def test_a_warehouse_that_does_not_tell_how_many_packages_were_seen_is_checked_once(warehouse: Warehouse) -> None:
    service = Service(seed=1)
    service.add_import("t", [{"n": 1}])
    assert warehouse.run(service).status == "succeeded"
    with duckdb.connect(str(warehouse.file)) as connection:
        connection.execute("ALTER TABLE importer_data.sync_runs DROP COLUMN loads_seen")
    for noticed in (True, False):
        assert warehouse.needs_audit() is noticed
        assert warehouse.run(service).status == "succeeded"


def test_loads_that_are_lost_leave_no_package_unnoticed(warehouse: Warehouse) -> None:
    """The numbers of packages that runs have seen would be too high for those that come."""
    service = Service(seed=1)
    service.add_import("t", [{"n": 1}])
    for _ in range(3):
        service.add_import("t", [{"n": 1}])
        assert warehouse.run(service).status == "succeeded"
    with duckdb.connect(str(warehouse.file)) as connection:
        connection.execute("DROP TABLE importer_data._dlt_loads")
    for _ in range(2):
        assert warehouse.run(service).status == "succeeded"
    warehouse.pipeline().run([{"n": 1}], table_name="of_the_user")
    assert warehouse.needs_audit()


def test_dlt_alone_is_the_only_writer_until_it_has_loaded(warehouse: Warehouse) -> None:
    service = Service(seed=1)
    service.add_import("t", [{"n": 1}])
    load = Pipeline.load
    refused: list[bool] = []

    def beside(pipeline: Pipeline, *args: object, **named: object) -> object:
        with ThreadPoolExecutor(1) as another:  # this one would begin anew, and so let go of the lock
            refused.append(isinstance(another.submit(warehouse.run, service).exception(), LockedError))
        return load(pipeline, *args, **named)  # type: ignore[arg-type]

    with mock.patch.object(Pipeline, "load", beside):
        run_dlt(service, warehouse)
    assert refused == [True]

    with sole_writer(warehouse.pipeline()), pytest.raises(PipelineStepFailed, match="is under way"):
        run_dlt(service, warehouse)
    assert warehouse.run(service).status == "succeeded"
    assert_equal(service, warehouse)


def test_dlt_alone_is_the_only_writer_though_its_thread_writes_elsewhere_meanwhile(
    warehouse: Warehouse, tmp_path: Path
) -> None:
    service = Service(seed=1)
    service.add_import("t", [{"n": 1}])
    elsewhere = Warehouse(tmp_path / "elsewhere")
    with serve(service) as url:
        pipeline = warehouse.pipeline()
        pipeline.extract(importer_source(base_url=url, access_token=service_token(service)))
    assert elsewhere.run(service).status == "succeeded"
    with ThreadPoolExecutor(1) as another, pytest.raises(LockedError):
        another.submit(warehouse.run, service).result()

    pipeline.normalize()
    pipeline.load()

    assert warehouse.run(service).status == "succeeded"
    assert_equal(service, warehouse)


@pytest.mark.parametrize("variable", ["LOAD__RAISE_ON_FAILED_JOBS", "IMPORTER__LOAD__RAISE_ON_FAILED_JOBS"])
def test_dlt_alone_is_not_told_to_count_what_failed_as_loaded(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    service = Service(seed=1)
    service.add_import("t", [{"n": 1}])
    monkeypatch.setenv(variable, "false")
    with pytest.raises(PipelineStepFailed, match="would count as loaded"):
        run_dlt(service, warehouse)

    with disk_full("records_t"):
        assert warehouse.run(service).status == "failed"
    assert warehouse.run(service).status == "succeeded"
    assert_equal(service, warehouse)


@pytest.mark.parametrize("step", ["normalize", "load"])
def test_dlt_alone_that_failed_keeps_nobody_out(warehouse: Warehouse, step: str) -> None:
    service = Service(seed=1)
    service.add_import("t", [{"n": 1}])
    with mock.patch.object(Pipeline, step, side_effect=OSError("disk full")), pytest.raises(OSError, match="disk full"):
        run_dlt(service, warehouse)

    assert warehouse.run(service).status == "succeeded"
    assert_equal(service, warehouse)


@pytest.mark.parametrize("batch_rows", [500_000, 1])
def test_a_record_that_moves_between_imports_is_live_once_where_deletes_are_kept(
    warehouse: Warehouse, batch_rows: int
) -> None:
    service = Service(seed=1)
    source = service.add_import("t", [{"n": 1}])
    moving = service.add_raw_record(source, TWICE)
    assert warehouse.run(service, deletes="keep").status == "succeeded"
    service.delete_row(source, moving)
    target = service.add_import("t", [{"n": 3}])
    service.add_raw_record(target, TWICE)

    warehouse.run(service, deletes="keep", batch_rows=batch_rows)
    assert warehouse.run(service, deletes="keep", batch_rows=batch_rows).status == "succeeded"

    for table, record, import_ in (("records", "slug", "import_slug"), ("records_t", "_record_slug", "_import_slug")):
        rows = warehouse.query(f"SELECT {import_}, _deleted_at IS NULL FROM {table} WHERE {record} = 'twice'")
        assert rows == [(target, True)]


def test_a_record_of_two_imports_is_noticed_in_a_run_that_repairs_one_of_them(warehouse: Warehouse) -> None:
    service = Service(seed=1)
    first = service.add_import("t", [{"n": 1}])
    service.add_raw_record(first, TWICE)
    assert warehouse.run(service).status == "succeeded"
    with duckdb.connect(str(warehouse.file)) as connection:  # as a run that died half way leaves it
        connection.execute("UPDATE importer_data.sync_runs SET status = 'running'")
        connection.execute("DELETE FROM importer_data.records WHERE slug <> 'twice'")
    second = service.add_import("u", [{"n": 3}])
    service.add_raw_record(second, TWICE)

    assert warehouse.run(service, batch_rows=1).status == "partial"


@pytest.mark.parametrize("together", [True, False], ids=["in one package", "over two runs"])
def test_dlt_alone_notices_a_record_of_two_imports(warehouse: Warehouse, together: bool) -> None:
    service = Service(seed=1)
    for template in ("t", "u"):
        slug = service.add_import(template, [{"n": 1}])
        service.add_raw_record(slug, TWICE)
        if not together:
            run_dlt(service, warehouse)
    for _ in range(2):
        run_dlt(service, warehouse)
        [(status, error)] = warehouse.query("SELECT status, error FROM sync_runs ORDER BY started_at DESC LIMIT 1")
        assert status == "partial"
        assert "came with more than one import" in error


@pytest.mark.parametrize("leave", [emptied, Service.delete_import], ids=["emptied", "deleted"])
def test_dlt_alone_lets_all_records_of_an_import_move(
    warehouse: Warehouse, leave: Callable[[Service, str], object]
) -> None:
    service = Service(seed=1)
    first, second = (service.add_import("t", [{"n": 1}]) for _ in range(2))
    service.add_raw_record(first, TWICE)
    run_dlt(service, warehouse)
    leave(service, first)
    service.add_raw_record(second, TWICE)
    run_dlt(service, warehouse)
    assert warehouse.query("SELECT status, error FROM sync_runs ORDER BY started_at DESC LIMIT 1") == [
        ("succeeded", None)
    ]
    assert warehouse.query("SELECT import_slug FROM records WHERE slug = 'twice'") == [(second,)]


def test_dlt_alone_stores_a_record_of_two_imports_once_after_a_run_that_merged_distinct_rows(
    warehouse: Warehouse,
) -> None:
    service = Service(seed=1)
    first, second = (service.add_import("t", [{"n": n}]) for n in range(2))
    assert warehouse.run(service).status == "succeeded"
    service.append_rows(first, [{"n": 2}])
    assert warehouse.run(service).status == "succeeded"  # a merge whose rows dlt need not search for duplicates
    for slug in (first, second):
        service.add_raw_record(slug, TWICE)
    for _ in range(2):
        run_dlt(service, warehouse)
        assert warehouse.query("SELECT status FROM sync_runs ORDER BY started_at DESC LIMIT 1") == [("partial",)]
        for table, key in (("records", "slug"), ("records_t", "_record_slug")):
            assert warehouse.query(f"SELECT count(*) FROM {table} WHERE {key} = 'twice'") == [(1,)]


def test_a_service_that_counts_too_few_rows_of_a_clamped_page_is_not_believed(warehouse: Warehouse) -> None:
    service = Service(seed=1, switches=Switches(max_per_page=10, default_per_page=10))
    slug = service.add_import("t", [{"n": n} for n in range(12)])
    service.set_row_count(slug, 10)

    assert warehouse.run(service).status == "partial"

    assert warehouse.query("SELECT count(*) FROM records") == [(12,)]


def _move_clock(warehouse: Warehouse, minutes: int) -> None:
    """Make all runs so far look as if the clock of their machine had been that far ahead."""
    moved = ", ".join(f"{name} = {name} + INTERVAL '{minutes} minutes'" for name in ("started_at", "finished_at"))
    with duckdb.connect(str(warehouse.file)) as connection:
        connection.execute(f"UPDATE importer_data.sync_runs SET {moved}")
