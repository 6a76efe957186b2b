"""Run requests concurrently, all of them or a few ahead of the one whose result is used."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Iterable
from random import Random
from typing import TypeVar

R = TypeVar("R")


async def run_concurrently(requests: Iterable[Coroutine[object, object, R]], dice: Random | None = None) -> list[R]:
    """Run the requests concurrently, with `dice` begun in random order, and return the results in order.

    The first failure cancels the other requests and is raised unchanged.
    """
    listed = list(requests)
    begun = listed if dice is None else dice.sample(listed, len(listed))
    running = {request: asyncio.ensure_future(request) for request in begun}
    tasks = [running[request] for request in listed]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def run_in_order(requests: Iterable[Coroutine[object, object, R]], ahead: int) -> AsyncGenerator[R, None]:
    """Yield results in order, with up to `ahead` more requests under way; closing it early cancels those."""
    tasks: deque[asyncio.Future[R]] = deque()
    try:
        for request in requests:
            tasks.append(asyncio.ensure_future(request))
            if len(tasks) > ahead:
                yield await tasks.popleft()
        while tasks:
            yield await tasks.popleft()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
