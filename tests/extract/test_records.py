"""Reading one import against a toy service: `complete` means every row, and a still import costs its pages.

Every service is drawn from a seed, which is part of each failure message.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from connector.errors import (
    AuthError,
    ConnectorError,
    ContractError,
    NotFoundError,
    TooLargeError,
    TransientError,
)
from connector.extract import records, spill
from connector.extract.convention import PageConvention
from connector.extract.records import MAX_MOVES, MAX_SWEEPS, ImportRead, Verdict, read_import
from connector.extract.shortening import MAX_REPEATS, PROOFS
from connector.ledger import COMPLETED
from connector.models import Import, Record, RecordPage, Reject, Template, microseconds
from tests.simulation.virtual_time import VirtualLoop

START = datetime(2026, 1, 1, 0, 0, 0, 7, tzinfo=UTC)  # finer than a second, as what follows
BROKEN = "not an object"


@dataclass
class Service:
    """One import. `off` is what its row_count is wrong by; `edits` the chance of a change before each request.

    With `counts_from` 0 its pages are counted from 0; unless the reader is told so, nobody has noticed.
    """

    count: int
    seed: int = 0
    clamp: int = 100
    shuffled: bool = False
    status: str = COMPLETED
    off: int = 0
    edits: float = 0.0
    kinds: tuple[str, ...] = ("append", "delete", "edit", "swap")
    edits_at_most: int = 1_000_000
    mood: Callable[[list[str], int, int, random.Random], list[str]] | None = None
    rejects: dict[str, Reject] = field(default_factory=dict)
    out_of_range_404: bool = False
    records_404: bool = False
    deleted: bool = False
    clamp_elsewhere: int = 0
    counts_from: int = 1
    pages: list[tuple[int, int]] = field(default_factory=list)
    gets: int = 0

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.moved = 0
        self.numbers = itertools.count()
        self.versions = {f"r{next(self.numbers)}": 0 for _ in range(self.count)}
        self.history = {self.import_.fingerprint: dict(self.versions)}

    @property
    def largest_page(self) -> int:
        return max(self.clamp, self.clamp_elsewhere)

    @property
    def largest_page_of_records(self) -> int:
        return self.clamp

    @property
    def import_(self) -> Import:
        return Import(
            slug="i",
            row_count=len(self.versions) + self.off,
            created_at=START,
            updated_at=START + timedelta(microseconds=self.moved),
            status=self.status,
        )

    @property
    def requests(self) -> int:
        return len(self.pages) + self.gets

    def change(self, kind: str) -> None:
        self.moved += 1
        slugs = list(self.versions)
        if kind in ("delete", "swap") and slugs:
            del self.versions[self.dice.choice(slugs)]
        if kind in ("append", "swap"):
            self.versions[f"r{next(self.numbers)}"] = self.moved
        if kind == "edit" and slugs:
            self.versions[self.dice.choice(slugs)] = self.moved
        self.history[self.import_.fingerprint] = dict(self.versions)

    async def _happen(self) -> None:
        for _ in range(self.dice.randrange(6)):
            await asyncio.sleep(0)
        if self.edits_at_most and self.dice.random() < self.edits:
            self.edits_at_most -= 1
            self.change(self.dice.choice(self.kinds))

    def service_time(self) -> datetime:
        return START + timedelta(seconds=self.requests)

    async def get_import(self, slug: str) -> Import:
        self.gets += 1
        await self._happen()
        if self.deleted:
            raise NotFoundError("no such import")
        return self.import_

    async def list_records(self, import_slug: str, page: int, per_page: int = 100) -> RecordPage:
        self.pages.append((page, per_page))
        await self._happen()
        if self.deleted or self.records_404:
            raise NotFoundError("no such records", page=page)
        slugs = list(self.versions)
        if self.shuffled:
            self.dice.shuffle(slugs)
        size = min(per_page, self.clamp)
        first = page - self.counts_from
        shown = slugs[first * size : (first + 1) * size] if first >= 0 else []
        if self.mood is not None and first >= 0:
            shown = self.mood(slugs, page, size, self.dice)
        if self.out_of_range_404 and page > 1 and not shown:
            raise NotFoundError("no such page", page=page)
        return self.page_of(shown)

    def page_of(self, shown: list[str]) -> RecordPage:
        good = [slug for slug in shown if slug not in self.rejects]
        spoiled = [self.rejects[slug] for slug in shown if slug in self.rejects]
        return RecordPage([record(slug, self.versions[slug]) for slug in good], spoiled, len(shown))


def record(slug: str, version: int) -> Record:
    return Record(slug, b'{"v":%d}' % version, microseconds(START), microseconds(START) + version, None)


def read(service: Service, listed: Import | None = None) -> ImportRead:
    return asyncio.run(read_import(service, listed or service.import_))


def check(service: Service, outcome: ImportRead) -> None:
    """The oracle: `complete` rows are exactly those the import had at the fingerprint it is said to have.

    A snapshot may be younger than the fingerprint it was listed with: the next run sees that and reads it again.
    """
    slugs = [r.slug for r in outcome.records]
    assert len(slugs) == len(set(slugs))
    assert (outcome.why is None) == (outcome.verdict is Verdict.complete)
    if outcome.verdict is Verdict.complete:
        fingerprint = outcome.import_.fingerprint
        since = [there for known, there in service.history.items() if known[0] >= fingerprint[0]]
        possible = since if service.requests == 1 else [service.history[fingerprint]]
        found = {r.slug: int(r.data[5:-1]) for r in outcome.records}
        assert found in possible, f"seed {service.seed}: {len(found)} rows, {service.requests} requests"


@pytest.fixture(autouse=True, params=[25_000, 10], ids=["in memory", "on disk"])
def in_memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the records wait, what is true of them is the same."""
    monkeypatch.setattr(spill, "IN_MEMORY", request.param)


# --- a still import


@pytest.mark.parametrize("count", [0, 1, 2, 50, 99])
@pytest.mark.parametrize("status", [COMPLETED, "submitted"])
def test_a_small_import_is_one_request(count: int, status: str) -> None:
    service = Service(count, status=status)
    outcome = read(service)
    check(service, outcome)
    assert outcome.verdict is Verdict.complete
    assert service.requests == 1


@pytest.mark.parametrize("count", [100, 101, 199, 200, 201, 250, 1000, 6400, 6401, 12_345])
@pytest.mark.parametrize("out_of_range_404", [False, True])
def test_a_larger_import_costs_its_pages_and_one_look_at_its_fingerprint(count: int, out_of_range_404: bool) -> None:
    service = Service(count, out_of_range_404=out_of_range_404)
    outcome = read(service)
    check(service, outcome)
    assert outcome.verdict is Verdict.complete
    assert len(service.pages) == math.ceil(count / 100) + (count % 100 == 0)
    assert service.gets == 1


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 420), st.integers(1, 100), st.booleans())
def test_any_clamp_costs_one_sweep(count: int, clamp: int, out_of_range_404: bool) -> None:
    service = Service(count, clamp=clamp, out_of_range_404=out_of_range_404)
    outcome = read(service)
    check(service, outcome)
    assert outcome.verdict is Verdict.complete, (count, clamp, outcome.why)
    assert outcome.sweeps == 1
    assert len(service.pages) <= math.ceil(count / clamp) + 2


# --- an order that is different at every request, pages that lie


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("count", [99, 100, 101, 150, 250, 1000])
def test_a_shuffled_import_is_read_until_the_count_is_met(count: int, seed: int) -> None:
    service = Service(count, seed, shuffled=True)
    outcome = read(service)
    check(service, outcome)
    assert outcome.verdict is Verdict.complete, f"seed {seed}"
    assert outcome.sweeps <= 25


def short(slugs: list[str], page: int, size: int, dice: random.Random) -> list[str]:
    shown = slugs[(page - 1) * size : page * size]
    return shown[: len(shown) // 2] if dice.random() < 0.2 else shown


def hole(slugs: list[str], page: int, size: int, dice: random.Random) -> list[str]:
    return [] if page == 2 else slugs[(page - 1) * size : page * size]


def echo(slugs: list[str], page: int, size: int, dice: random.Random) -> list[str]:
    page = min(page, max(1, math.ceil(len(slugs) / size)))
    return slugs[(page - 1) * size : page * size]


def cut_at_120(slugs: list[str], page: int, size: int, dice: random.Random) -> list[str]:
    """The end of page 2 is never shown, whatever the size."""
    shown = slugs[(page - 1) * size : page * size]
    return shown[:20] if page == 2 else shown


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("count", [5, 99, 100, 150, 250, 1000])
def test_pages_cut_short_are_read_again(count: int, seed: int) -> None:
    service = Service(count, seed, mood=short)
    outcome = read(service)
    check(service, outcome)
    assert outcome.verdict is Verdict.complete, f"seed {seed}: {outcome.why}"


@pytest.mark.parametrize("count", [1, 99, 100, 200, 250])
@pytest.mark.parametrize("mood", [echo, hole])
def test_repeated_and_missing_pages(mood: object, count: int) -> None:
    service = Service(count, mood=mood)  # type: ignore[arg-type]
    outcome = read(service)
    check(service, outcome)
    if mood is echo:
        assert outcome.verdict is Verdict.complete
    assert service.requests <= 200


@pytest.mark.parametrize("status", [COMPLETED, "submitting"])
def test_a_page_that_is_always_cut_is_not_complete(status: str) -> None:
    service = Service(290, status=status, mood=cut_at_120)
    outcome = read(service)
    check(service, outcome)
    assert outcome.sweeps <= MAX_SWEEPS
    assert service.requests <= 8 * MAX_SWEEPS


# --- changes while reading


@pytest.mark.parametrize("kind", ["append", "delete", "edit", "swap"])
@pytest.mark.parametrize("count", [60, 100, 101, 250, 700])
def test_one_change_between_any_two_requests(kind: str, count: int) -> None:
    for seed in range(12):
        service = Service(count, seed, edits=0.2, kinds=(kind,), edits_at_most=1, shuffled=seed % 4 == 0)
        outcome = read(service)
        check(service, outcome)
        assert outcome.verdict is Verdict.complete, f"seed {seed}: {outcome.why}"


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.integers(0, 2**32),
    st.integers(0, 420),
    st.sampled_from([100, 50, 7]),
    st.booleans(),
    st.sampled_from([COMPLETED, "submitting"]),
    st.floats(0, 0.4),
    st.integers(0, 8),
)
def test_the_oracle_holds_for_any_import(
    seed: int, count: int, clamp: int, shuffled: bool, status: str, edits: float, at_most: int
) -> None:
    service = Service(count, seed, clamp, shuffled, status, edits=edits, edits_at_most=at_most)
    check(service, read(service))


@pytest.mark.parametrize("clamp", [3, 100])
def test_a_page_as_full_as_any_is_no_snapshot(clamp: int) -> None:
    """A row that came after the listing may have pushed another one onto a second page."""
    for seed in range(30):
        service = Service(clamp, seed, clamp, shuffled=True, edits=1.0, kinds=("append",), edits_at_most=1)
        outcome = read(service)
        check(service, outcome)
        assert outcome.verdict is Verdict.complete
        assert len(outcome.records) == clamp + 1, f"seed {seed}"


def test_a_swap_that_keeps_the_count_is_seen_by_the_fingerprint() -> None:
    service = Service(150)
    whole = service.list_records

    async def list_records(import_slug: str, page: int, per_page: int = 100) -> RecordPage:
        if page == 2 and not service.moved:  # row 100 slips to page 1, one arrives: 150 distinct rows are shown
            await first_page_is_read.wait()
            service.moved += 1
            del service.versions["r5"]
            service.versions["fresh"] = 1
            service.history[service.import_.fingerprint] = dict(service.versions)
        reply = await whole(import_slug, page, per_page)
        first_page_is_read.set()
        return reply

    first_page_is_read = asyncio.Event()
    service.list_records = list_records  # type: ignore[method-assign]
    outcome = read(service)
    check(service, outcome)
    assert outcome.verdict is Verdict.complete
    assert outcome.sweeps == 2
    assert outcome.import_ == service.import_


def test_an_import_that_never_rests_is_left_to_the_next_run() -> None:
    service = Service(250, edits=1.0, kinds=("edit",))
    outcome = read(service)
    assert outcome.verdict is Verdict.unstable
    assert outcome.why == f"it changed {MAX_MOVES + 1} times while it was read"
    assert outcome.sweeps == MAX_MOVES + 1


@dataclass
class Elsewhere(Service):
    """Its own address writes times more finely than the listing, and leaves the template out."""

    @property
    def listed(self) -> Import:
        at = self.import_.updated_at.replace(microsecond=0)
        return structs.replace(self.import_, updated_at=at, template=Template(name="T", slug="t"))


@pytest.mark.parametrize("count", [7, 250])
def test_an_import_is_handed_on_as_the_listing_shows_it(count: int) -> None:
    service = Elsewhere(count)
    for _ in range(2):
        outcome = read(service, service.listed)
        assert (outcome.verdict, outcome.import_) == (Verdict.complete, service.listed)
        assert {r.slug for r in outcome.records} == set(service.versions)


@pytest.mark.parametrize("seed", range(40))
def test_an_edit_within_the_second_that_the_listing_shows_is_noticed_while_it_is_read(seed: int) -> None:
    service = Elsewhere(250, seed, edits=0.2, edits_at_most=3)
    outcome = read(service, service.listed)
    assert outcome.verdict is Verdict.complete
    assert {r.slug: int(r.data[5:-1]) for r in outcome.records} == service.versions


def test_a_template_that_its_own_address_leaves_out_is_kept_though_the_import_changed() -> None:
    service = Elsewhere(250)
    listed = service.listed
    service.change("append")
    outcome = read(service, listed)
    assert (outcome.import_.template, outcome.import_.row_count) == (listed.template, 251)


def test_a_stale_listing_is_no_reason_to_give_up() -> None:
    service = Service(250)
    listed = service.import_
    service.change("append")
    outcome = read(service, listed)
    check(service, outcome)
    assert outcome.verdict is Verdict.complete
    assert outcome.import_ == service.import_


# --- a row_count that is wrong


@pytest.mark.parametrize(
    ("count", "off"),
    [(0, 1), (0, 100), (7, -7), (7, 1), (7, -8), (99, 1), (100, -1), (100, 1), (100, 100), (101, -1), (150, -50),
     (200, -100), (250, -50), (250, -10), (250, 50), (250, -350), (300, -200), (1000, -1000), (50, 1_000_000)],
)  # fmt: skip
def test_a_completed_import_with_a_wrong_count_is_unreconciled_with_all_its_rows(count: int, off: int) -> None:
    service = Service(count, off=off)
    outcome = read(service)
    assert outcome.verdict is Verdict.unreconciled
    assert {r.slug for r in outcome.records} == set(service.versions)
    assert outcome.why == f"{count} distinct records were found where row_count says {count + off}"
    assert outcome.sweeps == 3
    assert service.requests <= 3 * (math.ceil(count / 61) + 20) + (200 if off > 1000 else 0)


@pytest.mark.parametrize("count", [100, 150, 250])
@pytest.mark.parametrize("status", [COMPLETED, "submitting"])
def test_a_count_far_too_high_ends_where_the_last_page_is_repeated(count: int, status: str) -> None:
    def repeating(slugs: list[str], page: int, size: int, dice: random.Random) -> list[str]:
        first = min(page - 1, (len(slugs) - 1) // size) * size
        return slugs[first : first + size]

    service = Service(count, off=1_000_000, status=status, mood=repeating)
    outcome = read(service)
    assert {r.slug for r in outcome.records} == set(service.versions)
    assert outcome.verdict is Verdict.unreconciled
    assert service.requests <= 600


@pytest.mark.parametrize("clamp", [100, 40])
@pytest.mark.parametrize("status", ["created", "submitting", "submitted"])
@pytest.mark.parametrize(
    ("count", "off"), [(0, 5), (7, -7), (7, 5), (100, -100), (250, -250), (250, 50), (250, -90), (300, 1)]
)
def test_an_unfinished_import_whose_count_lags_is_complete_after_two_equal_sweeps(
    count: int, off: int, status: str, clamp: int
) -> None:
    service = Service(count, status=status, off=off, clamp=clamp)
    outcome = read(service)
    check(service, outcome)
    assert outcome.verdict is Verdict.complete, outcome.why
    assert outcome.sweeps == 2


@pytest.mark.parametrize("seed", range(60))
def test_a_shuffled_unfinished_import_with_a_wrong_count(seed: int) -> None:
    for count, off in ((101, 5), (101, -5), (102, -101)):
        service = Service(count, seed, shuffled=True, status="submitting", off=off)
        check(service, read(service))


@pytest.mark.parametrize("clamp", [100, 50, 7])
@pytest.mark.parametrize("count", [330, 500])
def test_a_page_of_an_unfinished_import_that_is_always_empty_hides_no_record(count: int, clamp: int) -> None:
    """Neither where pages are cut to a length, nor where they have one length whatever is requested."""
    for sized in True, False:
        for off in -count, -count // 2:

            def gap(slugs: list[str], page: int, size: int, dice: random.Random, sized: bool = sized) -> list[str]:
                size = size if sized else clamp
                return [] if page == 2 else slugs[(page - 1) * size : page * size]

            service = Service(count, clamp=clamp, mood=gap, status="submitting", off=off)
            outcome = read(service)
            check(service, outcome)
            assert outcome.verdict is Verdict.complete or not sized


class InTurn(Service):
    """Two replicas that have the records in opposite orders answer in turn, one request at a time."""

    turn = 0

    async def get_import(self, slug: str) -> Import:
        self.turn += 1
        return self.import_

    async def list_records(self, import_slug: str, page: int, per_page: int = 100) -> RecordPage:
        self.turn += 1
        slugs = list(self.versions)[:: -1 if self.turn % 2 else 1]
        size = min(per_page, self.clamp)
        return self.page_of(slugs[(page - 1) * size : page * size] if page > 0 else [])


@pytest.mark.parametrize("clamp", [10, 50, 100])
@pytest.mark.parametrize("count", [60, 150, 305, 420])
def test_replicas_in_other_orders_that_answer_in_turn_hide_no_record_of_an_unfinished_import(
    count: int, clamp: int
) -> None:
    for off in -count, -count // 2:
        service = InTurn(count, clamp=clamp, status="submitting", off=off)
        check(service, read(service))


@pytest.mark.parametrize("off", [-1, -2, -10])
def test_a_count_met_by_chance_on_the_way_to_more_rows_is_not_believed(off: int) -> None:
    for seed in range(20):
        service = Service(250, seed, shuffled=True, off=off)
        check(service, read(service))


def test_a_large_import_whose_count_still_says_none_is_read_to_its_end() -> None:
    # more pages than a thousand, so that no bound cuts two sweeps at the same place
    service = Service(110_000, status="submitting", off=-110_000)
    listed = service.import_
    outcome = asyncio.run(_unchecked(service, listed))
    assert outcome.verdict is Verdict.complete
    assert len(outcome.records) == 110_000


async def _unchecked(service: Service, listed: Import) -> ImportRead:
    everything = [record(slug, 0) for slug in service.versions]

    async def list_records(import_slug: str, page: int, per_page: int = 100) -> RecordPage:
        shown = everything[(page - 1) * per_page : page * per_page]
        return RecordPage(shown, [], len(shown))

    service.list_records = list_records  # type: ignore[method-assign]
    return await read_import(service, listed)


@pytest.mark.parametrize("status", [COMPLETED, "submitting"])
def test_records_without_end_are_given_up(monkeypatch: pytest.MonkeyPatch, status: str) -> None:
    monkeypatch.setattr(records, "MAX_PAGES_BEYOND", 60)
    service = Service(5, status=status)
    numbers = itertools.count()

    async def list_records(import_slug: str, page: int, per_page: int = 100) -> RecordPage:
        service.pages.append((page, per_page))
        return RecordPage([record(f"n{next(numbers)}", 0) for _ in range(per_page)], [], per_page)

    service.list_records = list_records  # type: ignore[method-assign]
    outcome = read(service)
    assert outcome.verdict is Verdict.unstable
    assert outcome.why == "its pages never end"
    assert service.requests <= 100


@pytest.mark.parametrize("count", [60, 100, 250])
def test_a_page_repeated_without_end_is_unreconciled_if_rows_are_missing(count: int) -> None:
    service = Service(count, off=30, mood=lambda slugs, page, size, dice: slugs[:size])
    outcome = read(service)
    assert outcome.verdict is Verdict.unreconciled
    assert outcome.sweeps <= MAX_SWEEPS
    assert service.requests <= 8 * MAX_SWEEPS


def test_a_count_that_is_met_by_pages_that_never_settle_is_not_blamed() -> None:
    service = Service(20, mood=lambda slugs, page, size, dice: [dice.choice(slugs)] * 9 if page < 6 else [])
    outcome = read(service)
    assert (outcome.verdict, len(outcome.records)) == (Verdict.unstable, 20)
    assert outcome.why == f"its pages still repeat rows after {MAX_SWEEPS} sweeps"


# --- 404


def test_a_deleted_import_is_gone() -> None:
    service = Service(10, deleted=True)
    outcome = read(service)
    assert outcome.verdict is Verdict.gone
    assert outcome.records == ()
    assert service.requests == 2


@pytest.mark.parametrize("after", range(1, 12))
@pytest.mark.parametrize("shuffled", [False, True])
def test_an_import_deleted_while_it_is_read_is_gone(after: int, shuffled: bool) -> None:
    service = Service(450, shuffled=shuffled)
    whole, get = service.list_records, service.get_import

    async def list_records(import_slug: str, page: int, per_page: int = 100) -> RecordPage:
        service.deleted = service.requests >= after
        return await whole(import_slug, page, per_page)

    async def get_import(slug: str) -> Import:
        service.deleted = service.requests >= after
        return await get(slug)

    service.list_records, service.get_import = list_records, get_import  # type: ignore[method-assign]
    outcome = read(service)
    check(service, outcome)
    assert outcome.verdict is (Verdict.complete if not service.deleted else Verdict.gone)
    assert service.deleted == (after <= 5 or shuffled)


@pytest.mark.parametrize("count", [10, 250])
def test_records_that_answer_404_while_the_import_lives_are_an_error(count: int) -> None:
    service = Service(count, records_404=True)
    with pytest.raises(NotFoundError):
        read(service)
    assert service.requests <= 10


def test_a_passing_404_of_the_records_is_survived() -> None:
    service = Service(250, records_404=True)
    get = service.get_import

    async def get_import(slug: str) -> Import:
        service.records_404 = False
        return await get(slug)

    service.get_import = get_import  # type: ignore[method-assign]
    outcome = read(service)
    check(service, outcome)
    assert outcome.verdict is Verdict.complete


def test_an_import_deleted_during_the_second_try_is_gone() -> None:
    service = Service(50, records_404=True)
    get = service.get_import

    async def get_import(slug: str) -> Import:
        service.deleted = service.gets >= 1
        return await get(slug)

    service.get_import = get_import  # type: ignore[method-assign]
    assert read(service).verdict is Verdict.gone


def test_other_errors_are_raised_as_they_are() -> None:
    service = Service(250)

    async def get_import(slug: str) -> Import:
        raise TransientError("503")

    service.get_import = get_import  # type: ignore[method-assign]
    with pytest.raises(TransientError):
        read(service)


# --- rejects and versions


@pytest.mark.parametrize("count", [5, 100, 150])
@pytest.mark.parametrize("slug", [None, "r1"])
def test_rejects_count_as_rows(count: int, slug: str | None) -> None:
    service = Service(count, rejects={"r1": Reject(slug, "its data is no object", BROKEN)})
    outcome = read(service)
    assert outcome.verdict is Verdict.complete
    assert outcome.sweeps == 1
    assert len(outcome.records) == count - 1
    assert [reject.payload for reject in outcome.rejects] == [BROKEN]


def test_a_reject_with_the_slug_of_a_good_row_is_not_another_row() -> None:
    # row 3 is there, good and broken; row 4 is what is missing, and must not be made up for by the broken one
    service = Service(5, mood=lambda slugs, page, size, dice: slugs[:4] if page == 1 else [])
    whole = service.list_records

    async def list_records(import_slug: str, page: int, per_page: int = 100) -> RecordPage:
        reply = await whole(import_slug, page, per_page)
        spoiled = [Reject("r3", "its data is no object", BROKEN)] if page == 1 else []
        return RecordPage(reply.records, spoiled, reply.size + len(spoiled))

    service.list_records = list_records  # type: ignore[method-assign]
    assert read(service).verdict is Verdict.unreconciled


@pytest.mark.parametrize("newest_first", [True, False])
def test_the_latest_version_of_a_slug_seen_twice_wins(newest_first: bool) -> None:
    versions = [9, 3] if newest_first else [3, 9]
    service = Service(2)

    async def list_records(import_slug: str, page: int, per_page: int = 100) -> RecordPage:
        rows = [record("r0", versions[0]), record("r0", versions[1]), record("r1", 0)] if page == 1 else []
        return RecordPage(rows, [], len(rows))

    service.list_records = list_records  # type: ignore[method-assign]
    outcome = read(service)
    assert outcome.verdict is Verdict.complete
    assert {r.slug: r.data for r in outcome.records} == {"r0": b'{"v":9}', "r1": b'{"v":0}'}


def test_without_times_the_version_seen_last_wins() -> None:
    rows = [Record("r0", b'{"v":%d}' % n, None, None, None) for n in range(3)]
    service = Service(1)

    async def list_records(import_slug: str, page: int, per_page: int = 100) -> RecordPage:
        return RecordPage(rows, [], 3)

    service.list_records = list_records  # type: ignore[method-assign]
    assert [r.data for r in read(service).records] == [b'{"v":2}']


def test_a_slug_twice_is_one_row_short_of_the_count() -> None:
    service = Service(3, mood=lambda slugs, page, size, dice: ["r0", "r0", "r1"] if page == 1 else [])
    assert read(service).verdict is Verdict.unreconciled


def test_two_equal_sweeps_that_repeat_a_row_prove_nothing() -> None:
    # r100 hides from the first two sweeps, which show r0 twice instead: as many elements as rows, but not the rows
    def shy(slugs: list[str], page: int, size: int, dice: random.Random) -> list[str]:
        if size >= 99:
            slugs = [*slugs[:100], "r0"]
        return slugs[(page - 1) * size : page * size]

    service = Service(101, status="submitting", off=5, mood=shy)
    outcome = read(service)
    check(service, outcome)
    assert outcome.verdict is Verdict.complete
    assert outcome.sweeps > 2


@pytest.mark.parametrize(("count", "rounds"), [(99, 1), (100, 2), (250, 2), (300, 2)])
def test_pages_are_asked_for_side_by_side_the_one_behind_a_full_last_one_too(count: int, rounds: int) -> None:
    """One round for the pages and, unless a single one showed all, one for the import as it stands afterwards."""

    class Slow(Service):
        async def list_records(self, import_slug: str, page: int, per_page: int = 100) -> RecordPage:
            await asyncio.sleep(1)
            return await super().list_records(import_slug, page, per_page)

        async def get_import(self, slug: str) -> Import:
            await asyncio.sleep(1)
            return await super().get_import(slug)

    service, loop = Slow(count), VirtualLoop()
    read = loop.run_until_complete(read_import(service, service.import_))
    assert (read.verdict, len(read.records)) == (Verdict.complete, count)
    assert loop.time() == pytest.approx(rounds)
    loop.close()


@pytest.mark.parametrize("shuffled", [False, True], ids=["in_order", "shuffled"])
@pytest.mark.parametrize("status", [COMPLETED, "submitted"])
@pytest.mark.parametrize("count", [1, 99, 100, 101, 230])
def test_a_service_that_counts_from_0_unnoticed_is_read_whole_all_the_same(
    count: int, status: str, shuffled: bool
) -> None:
    service = Service(count, status=status, shuffled=shuffled, counts_from=0)
    read_ = read(service)
    assert (read_.verdict, len(read_.records)) == (Verdict.complete, count)


@pytest.mark.parametrize("off", [-200, 3])
def test_page_0_is_looked_at_before_an_unfinished_import_counts_as_whole(off: int) -> None:
    """Its `row_count` may lag, so that what is missing does not show in it."""
    service = Service(230, status="submitted", off=off, counts_from=0)
    assert len(read(service).records) == 230


def test_page_0_is_asked_for_only_where_the_count_does_not_match_and_again_only_where_it_helped() -> None:
    assert 0 not in [page for page, _ in after_reading(Service(230)).pages]
    assert [page for page, _ in after_reading(Service(230, off=3)).pages].count(0) == 1


def test_page_0_is_no_more_than_the_first_page_where_the_listing_showed_that_pages_count_from_0() -> None:
    told, from_one = Service(230, off=3, counts_from=0), after_reading(Service(230, off=3))
    found = asyncio.run(read_import(told, told.import_, PageConvention(first=0)))
    assert len(found.records) == 230
    assert [(page + 1, size) for page, size in told.pages] == [each for each in from_one.pages if each[0] != 0]


def test_nothing_is_asked_before_page_0_where_pages_count_from_0_and_there_are_none() -> None:
    empty = Service(0, status="created", counts_from=0, records_404=True)
    found = asyncio.run(read_import(empty, empty.import_, PageConvention(first=0)))
    assert found.verdict is Verdict.complete
    assert {page for page, _ in empty.pages} == {0}


def after_reading(service: Service) -> Service:
    read(service)
    return service


def without_page_0(error: ConnectorError, off: int, status: str) -> ImportRead:
    class Refusing(Service):
        async def list_records(self, import_slug: str, page: int, per_page: int = 100) -> RecordPage:
            if page == 0:
                raise error
            return await super().list_records(import_slug, page, per_page)

    return read(Refusing(230, off=off, status=status))


@pytest.mark.parametrize("error", [ConnectorError("It sent what no page is."), NotFoundError("no such page")])
def test_a_page_0_that_is_refused_is_none(error: ConnectorError) -> None:
    assert without_page_0(error, 3, COMPLETED).verdict is Verdict.unreconciled
    assert without_page_0(error, 3, "submitted").verdict is Verdict.complete


def test_fewer_unfinished_rows_than_promised_are_not_believed_while_page_0_is_not_to_be_had() -> None:
    error = TransientError("503, six times")
    with pytest.raises(TransientError):
        without_page_0(error, 3, "submitted")
    assert without_page_0(error, -3, "submitted").verdict is Verdict.complete
    assert without_page_0(error, 3, COMPLETED).verdict is Verdict.unreconciled, "and says so itself"


def test_an_unfinished_import_fills_a_page_that_is_clamped_lower_than_those_of_the_listing() -> None:
    """Its `row_count` may lag, and be just as many as the page has room for."""
    service = Service(12, clamp=7, clamp_elsewhere=100, status="submitted", off=-5)
    assert len(read(service).records) == 12


# --- pages that are refused


class RefusingService(Service):
    """Answers 422 for pages that `refuses(page, size, rows there)`."""

    refuses: Callable[[int, int, int], bool]

    async def list_records(self, import_slug: str, page: int, per_page: int = 100) -> RecordPage:
        reply = await super().list_records(import_slug, page, per_page)
        if self.refuses(page, min(per_page, self.clamp), reply.size):
            raise ContractError("422", status=422, page=page)
        return reply


def refusing(service: RefusingService, refuses: Callable[[int, int, int], bool]) -> RefusingService:
    service.refuses = staticmethod(refuses)
    return service


def past_the_end(page: int, size: int, found: int) -> bool:
    return page > 1 and not found


@pytest.mark.parametrize("count", [0, 99, 100, 101, 200, 250, 6_400])
@pytest.mark.parametrize("status", [COMPLETED, "submitted"])
@pytest.mark.parametrize("off", [0, -30, 30])
def test_pages_refused_behind_the_last_one_are_its_end(count: int, status: str, off: int) -> None:
    plain = read(Service(count, status=status, off=off))
    service = refusing(RefusingService(count, status=status, off=off), past_the_end)
    outcome = read(service)
    check(service, outcome)
    assert (outcome.verdict, len(outcome.records)) == (plain.verdict, count)


@pytest.mark.parametrize("seed", range(10))
def test_an_unfinished_import_that_grows_unseen_ends_at_refused_pages_all_the_same(seed: int) -> None:
    service = refusing(RefusingService(190, seed, status="submitting", edits=0.3, edits_at_most=9), past_the_end)
    listed = service.import_

    def grow(kind: str) -> None:
        service.versions[f"r{next(service.numbers)}"] = 0
        service.off -= 1

    service.change = grow  # type: ignore[method-assign]
    outcome = read(service, listed)
    assert outcome.verdict is Verdict.complete
    assert len(outcome.records) >= 190


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize(("status", "off"), [(COMPLETED, 0), ("submitted", 0), ("submitted", -400), ("submitted", 9)])
@pytest.mark.parametrize(
    "refuses",
    [
        lambda page, size, found: page == 2,
        lambda page, size, found: page == 5,
        lambda page, size, found: page > 3,
        lambda page, size, found: page * size > 300,
        lambda page, size, found: page > 1,
    ],
    ids=["page 2", "the last page", "from page 4", "beyond 300", "all but the first"],
)
def test_a_refused_page_that_rows_are_on_is_no_end(
    shuffled: bool, status: str, off: int, refuses: Callable[[int, int, int], bool]
) -> None:
    service = refusing(RefusingService(450, status=status, off=off, shuffled=shuffled), refuses)
    try:
        outcome = read(service)
    except ContractError:
        return
    check(service, outcome)
    assert outcome.verdict in (Verdict.complete, Verdict.unstable), "never a miscount, which `reconcile` may excuse"


@pytest.mark.parametrize("status", [401, 403, 408, 425, 429])
def test_what_is_about_the_token_or_the_moment_is_no_end(status: int) -> None:
    error = (AuthError if status in (401, 403) else TransientError)("no", status=status)

    class Failing(Service):
        async def list_records(self, import_slug: str, page: int, per_page: int = 100) -> RecordPage:
            if page == 3:
                raise error
            return await super().list_records(import_slug, page, per_page)

    with pytest.raises(type(error)):
        read(Failing(200))


def test_a_refused_first_page_is_an_error() -> None:
    with pytest.raises(ContractError):
        read(refusing(RefusingService(0), lambda page, size, found: True))


# --- no records, and a 404 that says so


@pytest.mark.parametrize("status", [COMPLETED, "created"])
def test_an_import_without_records_may_answer_404_for_them(status: str) -> None:
    service = Service(0, status=status, records_404=True)
    outcome = read(service)
    assert (outcome.verdict, len(outcome.records)) == (Verdict.complete, 0)
    assert service.requests <= 5


def test_an_import_said_to_have_no_records_may_have_some_behind_a_404() -> None:
    """Its `row_count` may lag while its pages are counted from 0, or while some of them are refused."""

    class FromZero(Service):
        async def list_records(self, import_slug: str, page: int, per_page: int = 100) -> RecordPage:
            reply = await super().list_records(import_slug, page, per_page)
            if page and not reply.size:
                raise NotFoundError("no such page", page=page)
            return reply

    class Holed(Service):
        async def list_records(self, import_slug: str, page: int, per_page: int = 100) -> RecordPage:
            if page == 2:
                raise NotFoundError("no such page", page=page)
            return await super().list_records(import_slug, page, per_page)

    for service in (FromZero(40, off=-40, status="created", counts_from=0), Holed(300, off=-300, status="created")):
        with pytest.raises(NotFoundError):
            read(service)


def test_an_import_that_gets_records_while_they_answer_404_is_not_empty() -> None:
    service = Service(0, records_404=True)
    get = service.get_import

    async def get_import(slug: str) -> Import:
        if service.gets == 1:
            service.change("append")
        return await get(slug)

    service.get_import = get_import  # type: ignore[method-assign]
    with pytest.raises(NotFoundError):
        read(service)


# --- pages that are too large


@pytest.mark.parametrize("kind", [TooLargeError, TransientError])
@pytest.mark.parametrize("largest", [99, 50, 10, 9, 1])
@pytest.mark.parametrize("status", [COMPLETED, "submitted"])
@pytest.mark.parametrize("count", [10, 25, 230])
def test_pages_that_are_too_large_are_asked_for_as_shorter_ones(
    largest: int, status: str, count: int, kind: type[ConnectorError]
) -> None:
    class Heavy(Service):
        out_of_range_404 = True

        async def list_records(self, import_slug: str, page: int, per_page: int = 100) -> RecordPage:
            if per_page > largest:
                raise kind("504", status=504, page=page, per_page=per_page)
            return await super().list_records(import_slug, page, per_page)

    service = Heavy(count, status=status)
    outcome = read(service)
    check(service, outcome)
    assert (outcome.verdict, len(outcome.records)) == (Verdict.complete, count)


def test_a_page_0_that_is_never_answered_does_not_shorten_the_others() -> None:
    class Without(Service):
        async def list_records(self, import_slug: str, page: int, per_page: int = 100) -> RecordPage:
            if page == 0:
                raise TransientError("500", status=500, page=0, per_page=per_page)
            return await super().list_records(import_slug, page, per_page)

    service = Without(250, off=50, status="submitted")
    with pytest.raises(TransientError):
        read(service)
    assert {size for _, size in service.pages} == {100}


@pytest.mark.parametrize("failures", [1, MAX_REPEATS, MAX_REPEATS + 1])
def test_a_page_that_is_answered_again_is_not_too_long(failures: int) -> None:
    class Down(Service):
        left, again = failures, 0

        async def list_records(self, import_slug: str, page: int, per_page: int = 100) -> RecordPage:
            if page == 2 and per_page == 100:
                self.again -= 1
                if self.left and self.again < 0:
                    self.left, self.again = self.left - 1, PROOFS
                    raise TransientError("500", status=500, page=page, per_page=per_page)
            return await super().list_records(import_slug, page, per_page)

    service = Down(250)
    if failures > MAX_REPEATS:
        with pytest.raises(TransientError):
            read(service)
        return
    outcome = read(service)
    assert (outcome.verdict, len(outcome.records)) == (Verdict.complete, 250)
    assert [size for _, size in service.pages].count(10) == 10 * failures
    assert service.pages.count((1, 100)) > failures


@pytest.mark.parametrize("bad", [3, 57, 229])
@pytest.mark.parametrize(("status", "more"), [(500, 2), (429, 0)])
def test_a_record_that_the_service_cannot_show_costs_few_requests(bad: int, status: int, more: int) -> None:
    class Spoilt(Service):
        failed = 0

        async def list_records(self, import_slug: str, page: int, per_page: int = 100) -> RecordPage:
            if (page - 1) * per_page <= bad < page * per_page:
                self.failed += 1
                raise TransientError(f"page {page} of {per_page}", status=status, page=page, per_page=per_page)
            return await super().list_records(import_slug, page, per_page)

    service = Spoilt(230)
    with pytest.raises(TransientError, match=f"page {bad // 100 + 1} of 100"):
        read(service)
    assert (service.failed, service.requests <= 23) == (1 + more, True)


def test_a_single_record_that_is_too_large_is_an_error() -> None:
    class Heavier(Service):
        async def list_records(self, import_slug: str, page: int, per_page: int = 100) -> RecordPage:
            raise TooLargeError("more than 256 MiB")

    with pytest.raises(TooLargeError):
        read(Heavier(3))


def test_a_row_count_beyond_all_reason_is_not_read() -> None:
    service = Service(3, off=9 * 10**18)
    with pytest.raises(ContractError, match="more than the limit of 1,000,000,000"):
        read(service)
    assert service.requests == 0
