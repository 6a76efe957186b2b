"""Reading one import's records until they are proven complete (CONTRACT §4.3).

Invariant: the verdict `complete` is given only to rows that were gathered while the import's fingerprint stood
still, and of which there are as many distinct ones as its `row_count` says, no page beyond the last one full, and
no pass that received more. What can move without showing in a single reply cannot be missed: an import that fits
into one page with room to spare is a snapshot, every other one has its fingerprint read again after its pages. Room
to spare is what the service has been seen to send: it may clamp its pages far lower than asked.

Where the count does not match, further passes are united with what is there as long as the fingerprint holds (an
order that changes at every request hides rows from any one pass). An unfinished import, whose `row_count` may lag,
is also complete when two neat passes in a row show exactly the same rows, or when the union has settled.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from connector.core.planning import COMPLETED
from connector.errors import AuthError, ConnectorError, NotFoundError, TransientError
from connector.models import Import, RecordPage, Reject
from connector.paging import MAX_PER_PAGE, in_turn, quiet_sweeps_needed, together
from connector.spool import LatestRecords, Records

MAX_MOVES = 5  # times the import may change under the reader before its turn goes to the next run
MAX_PASSES = 40
UNEVEN_QUIET = 6  # passes that add nothing, where pages were seen to lie: of few rows one may be missed twice by chance
PAGES_AHEAD = 64
EMPTY_ENOUGH = 16  # promised pages in a row: if all are empty, `row_count` promises too much
EMPTY_PAGES = 2  # behind the last page, before the end is believed though the count does not match
MAX_PAGES_BEYOND = 10_000  # behind what `row_count` promises: a million rows too many are a fault
MAX_WINDOW_BEYOND = 16
_SHRINK = (0, 1, 3, 11, 17, 21, 27, 29, 33, 39)


class Verdict(StrEnum):
    """How reading an import ended."""

    complete = "complete"
    unreconciled = "unreconciled"  # it stood still, and its records are not as many as it says
    restless = "restless"  # it kept changing, or its pages never ended: some of its records may be missing
    gone = "gone"


class RecordsClient(Protocol):
    """What reading needs of `connector.client.ServiceClient`: two endpoints, and what was seen of pages so far."""

    @property
    def first_page(self) -> int: ...
    @property
    def largest_page(self) -> int: ...
    @property
    def largest_page_of_records(self) -> int: ...
    async def get_import(self, slug: str) -> Import: ...
    async def list_records(self, import_slug: str, page: int, per_page: int = ...) -> RecordPage: ...


@dataclass(frozen=True, slots=True)
class ImportRead:
    """The outcome for one import, at the fingerprint of `import_`; `why` explains anything but `complete`.

    `records_metadata` is what the first page had beside its records.
    """

    import_: Import
    verdict: Verdict
    records: Records = ()
    rejects: tuple[Reject, ...] = ()
    passes: int = 0
    why: str | None = None
    records_metadata: bytes | None = None

    @property
    def doubtful(self) -> bool:
        return self.verdict in (Verdict.unreconciled, Verdict.restless)

    @property
    def miscounted(self) -> bool:
        """A finished import that only counts wrongly: what the setting `reconcile` is about, and nothing else is."""
        return self.verdict is Verdict.unreconciled and self.import_.status == COMPLETED


@dataclass(slots=True)
class _Pass:
    """One walk over the pages of `size`: what it showed and whether anything about it was odd."""

    size: int
    shown: set[str] = field(default_factory=set)
    received: int = 0
    replies: int = 0
    longest: int = 0
    last: int = 0
    ragged: bool = False  # rows followed a page that was not full
    endless: bool = False

    def note(self, page: RecordPage) -> None:
        self.replies += 1
        if page.size and self.replies > 1 and (self.last < self.longest or page.size > self.longest):
            self.ragged = True
        self.received += page.size
        self.longest = max(self.longest, page.size)
        self.last = page.size
        self.shown.update(record.slug for record in page.records)
        self.shown.update(reject.payload for reject in page.rejects)

    @property
    def neat(self) -> bool:
        """As many rows as positions: while nothing is added or deleted, their order alone can hide none."""
        return not self.ragged and self.received == len(self.shown)


@dataclass(slots=True)
class _Gathered:
    """Rows by slug (latest version), rejects by payload, since the fingerprint last moved."""

    records: LatestRecords = field(default_factory=LatestRecords)
    rejects: dict[str, Reject] = field(default_factory=dict)
    latest: _Pass | None = None
    quiet: int = 0  # passes in a row that added nothing
    misses: float = 0.0  # the largest share of what is known that a pass did not show
    uneven: bool = False  # whether a pass was not neat
    metadata: bytes | None = None  # of the first page of the latest pass

    def __len__(self) -> int:
        # a rejected row with a slug of its own counts once, and never beside a good row of that slug
        spoiled = {reject.record_slug or payload for payload, reject in self.rejects.items()}
        return len(self.records) + len(spoiled - self.records.slugs)

    def note(self, page: RecordPage) -> None:
        self.records.add(page.records)
        for reject in page.rejects:
            self.rejects[reject.payload] = reject

    def close(self, swept: _Pass, known: int) -> bool:
        """After a pass, with what was known before it: whether two neat ones in a row showed the same."""
        before, self.latest = self.latest, swept
        self.quiet = self.quiet + 1 if before is not None and len(self) == known else 0
        distinct = len(self.records) + len(self.rejects)
        self.uneven = self.uneven or not swept.neat
        self.misses = max(self.misses, 1 - len(swept.shown) / distinct if distinct else 0.0)
        return before is not None and before.neat and swept.neat and before.shown == swept.shown

    @property
    def settled(self) -> bool:
        return self.quiet >= max(quiet_sweeps_needed(self.misses), UNEVEN_QUIET if self.uneven else 0)


async def read_import(client: RecordsClient, import_: Import) -> ImportRead:
    """Reads all records of `import_`. Raises what the client raises, but for a 404, which is the verdict `gone`."""
    try:
        return await _read(client, import_)
    except NotFoundError:
        # only the import's own 404 counts: a records endpoint may be missing for other reasons
        current = await _get_or_none(client, import_)
        if current is None:
            return _gone(import_)
    try:
        return await _read(client, current)
    except NotFoundError:
        if await _get_or_none(client, import_) is None:
            return _gone(import_)
        raise


async def _get_or_none(client: RecordsClient, import_: Import) -> Import | None:
    try:
        return await client.get_import(import_.slug)
    except NotFoundError:
        return None


def _gone(import_: Import) -> ImportRead:
    return ImportRead(import_, Verdict.gone, why="the service answers 404 for it")


async def _read(client: RecordsClient, import_: Import) -> ImportRead:
    current, gathered, moves = import_, _Gathered(), 0
    from_zero = client.first_page == 1  # whether it may be that the service counts from there, unnoticed so far
    for passes in range(1, MAX_PASSES + 1):
        known = len(gathered)
        swept = await _read_pages(client, current, gathered, MAX_PER_PAGE - _SHRINK[(passes - 1) % len(_SHRINK)])
        whole = passes == 1 and swept.replies == 1 and len(gathered) == current.row_count
        if whole and swept.longest < min(_known_room(client, current), MAX_PER_PAGE):
            return _outcome(current, gathered, passes)
        if from_zero and len(gathered) != current.row_count:
            from_zero = await _page_0_adds(client, current, gathered, swept.size)
        after = await client.get_import(current.slug)
        if after.fingerprint != current.fingerprint:
            moves += 1
            if moves > MAX_MOVES:
                return _restless(after, gathered, passes, f"it changed {moves} times while it was read")
            current, gathered = after, _Gathered()
            continue
        current = after
        if swept.endless:
            return _restless(current, gathered, passes, "its pages go on and on")
        same = gathered.close(swept, known)
        if _is_complete(current, gathered, swept, same=same):
            return _outcome(current, gathered, passes)
        if gathered.settled:
            return _outcome(current, gathered, passes, Verdict.unreconciled, _count(current, gathered))
    count = len(gathered)
    why = (
        f"its pages still repeat rows after {passes} passes"
        if count == current.row_count
        else _count(current, gathered)
    )
    return _restless(current, gathered, passes, why)


def _known_room(client: RecordsClient, import_: Import) -> int:
    """As many as the service is known to send at once; of records, which it may clamp lower, if the count may lag."""
    return client.largest_page if import_.status == COMPLETED else client.largest_page_of_records


def _count(import_: Import, gathered: _Gathered) -> str:
    return f"{len(gathered)} distinct records were found where row_count says {import_.row_count}"


def _is_complete(import_: Import, gathered: _Gathered, swept: _Pass, *, same: bool) -> bool:
    found, promised = len(gathered), import_.row_count
    if found == promised:
        # more was received than promised: the count may match only because rows are missing
        return swept.received <= promised or gathered.settled
    whole = found > promised or not swept.ragged
    return import_.status != COMPLETED and (same or (gathered.settled and whole))


def _restless(import_: Import, gathered: _Gathered, passes: int, why: str) -> ImportRead:
    return _outcome(import_, gathered, passes, Verdict.restless, why)


def _outcome(
    import_: Import, gathered: _Gathered, passes: int, verdict: Verdict = Verdict.complete, why: str | None = None
) -> ImportRead:
    rejects = tuple(gathered.rejects.values())
    return ImportRead(import_, verdict, gathered.records.all(), rejects, passes, why, gathered.metadata)


async def _read_pages(client: RecordsClient, import_: Import, gathered: _Gathered, size: int) -> _Pass:
    """One pass: the pages `row_count` promises side by side, then on until the count is met or the pages end."""
    swept = _Pass(size)
    expected = max(import_.row_count, len(gathered))
    promised = expected // size + 1  # the last of them has room for more
    page, empty = 1, 0
    while page <= promised and empty < EMPTY_ENOUGH:
        pages = (_page(client, import_.slug, number, size) for number in range(page, promised + 1))
        async with aclosing(in_turn(pages, PAGES_AHEAD)) as replies:
            async for reply in replies:
                gathered.note(reply)
                swept.note(reply)
                if page == 1:
                    gathered.metadata = reply.metadata
                page += 1
                empty = 0 if reply.size else empty + 1
                if empty >= EMPTY_ENOUGH:
                    break
        if 0 < swept.longest < size and len(swept.shown) < expected:
            promised = max(promised, expected // swept.longest + 1)  # per_page is clamped lower than asked
    full = swept.last >= (swept.longest if promised > 1 else min(size, _known_room(client, import_)))
    if len(gathered) != import_.row_count or full:
        await _read_on(client, import_, gathered, swept, page, size)
    return swept


async def _read_on(
    client: RecordsClient, import_: Import, gathered: _Gathered, swept: _Pass, page: int, size: int
) -> None:
    """Pages behind the promised ones, more and more at once, until they are empty or only repeat this pass."""
    idle, window, limit = 0, 1, page + MAX_PAGES_BEYOND
    while idle < (1 if len(gathered) == import_.row_count else EMPTY_PAGES):
        if page >= limit:
            swept.endless = True
            return
        for reply in await _ask(client, import_, range(page, page + window), size):
            shown = len(swept.shown)
            gathered.note(reply)
            swept.note(reply)
            idle = 0 if len(swept.shown) > shown else idle + 1
        page += window
        window = 1 if idle else min(2 * window, MAX_WINDOW_BEYOND)


async def _page_0_adds(client: RecordsClient, import_: Import, gathered: _Gathered, size: int) -> bool:
    """Looks for more where a service has them that counts its pages from 0, before it is believed to have no more.

    Raises what the client raises where no other check would notice that something is missing.
    """
    known = len(gathered)
    try:
        gathered.note(await _page(client, import_.slug, 0, size))
    except AuthError:
        raise
    except TransientError:
        if import_.status != COMPLETED and known < import_.row_count:
            raise
        return False
    except ConnectorError:
        return False
    return len(gathered) > known


async def _ask(client: RecordsClient, import_: Import, pages: range, size: int) -> list[RecordPage]:
    return await together(_page(client, import_.slug, page, size) for page in pages)


async def _page(client: RecordsClient, slug: str, page: int, size: int) -> RecordPage:
    try:
        return await client.list_records(slug, page, size)
    except NotFoundError:
        if page == 1:
            raise
        return RecordPage([], [], 0)  # some services answer 404 behind the last page; a deleted import shows later
