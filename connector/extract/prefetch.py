"""Records read while the listing is still being proven, whose requests come one round after another.

Invariant: such a reading counts only if it is complete, of exactly the import that is planned in the end, and made
while the service's pages were counted as they are then; any other import is read as if nothing had been. Only imports
that have not changed lately are read so early: a change within the same second or so as the last one, which times may
not show, is more likely seen the later an import is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from connector.errors import ConnectorError
from connector.extract.records import ImportRead, RecordsClient, Verdict, read_import
from connector.models import Import

IMPORTS_PER_REQUEST = 8  # that may be under way at once, begun before anything is planned
MOST_ROWS = 10_000  # of them, as they wait in memory


@dataclass(frozen=True, slots=True)
class _Begun:
    import_: Import
    first_page: int
    reading: asyncio.Task[ImportRead]


class HeadStart:
    """Used on one event loop, from the first `offer` to `aclose`."""

    def __init__(self, client: RecordsClient, max_concurrency: int) -> None:
        self._client = client
        self._most_imports = IMPORTS_PER_REQUEST * max_concurrency
        self._max_concurrency = max_concurrency
        self._waiting: dict[str, Import] = {}
        self._begun: dict[str, _Begun] = {}
        self._rows = 0
        self._unfinished: set[asyncio.Task[ImportRead]] = set()
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
                del self._begun[slug]

    def reading(self, import_: Import) -> asyncio.Task[ImportRead]:
        """Of a planned import: what has begun, or begins now. It belongs to the caller."""
        begun = self._begun.pop(import_.slug, None)
        return asyncio.ensure_future(
            read_import(self._client, import_) if begun is None else self._completed(begun.reading, import_)
        )

    async def aclose(self) -> None:
        """Ends whatever is under way."""
        self.settle(())
        for reading in self._unfinished:
            reading.cancel()
        await asyncio.gather(*self._unfinished, return_exceptions=True)

    async def _completed(self, early: asyncio.Task[ImportRead], import_: Import) -> ImportRead:
        """What was not to be had so early may be there by now."""
        with suppress(ConnectorError):
            read = await early
            if read.verdict is Verdict.complete:
                return read
        return await read_import(self._client, import_)

    def _begin(self) -> None:
        """A single import of any length may be begun, so the number of rows is looked at before."""
        while self._waiting and len(self._unfinished) < self._max_concurrency and self._rows < MOST_ROWS:
            import_ = self._waiting.pop(next(iter(self._waiting)))
            self._rows += max(import_.row_count, 1)
            reading = asyncio.ensure_future(read_import(self._client, import_))
            self._unfinished.add(reading)
            reading.add_done_callback(self._ended)
            self._begun[import_.slug] = _Begun(import_, self._client.first_page, reading)

    def _ended(self, reading: asyncio.Task[ImportRead]) -> None:
        self._unfinished.discard(reading)
        if not reading.cancelled():
            reading.exception()  # asyncio complains of those that nobody looks at
        self._begin()
