"""Send a few requests to the service, for commands that load nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from connector.service.client import ServiceClient
from connector.service.limits import QUICK_LIMITS
from connector.service.retry import QUICK
from connector.settings import Settings

T = TypeVar("T")


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
