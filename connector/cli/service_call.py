"""Send a few requests to the service, for commands that load nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from connector.errors import ConnectorError, TooLargeError, TransientError
from connector.extract.page_sizes import MAX_PER_PAGE, SHORTER_PAGES
from connector.extract.shortening import TOO_MANY_REQUESTS
from connector.service.client import ServiceClient
from connector.service.limits import QUICK_LIMITS
from connector.service.retry import QUICK
from connector.settings import Settings

T = TypeVar("T")
PAGE_SIZES = (MAX_PER_PAGE, *SHORTER_PAGES)


def ask(settings: Settings, question: Callable[[ServiceClient], Awaitable[T]]) -> T:
    """Return the result of `question`, called with an open client."""

    async def asked() -> T:
        client = ServiceClient(
            settings.base_url,
            settings.access_token.get_secret_value(),
            max_concurrency=settings.max_concurrency,
            requests_per_second=settings.requests_per_second,
            privacy=settings.protection,
            retry=QUICK,
            limits=QUICK_LIMITS,
        )
        async with client:
            return await question(client)

    return asyncio.run(asked())


async def longest_page(request: Callable[[int], Awaitable[T]]) -> tuple[int, T]:
    """Return a page size and `request` of it: the longest one that is answered, as a run would request it.

    Raises the error about the longest if none is.
    """
    failure: ConnectorError | None = None
    for size in PAGE_SIZES:
        try:
            return size, await request(size)
        except (TransientError, TooLargeError) as error:
            if error.status == TOO_MANY_REQUESTS:
                raise
            failure = failure or error
    raise failure or AssertionError
