"""Records read before the listing is proven count for exactly what is planned in the end, and cost nothing else."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from connector.errors import ConnectorError, NotFoundError, TransientError
from connector.extract import prefetch
from connector.extract.prefetch import HeadStart
from connector.extract.records import Verdict
from connector.models import Import, Record, RecordPage, Template
from connector.sandbox import Request, Service, Switches
from connector.settings import Scope, Selection

from .conftest import Warehouse
from .test_guarantees import assert_equal, populated

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Client:
    """Every import has the one page of records that it says; `asked` are the slugs asked for, one by one."""

    first_page: int = 1
    largest_page: int = 100
    largest_page_of_records: int = 100
    asked: list[str] = field(default_factory=list)
    under_way: int = 0
    most_under_way: int = 0
    trouble: ConnectorError | None = None
    never_answered: str | None = None
    was_asked: asyncio.Event = field(default_factory=asyncio.Event)

    def service_time(self) -> datetime:
        return NOW

    async def get_import(self, slug: str) -> Import:
        if self.trouble is not None:
            raise self.trouble
        return listed(slug)

    async def list_records(self, import_slug: str, page: int, per_page: int = 100) -> RecordPage:
        self.asked.append(import_slug)
        if self.trouble is not None:
            raise self.trouble
        self.was_asked.set()
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await (asyncio.sleep(3_600) if import_slug == self.never_answered else asyncio.sleep(0))
        self.under_way -= 1
        return RecordPage([Record(f"{import_slug}-{self.first_page}", b"{}", None, None, None)], [], 1)


def listed(slug: str, rows: int = 1) -> Import:
    return Import(slug=slug, row_count=rows, created_at=NOW, updated_at=NOW, status="completed")


def run(client: Client, story: Callable[[HeadStart], Coroutine[Any, Any, None]], at_once: int = 4) -> None:
    async def whole() -> None:
        early = HeadStart(client, at_once)
        await story(early)
        await early.aclose()
        assert len(asyncio.all_tasks()) <= 2, "nothing is left behind"

    asyncio.run(asyncio.wait_for(whole(), 20))


async def a_while() -> None:
    for _ in range(200):
        await asyncio.sleep(0)


def test_what_was_read_early_is_not_read_again() -> None:
    client = Client()

    async def story(early: HeadStart) -> None:
        early.offer(listed("a"))
        await a_while()
        assert client.asked == ["a"]
        early.settle([listed("a"), listed("b")])
        assert [(await early.reading(listed(slug))).import_.slug for slug in ("a", "b")] == ["a", "b"]
        assert client.asked == ["a", "b"]

    run(client, story)


@pytest.mark.parametrize(
    "planned",
    [
        listed("a").model_copy(update={"updated_at": datetime(2026, 1, 2, tzinfo=UTC)}),
        listed("a").model_copy(update={"status": "submitted"}),
        listed("a").model_copy(update={"template": Template(slug="customers", name="Customers")}),
    ],
    ids=["time", "status", "template"],
)
def test_an_import_that_is_planned_otherwise_than_it_was_offered_is_read_again(planned: Import) -> None:
    client = Client()

    async def story(early: HeadStart) -> None:
        early.offer(listed("a"))
        await a_while()
        early.settle([planned])
        assert (await early.reading(planned)).import_ == planned
        assert client.asked == ["a", "a"]

    run(client, story)


def test_what_was_read_by_other_page_numbers_is_read_again() -> None:
    client = Client()

    async def story(early: HeadStart) -> None:
        early.offer(listed("a"))
        await a_while()
        client.first_page = 0
        early.offer(listed("b"))
        await a_while()
        early.settle([listed("a"), listed("b")])
        for slug in ("a", "b"):
            records = (await early.reading(listed(slug))).records
            assert [record.slug for record in records] == [f"{slug}-0"]
        assert client.asked == ["a", "b", "a"]

    run(client, story)


def test_what_is_not_planned_is_dropped_and_nothing_begins_afterwards() -> None:
    client = Client()

    async def story(early: HeadStart) -> None:
        for slug in "abc":
            early.offer(listed(slug))
        await client.was_asked.wait()
        early.settle([])
        early.offer(listed("d"))
        await a_while()
        assert client.asked == ["a"]

    run(client, story, at_once=1)


def test_what_is_dropped_ends_whatever_it_waits_for() -> None:
    client = Client(never_answered="a")

    async def story(early: HeadStart) -> None:
        early.offer(listed("a"))
        await client.was_asked.wait()
        early.settle([])

    run(client, story)


@pytest.mark.parametrize("trouble", [NotFoundError("not yet"), TransientError("500")], ids=["gone", "failed"])
def test_what_was_not_to_be_had_so_early_is_asked_for_again(trouble: ConnectorError) -> None:
    client = Client(trouble=trouble)

    async def story(early: HeadStart) -> None:
        early.offer(listed("a"))
        await a_while()
        client.trouble = None
        early.settle([listed("a")])
        assert (await early.reading(listed("a"))).verdict is Verdict.complete

    run(client, story)


def test_what_was_handed_over_and_is_cancelled_at_once_ends_all_the_same() -> None:
    client = Client(never_answered="a")

    async def story(early: HeadStart) -> None:
        early.offer(listed("a"))
        await client.was_asked.wait()
        early.settle([listed("a")])
        reading = early.reading(listed("a"))
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    run(client, story)


def test_records_of_what_is_dropped_are_kept_by_nobody() -> None:
    client = Client()

    async def story(early: HeadStart) -> None:
        early.offer(listed("a"))
        await a_while()
        kept = weakref.ref(early._begun["a"].reading)
        early.settle([])
        gc.collect()
        assert kept() is None

    run(client, story)


@pytest.mark.parametrize(
    ("rows", "at_once", "begun"),
    [(1, 4, 4 * prefetch.IMPORTS_PER_REQUEST), (1_000, 4, 10), (1_000_000, 4, 1), (1, 1, 8)],
)
def test_only_so_much_is_read_early(rows: int, at_once: int, begun: int, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()

    async def one_page(client: Client, import_: Import) -> None:
        await client.list_records(import_.slug, 1)

    monkeypatch.setattr(prefetch, "read_import", one_page)

    async def story(early: HeadStart) -> None:
        for n in range(200):
            early.offer(listed(f"i{n}", rows))
            early.offer(listed("i0", rows))
        await a_while()
        assert len(client.asked) == len(set(client.asked)) == begun
        assert client.most_under_way == min(at_once, begun)

    run(client, story, at_once)


def test_records_are_asked_for_while_the_listing_is_being_proven(warehouse: Warehouse) -> None:
    service = populated()
    assert warehouse.run(service).status == "succeeded"
    kinds = [path.rsplit("/", 1)[-1] for _, path, *_ in service.log]
    assert kinds.index("records") < max(n for n, kind in enumerate(kinds) if kind == "imports")
    assert_equal(service, warehouse)


def test_what_was_changed_a_moment_ago_is_read_late(warehouse: Warehouse) -> None:
    """Where times have whole seconds, a second change within one of them does not show but in the rows."""
    clock = datetime(2026, 1, 1, tzinfo=UTC)
    service = Service(switches=Switches(time_fraction=0), clock=lambda: clock)
    for n in range(330):
        service.add_import("customers", [{"n": n}] * 2)
    clock = datetime.now(UTC).replace(microsecond=100_000)
    slug = service.slugs()[0]
    row = next(iter(service.record_slugs(slug)))
    service.edit_row(slug, row, {"n": "first"})
    listings = 0

    def edit(request: Request) -> None:
        nonlocal clock, listings
        listings += request.path.endswith("/imports")
        if listings == 9 and clock.microsecond == 100_000:
            clock = clock.replace(microsecond=600_000)
            service.edit_row(slug, row, {"n": "second"})

    service.on_request = edit
    assert warehouse.run(service).status == "succeeded"
    assert listings > 9
    assert_equal(service, warehouse)


@pytest.mark.parametrize("imports", [1, 130])
def test_a_service_that_counts_from_0_is_read_as_one(warehouse: Warehouse, imports: int) -> None:
    service = Service(switches=Switches(page_zero="counts"))
    for n in range(imports):
        service.add_import("customers", [{"n": n}] * (130 if n < 3 else 1))
    assert warehouse.run(service).status == "succeeded"
    assert_equal(service, warehouse)


def records_asked_for(service: Service) -> set[str]:
    return {path.split("/")[-2] for _, path, *_ in service.log if path.endswith("/records")}


def test_of_imports_asked_for_by_slug_no_others_are_read(warehouse: Warehouse) -> None:
    service = populated(switches=Switches(page_zero="first"))  # it shows them all to who looks for page 0
    wanted = service.slugs()[0]
    warehouse.run(service, Scope("backfill", selection=Selection(slugs=frozenset({wanted}))))
    assert records_asked_for(service) == {wanted}


def test_of_a_template_asked_for_no_others_are_read(warehouse: Warehouse) -> None:
    service = populated()
    of = {import_["slug"]: import_["template"]["slug"] for import_ in service.imports()}
    template = of[service.slugs()[0]]
    warehouse.run(service, Scope("backfill", selection=Selection(template=template)))
    assert records_asked_for(service) == {slug for slug in of if of[slug] == template} < set(of)


def test_a_listing_that_fails_ends_what_was_begun(warehouse: Warehouse, caplog: pytest.LogCaptureFixture) -> None:
    service = populated()
    listings = 0

    def revoke(request: Request) -> None:
        nonlocal listings
        listings += request.path.endswith("/imports")
        if listings > 3:
            service.token = "another"

    service.on_request = revoke
    with caplog.at_level(logging.WARNING, "asyncio"):
        tally = warehouse.run(service)
    assert (tally.status, tally.records_loaded) == ("failed", 0)
    assert not [record for record in caplog.records if record.name == "asyncio"]
