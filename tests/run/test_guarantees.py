"""What docs/guarantees.md promises, one test a promise, by a whole sync over sockets into a DuckDB file."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from unittest import mock

import duckdb
import pytest
from dlt.common.time import increasing_precise_time
from dlt.pipeline.exceptions import PipelineStepFailed

from connector import importer_source
from connector.errors import AuthError, LockedError
from connector.load.dlt_bridge import load_package
from connector.maintain.doctor import doctor
from connector.maintain.verify import verify
from connector.run import pipeline
from connector.sandbox import Faults, Request, Response, Service, Switches, serve
from connector.sandbox.catalogue import Status
from connector.sandbox.messages import json_response
from connector.sandbox.switches import Order
from connector.settings import RunScope, Selection, Settings, Window
from connector.warehouse import Warehouse as Dataset
from connector.warehouse.due_imports import mark_backfill_due
from connector.warehouse.lock import sole_writer

from .conftest import Warehouse

pytestmark = pytest.mark.thorough


def rows_of_service(service: Service) -> dict[str, tuple[str, str]]:
    """Record slug → (import slug, exact data text), as the service has them."""
    found: dict[str, tuple[str, str]] = {}
    for import_ in service.imports():
        slugs, texts = service.record_slugs(import_["slug"]), service.record_texts(import_["slug"])
        for slug, text in zip(slugs, texts, strict=True):
            found[slug] = (import_["slug"], _data(text))
    return found


def _data(text: str) -> str:
    from connector.service.decode import decode_record_page

    page = decode_record_page(b'{"data":[' + text.encode() + b"]}")
    return page.records[0].data.decode()


def rows_of_warehouse(warehouse: Warehouse) -> dict[str, tuple[str, str]]:
    rows = warehouse.query("SELECT slug, import_slug, data FROM records WHERE _deleted_at IS NULL")
    assert len({slug for slug, *_ in rows}) == len(rows)
    return {slug: (import_slug, data) for slug, import_slug, data in rows}


def typed_rows(warehouse: Warehouse) -> int:
    tables = warehouse.query("SELECT DISTINCT table_name FROM sync_fields WHERE table_name LIKE 'records_%'")
    return sum(
        warehouse.query(f'SELECT count(*) FROM "{table}" WHERE _deleted_at IS NULL')[0][0] for (table,) in tables
    )


def assert_equal(service: Service, warehouse: Warehouse) -> None:
    assert rows_of_warehouse(warehouse) == rows_of_service(service)
    assert typed_rows(warehouse) == len(rows_of_service(service))
    live = warehouse.query("SELECT slug, row_count, status FROM imports WHERE _deleted_at IS NULL ORDER BY slug")
    assert live == sorted((i["slug"], i["row_count"], i["status"]) for i in service.imports())


def populated(**options: Any) -> Service:
    service = Service(seed=7, **options)
    service.add_generated("customers", imports=4, rows=130)
    service.add_generated("orders", imports=3, rows=40)
    return service


def test_a_first_run_is_complete_and_a_second_reads_and_writes_nothing(warehouse: Warehouse) -> None:
    service = populated()
    assert warehouse.run(service).status == "succeeded"
    assert_equal(service, warehouse)
    loads = warehouse.query("SELECT count(*) FROM _dlt_loads")

    service.requests.clear()
    second = warehouse.run(service)

    assert (second.status, second.records_loaded, second.load_ids) == ("succeeded", 0, [])
    assert dict(service.requests) == {"imports": 7}
    assert warehouse.query("SELECT count(*) FROM _dlt_loads") == loads


def test_only_what_changed_is_read(warehouse: Warehouse) -> None:
    service = populated()
    warehouse.run(service)
    edited, grown, gone = service.slugs()[0], service.slugs()[1], service.slugs()[2]
    service.edit_row(edited, next(iter(service.record_slugs(edited))), {"name": "new"})
    service.append_rows(grown, [{"name": "more"}])
    service.delete_import(gone)

    service.requests.clear()
    tally = warehouse.run(service)

    read = {path.split("/")[4] for _, path, _, _ in service.log if path.endswith("/records")}
    assert tally.imports_changed == 2
    assert service.requests["records"] == 4
    assert {edited, grown} <= read
    assert_equal(service, warehouse)


def test_processes_forked_before_the_clock_was_set_back_give_each_package_an_id_of_its_own(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(seed=7)
    slug = service.add_import("customers", [{"n": 0}])
    ahead = increasing_precise_time._last + 86_400
    loads: list[str] = []
    for n in range(3):
        service.edit_row(slug, next(iter(service.record_slugs(slug))), {"n": n})
        monkeypatch.setattr(increasing_precise_time, "_last", ahead)  # as a new fork has it
        tally = warehouse.run(service, history=True)
        assert tally.status == "succeeded"
        loads += tally.load_ids

    assert len(set(loads)) == len(loads)
    versions = warehouse.query("SELECT n, _valid_to IS NULL FROM records_customers_history ORDER BY _valid_from")
    assert versions == [(0, False), (1, False), (2, True)]


ORDERS = ("insertion", "created_desc", "updated_asc", "arbitrary")


@pytest.mark.parametrize(
    "order", ["updated_desc", "random", *(pytest.param(order, marks=pytest.mark.long) for order in ORDERS)]
)
def test_any_order_of_the_lists_is_read_completely(warehouse: Warehouse, order: Order) -> None:
    service = Service(seed=3, switches=Switches(import_order=order, record_order=order))
    for n in range(120):
        service.add_import(template="t", rows=[{"n": n}])
    service.add_import(template="t", rows=[{"n": n} for n in range(250)])

    tally = warehouse.run(service, max_concurrency=16)

    assert tally.status == "succeeded"
    assert_equal(service, warehouse)


@pytest.mark.parametrize("clamp", [10, 50])
def test_pages_clamped_lower_than_asked_lose_nothing(warehouse: Warehouse, clamp: int) -> None:
    service = Service(seed=3, switches=Switches(max_per_page=clamp))
    for n in range(60):
        service.add_import(template="t", rows=[{"n": n}])
    service.add_import(template="t", rows=[{"n": n} for n in range(230)])
    assert warehouse.run(service).status == "succeeded"
    assert_equal(service, warehouse)


def test_faults_on_every_endpoint_are_outlasted(warehouse: Warehouse) -> None:
    faults = Faults(server_error=0.1, reset=0.05, cut=0.05, html_200=0.05, rate_limited=0.1, max_consecutive=2)
    service = populated(faults=faults)
    tally = warehouse.run(service)
    assert tally.status == "succeeded", tally.error
    assert tally.retries > 0
    service.faults = Faults()
    assert_equal(service, warehouse)


@pytest.mark.parametrize("edited", [False, True])
def test_a_listed_import_that_answers_404_is_not_taken_for_deleted(warehouse: Warehouse, edited: bool) -> None:
    service = populated()
    lost = service.slugs()[1]
    if edited:
        assert warehouse.run(service).status == "succeeded"
        service.append_rows(lost, [{"full_name": "Ada"}])
    service.faults = Faults(misrouted_imports={lost})

    for _ in range(2):
        tally = warehouse.run(service)
        assert (tally.status, tally.imports_failed, tally.imports_deleted) == ("partial", 1, 0)
        assert f"Import {lost}: The service lists it but answers 404 for it." in str(tally.error)
        assert warehouse.query("SELECT state FROM sync_imports WHERE slug = ?", lost) == [("failed",)]

    service.faults = Faults()
    assert warehouse.run(service).status == "succeeded"
    assert_equal(service, warehouse)


@pytest.mark.parametrize("known", [False, True])
def test_an_import_deleted_while_it_is_read_leaves_a_run_succeeded(warehouse: Warehouse, known: bool) -> None:
    service = populated()
    gone = service.slugs()[1]
    if known:
        assert warehouse.run(service).status == "succeeded"
        service.append_rows(gone, [{"full_name": "Ada"}])

    def delete(request: Any) -> None:
        if request.path.endswith(f"/{gone}/records"):
            service.on_request = None
            service.delete_import(gone)

    service.on_request = delete
    assert warehouse.run(service).status == "succeeded"
    assert gone not in service.slugs()
    assert warehouse.run(service).status == "succeeded"
    assert_equal(service, warehouse)


@pytest.mark.parametrize("imports", [101, *(pytest.param(most, marks=pytest.mark.long) for most in (1, 3, 230))])
def test_pages_counted_from_zero(warehouse: Warehouse, imports: int) -> None:
    service = Service(switches=Switches(page_zero="counts"))
    service.add_generated("customers", imports=1, rows=250)
    service.add_generated("customers", imports=imports - 1, rows=2)
    for changed in (imports, 0):
        tally = warehouse.run(service)
        assert (tally.status, tally.imports_changed) == ("succeeded", changed)
        assert_equal(service, warehouse)
    one = RunScope(mode="backfill", force=True, selection=Selection(slugs=frozenset(service.slugs()[:1])))
    assert warehouse.run(service, one).status == "succeeded"
    assert_equal(service, warehouse)
    service.delete_import(service.slugs()[-1])
    assert warehouse.run(service, RunScope(allow_mass_delete=True)).status == "succeeded"
    assert_equal(service, warehouse)


@pytest.mark.parametrize("status", ["completed", "submitted"])
def test_pages_counted_from_zero_in_an_order_that_hides_it(warehouse: Warehouse, status: Status) -> None:
    """Every page number shows some of the imports then, and unfinished ones may count wrongly for other reasons."""
    service = Service(seed=2, switches=Switches(page_zero="counts", import_order="random"))
    for n in range(130):
        service.add_import("customers", [{"n": n}] * (130 if n < 3 else 2), status=status)
    assert warehouse.run(service).status == "succeeded"
    assert_equal(service, warehouse)


@pytest.mark.parametrize(("status", "order", "page_zero"), [(400, "insertion", "reject"), (422, "random", "counts")])
def test_pages_refused_behind_the_last_one(warehouse: Warehouse, status: Any, order: Order, page_zero: Any) -> None:
    switches = Switches(past_the_end=status, no_records=404, import_order=order, page_zero=page_zero)
    service = Service(seed=3, switches=switches)
    for n in range(101):
        service.add_import(
            "customers", [{"n": n}] * (200 if n == 7 else n % 3), status="completed" if n % 9 else "submitted"
        )
    for changed in (True, False):
        tally = warehouse.run(service)
        assert (tally.status, tally.error) == ("succeeded", None)
        assert (tally.imports_changed == 101) is changed, "unfinished ones are read again"
        assert_equal(service, warehouse)


def test_a_row_count_beyond_all_reason_fails_its_import_alone(warehouse: Warehouse) -> None:
    service = populated()
    bad = service.slugs()[0]
    service.set_row_count(bad, 9 * 10**18)
    tally = warehouse.run(service)
    assert (tally.status, tally.imports_failed) == ("partial", 1)
    assert f"Import {bad}: Its row_count is 9,000,000,000,000,000,000, more than" in (tally.error or "")
    assert len(rows_of_warehouse(warehouse)) == len(rows_of_service(service)) - len(list(service.record_slugs(bad)))


def test_a_full_backfill_deletes_what_is_gone(warehouse: Warehouse) -> None:
    service = populated()
    assert warehouse.run(service).status == "succeeded"
    service.delete_import(service.slugs()[0])
    tally = warehouse.run(service, RunScope(mode="backfill", force=True))
    assert (tally.status, tally.imports_deleted) == ("succeeded", 1)
    assert_equal(service, warehouse)


@pytest.mark.parametrize("table", ["records", "records_customers", "imports"])
@pytest.mark.parametrize("loads", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_lost_table_is_made_anew(warehouse: Warehouse, table: str, loads: int) -> None:
    service = populated()
    for _ in range(loads):
        assert warehouse.run(service, RunScope(mode="backfill", force=True)).status == "succeeded"
    with duckdb.connect(str(warehouse.file)) as connection:
        connection.execute(f"DROP TABLE importer_data.{table}")
    assert warehouse.run(service).status == "succeeded"
    assert_equal(service, warehouse)
    assert warehouse.run(service).imports_changed == 0


def test_lost_tables_are_made_anew_though_their_rows_come_in_different_packages(warehouse: Warehouse) -> None:
    service = Service(seed=7)
    for template in ("customers", "orders", "stock"):
        service.add_generated(template, imports=2, rows=30)
    for _ in range(2):  # replacing rows makes dlt stage them in tables of the same names
        assert warehouse.run(service, RunScope(mode="backfill", force=True)).status == "succeeded"
    with duckdb.connect(str(warehouse.file)) as connection:
        for (table,) in connection.execute("SELECT DISTINCT table_name FROM importer_data.sync_imports").fetchall():
            connection.execute(f"DROP TABLE importer_data.{table}")
    tally = warehouse.run(service, batch_rows=1)
    assert (tally.status, tally.error, len(tally.load_ids)) == ("succeeded", None, 6)
    assert_equal(service, warehouse)


def test_one_bad_import_stops_nobody_and_is_tried_again(warehouse: Warehouse) -> None:
    service = populated()
    bad = service.slugs()[1]
    service.faults = Faults(failing_imports={bad})

    tally = warehouse.run(service)

    assert (tally.status, tally.imports_failed) == ("partial", 1)
    assert bad in str(tally.error)
    states = dict(warehouse.query("SELECT slug, state FROM sync_imports"))
    assert states.pop(bad) == "failed"
    assert set(states.values()) == {"synced"}
    service.faults = Faults()
    service.requests.clear()
    again = warehouse.run(service)
    assert again.status == "succeeded"
    assert again.imports_changed == 1
    assert_equal(service, warehouse)


@pytest.mark.long
def test_bad_imports_in_a_row_do_not_keep_others_from_being_loaded_in_every_run(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "FAILURES_IN_A_ROW", 3)
    service = Service(seed=1)
    bad = {service.add_import("t", [{"n": n}]) for n in range(20)}  # more than are read at once
    good = service.add_import("t", [{"n": 20}])
    service.faults = Faults(failing_imports=bad)
    for _ in range(9):
        assert "in a row failed" in str(warehouse.run(service, max_concurrency=1).error)
    assert warehouse.query("SELECT _import_slug FROM records_t") == [(good,)]


def test_a_run_asked_to_stop_loads_what_is_ready_at_once(warehouse: Warehouse) -> None:
    """Ten seconds are few: many small packages would take longer."""
    service = Service(seed=7)
    service.add_generated("customers", imports=60, rows=5)
    loads: list[str | None] = []

    def counting(*arguments: Any) -> str | None:
        loads.append(load_package(*arguments))
        return loads[-1]

    tally = warehouse.run(service, stop=lambda: 15 if len(loads) >= 3 else None, load=counting, batch_rows=5)
    assert len(loads) <= 5
    assert tally.records_loaded == len(rows_of_warehouse(warehouse)) > 10
    assert warehouse.run(service).status == "succeeded"
    assert_equal(service, warehouse)


@pytest.mark.parametrize("reconcile", ["warn", "off"])
def test_an_import_that_never_rests_is_read_again_whatever_a_wrong_count_means(
    warehouse: Warehouse, reconcile: str
) -> None:
    """The setting tolerates counts; rows that came while it was read may be missing though the count is right."""
    service = Service(seed=7)
    (restless,) = service.add_generated("customers", imports=1, rows=250)

    def swap(request: Request) -> None:
        if request.query.get("page") == "2":
            service.delete_row(restless, next(iter(service.record_slugs(restless))))
            service.append_rows(restless, [{"full_name": "Ada"}])

    service.on_request = swap
    tally = warehouse.run(service, reconcile=reconcile)
    assert (tally.status, tally.imports_unreconciled) == ("partial", 1)
    assert "changed 6 times while it was read" in str(tally.error)
    assert warehouse.query("SELECT state FROM sync_imports") == [("unreconciled",)]

    service.on_request = None
    assert warehouse.run(service, reconcile=reconcile).status == "succeeded"
    assert_equal(service, warehouse)


@pytest.mark.parametrize(("reconcile", "status"), [("fail", "partial"), ("warn", "succeeded"), ("off", "succeeded")])
def test_a_count_that_does_not_reconcile_is_loaded_and_reported(
    warehouse: Warehouse, reconcile: str, status: str
) -> None:
    service = populated()
    odd = service.slugs()[0]
    service.set_row_count(odd, 131)

    tally = warehouse.run(service, reconcile=reconcile)

    assert tally.status == status
    assert tally.imports_unreconciled == (0 if reconcile == "off" else 1)
    state = warehouse.query("SELECT state, records_loaded FROM sync_imports WHERE slug = ?", odd)
    assert state == [("synced" if reconcile == "off" else "unreconciled", 130)]
    assert len(rows_of_warehouse(warehouse)) == len(rows_of_service(service))
    service.set_row_count(odd, None)
    assert warehouse.run(service, reconcile=reconcile).status == "succeeded"
    assert warehouse.query("SELECT DISTINCT state FROM sync_imports") == [("synced",)]


def test_a_row_count_too_low_by_whole_pages_is_not_believed(warehouse: Warehouse) -> None:
    service = Service(seed=1)
    slug = service.add_import(template="t", rows=[{"n": n} for n in range(250)])
    service.set_row_count(slug, 100)
    tally = warehouse.run(service)
    assert tally.status == "partial"
    assert len(rows_of_warehouse(warehouse)) == 250


def test_deleted_rows_and_imports_vanish_or_stay_marked(make_warehouse: Any) -> None:
    for deletes in ("mirror", "keep"):
        warehouse, service = make_warehouse(deletes), populated()
        warehouse.run(service, deletes=deletes)
        before = rows_of_service(service)
        first, second = service.slugs()[:2]
        row = next(iter(service.record_slugs(first)))
        service.delete_row(first, row)
        service.delete_import(second)
        gone = {slug for slug, (import_slug, _) in before.items() if slug == row or import_slug == second}

        tally = warehouse.run(service, deletes=deletes)

        assert (tally.status, tally.imports_deleted) == ("succeeded", 1)
        assert_equal(service, warehouse)
        marked = {slug for (slug,) in warehouse.query("SELECT slug FROM records WHERE _deleted_at IS NOT NULL")}
        typed = warehouse.query("SELECT _record_slug FROM records_customers WHERE _deleted_at IS NOT NULL")
        assert marked == {slug for (slug,) in typed} == (gone if deletes == "keep" else set())
        assert warehouse.query("SELECT slug FROM imports WHERE _deleted_at IS NOT NULL") == [(second,)]
        assert warehouse.query("SELECT state FROM sync_imports WHERE slug = ?", second) == [("deleted",)]

        service.restore_import(second)
        assert warehouse.run(service, deletes=deletes).status == "succeeded"
        assert warehouse.query("SELECT count(*) FROM imports WHERE _deleted_at IS NOT NULL") == [(0,)]
        assert_equal(service, warehouse)
        marked_now = warehouse.query("SELECT slug FROM records WHERE _deleted_at IS NOT NULL")
        assert marked_now == ([(row,)] if deletes == "keep" else [])


def test_a_row_kept_as_deleted_is_still_there_when_its_import_returns_to_its_template(warehouse: Warehouse) -> None:
    service = Service(seed=1)
    slug = service.add_import("T", [{"n": 1}, {"n": 2}])
    warehouse.run(service, deletes="keep")
    service.delete_row(slug, next(iter(service.record_slugs(slug))))
    for template in ("T", "U", "T"):
        service.set_template(slug, template)
        assert warehouse.run(service, deletes="keep").status == "succeeded"
    assert warehouse.query("SELECT n, _deleted_at IS NULL FROM records_t ORDER BY n") == [(1, False), (2, True)]
    assert warehouse.query("SELECT count(*), count(_deleted_at) FROM records") == [(2, 1)]


def test_mass_deletes_are_refused_until_allowed(warehouse: Warehouse) -> None:
    service = populated()
    warehouse.run(service)
    before = rows_of_warehouse(warehouse)
    for slug in list(service.slugs())[:4]:
        service.delete_import(slug)

    refused = warehouse.run(service)

    assert (refused.status, refused.imports_deleted) == ("partial", 0)
    assert "--allow-mass-delete" in str(refused.error)
    assert rows_of_warehouse(warehouse) == before
    allowed = warehouse.run(service, RunScope(allow_mass_delete=True))
    assert (allowed.status, allowed.imports_deleted) == ("succeeded", 4)
    assert_equal(service, warehouse)


@pytest.mark.parametrize(
    "between",
    [
        pytest.param("runs", marks=pytest.mark.long),
        pytest.param("imports alone", marks=pytest.mark.long),
        pytest.param("full backfill", marks=pytest.mark.long),
        "windowed backfill",
        "left out",
        "at first a windowed backfill",
        "at first an import",
    ],
)
def test_a_wrong_service_never_makes_mass_deletes_small_enough(warehouse: Warehouse, between: str) -> None:
    """A run that refuses to delete loads what the wrong service has, so the share that vanished shrinks."""
    service = populated()
    chosen: dict[str, Any] = {"templates": ["theirs"]} if between == "left out" else {}
    warehouse.run(service, history=True)
    mine = list(service.slugs())
    for slug in mine:
        service.delete_import(slug)
    others = [service.add_import("theirs", [{"x": n}]) for n in range(2 * len(mine))]
    windowed, first = "windowed" in between, "at first" in between
    backfill = RunScope(mode="backfill", force=True, window=Window(since=datetime(2000, 1, 1, tzinfo=UTC)))
    scope = backfill if windowed else replace(backfill, window=Window()) if between == "full backfill" else None
    if between == "at first an import":
        scope = RunScope(mode="backfill", force=True, selection=Selection(slugs=frozenset(others)))
    for n in range(4):
        if between == "imports alone":
            with serve(service) as url:
                source = importer_source(base_url=url, access_token=service.token, history=True)
                warehouse.pipeline().run(source.with_resources("imports"))
        bounded = scope if n % 2 != first else None
        ran = warehouse.run(service, bounded, history=True, **chosen)
        assert ran.imports_deleted == 0
        if bounded is None or between == "full backfill":
            assert ran.status == "partial"
            assert f"{len(mine)} of {len(mine)} " in ran.problems[0] or f" of the {len(mine)} that" in ran.problems[0]
    for slug in mine:
        service.restore_import(slug)
    for slug in others:
        service.delete_import(slug)
    assert warehouse.query("SELECT DISTINCT delete_limit_base FROM sync_runs") == [(len(mine),)]
    assert warehouse.run(service, RunScope(allow_mass_delete=True), history=True).status == "succeeded"
    assert_equal(service, warehouse)
    assert warehouse.query("SELECT count(delete_limit_base) FROM sync_runs") == [(0,)]
    assert warehouse.query("SELECT count(*) FROM sync_imports WHERE due IS NOT NULL") == [(0,)]


class Forbids(Service):
    """The addresses of imports that are not listed answer 403, if it `forbids` them."""

    forbids = False

    def handle(self, request: Request) -> Response:
        reply = super().handle(request)
        return replace(reply, status=403) if self.forbids and reply.status == 404 else reply


def test_what_was_refused_stays_so_while_nobody_knows_what_is_missing(warehouse: Warehouse) -> None:
    service = Forbids(1)
    mine = [service.add_import("mine", [{"x": n}]) for n in range(10)]
    warehouse.run(service)
    for slug in mine:
        service.delete_import(slug)
    for n in range(6):
        service.add_import("theirs", [{"x": n}])
    for service.forbids in (True, False, True, False):
        ran = warehouse.run(service)
        assert (ran.status, ran.imports_deleted) == ("partial", 0)
    for slug in mine[:5]:
        service.restore_import(slug)
    ran = warehouse.run(service)
    assert (ran.status, ran.imports_deleted) == ("succeeded", 5), "half of them is no more than the limit"
    assert warehouse.query("SELECT count(delete_limit_base) FROM sync_runs") == [(0,)]


def test_what_was_deleted_long_ago_is_no_mass_delete_though_dlt_forgot_its_load(warehouse: Warehouse) -> None:
    """Somebody keeps the table of loads short, and more imports have been deleted over the years than are left."""
    service = Service(1)
    for n in range(8):
        service.add_import("t", [{"x": n}])
    warehouse.run(service)
    for _ in range(2):
        for slug in service.slugs()[: len(service.slugs()) // 2]:
            service.delete_import(slug)
        assert warehouse.run(service).status == "succeeded"
    with duckdb.connect(str(warehouse.file)) as connection:
        connection.execute(
            "USE importer_data; DELETE FROM _dlt_loads WHERE load_id < (SELECT max(load_id) FROM _dlt_loads)"
        )
    service.delete_import(service.slugs()[0])
    ran = warehouse.run(service)
    assert (ran.status, ran.imports_deleted) == ("succeeded", 5)
    assert_equal(service, warehouse)
    service.delete_import(service.slugs()[0])
    assert warehouse.run(service).status == "partial", "the last one is more than half"


def test_the_limit_of_deletes_is_forgotten_only_once_what_is_missing_is_deleted(warehouse: Warehouse) -> None:
    """The right service lacks what a wrong one had, and the run that is to delete that dies."""
    service, wrong = Service(1), Service(2)
    for n in range(10):
        service.add_import("mine", [{"x": n}])
    for n in range(7):
        wrong.add_import("theirs", [{"x": n}])
    warehouse.run(service, mass_delete_limit=0.7)
    assert warehouse.run(wrong, mass_delete_limit=0.7).status == "partial"
    with mock.patch("connector.run.sync.write_dispositions", side_effect=OSError("full")):
        assert warehouse.run(service, mass_delete_limit=0.7).status == "failed"
    ran = warehouse.run(wrong, mass_delete_limit=0.7)
    assert (ran.status, ran.imports_deleted) == ("partial", 0)
    ran = warehouse.run(service, mass_delete_limit=0.7)
    assert (ran.status, ran.imports_deleted) == ("succeeded", 7)
    assert warehouse.query("SELECT count(delete_limit_base) FROM sync_runs") == [(0,)]
    assert_equal(service, warehouse)


def test_what_later_runs_have_to_know_is_noted_before_the_first_load_too(warehouse: Warehouse) -> None:
    """The run that makes the table `sync_runs`, again or for the first time, may die during its load as well."""
    service = populated()
    warehouse.run(service)
    mine = len(service.slugs())
    for slug in service.slugs():
        service.delete_import(slug)
    service.add_import("theirs", [{"x": 1}])
    with duckdb.connect(str(warehouse.file)) as connection:
        connection.execute("DROP TABLE importer_data.sync_runs")
    dies = mock.patch("connector.run.sync.write_dispositions", side_effect=OSError("full"))
    with dies, mock.patch("connector.run.record.end_run"):
        warehouse.run(service, exclude_templates=["theirs"])
    [(base, names)] = warehouse.query("SELECT delete_limit_base, left_out_by_name FROM sync_runs")
    assert (base, list(json.loads(names))) == (mine, ["theirs"])


def test_what_one_of_two_answers_finds_and_the_later_one_does_not_counts_as_missing(warehouse: Warehouse) -> None:
    """The run lists again because of the first answer, meanwhile the address leads to a wrong service."""

    class Moves(Service):
        left = 0

        def handle(self, request: Request) -> Response:
            slug = request.path.rpartition("/")[2]
            if slug not in mine or not self.left:
                return super().handle(request)
            self.left -= 1
            self.restore_import(slug)
            reply = super().handle(request)
            self.delete_import(slug)
            return reply

    service = Moves(1)
    mine = [service.add_import("mine", [{"x": n}]) for n in range(10)]
    warehouse.run(service)
    for slug in mine:
        service.delete_import(slug)
    for n in range(20):
        service.add_import("theirs", [{"x": n}])
    service.left = 5
    for _ in range(2):
        ran = warehouse.run(service)
        assert (ran.status, ran.imports_deleted) == ("partial", 0)
        assert warehouse.query("SELECT min(delete_limit_base) FROM sync_runs") == [(10,)]


def test_a_run_that_dies_before_it_deletes_leaves_the_limit_of_deletes_as_it_was(warehouse: Warehouse) -> None:
    """One import cannot be requested, so more may be missing than are allowed to be."""

    class ForbidsOne(Service):
        def handle(self, request: Request) -> Response:
            reply = super().handle(request)
            return replace(reply, status=403) if reply.status == 404 and mine[0] in request.path else reply

    service = ForbidsOne(1)
    mine = [service.add_import("mine", [{"x": n}]) for n in range(8)]
    warehouse.run(service)
    for slug in mine[:5]:
        service.delete_import(slug)
    for _ in range(2):
        with mock.patch("connector.run.sync.write_dispositions", side_effect=OSError("full")):
            assert warehouse.run(service).status == "failed"
        assert warehouse.query("SELECT DISTINCT delete_limit_base FROM sync_runs") == [(8,)]
    ran = warehouse.run(service)
    assert (ran.status, ran.imports_deleted) == ("partial", 4)
    assert warehouse.query("SELECT min(delete_limit_base) FROM sync_runs") == [(4,)]


def test_a_run_by_dlt_alone_that_dies_leaves_the_limit_of_deletes_as_it_was(warehouse: Warehouse) -> None:
    service = Service(1)
    mine = [service.add_import("mine", [{"x": n}]) for n in range(10)]
    warehouse.run(service)
    for slug in mine:
        service.delete_import(slug)
    theirs = [service.add_import("theirs", [{"x": n}]) for n in range(20)]
    assert warehouse.run(service).status == "partial"
    for slug in mine:
        service.restore_import(slug)
    for slug in theirs:
        service.delete_import(slug)
    with serve(service) as url, mock.patch("dlt.load.load.Load.run", side_effect=OSError("full")):
        source = importer_source(base_url=url, access_token=service.token, mass_delete_limit=1.0)
        with pytest.raises(PipelineStepFailed):
            warehouse.pipeline().run(source)
    assert warehouse.query("SELECT min(delete_limit_base) FROM sync_runs") == [(10,)]


def test_one_import_that_a_bounded_backfill_misses_limits_no_later_deletes(warehouse: Warehouse) -> None:
    """Each night an import goes and another one comes."""
    service = Service(1)
    slugs = [service.add_import("t", [{"x": n}]) for n in range(4)]
    warehouse.run(service)
    for night in range(6):
        service.delete_import(slugs[night])
        slugs.append(service.add_import("t", [{"x": night}]))
        if not night:
            warehouse.run(service, RunScope(mode="backfill", force=True, selection=Selection(template="t")))
        ran = warehouse.run(service)
        assert (ran.status, ran.imports_deleted) == ("succeeded", 1)


@pytest.mark.parametrize("at_first", [True, False])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("template", [None, "theirs"])
def test_a_run_of_one_status_does_not_settle_what_vanished_at_another(
    warehouse: Warehouse, at_first: bool, known: bool, template: str | None
) -> None:
    service = populated()
    mine = list(service.slugs())
    if known:
        service.add_import("theirs", [{"x": 1}], status="submitted")
    warehouse.run(service)
    for slug in mine:
        service.delete_import(slug)
    for n in range(2 * len(mine)):
        service.add_import("theirs", [{"x": n}], status="submitted" if n % 2 else "completed")
    for status in [*([] if at_first else [None]), "submitted", None]:
        bounded = RunScope(mode="backfill", selection=Selection(template=template)) if status and template else None
        ran = warehouse.run(service, bounded, status=status)
        assert ran.imports_deleted == 0
    assert ran.status == "partial"


def test_nothing_is_deleted_because_of_a_filter_a_window_or_an_empty_listing(warehouse: Warehouse) -> None:
    service = populated()
    warehouse.run(service)
    before = rows_of_warehouse(warehouse)
    future = Window(since=datetime(2200, 1, 1, tzinfo=UTC))
    assert warehouse.run(service, RunScope(window=future)).imports_deleted == 0
    assert warehouse.run(service, status="created").imports_deleted == 0
    assert warehouse.run(service, RunScope(mode="backfill", force=True, selection=Selection(template="orders"))).status
    service.on_request = None
    assert rows_of_warehouse(warehouse) == before
    assert warehouse.query("SELECT count(*) FROM imports WHERE _deleted_at IS NOT NULL") == [(0,)]


def test_a_window_does_not_decide_that_anything_is_done(warehouse: Warehouse) -> None:
    service = populated()
    updates = sorted(datetime.fromisoformat(i["updated_at"]) for i in service.imports())
    part = warehouse.run(service, RunScope(window=Window(since=updates[2], until=updates[5])))
    assert part.imports_changed == 3
    whole = warehouse.run(service)
    assert whole.imports_changed == 4
    assert_equal(service, warehouse)


def test_an_import_that_changes_its_template_moves_its_rows(warehouse: Warehouse) -> None:
    service = populated()
    warehouse.run(service)
    moved = service.slugs()[0]
    service.set_template(moved, "orders")
    assert warehouse.run(service).status == "succeeded"
    assert_equal(service, warehouse)
    assert warehouse.query("SELECT count(*) FROM records_customers WHERE _import_slug = ?", moved) == [(0,)]
    assert warehouse.query("SELECT count(*) FROM records_orders WHERE _import_slug = ?", moved) == [(130,)]
    assert warehouse.query("SELECT DISTINCT template_slug FROM records WHERE import_slug = ?", moved) != []


def test_an_emptied_import_loses_its_rows_everywhere(warehouse: Warehouse) -> None:
    service = Service(seed=1)
    slug = service.add_import(template="t", rows=[{"n": 1}, {"n": 2}])
    warehouse.run(service)
    for row in list(service.record_slugs(slug)):
        service.delete_row(slug, row)
    assert warehouse.run(service).status == "succeeded"
    assert warehouse.query("SELECT count(*) FROM records") == [(0,)]
    assert warehouse.query("SELECT count(*) FROM records_t") == [(0,)]


def test_packages_are_bounded_and_no_import_is_split(warehouse: Warehouse) -> None:
    service = populated()
    tally = warehouse.run(service, batch_rows=200)
    assert len(tally.load_ids) >= 4
    sizes = warehouse.query("SELECT _dlt_load_id, count(*) FROM records GROUP BY 1")
    assert max(n for _, n in sizes) <= 200
    split = "SELECT import_slug FROM records GROUP BY 1 HAVING count(DISTINCT _dlt_load_id) > 1"
    assert warehouse.query(split) == []
    assert_equal(service, warehouse)


def test_rejected_rows_are_kept_and_never_stop_their_neighbours(warehouse: Warehouse) -> None:
    service = populated()
    slug = service.slugs()[0]
    for text in (
        "17",
        '{"data": {"a": 1}}',
        '{"slug": "s1", "data": []}',
        '{"slug":"s2","data":{},"created_at":"soon"}',
    ):
        service.add_raw_record(slug, text)

    tally = warehouse.run(service)

    assert (tally.status, tally.records_rejected) == ("partial", 4)
    payloads = {payload for (payload,) in warehouse.query("SELECT payload FROM sync_rejects")}
    assert "17" in payloads
    assert len(payloads) == 4
    assert warehouse.query("SELECT records_loaded, state FROM sync_imports WHERE slug = ?", slug) == [(130, "synced")]
    assert warehouse.run(service).status == "partial", "a row is still missing, so no later run may say otherwise"


def test_unfinished_imports_are_read_at_every_run(warehouse: Warehouse) -> None:
    service = Service(seed=1)
    slug = service.add_import(template="t", rows=[{"n": 1}], status="submitting")
    assert warehouse.run(service).status == "succeeded"
    assert warehouse.run(service).imports_changed == 1
    service.set_status(slug, "completed")
    warehouse.run(service)
    assert warehouse.run(service).imports_changed == 0


def test_recheck_finds_edits_that_move_no_fingerprint(warehouse: Warehouse) -> None:
    service = Service(seed=1, switches=Switches(edit_moves_import=False))
    slug = service.add_import(template="t", rows=[{"n": 1}])
    warehouse.run(service)
    service.edit_row(slug, next(iter(service.record_slugs(slug))), {"n": 2})
    assert warehouse.run(service).imports_changed == 0
    assert warehouse.run(service, RunScope(recheck_days=100_000)).imports_changed == 1
    assert_equal(service, warehouse)


def test_a_second_writer_is_refused_and_told_who_writes(warehouse: Warehouse) -> None:
    service = populated()
    with sole_writer(warehouse.pipeline()), pytest.raises(LockedError, match=r"process \d+ of "):
        warehouse.run(service)
    assert warehouse.run(service).status == "succeeded"


def test_a_wrong_token_fails_and_says_so_without_showing_it(warehouse: Warehouse) -> None:
    service = populated()
    from connector.run.sync import sync
    from connector.sandbox import serve
    from connector.settings import Settings

    with serve(service) as url:
        settings = Settings.load(base_url=url, access_token="not-the-token-987")
        tally = sync(warehouse.pipeline(), settings)
    assert tally.status == "failed"
    assert "401" in str(tally.error)
    assert warehouse.query("SELECT status, error_kind FROM sync_runs") == [("failed", "AuthError")]
    for path in warehouse.folder.rglob("*"):
        assert not path.is_file() or b"not-the-token-987" not in path.read_bytes(), path


def test_a_token_revoked_in_the_middle_commits_what_is_complete(warehouse: Warehouse) -> None:
    service = populated()

    def revoke(request: Any) -> None:
        if service.requests["import"] == 3:
            service.token = "another"

    service.on_request = revoke
    tally = warehouse.run(service, max_concurrency=1)
    assert tally.status == "failed"
    assert 0 < len(rows_of_warehouse(warehouse)) < len(rows_of_service(service))
    service.on_request = None
    assert warehouse.run(service).status == "succeeded"
    assert_equal(service, warehouse)


def test_the_dictionary_counts_what_the_tables_hold(warehouse: Warehouse) -> None:
    service = Service(seed=1)
    first = service.add_import(template="t", rows=[{"a": 1, "b": "x"}, {"a": "N/A", "b": None}, {"a": 3}])
    service.add_import(template="t", rows=[{"a": 4, "c": None}])
    warehouse.run(service)
    columns = "path, data_type, value_count, null_count, conflict_count"
    counts = f"SELECT {columns} FROM sync_fields WHERE table_name = 'records_t' ORDER BY path"
    assert warehouse.query(counts) == [("a", "bigint", 4, 0, 1), ("b", "text", 1, 3, 0), ("c", None, 0, 4, 0)]
    service.append_rows(first, [{"a": 5.5, "c": True}])
    warehouse.run(service)
    assert warehouse.query(counts) == [("a", "bigint", 5, 0, 2), ("b", "text", 1, 4, 0), ("c", "bool", 1, 4, 0)]
    assert warehouse.query("SELECT a__v_double, a__v_text FROM records_t WHERE a IS NULL ORDER BY 1") == [
        (5.5, None),
        (None, "N/A"),
    ]


def test_metadata_becomes_columns(warehouse: Warehouse) -> None:
    service = Service(seed=1)
    slug = service.add_import(
        template="t", rows=[{"n": 1}], metadata={"user": "ana", "tries": 3, "nested": {"x": 1}, "a": [1]}
    )
    warehouse.run(service)
    row = warehouse.rows("SELECT * FROM imports")[0]
    assert (row["slug"], row["metadata__user"], row["metadata__tries"]) == (slug, "ana", 3)
    assert json.loads(row["metadata"]) == {"user": "ana", "tries": 3, "nested": {"x": 1}, "a": [1]}
    assert not [
        name for name in row if name.startswith("metadata__") and name not in ("metadata__user", "metadata__tries")
    ]


@pytest.mark.parametrize("after", [1, pytest.param(3, marks=pytest.mark.long), 8])
def test_a_run_that_is_stopped_is_interrupted_whatever_it_was_doing(warehouse: Warehouse, after: int) -> None:
    service = populated(switches=Switches(max_per_page=3, default_per_page=3))
    stopped = warehouse.run(service, stop=lambda: 15 if service.requests.total() >= after else None)
    assert (stopped.status, stopped.interrupted_by) == ("interrupted", 15)
    assert warehouse.run(service).status == "succeeded"
    assert_equal(service, warehouse)

    service.requests.clear()  # now with nothing to read
    stopped = warehouse.run(service, stop=lambda: 15 if service.requests else None)
    assert (stopped.status, stopped.interrupted_by) == ("interrupted", 15)
    statuses = warehouse.query("SELECT status FROM sync_runs ORDER BY started_at")
    assert statuses == [("interrupted",), ("succeeded",), ("interrupted",)]


class ShowsLess(Service):
    """Leave `metadata` out of the reply for a single import."""

    def handle(self, request: Request) -> Response:
        reply = super().handle(request)
        if reply.status != 200 or request.path.endswith(("/imports", "/records")):
            return reply
        return json_response(200, json.dumps({k: v for k, v in json.loads(reply.body).items() if k != "metadata"}))


def test_a_backfill_by_slug_keeps_what_only_the_listing_shows(warehouse: Warehouse) -> None:
    service = ShowsLess(seed=1)
    slug = service.add_import("customers", [{"x": 1}], {"by": "ann"})
    warehouse.run(service, history=True)
    scope = RunScope(mode="backfill", force=True, selection=Selection(slugs=frozenset({slug})))
    assert warehouse.run(service, scope, history=True).imports_changed == 1
    assert warehouse.run(service, history=True).imports_changed == 0
    assert warehouse.query("SELECT metadata__by, _change FROM imports_history") == [("ann", "insert")]


@pytest.mark.parametrize("name", ["First", "Second"])
def test_a_backfill_of_a_template_is_remembered_by_each_name_that_the_service_shows(
    warehouse: Warehouse, name: str
) -> None:
    service = KeepsNames(seed=1)
    service.first = service.add_import("t", [{"x": 1}])
    service.add_import("t", [{"x": 2}])
    for _ in range(2):
        warehouse.run(service)
    scope = RunScope(mode="backfill", force=True, selection=Selection(template=name))
    with Dataset(warehouse.pipeline()).connect() as connection:  # as a backfill does before its first request
        mark_backfill_due(connection, scope, None)
    assert warehouse.run(service).imports_changed == 2


class Refusing(Service):
    """It refuses some imports at their own URL."""

    refused: frozenset[str] = frozenset()

    def handle(self, request: Request) -> Response:
        reply = super().handle(request)
        return replace(reply, status=403) if request.path.rpartition("/")[2] in self.refused else reply


def test_a_backfill_reads_the_imports_that_the_service_does_not_refuse(warehouse: Warehouse) -> None:
    service = Refusing(seed=1)
    first, second = (service.add_import("customers", [{"x": n}]) for n in range(2))
    warehouse.run(service)
    scope = RunScope(mode="backfill", force=True, selection=Selection(slugs=frozenset({first, second})))
    service.refused = frozenset({first})
    ran = warehouse.run(service, scope)
    assert (ran.status, ran.imports_changed) == ("partial", 1)
    assert f"Import {first} is not read, because the request for it failed: " in ran.problems[0]
    service.refused = frozenset({first, second})
    assert isinstance(warehouse.run(service, scope).fatal, AuthError)
    mistyped = replace(scope, selection=Selection(slugs=frozenset({first, "mistyped"})))
    assert isinstance(warehouse.run(service, mistyped).fatal, AuthError)
    service.refused = frozenset()
    assert warehouse.run(service).imports_changed == 2, "what was asked for is remembered"


@pytest.mark.parametrize("alone", [1, 2])
def test_an_import_that_a_run_of_imports_alone_found_gone_comes_back_whole(warehouse: Warehouse, alone: int) -> None:
    service = Service(seed=1)
    gone = service.add_import("customers", [{"x": 1}])
    service.add_import("customers", [{"x": 2}])
    warehouse.run(service, history=True)
    service.delete_import(gone)
    with serve(service) as url:
        for _ in range(alone):
            source = importer_source(base_url=url, access_token=service.token)
            warehouse.pipeline().run(source.with_resources("imports"))
            service.restore_import(gone)
    for _ in range(2):
        assert warehouse.run(service, history=True).status == "succeeded"
    assert warehouse.query("SELECT records_metadata, _deleted_at FROM imports") == [("{}", None)] * 2
    assert warehouse.query("SELECT DISTINCT _change FROM imports_history") == [("insert",)]


class KeepsNames(Service):
    """An import may keep the name that its template had: `first` shows "First", the others "Second"."""

    first = ""
    newest_first = False

    def handle(self, request: Request) -> Response:
        reply = super().handle(request)
        if reply.status != 200 or request.path.endswith("/records"):
            return reply
        body = json.loads(reply.body)
        for shown in body["data"] if request.path.endswith("/imports") else [body]:
            shown["template"]["name"] = "First" if shown["slug"] == self.first else "Second"
        if self.newest_first and request.path.endswith("/imports"):
            body["data"].reverse()
        return json_response(200, json.dumps(body))


@pytest.mark.parametrize("rules", [{}, {"metadata": {"by": "mask:1"}, "Second": {"x": "drop"}}])
@pytest.mark.parametrize("reverse", [False, True])
def test_imports_that_show_different_names_of_one_template_keep_them(
    warehouse: Warehouse, rules: dict[str, Any], reverse: bool
) -> None:
    """The rules are those for the name of the newest import."""
    service = KeepsNames(seed=1)
    service.newest_first = reverse
    first = service.first = service.add_import("t", [{"x": 1}], {"by": "ann"})
    second = service.add_import("t", [{"x": 2}], {"by": "bob"})
    assert warehouse.run(service, history=True, privacy=rules).status == "succeeded"
    service.append_rows(first, [{"x": 3}])
    for _ in range(2):
        assert warehouse.run(service, history=True, privacy=rules).status == "succeeded"
    shown = warehouse.query("SELECT slug, template__name FROM imports ORDER BY 2")
    assert shown == [(first, "First"), (second, "Second")]
    assert warehouse.query("SELECT DISTINCT template__name FROM imports_history WHERE slug = ?", second) == [
        ("Second",)
    ]
    assert warehouse.query("SELECT count(*) FROM records WHERE data LIKE '%x%'") == [(0 if rules else 3,)]
    with serve(service) as url:
        made = Settings.load(base_url=url, access_token=service.token, history=True, privacy=rules)
        assert verify(warehouse.pipeline(), made, deep=True).differences == []
    if rules:
        assert doctor(warehouse.pipeline(), privacy=made.protection).findings == []


@pytest.mark.parametrize(
    ("settings", "reads"),
    [
        ({"exclude_templates": ["Second"]}, False),
        ({"exclude_templates": ["First"]}, False),
        ({"templates": ["Second"]}, True),
        ({"templates": ["First"]}, True),
    ],
)
@pytest.mark.parametrize("rules", [{}, {"First": {"x": "drop"}}])
def test_a_template_is_chosen_by_each_name_that_the_service_shows(
    warehouse: Warehouse, settings: dict[str, Any], reads: bool, rules: dict[str, Any]
) -> None:
    service = KeepsNames(seed=1)
    service.first = service.add_import("t", [{"x": 1}])
    service.add_import("t", [{"x": 2}])
    other = service.add_import("other", [{"x": 3}])
    shown = {"privacy": rules, **settings}
    for _ in range(2):
        ran = warehouse.run(service, **shown)
        assert (ran.status, ran.problems) == ("succeeded", [])
    loaded = warehouse.query("SELECT count(*) FROM records WHERE import_slug <> ?", other)
    assert loaded == [(2 if reads else 0,)]
    with serve(service) as url:
        made = Settings.load(base_url=url, access_token=service.token, **shown)
        assert verify(warehouse.pipeline(), made, deep=True).differences == []
