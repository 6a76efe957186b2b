"""The public names of the package: what a program imports, and what each returns and raises."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import dlt
import duckdb
import pytest
from dlt.extract import DltSource
from dlt.extract.exceptions import ResourceExtractionError
from dlt.pipeline.pipeline import Pipeline

import connector
from connector import Scope, Window, importer_source, status, sync, templates, verify
from connector.api import as_run
from connector.sandbox import Service, serve
from connector.settings import Settings
from tests.cli.test_runs import KEYS

TOKEN = "very-secret-token-4711"
ENVIRONMENT = """
import os, logging
before = dict(os.environ)
import connector
for name in connector.__all__:
    getattr(connector, name)
assert dict(os.environ) == before, set(os.environ.items()) ^ set(before.items())
assert not logging.getLogger("dlt").filters
assert not logging.getLogger("connector").handlers
"""


@pytest.fixture
def service() -> Service:
    service = Service(seed=3, token=TOKEN)
    service.add_generated("customers", imports=2, rows=30)
    service.add_generated("orders", imports=1, rows=10)
    return service


@pytest.fixture
def source(service: Service) -> Iterator[Callable[..., DltSource]]:
    with serve(service) as url:
        yield lambda **settings: importer_source(base_url=url, access_token=service.token, **settings)


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    file = tmp_path / "warehouse.duckdb"
    return dlt.pipeline(
        "api", destination=dlt.destinations.duckdb(str(file)), dataset_name="data", pipelines_dir=str(tmp_path / "dlt")
    )


def test_a_sync_keeps_the_views(pipeline: Pipeline, source: Callable[..., DltSource], service: Service) -> None:
    sync(pipeline, source(views=False))
    assert columns_of_customers(pipeline) == set()
    sync(pipeline, source())
    assert columns_of_customers(pipeline), "nothing was loaded, and there were no views yet"
    service.append_rows(service.slugs()[0], [{"brand new": 1}])
    sync(pipeline, source())
    assert "brand new" in columns_of_customers(pipeline)


def test_views_that_cannot_be_made_are_a_warning(
    pipeline: Pipeline, source: Callable[..., DltSource], caplog: pytest.LogCaptureFixture
) -> None:
    sync(pipeline, source(views=False))
    with pipeline.sql_client() as client:
        client.execute_sql("CREATE SCHEMA data_views; CREATE TABLE data_views.v_imports (a INTEGER)")
    assert sync(pipeline, source(), scope=Scope(full=True)).status == "succeeded"
    assert "The views for analysts are not up to date: data_views.v_imports already exists" in caplog.text


def columns_of_customers(pipeline: Pipeline) -> set[str]:
    with pipeline.sql_client() as client:
        sql = "SELECT column_name FROM duckdb_columns() WHERE schema_name = 'data_views' AND table_name = 'customers'"
        return {str(name) for (name,) in client.execute_sql(sql) or ()}


def test_every_public_name_is_there_and_says_what_it_is() -> None:
    for name in connector.__all__:
        public = getattr(connector, name)
        assert inspect.getdoc(public), name
    assert set(connector.__all__) <= set(dir(connector))
    with pytest.raises(AttributeError):
        connector.nonsense  # noqa: B018


@pytest.mark.parametrize("name", ["importer_source", "plan", "run_and_exit", "status", "sync", "templates", "verify"])
def test_the_arguments_of_a_function_are_described(name: str) -> None:
    function = inspect.unwrap(getattr(connector, name))
    described = inspect.getdoc(function) or ""
    for argument in inspect.signature(function).parameters:
        assert f"\n    {argument}: " in described, argument
    assert "Any" not in str(inspect.signature(function).return_annotation)


def test_the_source_has_an_argument_for_each_setting() -> None:
    arguments = inspect.signature(inspect.unwrap(importer_source)).parameters
    assert [*arguments] == [*Settings.model_fields, "updated_at", "http_client"]


def test_importing_has_no_effect() -> None:
    ended = subprocess.run(
        [sys.executable, "-P", "-c", ENVIRONMENT], capture_output=True, text=True, env=dict(os.environ), check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_sync_a_backfill_and_a_look(
    pipeline: Pipeline,
    source: Callable[..., DltSource],
    service: Service,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    first = sync(pipeline, source(batch_rows=30))
    assert {field.name for field in dataclasses.fields(first)} == KEYS
    assert first.tables == {"imports": 3, "records": 70, "records_customers": 60, "records_orders": 10}
    assert sorted(first.templates.values()) == [10, 60]
    assert (first.status, first.mode, first.records_loaded) == ("succeeded", "incremental", 70)
    assert len(first.load_ids) > 1
    assert (first.error, first.requests > 0) == (None, True)

    loaded = templates(pipeline)
    assert [(each.name, each.table, each.imports, each.records) for each in loaded] == [
        ("customers", "records_customers", 2, 60),
        ("orders", "records_orders", 1, 10),
    ]
    assert {each.slug: each.records for each in loaded} == first.templates
    assert {each.slug for each in loaded} == {shown["template"]["slug"] for shown in service.imports()}

    slug = service.slugs()[0]
    again = sync(pipeline, source(), scope=Scope(imports=[slug]))
    assert (again.mode, again.imports_changed, again.records_loaded) == ("backfill", 1, 30)
    assert again.tables == {"imports": 1, "records": 30, "records_customers": 30}

    found = status(pipeline, runs=1)
    assert [run.run_id for run in found.runs] == [again.run_id]
    assert (found.fresh_as_of, found.records, found.open) == (first.started_at, 70, ())

    assert verify(pipeline, source(), deep=True).equal
    with duckdb.connect(str(tmp_path / "warehouse.duckdb")) as connection:
        connection.execute(f"DELETE FROM data.records WHERE import_slug = '{slug}' AND sort = 1")
    seen = verify(pipeline, source())
    assert not seen.equal
    assert {difference.import_slug for difference in seen.differences} == {slug}
    assert capfd.readouterr() == ("", "")
    assert not logging.getLogger("dlt").filters


def test_a_directory_that_lost_its_schema_stops_nothing(
    pipeline: Pipeline, source: Callable[..., DltSource], tmp_path: Path
) -> None:
    """A killed process may leave dlt's state without the schema that it names."""
    sync(pipeline, source())
    schemas = Path(pipeline.working_dir, "schemas")

    def opened() -> Pipeline:
        for file in schemas.glob("*"):
            file.unlink()
        return dlt.pipeline(
            pipeline.pipeline_name,
            destination=dlt.destinations.duckdb(str(tmp_path / "warehouse.duckdb")),
            dataset_name=pipeline.dataset_name,
            pipelines_dir=pipeline.pipelines_dir,
        )

    assert status(opened()).records == 70
    assert verify(opened(), source()).equal
    assert sync(opened(), source()).status == "succeeded"


def test_status_counts_records_that_are_in_typed_tables_only(
    pipeline: Pipeline, source: Callable[..., DltSource], service: Service
) -> None:
    sync(pipeline, source(raw=False))
    assert status(pipeline).records == 70
    (slug,) = service.add_generated("stock", imports=1, rows=5)
    sync(pipeline, source(raw=True))
    assert status(pipeline).records == 75
    service.delete_import(slug)
    sync(pipeline, source(raw=True))
    assert status(pipeline).records == 70


def test_a_partial_run_returns_and_a_failed_one_raises(
    pipeline: Pipeline, source: Callable[..., DltSource], service: Service, tmp_path: Path
) -> None:
    service.faults = dataclasses.replace(service.faults, failing_imports=frozenset(service.slugs()[:1]))
    assert (sync(pipeline, source()).status, sync(pipeline, source()).imports_failed) == ("partial", 1)
    assert [each.state for each in status(pipeline).open] == ["failed"]
    assert sum(each.open for each in templates(pipeline)) == 1
    new = service.add_import("suppliers", [{"n": 1}])
    service.faults = dataclasses.replace(service.faults, failing_imports={new})
    assert sync(pipeline, source()).status == "partial"
    assert [(each.slug is None, each.imports) for each in templates(pipeline) if each.open] == [(False, 1)]
    assert {each.name: each.open for each in templates(pipeline)} == {"customers": 0, "orders": 0, "suppliers": 1}
    with duckdb.connect(str(tmp_path / "warehouse.duckdb")) as connection:  # as after a run that ended early
        connection.execute("DELETE FROM data.sync_imports WHERE slug = ?", [new])
    assert {each.name: (each.imports, each.open) for each in templates(pipeline)}["suppliers"] == (1, 1)
    with pytest.raises(connector.AuthError, match="401"):
        sync(pipeline, importer_source(base_url=source_url(source), access_token="wrong-token"))


class Ended(BaseException):
    """How an orchestrator ends a step, from whatever line it is at."""


def test_a_run_that_is_ended_from_outside_is_no_success(
    pipeline: Pipeline, source: Callable[..., DltSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sync(pipeline, source()).status == "succeeded"
    fresh = status(pipeline).fresh_as_of

    def end(*_: object) -> None:
        raise Ended

    with monkeypatch.context() as patched:
        patched.setattr("connector.run.sync._load_packages", end)
        with pytest.raises(Ended):
            sync(pipeline, source())
    assert [run.status for run in status(pipeline).runs] == ["interrupted", "succeeded"]
    assert status(pipeline).fresh_as_of == fresh
    assert sync(pipeline, source()).status == "succeeded"


def source_url(source: Callable[..., DltSource]) -> str:
    from connector.source import settings_of

    return settings_of(source(), "importer").base_url


def test_a_warehouse_that_is_not_there(pipeline: Pipeline, source: Callable[..., DltSource]) -> None:
    assert status(pipeline).runs == ()
    with pytest.raises(connector.ConnectorError, match="no warehouse"):
        verify(pipeline, source())


def test_reading_the_source_without_a_pipeline_says_what_to_do(source: Callable[..., DltSource]) -> None:
    for name in ("imports", "records"):
        with pytest.raises(ResourceExtractionError, match=r"pipeline\.run\(importer_source\(\)\)") as refused:
            list(source().resources[name])
        assert isinstance(refused.value.__cause__, connector.ConfigError)


def test_a_sync_takes_the_whole_source(pipeline: Pipeline, source: Callable[..., DltSource]) -> None:
    @dlt.source
    def other() -> dlt.sources.DltResource:
        return dlt.resource([1], name="imports")

    wrongs: list[Any] = [source().with_resources("imports"), other(), {}, source().records]
    for wrong in wrongs:
        with pytest.raises(connector.ConfigError, match="both of its resources"):
            sync(pipeline, wrong)
    scope: Any = {"full": True}
    with pytest.raises(connector.ConfigError, match=r"takes a connector\.Scope"):
        sync(pipeline, source(), scope=scope)
    with pytest.raises(connector.ConfigError, match="updated_at takes an incremental"):
        source(updated_at="2026-01-01")


@pytest.mark.parametrize("call", [sync, verify, connector.plan])
def test_changes_to_a_source_that_only_gives_its_settings_are_refused(
    pipeline: Pipeline, source: Callable[..., DltSource], call: Callable[..., object]
) -> None:
    def masked() -> DltSource:
        changed = source()
        changed.resources["records"].add_map(lambda row: row)
        return changed

    window = dlt.sources.incremental("updated_at", initial_value="2026-01-01")
    for changed, why in (
        (masked(), "records: a step such as add_map"),
        (source().add_limit(1), "add_limit"),
        (source(updated_at=window), r"Scope\(window="),
    ):
        with pytest.raises(connector.ConfigError, match=why):
            call(pipeline, changed)
    assert status(pipeline).runs == ()


def test_a_scope_is_a_backfill_if_it_selects_anything() -> None:
    since = datetime(2026, 1, 1, tzinfo=UTC)
    assert (as_run(None).mode, as_run(Scope()).force) == ("incremental", False)
    selecting = (Scope(full=True), Scope(imports=["a"]), Scope(templates=["t"]), Scope(window=Window(since=since)))
    assert {(as_run(scope).mode, as_run(scope).force) for scope in selecting} == {("backfill", True)}
    assert as_run(Scope(templates=["t"])).selection.template == "t"
    wrong: dict[str, Any]
    for wrong in (
        {"full": True, "imports": ["a"]},
        {"templates": ["a", "b"]},
        {"templates": "customers"},
        {"imports": "a"},
        {"imports": []},
        {"imports": iter(())},
        {"imports": b"a"},
        {"imports": set(), "window": Window(since=since)},
    ):
        with pytest.raises(connector.ConfigError):
            Scope(**wrong)


@pytest.mark.parametrize("since", [date(2026, 1, 1), "2026-01-01", datetime.fromisoformat("0001-01-01T00:00+02:00")])
def test_a_window_takes_times_alone(since: datetime) -> None:
    with pytest.raises(connector.ConfigError, match="since of a window"):
        Window(since=since)
