"""Define the ports of a run: the service's client, the event loop for HTTP, the clock, and the progress display."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol, TypeVar

from anyio.from_thread import start_blocking_portal

from connector.service.client import ServiceClient
from connector.service.retry import RetryPolicy
from connector.settings import Settings

R = TypeVar("R")


class BackgroundRunner(Protocol):
    """A runner of functions outside the event loop, one after the other in the order in which they were submitted."""

    def __call__(self, function: Callable[[], R], /) -> Awaitable[R]: ...


class Progress(Protocol):
    """A listener to a run, for a display or a log; every method returns at once."""

    def listed(self, imports: int) -> None: ...
    def planned(self, imports: int, rows: int) -> None: ...
    def read(self, slug: str, rows: int, verdict: str) -> None: ...
    def committed(self, rows: int) -> None: ...


class Silent:
    """A listener that does nothing."""

    def listed(self, imports: int) -> None: ...
    def planned(self, imports: int, rows: int) -> None: ...
    def read(self, slug: str, rows: int, verdict: str) -> None: ...
    def committed(self, rows: int) -> None: ...


class Loop(Protocol):
    """A runner of coroutines for a synchronous caller, such as `anyio.from_thread.BlockingPortal`."""

    def call(self, func: Callable[..., Awaitable[R]], *args: Any) -> R: ...


@dataclass(frozen=True, slots=True)
class Ports:
    """All ports of a run, replaced as a whole by the simulation."""

    open_client: Callable[[Settings], ServiceClient]
    open_loop: Callable[[], AbstractContextManager[Loop]]
    now: Callable[[], datetime]
    run_in_background: BackgroundRunner

    @classmethod
    def real(cls, retry: RetryPolicy | None = None, *, until_first_reply: RetryPolicy | None = None) -> Ports:
        """Return the real ports; by default, the client waits for a restart of the service.

        `until_first_reply` is the policy until the service has answered anything.
        """
        opened = partial(_open_client, retry=retry, until_first_reply=until_first_reply)
        return cls(opened, start_blocking_portal, lambda: datetime.now(UTC), _background_thread())


def _open_client(settings: Settings, retry: RetryPolicy | None, until_first_reply: RetryPolicy | None) -> ServiceClient:
    own = None
    if settings.http_client is not None:
        from connector.service.own_client import OwnClient  # httpx is slow to import

        own = OwnClient(settings.http_client)
    return ServiceClient(
        settings.base_url,
        settings.access_token.get_secret_value(),
        max_concurrency=settings.max_concurrency,
        requests_per_second=settings.requests_per_second,
        privacy=settings.protection,
        retry=retry,
        until_first_reply=until_first_reply,
        transport=own,
    )


def _background_thread() -> BackgroundRunner:
    executor = ThreadPoolExecutor(max_workers=1)  # starts its thread when there is something to do, and ends with it

    async def run_in_background(function: Callable[[], R], /) -> R:
        return await asyncio.get_running_loop().run_in_executor(executor, function)

    return run_in_background
