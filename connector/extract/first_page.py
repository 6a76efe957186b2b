"""Find out whether a listing counts its pages from 0 or from 1, as the interface says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import dataclass

from connector.errors import ConnectorError, TooLargeError, TransientError, means_no_such_page
from connector.extract.concurrency import run_concurrently
from connector.extract.convention import FROM_ZERO
from connector.extract.shortening import Shortening, Unanswered

SIZES = (1, 2, 3)  # of pages 1 that are compared
ROUNDS = 4  # of these, which show whether the order of a listing whose page 0 cannot be read differs between requests

FetchKeys = Callable[[int, int], Awaitable[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class FirstPage:
    """Whether page 0 is the first page; `doubt` says why rows may be on a page 0 that could not be read."""

    is_0: bool = False
    doubt: str | None = None


async def find_first_page(fetch: FetchKeys, shortening: Shortening, size: int, known: Set[str]) -> FirstPage:
    """Determine whether page 0 is the first page, and not unknown or an alias of page 1 or of the last page.

    It is the first page if page 1 is shorter, or if its first row is on no other page of any size and small pages 1
    continue it. `fetch(page, per_page)` returns the keys of a page by its number; `known` are those of rows on other
    pages. Page 0 is requested if pages contradicted each other, as pages 1 of different sizes do if it is the first, or
    if there are too few rows for a contradiction. Raises TooLargeError if page 0 exceeds the limit on a reply, or is
    answered only if it is shorter.
    """

    async def numbered(page: int, per_page: int = size) -> list[str]:
        return await _keys(fetch, page, per_page)

    try:
        front = await numbered(0)
    except TooLargeError:
        raise
    except ConnectorError as error:
        if isinstance(error, TransientError) and (await shortening.diagnose(error, FROM_ZERO) is Unanswered.too_long):
            raise TooLargeError(str(error), page=error.page) from error
        refused = means_no_such_page(error, 2)  # it would not be, if it were the first
        return FirstPage(doubt=None if refused or await _begins_at_page_1(fetch) else _unread(error))
    if not front:
        return FirstPage()
    try:
        pages = await run_concurrently(numbered(number) for number in (1, 1))
        pages.append(await numbered(0))  # last, otherwise the listing may have shrunk in between
        shorter = max(map(len, pages[:2])) < min(len(front), len(pages[2]))
        if not shorter and front[0] in known:
            return FirstPage()
        replies = await run_concurrently(numbered(1, size) for size in SIZES if not shorter)
    except ConnectorError as error:
        return FirstPage(doubt=None if known else _unread(error))
    pairs = zip(SIZES, replies, strict=not shorter)
    strays = [reply for size, reply in pairs if len(front) >= 2 * size and reply != front[size : 2 * size]]
    sized = any(reply != replies[-1] for reply in replies)
    return FirstPage(not (any(front[0] in reply for reply in replies) or (sized and strays)))


async def _begins_at_page_1(fetch: FetchKeys) -> bool:
    """Return whether no row can be on page 0 alone, which cannot be read, as far as pages 1 show.

    They begin with the same rows if page 1 is the first, and not if the pages are counted from 0. If the order differs
    between requests, no row is always on the same page. If the service ignores `per_page`, pages 1 do not tell, so that
    page 1 is assumed to be the first, as the interface says.
    """
    try:
        rounds = [[await _keys(fetch, 1, size) for size in SIZES] for _ in range(ROUNDS)]
    except ConnectorError:
        return False
    (one, two, three), *others = rounds
    moves = any(pages != rounds[0] for pages in others)
    return bool(one) and (moves or one == three or (one == two[:1] and two == three[:2]))


async def _keys(fetch: FetchKeys, page: int, per_page: int) -> list[str]:
    """Return the keys of a page by its number; none if it may be the refused page behind the first, page 0."""
    try:
        return list(await fetch(page, per_page))
    except ConnectorError as error:
        if not means_no_such_page(error, page + 1):
            raise
        return []


def _unread(error: ConnectorError) -> str:
    return f"page 0 could not be read, and may have rows that no other page has: {error}"
