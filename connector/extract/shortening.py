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

    `fetch(page, per_page)` requests a page by its number. The shorter pages are requested one by one, so that a service
    that is down, or a row that it cannot show, costs one more failing request of each size. Then the page itself is
    requested once more, because shorter pages cost many requests and the service may have recovered meanwhile.
    """
    if error.page is None or error.page < convention.first or error.status == TOO_MANY_REQUESTS:
        return False
    if not await _comes_shorter(fetch, convention, error.page - convention.first + 1, size, shorter):
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
