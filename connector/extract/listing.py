"""Read a listing page by page and determine whether it is complete (docs/guarantees.md, "Page numbers").

Page numbers are not positions: whatever is inserted, deleted or moved between two requests shifts the pages, and
a row can move from a page not yet read to one already read. There are two proofs that no row was missed:

**Overlap.** Ranges of positions are requested that share at least two positions with their neighbours: page 1 of
100 covers 1 to 100, page 2 of 98 covers 99 to 196, page 3 of 97 covers 195 to 291 … Invariant: if every shared
position shows the same row in both replies and no row has two positions, then as many rows were seen as there are
positions. A row that moves across the boundary of two pages between their requests shifts the shared positions, which
is a contradiction. Two changes can cancel each other out: if the latest edit comes first, and a row moves to the front
while one from there is deleted, nothing behind it shifts. So the first page is read again last. A sweep without a
contradiction, whose end is followed by empty pages near and far, is a proof. It takes about a sixth more requests than
pages without overlap; a second sweep would take twice as many.

**Agreement.** If positions contradict each other, the rows of whole sweeps, each with another page size, are united
until further sweeps add nothing. How many of these are needed follows from the share of the united rows that each sweep
lacks: two for a stable order, a dozen for an order that differs at every request (odds of one in a million). These odds
need sweeps that are independent of each other, so the pages of a sweep are requested in random order: if replicas that
have other orders answer in turn, each page would come from the same one in every sweep. A page number that is empty
though rows follow hides the same positions in every sweep of one size. The sizes then differ so much that rows hidden
by such a page in one sweep are on another page in the next. A sweep over pages of one length, up to empty pages or to
one that all pages behind it repeat, that has more positions than the union has rows does not count: as many rows as it
repeats may be on no page. If the service ignores `per_page`, and pages of a sweep show the same rows differently, more
sweeps have to agree, because all have the same pages. If no sweep ever shows a page that is not full, and they end at
different rows, the service may show no more than a number of pages.

A page behind the first that the service refuses with a 4xx counts as empty in both proofs, because the service may
report the end in this way. It may also refuse a page for another reason, for instance because it shows rows only up to
some limit, or refuse all pages but the first. Then the first proof also needs the last row on a page of its own. The
second one needs sweeps of different sizes that find the end at the same row, and a row on a page behind the first.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from itertools import islice
from random import Random
from typing import Generic, TypeVar

from connector.errors import ConnectorError, TooLargeError, means_no_such_page
from connector.extract.convention import FROM_ONE, PageConvention
from connector.extract.overlap import (
    END_PROOF,
    FAR,
    FRONT,
    Positions,
    Segment,
    covering,
    far_page,
    overlapping_segments,
    second_page_at,
    through,
)

T = TypeVar("T")
R = TypeVar("R")
Fetch = Callable[[int, int], Awaitable[Sequence[T]]]

MAX_PER_PAGE = 100  # the most that the service allows
# By how much pages of 100 are shortened in one sweep after another: so few of their boundaries coincide.
SHORTENED_BY = (0, 1, 3, 11, 17, 21, 27, 29, 33, 39)
MAX_END_CHECKS = 2  # at the end of an orderly listing, before it counts as changing
MOVING_END_PROOF = 4  # empty pages in a row that prove the end if pages contradicted each other
FAR_AT_FIRST = (1, 2, 3, 4, 8, 16)  # as `FAR`, while no row is known that could be missed
DIVISORS = (1, 2, 5)  # of the size, if pages are empty that should not be; see above
MAX_PAGES_WITHOUT_NEW_ROWS = 10  # in a row that bring nothing new to the sweep: the pages repeat without end
ORDERLY_TRIES = 3
FIRST_PAGE_ROUNDS = 4  # that show whether the order of a listing whose page 0 cannot be read differs between requests
MAX_SWEEPS = 40
# Sweeps that add nothing, if pages were inconsistent and all sweeps have the same: a row may be missed twice by chance.
UNEVEN_QUIET = 6
FALSE_COMPLETE_ODDS = 1e-6
SMALLEST_OVERLAP_SIZE = 20  # below that, neighbouring sizes share too few positions to make progress
WINDOW = 16
MAX_PAGES = 20_000  # a listing longer than two million imports is a fault


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """The listed rows, the latest version of each, in the order first seen; `reason` says why it is not complete.

    `convention` is how the service numbers its pages, as far as the listing showed.
    """

    rows: tuple[T, ...]
    complete: bool
    sweeps: int
    reason: str | None = None
    convention: PageConvention = FROM_ONE


async def run_concurrently(requests: Iterable[Coroutine[object, object, R]], dice: Random | None = None) -> list[R]:
    """Run the requests concurrently, with `dice` begun in random order, and return the results in order.

    The first failure cancels the other requests and is raised unchanged.
    """
    listed = list(requests)
    begun = listed if dice is None else dice.sample(listed, len(listed))
    running = {request: asyncio.ensure_future(request) for request in begun}
    tasks = [running[request] for request in listed]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def run_in_order(requests: Iterable[Coroutine[object, object, R]], ahead: int) -> AsyncGenerator[R, None]:
    """Yield results in order, with up to `ahead` more requests under way; closing it early cancels those."""
    tasks: deque[asyncio.Future[R]] = deque()
    try:
        for request in requests:
            tasks.append(asyncio.ensure_future(request))
            if len(tasks) > ahead:
                yield await tasks.popleft()
        while tasks:
            yield await tasks.popleft()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Ending(Enum):
    """How a plain sweep ended: with empty pages, with pages that bring nothing new, or not at all."""

    empty = "empty"
    without_new_rows = "without new rows"
    none = "none"


@dataclass(frozen=True, slots=True)
class _Swept:
    """A plain sweep: rows shown, the longest page, whether any page differs from the first one, and its end.

    `positions` is the number of rows on its pages, without pages behind the end that repeat the last one; None if a row
    may have no position of its own: a page other than the last was shorter, or had a row twice.
    """

    shown: int
    longest: int
    pages_differ: bool
    ending: _Ending
    received: int
    positions: int | None
    before_refusal: int | None  # rows on the pages before the first that was refused
    full: bool  # all pages up to the last one with new rows were as long as requested, and no row came twice
    overlaps: bool  # a page showed rows of an earlier one, and others or in another order
    uneven: bool  # most pages with rows were shorter than requested, though others with new rows followed


class Lister(Generic[T]):
    """A listing by `fetch(page, per_page)`; `key` identifies a row, `newer(a, b)` is true if b replaces a.

    `creation_time(row)` is when the service says it was created: a row younger than all rows of the first sweep did not
    exist when the listing began, so it does not keep the sweeps from agreeing. `expected` rows are requested at once;
    `stop()` is polled between waves of requests.
    """

    def __init__(
        self,
        fetch: Fetch[T],
        key: Callable[[T], str],
        newer: Callable[[T, T], bool],
        creation_time: Callable[[T], datetime],
        *,
        expected: int = 0,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._fetch = fetch
        self._key = key
        self._newer = newer
        self._creation_time = creation_time
        self._expected = expected
        self._stop = stop
        self._seen: dict[str, T] = {}
        self._size = self._unclamped = MAX_PER_PAGE  # what is requested, and would be if the service did not clamp it
        self._end_proof = MOVING_END_PROOF * MAX_PER_PAGE  # positions without rows that prove the end
        self._sweeps = 0
        self._end = 0  # the last position of the last orderly sweep
        self._sized = True  # false once the service has ignored per_page
        self.convention = FROM_ONE  # as far as it is known
        self._has_gap = False  # true once a page was empty although rows follow
        self._refused: dict[Segment, ConnectorError] = {}  # pages of the last sweep
        self._unproven_reason: str | None = None  # why even rows that are proven to be all that are shown may not be

    async def all(self) -> Listing[T]:
        """List by one orderly sweep if the listing does not change, else by as many sweeps as needed, up to a limit.

        If a page exceeds the limit on a reply, everything is requested again in shorter pages.
        """
        while True:
            try:
                return await self._all()
            except TooLargeError:
                if self._size <= SMALLEST_OVERLAP_SIZE:
                    raise
                self._size = self._unclamped = max(self._size // 2, SMALLEST_OVERLAP_SIZE)
                self._end_proof = MOVING_END_PROOF * self._size

    async def _all(self) -> Listing[T]:
        try:
            proven = await self._orderly()
        except ConnectorError as error:
            # a service that counts from 0 may refuse page 1 as the page behind the last
            if not means_no_such_page(error, 2) or not await self.counts_from_zero():
                raise
            proven = await self._orderly()
        if not (proven and self._end > 1) and not self._stop() and await self.counts_from_zero():
            proven = await self._orderly()
        return self._listing(None if proven else await self._agree())

    async def again(self) -> Listing[T]:
        """List again after the listing proved incomplete by other means: sweep until sweeps agree, keeping all rows."""
        await self.counts_from_zero()
        return self._listing(await self._agree())

    def _listing(self, reason: str | None) -> Listing[T]:
        reason = reason or self._unproven_reason
        return Listing(tuple(self._seen.values()), reason is None, self._sweeps, reason, self.convention)

    def _note(self, rows: Sequence[T]) -> list[str]:
        keys = [self._key(row) for row in rows]
        for key, row in zip(keys, rows, strict=True):
            before = self._seen.get(key)
            if before is None or self._newer(before, row):
                self._seen[key] = row
        return keys

    async def _read(self, segments: Sequence[Segment]) -> list[list[str]]:
        pages = await run_concurrently(self._one(segment) for segment in segments)
        return [self._note(page) for page in pages]

    async def _one(self, segment: Segment) -> Sequence[T]:
        try:
            return await self._fetch(self.convention.number(segment.page), segment.per_page)
        except ConnectorError as error:
            if not means_no_such_page(error, segment.page):
                raise
            self._refused[segment] = error
            return ()

    async def counts_from_zero(self) -> bool:
        """Return whether page 0 is the first page, and not unknown or an alias of page 1 or of the last page.

        It is the first page if page 1 is shorter, or if its first row is on no other page of any size and small pages 1
        continue it. Page 0 is requested if pages contradicted each other, as pages 1 of different sizes do in this
        case, or if there are too few rows for a contradiction.
        """
        if self.convention.first == 0:
            return False
        known = set(self._seen)
        sizes = (1, 2, 3)
        try:
            front = await self._numbered(0)
        except TooLargeError:
            raise
        except ConnectorError as error:
            refused = means_no_such_page(error, 2)  # it would not be, if it were the first
            if not refused and not await self._begins_at_page_1():
                self._unproven_reason = _unread_page_0(error)
            return False
        if not front:
            return False
        try:
            pages = await run_concurrently(self._numbered(number) for number in (1, 1))
            pages.append(await self._numbered(0))  # last, otherwise the listing may have shrunk in between
            shorter = max(map(len, pages[:2])) < min(len(front), len(pages[2]))
            if not shorter and front[0] in known:
                return False
            replies = await run_concurrently(self._numbered(1, size) for size in sizes if not shorter)
        except ConnectorError as error:
            if not known:
                self._unproven_reason = _unread_page_0(error)
            return False
        pairs = zip(sizes, replies, strict=not shorter)
        strays = [reply for size, reply in pairs if len(front) >= 2 * size and reply != front[size : 2 * size]]
        sized = any(reply != replies[-1] for reply in replies)
        if any(front[0] in reply for reply in replies) or (sized and strays):
            return False
        self.convention = PageConvention(first=0)
        return True

    async def _begins_at_page_1(self) -> bool:
        """Return whether no row can be on page 0 alone, which cannot be read, as far as pages 1 show.

        They begin with the same rows if page 1 is the first, and not if the pages are counted from 0. If the order
        differs between requests, no row is always on the same page. If the service ignores `per_page`, pages 1 do not
        tell, so that page 1 is assumed to be the first, as the interface says.
        """
        sizes = (1, 2, 3)
        try:
            rounds = [[await self._numbered(1, size) for size in sizes] for _ in range(FIRST_PAGE_ROUNDS)]
        except ConnectorError:
            return False
        (one, two, three), *others = rounds
        moves = any(pages != rounds[0] for pages in others)
        return bool(one) and (moves or one == three or (one == two[:1] and two == three[:2]))

    async def _numbered(self, page: int, per_page: int | None = None) -> list[str]:
        """Return the rows of a page by its number; none if it may be the refused page behind the first, page 0."""
        try:
            return self._note(await self._fetch(page, per_page or self._unclamped))
        except ConnectorError as error:
            if not means_no_such_page(error, page + 1):
                raise
            return []

    async def _orderly(self) -> bool:
        for _ in range(ORDERLY_TRIES):
            if self._stop() or not self._sized or self._size < SMALLEST_OVERLAP_SIZE:
                break
            if await self._orderly_sweep():
                return True
        return False

    async def _orderly_sweep(self) -> bool:
        self._sweeps += 1
        positions = Positions()
        upcoming = islice(overlapping_segments(self._size), MAX_PAGES)
        expected = max(self._expected, len(self._seen))
        wave = through(upcoming, expected + 1)
        wave += [second_page_at(expected, self._size, wave), *self._end_checks(expected, (FAR,))]
        window, checks = 2, 0
        while wave and not self._stop():
            for segment, keys in zip(wave, await self._read(wave), strict=True):
                positions.claim(segment, keys)
            if positions.proven():
                if await self._first_page_unchanged(positions):
                    self._end = positions.end
                    return True
                break
            if positions.contradicted():
                break
            if positions.end_checks:
                checks += 1
                if checks > MAX_END_CHECKS:
                    break
                missing = max(0, END_PROOF - positions.beyond)
                check = second_page_at(positions.end, self._size, positions.segments)
                wave = [check, *islice(upcoming, missing)]
            else:
                # a page far behind may have shown that there are more
                wave = [*covering(upcoming, positions.end), *islice(upcoming, window)]
                window = min(window * 2, WINDOW)
        self._learn_size(positions)
        self._has_gap = self._has_gap or positions.has_gap
        return False

    async def _first_page_unchanged(self, positions: Positions) -> bool:
        """Return whether the first page is unchanged after all others were read, and no row follows the end.

        A single page is its own proof.
        """
        front = Segment(1, self._size)
        far = (FAR,) if self._expected else FAR_AT_FIRST
        checks = [check for check in self._end_checks(positions.end, far) if check not in positions.segments]
        checks += [front] * (positions.end >= front.last)
        checks += [Segment(positions.end, 1)] * (bool(self._refused) and positions.end > 1)
        for segment, keys in zip(checks, await self._read(checks), strict=True):
            positions.claim(segment, keys)
        return positions.proven()

    def _end_checks(self, end: int, far: Iterable[int]) -> list[Segment]:
        """Return what else must agree before `end` is accepted: pages far behind it, one right behind it, and page 1.

        No clamp can shorten the pages of one row, right behind the end and at the front. Their numbers are far from
        those of the large pages. They show whether the service respects page sizes and whether its first page is
        number 1.
        """
        return [*(far_page(end, self._size, pages) for pages in far), Segment(end + 1, 1), FRONT]

    def _learn_size(self, positions: Positions) -> None:
        """Learn the size to which the service clamps `per_page`: all pages but the last are as short as the first.

        Pages are short in another way if the service leaves out rows after it has divided them into pages.
        """
        lengths = positions.lengths
        longest = max(lengths, default=0)
        pages = list(zip(positions.segments, lengths, strict=True))
        followed = any(n and s.first > longest for s, n in pages)
        short = [(s.page, n) for s, n in pages if n and s.per_page > longest]
        clamped = all(n == longest for page, n in short if page < max(short)[0])
        if positions.oversized:
            self._sized = False
        elif clamped and followed and 0 < lengths[0] == longest < self._size:
            self._size = longest
            if len({page for page, n in short if n == longest}) > 1:  # one page may be as short by chance
                self._end_proof = MOVING_END_PROOF * longest

    async def _agree(self) -> str | None:
        """Sweep until the union stops growing; return None then, else why it is not known to be complete."""
        quiet, misses, paged, halve, refused, repeated = 0, 0.0, False, 0, None, 0
        youngest: datetime | None = None
        before: int | None = None
        clamp, overlap = 0, False  # the length of pages that may be clamped
        previous: _Swept | None = None
        ends: set[int | None] = set()
        for sweep in range(MAX_SWEEPS):
            known = set(self._seen)
            divisor = DIVISORS[sweep % len(DIVISORS)] if self._has_gap and self._sized else 1
            shortened_by = SHORTENED_BY[sweep % len(SHORTENED_BY)]
            at_most = self._size
            if self._has_gap and clamp:  # longer pages would all be as long, so that the gap hid the same rows
                at_most = min(self._size, clamp)
                shortened_by = shortened_by * at_most // MAX_PER_PAGE
            size = halve or max(2, (at_most - shortened_by) // divisor)
            swept = await self._plain_sweep(size)
            clamp, overlap = max(clamp, swept.longest if swept.uneven else 0), overlap or swept.overlaps
            if self._stop():
                return "the listing was stopped"
            if swept.uneven and size <= self._size < self._unclamped:
                self._size = self._unclamped  # no clamp made the pages short
                self._end_proof = MOVING_END_PROOF * self._size
                continue
            if swept.ending is _Ending.none:
                return f"the listing continues beyond page {MAX_PAGES}"
            if self._has_gap and not self._sized:
                return "a page is empty although rows follow, and no other page length shows the rows it leaves out"
            added = [row for key, row in self._seen.items() if key not in known]
            quiet = 0 if any(youngest is None or self._creation_time(row) <= youngest for row in added) else quiet + 1
            refused = self._refused_within(swept, before, len(added))
            ends.add(swept.shown if swept.full else None)
            repeated, previous = self._repeated(previous, swept), swept
            quiet = 0 if refused or repeated else quiet
            before = swept.before_refusal
            youngest = youngest or max(map(self._creation_time, self._seen.values()), default=None)
            lone = swept.longest <= 1 and not halve
            ended = swept.ending is _Ending.empty and (swept.before_refusal is None or not self._sized)
            paged = paged or swept.pages_differ or ended or lone
            if not paged and halve:
                if refused:
                    break
                return "the service answers every page number with the same rows"
            halve = 0 if paged else max(1, swept.longest // 2)
            missed = 1 - swept.shown / len(self._seen) if self._seen else 0.0
            misses = max(missed, 0.7 * misses)
            needed = max(quiet_sweeps_needed(misses), len(DIVISORS) if self._has_gap else 0)
            if paged and quiet >= max(needed, UNEVEN_QUIET if overlap and not self._sized else 0):
                if None not in ends and len(ends) > 1:
                    return "its pages end at a page number, whatever their length, so rows may follow"
                return None
        if refused:
            return f"pages that may have rows were refused; the last error: {refused}"
        if repeated:
            return f"its pages repeat {repeated} rows, so as many others may be on no page"
        return f"the listing still changed after {self._sweeps} sweeps"

    def _repeated(self, *sweeps: _Swept | None) -> int:
        """Return how many positions of both sweeps have a row that is known from another one; 0 if they are unknown.

        Which of several rows with the same sort key are on a page may depend on the page, and be the same at every
        request. Sweeps of pages that are not sized as requested then agree, though rows are missing. What arrived
        during the first sweep, and shifted its pages, is known after the second one.
        """
        positions = [s.positions for s in sweeps if s is not None and s.positions is not None]
        return max(min(positions) - len(self._seen), 0) if len(positions) == len(sweeps) else 0

    def _refused_within(self, swept: _Swept, before: int | None, added: int) -> ConnectorError | None:
        """Return the error of a refused page that is not known to be behind the last row; None if there is none.

        A refused page is known to be behind the last row if nothing followed, and the previous sweep, which had other
        sizes, found the end at the same row, apart from the rows `added` since.
        """
        if swept.before_refusal is None:
            return None
        same_end = before is not None and swept.before_refusal == before + added
        behind = same_end and swept.before_refusal == swept.received
        return None if behind else next(iter(self._refused.values()))

    async def _plain_sweep(self, size: int) -> _Swept:
        """Read pages 1, 2, 3 … until several in a row are empty or bring nothing that this sweep had not seen."""
        self._sweeps += 1
        front: set[str] = set()
        shown: set[str] = set()
        empty = without_new_rows = longest = reach = received = 0
        pages_differ, page, lengths, distinct = False, 1, list[int](), True
        last: list[str] = []
        end = reached = 0  # the page that all later ones repeat, and the rows up to it
        newest = 0  # the last page with a row that the sweep had not shown before
        before_refusal: int | None = None
        overlaps, pages = False, set[tuple[str, ...]]()
        order = Random(self._sweeps)
        self._refused.clear()

        def swept_to(ending: _Ending) -> _Swept:
            some_refused = before_refusal is not None and reach > 1  # some numbers are pages, others are not
            differ, positions = pages_differ or some_refused, None
            until, rows = (reach, received) if ending is _Ending.empty else (end, reached)
            ends = ending is _Ending.empty or len(lengths) - end >= MOVING_END_PROOF
            if ends and distinct and {*lengths[: until - 1]} <= {longest}:
                positions = rows
            full = size > 1 and lengths[:newest] == [size] * newest and len(shown) == size * newest
            filled = [length == size for length in lengths[: newest - 1] if length]
            uneven = sum(filled) < len(filled) / 2
            return _Swept(
                len(shown), longest, differ, ending, received, positions, before_refusal, full, overlaps, uneven
            )

        enough = max(MOVING_END_PROOF, math.ceil(self._end_proof / size))
        while page < MAX_PAGES and not self._stop():
            # the service may show fewer rows a page; a wave of few pages has no random order
            ahead = max(1, min(WINDOW, len(self._seen) // (longest or size) + enough + 1 - page))
            wave = [Segment(page + n, size) for n in range(ahead)]
            shuffled = order.sample(wave, ahead)
            replies = dict(zip(shuffled, await self._read(shuffled), strict=True))
            for segment in wave:
                keys = replies[segment]
                if before_refusal is None and segment in self._refused:
                    before_refusal = received
                received += len(keys)
                lengths.append(len(keys))
                if keys != last:
                    end, reached, last = segment.page, received, keys
                distinct = distinct and len(set(keys)) == len(keys)
                overlaps = overlaps or not (shown.isdisjoint(keys) or tuple(keys) in pages)
                pages.add(tuple(keys))
                front = front or set(keys)
                pages_differ = pages_differ or 2 * len(front.intersection(keys)) < len(keys)
                if keys:
                    self._has_gap = self._has_gap or empty > 0
                    reach = max(reach, segment.page)
                empty = 0 if keys else empty + 1
                self._sized = self._sized and len(keys) <= size
                newest = newest if shown.issuperset(keys) else segment.page
                without_new_rows = without_new_rows + bool(keys) if newest < segment.page else 0
                longest = max(longest, len(keys))
                shown.update(keys)
                if empty >= enough and segment.page > reach:
                    far = Segment(page + ahead - 1 + FAR, size)
                    if not any(await self._read([far])):
                        return swept_to(_Ending.empty)
                    reach = far.page
                if without_new_rows >= MAX_PAGES_WITHOUT_NEW_ROWS:
                    return swept_to(_Ending.without_new_rows)
            page += ahead
        return swept_to(_Ending.none)


def _unread_page_0(error: ConnectorError) -> str:
    return f"page 0 could not be read, and may have rows that no other page has: {error}"


def quiet_sweeps_needed(miss_rate: float) -> int:
    """Return how many sweeps must add nothing before the odds of having missed a row are one in a million.

    `miss_rate` is the share of the rows that each sweep misses.
    """
    if miss_rate <= 0:
        return 2
    if miss_rate >= 1:
        return MAX_SWEEPS + 1
    return max(2, math.ceil(math.log(FALSE_COMPLETE_ODDS) / math.log(miss_rate)))
