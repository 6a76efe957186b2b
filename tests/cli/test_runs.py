"""`run` and `backfill`: documents, exit codes, and what is in the warehouse after each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pytest

from connector.sandbox import Faults, Service

KEYS = {
    "run_id", "status", "mode", "started_at", "finished_at", "imports_listed", "imports_changed", "imports_deleted",
    "imports_failed", "imports_unreconciled", "records_loaded", "records_rejected", "requests", "retries",
    "bytes_received", "load_ids", "tables", "templates", "error",
}  # fmt: skip
HANGING_S = 600.0  # longer than any test
PIPELINES = Path(__file__).parents[2] / "pipelines"


def until_line(process: subprocess.Popen[str], words: str) -> str:
    """Reads the process's stderr up to the line with these words."""
    seen = ""
    for line in process.stderr or ():
        seen += line
        if words in line:
            return seen
    raise AssertionError(f"{words!r} never came: {seen}")


def test_a_run_an_idle_one_and_a_backfill(command, service: Service) -> None:
    first = command("run", "--json")
    assert (first.code, first.document["status"]) == (0, "succeeded")
    assert set(first.document) >= KEYS
    assert first.document["records_loaded"] == 360
    assert command.rows("SELECT count(*) FROM importer_data.records") == [(360,)]
    assert command.rows("SELECT count(*) FROM importer_data.records_customers") == [(240,)]

    service.requests.clear()
    idle = command("run")
    assert idle.code == 0
    assert "succeeded" in idle.out
    assert "importer.duckdb" in idle.out
    assert service.requests["records"] == 0
    assert service.requests["imports"] > 0

    service.requests.clear()
    slug = service.slugs()[0]
    again = command("--json", "backfill", "--import", slug)
    assert (again.code, again.document["mode"], again.document["records_loaded"]) == (0, "backfill", 120)
    assert {path for _, path, _, _ in service.log if path.endswith("/records")} >= {f"/api/v1/imports/{slug}/records"}
    assert command.rows("SELECT mode, status FROM importer_data.sync_runs ORDER BY started_at") == [
        ("incremental", "succeeded"),
        ("incremental", "succeeded"),
        ("backfill", "succeeded"),
    ]

    fresh = command("status", "--max-age", "1h", "--json")
    assert fresh.code == 0
    assert fresh.document["imports"] == {"synced": 4}
    assert [run["mode"] for run in fresh.document["runs"]] == ["backfill", "incremental", "incremental"]
    stale = command("status", "--max-age", "0s")
    assert stale.code == 3
    assert "STALE" in stale.out
    assert "→ No run that loaded everything is recent enough" in stale.out


@pytest.mark.thorough
@pytest.mark.parametrize("option", ["--import", "--template"])
def test_a_backfill_with_a_typo_is_no_run(option: str, command, service: Service) -> None:
    assert command("run").code == 0
    right = service.slugs()[0] if option == "--import" else "customers"
    typo = right[:4] + right[5:]
    ended = command("backfill", option, typo)
    assert ended.code == 2
    assert f"did you mean {right}?" in ended.err
    assert ended.out == ""
    assert command("backfill", option, typo, "--json").document["status"] == "failed"
    assert command.rows("SELECT mode, status FROM importer_data.sync_runs") == [("incremental", "succeeded")]
    assert command.rows("SELECT count(*) FROM importer_data.sync_imports WHERE due IS NOT NULL") == [(0,)]
    assert len(command("status", "--json").document["runs"]) == 1


def test_status_says_why_a_run_was_partial_that_left_no_import_open(command) -> None:
    assert command("run", SOURCES__IMPORTER__TEMPLATES='["customers", "ordres"]').code == 3
    said = "→ The last run was partial: templates names 'ordres', and no import has that template: did you mean orders?"
    assert said in command("status").out


@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_run_needs_no_standard_streams(command, closed: str) -> None:
    for words in ("run", "verify --deep"):
        line = f'exec "{sys.executable}" -P -m connector {words} {closed}'
        ran = subprocess.run(
            ["/bin/sh", "-c", line], cwd=command.directory, env={**os.environ, **command.environment}, check=False
        )
        assert ran.returncode == 0, words
    assert command.rows("SELECT count(*) FROM importer_data.records") == [(360,)]


def test_a_refused_token_is_a_failure(command) -> None:
    ended = command("run", "--json", SOURCES__IMPORTER__ACCESS_TOKEN="wrong-token-0815")
    assert ended.code == 1
    assert ended.document["status"] == "failed"
    assert "401" in ended.document["error"]
    assert "401" in ended.err
    assert "wrong-token-0815" not in ended.err + ended.out


def test_one_failing_import_is_partial(command, service: Service) -> None:
    bad = service.slugs()[0]
    service.faults = Faults(failing_imports={bad})
    ended = command("run", "--json")
    assert (ended.code, ended.document["status"], ended.document["imports_failed"]) == (3, "partial", 1)
    assert bad in ended.document["error"]
    assert command.rows("SELECT count(*) FROM importer_data.records") == [(240,)]
    status = command("status")
    assert status.code == 0
    assert bad in status.out
    assert "1 failed" in status.out
    assert "→ Every run tries failed imports again" in status.out


def test_another_run_under_way(command, service: Service) -> None:
    service.faults = Faults(latency=(20.0, 20.0))  # far longer than the second one takes to start
    first = command.start("run")
    holder = Path(command.directory, ".importer.duckdb.importer_data.holder")
    until = time.monotonic() + 60
    while not holder.exists():
        assert time.monotonic() < until
        time.sleep(0.05)
    second = command("run", "--json")
    assert second.code == 4
    assert second.document["status"] == "failed"
    assert str(first.pid) in second.document["error"]
    first.terminate()
    assert command.end(first).code == 143


def test_a_monitor_can_look_while_a_run_has_the_file_open(command, service: Service) -> None:
    assert command("run").code == 0
    asleep = command("status", "--json").document
    service.add_generated("employees", imports=1, rows=30)
    service.faults = Faults(latency=(3.0, 3.0))
    service.requests.clear()
    process = command.start("run")
    until = time.monotonic() + 60
    while not service.requests:
        assert time.monotonic() < until
        time.sleep(0.05)
    busy = command("status", "--json", "--max-age", "1h")
    text = command("status").out
    process.kill()
    command.end(process)
    assert (busy.code, busy.document["under_way"]) == (0, True)
    assert busy.document["fresh_as_of"] == asleep["fresh_as_of"]
    assert busy.document["records"] == asleep["records"] == 360
    assert [run["status"] for run in busy.document["runs"]] == ["running", "succeeded"]
    assert "→ A run is under way and has the file open" in text
    after = command("status", "--json").document
    assert after["under_way"] is False, "what the killed run noted is no news"
    assert after["runs"][0]["status"] == "running"
    assert list(command.directory.glob(".*.status")), "though it is still there"
    with duckdb.connect(str(command.directory / "importer.duckdb")):
        taken = command("status", "--json")
    assert taken.code == 1
    assert "open, and DuckDB allows only one process" in taken.err
    service.faults = Faults()
    assert command("run").code == 0
    assert not list(command.directory.glob(".*.status"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_run_after_what_is_complete(command, service: Service, number: int, code: int) -> None:
    service.add_generated("employees", imports=60, rows=30)
    service.faults = Faults(latency=(0.1, 0.1))
    process = command.start(
        "run", "-v", "--json", SOURCES__IMPORTER__BATCH_ROWS="60", SOURCES__IMPORTER__MAX_CONCURRENCY="1"
    )
    seen = until_line(process, "Committed package")
    service.faults = Faults(latency=(HANGING_S, HANGING_S))  # a run that waited for one more reply would not end
    process.send_signal(number)
    ended = command.end(process, seen)
    assert "did not answer in time" not in ended.err
    assert (ended.code, ended.document["status"]) == (code, "interrupted")
    [(records,)] = command.rows("SELECT count(*) FROM importer_data.records")
    assert 0 < records < 2160
    assert records == ended.document["records_loaded"]
    assert command.rows("SELECT status FROM importer_data.sync_runs") == [("interrupted",)]


def test_a_signal_ends_a_run_whose_service_hangs(command, service: Service) -> None:
    service.faults = Faults(latency=(HANGING_S, HANGING_S))
    process = command.start("run", "--json")
    until = time.monotonic() + 60
    while not service.requests:
        assert time.monotonic() < until
        time.sleep(0.05)
    process.terminate()
    ended = command.end(process)
    assert ended.document["retries"] == 0, "no request was waited for until its time limit"
    assert "did not answer in time" not in ended.err
    assert (ended.code, ended.document["status"]) == (143, "interrupted")
    assert ended.document["run_id"]  # it ended in order, and was not merely left behind


def test_a_database_that_is_open_elsewhere(command) -> None:
    with duckdb.connect(str(command.directory / "importer.duckdb")):
        ended = command("run", "--json")
    assert ended.code == 1
    assert "open" in ended.document["error"]
    assert "close the file" in ended.err


def test_pipelines_are_scripts_for_a_scheduler(command, service: Service) -> None:
    ended = command(script=PIPELINES / "sync.py")
    assert ended.code == 0
    assert command.rows("SELECT count(*) FROM importer_data.records") == [(360,)]
    service.requests.clear()
    ended = command("2000-01-01", "2001-01-01", script=PIPELINES / "backfill.py")
    assert ended.code == 0
    assert service.requests["records"] == 0
    assert command("nonsense", script=PIPELINES / "backfill.py").code == 2
    ended = command(script=PIPELINES / "sync.py", SOURCES__IMPORTER__ACCESS_TOKEN="wrong")
    assert ended.code == 1
    assert "401" in ended.err


BUSY = """
import connector.cli.run_command as run_command
from connector.cli.main import main
from connector.errors import DatabaseBusyError

def busy(*_):
    raise DatabaseBusyError("A dashboard has the file open.")

run_command.unmatched = busy
main()
"""


def test_a_run_succeeded_although_the_warehouse_is_busy_after_it(command, tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(BUSY)
    ended = command("run", "--json", script=tmp_path / "busy.py")
    assert (ended.code, ended.document["status"]) == (0, "succeeded")
    assert "not compared with what is loaded: A dashboard has the file open." in ended.err
