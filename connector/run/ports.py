"""What surrounds a run: the service's client, the loop that HTTP runs on, the clock, and who is told what happens."""

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


class Aside(Protocol):
    """Runs functions while the event loop goes on, one after the other in the order in which they were given."""

    def __call__(self, function: Callable[[], R], /) -> Awaitable[R]: ...


class Progress(Protocol):
    """Told what happens, for a display or a log; every method returns at once."""

    def listed(self, imports: int) -> None: ...
    def planned(self, imports: int, rows: int) -> None: ...
    def read(self, slug: str, rows: int, verdict: str) -> None: ...
    def committed(self, rows: int) -> None: ...


class Silent:
    """The progress of a run that nobody watches."""

    def listed(self, imports: int) -> None: ...
    def planned(self, imports: int, rows: int) -> None: ...
    def read(self, slug: str, rows: int, verdict: str) -> None: ...
    def committed(self, rows: int) -> None: ...


class Loop(Protocol):
    """Runs coroutines for a synchronous caller; `anyio.from_thread.BlockingPortal` is one."""

    def call(self, func: Callable[..., Awaitable[R]], *args: Any) -> R: ...


@dataclass(frozen=True, slots=True)
class Ports:
    """The seams to the world, replaced as a whole by the simulation."""

    open_client: Callable[[Settings], ServiceClient]
    open_loop: Callable[[], AbstractContextManager[Loop]]
    now: Callable[[], datetime]
    aside: Aside

    @classmethod
    def real(cls, retry: RetryPolicy | None = None, *, until_there: RetryPolicy | None = None) -> Ports:
        """Return the real ones; by default a restart of the service is waited for.

        `until_there` is for the time before the service has answered anything.
        """
        opened = partial(_open_client, retry=retry, until_there=until_there)
        return cls(opened, start_blocking_portal, lambda: datetime.now(UTC), _one_thread())


def _open_client(settings: Settings, retry: RetryPolicy | None, until_there: RetryPolicy | None) -> ServiceClient:
    own = None
    if settings.http_client is not None:
        from connector.service.own_client import OwnClient  # httpx takes its time to import

        own = OwnClient(settings.http_client)
    return ServiceClient(
        settings.base_url,
        settings.access_token.get_secret_value(),
        max_concurrency=settings.max_concurrency,
        requests_per_second=settings.requests_per_second,
        privacy=settings.protection,
        retry=retry,
        until_there=until_there,
        transport=own,
    )


def _one_thread() -> Aside:
    executor = ThreadPoolExecutor(max_workers=1)  # starts its thread when there is something to do, and ends with it

    async def aside(function: Callable[[], R], /) -> R:
        return await asyncio.get_running_loop().run_in_executor(executor, function)

    return aside
