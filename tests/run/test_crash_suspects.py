"""An import that kills the process that reads it stops itself only: alone at its second try, left out after it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec import structs

from connector.ledger import LedgerRow, State, privacy_mark
from connector.models import Import
from connector.run.choice import Choice
from connector.run.crash_suspects import BIG_BYTES, MAX_NOTED, CrashSuspects
from connector.run.plan import Reason, Rules
from connector.sandbox import Service, serve
from connector.settings import RunScope, Settings
from connector.warehouse.state import WarehouseState

pytestmark = pytest.mark.thorough

AT = datetime(2026, 1, 1, tzinfo=UTC)
BOMB = """
import os, signal, sys
from connector.load import batches
from connector.run import crash_suspects
crash_suspects.BIG_BYTES = 100
of = batches.BuiltImports.of
def bomb(reads, *rest):
    if os.environ["BOMB"] in {read.import_.slug for read in reads}:
        os.kill(os.getpid(), signal.SIGKILL)
    return of(reads, *rest)
batches.BuiltImports.of = bomb
from connector.cli.main import main
sys.exit(main())
"""


def import_of(slug: str, rows: int = 1) -> Import:
    return Import(slug=slug, row_count=rows, created_at=AT, updated_at=AT, status="completed")


def test_only_the_largest_imports_under_way_are_noted(tmp_path: Path) -> None:
    note = tmp_path / "note"
    here = CrashSuspects(note)
    here.add_bytes("small", BIG_BYTES - 1)
    assert not note.exists()
    for n in range(30):
        here.add_bytes(f"big-{n:02}", BIG_BYTES + n)
    found = json.loads(note.read_text())
    assert found["imports"] == [f"big-{n:02}" for n in range(30 - MAX_NOTED, 30)]
    here.done([f"big-{n:02}" for n in range(30)])
    assert not note.exists()


def test_an_import_kills_only_what_it_is_alone_in(tmp_path: Path) -> None:
    note = tmp_path / "note"
    for _ in range(3):  # side by side with another, however often
        died = CrashSuspects(note)
        died.add_bytes("a", BIG_BYTES)
        died.add_bytes("b", BIG_BYTES)
    suspected = CrashSuspects(note)
    assert suspected.is_suspect("a")
    assert not suspected.killed_twice(import_of("a"))
    suspected.done(["b"])
    suspected.read_alone(import_of("a"))
    suspected.add_bytes("a", BIG_BYTES)
    after = CrashSuspects(note)
    assert after.killed_twice(import_of("a"))
    assert not after.killed_twice(import_of("a", rows=2))
    assert not after.is_suspect("b")
    after.close()
    assert CrashSuspects(note).killed_twice(import_of("a")), "it is not said in the ledger yet"
    after.done(["a"])
    assert not note.exists()


def test_what_a_run_that_ended_did_not_come_to_is_still_suspected(tmp_path: Path) -> None:
    note = tmp_path / "note"
    CrashSuspects(note).add_bytes("a", BIG_BYTES)
    stopped = CrashSuspects(note)
    stopped.close()
    assert CrashSuspects(note).is_suspect("a")


def test_a_note_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    for text in ("", "{", "[]", '{"imports": 3}', '{"imports": ["a"], "alone": null, "killers": {}}'):
        (tmp_path / "note").write_text(text)
        assert CrashSuspects(tmp_path / "note").is_suspect("a") == ('"a"' in text)


def test_what_killed_runs_is_read_once_it_changes_or_is_asked_for() -> None:
    known = LedgerRow("i", State.failed, AT, 1, "completed", attempts=2, last_synced_at=AT, trusted=True, killed_runs=2)
    assert Rules(AT, force=True).reason(import_of("i"), known) is None
    assert Rules(AT, named=True).reason(import_of("i"), known) is Reason.retry
    assert Rules(AT).reason(import_of("i", rows=2), known) is Reason.retry


def test_rules_under_which_its_rows_were_read_are_not_taken_for_those_of_its_present_template() -> None:
    """It moved to template u, and then killed runs, so its ledger row has that template."""
    of_t = LedgerRow("i", State.failed, template_slug="u", table_name="records_t", privacy=privacy_mark("f", ["t"]))
    state = WarehouseState(
        ledger={"i": structs.replace(of_t, killed_runs=2)}, template_tables={"records_t": "t", "records_u": "u"}
    )
    settings = Settings.load(base_url="https://x", access_token="x", privacy={"t": {"mail": "drop"}})
    found = Choice(settings, RunScope()).suspect_rules({"t": "T", "u": "U"}, {"t", "u"}, state)
    assert (found.renamed, found.templates) == ({}, frozenset())


def test_an_import_that_kills_the_run_is_left_out_after_two_deaths(tmp_path: Path) -> None:
    service = Service(1)
    fine = [service.add_import("T", [{"a": "x" * 200}] * 3) for _ in range(3)]
    bomb = service.add_import("T", [{"a": "x" * 200}] * 3)
    with serve(service) as url:

        def run(*command: str, bomb: str = bomb) -> tuple[int, dict[str, object]]:
            environment = {
                **os.environ,
                "BOMB": bomb,
                "SOURCES__IMPORTER__BASE_URL": url,
                "SOURCES__IMPORTER__ACCESS_TOKEN": service.token,
                "DLT_DATA_DIR": str(tmp_path / "dlt"),
            }
            to = f"duckdb:///{tmp_path}/warehouse.duckdb"
            program = [sys.executable, "-c", BOMB, "--to", to, "--json", *command]
            ran = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
            return ran.returncode, json.loads(ran.stdout) if ran.stdout else {}

        assert run("run")[0] == -signal.SIGKILL
        assert run("run")[0] == -signal.SIGKILL
        status, told = run("run")
        assert (status, told["imports_failed"]) == (3, 1)
        assert f"Import {bomb}: reading it killed the run twice" in str(told["error"])
        assert f"backfill --import {bomb}" in str(told["error"])
        status, told = run("run")
        assert (status, told["imports_failed"], told["imports_changed"]) == (3, 1, 0)
        status, told = run("backfill", "--import", bomb, bomb="none")
        assert (status, told["records_loaded"]) == (0, 3)
        status, told = run("run")
        assert (status, told["imports_failed"], told["imports_listed"]) == (0, 0, len(fine) + 1)
    assert not list(tmp_path.glob(".*.reading*"))
