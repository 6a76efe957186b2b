"""An import too large for memory is synced like any other, and where the disk is full it is the only one that waits."""

from __future__ import annotations

import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from connector.extract import spill
from connector.extract.spill import SpilledRecords
from connector.load import flatten_process
from connector.load.batches import SpilledRows
from connector.load.dlt_bridge import load_package
from connector.run import pipeline
from connector.sandbox import Service

from .conftest import Warehouse
from .test_guarantees import assert_equal

pytestmark = pytest.mark.thorough

FULL = Path("/dev/full")


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "IN_MEMORY", 150)
    monkeypatch.setattr(spill, "BATCH_ROWS", 40)


@pytest.mark.parametrize("deletes", ["mirror", "keep"])
def test_it_is_loaded_changed_and_shrunk(warehouse: Warehouse, deletes: str) -> None:
    service = Service(seed=1)
    large, small = service.add_generated("customers", 2, 500, "completed")
    service.add_import("odd", [{"a": n if n < 300 else f"text {n}", "n": {"deep": [n]}} for n in range(400)])
    assert warehouse.run(service, deletes=deletes).status == "succeeded"
    assert_equal(service, warehouse)

    slugs = list(service.record_slugs(large))
    service.edit_row(large, slugs[7], {"full_name": "Ada"})
    for slug in slugs[100:450]:
        service.delete_row(large, slug)
    service.delete_row(small, next(iter(service.record_slugs(small))))
    tally = warehouse.run(service, deletes=deletes)

    assert (tally.status, tally.imports_changed) == ("succeeded", 2)
    gone = warehouse.query("select count(*) from records where _deleted_at is not null")
    assert gone == [(351 if deletes == "keep" else 0,)]
    live = {slug for (slug,) in warehouse.query("select slug from records where _deleted_at is null and slug <> ''")}
    assert live == {slug for of in service.slugs() for slug in service.record_slugs(of)}


@pytest.mark.skipif(not FULL.exists(), reason="/dev/full is of Linux")
def test_a_full_disk_stops_the_large_one_alone(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(seed=1)
    (large,) = service.add_generated("customers", 1, 500, "completed")
    service.add_generated("customers", 2, 20, "completed")

    full = SimpleNamespace(TemporaryFile=lambda **_: FULL.open("r+b", buffering=0), tempdir=None)
    with monkeypatch.context() as patched:
        patched.setattr(spill, "tempfile", full)
        tally = warehouse.run(service)

    assert (tally.status, tally.imports_failed, tally.records_loaded) == ("partial", 1, 40)
    assert f"Import {large}: An import is too large for memory" in str(tally.error)
    assert "free space there, or set TMPDIR to another directory" in str(tally.error)
    assert warehouse.run(service).status == "succeeded"
    assert_equal(service, warehouse)


def test_records_go_once_their_rows_are_built(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a package is loaded the next import waits as rows, and not as records besides."""
    service = Service(seed=1)
    service.add_generated("customers", 5, 700, "completed")
    monkeypatch.setattr(pipeline, "BUILT_AHEAD_ROWS", 600)
    monkeypatch.setattr(pipeline, "READ_AHEAD_ROWS", 600)
    alive = [count_of(kind, monkeypatch) for kind in (SpilledRows, SpilledRecords)]
    seen: list[list[int]] = []

    def slow(*arguments: Any) -> str | None:
        loaded = load_package(*arguments)
        until = time.monotonic() + 60
        # behind the first package with rows wait one built import, one for which there is no room yet, and one more
        # that the thread that builds had been given by then
        while (counts := list(map(len, alive))) != [3, 0] and len(seen) == 1 and time.monotonic() < until:
            time.sleep(0.05)
        seen.append(counts)
        return loaded

    assert warehouse.run(service, load=slow, batch_rows=700).status == "succeeded"
    assert seen[1] == [3, 0]
    assert seen[-1] == [0, 0]


@pytest.mark.parametrize("killed", [False, True], ids=["alive", "killed"])
def test_rows_flattened_in_another_process_are_all_there(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    service = Service(seed=1)
    service.add_generated("customers", 3, 700, "completed")
    service.add_import("odd", [{"a": n if n < 300 else f"text {n}", "n": {"deep": [n]}} for n in range(600)])
    monkeypatch.setattr(flatten_process, "ENOUGH_ROWS", 0)
    monkeypatch.setattr(flatten_process, "FEW_ROWS", 10)
    monkeypatch.setattr(flatten_process, "_is_of_use", lambda: True)
    ready, there = flatten_process._Helper.is_ready, flatten_process._Helper.flatten
    batches = []

    def await_ready(helper: Any) -> bool:
        while not ready(helper):
            time.sleep(0.01)
        return True

    def noting(helper: Any, rows: Any, *arguments: Any) -> Any:
        batches.append(len(rows))
        if killed and len(batches) == 20:
            helper.process.kill()
        return there(helper, rows, *arguments)

    monkeypatch.setattr(flatten_process._Helper, "is_ready", await_ready)
    monkeypatch.setattr(flatten_process._Helper, "flatten", noting)
    assert warehouse.run(service).status == "succeeded"
    assert_equal(service, warehouse)
    assert len(batches) == 20 if killed else sum(batches) == 2_700


def count_of(kind: type[Any], monkeypatch: pytest.MonkeyPatch) -> weakref.WeakSet[Any]:
    """Those made from now on that are still there."""
    made: weakref.WeakSet[Any] = weakref.WeakSet()
    original = kind.__init__

    def noting(self: Any, *arguments: Any) -> None:
        original(self, *arguments)
        made.add(self)

    monkeypatch.setattr(kind, "__init__", noting)
    return made
