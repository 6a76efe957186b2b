"""The doctor names each thing that is wrong, mends what it may, and the next run does the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from connector.errors import LockedError
from connector.maintain.doctor import doctor
from connector.warehouse.lock import lock_path, sole_writer

from .conftest import Patient


def test_a_healthy_warehouse(patient: Patient) -> None:
    before = patient.execute("SELECT * FROM sync_imports ORDER BY slug")
    for repair in (False, True):
        report = patient.doctor(repair=repair)
        assert (report.findings, report.repaired, report.notes, report.exit_code) == ([], [], [], 0)
        assert json.loads(json.dumps(report.as_json()))["status"] == "healthy"
    assert patient.execute("SELECT * FROM sync_imports ORDER BY slug") == before


def test_nothing_there_yet_is_no_illness(tmp_path: Path) -> None:
    report = doctor(Patient(tmp_path).pipeline())
    assert report.exit_code == 0
    assert "no warehouse yet" in report.notes[0]
    assert not (tmp_path / "warehouse.duckdb").exists()


def test_a_run_under_way_is_named(patient: Patient) -> None:
    with sole_writer(patient.pipeline()), pytest.raises(LockedError, match=r"process \d+ of"):
        patient.doctor()


def test_a_note_of_a_dead_holder_is_explained(patient: Patient) -> None:
    note = {"process": 4711, "user": "ada", "host": "here", "since": "2026-01-01T00:00:00+00:00"}
    lock_path(patient.pipeline()).with_suffix(".holder").write_text(json.dumps(note))
    report = patient.doctor()
    assert report.exit_code == 0
    assert "Process 4711 of ada on here" in report.notes[0]
    assert patient.doctor().notes == []


def test_a_pending_package(patient: Patient) -> None:
    pipeline = patient.pipeline()
    pipeline.extract([{"slug": "x"}], table_name="records")
    assert patient.kinds() == ["pending_package"]
    assert "dropped" in patient.doctor(repair=True).repaired[0]
    assert patient.kinds() == []
    assert not patient.pipeline().has_pending_data


def test_a_working_directory_of_another_warehouse_is_no_matter(patient: Patient, tmp_path: Path) -> None:
    patient.pipeline(tmp_path / "another.duckdb").extract([{"slug": "x"}], table_name="records")
    assert patient.kinds() == ["pending_package"]
    patient.service.append_rows(patient.orders, [{"n": 9}])
    assert patient.sync() == "succeeded"
    assert patient.is_equal()
    assert patient.kinds() == []


def test_a_crashed_run(patient: Patient) -> None:
    patient.execute("UPDATE sync_runs SET status = 'running'")
    assert patient.kinds() == ["dead_run"]
    assert "recorded as failed" in patient.doctor(repair=True).repaired[0]
    assert patient.kinds() == []
    assert patient.execute("SELECT status, error_kind FROM sync_runs") == [("failed", "Unsettled")]


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
def test_rows_that_disagree_are_distrusted_and_read_again(patient: Patient, spoil: str) -> None:
    patient.execute(spoil.format(orders=patient.orders))
    assert [(f.kind, f.import_slug) for f in patient.doctor().findings] == [("rows_disagree", patient.orders)]
    report = patient.doctor(repair=True)
    assert report.exit_code == 0
    assert patient.orders in report.repaired[0]
    patient.service.log.clear()
    assert patient.sync() == "succeeded"
    read = {path.split("/")[4] for _, path, _, _ in patient.service.log if path.endswith("/records")}
    assert read == {patient.orders}, "only the doubtful import is read"
    assert patient.is_equal()
    assert patient.kinds() == []


@pytest.mark.parametrize("repair", [False, True])
def test_a_lost_table_is_read_again(patient: Patient, repair: bool) -> None:
    patient.execute("DROP TABLE records_people")
    assert patient.kinds() == ["rows_disagree", "table_missing"]
    if repair:
        assert patient.people in patient.doctor(repair=True).repaired[0]
        assert patient.execute("SELECT slug FROM sync_imports WHERE _dlt_load_id = ''") == [(patient.people,)]
    assert patient.sync() == "succeeded"
    assert patient.is_equal()
    assert patient.kinds() == []


def test_lost_raw_rows_are_read_again(patient: Patient) -> None:
    patient.execute("DROP TABLE records")
    assert set(patient.kinds()) == {"rows_disagree"}
    assert patient.sync() == "succeeded"
    assert patient.is_equal()
    assert patient.kinds() == []


def test_rows_of_an_import_that_the_ledger_does_not_know(patient: Patient) -> None:
    patient.execute("DELETE FROM sync_imports WHERE slug = ?", patient.people)
    patient.execute("INSERT INTO records (slug, import_slug, _dlt_load_id) VALUES ('r', 'nobody', 'x')")
    assert patient.kinds() == ["orphan_rows", "orphan_rows"]
    assert patient.doctor(repair=True).exit_code == 0
    assert patient.sync() == "succeeded"
    assert patient.is_equal()
    assert patient.execute("SELECT count(*) FROM records WHERE slug = 'r'") == [(0,)]
    assert patient.kinds() == []


def test_failed_and_unreconciled_imports_with_their_errors(patient: Patient) -> None:
    patient.execute("UPDATE sync_imports SET state = 'failed', error = 'Boom.' WHERE slug = ?", patient.orders)
    patient.execute("UPDATE sync_imports SET state = 'unreconciled', error = '3 of 4' WHERE slug = ?", patient.people)
    findings = {f.kind: f for f in patient.doctor().findings}
    assert set(findings) == {"import_failed", "import_unreconciled"}
    assert "Boom." in findings["import_failed"].sentence
    assert f"--import {patient.orders}" in findings["import_failed"].fix
    assert "3 of 4" in findings["import_unreconciled"].sentence
    assert patient.doctor(repair=True).exit_code == 3, "only the service can mend these"


def test_unfinished_imports_are_a_note(patient: Patient) -> None:
    patient.execute("UPDATE sync_imports SET status = 'submitting' WHERE slug = ?", patient.orders)
    report = patient.doctor()
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
def test_tables_and_columns_against_the_dictionary(patient: Patient, spoil: str, kind: str, fix: str) -> None:
    patient.execute(spoil)
    (finding,) = patient.doctor().findings
    assert finding.kind == kind
    assert fix in finding.fix


def test_a_half_written_rebuild(patient: Patient) -> None:
    columns = "_record_slug VARCHAR, _import_slug VARCHAR, _deleted_at TIMESTAMPTZ, _dlt_load_id VARCHAR"
    patient.execute(f"CREATE TABLE sync_rebuild ({columns})")
    assert patient.kinds() == ["half_rebuilt"]
    assert patient.doctor(repair=True).repaired
    assert patient.kinds() == []


def test_a_database_file_that_cannot_be_read(patient: Patient) -> None:
    patient.file.write_bytes(b"this is no database" * 500)
    (finding,) = patient.doctor().findings
    assert finding.kind == "unreadable"
    assert "backup" in finding.fix
