"""Decide what the pages of one sweep over a listing prove, and which pages to request for the proof. Pure.

A page claims which rows are at which positions. A listing is complete (`connector.extract.listing`, overlap) if no two
claims contradict each other, no position is missing, and both pages before the end and pages behind it show the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

END_PROOF = 2  # empty pages in a row that prove the end of an orderly listing
FAR = 4  # pages behind the last row that must be empty too: rows may follow a run of empty pages
SHARED = 2  # positions that neighbouring pages share at least; one alone could hide that two equal rows swapped places


@dataclass(frozen=True, slots=True)
class Segment:
    """One request: page `page` of `per_page` rows, i.e. positions `first` to `last`, counted from 1."""

    page: int
    per_page: int

    @property
    def first(self) -> int:
        return (self.page - 1) * self.per_page + 1

    @property
    def last(self) -> int:
        return self.page * self.per_page


FRONT = Segment(1, 1)


def overlapping_segments(size: int) -> Iterator[Segment]:
    """Yield pages of at most `size` rows; each shares positions with the one before and reaches as far as possible."""
    segment = Segment(1, size)
    while True:
        yield segment
        end = segment.last
        segment = max(
            (Segment((end - SHARED) // s + 1, s) for s in range(size, size - size // 3 - 1, -1)),
            key=lambda candidate: candidate.last,
        )
        if segment.last <= end:
            return


@dataclass(slots=True)
class Positions:
    """What the replies of one sweep claim about positions; `consistent` until two claims contradict."""

    keys: dict[int, str] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    empty_from: int | None = None
    end_checks: dict[int, set[Segment]] = field(default_factory=dict)  # end of a reply with room for more → requests
    segments: list[Segment] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    consistent: bool = True
    end: int = 0  # the last position of a row, kept because finding it among the keys for every page takes time

    def claim(self, segment: Segment, keys: Sequence[str]) -> None:
        self.segments.append(segment)
        self.lengths.append(len(keys))
        if len(keys) > segment.per_page:
            self.consistent = False
            return
        if segment == FRONT:  # may be another row now, but must be one of those shown
            self.consistent = self.consistent and self.places.keys() >= set(keys)
            return
        for position, key in enumerate(keys, segment.first):
            if self.keys.setdefault(position, key) != key or self.places.setdefault(key, position) != position:
                self.consistent = False
        if keys:
            self.end = max(self.end, segment.first + len(keys) - 1)
        if len(keys) < segment.per_page:
            end = segment.first + len(keys)
            self.empty_from = end if self.empty_from is None else min(end, self.empty_from)
            if keys or segment.first == 1:
                self.end_checks.setdefault(end, set()).add(segment)

    @property
    def beyond(self) -> int:
        """Return how many pages were requested that are wholly behind the last row, and not far from it."""
        return sum(1 for s in self.segments if self.end < s.first <= self.end + (FAR - 1) * s.per_page)

    @property
    def oversized(self) -> bool:
        """Return whether a page was longer than requested, which means that the service ignores page sizes."""
        return any(length > s.per_page for s, length in zip(self.segments, self.lengths, strict=True))

    @property
    def has_gap(self) -> bool:
        """Return whether a page was empty although another has rows at its positions or behind them, even if clamped.

        Pages of one row do not count: such a page that was requested too early hides nothing.
        """
        longest = max(self.lengths, default=0)
        firsts = [(s.page - 1) * (1 if self.oversized else min(s.per_page, longest)) for s in self.segments]
        pages = list(zip(self.segments, firsts, self.lengths, strict=True))
        end = max((first + (1 if self.oversized else length) for _, first, length in pages if length), default=0)
        return any(first < end for segment, first, length in pages if not length and segment.per_page > 1)

    def contradicted(self) -> bool:
        """Return whether two replies disagree, rows follow where there should be none, or the end does not show."""
        gap = self.empty_from is not None and self.empty_from <= self.end
        return not self.consistent or gap or (not self.end_checks and self.beyond > END_PROOF)

    def proven(self) -> bool:
        """Return whether there is no contradiction and no gap, and pages before and behind the end show the end."""
        after = self.end + 1
        whole = self.empty_from == after and len(self.keys) == self.end and len(self.end_checks) == 1
        return self.consistent and whole and len(self.end_checks[after]) > 1 and self.beyond >= END_PROOF


def covering(segments: Iterator[Segment], upto: int) -> Iterator[Segment]:
    """Yield the next segments until one reaches position `upto`, at least one."""
    for segment in segments:
        yield segment
        if segment.last >= upto:
            return


def through(segments: Iterator[Segment], upto: int) -> list[Segment]:
    """Return the segments that cover positions 1 to `upto`, and as many behind as the proof of an end needs."""
    return [*covering(segments, upto), *islice(segments, END_PROOF)]


def far_page(end: int, size: int, pages: int) -> Segment:
    """Return the page that is `pages` pages behind the one with position `end`."""
    return Segment(max(1, math.ceil(end / size)) + pages, size)


def second_page_at(end: int, size: int, asked: Sequence[Segment]) -> Segment:
    """Return another page that has position `end` and room for more, because the service may have cut the first short.

    Its size is well below that of the first page: if a service clamps two pages to the same size, the second one shows
    nothing new.
    """
    apart = size - size // 10
    pages = (Segment(max(end - 1, 0) // s + 1, s) for s in (*range(apart, 1, -1), *range(size, apart, -1)))
    # there is no such page if every size divides `end`; the page behind it is requested then, which proves nothing
    return next((page for page in pages if page.last > end and page not in asked), Segment(end + 1, 1))
