"""One way to ask a hostile service something: over a real socket, without waiting, with everything recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from connector.service.client import ClientStats, ServiceClient
from tests.service.hostile import Hostile, Script, hostile

TOKEN = "tok-3cr3t-3cr3t-3cr3t"
NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


@dataclass
class Clock:
    """Time that passes only by sleeping."""

    at: float = 1000.0
    slept: list[float] = field(default_factory=list)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.at += seconds
        await asyncio.sleep(0)

    def monotonic(self) -> float:
        return self.at


@dataclass
class Answer:
    value: Any
    error: BaseException | None
    service: Hostile
    stats: ClientStats
    clock: Clock


Question = Callable[[ServiceClient], Awaitable[Any]]
Ask = Callable[..., Answer]


def records(client: ServiceClient) -> Awaitable[Any]:
    return client.list_records("imp", 3)


@pytest.fixture
def ask() -> Ask:
    def run(script: Script, question: Question = records, **options: Any) -> Answer:
        async def talk() -> Answer:
            clock = Clock()
            options.setdefault("sleep", clock.sleep)
            options.setdefault("monotonic", clock.monotonic)
            async with hostile(script) as service:
                client = ServiceClient(service.url, TOKEN, now=lambda: NOW, random=Random(7), **options)
                async with client:
                    value, error = None, None
                    try:
                        value = await question(client)
                    except Exception as problem:
                        error = problem
                return Answer(value, error, service, client.stats, clock)

        return asyncio.run(asyncio.wait_for(talk(), 60))

    return run


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Several seeds make one test, so that a hundred thousand of them are not as many tests to set up."""
    if "fuzz_seeds" in metafunc.fixturenames:
        last = int(metafunc.config.getoption("--fuzz-seeds"))
        batches = [range(n, n + 1_000) for n in range(0, last, 1_000)]
        metafunc.parametrize("fuzz_seeds", batches, ids=[f"{batch[0]}-{batch[-1]}" for batch in batches])
