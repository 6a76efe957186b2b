"""Records read while the listing is still being proven, whose requests come one round after another.

Invariant: such a reading counts only for exactly the import that is planned in the end, and only if the service's pages
are still counted as they were when it began; any other import is read as if nothing had been. What is read how early
proves nothing less: an import's records are proven by its own pages and fingerprint (`connector.reading`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from connector.models import Import
from connector.reading import ImportRead, RecordsClient, read_import

IMPORTS_PER_REQUEST = 8  # that may be under way at once, begun before anything is planned
MOST_ROWS = 10_000  # of them, as they wait in memory


class NumberedClient(RecordsClient, Protocol):
    """`connector.client.ServiceClient`, once more: what the listing may learn of it while records are read already."""

    @property
    def first_page(self) -> int: ...


@dataclass(frozen=True, slots=True)
class _Begun:
    import_: Import
    first_page: int
    reading: asyncio.Task[ImportRead]


class HeadStart:
    """Used on one event loop, from the first `offer` to `aclose`."""

    def __init__(self, client: NumberedClient, max_concurrency: int) -> None:
        self._client = client
        self._most_imports = IMPORTS_PER_REQUEST * max_concurrency
        self._most_running = max_concurrency
        self._waiting: dict[str, Import] = {}
        self._begun: dict[str, _Begun] = {}
        self._running = 0
        self._rows = 0
        self._dropped: list[asyncio.Task[ImportRead]] = []
        self._settled = False

    def offer(self, import_: Import) -> None:
        """An import that will be read, unless the rest of the listing says otherwise."""
        room = len(self._waiting) + len(self._begun) < self._most_imports
        if room and not self._settled and import_.slug not in self._begun:
            self._waiting[import_.slug] = import_
            self._begin()

    def settle(self, planned: Iterable[Import]) -> None:
        """Drops all that is not for exactly these imports, and begins no others."""
        self._settled = True
        self._waiting.clear()
        wanted = {import_.slug: import_ for import_ in planned}
        for slug, begun in list(self._begun.items()):
            if wanted.get(slug) != begun.import_ or begun.first_page != self._client.first_page:
                begun.reading.cancel()
                self._dropped.append(self._begun.pop(slug).reading)

    def reading(self, import_: Import) -> asyncio.Task[ImportRead]:
        """Of a planned import: what has begun, or begins now. It belongs to the caller."""
        begun = self._begun.pop(import_.slug, None)
        return self._start(import_) if begun is None else begun.reading

    async def aclose(self) -> None:
        """Ends what nobody asked for."""
        self.settle(())
        await asyncio.gather(*self._dropped, return_exceptions=True)

    def _begin(self) -> None:
        """A single import of any length may be begun, so the number of rows is looked at before."""
        while self._waiting and self._running < self._most_running and self._rows < MOST_ROWS:
            import_ = self._waiting.pop(next(iter(self._waiting)))
            self._running += 1
            self._rows += max(import_.row_count, 1)
            reading = self._start(import_)
            reading.add_done_callback(self._ended)
            self._begun[import_.slug] = _Begun(import_, self._client.first_page, reading)

    def _ended(self, _: asyncio.Task[ImportRead]) -> None:
        self._running -= 1
        self._begin()

    def _start(self, import_: Import) -> asyncio.Task[ImportRead]:
        return asyncio.ensure_future(read_import(self._client, import_))
