"""Decide when whole sweeps over a listing, each with another page size, agree on its rows. Pure.

The rows of sweeps are united until further sweeps add nothing. How many of these are needed follows from the share of
the united rows that each sweep lacks: two for a stable order, a dozen for an order that differs at every request (odds
of one in a million). A sweep counts only if it can have shown what the others missed:

- A page number that is empty though rows follow hides the same positions in every sweep of one size. The sizes then
  differ so much that rows hidden by such a page in one sweep are on another page in the next.
- A sweep over pages of one length, up to empty pages or to one that all pages behind it repeat, that has more positions
  than the union has rows does not count: as many rows as it repeats may be on no page.
- If the service ignores `per_page`, and pages of a sweep show the same rows differently, more sweeps have to agree,
  because all have the same pages.
- If no sweep ever shows a page that is not full, and they end at different rows, the service may show no more than a
  number of pages.
- A page that the service refuses is behind the last row only if nothing follows it, and sweeps of different sizes find
  the end at the same row. At least one page has to differ from the first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from connector.errors import ConnectorError
from connector.extract.page_sizes import MOVING_END_PROOF, PageSizes

# By how much pages of 100 are shortened in one sweep after another: so few of their boundaries coincide.
SHORTENED_BY = (0, 1, 3, 11, 17, 21, 27, 29, 33, 39)
DIVISORS = (1, 2, 5)  # of the size, if pages are empty that should not be
MAX_PAGES_WITHOUT_NEW_ROWS = 10  # in a row that bring nothing new to the sweep: the pages repeat without end
MAX_SWEEPS = 40
# Sweeps that add nothing, if pages were inconsistent and all sweeps have the same: a row may be missed twice by chance.
UNEVEN_QUIET = 6
FALSE_COMPLETE_ODDS = 1e-6
_GAP = "a page is empty although rows follow, and no other page length shows the rows it leaves out"
_ONE_PAGE = "the service answers every page number with the same rows"
_LAST_NUMBER = "its pages end at a page number, whatever their length, so rows may follow"


class Ending(Enum):
    """How a sweep ended: with empty pages, with pages that bring nothing new, or not at all."""

    empty = "empty"
    without_new_rows = "without new rows"
    none = "none"


class Sweep:
    """What the pages of one sweep show, each noted in order; `size` is what was requested."""

    def __init__(self, size: int, sizes: PageSizes) -> None:
        self.size = size
        self.ending = Ending.none
        self.shown: set[str] = set()
        self.received = 0
        self.longest = 0  # of its pages
        self.last_page = 0  # with rows
        self.refusal: ConnectorError | None = None  # of the first page that was refused
        self.before_refusal = 0  # rows on the pages before that one
        self.overlaps = False  # a page showed rows of an earlier one, and others or in another order
        self._sizes = sizes
        self._enough = max(MOVING_END_PROOF, math.ceil(sizes.end_proof / size))
        self._front: set[str] = set()
        self._pages_differ = False
        self._lengths: list[int] = []
        self._distinct = True  # no page had a row twice
        self._pages: set[tuple[str, ...]] = set()
        self._last: tuple[str, ...] = ()
        self._repeated_page = self._until_repeated = 0  # the page that all later ones repeat, and the rows up to it
        self._last_new_page = 0  # with a row that was on no page before
        self._empty = self._without_new_rows = 0  # pages in a row

    def note(self, page: int, keys: Sequence[str], refusal: ConnectorError | None) -> None:
        """Note the rows of a page; none if it was refused."""
        keys = tuple(keys)
        if refusal is not None and self.refusal is None:
            self.refusal, self.before_refusal = refusal, self.received
        self.received += len(keys)
        self._lengths.append(len(keys))
        if keys != self._last:
            self._repeated_page, self._until_repeated, self._last = page, self.received, keys
        self._distinct = self._distinct and len(set(keys)) == len(keys)
        self.overlaps = self.overlaps or not (self.shown.isdisjoint(keys) or keys in self._pages)
        self._pages.add(keys)
        self._front = self._front or set(keys)
        self._pages_differ = self._pages_differ or 2 * len(self._front.intersection(keys)) < len(keys)
        if keys:
            self._sizes.has_gap = self._sizes.has_gap or self._empty > 0
            self.last_page = max(self.last_page, page)
        self._empty = 0 if keys else self._empty + 1
        self._sizes.respected = self._sizes.respected and len(keys) <= self.size
        self._last_new_page = self._last_new_page if self.shown.issuperset(keys) else page
        self._without_new_rows = self._without_new_rows + bool(keys) if self._last_new_page < page else 0
        self.longest = max(self.longest, len(keys))
        self.shown.update(keys)

    def pages_ahead(self, page: int, known: int) -> int:
        """Return how many pages from `page` on are to be requested if the listing has the `known` number of rows.

        The service may show fewer rows a page; few pages have no random order.
        """
        return known // (self.longest or self.size) + self._enough + 1 - page

    def note_rows_far_behind(self, page: int) -> None:
        self.last_page = page

    def may_end(self, page: int) -> bool:
        """Return whether so many pages up to this one are empty that no row follows, unless far behind."""
        return self._empty >= self._enough and page > self.last_page

    @property
    def is_repeating(self) -> bool:
        """Return whether so many pages in a row brought nothing new that they repeat without end."""
        return self._without_new_rows >= MAX_PAGES_WITHOUT_NEW_ROWS

    @property
    def pages_differ(self) -> bool:
        """Return whether any page differs from the first one, or some numbers are pages and others are refused."""
        return self._pages_differ or (self.refusal is not None and self.last_page > 1)

    @property
    def positions(self) -> int | None:
        """Return the number of rows on its pages, without pages behind the end that repeat the last one.

        Return None if a row may have no position of its own: a page other than the last was shorter, or had a row
        twice.
        """
        at_empty = self.ending is Ending.empty
        until = self.last_page if at_empty else self._repeated_page
        ends = at_empty or len(self._lengths) - self._repeated_page >= MOVING_END_PROOF
        if not (ends and self._distinct and {*self._lengths[: until - 1]} <= {self.longest}):
            return None
        return self.received if at_empty else self._until_repeated

    @property
    def full(self) -> bool:
        """Return whether all pages up to the last with new rows were as long as requested, and no row came twice."""
        pages = self._last_new_page
        return self.size > 1 and self._lengths[:pages] == [self.size] * pages and len(self.shown) == self.size * pages

    @property
    def uneven(self) -> bool:
        """Return whether most pages with rows were shorter than requested, though others with new rows followed."""
        filled = [length == self.size for length in self._lengths[: self._last_new_page - 1] if length]
        return sum(filled) < len(filled) / 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of the sweeps; `reason` says why the rows are not known to be complete, and is None if they are."""

    reason: str | None = None


class Agreement:
    """The sweeps over one listing so far."""

    def __init__(self, sizes: PageSizes) -> None:
        self._sizes = sizes
        self._sweeps = 0
        self._quiet = 0  # sweeps in a row that added nothing and may have shown everything
        self._misses = 0.0  # the largest share of the rows that a sweep lacked, lately
        self._paged = False  # a page other than the first was seen
        self._halved = 0  # the size to request, as long as all pages show the same rows
        self._clamp = 0  # the length to which pages may be clamped
        self._overlaps = False
        self._ends: set[int | None] = set()  # rows of sweeps with full pages alone; None for any other sweep
        self._youngest: datetime | None = None  # of the rows known after the first sweep
        self._positions: int | None = None  # of the previous sweep
        self._before_refusal: int | None = None  # in the previous sweep
        self._refusal: ConnectorError | None = None  # of a page that may have rows, in the latest sweep
        self._repeated = 0  # positions without a row of their own, in the latest sweep

    def next_size(self) -> int:
        """Return the page size of the next sweep."""
        if self._halved:
            return self._halved
        sizes = self._sizes
        divisor = DIVISORS[self._sweeps % len(DIVISORS)] if sizes.has_gap and sizes.respected else 1
        shortened_by = SHORTENED_BY[self._sweeps % len(SHORTENED_BY)]
        at_most = sizes.size
        if sizes.has_gap and self._clamp:  # longer pages would all be as long, so that the gap hid the same rows
            at_most = min(sizes.size, self._clamp)
            shortened_by = shortened_by * at_most // sizes.most
        return max(2, (at_most - shortened_by) // divisor)

    def note(self, sweep: Sweep, created: Mapping[str, datetime], known: Set[str]) -> Verdict | None:
        """Note a sweep and return how the sweeps end; None if another one is needed.

        `created` has the creation time of each row, `known` are those that were seen before this sweep.
        """
        self._sweeps += 1
        verdict = self._judge(sweep, created, known)
        return self._give_up() if verdict is None and self._sweeps == MAX_SWEEPS else verdict

    def _judge(self, sweep: Sweep, created: Mapping[str, datetime], known: Set[str]) -> Verdict | None:
        sizes = self._sizes
        self._overlaps = self._overlaps or sweep.overlaps
        if sweep.uneven:
            self._clamp = max(self._clamp, sweep.longest)
            if sweep.size <= sizes.size < sizes.unclamped:  # no clamp made the pages short
                sizes.unclamp()
                return None
        if sizes.has_gap and not sizes.respected:
            return Verdict(
                "a page is empty although rows follow, and no other page length shows the rows it leaves out"
            )
        added = [time for key, time in created.items() if key not in known]
        self._note_added(sweep, added, len(created))
        self._youngest = self._youngest or max(created.values(), default=None)
        whole = sweep.refusal is None or not sizes.respected
        lone = sweep.longest <= 1 and not self._halved
        self._paged = self._paged or sweep.pages_differ or (sweep.ending is Ending.empty and whole) or lone
        if not self._paged and self._halved:
            return (
                self._give_up()
                if self._refusal
                else Verdict("the service answers every page number with the same rows")
            )
        self._halved = 0 if self._paged else max(1, sweep.longest // 2)
        missed = 1 - len(sweep.shown) / len(created) if created else 0.0
        self._misses = max(missed, 0.7 * self._misses)
        if not self._paged or self._quiet < self._needed:
            return None
        if None not in self._ends and len(self._ends) > 1:
            return Verdict(_LAST_NUMBER)
        return Verdict()

    def _note_added(self, sweep: Sweep, added: Sequence[datetime], rows: int) -> None:
        """Note whether the sweep is quiet: it added no row, and no row can be missing from it for another reason.

        A row younger than all rows of the first sweep did not exist when the listing began.
        """
        grew = any(self._youngest is None or time <= self._youngest for time in added)
        self._refusal = self._refusal_within(sweep, len(added))
        self._repeated = self._repeated_in(sweep, rows)
        self._quiet = 0 if grew or self._refusal or self._repeated else self._quiet + 1
        self._ends.add(len(sweep.shown) if sweep.full else None)
        self._positions = sweep.positions
        self._before_refusal = None if sweep.refusal is None else sweep.before_refusal

    def _refusal_within(self, sweep: Sweep, added: int) -> ConnectorError | None:
        """Return the error of a refused page that is not known to be behind the last row; None if there is none.

        A refused page is known to be behind the last row if nothing followed, and the previous sweep, which had other
        sizes, found the end at the same row, apart from the rows `added` since.
        """
        if sweep.refusal is None or self._before_refusal is None:
            return sweep.refusal
        behind = sweep.before_refusal == self._before_refusal + added and sweep.before_refusal == sweep.received
        return None if behind else sweep.refusal

    def _repeated_in(self, sweep: Sweep, rows: int) -> int:
        """Return how many positions of this sweep and the previous one have a row that is known from another one.

        It is 0 if one of the sweeps does not tell. Which of several rows with the same sort key are on a page may
        depend on the page, and be the same at every request. Sweeps of pages that are not sized as requested then
        agree, though rows are missing. What arrived during the first sweep, and shifted its pages, is known after the
        second one.
        """
        if sweep.positions is None or self._positions is None:
            return 0
        return max(min(sweep.positions, self._positions) - rows, 0)

    @property
    def _needed(self) -> int:
        """Return how many sweeps in a row have to be quiet."""
        needed = max(quiet_sweeps_needed(self._misses), len(DIVISORS) if self._sizes.has_gap else 0)
        return max(needed, UNEVEN_QUIET if self._overlaps and not self._sizes.respected else 0)

    def _give_up(self) -> Verdict:
        if self._refusal:
            return Verdict(f"pages that may have rows were refused; the last error: {self._refusal}")
        if self._repeated:
            return Verdict(f"its pages repeat {self._repeated} rows, so as many others may be on no page")
        return Verdict(f"the listing still changed after {self._sweeps} sweeps")


def quiet_sweeps_needed(miss_rate: float) -> int:
    """Return how many sweeps must add nothing before the odds of having missed a row are one in a million.

    `miss_rate` is the share of the rows that each sweep misses.
    """
    if miss_rate <= 0:
        return 2
    if miss_rate >= 1:
        return MAX_SWEEPS + 1
    return max(2, math.ceil(math.log(FALSE_COMPLETE_ODDS) / math.log(miss_rate)))
