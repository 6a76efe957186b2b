"""The definitions for Dagster, executed: what is materialised, which checks fail, what backfills and the sensor do.

They run where dagster is installed, which `make dagster` sees to.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import dlt
import duckdb
import pytest

from connector import sync
from connector.sandbox import Service, serve

dagster = pytest.importorskip("dagster")

DEFINITIONS = Path(__file__).parents[2] / "pipelines" / "dagster_defs.py"
HOLDING = "import duckdb, sys; c = duckdb.connect('importer.duckdb'); print('open', flush=True); sys.stdin.read()"


@pytest.fixture
def service() -> Service:
    service = Service(seed=3)
    service.add_generated("customers", imports=3, rows=20)
    service.add_generated("orders", imports=1, rows=10)
    return service


@pytest.fixture
def defs(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], ModuleType]]:
    """Load the file anew, as each process of Dagster does, in a directory with a warehouse."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DLT_DATA_DIR", str(tmp_path / "dlt"))
    monkeypatch.setenv("DAGSTER_HOME", "")
    with serve(service) as url:
        monkeypatch.setenv("SOURCES__IMPORTER__BASE_URL", url)
        monkeypatch.setenv("SOURCES__IMPORTER__ACCESS_TOKEN", service.token)
        here = dlt.pipeline("importer", destination="duckdb", dataset_name="importer_data")
        assert sync(here).status == "succeeded"
        yield load


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dagster_defs", DEFINITIONS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def instance() -> Iterator[Any]:
    with dagster.DagsterInstance.ephemeral() as instance:
        yield instance


def execute(module: ModuleType, job: str, instance: Any, **options: Any) -> Any:
    found = module.defs.resolve_job_def(job)
    return found.execute_in_process(instance=instance, raise_on_error=False, **options)


def checks(result: Any) -> dict[tuple[str, str], bool]:
    found = result.get_asset_check_evaluations()
    return {(each.asset_key.path[-1], each.check_name): each.passed for each in found}


def materialised(result: Any) -> dict[str, dict[str, Any]]:
    found = [event.materialization for event in result.get_asset_materialization_events()]
    events = [event.asset_materialization if hasattr(event, "asset_materialization") else event for event in found]
    return {each.asset_key.path[-1]: {name: value.value for name, value in each.metadata.items()} for each in events}


def test_a_sync_materialises_each_template(defs: Callable[[], ModuleType], service: Service, instance: Any) -> None:
    module = defs()
    service.append_rows(service.slugs()[0], [{"a": 1}])
    result = execute(module, "importer_sync_job", instance)
    assert result.success
    found = materialised(result)
    assert set(found) == {"imports", "records_customers", "records_orders"}
    assert found["imports"]["imports_changed"] == 1
    assert (found["records_customers"]["records_loaded"], found["records_customers"]["dagster/row_count"]) == (21, 61)
    assert (found["records_orders"]["records_loaded"], found["records_orders"]["dagster/row_count"]) == (0, 10)
    assert checks(result) == {
        ("imports", "reconciled"): True,
        ("imports", "fresh"): True,
        ("records_customers", "reconciled"): True,
        ("records_orders", "reconciled"): True,
    }


def test_a_partial_run_fails_the_checks_of_what_is_open(
    defs: Callable[[], ModuleType], service: Service, instance: Any
) -> None:
    failing = service.slugs()[0]
    service.append_rows(failing, [{"a": 1}])
    service.faults = replace(service.faults, failing_imports=frozenset([failing]))
    result = execute(defs(), "importer_sync_job", instance)
    assert checks(result) == {
        ("imports", "reconciled"): False,
        ("imports", "fresh"): True,
        ("records_customers", "reconciled"): False,
        ("records_orders", "reconciled"): True,
    }


def test_a_backfill_reads_its_partition_and_nothing_else(
    defs: Callable[[], ModuleType], service: Service, instance: Any
) -> None:
    module = defs()
    service.requests.clear()
    result = execute_asset(module, "backfill_by_template", instance, "records_customers")
    assert result.success
    assert materialised(result)["backfill_by_template"]["records_loaded"] == 60
    assert checks(result) == {("backfill_by_template", "reconciled"): True}
    day = service.imports()[-1]["updated_at"][:10]
    result = execute_asset(module, "backfill_by_day", instance, day)
    listed = [each for each in service.imports() if each["updated_at"][:10] == day]
    assert materialised(result)["backfill_by_day"]["imports_changed"] == len(listed)


def execute_asset(module: ModuleType, name: str, instance: Any, partition: str) -> Any:
    return dagster.materialize(
        [getattr(module, name)], instance=instance, partition_key=partition, raise_on_error=False
    )


def test_a_row_that_is_missing_fails_the_check(defs: Callable[[], ModuleType], instance: Any) -> None:
    module = defs()
    assert checks(execute(module, "importer_verify_job", instance)) == {("imports", "verified"): True}
    with duckdb.connect("importer.duckdb") as connection:
        connection.execute("DELETE FROM importer_data.records WHERE sort = 1")
    assert checks(execute(module, "importer_verify_job", instance)) == {("imports", "verified"): False}


def test_the_sensor_waits_for_an_import_that_turns_completed(
    defs: Callable[[], ModuleType], service: Service, instance: Any
) -> None:
    module = defs()
    assert sensed(module, instance) == [False]
    slug = service.add_import("customers", [{"a": 1}], status="submitting")
    assert sensed(module, instance) == [False]
    service.set_status(slug, "completed")
    assert sensed(module, instance) == [True]


def sensed(module: ModuleType, instance: Any) -> list[bool]:
    context = dagster.build_sensor_context(instance=instance, definitions=module.defs)
    return [isinstance(each, dagster.RunRequest) for each in module.import_completed(context)]


def test_settings_that_cannot_be_are_not_tried_again(
    defs: Callable[[], ModuleType], monkeypatch: pytest.MonkeyPatch, instance: Any
) -> None:
    module = defs()
    monkeypatch.setenv("SOURCES__IMPORTER__ACCESS_TOKEN", "wrong")
    result = execute(module, "importer_sync_job", instance)
    assert not result.success
    [failure] = [event for event in result.all_events if event.is_step_failure]
    assert "401" in failure.step_failure_data.error_display_string
    assert not [event for event in result.all_events if event.is_step_up_for_retry]


def test_the_templates_are_known_while_a_run_has_the_file_open(defs: Callable[[], ModuleType]) -> None:
    before = defs().TABLES
    assert set(before) == {"records_customers", "records_orders"}
    holder = subprocess.Popen([sys.executable, "-c", HOLDING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        assert before == defs().TABLES
    finally:
        holder.communicate("")
