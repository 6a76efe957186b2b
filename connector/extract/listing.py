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

**Agreement.** If positions contradict each other, whole sweeps with different page sizes are made until they agree
(`connector.extract.agreement`). They have to be independent of each other, so the pages of a sweep are requested in
random order: if replicas that have other orders answer in turn, each page would come from the same one in every sweep.

A page behind the first that the service refuses with a 4xx counts as empty in both proofs, because the service may
report the end in this way. It may also refuse a page for another reason, for instance because it shows rows only up to
some limit, or refuse all pages but the first. Then the first proof also needs the last row on a page of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from random import Random
from typing import Generic, TypeVar

from connector.errors import ConnectorError, means_no_such_page
from connector.extract.agreement import Agreement, Ending, Sweep
from connector.extract.concurrency import run_concurrently
from connector.extract.convention import FROM_ONE, FROM_ZERO, PageConvention
from connector.extract.first_page import find_first_page
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
from connector.extract.page_sizes import MAX_PER_PAGE, PageSizes, shorter_size
from connector.extract.shortening import Shortening

T = TypeVar("T")
Fetch = Callable[[int, int], Awaitable[Sequence[T]]]

MAX_END_CHECKS = 2  # at the end of an orderly listing, before it counts as changing
FAR_AT_FIRST = (1, 2, 3, 4, 8, 16)  # as `FAR`, while no row is known that could be missed
ORDERLY_TRIES = 3
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
        self._sizes = PageSizes(MAX_PER_PAGE)
        self._shortening = Shortening(fetch, shorter_size)
        self._sweeps = 0
        self._end = 0  # the last position of the last orderly sweep
        self.convention = FROM_ONE  # as far as it is known
        self._refused: dict[Segment, ConnectorError] = {}  # pages of the last sweep
        self._unproven_reason: str | None = None  # why even rows that are proven to be all that are shown may not be

    async def all(self) -> Listing[T]:
        """List by one orderly sweep if the listing does not change, else by as many sweeps as needed, up to a limit.

        If a page exceeds the limit on a reply, or is answered only if it is shorter, everything is requested again in
        shorter pages.
        """
        return await self._in_shorter_pages(self._all)

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
        return await self._in_shorter_pages(self._again)

    async def _again(self) -> Listing[T]:
        await self.counts_from_zero()
        return self._listing(await self._agree())

    async def _in_shorter_pages(self, read: Callable[[], Awaitable[Listing[T]]]) -> Listing[T]:
        while True:
            try:
                return await read()
            except ConnectorError as error:
                size = await self._shortening.next_size(error, self.convention, self._sizes.unclamped)
                if size is None:
                    raise
                self._sizes.request(size)

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
        """Return whether this call showed that page 0 is the first page."""
        if self.convention.first == 0:
            return False

        async def fetch(page: int, per_page: int) -> list[str]:
            return self._note(await self._fetch(page, per_page))

        found = await find_first_page(fetch, self._shortening, self._sizes.unclamped, frozenset(self._seen))
        self._unproven_reason = found.doubt or self._unproven_reason
        if found.is_0:
            self.convention = FROM_ZERO
        return found.is_0

    async def _orderly(self) -> bool:
        for _ in range(ORDERLY_TRIES):
            if self._stop() or not self._sizes.overlap:
                break
            if await self._orderly_sweep():
                return True
        return False

    async def _orderly_sweep(self) -> bool:
        self._sweeps += 1
        positions = Positions()
        upcoming = islice(overlapping_segments(self._sizes.size), MAX_PAGES)
        expected = max(self._expected, len(self._seen))
        wave = through(upcoming, expected + 1)
        wave += [second_page_at(expected, self._sizes.size, wave), *self._end_checks(expected, (FAR,))]
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
                check = second_page_at(positions.end, self._sizes.size, positions.segments)
                wave = [check, *islice(upcoming, missing)]
            else:
                # a page far behind may have shown that there are more
                wave = [*covering(upcoming, positions.end), *islice(upcoming, window)]
                window = min(window * 2, WINDOW)
        self._sizes.learn(positions)
        return False

    async def _first_page_unchanged(self, positions: Positions) -> bool:
        """Return whether the first page is unchanged after all others were read, and no row follows the end.

        A single page is its own proof.
        """
        front = Segment(1, self._sizes.size)
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
        return [*(far_page(end, self._sizes.size, pages) for pages in far), Segment(end + 1, 1), FRONT]

    async def _agree(self) -> str | None:
        """Sweep until the sweeps agree; return None then, else why the rows are not known to be complete."""
        agreement = Agreement(self._sizes)
        while True:
            known = frozenset(self._seen)
            sweep = await self._plain_sweep(agreement.next_size())
            if self._stop():
                return "the listing was stopped"
            if sweep.ending is Ending.none:
                return f"the listing continues beyond page {MAX_PAGES}"
            created = {key: self._creation_time(row) for key, row in self._seen.items()}
            verdict = agreement.note(sweep, created, known)
            if verdict is not None:
                return verdict.reason

    async def _plain_sweep(self, size: int) -> Sweep:
        """Read pages 1, 2, 3 … until several in a row are empty or bring nothing that this sweep had not seen."""
        self._sweeps += 1
        self._refused.clear()
        sweep, page, order = Sweep(size, self._sizes), 1, Random(self._sweeps)
        while page < MAX_PAGES and not self._stop():
            ahead = max(1, min(WINDOW, sweep.pages_ahead(page, len(self._seen))))
            wave = [Segment(page + n, size) for n in range(ahead)]
            shuffled = order.sample(wave, ahead)
            replies = dict(zip(shuffled, await self._read(shuffled), strict=True))
            for segment in wave:
                sweep.note(segment.page, replies[segment], self._refused.get(segment))
                if sweep.may_end(segment.page):
                    far = Segment(page + ahead - 1 + FAR, size)
                    if not any(await self._read([far])):
                        sweep.ending = Ending.empty
                        return sweep
                    sweep.note_rows_far_behind(far.page)
                if sweep.is_repeating:
                    sweep.ending = Ending.without_new_rows
                    return sweep
            page += ahead
        return sweep
