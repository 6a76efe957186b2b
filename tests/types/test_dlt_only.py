"""`pipeline.run(importer_source(...))` and nothing else: the command's tables, and what users may change."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import dlt
import duckdb
import pytest
from dlt.pipeline.exceptions import PipelineStepFailed

from connector import ConfigError, importer_source
from connector.sandbox import Service, Template, serve
from tests.types.conftest import DuckDB, Row, Warehouse
from tests.types.reader import assert_rows

pytestmark = pytest.mark.thorough

OF_THE_RUN = {"_dlt_load_id", "run_id", "seen_at", "first_seen_at", "last_seen_at", "last_synced_at", "reject_id"}
OF_ITS_TIME = {"started_at", "finished_at", "load_ids", "loads_seen", "requests", "bytes_received"}


def populated() -> Service:
    service = Service(seed=3)
    service.add_generated("customers", imports=2, rows=30)
    service.add_import(template="odd", rows=['{"a":0.10,"b":"x\\u0000","":[1]}', '{"a":"N/A","b":{"c":null}}', "{}"])
    service.add_import(rows=[])
    service.add_raw_record(service.slugs()[2], '{"data": {"a": 1}}')
    return service


def everything(warehouse: Warehouse) -> dict[str, list[Row]]:
    with warehouse.held():
        tables = [name for name in warehouse.tables("") if not name.startswith("_dlt")]
        found = {table: warehouse.rows(f'SELECT * FROM "{table}"') for table in tables}
    return {table: sorted((_lasting(row) for row in rows), key=repr) for table, rows in found.items()}


def _lasting(row: Row) -> Row:
    """Without what differs from run to run."""
    kept = {name: cell for name, cell in row.items() if name not in OF_THE_RUN | OF_ITS_TIME}
    return {**kept, "_deleted_at": row.get("_deleted_at") is not None}


def assert_same_tables(one: Warehouse, other: Warehouse) -> None:
    first, second = everything(one), everything(other)
    assert list(first) == list(second)
    for table, rows in first.items():
        assert sorted(map(_sorted, rows)) == sorted(map(_sorted, second[table])), table


def _sorted(row: Row) -> str:
    return repr(sorted(row.items()))


def test_the_same_tables_as_the_command(duck: DuckDB, tmp_path: Path) -> None:
    command, dlt_only = duck, DuckDB(tmp_path)
    service = populated()
    command.run(service)
    dlt_only.run_dlt(service)
    assert_same_tables(command, dlt_only)

    service.append_rows(service.slugs()[2], [{"a": 10**30, "new": True}])
    service.delete_import(service.slugs()[0])
    command.run(service)
    dlt_only.run_dlt(service)
    assert_same_tables(command, dlt_only)
    service.requests.clear()
    dlt_only.run_dlt(service)
    assert service.requests["records"] == 0


def test_one_resource_alone_and_then_the_other(duck: DuckDB) -> None:
    service = populated()
    duck.run_dlt(service, lambda source: source.with_resources("imports"))
    assert duck.tuples("SELECT count(*) FROM imports") == [(4,)]
    assert duck.tuples("SELECT count(*) FROM records") == [(0,)]
    assert service.requests["records"] == 0
    service.delete_import(service.slugs()[0])
    duck.run_dlt(service, lambda source: source.with_resources("records"))
    assert_rows_without_reject(duck, service)
    assert duck.tuples("SELECT count(*) FROM imports WHERE _deleted_at IS NULL") == [(4,)]
    duck.run_dlt(service)
    assert_rows_without_reject(duck, service)
    assert duck.tuples("SELECT count(*) FROM imports WHERE _deleted_at IS NULL") == [(3,)]
    assert duck.tuples("SELECT mode, status FROM sync_runs ORDER BY started_at") == [
        ("imports only", "succeeded"),
        ("records only", "partial"),  # one record is in sync_rejects only
        ("incremental", "partial"),
    ]


def test_an_older_copy_of_the_warehouse_may_be_put_back_while_dlt_keeps_its_own(duck: DuckDB, tmp_path: Path) -> None:
    """A key of metadata, and a field of a record, come again with another type than dlt has seen."""
    service = Service(seed=3)
    service.add_import(template="t", rows=[{"a": 1}])
    duck.run_dlt(service)
    copy = shutil.copy(duck.file, tmp_path / "copy")
    later = service.add_import(template="t", rows=[{"a": 1, "b": 2}], metadata={"n": 5})
    duck.run_dlt(service)
    shutil.copy(copy, duck.file)
    service.delete_import(later)
    service.add_import(template="t", rows=[{"a": 1, "b": "two"}], metadata={"n": "five"})
    for _ in range(2):
        duck.run_dlt(service)
        assert_rows(duck, service)
        assert duck.tuples("SELECT metadata__n FROM imports ORDER BY created_at") == [(None,), ("five",)]


def own_pipeline(duck: DuckDB, folder: Path, dataset: str) -> dlt.Pipeline:
    """A pipeline that has another working directory than the command."""
    return dlt.pipeline("importer", pipelines_dir=str(folder), destination=duck.destination(), dataset_name=dataset)


def run_own(pipeline: dlt.Pipeline, service: Service) -> None:
    with serve(service) as url:
        pipeline.run(importer_source(base_url=url, access_token=service.token))


def test_a_table_belongs_to_the_template_that_the_warehouse_says_whatever_dlt_has_seen(
    duck: DuckDB, tmp_path: Path
) -> None:
    """With a working directory of dlt's that has seen another dataset, in which another template had the name."""
    service, other = Service(seed=3), Service(seed=4)
    other.add_import(Template("Orders", "former"), [{"q": "x"}])
    run_own(own_pipeline(duck, tmp_path / "own", "other"), other)
    kept, edited = service.add_import("Customers", [{"a": 1}]), service.add_import("Orders", [{"q": "x"}])
    assert duck.run(service).status == "succeeded"
    service.append_rows(kept, [{"a": 2}])
    run_own(own_pipeline(duck, tmp_path / "own", duck.dataset), service)
    assert duck.run(service, history=["Orders"]).status == "succeeded"
    service.edit_row(edited, next(iter(service.record_slugs(edited))), {"q": "new"})
    assert duck.run(service, history=["Orders"]).status == "succeeded"
    assert duck.tuples("SELECT q FROM records_orders_history ORDER BY _valid_from") == [("x",), ("new",)]


@pytest.mark.filterwarnings("ignore:The 'warn' method is deprecated:DeprecationWarning")
def test_a_pending_package_of_another_dataset_is_not_loaded(duck: DuckDB, tmp_path: Path) -> None:
    services = {"one": Service(seed=3), "two": Service(seed=4)}
    for dataset, service in services.items():
        service.add_import("t", [{"a": 1}])
        run_own(own_pipeline(duck, tmp_path / "own", dataset), service)
    services["one"].add_import("t", [{"a": "of one alone"}])
    pipeline = own_pipeline(duck, tmp_path / "own", "one")
    with serve(services["one"]) as url:
        pipeline.extract(importer_source(base_url=url, access_token=services["one"].token))
        pipeline.normalize()
    with pytest.raises(ConfigError, match="or it belongs to another dataset"):
        run_own(own_pipeline(duck, tmp_path / "own", "two"), services["two"])
    run_own(own_pipeline(duck, tmp_path / "own", "one"), services["one"])
    with duckdb.connect(str(duck.file), read_only=True) as connection:
        sql = "SELECT (SELECT count(*) FROM one.records), (SELECT count(*) FROM two.records)"
        assert connection.sql(sql).fetchall() == [(2, 1)]


@pytest.mark.filterwarnings("ignore:The 'warn' method is deprecated:DeprecationWarning")
def test_what_was_compared_with_one_dataset_is_not_loaded_into_another(duck: DuckDB) -> None:
    """dlt extracts with the dataset of the last run, and loads into the one that this run names."""
    service = Service(seed=3)
    service.add_import("t", [{"a": 1}])
    pipeline = own_pipeline(duck, duck.folder / "own", "one")
    run_own(pipeline, service)
    with serve(service) as url:
        with pytest.raises(ConfigError, match="was compared with another dataset than 'two'"):
            pipeline.run(importer_source(base_url=url, access_token=service.token), dataset_name="two")
        pipeline.abort_packages()
        pipeline.extract(importer_source(base_url=url, access_token=service.token))
        pipeline.normalize()
        with pytest.raises(ConfigError, match="was compared with another dataset than 'two'"):
            pipeline.load(dataset_name="two")
        pipeline.abort_packages()
        service.append_rows(service.slugs()[0], [{"a": 2}])
        pipeline.run(importer_source(base_url=url, access_token=service.token), dataset_name="one")
    with duckdb.connect(str(duck.file), read_only=True) as connection:
        assert connection.sql("SELECT count(*) FROM one.records").fetchall() == [(2,)]
        assert (
            connection.sql("FROM duckdb_tables() WHERE schema_name = 'two' AND table_name = 'records'").fetchall() == []
        )


def test_a_dataset_for_each_schema_is_refused(duck: DuckDB, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USE_SINGLE_DATASET", "false")
    with pytest.raises(PipelineStepFailed, match="use_single_dataset = false"):
        duck.run_dlt(populated())
    monkeypatch.setenv("PIPELINES__IMPORTER__USE_SINGLE_DATASET", "true")
    duck.run_dlt(populated())


@pytest.mark.filterwarnings("ignore:The 'warn' method is deprecated:DeprecationWarning")
def test_a_pending_package_is_not_loaded_into_an_older_copy_with_as_many_loads(duck: DuckDB, tmp_path: Path) -> None:
    service = Service(seed=3)
    slug = service.add_import("t", [{"a": 1}])
    own = own_pipeline(duck, tmp_path / "own", duck.dataset)
    run_own(own, service)
    copy = shutil.copy(duck.file, tmp_path / "copy")
    service.append_rows(slug, [{"a": 2}])
    assert duck.run(service).status == "succeeded"
    service.append_rows(slug, [{"a": 3}])
    with serve(service) as url:
        own.extract(importer_source(base_url=url, access_token=service.token))
        own.normalize()
    shutil.copy(copy, duck.file)
    service.append_rows(slug, [{"a": 4}])
    assert duck.run(service).status == "succeeded"
    with pytest.raises(ConfigError, match="is outdated"):
        run_own(own, service)
    assert_rows(duck, service)


def assert_rows_without_reject(warehouse: Warehouse, service: Service) -> None:
    odd = next(i["slug"] for i in service.imports() if (i["template"] or {}).get("name") == "odd")
    rejected = list(service.record_slugs(odd))[-1]
    there = {slug for (slug,) in warehouse.tuples("SELECT slug FROM records WHERE _deleted_at IS NULL")}
    everyone = {slug for i in service.imports() for slug in service.record_slugs(i["slug"])}
    assert there == everyone - {rejected}


def test_a_window_bounds_what_is_read_and_decides_nothing(duck: DuckDB) -> None:
    service = Service(seed=3)
    for n in range(6):
        service.add_import(template="t", rows=[{"n": n}])
    times = sorted(datetime.fromisoformat(i["updated_at"]) for i in service.imports())
    window = dlt.sources.incremental("updated_at", initial_value=times[1].isoformat(), end_value=times[4].isoformat())
    duck.run_dlt(service, updated_at=window)
    assert sorted(n for (n,) in duck.tuples("SELECT n FROM records_t")) == [1, 2, 3]
    bounds = duck.tuples("SELECT window_since, window_until FROM sync_runs")
    assert [(since.isoformat(), until.isoformat()) for since, until in bounds] == [
        (times[1].isoformat(), times[4].isoformat())
    ]
    since = dlt.sources.incremental("updated_at", initial_value=times[5])
    duck.run_dlt(service, updated_at=since)
    assert sorted(n for (n,) in duck.tuples("SELECT n FROM records_t")) == [1, 2, 3, 5]
    duck.run_dlt(service)
    assert_rows(duck, service)


@pytest.mark.parametrize(
    "wrong",
    [
        dlt.sources.incremental("created_at"),
        dlt.sources.incremental("updated_at", initial_value="yesterday"),
        dlt.sources.incremental("updated_at", range_end="closed"),
        dlt.sources.incremental("updated_at", initial_value="2026-02-01", end_value="2026-01-01"),
        dlt.sources.incremental("updated_at", initial_value="2026-01-01", last_value_func=min),
    ],
)
def test_a_window_that_is_none_is_refused(duck: DuckDB, wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"updated_at|window ends"):
        duck.run_dlt(Service(seed=3), updated_at=wrong)


def _on(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def changed(source: Any) -> Any:
        change(source)
        return source

    return changed


REFUSED = {
    "write_disposition": lambda s: s.records.apply_hints(write_disposition="append"),
    "replace": lambda s: s.imports.apply_hints(write_disposition="replace"),
    "primary_key": lambda s: s.records.apply_hints(primary_key="sort"),
    "merge_key": lambda s: s.records.apply_hints(merge_key="sort"),
    "table_name": lambda s: s.records.apply_hints(table_name="rows"),
    "columns": lambda s: s.records.apply_hints(columns={"a": {"data_type": "date"}}),
    "incremental": lambda s: s.imports.apply_hints(incremental=dlt.sources.incremental("updated_at")),
    "schema_contract": lambda s: s.records.apply_hints(schema_contract="freeze"),
    "file_format": lambda s: s.records.apply_hints(file_format="csv"),
    "add_limit": lambda s: s.add_limit(1),
    "add_map": lambda s: s.records.add_map(lambda rows: rows),
    "add_filter": lambda s: s.records.add_filter(lambda rows: True),
    "parallelize": lambda s: s.parallelize(),
    "parallelize one": lambda s: s.records.parallelize(),
    "source contract": lambda s: setattr(s, "schema_contract", {"columns": "discard_value"}),
}


def test_what_would_break_the_sync_is_refused_in_a_sentence_before_anything_is_read(duck: DuckDB) -> None:
    service = populated()
    duck.run_dlt(service)
    before = everything(duck)
    service.append_rows(service.slugs()[0], [{"name": "one more"}])
    service.requests.clear()
    for name, change in REFUSED.items():
        with pytest.raises(PipelineStepFailed) as failed:
            duck.run_dlt(service, _on(change))
        assert "The source cannot be run with these changes: " in str(failed.value), name
    assert not service.requests
    assert everything(duck) == before
    duck.run_dlt(service)
    assert_rows_without_reject(duck, service)


@pytest.mark.parametrize(
    "given",
    [
        lambda source: source.records,
        lambda source: [source.imports, source.records],
        lambda source: source.clone("other"),
    ],
    ids=["one resource", "its resources", "another name"],
)
def test_only_the_source_itself_is_loaded(duck: DuckDB, given: Any) -> None:
    """What dlt stores about tables and loads is found by the name of the source: a rebuild, an outdated package."""
    service = populated()
    folder = str(duck.folder / "pipelines")
    pipeline = dlt.pipeline("mine", destination=duck.destination(), dataset_name=duck.dataset, pipelines_dir=folder)
    with serve(service) as url:

        def source() -> Any:
            return importer_source(base_url=url, access_token=service.token)

        with pytest.raises(PipelineStepFailed, match="The source cannot be run with these changes: schema "):
            pipeline.run(given(source()))
        with pytest.raises(PipelineStepFailed, match="resources called rows "):
            pipeline.run(source().records.with_name("rows"))
        assert not service.requests
        pipeline.run(source())
    assert_rows_without_reject(duck, service)


def test_arguments_of_the_run_are_refused_likewise(duck: DuckDB) -> None:
    service = populated()
    with serve(service) as url:
        duck.pipeline().run(importer_source(base_url=url, access_token=service.token))
        arguments: list[dict[str, Any]] = [
            {"write_disposition": "append"},
            {"schema_contract": "freeze"},
            {"table_name": "rows"},
            {"refresh": "drop_sources"},
            {"refresh": "drop_data"},
        ]
        for each in arguments:
            with pytest.raises(PipelineStepFailed, match="The source cannot be run with these changes"):
                duck.pipeline().run(importer_source(base_url=url, access_token=service.token), **each)
    duck.run_dlt(service)
    assert_rows_without_reject(duck, service)


def test_two_syncs_are_not_extracted_before_the_first_is_loaded(duck: DuckDB) -> None:
    """The second would note the imports of the first as excluded."""
    service = Service(seed=3)
    for template in ("a", "b"):
        service.add_import(template=template, rows=[{"n": 1}])
    with serve(service) as url:
        pipeline = duck.pipeline()

        def source(template: str) -> Any:
            return importer_source(base_url=url, access_token=service.token, templates=[template])

        with pytest.raises(PipelineStepFailed, match="loaded in one pipeline"):
            pipeline.run([source("a"), source("b")])
        pipeline.run(source("a"))
        pipeline.extract(source("b"))
        with pytest.raises(PipelineStepFailed, match="packages that are not loaded yet"):
            pipeline.extract(source("a"))
        pipeline.normalize()
        pipeline.load()
    states = duck.tuples("SELECT slug, state FROM sync_imports")
    assert sorted(states) == sorted(zip(service.slugs(), ["excluded", "synced"], strict=True))
    assert len(duck.tuples("SELECT n FROM records_a UNION ALL SELECT n FROM records_b")) == 2


def test_what_changes_nothing_is_accepted(duck: DuckDB) -> None:
    service = populated()

    def change(source: Any) -> None:
        source.max_table_nesting = 0
        source.schema_contract = {"tables": "evolve", "columns": "evolve", "data_type": "freeze"}
        source.records.apply_hints(write_disposition="merge", schema_contract="evolve")
        source.records.max_table_nesting = 1

    duck.run_dlt(service, _on(change))
    assert_rows_without_reject(duck, service)


@pytest.mark.parametrize(("name", "value", "exact"), [("flavor", "spark", ""), ("coerce_timestamps", "ms", "us")])
@pytest.mark.parametrize("section", ["", "SOURCES__", "SOURCES__IMPORTER__"])
def test_times_that_dlt_is_to_alter_are_refused_unless_this_pipeline_is_excepted(
    duck: DuckDB, monkeypatch: pytest.MonkeyPatch, name: str, value: str, exact: str, section: str
) -> None:
    monkeypatch.setenv(f"{section}DATA_WRITER__{name.upper()}", value)
    monkeypatch.setenv(f"{section}DATA_WRITER__ALLOW_TRUNCATED_TIMESTAMPS", "true")
    service = Service(seed=1)
    service.add_import("t", [{"day": "9999-12-31T23:59:59.999999Z"}])
    hints = {"records_t": {"day": "timestamp"}}
    with pytest.raises(ConfigError, match=rf'{name} = "{value}" under \[data_writer\]'):
        duck.run(service, hints=hints)
    with pytest.raises(PipelineStepFailed, match=rf'set {name} = "{exact}" under \[importer.data_writer\]'):
        duck.run_dlt(service, hints=hints)
    assert not service.requests

    monkeypatch.setenv(f"IMPORTER__DATA_WRITER__{name.upper()}", exact)
    assert duck.run(service, hints=hints).status == "succeeded"
    assert duck.tuples("SELECT CAST(day AS VARCHAR) FROM records_t") == [("9999-12-31 23:59:59.999999+00",)]


def test_an_id_that_dlt_is_to_add_is_refused_unless_this_pipeline_is_excepted(
    duck: DuckDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a configuration that other pipelines share."""
    monkeypatch.setenv("NORMALIZE__PARQUET_NORMALIZER__ADD_DLT_ID", "true")
    monkeypatch.setenv("NORMALIZE__PARQUET_NORMALIZER__ADD_DLT_LOAD_ID", "true")
    service = Service(seed=1)
    service.add_import("t", [{"a": 1}])

    with pytest.raises(ConfigError, match=r"add_dlt_id = true under \[normalize.parquet_normalizer\]"):
        duck.run(service)
    with pytest.raises(PipelineStepFailed, match=r"set add_dlt_id = false under \[importer.normalize"):
        duck.run_dlt(service)
    assert not service.requests

    monkeypatch.setenv("IMPORTER__NORMALIZE__PARQUET_NORMALIZER__ADD_DLT_ID", "false")
    assert duck.run(service).status == "succeeded"
    assert duck.run_dlt(service)
    service.add_import("t", [{"a": 2}])
    assert duck.run(service).status == "succeeded"
    assert_rows(duck, service)
    assert "_dlt_id" not in duck.columns("records_t")
