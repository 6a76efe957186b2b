"""What one import brings decides how the next one is typed: they are built one at a time, in the order handed over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import cast

import pytest

from connector.extract.records import ImportRead, Verdict
from connector.load.batches import Builder, BuiltImports
from connector.models import Import, Record
from connector.run.pipeline import FEW_ROWS, Prefetcher
from connector.run.plan import Planned, Reason
from connector.run.ports import Ports

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LARGE, SMALL = FEW_ROWS + 1, 3  # built in the background, and at once where nothing is being built


class Watched:
    """A builder that takes its time for the large ones, and sees whether another is at work."""

    def __init__(self) -> None:
        self.built: list[str] = []
        self._at_work = 0

    def build(self, read: ImportRead) -> BuiltImports:
        self._at_work += 1
        assert self._at_work == 1, "two imports are built at once"
        time.sleep(0.02 if len(read.records) == LARGE else 0)
        self.built.append(read.import_.slug)
        self._at_work -= 1
        return BuiltImports.of([read], None, ())

    def build_all(self, reads: Iterable[ImportRead]) -> Iterator[BuiltImports]:
        return map(self.build, reads)


def test_imports_are_built_one_at_a_time_in_the_order_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [LARGE, SMALL, LARGE, LARGE, SMALL, SMALL, LARGE, SMALL] * 3
    imports = [
        Import(slug=f"i{n}", row_count=size, created_at=NOW, updated_at=NOW, status="completed")
        for n, size in enumerate(sizes)
    ]

    async def read_at_once(import_: Import) -> ImportRead:
        records = (Record("r", b"{}", None, None, None),) * import_.row_count
        return ImportRead(import_, Verdict.complete, records)

    builder = Watched()
    at_the_end: list[list[str]] = []

    async def all_slugs() -> list[str]:
        prefetcher = Prefetcher(
            lambda import_: asyncio.ensure_future(read_at_once(import_)),
            cast("Builder", builder),
            tuple(Planned(import_, Reason.new) for import_ in imports),
            max_concurrency=4,
            run_in_background=Ports.real().run_in_background,
            stop=lambda: None,
            on_built=lambda: at_the_end.append(list(builder.built)),
        )
        prefetcher.start()
        slugs: list[str] = []
        while taken := await prefetcher.take():
            for planned, outcome in taken:
                assert isinstance(outcome, BuiltImports)
                slugs += [each.import_.slug for each in planned]
        return slugs

    handed_over = asyncio.run(asyncio.wait_for(all_slugs(), 30))
    assert handed_over == builder.built
    assert at_the_end == [handed_over], "told once, when nothing was left to build"
    assert sorted(handed_over) == sorted(import_.slug for import_ in imports)
