"""The facts of the page, from a real sync into DuckDB and PostgreSQL."""

from __future__ import annotations

from datetime import timedelta

import pytest

from connector.reporting import html
from connector.reporting.html import Facts, gathering, judge, render
from connector.reporting.html.facts import DAYS_OF_CHANGES, ValueProfile
from connector.sandbox import Service
from connector.standing import Standing
from connector.warehouse import Warehouse as Reading
from tests.reporting.html.conftest import (
    ENDS_SCRIPTS,
    FIELD,
    NOW,
    Troubled,
    add_troubles,
    execute,
    facts_of,
    sound_service,
)
from tests.types.conftest import DuckDB, Warehouse

pytestmark = pytest.mark.thorough


def test_a_sound_warehouse(warehouse: Warehouse) -> None:
    tally = warehouse.run(sound_service())
    facts = facts_of(warehouse)
    verdict = judge(facts)
    assert (verdict.kind, verdict.reasons) == ("good", ())
    assert (facts.imports, facts.records, facts.rejected, facts.runs.total) == (3, 72, 0, 1)
    assert facts.fresh_as_of == tally.started_at
    assert facts.standings == {Standing.reconciled: 3}
    assert [(t.name, t.imports, t.expected, t.loaded) for t in facts.templates.rows] == [
        ("customers", 2, 60, 60),
        ("orders", 1, 12, 12),
    ]
    assert [(str(u.day), u.template, u.imports, u.rows) for u in sorted(facts.uploads, key=lambda u: u.day)] == [
        ("2026-10-02", "customers", 1, 30),
        ("2026-10-03", "customers", 1, 30),
        ("2026-10-04", "orders", 1, 12),
    ]
    [run] = facts.runs.rows
    assert (run.status, run.records_loaded, run.imports_changed) == ("succeeded", 72, 3)
    assert run.seconds is not None
    assert run.seconds > 0
    assert "Everything is loaded and reconciled." in render(facts)


@pytest.mark.dialect
def test_each_trouble_is_told(warehouse: Warehouse) -> None:
    service = sound_service()
    warehouse.run(service)
    which = add_troubles(service)
    warehouse.run(service)
    _troubles_are_told(facts_of(warehouse), which)


def _troubles_are_told(facts: Facts, which: Troubled) -> None:
    assert facts.standings == {
        Standing.reconciled: 7,
        Standing.failed: 1,
        Standing.unreconciled: 1,
        Standing.unfinished: 1,
    }
    verdict = judge(facts)
    assert verdict.kind == "attention"
    assert verdict.reasons == (
        "The last run was partial.",
        "1 import failed.",
        "1 import does not reconcile.",
        "1 record was rejected.",
    )
    assert "1 import is still being uploaded" in verdict.notes[0]
    failed, unreconciled = facts.open_imports.rows
    assert (failed.slug, failed.loaded, failed.expected) == (which.failed, 0, 5)
    assert "500" in str(failed.error)
    assert (unreconciled.slug, unreconciled.loaded, unreconciled.expected) == (which.unreconciled, 10, 12)
    [reject] = facts.rejects.rows
    assert (reject.records, reject.imports, reject.example) == (1, 1, which.rejecting)
    hostile = {f.path: f for f in facts.fields.rows if f.template == ENDS_SCRIPTS}
    assert set(hostile) == {FIELD, "</script>", ""}
    assert (hostile[FIELD].conflicts, hostile[FIELD].conflict_share, hostile[FIELD].null_share) == (1, 0.5, 0)
    assert (hostile[""].null_share, hostile["</script>"].null_share) == (0.5, 1)
    assert hostile["</script>"].data_type is None
    by_name = {t.name: t for t in facts.templates.rows}
    assert (by_name["customers"].doubtful, by_name["orders"].doubtful) == (1, 1)
    assert by_name["rejects"].rejected == 1
    assert gathering.NO_TEMPLATE in by_name


def test_rows_that_vanished_since_are_noticed(troubled: tuple[Warehouse, Troubled]) -> None:
    place, which = troubled
    execute(place, "DELETE FROM records WHERE import_slug = %s", which.rejecting)
    facts = facts_of(place)
    assert facts.standings[Standing.damaged] == 1
    assert [i.slug for i in facts.open_imports.rows if i.standing is Standing.damaged] == [which.rejecting]
    assert "1 import differs from what was loaded." in judge(facts).reasons
    assert "importer-sync doctor" in render(facts)


def test_rows_nobody_knows_are_noticed(troubled: tuple[Warehouse, Troubled]) -> None:
    place, _ = troubled
    execute(place, "INSERT INTO records SELECT * REPLACE ('stray' AS import_slug, 'r' AS slug) FROM records LIMIT 1")
    assert any("that the ledger does not list" in reason for reason in judge(facts_of(place)).reasons)


def test_a_load_that_was_not_completed_counts_for_nothing(troubled: tuple[Warehouse, Troubled]) -> None:
    place, _ = troubled
    execute(place, "UPDATE sync_imports SET _dlt_load_id = 'gone' WHERE state = 'synced'")
    facts = facts_of(place)
    assert facts.standings[Standing.waiting] == 8
    assert "8 imports are not loaded yet." in judge(facts).reasons


def test_a_count_that_differs_is_told_though_runs_do_not_mind(duck: DuckDB) -> None:
    service = sound_service()
    odd = service.slugs()[0]
    service.set_row_count(odd, 31)
    assert duck.run(service, reconcile="off").status == "succeeded"
    facts = facts_of(duck)
    assert (facts.open_imports.rows, facts.standings[Standing.accepted]) == ((), 1)
    assert any("other than row_count records" in note for note in judge(facts).notes)
    assert duck.run(service).status == "partial"
    assert [(i.slug, i.standing) for i in facts_of(duck).open_imports.rows] == [(odd, Standing.unreconciled)]


def test_a_run_of_a_selection_is_no_full_run(duck: DuckDB) -> None:
    tally = duck.run(sound_service())
    execute(duck, "UPDATE sync_runs SET mode = 'backfill'")
    facts = facts_of(duck)
    assert facts.fresh_as_of is None
    assert "No full run has succeeded yet." in judge(facts).reasons
    execute(duck, "UPDATE sync_runs SET mode = 'incremental', window_since = started_at")
    assert facts_of(duck).fresh_as_of is None
    execute(duck, "UPDATE sync_runs SET window_since = NULL")
    assert facts_of(duck).fresh_as_of == tally.started_at


@pytest.mark.parametrize("missing", ["sync_fields", "sync_rejects", "records", "imports", "sync_runs"])
def test_a_table_that_is_not_there(troubled: tuple[Warehouse, Troubled], missing: str) -> None:
    place, _ = troubled
    execute(place, f"DROP TABLE {missing}")
    assert "<h1" in render(facts_of(place))


def test_without_typed_tables(duck: DuckDB) -> None:
    duck.run(sound_service(), typed=False)
    facts = facts_of(duck)
    assert (facts.fields.total, facts.imports, judge(facts).kind) == (0, 3, "good")
    assert "There are no typed tables" in judge(facts).notes[0]


def test_without_raw_rows(duck: DuckDB) -> None:
    duck.run(sound_service(), raw=False)
    facts = facts_of(duck)
    assert (facts.records, judge(facts).kind) == (72, "good")
    assert facts.fields.total > 0


def test_nothing_was_ever_synced(warehouse: Warehouse) -> None:
    with warehouse.pipeline().sql_client() as client:
        client.execute_sql("SELECT 1")
    facts = facts_of(warehouse)
    assert (facts.synced, judge(facts).kind) == (False, "empty")
    assert "importer-sync run" in render(facts)


def test_secrets_are_taken_out_of_every_text(troubled: tuple[Warehouse, Troubled]) -> None:
    from connector.reporting import html
    from connector.warehouse import Warehouse as Reading

    place, _ = troubled
    execute(place, "UPDATE sync_runs SET error = 'with tok-123456 inside'")
    execute(place, "UPDATE sync_imports SET error = 'and tok-123456 here'")
    execute(place, "UPDATE sync_rejects SET reason = 'tok-123456'")
    facts = html.gather(
        Reading(place.pipeline()), "tok-123456", place.dataset, NOW, lambda text: text.replace("tok-123456", "***")
    )
    assert "tok-123456" not in render(facts)
    assert "with *** inside" in render(facts)


def test_a_large_warehouse_makes_a_page_of_bounded_size(troubled: tuple[Warehouse, Troubled]) -> None:
    place, _ = troubled
    completed = "(SELECT max(load_id) FROM _dlt_loads WHERE status = 0)"
    execute(
        place,
        "INSERT INTO imports (slug, row_count, created_at, updated_at, status, template__slug, template__name, "
        "_dlt_load_id) SELECT 'i' || n, 2, now() - to_days(n % 900), now(), 'completed', 't' || n % 200, "
        f"'Template ' || n % 200, {completed} FROM range(10000) AS t(n)",
    )
    execute(
        place,
        "INSERT INTO sync_imports (slug, state, row_count, status, template_slug, has_raw, records_loaded, "
        "records_rejected, attempts, error, _dlt_load_id) SELECT 'i' || n, "
        "CASE WHEN n % 10 = 0 THEN 'failed' ELSE 'synced' END, 2, 'completed', 't' || n % 200, TRUE, 2, 0, 1, "
        f"repeat('It is down. ', 200), {completed} FROM range(10000) AS t(n)",
    )
    execute(
        place,
        "INSERT INTO records (slug, import_slug, data, _dlt_load_id) SELECT n || '-' || m, 'i' || n, '{}', "
        f"{completed} FROM range(10000) AS t(n), range(2) AS u(m)",
    )
    execute(
        place,
        "INSERT INTO sync_fields (table_name, column_name, template_slug, path, keys, data_type, value_count, "
        "null_count, conflict_count, _dlt_load_id) SELECT 'records_t' || n, 'c' || m, 't' || n, 'C' || m, "
        f"json_array('C' || m), 'text', 10, m, m % 9 // 8, {completed} FROM range(200) AS t(n), range(50) AS u(m)",
    )
    facts = facts_of(place)
    page = render(facts)
    assert facts.standings[Standing.failed] == 1001
    assert len(page.encode()) < 2_500_000
    assert f"{gathering.OPEN_KEPT:,} of {facts.open_imports.total:,} imports are shown" in page
    assert f"{gathering.FIELDS_KEPT:,} of {facts.fields.total:,} fields are shown" in page
    assert sum(1 for f in facts.fields.rows if f.conflicts) == sum(
        n
        for (n,) in place.tuples(
            "SELECT count(*) FROM sync_fields WHERE conflict_count > 0 AND table_name <> 'imports'"
        )
    )


@pytest.mark.dialect
def test_changes_of_the_last_month_per_day_and_field(warehouse: Warehouse) -> None:
    service = sound_service()
    slug = service.add_import(ENDS_SCRIPTS, [{FIELD: n} for n in range(3)])
    assert facts_of(warehouse).changes is None, "no version is kept"
    started = warehouse.run(service, history=True).started_at
    for record in list(service.record_slugs(slug))[:2]:
        service.edit_row(slug, record, {FIELD: "edited"})
    warehouse.run(service, history=True)
    facts = facts_of(warehouse, started + timedelta(days=DAYS_OF_CHANGES - 1))
    assert facts.changes is not None
    assert {(c.template, c.field, c.change, c.records) for c in facts.changes.rows} == {
        (ENDS_SCRIPTS, FIELD, "update", 2),
        (ENDS_SCRIPTS, None, "insert", 3),
        ("customers", None, "insert", 60),
        ("orders", None, "insert", 12),
    }
    assert "(whole record)" in render(facts)
    later = facts_of(warehouse, started + timedelta(days=DAYS_OF_CHANGES + 1))
    assert later.changes is not None
    assert later.changes.total == 0
    assert "No run of the last 30 days saw a record change" in render(later)


@pytest.mark.dialect
def test_what_is_in_a_field(warehouse: Warehouse) -> None:
    service = Service(seed=7)
    ends = [{"far": 1.5e308, "day": "2026-01-31"}, {"far": -1.5e308, "day": "2026-02-28"}]
    rows = [{"n": n, "city": "Köln" if n % 3 else "Berlin", "mail": f"{n}@x.example", "same": 2} for n in range(24)]
    service.add_import("people", [*rows, *ends])
    assert warehouse.run(service, hints={"records_people": {"day": "date"}}).status == "succeeded"
    looks = {field.path: field.looks for field in facts_of(warehouse).fields.rows}
    assert looks["n"] == ValueProfile("0", "23", (2,) * 12)
    assert looks["city"] == ValueProfile(top=(("Köln", 16 / 24), ("Berlin", 8 / 24)))
    assert looks["mail"] is None, "a text of one record only is nobody's business"
    assert looks["same"] == ValueProfile("2", "2")
    assert looks["far"] is not None
    assert looks["far"].bars == ()
    assert looks["day"] == ValueProfile("2026-01-31", "2026-02-28", (1, *(0,) * 10, 1))
    without = html.gather(Reading(warehouse.pipeline()), "w", warehouse.dataset, NOW, values=False)
    assert all(field.looks is None for field in without.fields.rows)
    execute(warehouse, "ALTER TABLE records_people RENAME COLUMN city TO town")
    assert {f.path: f.looks for f in facts_of(warehouse).fields.rows}["city"] is None
