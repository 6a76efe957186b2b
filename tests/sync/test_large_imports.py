"""An import too large for memory is synced like any other, and where the disk is full it is the only one that waits."""

from __future__ import annotations

import errno
import os

import pytest

from connector import spool
from connector.sandbox import Service

from .conftest import Warehouse
from .test_guarantees import assert_equal


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "IN_MEMORY", 150)
    monkeypatch.setattr(spool, "BATCH_ROWS", 40)


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


def test_a_full_disk_stops_the_large_one_alone(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(seed=1)
    (large,) = service.add_generated("customers", 1, 500, "completed")
    service.add_generated("customers", 2, 20, "completed")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        tally = warehouse.run(service)

    assert (tally.status, tally.imports_failed, tally.records_loaded) == ("partial", 1, 40)
    assert f"Import {large}: An import is too large for memory" in str(tally.error)
    assert "make room there or name another directory in TMPDIR" in str(tally.error)
    assert warehouse.run(service).status == "succeeded"
    assert_equal(service, warehouse)
