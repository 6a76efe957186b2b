"""Send a few requests to the service, for commands that load nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from connector.errors import ConnectorError, TooLargeError, TransientError, means_no_such_page
from connector.extract.convention import FROM_ONE, FROM_ZERO, PageConvention
from connector.extract.first_page import find_first_page
from connector.extract.page_sizes import MAX_PER_PAGE, SHORTER_PAGES, SMALLEST_OVERLAP_SIZE
from connector.extract.shortening import TOO_MANY_REQUESTS, Shortening
from connector.models import ImportPage
from connector.service.client import ServiceClient
from connector.service.limits import QUICK_LIMITS
from connector.service.retry import QUICK
from connector.settings import Settings

T = TypeVar("T")
OF_IMPORTS = (MAX_PER_PAGE, SMALLEST_OVERLAP_SIZE)  # page sizes, the longest and those that a run may shorten it to
OF_RECORDS = (MAX_PER_PAGE, *SHORTER_PAGES)


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


async def first_page(client: ServiceClient, per_page: int) -> tuple[PageConvention, ImportPage]:
    """Return how the service numbers its pages, and its first page of imports.

    Raises TransientError if the imports may all be on a page 0 that could not be read.
    """
    page, refusal = ImportPage([], [], 0), None
    try:
        page = await client.list_imports(1, per_page)
    except ConnectorError as error:
        if not means_no_such_page(error, 2):
            raise
        refusal = error

    async def slugs(number: int, size: int) -> list[str]:
        return [i.slug for i in (await client.list_imports(number, size)).imports]

    known = frozenset(i.slug for i in page.imports)
    found = await find_first_page(slugs, Shortening(slugs, lambda _: None), per_page, known)
    if found.is_0:
        return FROM_ZERO, await client.list_imports(0, per_page)
    if refusal is not None:
        raise refusal
    if found.doubt and not page.size:
        raise TransientError(f"The first page of imports is not known: {found.doubt}")
    return FROM_ONE, page


async def longest_page(request: Callable[[int], Awaitable[T]], sizes: Sequence[int]) -> tuple[int, T]:
    """Return one of the page sizes and `request` of it: the first one that is answered.

    Raises the error about the first if none is.
    """
    failure: ConnectorError | None = None
    for size in sizes:
        try:
            return size, await request(size)
        except (TransientError, TooLargeError) as error:
            if error.status == TOO_MANY_REQUESTS:
                raise
            failure = failure or error
    raise failure or AssertionError
