"""What a run may cost, in counts that no clock decides: requests, packages, statements, bytes, allocations.

Bounds are what was measured plus room for another version of dlt, Python or Arrow, and far below what they guard
against: a cost per template, per import, or per row where there should be none.
"""

from __future__ import annotations

import gc
import math
import re
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import pytest

from connector.load.package import _Incoming
from connector.models import Record
from connector.run.plan import Rules, make_plan
from connector.service.decode import decode_import_page, decode_record_page
from connector.transform.flatten import flatten
from connector.transform.schema import TableSchema
from tests.benchmarks.conftest import Desk
from tests.benchmarks.fixture import served
from tests.benchmarks.workload import BLOCK, Shape, Workload
from tests.support.ledger import THEN, Shown, known

pytestmark = pytest.mark.thorough

MakeDesk = Callable[[str], Desk]

# docs/performance.md says what each of them proves
UNCHANGED_STATEMENTS = 12
FIRST_STATEMENTS = 165  # 159: dlt makes seventeen tables and merges six of them
# 100: no tables to make, and a look at the imports whose rows may have been replaced, and at how all stands
CHANGED_STATEMENTS = 105
TEMPLATE_STATEMENTS = 12  # 9: make, stage and merge its table, count its rows and its fields


FIRST_REQUESTS = 5  # a first run looks far behind the end of the listing


def listing_requests(imports: int) -> int:
    """Overlapping pages, the end seen from both sides, the first page once more; a first run asks a little too far."""
    return math.ceil(imports / BLOCK * 1.25) + 10


def test_a_full_sync_asks_for_every_page_once(desk: Desk) -> None:
    shape = Shape(imports=6, rows=250)
    with served(shape) as service:
        ran = desk.run(service)
    pages = shape.imports * math.ceil(shape.rows / BLOCK)
    assert ran.tally.records_loaded == shape.total_rows
    assert ran.asked["records"] == pages
    assert ran.asked["one_import"] == shape.imports  # whether it moved while it was read
    assert ran.asked["listing"] <= listing_requests(shape.imports) + FIRST_REQUESTS
    assert ran.asked["requests"] == ran.tally.requests
    assert ran.asked["not_found"] == ran.asked["unauthorized"] == ran.tally.retries == 0


def test_a_last_page_that_is_full_costs_one_more(desk: Desk) -> None:
    shape = Shape(imports=3, rows=2 * BLOCK)
    with served(shape) as service:
        ran = desk.run(service)
    assert ran.tally.records_loaded == shape.total_rows
    assert ran.asked["records"] == shape.imports * 3


def test_an_import_of_one_page_costs_one_request(desk: Desk) -> None:
    shape = Shape(imports=BLOCK + 20, rows=BLOCK - 1)
    with served(shape) as service:
        ran = desk.run(service)
    assert ran.tally.records_loaded == shape.total_rows
    assert (ran.asked["records"], ran.asked["one_import"]) == (shape.imports, 0)


def test_a_page_as_full_as_any_costs_a_second_look(desk: Desk) -> None:
    """Of a service that never sent more at once, nobody knows that there was not more to send."""
    shape = Shape(imports=20, rows=BLOCK - 1)
    with served(shape) as service:
        ran = desk.run(service)
    assert ran.tally.records_loaded == shape.total_rows
    assert (ran.asked["records"], ran.asked["one_import"]) == (2 * shape.imports, shape.imports)


def test_an_unchanged_service_costs_the_listing(desk: Desk) -> None:
    shape = Shape(imports=600, rows=2)
    with served(shape) as service:
        first = desk.run(service)
        again = desk.run(service)
    assert first.tally.records_loaded == shape.total_rows
    assert (
        again.asked["requests"] == again.asked["listing"] <= listing_requests(shape.imports) < first.asked["requests"]
    )
    assert again.tally.load_ids == []
    assert again.statements <= UNCHANGED_STATEMENTS
    assert not [sql for sql in again.sql if re.search(r'FROM "\w+"\."records', sql)], "no table of records is scanned"


def test_what_changed_is_what_is_read(desk: Desk) -> None:
    with served(Shape(imports=120, rows=150)) as service:
        desk.run(service)
        service.touch(3)
        ran = desk.run(service)
    assert ran.tally.imports_changed == 3
    assert (ran.asked["records"], ran.asked["one_import"]) == (3 * 2, 3)
    assert len(ran.tally.load_ids) == 1


def test_packages_are_as_many_as_batch_rows_makes_them(make_desk: MakeDesk) -> None:
    shape = Shape(imports=10, rows=50)
    with served(shape) as service:
        whole = make_desk("whole").run(service)
        parts = make_desk("parts").run(service, batch_rows=250)
    assert len(whole.tally.load_ids) == 1
    assert len(parts.tally.load_ids) == 2


def test_statements_do_not_grow_with_imports_or_rows(make_desk: MakeDesk) -> None:
    with served(Shape(imports=3, rows=10)) as service:
        few = make_desk("few").run(service)
    with served(Shape(imports=60, rows=130)) as service:
        many = make_desk("many").run(service)
    assert few.statements == many.statements


@pytest.mark.long
def test_a_template_costs_few_statements(make_desk: MakeDesk) -> None:
    counts = {}
    for templates in (1, 12):
        desk = make_desk(str(templates))
        with served(Shape(imports=12, rows=1, templates=templates)) as service:
            counts[templates] = desk.run(service).statements
            service.touch(1)
            changed = desk.run(service)
        assert changed.tally.records_loaded == 1
        assert changed.statements <= CHANGED_STATEMENTS  # templates that nothing came for cost nothing
    assert counts[1] <= FIRST_STATEMENTS + TEMPLATE_STATEMENTS
    assert counts[12] - counts[1] <= 11 * TEMPLATE_STATEMENTS


def test_records_are_counted_where_they_may_come_twice(make_desk: MakeDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Distinct slugs of a million rows take a hundred megabytes to count; one import has none of them twice."""
    counted: list[int] = []
    are_distinct = _Incoming.are_distinct

    def counting(incoming: _Incoming) -> bool:
        counted.append(len(incoming.slugs))
        return are_distinct(incoming)

    monkeypatch.setattr(_Incoming, "are_distinct", counting)
    for imports in (1, 3):
        with served(Shape(imports=imports, rows=20, templates=2)) as service:
            make_desk(str(imports)).run(service)
    assert counted == [3 * 20], "nor is a typed row one twice if the raw one beside it is not"


def test_bytes_are_received_once(desk: Desk) -> None:
    shape = Shape(imports=5, rows=350)
    workload = Workload(shape)
    with served(shape) as service:
        ran = desk.run(service)
    pages = range(1, math.ceil(shape.rows / BLOCK) + 1)
    needed = sum(len(workload.records(slug, page, BLOCK)) for slug in workload.by_slug for page in pages)
    listed = len(workload.listing(1, BLOCK))
    assert ran.tally.bytes_received == ran.asked["body_bytes"]
    assert (
        needed + listed <= ran.tally.bytes_received <= needed + 5 * listed
    )  # three sizes of page, and the first one twice


def test_a_row_costs_few_allocations() -> None:
    """Kept of a row between page and table: the record, its slug, its text, two times, its position; no parsed tree."""
    pages = pages_of(2_000)
    kept = decode_all(pages)  # what Python makes only once
    del kept
    gc.collect()
    before = sys.getallocatedblocks()
    kept = decode_all(pages)
    gc.collect()
    assert len(kept) == 2_000
    assert (sys.getallocatedblocks() - before) / len(kept) <= 8  # 6


def test_flattening_takes_little_memory_beside_the_rows() -> None:
    rows = [record.data for record in decode_all(pages_of(2_000))]
    flatten(rows[:1], TableSchema("records_template_0"))  # what is loaded only once
    tracemalloc.start()
    try:
        flat = flatten(rows, TableSchema("records_template_0"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(flat.columns) == 16
    assert peak <= 10 * sum(map(len, rows))  # 6


def test_a_long_ledger_is_planned_in_little_memory() -> None:
    """100,000 imports known, 100 of them changed: the ledger and the plan."""
    listed = [Shown(f"{n:036}") for n in range(100_000)]
    tracemalloc.start()
    try:
        ledger = {shown.slug: known(replace(shown, row_count=3 + (n % 1_000 == 0))) for n, shown in enumerate(listed)}
        plan = make_plan(listed, ledger, Rules(THEN))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(plan.read), plan.unchanged) == (100, 99_900)
    assert peak < 60e6  # 29 MB


def test_a_long_listing_takes_little_memory() -> None:
    """The listing as decoded: a hundred thousand imports have to stay below 60 MB."""
    workload = Workload(Shape(imports=10_000, rows=10))
    pages = [workload.listing(page, BLOCK) for page in range(1, 101)]
    tracemalloc.start()
    try:
        listed = [import_ for page in pages for import_ in decode_import_page(page).imports]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak / len(listed) <= 600  # 410


def pages_of(rows: int) -> list[bytes]:
    workload = Workload(Shape(imports=1, rows=rows))
    return [workload.records(slug, page, BLOCK) for slug in workload.by_slug for page in range(1, rows // BLOCK + 1)]


def decode_all(pages: list[bytes]) -> list[Record]:
    return [record for page in pages for record in decode_record_page(page).records]
