"""Decide in pages of which size rows are requested again after a page was too long, or was never answered.

A gateway may have a limit of its own on the length of a reply or the time it takes, and answers longer pages with 413,
502 or 504. Shorter pages cost many requests, so they are chosen only if they come where the long one does not.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from enum import Enum

from connector.errors import ConnectorError, TooLargeError, TransientError, means_no_such_page
from connector.extract.convention import PageConvention

PROOFS = 3  # requests of the long page that must all be answered: of a page near the limit, some are by chance
MAX_REPEATS = 3  # of everything in pages of the same size, because the service had recovered

TOO_MANY_REQUESTS = 429


class Unanswered(Enum):
    """What further requests say about a page that was not answered."""

    also_shorter = "also shorter"  # nor are its rows in shorter pages: the service is down, or cannot show them
    too_long = "too long"  # its rows come in shorter pages, and it still does not
    no_longer = "no longer"  # it comes now


class Shortening:
    """The sizes of the pages of one listing or import, requested by `fetch(page, per_page)`, a page by its number.

    `shorter(size)` is the next size below `size`; None if pages are as short as they may be.
    """

    def __init__(self, fetch: Callable[[int, int], Awaitable[object]], shorter: Callable[[int], int | None]) -> None:
        self._fetch = fetch
        self._shorter = shorter
        self._repeats = 0

    async def next_size(self, error: ConnectorError, convention: PageConvention, size: int) -> int | None:
        """Return the size with which everything is requested again after `error`; None if the error is final.

        `size` is the present one. It stays the same if the service has recovered.
        """
        if isinstance(error, TooLargeError):
            return self._shorter(size)
        if not isinstance(error, TransientError):
            return None
        found = await self.diagnose(error, convention)
        if found is Unanswered.no_longer and self._repeats < MAX_REPEATS:
            self._repeats += 1
            return size
        return self._shorter(size) if found is Unanswered.too_long else None

    async def diagnose(self, error: TransientError, convention: PageConvention) -> Unanswered:
        """Request the rows of the page that `error` is about in shorter pages, and then the page itself again.

        The shortest page is requested first, so that a service that is down costs one more failing request, and the
        others one by one, because of rows that it cannot show.
        """
        number, size = error.page, error.per_page
        if number is None or size is None or number < convention.first or error.status == TOO_MANY_REQUESTS:
            return Unanswered.also_shorter
        page, shortest = number - convention.first + 1, size
        while (short := self._shorter(shortest)) is not None:
            shortest = short
        if shortest == size:
            return Unanswered.also_shorter
        try:
            await self._fetch(convention.number((page - 1) * size // shortest + 1), shortest)
        except ConnectorError:
            return Unanswered.also_shorter
        if not await self._comes_shorter(convention, page, size):
            return Unanswered.also_shorter
        try:
            for _ in range(PROOFS):
                await self._fetch(number, size)
        except ConnectorError:
            return Unanswered.too_long
        return Unanswered.no_longer

    async def _comes_shorter(self, convention: PageConvention, page: int, size: int) -> bool:
        """Return whether the rows of a page, counted from 1, come in pages of the next shorter sizes."""
        short = self._shorter(size)
        if short is None:
            return False
        for number in range((page - 1) * size // short + 1, math.ceil(page * size / short) + 1):
            try:
                await self._fetch(convention.number(number), short)
            except TooLargeError:
                continue
            except TransientError:
                if not await self._comes_shorter(convention, number, short):
                    return False
            except ConnectorError as refusal:
                if not means_no_such_page(refusal, number):
                    return False
        return True
