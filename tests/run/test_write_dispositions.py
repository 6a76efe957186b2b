"""Rows are appended only where nothing of theirs can be in the warehouse; else they replace what is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import duckdb
import pytest
from dlt.destinations.impl.duckdb.duck import DuckDbCopyJob

from connector.models import Import
from connector.sandbox import Service, serve
from connector.service.client import ServiceClient
from connector.settings import RunScope, Selection

from .conftest import Warehouse
from .test_guarantees import assert_equal, populated

pytestmark = pytest.mark.thorough


def dispositions(warehouse: Warehouse) -> dict[str, tuple[str, bool]]:
    """Table → how dlt wrote it last, and whether it took its rows to be distinct."""
    tables = warehouse.pipeline().default_schema.tables
    return {
        name: (str(table["write_disposition"]), bool(table.get("x-stage-data-deduplicated")))
        for name, table in tables.items()
        if name.startswith("records")
    }


def records_with_slug(warehouse: Warehouse, slug: str) -> list[str]:
    return [found for (found,) in warehouse.query("SELECT import_slug FROM records WHERE slug = ?", slug)]


def test_a_first_run_appends_and_a_change_replaces(warehouse: Warehouse) -> None:
    service = populated()
    warehouse.run(service, batch_rows=200)
    assert dispositions(warehouse)["records"] == ("append", False)
    assert dispositions(warehouse)["records_customers"][0] == "append"

    service.append_rows(service.slugs()[0], [{"name": "more"}])
    warehouse.run(service)

    assert dispositions(warehouse)["records"] == ("merge", True)
    assert dispositions(warehouse)["records_customers"] == ("merge", True)
    assert_equal(service, warehouse)


def test_imports_that_are_read_again_are_not_appended(warehouse: Warehouse) -> None:
    service = populated()
    warehouse.run(service)
    assert warehouse.run(service, RunScope(mode="backfill", force=True)).status == "succeeded"
    assert dispositions(warehouse)["records"] == ("merge", True)
    assert_equal(service, warehouse)


@pytest.mark.parametrize("batch_rows", [1000, 1])
def test_a_record_in_two_imports_is_there_once(warehouse: Warehouse, batch_rows: int) -> None:
    service = Service(seed=1)
    for name in ("t", "u"):
        slug = service.add_import(template=name, rows=[{"n": 1}])
        service.add_raw_record(slug, '{"slug":"same","data":{"n":2}}')

    tally = warehouse.run(service, batch_rows=batch_rows)

    assert tally.status == "partial", "one of the two imports cannot have all its rows"
    assert warehouse.query("SELECT count(*) FROM sync_imports WHERE state = 'failed'") == [(1,)]
    assert len(records_with_slug(warehouse, "same")) == 1
    assert dispositions(warehouse)["records"] == ("merge", batch_rows == 1)


@pytest.mark.parametrize("spelled", [(str.lower, str.upper), (str.upper,)], ids=["two slugs", "the other slug"])
def test_an_import_that_the_service_knows_by_several_slugs_is_read_once(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, spelled: tuple[Callable[[str], str], ...]
) -> None:
    service = populated()
    get_import = ServiceClient.get_import

    async def whatever_its_case(client: ServiceClient, slug: str) -> Import:
        return await get_import(client, slug.lower())

    monkeypatch.setattr(ServiceClient, "get_import", whatever_its_case)
    slug = service.slugs()[0]
    named = Selection(slugs=frozenset(spell(slug) for spell in spelled))
    tally = warehouse.run(service, RunScope(mode="backfill", selection=named))

    rows = len(list(service.record_slugs(slug)))
    assert (tally.status, tally.imports_listed, tally.records_loaded) == ("succeeded", 1, rows)
    assert warehouse.query("SELECT count(*), count(DISTINCT slug) FROM records") == [(rows, rows)]


def test_without_raw_rows_the_typed_ones_are_compared(warehouse: Warehouse) -> None:
    service = Service(seed=1)
    slugs = [service.add_import(template="t", rows=[{"n": 1}]) for _ in range(2)]
    warehouse.run(service)
    for slug in slugs:
        service.add_raw_record(slug, '{"slug":"same","data":{"n":2}}')

    assert warehouse.run(service, raw=False).status == "partial", "one of the two imports cannot have all its rows"

    assert dispositions(warehouse)["records_t"] == ("merge", False)
    assert warehouse.query("SELECT count(*) FROM records_t WHERE _record_slug = 'same'") == [(1,)]


def test_a_record_that_moves_to_another_import_is_there_once(warehouse: Warehouse) -> None:
    service = Service(seed=1)
    one, two = (service.add_import(template=name, rows=[{"n": 1}]) for name in ("t", "u"))
    service.add_raw_record(one, '{"slug":"same","data":{"n":2}}')
    warehouse.run(service)
    service.add_raw_record(two, '{"slug":"same","data":{"n":2}}')

    assert warehouse.run(service).status == "partial", "the first import is short of a row and did not change"
    assert records_with_slug(warehouse, "same") == [two]
    service.delete_import(one)
    assert warehouse.run(service).status == "succeeded"
    assert warehouse.query("SELECT import_slug, count(*) FROM records GROUP BY 1") == [(two, 2)]


def searches_other_imports(warehouse: Warehouse) -> bool:
    """Whether the last merge deleted rows by the slugs of its records, and not only by those of its imports."""
    table: dict[str, Any] = dict(warehouse.pipeline().default_schema.tables["records_t"])
    return "_record_slug" in table["x-merge-destination-scope"]


@pytest.mark.parametrize("deletes", ["mirror", "keep"])
def test_rows_of_other_imports_are_replaced_where_there_are_some(warehouse: Warehouse, deletes: str) -> None:
    """A row that is kept as deleted is one as well."""
    from connector import importer_source

    service = Service(seed=1)
    one, two = (service.add_import(template="t", rows=[{"n": n} for n in range(3)]) for _ in range(2))
    warehouse.run(service, deletes=deletes)
    slug = next(service.record_slugs(one))
    service.edit_row(one, slug, {"n": 9})
    warehouse.run(service, deletes=deletes)
    assert not searches_other_imports(warehouse)

    service.move_row(one, slug, two)
    assert warehouse.run(service, deletes=deletes).status == "succeeded"
    assert records_with_slug(warehouse, slug) == [two]
    service.delete_row(two, slug)
    assert warehouse.run(service, deletes=deletes).status == "succeeded"
    assert not searches_other_imports(warehouse) or deletes == "keep"
    service.add_raw_record(one, f'{{"slug":"{slug}","data":{{"n":9}}}}')
    assert warehouse.run(service, deletes=deletes).status == "succeeded"
    assert searches_other_imports(warehouse) is (deletes == "keep")
    assert records_with_slug(warehouse, slug) == [one]

    service.edit_row(two, next(service.record_slugs(two)), {"n": 8})
    warehouse.run(service, deletes=deletes)
    assert not searches_other_imports(warehouse)
    service.delete_import(one)
    service.add_raw_record(two, f'{{"slug":"{slug}","data":{{"n":9}}}}')
    with serve(service) as url:
        warehouse.pipeline().run(
            importer_source(base_url=url, access_token=str(service.token), deletes=deletes, mass_delete_limit=1)
        )
    assert searches_other_imports(warehouse)
    assert records_with_slug(warehouse, slug) == [two]


def test_rows_that_nobody_knows_of_are_replaced(warehouse: Warehouse) -> None:
    service = populated()
    warehouse.run(service)
    some = service.slugs()[0]
    with duckdb.connect(str(warehouse.file)) as connection:
        for table, key in (("imports", "slug"), ("sync_imports", "slug")):
            connection.execute(f"DELETE FROM importer_data.{table} WHERE {key} = ?", [some])

    assert warehouse.run(service).status == "succeeded"

    assert_equal(service, warehouse)


def test_dlt_alone_never_appends(warehouse: Warehouse) -> None:
    """It finishes a package that a dead process may have half loaded."""
    from connector import importer_source

    service = populated()
    warehouse.run(service)
    service.append_rows(service.slugs()[0], [{"name": "more"}])
    service.add_import(template="fresh", rows=[{"n": 1}])
    with serve(service) as url:
        warehouse.pipeline().run(importer_source(base_url=url, access_token=str(service.token)))

    assert set(dispositions(warehouse).values()) == {("merge", False)} | {("append", False)} & {
        dispositions(warehouse)["records_orders"]
    }
    assert dispositions(warehouse)["records"] == dispositions(warehouse)["records_fresh"] == ("merge", False)
    assert_equal(service, warehouse)


def test_a_table_that_is_only_appended_to_is_loaded_by_one_thread(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int]] = []
    load = DuckDbCopyJob.run

    def watched(job: DuckDbCopyJob) -> None:
        with job._job_client.sql_client.execute_query("SELECT current_setting('threads')") as cursor:
            if job.load_table_name.startswith("records_"):
                seen.append((str(job._load_table["write_disposition"]), cursor.fetchall()[0][0]))
        load(job)

    monkeypatch.setattr(DuckDbCopyJob, "run", watched)
    service = Service(seed=1)
    _, old = (service.add_import(template=name, rows=[{"n": 1}]) for name in ("new", "old"))
    warehouse.run(service, RunScope(mode="backfill", selection=Selection(slugs=frozenset({old}))))
    service.append_rows(old, [{"n": 2}])
    warehouse.run(service, batch_rows=1)

    with duckdb.connect() as fresh:
        ((all_threads,),) = fresh.execute("SELECT current_setting('threads')").fetchall()
    assert seen == [("append", 1), ("append", 1), ("merge", all_threads)]


def test_a_record_that_moves_is_found_beside_a_column_called_as_positions_are(warehouse: Warehouse) -> None:
    service = Service(seed=1)
    one, two = (service.add_import(template="t", rows=[{"n": 1}]) for _ in range(2))
    service.add_raw_record(one, '{"slug":"same","data":{"rowid":null}}')
    service.add_raw_record(one, '{"slug":"other","data":{"rowid":1}}')
    warehouse.run(service, raw=False)
    service.add_raw_record(two, '{"slug":"same","data":{"rowid":null}}')

    assert warehouse.run(service, raw=False).status == "partial", "the first import is short of a row"
    assert warehouse.query("SELECT _import_slug FROM records_t WHERE _record_slug = 'same'") == [(two,)]
