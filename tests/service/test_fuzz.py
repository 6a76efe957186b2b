"""Whatever a reply is like: a classified error or a right page, in time; `make fuzz-replies` for a hundred thousand."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random

from connector.errors import ConnectorError
from connector.models import ImportPage, RecordPage
from connector.service.client import ServiceClient
from connector.service.limits import LIMITS
from connector.service.retry import RetryPolicy
from tests.service.conftest import TOKEN
from tests.service.fuzzing import Spoilt, spoilt
from tests.service.hostile import Reply, Seen, hostile
from tests.service.right_pages import wrong
from tests.service.test_http import WHOLE
from tests.simulation.virtual_time import VirtualLoop, virtual_loop

POLICY = RetryPolicy(error_attempts=2, garbage_attempts=2, wait_budget_s=30.0, outage_s=0.0)
IN_TIME = replace(LIMITS, silence_s=2.0, attempt_s=20.0)
AT_ONCE = 16


async def at_once(_: float) -> None:
    await asyncio.sleep(0)


def question(client: ServiceClient, case: Spoilt) -> Awaitable[ImportPage | RecordPage]:
    """The seed is what the hostile service knows a request by."""
    if case.listing:
        return client.list_imports(1, status=str(case.seed))
    return client.list_records(str(case.seed), 1)


async def ask(url: str, case: Spoilt) -> str:
    """Returns how it ended. Raises AssertionError with the seed where that was none of the ways there are."""
    words = f"seed {case.seed} ({', '.join(case.done) or 'as it was'})"
    client = ServiceClient(url, TOKEN, max_concurrency=1, retry=POLICY, limits=IN_TIME, sleep=at_once, random=Random(1))
    page: ImportPage | RecordPage | None = None
    error: ConnectorError | None = None
    async with client:
        try:
            page = await asyncio.wait_for(question(client, case), 120)
        except ConnectorError as refused:
            error = refused
        except Exception as unforeseen:
            raise AssertionError(f"{words}: {type(unforeseen).__name__}: {unforeseen}") from unforeseen
    if error is not None:
        assert not case.is_as_it_was, f"{words}: a valid reply was refused: {error}"
        assert str(error).endswith("."), words
        assert TOKEN not in repr(error) + str(error.__context__), words
        return type(error).__name__
    assert page is not None
    problem = wrong(case, page)
    assert problem is None, f"{words}: {problem}"
    assert client.stats.requests <= 3, words
    return "page with rejects" if page.rejects else "page"


async def ask_all(seeds: range) -> Counter[str]:
    made = [spoilt(seed) for seed in seeds]
    cases = {("", str(each.seed)) if each.listing else (str(each.seed), ""): each for each in made}
    waiting = iter(made)
    ended: Counter[str] = Counter()

    def reply(seen: Seen) -> Reply:
        return cases[re.findall(r"/imports/(\d+)/records|status=(\d+)", seen.line)[0]].reply

    async def some(url: str) -> None:
        for case in waiting:
            ended[await ask(url, case)] += 1

    async with hostile(reply) as service:
        await asyncio.gather(*(some(service.url) for _ in range(AT_ONCE)))
    return ended


def test_each_reply_is_a_right_page_or_an_error_that_says_which(fuzz_seeds: range) -> None:
    ended = asyncio.run(asyncio.wait_for(ask_all(fuzz_seeds), 1_200))
    assert sum(ended.values()) == len(fuzz_seeds)
    # without this, replies that all end alike would pass as well
    kinds = ("page", "page with rejects", "TransientError", "ContractError")
    assert min(ended[kind] for kind in kinds) >= 50, ended
    assert {"AuthError", "NotFoundError"} & set(ended), ended


class Dripping:
    """A transport that lets each reply of a seed drip in, on a loop whose time passes only by sleeping."""

    status = 200
    headers: Mapping[str, str] = {}

    def __init__(self, seed: int) -> None:
        self._dice = Random(f"drip {seed}")
        self._pause_s = self._dice.choice((0.05, 0.3, 1.0, 10.0, 59.0))
        self._size = self._dice.choice((0, 1, 9, 1_000))
        self.body = spoilt(seed).body or WHOLE
        self.ends = self._dice.random() < 0.5

    @asynccontextmanager
    async def request(self, *_: object, **__: object) -> AsyncIterator[Dripping]:
        await asyncio.sleep(self._pause_s)
        yield self

    @property
    def content(self) -> Dripping:
        return self

    async def iter_any(self) -> AsyncIterator[bytes]:
        for at in range(0, len(self.body), max(self._size, 1)):
            await asyncio.sleep(self._dice.uniform(0, self._pause_s))
            yield self.body[at : at + self._size]
        while not self.ends:
            await asyncio.sleep(self._dice.uniform(0, self._pause_s) + 0.001)
            yield b" " * self._size

    async def close(self) -> None:
        pass


def test_a_call_ends_however_slowly_its_replies_come() -> None:
    ended = Counter[str]()
    for seed in range(100):
        with virtual_loop() as loop:
            ended[loop.call(_read_dripping, loop, seed)] += 1
            assert loop.time() <= LIMITS.call_s + RetryPolicy().backoff_cap_s, f"seed {seed}"
    assert ended["TransientError"] >= 10
    assert ended["page"] >= 10


async def _read_dripping(loop: VirtualLoop, seed: int) -> str:
    async with ServiceClient("http://h", TOKEN, transport=Dripping(seed), monotonic=loop.time) as client:
        try:
            await client.list_records("imp", 1)
        except ConnectorError as error:
            return type(error).__name__
        return "page"
