"""The progress of a run as it shows on terminals of any width, and what is left of it in a log."""

from __future__ import annotations

import re
import unicodedata

import pytest

from connector.cli.bars import clock, per_second
from connector.sandbox import Faults, Service
from tests.terminals import watched


@pytest.mark.parametrize("width", [80, 40])
def test_bars_on_a_terminal(command, service: Service, width: int) -> None:
    service.add_generated("employees", imports=12, rows=150)
    service.faults = Faults(latency=(0.05, 0.1), server_error=0.1)
    code, shown = watched(command, width, "run")
    assert code == 0
    lines = shown.splitlines()
    bars = [line for line in lines if "━" in line]
    assert any("imports" in line and re.search(r"[1-9]\d*/16", line) for line in bars)
    assert any(re.search(r"[\d,]+/2,160", line) for line in bars)
    assert any(re.search(r"service \d+ requests, \d+ retr(y|ies), ", line) for line in lines)
    assert all(sum(not unicodedata.combining(c) for c in line) <= width for line in bars)
    assert any(re.search(r" \d+:\d\d ", f"{line} ") for line in bars)  # the time that is left
    assert any("rows/s" in line for line in bars) == (width >= 60)
    assert "trying again" not in shown
    assert "succeeded" in shown


def test_a_log_has_a_line_for_each_step(command) -> None:
    ended = command("run", SOURCES__IMPORTER__BATCH_ROWS="100")
    steps = [line.split(" INFO ")[1].split()[0] for line in ended.err.splitlines()]
    assert steps == ["Run", "Listed", *["Committed"] * (len(steps) - 3), "Run"]
    assert len(steps) > 4
    assert "━" not in ended.err
    quiet = command("run", "--json").err
    assert " INFO " not in quiet
    assert quiet.startswith("incremental run succeeded")


def test_retries_are_summed_up(command, service: Service) -> None:
    service.faults = Faults(server_error=0.3)
    ended = command("run")
    assert ended.code == 0
    [line] = [line for line in ended.err.splitlines() if "repeated" in line]
    assert re.search(r"WARNING \d+ requests were repeated; the service \d+ × answered 50\d", line)
    assert "trying again" not in ended.err
    assert command("backfill", "--full", "-v").err.count("trying again") >= 1


def test_verify_has_bars_of_its_own(command, service: Service) -> None:
    service.add_generated("employees", imports=12, rows=150)
    assert command("run").code == 0
    service.faults = Faults(latency=(0.05, 0.1))
    code, shown = watched(command, 90, "verify", "--deep")
    assert code == 0
    bars = [line for line in shown.splitlines() if "━" in line]
    assert any(re.search(r"rows compared .*[1-9][\d,]*/2,160", line) for line in bars)
    assert not any("loaded" in line for line in bars)
    assert "2,160 records compared (every value), no difference" in shown


def test_times_and_rates() -> None:
    assert [clock(s) for s in (0, 42, 1025, 12000)] == ["0:00", "0:42", "17:05", "3:20:00"]
    assert (per_second(10, 4), per_second(10, None), per_second(0, 0.0)) == (2.5, 0.0, 0.0)
