"""Each check finds nothing in a sound warehouse, and exactly what offends once it is there."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from connector.errors import ConfigError
from connector.sandbox import Service
from connector.sandbox.catalogue import Template
from tests.reporting.views.conftest import Place
from tests.types.conftest import DuckDB, PostgreSQL

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def sound_duckdb() -> Iterator[Path]:
    """A file that each test gets a copy of."""
    folder = Path(tempfile.mkdtemp(prefix="sound-"))
    place = Place(DuckDB(folder))
    place.warehouse.dataset = "d"
    fill(place.service)
    assert place.sync() == "succeeded"
    yield folder
    shutil.rmtree(folder)


def fill(service: Service) -> None:
    service.add_import(Template("people", "people"), [{"n": n, "name": f"p{n}"} for n in range(10)], slug="one")
    service.add_import(Template("people", "people"), [{"n": n, "name": None} for n in range(10)], slug="two")
    service.add_import(None, [{"x": 1}], slug="none")


@pytest.fixture
def sound(sound_duckdb: Path, tmp_path: Path) -> Place:
    shutil.copytree(sound_duckdb, tmp_path / "sound")
    warehouse = DuckDB(tmp_path / "sound")
    warehouse.dataset = "d"
    return Place(warehouse)


BREAKS = {
    "counts_do_not_reconcile": [
        "UPDATE imports SET row_count = 11 WHERE slug = 'one'",
        "UPDATE sync_imports SET records_loaded = 9 WHERE slug = 'one'",
        "UPDATE sync_imports SET state = 'unreconciled' WHERE slug = 'one'",
        "DELETE FROM records WHERE slug = (SELECT min(slug) FROM records WHERE import_slug = 'one')",
        "UPDATE records SET _deleted_at = now() WHERE import_slug = 'one'",
    ],
    "orphaned_records": [
        "DELETE FROM imports WHERE slug = 'one'",
        "UPDATE imports SET _deleted_at = now() WHERE slug = 'one'",
        "UPDATE records SET import_slug = 'nowhere' WHERE import_slug = 'one'",
    ],
    "imports_out_of_ledger": [
        "DELETE FROM sync_imports WHERE slug = 'one'",
        "DELETE FROM imports WHERE slug = 'one'",
    ],
    "duplicate_slugs": [
        "INSERT INTO imports SELECT * FROM imports WHERE slug = 'one'",
        "INSERT INTO records SELECT * FROM records WHERE import_slug = 'none'",
        "INSERT INTO sync_imports SELECT * FROM sync_imports WHERE slug = 'one'",
        "INSERT INTO sync_runs SELECT * FROM sync_runs",
    ],
    "duplicate_typed_rows": ["INSERT INTO records_people SELECT * FROM records_people WHERE n = 3 AND name = 'p3'"],
    "unmatched_typed_rows": [
        "DELETE FROM records WHERE import_slug = 'none'",
        "DELETE FROM records_people WHERE n = 3 AND name = 'p3'",
        "UPDATE records_people SET _import_slug = 'two' WHERE name = 'p3'",
        "UPDATE records_people SET _deleted_at = now() WHERE name = 'p3'",
    ],
    "failed_imports": ["UPDATE sync_imports SET state = 'failed', error = 'cut off' WHERE slug = 'one'"],
    "stale_imports": [
        "UPDATE imports SET status = 'submitted', updated_at = now() - INTERVAL '25 hours' WHERE slug = 'one'; "
        "UPDATE sync_imports SET status = 'submitted', updated_at = now() - INTERVAL '25 hours' WHERE slug = 'one'"
    ],
    "waiting_imports": ["UPDATE imports SET updated_at = updated_at + INTERVAL '1 second' WHERE slug = 'one'"],
    "conflicting_columns": ["UPDATE sync_fields SET conflict_count = 2 WHERE column_name = 'n'"],
    "overflowed_fields": ["UPDATE sync_fields SET data_type = 'overflowed' WHERE column_name = 'n'"],
    "rejected_rows": [
        "INSERT INTO sync_rejects (reject_id, import_slug, reason, _dlt_load_id) VALUES ('r', 'one', 'no slug', 'l')",
        "INSERT INTO sync_rejects (reject_id, run_id, import_slug, reason, _dlt_load_id) "
        "SELECT 'r', max(run_id), 'nowhere', 'import: no status', 'l' FROM sync_runs",
    ],
}
CASES = [(name, sql) for name, breaks in BREAKS.items() for sql in breaks]
HARMLESS = [
    "INSERT INTO sync_rejects (reject_id, run_id, reason, _dlt_load_id) VALUES ('r', 'old', 'import: no status', 'l')",
    "UPDATE imports SET status = 'submitted', updated_at = now() - INTERVAL '23 hours' WHERE slug = 'one'",
    "UPDATE sync_fields SET conflict_count = 1 WHERE column_name = 'n'",
    "UPDATE records SET _deleted_at = now() WHERE import_slug = 'one'; "
    "UPDATE records_people SET _deleted_at = now() WHERE _import_slug = 'one'; "
    "UPDATE imports SET _deleted_at = now() WHERE slug = 'one'; "
    "UPDATE sync_imports SET state = 'deleted', records_loaded = 0 WHERE slug = 'one'; "
    "INSERT INTO sync_rejects (reject_id, import_slug, reason, _dlt_load_id) VALUES ('r', 'one', 'no slug', 'l')",
]
NO_REJECTS = (
    "CREATE TABLE IF NOT EXISTS sync_rejects (reject_id text, run_id text, import_slug text, record_slug text, "
    "reason text, payload text, seen_at timestamptz, _dlt_load_id text)"
)


def test_every_check_is_broken_once(sound: Place) -> None:
    assert set(sound.check()) == set(BREAKS)


@pytest.mark.parametrize(("name", "sql"), CASES)
def test_a_check_finds_what_offends(sound: Place, name: str, sql: str) -> None:
    assert sound.offending(name) == []
    sound.execute(f"{NO_REJECTS}; {sql}")
    found = sound.offending(name)
    assert found
    shown = {str(value) for row in found for value in row.values()}
    assert shown & {"one", "none", "nowhere", "two", "n", "3", "2"}, "what offends is named"


@pytest.mark.parametrize("sql", HARMLESS)
def test_what_is_in_order_offends_no_check(sound: Place, sql: str) -> None:
    sound.execute(f"{NO_REJECTS}; {sql}")
    assert {name: each.examples for name, each in sound.check().items() if each.offending} == {}


def test_all_checks_on_postgres(postgres_place: Place) -> None:
    place = postgres_place
    fill(place.service)
    assert place.sync() == "succeeded"
    assert isinstance(place.warehouse, PostgreSQL)
    place.execute(NO_REJECTS)
    assert {name: each.examples for name, each in place.check().items() if each.offending} == {}
    for table in ("imports", "records", "records_people", "sync_imports", "sync_runs", "sync_fields", "sync_rejects"):
        place.execute(f"CREATE TABLE kept_{table} AS SELECT * FROM {table}")
    for name, sql in CASES:
        place.execute(sql)
        assert place.offending(name), (name, sql)
        for table in ("imports", "records", "records_people", "sync_imports", "sync_runs", "sync_fields"):
            place.execute(f"DELETE FROM {table}; INSERT INTO {table} SELECT * FROM kept_{table}")
        place.execute("DELETE FROM sync_rejects")
    assert {name: each.examples for name, each in place.check().items() if each.offending} == {}


def test_raw_rows_that_are_not_kept_are_not_missed(duck_place: Place) -> None:
    fill(duck_place.service)
    assert duck_place.sync(raw=False) == "succeeded"
    assert {name for name, each in duck_place.check().items() if each.offending} == set()
    duck_place.service.add_import("people", [{"n": 1}])
    assert duck_place.sync(raw=True) == "succeeded"
    duck_place.service.add_import("people", [{"n": 2}])
    assert duck_place.sync(raw=False) == "succeeded"
    assert {name for name, each in duck_place.check().items() if each.offending} == set()


def test_real_trouble_is_found(duck_place: Place) -> None:
    """Not by a hand in the tables: a row that is no record, and a `row_count` that is not true."""
    service = duck_place.service
    fill(service)
    service.add_raw_record("one", '{"data": {"n": 1}}')
    service.set_row_count("two", 12)
    assert duck_place.sync() == "partial"
    offending = {name: each.offending for name, each in duck_place.check().items() if each.offending}
    assert offending == {"rejected_rows": 1, "counts_do_not_reconcile": 1}


def test_only_the_first_rows_are_shown_and_all_are_counted(sound: Place) -> None:
    sound.execute("DELETE FROM records WHERE import_slug IN ('one', 'two')")
    found = sound.check("unmatched_typed_rows")["unmatched_typed_rows"]
    assert (found.offending, len(found.examples)) == (20, 5)


def test_a_check_that_is_not_there(sound: Place) -> None:
    with pytest.raises(ConfigError, match=r"no check nothing; there are: .*stale_imports"):
        sound.check("nothing")
