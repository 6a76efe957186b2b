"""The listing against a toy service in every mood: what was there all along is never missing from a "complete" one.

Every service is drawn from a seed, which is part of each failure message.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.errors import (
    AuthError,
    ConnectorError,
    ContractError,
    NotFoundError,
    TooLargeError,
    TransientError,
)
from connector.extract.agreement import MAX_SWEEPS, quiet_sweeps_needed
from connector.extract.concurrency import run_concurrently
from connector.extract.listing import WINDOW, Lister, Listing
from connector.extract.overlap import Positions, Segment, overlapping_segments, second_page_at
from tests.simulation.virtual_time import VirtualLoop

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Row:
    slug: str
    created: int
    updated: int
    edits: int = 0


def rank(*parts: object) -> bytes:
    return hashlib.md5(repr(parts).encode()).digest()


ORDERS: dict[str, Callable[[Row], object]] = {
    "created_asc": lambda row: row.created,
    "created_desc": lambda row: -row.created,
    "updated_asc": lambda row: row.updated,
    "updated_desc": lambda row: -row.updated,
    "heap": lambda row: rank(row.slug, row.edits),  # an edited row turns up anywhere
}


@dataclass
class Service:
    """Rows in an order, edited with the chance `edits` before each request (a: append, d: delete, e: edit)."""

    count: int
    order: str = "created_asc"
    seed: int = 0
    clamp: int = 100
    edits: float = 0.0
    kinds: str = "ade"
    ties: int = 1
    jitter: bool = False
    mood: Callable[[list[Row], int, int, random.Random], list[Row]] | None = None
    asked: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.clock = 0
        self.rows: dict[str, Row] = {}
        for _ in range(self.count):
            self.append()
        self.always = set(self.rows)

    def append(self) -> None:
        self.clock += 1
        slug = f"row-{self.clock}"
        self.rows[slug] = Row(slug, self.clock, self.clock)

    def delete(self, slug: str) -> None:
        del self.rows[slug]
        self.always.discard(slug)

    def edit(self, slug: str) -> None:
        self.clock += 1
        row = self.rows[slug]
        self.rows[slug] = Row(slug, row.created, self.clock, row.edits + 1)

    def happen(self) -> None:
        if self.dice.random() >= self.edits:
            return
        kind = self.dice.choice(self.kinds)
        if kind == "a":
            self.append()
        elif self.rows:
            slug = self.dice.choice(list(self.rows))
            self.delete(slug) if kind == "d" else self.edit(slug)

    def listed(self) -> list[Row]:
        rows = list(self.rows.values())
        if self.order == "random":
            self.dice.shuffle(rows)
        elif self.ties > 1:  # rows of one instant come in any order, another one at each request
            rows.sort(key=lambda row: (row.updated // self.ties, self.dice.random()))
        else:
            rows.sort(key=ORDERS[self.order])  # type: ignore[arg-type]
        return rows

    async def fetch(self, page: int, per_page: int) -> Sequence[Row]:
        for _ in range(self.dice.randrange(12) if self.jitter else 1):
            await asyncio.sleep(0)  # requests of one wave are answered in any order
        self.asked.append((page, per_page))
        self.happen()
        size = min(per_page, self.clamp)
        if self.mood is not None:
            return self.mood(self.listed(), page, size, self.dice)
        return self.listed()[(page - 1) * size : page * size]

    @property
    def requests(self) -> int:
        return len(self.asked)


def lister(service: Service, expected: int = 0, fetch: object = None) -> Lister[Row]:
    return Lister(
        fetch or service.fetch,  # type: ignore[arg-type]
        lambda row: row.slug,
        lambda before, after: after.updated >= before.updated,
        lambda row: START + timedelta(seconds=row.created),
        expected=expected,
    )


def run(service: Service, expected: int = 0) -> Listing[Row]:
    return asyncio.run(lister(service, expected).all())


def slugs(listing: Listing[Row]) -> set[str]:
    return {row.slug for row in listing.rows}


def check(service: Service, listing: Listing[Row]) -> None:
    """The oracle: nothing twice, and "complete" means that all that was there throughout is there."""
    assert len(slugs(listing)) == len(listing.rows)
    assert (listing.reason is None) == listing.complete
    missing = service.always - slugs(listing)
    assert not (listing.complete and missing), f"seed {service.seed}: {service} is missing {sorted(missing)[:5]}"


# --- segments


@pytest.mark.parametrize("size", [100, 99, 73, 50, 33, 25, 20])
def test_segments_overlap_and_cover_every_position(size: int) -> None:
    covered = requests = 0
    for segment in overlapping_segments(size):
        assert segment.per_page <= size
        assert covered == 0 or segment.first <= covered - 1 < covered < segment.last
        assert covered > 0 or segment.first == 1
        covered, requests = segment.last, requests + 1
        if covered > 20_000:
            break
    assert requests <= math.ceil(1.5 * covered / size)


def test_pages_too_small_to_overlap_are_no_sequence() -> None:
    assert [len(list(itertools.islice(overlapping_segments(size), 3))) for size in (1, 5, 6)] == [1, 1, 3]


def test_segments_of_full_pages_cost_a_sixth_more() -> None:
    segments = list(itertools.takewhile(lambda s: s.first <= 100_000, overlapping_segments(100)))
    assert len(segments) <= 1.16 * 1000


# --- a still service: complete, exact and cheap


def allowed(count: int) -> int:
    """Overlapping pages, two empty and a far one, two looks at the end, the first row, the front."""
    if count < 2:
        return 7 + FIRST
    if count < 98:
        return 7
    return math.ceil(count * 1.155 / 100) + 7


FIRST = 7  # requests more where nothing is known: far behind the end, and page 0


@pytest.mark.parametrize(
    "count", [0, 1, 2, 50, 97, 98, 99, 100, 101, 196, 197, 198, 200, 291, 300, 500, 1000, 2345, 5000]
)
@pytest.mark.parametrize("order", ["created_asc", "updated_desc"])
def test_a_still_service_costs_one_sweep(count: int, order: str) -> None:
    service = Service(count, order)
    listing = run(service, expected=count)
    assert listing.complete
    assert listing.sweeps == 1
    assert slugs(listing) == set(service.rows)
    assert service.requests <= allowed(count)


@pytest.mark.parametrize("count", [0, 1, 99, 100, 200, 1000, 2345])
@pytest.mark.parametrize("expected", [0, 1, 99, 100, 101, 900, 3000])
def test_a_wrong_expectation_costs_little_and_hides_nothing(count: int, expected: int) -> None:
    service = Service(count)
    listing = run(service, expected)
    assert listing.complete
    assert slugs(listing) == set(service.rows)
    # pages are asked for in growing waves, the last of which may overshoot
    assert service.requests <= allowed(max(count, expected)) + 16 + FIRST * (expected == 0)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 420), st.integers(1, 100), st.booleans())
def test_any_clamp_of_a_still_service(count: int, clamp: int, told: bool) -> None:
    service = Service(count, clamp=clamp)
    listing = run(service, count if told else 0)
    assert listing.complete, (count, clamp, listing.reason)
    assert slugs(listing) == set(service.rows), (count, clamp)


def test_a_clamp_is_learnt_so_that_the_second_sweep_is_orderly() -> None:
    service = Service(1000, clamp=50)
    assert run(service, 1000).sweeps == 2
    assert service.requests <= math.ceil(1.24 * 1000 / 50) + 6 + allowed(1000)


def test_sizes_that_all_divide_the_end_are_survived() -> None:
    # 27,720 is a multiple of every size up to 12: no page of those holds the end and has room for more
    assert second_page_at(27_720, 12, []) == Segment(27_721, 1)


# --- edits between any two requests


@pytest.mark.parametrize("order", [*ORDERS, "random"])
@pytest.mark.parametrize(
    ("count", "clamp", "edits"), [(60, 100, 0.2), (150, 100, 0.1), (350, 100, 0.05), (70, 25, 0.05), (14, 3, 0.05)]
)
def test_edits_between_requests_are_never_lost(order: str, count: int, clamp: int, edits: float) -> None:
    for seed in range(6 if order == "random" else 12):
        service = Service(count, order, seed, clamp, edits, jitter=seed % 3 == 0)
        check(service, run(service, count if seed % 2 else 0))
        assert service.requests <= 1500, f"seed {seed}"


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    st.integers(0, 2**32),
    st.integers(0, 320),
    st.sampled_from(list(ORDERS)),
    st.sampled_from(["a", "d", "e", "de", "ade"]),
    st.floats(0, 0.3),
    st.integers(0, 400),
)
def test_the_oracle_holds_for_any_service(
    seed: int, count: int, order: str, kinds: str, edits: float, expected: int
) -> None:
    service = Service(count, order, seed, edits=edits, kinds=kinds, jitter=True)
    check(service, run(service, expected))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("ties", [2, 10, 100])
def test_ties_in_another_order_at_each_request(ties: int, seed: int) -> None:
    service = Service(250, "updated_asc", seed, edits=0.05 * (seed % 2), ties=ties)
    listing = run(service, 250)
    check(service, listing)
    assert listing.complete


class Scripted(Service):
    """Does what `script` says after the n-th request, counted from 1."""

    script: dict[int, Callable[[Scripted], None]]

    async def fetch(self, page: int, per_page: int) -> Sequence[Row]:
        reply = await super().fetch(page, per_page)
        self.script.get(self.requests, lambda _: None)(self)
        return reply


def test_one_row_slipping_to_a_page_already_read_is_noticed() -> None:
    service = Scripted(300)
    service.script = {1: lambda s: s.delete("row-7")}  # row-101 is now on page 1
    listing = run(service, 300)
    assert "row-101" in slugs(listing)
    assert listing.complete
    assert listing.sweeps == 2


def test_a_move_to_the_front_and_a_delete_that_cancel_out_are_noticed() -> None:
    def both(s: Scripted) -> None:
        s.edit("row-50")  # from position 251 to 1 …
        s.delete("row-290")  # … and position 12 is gone: nothing behind it has shifted

    service = Scripted(300, "updated_desc")
    service.script = {1: both}
    listing = run(service, 300)
    assert listing.complete
    assert "row-50" in slugs(listing)


def test_the_freshest_version_is_kept() -> None:
    service = Scripted(150, "created_asc")
    service.script = {2: lambda s: s.edit("row-99")}
    listing = run(service, 150)
    assert next(row for row in listing.rows if row.slug == "row-99").updated == 151


def test_rows_younger_than_what_an_aborted_sweep_saw_count_like_all_others() -> None:
    # the clamp ends the orderly sweep among the oldest rows; the next two sweeps miss one that was there all along
    service = Service(400, clamp=10)
    shy = service.rows["row-300"]
    listing = lister(service)
    service.mood = lambda rows, page, size, dice: moody(
        [row for row in rows if row != shy or listing._sweeps > 3], page, size
    )
    found = asyncio.run(listing.all())
    assert found.complete
    assert "row-300" in slugs(found)


# --- pages that lie


def moody(rows: list[Row], page: int, size: int) -> list[Row]:
    return rows[(page - 1) * size : page * size]


def ignores_page(rows: list[Row], page: int, size: int, dice: random.Random) -> list[Row]:
    return rows[:size]


def ignores_per_page(rows: list[Row], page: int, size: int, dice: random.Random) -> list[Row]:
    return moody(rows, page, 25)


def sends_all(rows: list[Row], page: int, size: int, dice: random.Random) -> list[Row]:
    return rows


def echoes_last_page(rows: list[Row], page: int, size: int, dice: random.Random) -> list[Row]:
    return moody(rows, min(page, max(1, math.ceil(len(rows) / size))), size)


def hole(rows: list[Row], page: int, size: int, dice: random.Random) -> list[Row]:
    return [] if page == 3 else moody(rows, page, size)


def half_pages(rows: list[Row], page: int, size: int, dice: random.Random) -> list[Row]:
    found = moody(rows, page, size)
    return found[: len(found) // 2] if dice.random() < 0.1 and page > 1 else found


def empty_and_same(rows: list[Row], page: int, size: int, dice: random.Random) -> list[Row]:
    return rows[:size] if page % 2 else []


def uneven(rows: list[Row], page: int, size: int, dice: random.Random) -> list[Row]:
    """No row is lost, pages just have lengths of their own, up to two in a row none."""
    start = length = empty = 0
    for place in range(1, page + 1):
        start += length
        drawn = random.Random(f"{size} {place}")
        share = drawn.random()
        length = size
        if share < 0.25 and place > 1 and empty < 2:
            length = 0
        elif share < 0.5 and size > 1:
            length = 1 + drawn.randrange(size - 1)
        empty = 0 if length else empty + 1
    return rows[start : start + length]


@pytest.mark.parametrize("count", [0, 1, 2, 60, 99, 100, 101, 250, 1000])
@pytest.mark.parametrize("mood", [ignores_per_page, echoes_last_page, hole, uneven])
def test_pages_that_lie_cost_more_but_hide_nothing(mood: object, count: int) -> None:
    service = Service(count, mood=mood)  # type: ignore[arg-type]
    listing = run(service, count)
    assert listing.complete, listing.reason
    assert slugs(listing) == set(service.rows)
    assert service.requests <= 390


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("count", [1, 99, 101, 120, 150, 199, 200, 230, 310, 450, 1000])
@pytest.mark.parametrize("empty", [{2}, {3}, {2, 3}, {3, 4}, {2, 4}])
def test_page_numbers_that_are_always_empty_hide_nothing(empty: set[int], count: int, told: bool) -> None:
    service = Service(count, mood=lambda rows, page, size, dice: [] if page in empty else moody(rows, page, size))
    listing = run(service, count if told else 0)
    assert listing.complete, listing.reason
    assert slugs(listing) == set(service.rows)
    assert service.requests <= 700


def from_zero(rows: list[Row], page: int, size: int, dice: random.Random) -> list[Row]:
    return moody(rows, page + 1, size)


def from_zero_in_25s(rows: list[Row], page: int, size: int, dice: random.Random) -> list[Row]:
    return moody(rows, page + 1, 25)


@pytest.mark.parametrize("known", [0, 1, 0.5, 2])
@pytest.mark.parametrize("clamp", [1, 2, 3, 5, 7, 25, 50, 99, 100])
def test_pages_counted_from_zero_hide_nothing(clamp: int, known: float) -> None:
    for count in sorted({1, 2, 3, 10, 90, 99, 100, 101, 150, 199, 250, clamp, clamp + 1, 2 * clamp, 2 * clamp + 1}):
        for mood in (from_zero, from_zero_in_25s):
            if clamp * 100 >= count:
                service = Service(count, clamp=clamp, mood=mood)
                told = lister(service, round(count * known))
                listing = asyncio.run(told.all())
                assert listing.complete, (count, mood, listing.reason)
                assert slugs(listing) == set(service.rows), (count, mood)
                assert told.convention.first == 0, (count, mood)


@pytest.mark.parametrize("error", [NotFoundError("404", status=404), ContractError("422", status=422)])
@pytest.mark.parametrize("clamp", [1, 2, 3, 7, 25, 50, 100])
def test_pages_counted_from_zero_and_refused_behind_the_end_hide_nothing(clamp: int, error: ConnectorError) -> None:
    for count in sorted({1, 2, 3, 10, 90, 99, 100, 101, 150, 250, clamp, clamp + 1, 2 * clamp + 1}):
        if clamp * 100 < count:
            continue
        service = Service(count, clamp=clamp, mood=from_zero)

        async def fetch(page: int, per_page: int, service: Service = service) -> Sequence[Row]:
            rows = await service.fetch(page, per_page)
            if not rows:
                raise error
            return rows

        told = lister(service, fetch=fetch)
        listing = asyncio.run(told.all())
        assert listing.complete, (count, listing.reason)
        assert slugs(listing) == set(service.rows), count
        assert told.convention.first == 0, count
        again = lister(service, fetch=fetch)
        assert asyncio.run(again.counts_from_zero()), count


def test_a_service_that_refuses_every_page_is_no_empty_one() -> None:
    async def fetch(page: int, per_page: int) -> Sequence[Row]:
        raise NotFoundError(f"404 to page {page}", status=404)

    with pytest.raises(NotFoundError, match="404 to page 1"):
        asyncio.run(lister(Service(0), fetch=fetch).all())


@pytest.mark.parametrize("count", [1, 2, 40, 100, 101, 150, 199])
def test_pages_counted_from_zero_in_another_order_at_each_request(count: int) -> None:
    for seed in range(5):
        service = Service(count, "random", seed, mood=from_zero)
        told = lister(service, count * (seed % 2))
        listing = asyncio.run(told.all())
        assert listing.complete, (count, seed, listing.reason)
        assert slugs(listing) == set(service.rows)
        assert told.convention.first == 0


@pytest.mark.parametrize("seed", range(5))
def test_edits_do_not_hide_that_pages_are_counted_from_zero(seed: int) -> None:
    for order in ORDERS:
        for count, clamp in ((1, 100), (2, 100), (10, 100), (60, 100), (90, 40), (150, 100)):
            for edits in (0.1, 0.4):
                service = Service(count, order, seed, clamp, edits, mood=from_zero)
                check(service, run(service, count * (seed % 3)))


@pytest.mark.parametrize(
    ("count", "zero", "failing", "error", "complete"),
    [
        (1, True, 0, TransientError("503, six times"), False),
        (1, True, 1, TransientError("503, six times"), False),
        (0, False, 0, TransientError("503, six times"), False),
        (0, False, 0, ContractError("422", status=422), True),
        (1, False, 0, TransientError("503, six times"), True),
    ],
)
def test_an_empty_listing_is_not_believed_while_page_0_is_not_to_be_had(
    count: int, zero: bool, failing: int, error: ConnectorError, complete: bool
) -> None:
    service = Service(count, mood=from_zero if zero else None)
    asked: set[int] = set()

    async def fetch(page: int, per_page: int) -> Sequence[Row]:
        asked.add(page)
        if page == failing and 0 in asked:
            raise error
        return await service.fetch(page, per_page)

    listing = asyncio.run(lister(service, fetch=fetch).all())
    assert listing.complete is complete
    assert complete or "page 0" in str(listing.reason)


@pytest.mark.parametrize("count", [1, 2, 30, 90, 101, 150, 250])
@pytest.mark.parametrize("order", [*ORDERS, "random"])
@pytest.mark.parametrize(
    "error", [TransientError("500"), AuthError("403", status=403), ContractError("HTML", status=200)]
)
def test_rows_of_a_page_0_that_cannot_be_read_are_not_missing_from_a_complete_listing(
    count: int, order: str, error: ConnectorError
) -> None:
    for zero in True, False:
        service = Service(count, order, mood=from_zero if zero else None)

        async def fetch(page: int, per_page: int, service: Service = service) -> Sequence[Row]:
            if page == 0:
                raise error
            return await service.fetch(page, per_page)

        listing = asyncio.run(lister(service, fetch=fetch).all())
        assert not listing.complete or slugs(listing) == set(service.rows), listing.reason
        assert zero or listing.complete, listing.reason


@pytest.mark.parametrize("count", [2, 30, 101, 250])
def test_a_page_0_that_is_too_large_is_read_in_shorter_pages(count: int) -> None:
    service = Service(count, mood=from_zero)

    async def fetch(page: int, per_page: int) -> Sequence[Row]:
        if page == 0 and per_page > 50:
            raise TooLargeError("too large")
        return await service.fetch(page, per_page)

    told = lister(service, fetch=fetch)
    listing = asyncio.run(told.all())
    assert (listing.complete, told.convention.first) == (True, 0)
    assert slugs(listing) == set(service.rows)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("order", [*ORDERS, "random"])
@pytest.mark.parametrize("clamp", [100, 25])
def test_another_name_of_the_first_page_or_the_last_is_not_taken_for_counting_from_zero(
    order: str, clamp: int, seed: int
) -> None:
    def zero(rows: list[Row], page: int, size: int, dice: random.Random) -> list[Row]:
        last = max(1, math.ceil(len(rows) / size))
        return moody(rows, page or (1 if seed % 2 else last), size)

    service = Service(1 + 40 * seed, order, seed, clamp, edits=0.02 * (seed % 3), mood=zero)
    told = lister(service, expected=0)
    check(service, asyncio.run(told.all()))
    assert told.convention.first == 1
    assert order == "random" or service.edits or (1, 3) not in service.asked  # a row already seen says enough
    if order != "random" or len(service.rows) % clamp > 1:  # one row in random order tells nothing
        assert not asyncio.run(lister(service).counts_from_zero())


def test_a_listing_that_shrinks_meanwhile_is_not_taken_for_counting_from_zero() -> None:
    """Its page 1 is shorter than its page 0 was, which a last look at page 0 explains, if it really comes last."""
    service = Service(5)

    async def fetch(page: int, per_page: int) -> Sequence[Row]:
        for _ in range(8 * page):  # page 0 is answered sooner
            await asyncio.sleep(0)
        if page == 1 and len(service.rows) == 5:
            service.delete(next(iter(service.rows)))
        return service.listed()[:per_page]

    told = lister(service, fetch=fetch)
    assert not asyncio.run(told.counts_from_zero())
    assert len(service.rows) == 4
    assert told.convention.first == 1


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("count", [26, 50, 51, 60, 90, 120])
@pytest.mark.parametrize("empty", [{2}, {3}, {2, 3}])
@pytest.mark.parametrize("clamp", [25, 30, 50, 80])
def test_page_numbers_that_are_always_empty_hide_nothing_of_a_clamped_listing(
    clamp: int, empty: set[int], count: int, told: bool
) -> None:
    def mood(rows: list[Row], page: int, size: int, dice: random.Random) -> list[Row]:
        return [] if page in empty else moody(rows, page, size)

    service = Service(count, clamp=clamp, mood=mood)
    listing = run(service, count if told else 0)
    assert listing.complete, listing.reason
    assert slugs(listing) == set(service.rows)


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("count", [20, 76, 101, 120])
@pytest.mark.parametrize("empty", [{2}, {3}, {2, 3}])
def test_page_numbers_that_are_always_empty_hide_nothing_for_certain_where_pages_have_one_size(
    empty: set[int], count: int, told: bool
) -> None:
    """No other size shows what such a page hides; then the listing must not be called complete."""

    def mood(rows: list[Row], page: int, size: int, dice: random.Random) -> list[Row]:
        return [] if page in empty else moody(rows, page, 25)

    service = Service(count, mood=mood)
    check(service, run(service, count if told else 0))


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("count", [130, 230, 1000])
@pytest.mark.parametrize("gap", [range(100, 150), range(100, 200), range(50, 250), range(100, 300), range(100, 400)])
def test_rows_left_out_after_paging_hide_no_others(gap: range, count: int, told: bool) -> None:
    def filtered(rows: list[Row], page: int, size: int, dice: random.Random) -> list[Row]:
        places: list[Row | None] = [*rows[: gap.start], *[None] * len(gap), *rows[gap.start :]]
        return [row for row in places[(page - 1) * size : page * size] if row is not None]

    service = Service(count, mood=filtered)
    listing = run(service, count if told else 0)
    assert listing.complete, listing.reason
    assert slugs(listing) == set(service.rows)
    assert service.requests <= 700


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("count", [150, 250, 600])
def test_pages_cut_short_at_random(count: int, seed: int) -> None:
    service = Service(count, seed=seed, mood=half_pages)
    check(service, run(service))


@pytest.mark.parametrize("count", [2, 60, 99, 100, 101, 250, 1000])
@pytest.mark.parametrize("mood", [ignores_page, sends_all])
@pytest.mark.parametrize("clamp", [100, 25, 3, 2])
def test_a_page_repeated_without_end_is_detected(mood: object, count: int, clamp: int) -> None:
    service = Service(count, clamp=clamp, mood=mood)  # type: ignore[arg-type]
    listing = run(service, count)
    assert not listing.complete
    assert listing.reason == "the service answers every page number with the same rows"
    assert service.requests <= 170


@pytest.mark.parametrize("seed", range(20))
def test_a_page_repeated_without_end_while_rows_arrive(seed: int) -> None:
    service = Service(250, "created_desc", seed, edits=0.1, kinds="a", mood=ignores_page)
    listing = run(service, 250)
    assert not listing.complete, f"seed {seed}"
    assert service.requests <= 1000


def test_empty_pages_between_repeated_ones_end_too() -> None:
    service = Service(250, mood=empty_and_same)
    assert not run(service).complete
    assert service.requests <= 100


@pytest.mark.parametrize("count", [60, 330])
@pytest.mark.parametrize("sizes", [{25}, {7}, {10, 20, 50}], ids=str)
@pytest.mark.parametrize("behind", ["empty", "the last page"])
def test_equal_rows_in_another_order_on_each_page_are_not_all_there(count: int, sizes: set[int], behind: str) -> None:
    """The order of each page is the same at every request, and the service sends pages of one of its `sizes`."""

    def mood(rows: list[Row], page: int, size: int, dice: random.Random) -> list[Row]:
        size = max((each for each in sizes if each <= size), default=min(sizes))
        page = page if behind == "empty" else min(page, -(-len(rows) // size))
        rows.sort(key=lambda row: rank(row.slug, page, size))
        return moody(rows, page, size)

    service = Service(count, mood=mood)
    listing = run(service)
    assert not listing.complete or slugs(listing) == set(service.rows)


@pytest.mark.parametrize("behind", ["nothing", "the last page", "all pages again"])
@pytest.mark.parametrize(("count", "most"), [(333, 3), (1000, 5), (12_000, 100)])
def test_rows_behind_the_last_page_number_that_is_shown(count: int, most: int, behind: str) -> None:
    """However long its pages are, the service shows no more than `most` of them."""

    def mood(rows: list[Row], page: int, size: int, dice: random.Random) -> list[Row]:
        if page > most and behind == "nothing":
            return []
        return moody(rows, min(page, most) if behind == "the last page" else (page - 1) % most + 1, size)

    listing = run(Service(count, mood=mood), count)
    assert not listing.complete
    assert listing.reason is not None
    assert "end at a page number" in listing.reason


def test_rows_twice_on_a_page_end() -> None:
    service = Service(130, mood=lambda rows, page, size, dice: moody([r for r in rows for _ in "ab"], page, size))
    listing = run(service)
    assert listing.complete
    assert slugs(listing) == set(service.rows)


def test_new_rows_without_end_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connector.extract.listing.MAX_PAGES", 150)
    numbers = itertools.count()
    service = Service(0, mood=lambda rows, page, size, dice: [Row(f"n{next(numbers)}", 1, 1) for _ in range(size)])
    listing = run(service)
    assert not listing.complete
    assert listing.reason == "the listing continues beyond page 150"
    assert service.requests <= 5 * 150


def test_a_listing_that_never_rests_is_bounded() -> None:
    # a row older than all others turns up at every request
    ages = itertools.count(0, -1)
    extra: list[Row] = []

    def restless(rows: list[Row], page: int, size: int, dice: random.Random) -> list[Row]:
        extra.insert(0, Row(f"old{len(extra)}", next(ages), 1))
        return moody([*extra, *rows], page, size)

    service = Service(5, mood=restless)
    listing = run(service)
    assert not listing.complete
    assert listing.sweeps <= MAX_SWEEPS + 3
    assert service.requests <= 60 * MAX_SWEEPS


def test_rows_that_keep_arriving_do_not_stop_a_listing() -> None:
    service = Service(250, "created_desc", edits=1.0, kinds="a")
    listing = run(service, 250)
    check(service, listing)
    assert listing.complete


# --- errors, stops, again


def test_a_404_behind_the_last_page_is_an_empty_page() -> None:
    service = Service(100)

    async def fetch(page: int, per_page: int) -> Sequence[Row]:
        rows = await service.fetch(page, per_page)
        if not rows:
            raise NotFoundError("no such page", page=page)
        return rows

    listing = asyncio.run(lister(service, fetch=fetch).all())
    assert listing.complete
    assert len(listing.rows) == 100
    with pytest.raises(NotFoundError):
        asyncio.run(lister(Service(0), fetch=lambda page, per_page: _failing(NotFoundError("gone"))).all())


async def _failing(error: Exception) -> Sequence[Row]:
    raise error


def test_an_error_on_any_page_is_an_error_of_the_listing() -> None:
    service = Service(900)

    async def fetch(page: int, per_page: int) -> Sequence[Row]:
        if page == 7:
            raise TransientError("503", page=7)
        return await service.fetch(page, per_page)

    with pytest.raises(TransientError):
        asyncio.run(lister(service, 900, fetch).all())


@pytest.mark.parametrize("after", [0, 1, 5, 12])
def test_a_stopped_listing_is_not_complete(after: int) -> None:
    service = Service(3000, "random")
    stopping = lister(service)
    stopping._stop = lambda: service.requests >= after
    listing = asyncio.run(stopping.all())
    assert not listing.complete
    assert listing.reason == "the listing was stopped"
    assert service.requests <= after + 2 * WINDOW


def test_a_stop_during_the_last_sweep_is_not_complete() -> None:
    service = Service(30, clamp=5)
    total = asyncio.run(_requests_of(service))
    for after in range(total):
        again = Service(30, clamp=5)
        stopping = lister(again)
        stopping._stop = lambda s=again, n=after: s.requests >= n  # type: ignore[misc]
        check(again, asyncio.run(stopping.all()))


async def _requests_of(service: Service) -> int:
    await lister(service).all()
    return service.requests


def test_again_finds_what_was_hidden_from_the_first_listing() -> None:
    service = Service(150)
    shy = service.rows["row-70"]
    service.mood = lambda rows, page, size, dice: moody([r for r in rows if r != shy], page, size)

    async def both() -> tuple[Listing[Row], Listing[Row]]:
        listing = lister(service, 150)
        first = await listing.all()
        service.mood = None
        return first, await listing.again()

    first, second = asyncio.run(both())
    assert "row-70" not in slugs(first)
    assert second.complete
    assert slugs(second) == set(service.rows)
    assert second.sweeps > first.sweeps


def test_how_many_quiet_sweeps_are_needed() -> None:
    assert quiet_sweeps_needed(0) == 2
    assert quiet_sweeps_needed(1) > MAX_SWEEPS
    for rate in (0.01, 0.1, 0.37, 0.5):
        assert rate ** quiet_sweeps_needed(rate) <= 1e-6 * 1.0001


def test_together_keeps_order_raises_the_first_error_and_cancels_the_rest() -> None:
    ended: list[str] = []

    async def wait(name: str, turns: int, error: Exception | None = None) -> str:
        try:
            for _ in range(turns):
                await asyncio.sleep(0)
            if error:
                raise error
            return name
        except asyncio.CancelledError:
            ended.append(name)
            raise

    async def scenario() -> None:
        assert await run_concurrently([wait("a", 5), wait("b", 1)]) == ["a", "b"]
        with pytest.raises(TransientError):
            await run_concurrently([wait("slow", 10_000), wait("bad", 2, TransientError("503"))])

    asyncio.run(asyncio.wait_for(_typed(scenario()), 5))
    assert ended == ["slow"]


def _typed(awaitable: Awaitable[None]) -> Awaitable[None]:
    return awaitable


# --- the proof of an end


@pytest.mark.parametrize("expected", [0, 195])
def test_rows_behind_a_stretch_without_any_are_found(expected: int) -> None:
    # as where the service filters after it has paged: 195 rows, 105 places without one, 50 rows
    def sieved(rows: list[Row], page: int, size: int, dice: random.Random) -> list[Row]:
        places = [*rows[:195], *[None] * 105, *rows[195:]]
        return [row for row in places[(page - 1) * size : page * size] if row is not None]

    service = Service(245, mood=sieved)
    listing = run(service, expected)
    assert listing.complete
    assert slugs(listing) == set(service.rows)


def test_an_end_needs_two_looks_and_two_empty_pages() -> None:
    def claims(*segments: Segment) -> bool:
        positions = Positions()
        for segment in segments:
            positions.claim(segment, [f"row-{n}" for n in range(segment.first, min(segment.last, 50) + 1)])
        return positions.proven()

    once, twice, behind, farther = Segment(1, 100), Segment(1, 99), Segment(2, 98), Segment(3, 97)
    assert claims(once, twice, behind, farther)
    assert not claims(once, twice, behind)
    assert not claims(once, behind, farther)
    assert not claims(once, once, behind, farther)


@pytest.mark.parametrize(
    ("count", "known", "rounds"),
    [(1, 0, 5), (100, 0, 3), (250, 0, 3), (1_000, 0, 5), (1_000, 1_000, 2), (1_100, 1_000, 3)],
)
def test_pages_are_asked_for_in_few_rounds(count: int, known: int, rounds: int) -> None:
    """Each of them takes as long as the service takes to answer, and no record is read before the last."""
    service = Service(count, mood=lambda rows, page, size, _: moody(rows, max(page, 1), size))

    async def fetch(page: int, per_page: int) -> Sequence[Row]:
        await asyncio.sleep(1)
        return await service.fetch(page, per_page)

    loop = VirtualLoop()
    listing = loop.run_until_complete(lister(service, known, fetch).all())
    assert slugs(listing) == set(service.rows)
    assert loop.time() == pytest.approx(rounds)
    loop.close()


# --- pages that are refused


def refusing(service: Service, refuses: Callable[[int, int, int], bool], status: int = 422) -> Callable[..., object]:
    """A fetch that answers `status` where `refuses(page, size, rows there)`."""

    async def fetch(page: int, per_page: int) -> Sequence[Row]:
        rows = await service.fetch(page, per_page)
        size = min(per_page, service.clamp)
        if refuses(page, size, len(rows)):
            raise ContractError(f"{status}", status=status, page=page)
        return rows

    return fetch


def past_the_end(page: int, size: int, found: int) -> bool:
    return page > 1 and not found


@pytest.mark.parametrize("status", [400, 404, 410, 416, 422])
@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 250, 1_000])
@pytest.mark.parametrize("expected", [0, 250])
def test_pages_refused_behind_the_last_one_cost_one_request(count: int, status: int, expected: int) -> None:
    plain = Service(count)
    run(plain, expected)
    service = Service(count)
    listing = asyncio.run(lister(service, expected, refusing(service, past_the_end, status)).all())
    assert slugs(listing) == set(service.rows)
    assert listing.complete
    assert len(service.asked) == len(plain.asked) + (count > 1), "the last row once more"


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("clamp", [100, 30])
@pytest.mark.parametrize("edits", [0.0, 0.1])
def test_pages_refused_behind_the_last_one_of_a_listing_in_no_order(seed: int, clamp: int, edits: float) -> None:
    service = Service(250, "random", seed, clamp=clamp, edits=edits)
    listing = asyncio.run(lister(service, fetch=refusing(service, past_the_end)).all())
    check(service, listing)
    assert listing.complete or edits


@pytest.mark.parametrize("status", [401, 403, 408, 425, 429])
def test_what_is_about_the_token_or_the_moment_is_no_end(status: int) -> None:
    kind = AuthError if status in (401, 403) else TransientError
    service = Service(250)

    async def fetch(page: int, per_page: int) -> Sequence[Row]:
        rows = await service.fetch(page, per_page)
        if not rows:
            raise kind("no", status=status, page=page)
        return rows

    with pytest.raises(kind):
        asyncio.run(lister(service, fetch=fetch).all())


def test_a_refused_first_page_is_an_error() -> None:
    with pytest.raises(ContractError):
        asyncio.run(lister(Service(0), fetch=refusing(Service(0), lambda page, size, found: True)).all())


@pytest.mark.parametrize("order", ["created_asc", "random"])
@pytest.mark.parametrize(
    "refuses",
    [
        lambda page, size, found: page == 3,
        lambda page, size, found: page > 4,
        lambda page, size, found: page * size > 400,
        lambda page, size, found: (page - 1) * size >= 400,
        lambda page, size, found: page > 1 and size != 100,
        lambda page, size, found: page % 2 == 0,
        lambda page, size, found: page > 1,
    ],
    ids=["one", "from page 5", "beyond 400", "from 400 on", "other sizes", "every other", "all but the first"],
)
def test_a_refused_page_that_rows_are_on_is_no_end(order: str, refuses: Callable[[int, int, int], bool]) -> None:
    """Such a service shows some rows to nobody, or only on pages of some sizes."""
    service = Service(450, order)
    listing = asyncio.run(lister(service, fetch=refusing(service, refuses)).all())
    check(service, listing)
    if not listing.complete:
        assert listing.reason == "pages that may have rows were refused; the last error: 422"


@pytest.mark.parametrize("order", ["created_asc", "random"])
@pytest.mark.parametrize("clamp", [100, 50])
def test_a_service_that_has_only_a_first_page_is_not_taken_for_a_short_list(order: str, clamp: int) -> None:
    service = Service(60, order, clamp=clamp)
    listing = asyncio.run(lister(service, fetch=refusing(service, lambda page, size, found: page > 1)).all())
    check(service, listing)
    assert not listing.complete


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("count", [2, 3])
def test_few_rows_in_no_order_before_pages_that_are_refused(count: int, seed: int) -> None:
    service = Service(count, "random", seed)
    listing = asyncio.run(lister(service, fetch=refusing(service, past_the_end)).all())
    assert (slugs(listing), listing.complete) == (set(service.rows), True)


@pytest.mark.parametrize("count", [0, 1, 2, 60, 99, 100, 101, 150, 200, 330])
def test_pages_refused_behind_the_last_one_of_a_service_that_minds_no_sizes(count: int) -> None:
    service = Service(count, mood=lambda rows, page, size, dice: moody(rows, page, 100))
    listing = asyncio.run(lister(service, fetch=refusing(service, past_the_end)).all())
    check(service, listing)
    assert listing.complete


@pytest.mark.parametrize("seed", range(40))
def test_pages_refused_anywhere_never_hide_a_row_unnoticed(seed: int) -> None:
    dice = random.Random(seed)
    count, most = dice.choice((90, 250, 640, 1_000)), dice.choice((80, 200, 333, 600))
    kinds: tuple[Callable[[int, int, int], bool], ...] = (
        lambda page, size, found: page * size > most,
        lambda page, size, found: (page - 1) * size >= most,
        lambda page, size, found: page > most // 50,
        lambda page, size, found: dice.random() < 0.1,
    )
    refuses = dice.choice(kinds)
    service = Service(count, dice.choice(("created_asc", "random")), seed, clamp=dice.choice((100, 100, 25)))
    fetch = refusing(service, lambda page, size, found: page > 1 and (not found or refuses(page, size, found)))
    check(service, asyncio.run(lister(service, fetch=fetch).all()))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("share", [0.03, 0.2])
@pytest.mark.parametrize("tail", [0, 100])
def test_rows_that_are_left_out_of_pages_are_not_taken_for_short_pages(share: float, tail: int, seed: int) -> None:
    """The service divides all rows into pages, and then leaves out those that this user may not see."""
    dice = random.Random(seed)
    visible = {n for n in range(400) if n % 100 < 8 or dice.random() < share}
    visible = {n for n in visible if not 300 <= n < 360} | set(range(400, 400 + tail))
    service = Service(400 + tail)
    rows = service.listed()
    service.always = {rows[n].slug for n in visible}

    async def fetch(page: int, per_page: int) -> Sequence[Row]:
        there = range((page - 1) * per_page, min(page * per_page, len(rows))) if page > 0 else ()
        return [rows[n] for n in there if n in visible]

    check(service, asyncio.run(lister(service, fetch=fetch).all()))


@pytest.mark.parametrize("behind", ["nothing", "the first page", "the last page"])
@pytest.mark.parametrize("orders", ["reversed", "shuffled"])
@pytest.mark.parametrize(("count", "clamp", "replicas"), [(480, 10, 2), (454, 10, 3), (485, 19, 2), (40, 10, 2)])
def test_replicas_in_other_orders_that_answer_in_turn_hide_no_row(
    count: int, clamp: int, replicas: int, orders: str, behind: str
) -> None:
    """One request at a time and an even number of them in a sweep: each page would come from one replica alone."""
    service = Service(count, clamp=clamp)
    rows, dice = service.listed(), random.Random(count)
    shuffled = [dice.sample(rows, count) for _ in range(replicas)]
    turns = itertools.cycle([rows, rows[::-1]] if orders == "reversed" else shuffled)

    async def fetch(page: int, per_page: int) -> Sequence[Row]:
        size, shown = min(per_page, clamp), next(turns)
        last = math.ceil(count / size)
        again = {"nothing": page, "the first page": 1, "the last page": last}[behind]
        return moody(shown, page if page <= last else again, size) if page > 0 else []

    listing = asyncio.run(lister(service, fetch=fetch).all())
    check(service, listing)
    assert listing.complete


@pytest.mark.parametrize("size", [10, 20])
@pytest.mark.parametrize("clamped", [True, False])
def test_replicas_that_answer_in_turn_hide_no_row_where_others_are_left_out_of_the_pages(
    size: int, clamped: bool
) -> None:
    for seed in range(12):
        service, dice = Service(400), random.Random(seed)
        rows = service.listed()
        turns = itertools.cycle([rows, rows[::-1]])
        visible = {row.slug for row in rows if dice.random() > 0.1}

        async def fetch(page: int, per_page: int, turns: Any = turns, visible: Any = visible) -> Sequence[Row]:
            shown = moody(next(turns), max(page, 1), min(per_page, size) if clamped else size)
            return [row for row in shown if row.slug in visible]

        listing = asyncio.run(lister(service, fetch=fetch).all())
        assert not listing.complete or slugs(listing) == visible, seed


@pytest.mark.parametrize("clamp", [10, 15, 25])
def test_a_page_that_is_always_empty_hides_no_row_where_the_clamp_is_not_known(clamp: int) -> None:
    """Rows are left out after the others were divided into pages, so that pages of one length have not all as many."""
    for seed in range(20):
        service, dice = Service(240), random.Random(seed)
        rows = service.listed()
        visible = {row.slug for row in rows if dice.random() > 0.03}
        empty = dice.randint(2, 240 // clamp - 1)

        async def fetch(
            page: int, per_page: int, visible: Any = visible, rows: Any = rows, empty: int = empty
        ) -> Sequence[Row]:
            gap = page < 1 or (page == empty and per_page >= clamp)
            shown = [] if gap else moody(rows, page, min(per_page, clamp))
            return [row for row in shown if row.slug in visible]

        listing = asyncio.run(lister(service, fetch=fetch).all())
        assert not listing.complete or slugs(listing) == visible, seed


@pytest.mark.parametrize(("count", "length"), [(100, 25), (200, 50), (150, 50)])
def test_replicas_that_answer_at_random_hide_no_row_where_pages_have_one_length(count: int, length: int) -> None:
    for seed in range(100):
        service, dice = Service(count), random.Random(seed)
        replicas = [service.listed(), service.listed()[::-1]]

        async def fetch(page: int, per_page: int, dice: Any = dice, replicas: Any = replicas) -> Sequence[Row]:
            page = min(page, count // length)  # the last page is repeated behind the end
            return moody(dice.choice(replicas), page, length) if page > 0 else []

        listing = asyncio.run(lister(service, fetch=fetch).all())
        assert not listing.complete or slugs(listing) == set(service.rows), seed


@pytest.mark.parametrize("kind", [TooLargeError, TransientError])
@pytest.mark.parametrize("largest", [99, 50, 20, 19])
def test_pages_that_are_too_large_are_asked_for_as_shorter_ones(largest: int, kind: type[ConnectorError]) -> None:
    service = Service(250)

    async def fetch(page: int, per_page: int) -> Sequence[Row]:
        if per_page > largest:
            raise kind("504", status=504, page=page, per_page=per_page)
        return await service.fetch(page, per_page)

    if largest < 20:
        with pytest.raises(kind):
            asyncio.run(lister(service, fetch=fetch).all())
        return
    listing = asyncio.run(lister(service, fetch=fetch).all())
    assert (slugs(listing), listing.complete) == (set(service.rows), True)


@pytest.mark.parametrize("count", [20, 31, 60, 99, 100, 110, 250])
@pytest.mark.parametrize("largest", [27, 45, 60, 90])
@pytest.mark.parametrize("refuses", [False, True])
def test_a_page_0_that_is_answered_only_if_it_is_shorter_is_read(count: int, largest: int, refuses: bool) -> None:
    service = Service(count)

    async def fetch(page: int, per_page: int) -> Sequence[Row]:
        if page * per_page >= count and refuses:
            raise NotFoundError("no such page", status=404, page=page, per_page=per_page)
        if per_page > largest:
            raise TransientError("504", status=504, page=page, per_page=per_page)
        return await service.fetch(page + 1, per_page)

    listing = asyncio.run(lister(service, fetch=fetch).all())
    assert (slugs(listing), listing.complete, listing.convention.first) == (set(service.rows), True, 0)


@pytest.mark.parametrize("count", [40, 53, 64, 101, 130])
@pytest.mark.parametrize("largest", [25, 40, 49])
def test_a_page_0_that_is_too_long_where_pages_are_clamped_ends_no_run(count: int, largest: int) -> None:
    service = Service(count)

    async def fetch(page: int, per_page: int) -> Sequence[Row]:
        rows = await service.fetch(page + 1, min(per_page, 50))
        if len(rows) > largest:
            raise TransientError("504", status=504, page=page, per_page=per_page)
        return rows

    listing = asyncio.run(lister(service, fetch=fetch).all())
    assert not listing.complete or slugs(listing) == set(service.rows)


def test_a_service_that_is_down_is_asked_for_one_shorter_page() -> None:
    asked: list[int] = []

    async def fetch(page: int, per_page: int) -> Sequence[Row]:
        asked.append(per_page)
        raise TransientError("503", status=503, page=page, per_page=per_page)

    with pytest.raises(TransientError):
        asyncio.run(lister(Service(0), fetch=fetch).all())
    assert [size for size in asked if size in (50, 25, 20)] == [20]


def test_a_page_of_another_size_that_is_too_long_is_asked_for_in_shorter_pages() -> None:
    """The second page is requested with 98 rows, and is too long where page 2 of 100 is not."""
    service, failed = Service(260), set[tuple[int, int]]()
    weights = {slug: 50_000 if n == 98 else 600 if 98 < n < 196 else 10 for n, slug in enumerate(service.rows)}

    async def fetch(page: int, per_page: int) -> Sequence[Row]:
        found = await service.fetch(page, per_page)
        if sum(weights[row.slug] for row in found) > 105_000:
            failed.add((page, per_page))
            raise TransientError("500", status=500, page=page, per_page=per_page)
        return found

    listing = asyncio.run(lister(service, fetch=fetch).all())
    assert (slugs(listing), listing.complete) == (set(service.rows), True)
    assert failed == {(2, 98)}


def test_pages_near_a_limit_of_time_are_mostly_read() -> None:
    """Each request of a long page has six attempts, of which one is answered in four of five requests."""
    failed = 0
    for seed in range(50):
        service, dice = Service(900), random.Random(seed)

        async def fetch(page: int, per_page: int, service: Service = service, dice: Any = dice) -> Sequence[Row]:
            if per_page > 60 and dice.random() < 0.75**6:
                raise TransientError("504", status=504, page=page, per_page=per_page)
            return await service.fetch(page, per_page)

        try:
            listing = asyncio.run(lister(service, fetch=fetch).all())
        except TransientError:
            failed += 1
        else:
            assert (slugs(listing), listing.complete) == (set(service.rows), True)
    assert failed <= 10
