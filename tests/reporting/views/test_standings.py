"""The checks in SQL say of every state of ledger and imports what the one function says that all commands use."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import psycopg2
import pytest

import connector
from connector.cli.commands.status import advice
from connector.ledger import COMPLETED, Due, LedgerRow, State
from connector.reporting.html.charts import fresh_runs
from connector.reporting.views.sources import sources
from connector.run.sync import sync
from connector.sandbox import Request, serve
from connector.settings import RunScope, Settings
from connector.standing import Shown, Standing, standing
from connector.warehouse import Warehouse
from connector.warehouse.status import WarehouseStatus, read_status
from tests.reporting.html.conftest import facts_of
from tests.reporting.views.conftest import Place
from tests.reporting.views.test_checks import NO_REJECTS, fill

pytestmark = pytest.mark.thorough

THEN = datetime(2026, 2, 1, 8, tzinfo=UTC)
TABLES = """
    CREATE TABLE imports (slug text, template__name text, row_count bigint, updated_at timestamptz, status text,
                          _deleted_at timestamptz);
    CREATE TABLE sync_imports (slug text, state text, row_count bigint, updated_at timestamptz, status text,
                               records_loaded bigint, records_rejected bigint, has_raw boolean, attempts bigint,
                               error text, last_synced_at timestamptz, due text);
    CREATE TABLE records (slug text, import_slug text, _deleted_at timestamptz)
"""
IMPORT = "INSERT INTO imports (slug, row_count, updated_at, status) VALUES (%s, %s, %s, %s)"
LEDGER = (
    "INSERT INTO sync_imports (slug, state, row_count, updated_at, status, records_loaded, records_rejected, has_raw, "
    "due) VALUES (%s, %s, %s, %s, %s, %s, %s, FALSE, %s)"
)


def cases() -> Iterator[tuple[Shown, LedgerRow]]:
    times = (THEN - timedelta(seconds=1), THEN, THEN + timedelta(seconds=1))
    states = (State.synced, State.unreconciled, State.failed, State.deleted)
    space = itertools.product(
        times, (2, 3), states, (COMPLETED, "submitted"), (1, 2, 3), (0, 1), (None, Due.vanished, Due.racy)
    )
    for at, row_count, state, status, loaded, rejected, due in space:
        known = LedgerRow(
            "",
            state,
            THEN,
            2,
            status,
            records_loaded=loaded,
            records_rejected=rejected,
            due=due,
            attempts=1,
            trusted=True,
        )
        yield Shown(at, row_count), known


def offending(execute: Any, check: str) -> set[int]:
    sql = (Path(connector.__file__).parent / "sql" / "checks" / f"{check}.sql").read_text()
    return {int(row[0]) for row in execute(sql)}


def compare(execute: Any) -> None:
    found = list(cases())
    for n, (shown, known) in enumerate(found):
        execute(IMPORT, str(n), shown.row_count, shown.updated_at, known.status)
        values = (known.row_count, known.updated_at, known.status, known.records_loaded, known.records_rejected)
        execute(LEDGER, str(n), known.state.value, *values, known.due)
    stands = [standing(known, shown) for shown, known in found]
    assert set(stands) == set(Standing) - {Standing.damaged, Standing.excluded}
    for check, meant in (
        ("counts_do_not_reconcile", Standing.unreconciled),
        ("failed_imports", Standing.failed),
        ("waiting_imports", Standing.waiting),
    ):
        wanted = {n for n, each in enumerate(stands) if each is meant}
        differ = offending(execute, check) ^ wanted
        assert not differ, [(check, stands[n], found[n]) for n in differ]


def test_on_duckdb() -> None:
    with duckdb.connect() as connection:
        connection.execute(TABLES)
        compare(lambda sql, *values: connection.execute(sql.replace("%s", "?"), values).fetchall())


def test_on_postgres(postgres_uri: str) -> None:
    with closing(psycopg2.connect(postgres_uri)) as connection, connection.cursor() as cursor:

        def execute(sql: str, *values: Any) -> list[Any]:
            cursor.execute(sql, values or None)
            return cursor.fetchall() if cursor.description else []

        cursor.execute(f"CREATE SCHEMA standings; SET search_path = standings; {TABLES}")
        compare(execute)
        connection.rollback()


def test_a_backfill_that_fails_is_a_promise_that_status_tells(place: Place) -> None:
    """Also in a ledger that an earlier version made."""
    fill(place.service)
    assert place.sync() == "succeeded"
    place.execute("ALTER TABLE sync_imports DROP COLUMN due")
    with serve(place.service) as url:
        settings = Settings.load(base_url=url, access_token="wrong")
        assert sync(place.warehouse.pipeline(), settings, RunScope("backfill", force=True)).status == "failed"
    found = overview(place)
    assert found.due == {"backfill": 3}
    assert any("selected by a backfill" in line for line in advice(found, stale=False))
    assert found.standings == {"reconciled": 3}

    assert place.sync() == "succeeded"

    assert "backfill" not in overview(place).due
    [(runs,)] = place.tuples("SELECT count(DISTINCT run_id) FROM sync_imports")
    assert runs == 1


def test_a_backfill_under_a_status_promises_nothing_about_imports_that_left_it(
    duck_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their mark stays, because the next run of that status that lists them has to read them."""
    slug = duck_place.service.add_import("customers", [{"a": 1}])
    monkeypatch.setenv("SOURCES__IMPORTER__STATUS", COMPLETED)
    with serve(duck_place.service) as url:
        settings = Settings.load(base_url=url, access_token=duck_place.service.token, status=COMPLETED)
        assert sync(duck_place.warehouse.pipeline(), settings).status == "succeeded"
        duck_place.service.set_status(slug, "submitted")
        assert sync(duck_place.warehouse.pipeline(), settings, RunScope("backfill", force=True)).status == "succeeded"
        found = overview(duck_place)
        assert any(line.endswith("reads them once they are completed.") for line in advice(found, stale=False))

        duck_place.service.set_status(slug, "completed")
        assert sync(duck_place.warehouse.pipeline(), settings).status == "succeeded"
    assert "backfill" not in overview(duck_place).due


def test_no_command_contradicts_another_on_an_import_that_changes_while_it_is_read(duck_place: Place) -> None:
    service = duck_place.service
    slug = service.add_import("t", [{"n": n} for n in range(150)], status="submitted")
    edited = False

    def edit(request: Request) -> None:
        nonlocal edited
        if request.path.endswith("/records") and not edited:
            edited = True
            service.append_rows(slug, [{"n": -1}])
            service.set_status(slug, "completed")

    service.on_request = edit
    assert duck_place.sync() == "succeeded"
    [(listed, read)] = duck_place.tuples(
        "SELECT i.row_count, s.row_count FROM imports i JOIN sync_imports s ON s.slug = i.slug"
    )
    assert (listed, read) == (151, 151)
    assert overview(duck_place).standings == {"reconciled": 1}
    assert {name for name, each in duck_place.check().items() if each.offending} == set()


def test_status_calls_nothing_synced_that_is_not_loaded_as_it_was_listed(place: Place) -> None:
    fill(place.service)
    assert place.sync() == "succeeded"
    whole = overview(place).imports
    assert whole == {"synced": 3}
    half, unread, _ = sorted(slug for (slug,) in place.tuples("SELECT slug FROM sync_imports"))
    place.execute(f"UPDATE sync_imports SET _dlt_load_id = 'dead' WHERE slug = '{half}'")
    assert overview(place).imports == {"synced": 2, "waiting": 1}
    place.execute(f"DELETE FROM sync_imports WHERE slug = '{unread}'")
    found = overview(place)
    assert found.imports == {"synced": 1, "waiting": 2}
    assert sum(found.imports.values()) == sum(found.standings.values())


@pytest.mark.dialect
def test_a_run_that_a_status_bounds_makes_nothing_fresh_but_where_it_is_configured(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(place.service)
    full = place.warehouse.run(place.service)
    place.service.add_import("people", [{"n": 1}])  # completed: only a run without `status` reads it
    bounded = place.warehouse.run(place.service, status="submitted")
    backfill = place.warehouse.run(place.service, RunScope("backfill", force=True), status="completed")
    modes = [each.mode for each in (full, bounded, backfill)]
    assert modes == ["incremental", "incremental (submitted)", "backfill"]
    assert (full.status, bounded.status) == ("succeeded", "succeeded")
    place.apply()
    unread = f"VALUES ('r', '{bounded.run_id}', 'import: no slug', 'l')"
    place.execute(f"{NO_REJECTS}; INSERT INTO sync_rejects (reject_id, run_id, reason, _dlt_load_id) {unread}")
    renamed = "UPDATE sync_runs SET run_id = '{}' WHERE run_id = '{}'"
    place.execute(renamed.format("zzz", full.run_id))  # the ids of runs that began in the same second are in no order
    assert overview(place).rejects == 1
    assert place.check("rejected_rows")["rejected_rows"].offending == 1
    place.execute(renamed.format(full.run_id, "zzz"))

    assert place.tuples("SELECT is_full FROM v_runs ORDER BY started_at") == [(True,), (False,), (False,)]
    assert place.tuples("SELECT DISTINCT fresh_as_of FROM v_freshness") == [(full.started_at,)]
    for configured, fresh in ((None, full), ("completed", full), ("submitted", bounded)):
        if configured is not None:
            monkeypatch.setenv("SOURCES__IMPORTER__STATUS", configured)
        facts = facts_of(place.warehouse)
        assert overview(place).fresh_as_of == facts.fresh_as_of == fresh.started_at
        assert [run.run_id for run in fresh_runs(facts.runs.rows)][:1] == [fresh.run_id]
        [runs] = [each for each in sources(place.warehouse.pipeline())["sources"][0]["tables"] if "config" in each]
        counted = runs["config"]["freshness"]["filter"]
        assert place.tuples(f"SELECT max(started_at) FROM sync_runs WHERE {counted}") == [(fresh.started_at,)]


@pytest.mark.dialect
def test_an_import_that_waits_is_complete_nowhere(place: Place) -> None:
    """As after a run that wrote the listing and did not read the records, or before the shards have read theirs."""
    fill(place.service)
    assert place.sync() == "succeeded"
    place.apply()
    changed = "UPDATE imports SET updated_at = updated_at + INTERVAL '1 hour' WHERE slug = 'one'"
    shown = "SELECT state, is_complete FROM v_imports WHERE import_slug = 'one'"
    incomplete = "SELECT sum(imports_incomplete) FROM {}"
    assert place.tuples(shown) == [("synced", True)]

    place.execute(changed)

    assert overview(place).standings == {"reconciled": 2, "waiting": 1}
    assert place.tuples(shown) == [("waiting", False)]
    assert [place.tuples(incomplete.format(each)) for each in ("v_freshness", "v_uploads_per_day")] == [[(1,)], [(1,)]]
    assert {name for name, each in place.check().items() if each.offending} == {"waiting_imports"}

    place.execute("UPDATE sync_imports SET due = 'vanished' WHERE slug = 'one'")
    assert overview(place).standings == {"reconciled": 3}
    assert place.tuples(shown) == [("synced", True)]
    assert {name for name, each in place.check().items() if each.offending} == set()


def test_a_record_that_is_rejected_again_is_one_and_none_once_it_is_corrected(place: Place) -> None:
    """For `status`, the report and `sql check` alike, though `sync_rejects` has it once for each run that met it."""
    fill(place.service)
    record = place.service.add_raw_record("one", '{"data": [1]}')
    for _ in range(2):
        assert place.warehouse.run(place.service, RunScope("backfill", force=True)).status == "partial"
    assert place.tuples("SELECT count(*) FROM sync_rejects") == [(2,)]
    assert overview(place).rejects == 1
    assert facts_of(place.warehouse).rejected == 1
    assert place.check("rejected_rows")["rejected_rows"].offending == 1

    place.service.delete_row("one", record)
    assert place.sync() == "succeeded"
    assert place.tuples("SELECT count(*) FROM sync_rejects") == [(2,)]
    assert overview(place).rejects == 0
    assert facts_of(place.warehouse).rejected == 0
    assert place.check("rejected_rows")["rejected_rows"].offending == 0


def overview(place: Place) -> WarehouseStatus:
    with Warehouse(place.warehouse.pipeline()).connect() as connection:
        return read_status(connection, 5)
