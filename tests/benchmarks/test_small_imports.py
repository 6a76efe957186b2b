"""What a thousand small imports cost, in counts that no clock decides: Arrow tables, messages, statements, requests.

Bounds are what was measured plus some room, and far below one for each import.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from connector.load import flatten_process
from connector.load.batches import Batch
from connector.load.flatten_process import Flattener, _Helper
from connector.load.table_rows import TableRows
from tests.benchmarks.conftest import Desk
from tests.benchmarks.fixture import served
from tests.benchmarks.test_counts import (
    CHANGED_STATEMENTS,
    FIRST_REQUESTS,
    FIRST_STATEMENTS,
    TEMPLATE_STATEMENTS,
    listing_requests,
)
from tests.benchmarks.workload import Shape

pytestmark = pytest.mark.thorough

SHAPE = Shape(imports=1_000, rows=3, templates=2)
CHANGED = 200
BATCHES, FLATTENED, TABLES, MESSAGES = "batches", "flattened", "tables", "messages to the helper"


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What is built in this process; the helper is there from the first row on, and waited for."""
    counts: Counter[str] = Counter()

    def count(owner: Any, name: str, what: str) -> None:
        original = getattr(owner, name)

        def counting(*arguments: Any, **options: Any) -> Any:
            counts[what] += 1
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, counting)

    count(Batch, "__init__", BATCHES)
    count(TableRows, "__init__", TABLES)
    count(Flattener, "__call__", FLATTENED)
    count(flatten_process, "_send", MESSAGES)
    is_ready = _Helper.is_ready

    def waited_for(helper: _Helper) -> bool:
        while not is_ready(helper):
            time.sleep(0.01)
        return True

    monkeypatch.setattr(_Helper, "is_ready", waited_for)
    monkeypatch.setattr(flatten_process, "_is_of_use", lambda: True)
    monkeypatch.setattr(flatten_process, "ENOUGH_ROWS", 0)
    return counts


@pytest.mark.parametrize("deletes", ["mirror", pytest.param("keep", marks=pytest.mark.long)])
def test_small_imports_are_read_built_and_loaded_together(
    make_desk: Callable[[str], Desk], counted: Counter[str], deletes: str
) -> None:
    with served(SHAPE) as service:
        desk = make_desk(deletes)
        first = desk.run(service, deletes=deletes)
        first_counts = dict(counted)
        counted.clear()
        service.touch(CHANGED)
        changed = desk.run(service, deletes=deletes)
    assert first.tally.records_loaded == SHAPE.total_rows
    assert first.asked["records"] == SHAPE.imports
    assert first.asked["requests"] - SHAPE.imports <= listing_requests(SHAPE.imports) + FIRST_REQUESTS
    assert first.statements <= FIRST_STATEMENTS + TEMPLATE_STATEMENTS
    assert first_counts[FLATTENED] <= 40  # 22: a batch is halved where an import brings the first value of a field
    assert first_counts[BATCHES] <= 25  # 13
    assert first_counts[TABLES] <= 20  # 13
    assert 0 < first_counts[MESSAGES] <= 8  # 4: what is more than a few rows
    assert changed.tally.records_loaded == CHANGED * SHAPE.rows
    assert changed.asked["records"] == CHANGED
    assert changed.asked["requests"] - CHANGED <= listing_requests(SHAPE.imports)
    assert changed.statements <= CHANGED_STATEMENTS + 2 * TEMPLATE_STATEMENTS
    assert counted[FLATTENED] == counted[BATCHES] == SHAPE.templates
    assert counted[TABLES] <= 12  # 7
    assert counted[MESSAGES] == 0  # so few rows are flattened here
