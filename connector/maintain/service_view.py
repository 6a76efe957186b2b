"""Read what the service shows now, for commands that compare and load nothing: the listing, single imports, records.

Listing and reading work as in a sync, so they are equally complete.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from connector.errors import AuthError, ConnectorError, NotFoundError
from connector.extract.concurrency import run_concurrently
from connector.extract.convention import FROM_ONE, PageConvention
from connector.extract.imports import ImportLister
from connector.extract.listing import Listing
from connector.extract.records import ImportRead, read_import, request_import
from connector.models import Import, Reject
from connector.run.pipeline import READ_AHEAD_ROWS
from connector.run.ports import Loop, Progress
from connector.service.client import ServiceClient
from connector.settings import Settings

READS_AT_ONCE = 32

Answer = Import | ConnectorError | None
"""An import requested by its slug; None if the service answers 404."""


@dataclass(slots=True)
class ServiceView:
    """The service, for a synchronous caller; `convention` is what its latest listing showed."""

    client: ServiceClient
    loop: Loop
    settings: Settings
    progress: Progress
    convention: PageConvention = FROM_ONE

    def listing(self, expected: int) -> Listing[Import | Reject]:
        """Return all imports, of the configured status if there is one; `expected` of them are requested at once."""
        return self.loop.call(self._list, expected)

    def wanted(self, import_: Import) -> bool:
        return self.settings.status is None or import_.status == self.settings.status

    def included(self, import_: Import) -> bool:
        """Return whether the records of the import are read, by the settings `templates` and `exclude_templates`."""
        return self.settings.includes(import_.template_names)

    def current(self, slugs: Sequence[str]) -> dict[str, Answer]:
        """Return the present version of each of these imports."""
        return dict(zip(slugs, self.loop.call(self._ask_all, slugs), strict=True))

    def reads(self, imports: Iterable[Import]) -> Iterator[tuple[Import, ImportRead | ConnectorError]]:
        """Yield the records of each import as they arrive, reading a bounded number of rows ahead."""
        outcomes = self._read_ahead(imports)
        try:
            while True:
                try:
                    outcome = self.loop.call(outcomes.__anext__)
                except StopAsyncIteration:
                    return
                yield outcome
        finally:
            self.loop.call(outcomes.aclose)  # type: ignore[attr-defined]

    async def _list(self, expected: int) -> Listing[Import | Reject]:
        lister = ImportLister(self.client, self.settings.status, self.progress.listed, expected=expected)
        listing = await lister.all()
        self.convention = listing.convention
        named = {i.slug: i for i in self.client.with_one_name([row for row in listing.rows if isinstance(row, Import)])}
        return replace(
            listing, rows=tuple(named.get(row.slug, row) if isinstance(row, Import) else row for row in listing.rows)
        )

    async def _ask_all(self, slugs: Sequence[str]) -> list[Answer]:
        found: list[Answer] = []
        for start in range(0, len(slugs), READS_AT_ONCE):
            found += await run_concurrently(self._ask(slug) for slug in slugs[start : start + READS_AT_ONCE])
        return found

    async def _ask(self, slug: str) -> Answer:
        try:
            return await request_import(self.client, slug)
        except NotFoundError:
            return None
        except ConnectorError as error:
            return _unless_fatal(error)

    async def _read(self, import_: Import) -> ImportRead | ConnectorError:
        try:
            return await read_import(self.client, import_, self.convention)
        except ConnectorError as error:
            return _unless_fatal(error)

    async def _read_ahead(self, imports: Iterable[Import]) -> AsyncIterator[tuple[Import, ImportRead | ConnectorError]]:
        waiting = deque(imports)
        running: dict[asyncio.Task[ImportRead | ConnectorError], Import] = {}
        try:
            while waiting or running:
                while waiting and _has_room(running.values(), waiting[0]):
                    following = waiting.popleft()
                    running[asyncio.ensure_future(self._read(following))] = following
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    yield running.pop(task), task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


def _has_room(running: Iterable[Import], following: Import) -> bool:
    rows = [max(i.row_count, 1) for i in running]
    return not rows or (len(rows) < READS_AT_ONCE and sum(rows) + following.row_count <= READ_AHEAD_ROWS)


def _unless_fatal(error: ConnectorError) -> ConnectorError:
    if isinstance(error, AuthError) and error.status == 401:
        raise error
    return error
