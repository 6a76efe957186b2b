"""Spoilt replies on the way into a warehouse: what is in it is what was sent, and what is not there is reported."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random

import pytest

from connector.run.ports import Ports
from connector.run.sync import sync
from connector.service.client import ServiceClient
from connector.service.limits import LIMITS
from connector.service.retry import RetryPolicy
from connector.settings import Settings
from connector.transform.json_slices import is_json
from tests.run.conftest import Warehouse
from tests.service.fuzzing import Spoilt, spoilt
from tests.service.hostile import Reply, Script, Seen, hostile, http, import_row, page
from tests.service.right_pages import was_sent

IMPORTS = 60
TOKEN = "tok-3cr3t-3cr3t-3cr3t"


@contextmanager
def in_a_thread(script: Script) -> Iterator[str]:
    loop = asyncio.new_event_loop()
    opened = hostile(script)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(opened.__aenter__(), loop).result(10).url
    finally:
        asyncio.run_coroutine_threadsafe(opened.__aexit__(None, None, None), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def some_cases(first: int) -> dict[str, Spoilt]:
    """Pages of records whose reply does not hang, by the slug of the import that they are all of."""
    made = (spoilt(seed, hangs=False) for seed in range(first, first + 10 * IMPORTS))
    usable = (
        each for each in made if not each.listing and not {"429", "503"}.intersection(" ".join(each.done).split())
    )
    return {f"i{each.seed}": each for each, _ in zip(usable, range(IMPORTS), strict=False)}


@pytest.mark.parametrize("first", [0, pytest.param(1_000, marks=pytest.mark.thorough)])
def test_a_row_is_in_the_warehouse_as_it_was_sent_or_its_import_is_not_whole(first: int, warehouse: Warehouse) -> None:
    cases = some_cases(first)
    listed = {slug: import_row(slug, row_count=len(case.rows)) for slug, case in cases.items()}

    def answer(seen: Seen) -> Reply:
        path, _, query = seen.line.split()[1].partition("?")
        parts = path.removeprefix("/api/v1/imports").strip("/").split("/")
        if parts == [""]:
            number, size = (int(part.split("=")[1]) for part in query.split("&"))
            return page(*list(listed.values())[(number - 1) * size : number * size])
        if len(parts) == 1:
            return http(200, listed[parts[0]])
        return cases[parts[0]].reply if "page=1&" in query else page()

    def client(settings: Settings) -> ServiceClient:
        async def at_once(_: float) -> None:
            await asyncio.sleep(0)

        policy = RetryPolicy(error_attempts=2, garbage_attempts=2, outage_s=0.0)
        limits = replace(LIMITS, silence_s=5.0)
        return ServiceClient(settings.base_url, TOKEN, retry=policy, limits=limits, sleep=at_once, random=Random(1))

    with in_a_thread(answer) as url:
        settings = Settings.load(base_url=url, access_token=TOKEN)
        summary = sync(warehouse.pipeline(), settings, ports=replace(Ports.real(), open_client=client))

    assert summary.status == "partial"
    states = dict(warehouse.query("SELECT slug, state FROM sync_imports"))
    assert states.keys() == cases.keys()
    loaded: dict[str, dict[str, str]] = {slug: {} for slug in cases}
    for slug, record, data in warehouse.query("SELECT import_slug, slug, data FROM records"):
        loaded[slug][record] = data
    rejected = dict(warehouse.query("SELECT import_slug, count(*) FROM sync_rejects GROUP BY 1"))
    for slug, case in cases.items():
        words = f"seed {case.seed} ({', '.join(case.done) or 'as it was'}): {states[slug]}"
        if case.is_as_it_was:
            assert states[slug] == "synced", words
        for record, data in loaded[slug].items():
            assert is_json(data.encode()), words
            assert was_sent(case, record, data), words
        if states[slug] == "synced":
            assert len(loaded[slug]) + rejected.get(slug, 0) == len(case.rows), words
