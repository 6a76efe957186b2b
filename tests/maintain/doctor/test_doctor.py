"""The doctor names each thing that is wrong, mends what it may, and the next run does the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from connector.errors import LockedError
from connector.maintain.doctor import doctor
from connector.warehouse.lock import lock_path, sole_writer

from .conftest import Place

pytestmark = pytest.mark.thorough


def test_a_healthy_warehouse(place: Place) -> None:
    before = place.execute("SELECT * FROM sync_imports ORDER BY slug")
    for repair in (False, True):
        report = place.doctor(repair=repair)
        assert (report.findings, report.repaired, report.notes, report.exit_code) == ([], [], [], 0)
        assert json.loads(json.dumps(report.as_json()))["status"] == "healthy"
    assert place.execute("SELECT * FROM sync_imports ORDER BY slug") == before


def test_nothing_there_yet_is_no_illness(tmp_path: Path) -> None:
    report = doctor(Place(tmp_path).pipeline())
    assert report.exit_code == 0
    assert "no warehouse yet" in report.notes[0]
    assert not (tmp_path / "warehouse.duckdb").exists()


def test_a_run_under_way_is_named(place: Place) -> None:
    with sole_writer(place.pipeline()), pytest.raises(LockedError, match=r"process \d+ of"):
        place.doctor()


def test_a_note_of_a_dead_holder_is_explained(place: Place) -> None:
    note = {"process": 4711, "user": "ada", "host": "here", "since": "2026-01-01T00:00:00+00:00"}
    lock_path(place.pipeline()).with_suffix(".holder").write_text(json.dumps(note))
    report = place.doctor()
    assert report.exit_code == 0
    assert "Process 4711 of ada on here" in report.notes[0]
    assert place.doctor().notes == []


def test_a_pending_package(place: Place) -> None:
    pipeline = place.pipeline()
    pipeline.extract([{"slug": "x"}], table_name="records")
    assert place.kinds() == ["pending_package"]
    assert "dropped" in place.doctor(repair=True).repaired[0]
    assert place.kinds() == []
    assert not place.pipeline().has_pending_data


def test_a_working_directory_of_another_warehouse_is_no_matter(place: Place, tmp_path: Path) -> None:
    place.pipeline(tmp_path / "another.duckdb").extract([{"slug": "x"}], table_name="records")
    assert place.kinds() == ["pending_package"]
    place.service.append_rows(place.orders, [{"n": 9}])
    assert place.sync() == "succeeded"
    assert place.is_equal()
    assert place.kinds() == []


def test_a_crashed_run(place: Place) -> None:
    place.execute("UPDATE sync_runs SET status = 'running'")
    assert place.kinds() == ["dead_run"]
    assert "recorded as failed" in place.doctor(repair=True).repaired[0]
    assert place.kinds() == []
    assert place.execute("SELECT status, error_kind FROM sync_runs") == [("failed", "Unsettled")]


@pytest.mark.parametrize(
    "spoil",
    [
        "DELETE FROM records WHERE import_slug = '{orders}' AND sort = 1",
        "DELETE FROM records_orders WHERE _import_slug = '{orders}'",
        "UPDATE records_orders SET _dlt_load_id = 'x' WHERE _import_slug = '{orders}'",
        "INSERT INTO records_people (_record_slug, _import_slug, _dlt_load_id) VALUES ('y', '{orders}', 'x')",
        "UPDATE sync_imports SET _dlt_load_id = 'x' WHERE slug = '{orders}'",
        "UPDATE sync_imports SET records_loaded = 4 WHERE slug = '{orders}'",
    ],
)
def test_rows_that_disagree_are_invalidated_and_read_again(place: Place, spoil: str) -> None:
    place.execute(spoil.format(orders=place.orders))
    assert [(f.kind, f.import_slug) for f in place.doctor().findings] == [("rows_disagree", place.orders)]
    report = place.doctor(repair=True)
    assert report.exit_code == 0
    assert place.orders in report.repaired[0]
    place.service.log.clear()
    assert place.sync() == "succeeded"
    read = {path.split("/")[4] for _, path, _, _ in place.service.log if path.endswith("/records")}
    assert read == {place.orders}, "only the doubtful import is read"
    assert place.is_equal()
    assert place.kinds() == []


@pytest.mark.parametrize("repair", [False, True])
def test_a_lost_table_is_read_again(place: Place, repair: bool) -> None:
    place.execute("DROP TABLE records_people")
    assert place.kinds() == ["rows_disagree", "table_missing"]
    if repair:
        assert place.people in place.doctor(repair=True).repaired[0]
        assert place.execute("SELECT slug FROM sync_imports WHERE _dlt_load_id = ''") == [(place.people,)]
    assert place.sync() == "succeeded"
    assert place.is_equal()
    assert place.kinds() == []


def test_a_table_that_no_import_has_rows_of_may_be_dropped(place: Place) -> None:
    place.service.delete_import(place.people)
    assert place.sync() == "succeeded"
    place.execute("DROP TABLE records_people")
    assert place.kinds() == []
    assert place.sync() == "succeeded"
    assert place.kinds() == []


def test_lost_raw_rows_are_read_again(place: Place) -> None:
    place.execute("DROP TABLE records")
    assert set(place.kinds()) == {"rows_disagree"}
    assert place.sync() == "succeeded"
    assert place.is_equal()
    assert place.kinds() == []


def test_rows_of_an_import_that_the_ledger_does_not_know(place: Place) -> None:
    place.execute("DELETE FROM sync_imports WHERE slug = ?", place.people)
    place.execute("INSERT INTO records (slug, import_slug, _dlt_load_id) VALUES ('r', 'nobody', 'x')")
    assert place.kinds() == ["orphan_rows", "orphan_rows"]
    assert place.doctor(repair=True).exit_code == 0
    assert place.sync() == "succeeded"
    assert place.is_equal()
    assert place.execute("SELECT count(*) FROM records WHERE slug = 'r'") == [(0,)]
    assert place.kinds() == []


def test_failed_and_unreconciled_imports_with_their_errors(place: Place) -> None:
    place.execute("UPDATE sync_imports SET state = 'failed', error = 'Boom.' WHERE slug = ?", place.orders)
    place.execute("UPDATE sync_imports SET state = 'unreconciled', error = '3 of 4' WHERE slug = ?", place.people)
    findings = {f.kind: f for f in place.doctor().findings}
    assert set(findings) == {"import_failed", "import_unreconciled"}
    assert "Boom." in findings["import_failed"].sentence
    assert f"--import {place.orders}" in findings["import_failed"].fix
    assert "3 of 4" in findings["import_unreconciled"].sentence
    assert place.doctor(repair=True).exit_code == 3, "only the service can mend these"


def test_unfinished_imports_are_a_note(place: Place) -> None:
    place.execute("UPDATE sync_imports SET status = 'submitting' WHERE slug = ?", place.orders)
    report = place.doctor()
    assert report.exit_code == 0
    assert "1 imports are not completed" in report.notes[0]


@pytest.mark.parametrize(
    ("spoil", "kind", "fix"),
    [
        ("ALTER TABLE records_orders DROP COLUMN n", "column_missing", "rebuild --table records_orders"),
        ("ALTER TABLE records_orders ALTER n TYPE DOUBLE", "column_type", "rebuild --table records_orders"),
        ("UPDATE sync_fields SET has_text = true WHERE path = 'n'", "column_missing", "rebuild"),
        ("DROP TABLE sync_rejects", "table_missing", "the next run recreates it"),
    ],
)
def test_tables_and_columns_against_the_dictionary(place: Place, spoil: str, kind: str, fix: str) -> None:
    place.execute(spoil)
    (finding,) = place.doctor().findings
    assert finding.kind == kind
    assert fix in finding.fix


def test_a_half_written_rebuild(place: Place) -> None:
    columns = "_record_slug VARCHAR, _import_slug VARCHAR, _deleted_at TIMESTAMPTZ, _dlt_load_id VARCHAR"
    place.execute(f"CREATE TABLE sync_rebuild ({columns})")
    assert place.kinds() == ["half_rebuilt"]
    assert place.doctor(repair=True).repaired
    assert place.kinds() == []


def test_a_database_file_that_cannot_be_read(place: Place) -> None:
    place.file.write_bytes(b"this is no database" * 500)
    (finding,) = place.doctor().findings
    assert finding.kind == "unreadable"
    assert "backup" in finding.fix
