"""Find out whether a page that is never answered is too long, as it may be for a gateway with a limit of its own."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

from connector.errors import ConnectorError, TooLargeError, TransientError, means_no_such_page
from connector.extract.convention import PageConvention

TOO_MANY_REQUESTS = 429


async def is_too_long(
    error: TransientError,
    fetch: Callable[[int, int], Awaitable[object]],
    convention: PageConvention,
    size: int,
    shorter: Callable[[int], int | None],
) -> bool:
    """Return whether the rows of the page of `size` that `error` is about come in pages of the next `shorter` sizes.

    `fetch(page, per_page)` requests a page by its number. The shortest page is requested first, so that a service that
    is down costs one more failing request, and the others one by one, because of rows that it cannot show. Then the
    page itself is requested once more, because shorter pages cost many requests and the service may have recovered.
    """
    if error.page is None or error.page < convention.first or error.status == TOO_MANY_REQUESTS:
        return False
    page, shortest = error.page - convention.first + 1, size
    while (short := shorter(shortest)) is not None:
        shortest = short
    if shortest == size:
        return False
    try:
        await fetch(convention.number((page - 1) * size // shortest + 1), shortest)
    except ConnectorError:
        return False
    if not await _comes_shorter(fetch, convention, page, size, shorter):
        return False
    try:
        await fetch(error.page, size)
    except ConnectorError:
        return True
    return False


async def _comes_shorter(
    fetch: Callable[[int, int], Awaitable[object]],
    convention: PageConvention,
    page: int,
    size: int,
    shorter: Callable[[int], int | None],
) -> bool:
    short = shorter(size)
    if short is None:
        return False
    for number in range((page - 1) * size // short + 1, math.ceil(page * size / short) + 1):
        try:
            await fetch(convention.number(number), short)
        except TooLargeError:
            continue
        except TransientError:
            if not await _comes_shorter(fetch, convention, number, short, shorter):
                return False
        except ConnectorError as refusal:
            if not means_no_such_page(refusal, number):
                return False
    return True
