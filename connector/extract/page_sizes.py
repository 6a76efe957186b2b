"""Learn how a service sizes the pages of a listing, and choose the size to request. Pure.

A service may clamp `per_page`, ignore it, leave out rows after it has divided them into pages, or show nothing at a
page number although rows follow.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from connector.extract.overlap import Positions

MAX_PER_PAGE = 100  # the most that the service allows
SHORTER_PAGES = (10, 1)  # of records, if a page exceeds the size limit, or is never answered
SMALLEST_OVERLAP_SIZE = 20  # below that, neighbouring sizes share too few positions to make progress
MOVING_END_PROOF = 4  # empty pages in a row that prove the end if pages contradicted each other


@dataclass(slots=True)
class PageSizes:
    """What is known of the pages of a listing so far; `most` is the largest size that may be requested.

    `size` is what to request, and `unclamped` what would be requested if the service did not clamp it. `end_proof` is
    the number of positions without rows that prove the end if pages contradicted each other. `respected` is false once
    the service has ignored `per_page`, and `has_gap` true once a page was empty although rows follow.
    """

    most: int = MAX_PER_PAGE
    size: int = field(init=False)
    unclamped: int = field(init=False)
    end_proof: int = field(init=False)
    respected: bool = True
    has_gap: bool = False

    def __post_init__(self) -> None:
        self.size = self.unclamped = self.most
        self.end_proof = MOVING_END_PROOF * self.size

    @property
    def overlap(self) -> bool:
        """Return whether pages can be requested that share positions with their neighbours."""
        return self.respected and self.size >= SMALLEST_OVERLAP_SIZE

    def request(self, size: int) -> None:
        """Request pages of this size from now on, which is as before or shorter."""
        if size < self.unclamped:
            self.size = self.unclamped = size
            self.end_proof = MOVING_END_PROOF * self.size

    def unclamp(self) -> None:
        """Take back that the service clamps `per_page`."""
        self.size = self.unclamped
        self.end_proof = MOVING_END_PROOF * self.size

    def learn(self, positions: Positions) -> None:
        """Learn from a sweep of overlapping pages.

        The service clamps `per_page` if all pages but the last are as short as the first. Pages are short in another
        way if it leaves out rows after it has divided them into pages.
        """
        lengths = positions.lengths
        longest = max(lengths, default=0)
        pages = list(zip(positions.segments, lengths, strict=True))
        followed = any(n and s.first > longest for s, n in pages)
        short = [(s.page, n) for s, n in pages if n and s.per_page > longest]
        clamped = all(n == longest for page, n in short if page < max(short)[0])
        if positions.oversized:
            self.respected = False
        elif clamped and followed and 0 < lengths[0] == longest < self.size:
            self.size = longest
            if len({page for page, n in short if n == longest}) > 1:  # one page may be as short by chance
                self.end_proof = MOVING_END_PROOF * longest
        self.has_gap = self.has_gap or positions.has_gap


def shorter_size(size: int) -> int | None:
    """Return the size to request if a page of `size` is too large; None if pages are as short as they may be."""
    return None if size <= SMALLEST_OVERLAP_SIZE else max(size // 2, SMALLEST_OVERLAP_SIZE)
