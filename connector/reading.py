"""Reading one import's records until they are proven complete (CONTRACT §4.3).

Invariant: the verdict `complete` is given only to rows that were gathered while the import's fingerprint stood
still, and of which there are as many distinct ones as its `row_count` says, no page beyond the last one full. What
can move without showing in a single reply cannot be missed: an import that fits into one page with room to spare is
a snapshot, every other one has its fingerprint read again after its pages.

Where the count does not match, further passes are united with what is there as long as the fingerprint holds (an
order that changes at every request hides rows from any one pass). An unfinished import, whose `row_count` may lag,
is also complete when two passes in a row show exactly the same rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from connector.core.planning import COMPLETED
from connector.errors import NotFoundError
from connector.models import Import, Record, RecordPage, Reject
from connector.paging import MAX_PER_PAGE, together

MAX_MOVES = 5  # times the import may change under the reader before its turn goes to the next run
MAX_PASSES = 40
QUIET_PASSES = 2  # passes that add nothing before a wrong count is believed to stay wrong
PAGES_AT_ONCE = 64
EMPTY_PAGES = 2  # behind the last page, before the end is believed though rows are missing
_SHRINK = (0, 0, 3, 11, 17, 21, 27, 29, 33, 39)


class Verdict(StrEnum):
    """How reading an import ended."""

    complete = "complete"
    unreconciled = "unreconciled"
    gone = "gone"


class RecordsClient(Protocol):
    """The two endpoints that reading needs (`connector.client.ServiceClient`)."""

    async def get_import(self, slug: str) -> Import: ...
    async def list_records(self, import_slug: str, page: int, per_page: int = ...) -> RecordPage: ...


@dataclass(frozen=True, slots=True)
class ImportRead:
    """The outcome for one import, at the fingerprint of `import_`; `why` explains anything but `complete`."""

    import_: Import
    verdict: Verdict
    records: tuple[Record, ...] = ()
    rejects: tuple[Reject, ...] = ()
    passes: int = 0
    why: str | None = None


@dataclass(slots=True)
class _Gathered:
    """Rows by slug (latest version), rejects by payload, since the fingerprint last moved."""

    records: dict[str, Record] = field(default_factory=dict)
    rejects: dict[str, Reject] = field(default_factory=dict)
    last_pass: set[str] = field(default_factory=set)
    replies: int = 0

    def __len__(self) -> int:
        # a rejected row with a slug of its own counts once, and never beside a good row of that slug
        spoiled = {reject.record_slug or payload for payload, reject in self.rejects.items()}
        return len(self.records) + len(spoiled - self.records.keys())

    def note(self, page: RecordPage) -> None:
        self.replies += 1
        for record in page.records:
            before = self.records.get(record.slug)
            if before is None or _newer(before, record):
                self.records[record.slug] = record
            self.last_pass.add(record.slug)
        for reject in page.rejects:
            self.rejects[reject.payload] = reject
            self.last_pass.add(reject.payload)


def _newer(before: Record, after: Record) -> bool:
    if before.updated_at is None or after.updated_at is None:
        return True
    return after.updated_at >= before.updated_at


async def read_import(client: RecordsClient, import_: Import) -> ImportRead:
    """Reads all records of `import_`. Raises what the client raises, but for a 404, which is the verdict `gone`."""
    try:
        return await _read(client, import_)
    except NotFoundError:
        # only the import's own 404 counts: a records endpoint may be missing for other reasons
        try:
            current = await client.get_import(import_.slug)
        except NotFoundError:
            return ImportRead(import_, Verdict.gone, why="the service answers 404 for it")
        return await _read(client, current)


async def _read(client: RecordsClient, import_: Import) -> ImportRead:
    current, gathered, moves, quiet, passes = import_, _Gathered(), 0, 0, 0
    while passes < MAX_PASSES:
        shown_before, known = gathered.last_pass, len(gathered)
        gathered.last_pass = set()
        size = MAX_PER_PAGE - _SHRINK[passes % len(_SHRINK)]
        await _read_pages(client, current, gathered, size)
        passes += 1
        if passes == 1 and _is_snapshot(current, gathered):
            return _outcome(current, gathered, passes)
        after = await client.get_import(current.slug)
        if after.fingerprint != current.fingerprint:
            moves += 1
            if moves > MAX_MOVES:
                why = f"it changed {moves} times while it was read"
                return _outcome(after, gathered, passes, why)
            current, gathered, quiet = after, _Gathered(), 0
            continue
        current = after
        if len(gathered) == current.row_count:
            return _outcome(current, gathered, passes)
        same = gathered.last_pass == shown_before and len(gathered) == known
        if same and current.status != COMPLETED:
            return _outcome(current, gathered, passes)
        quiet = quiet + 1 if len(gathered) == known and known else 0
        if quiet >= QUIET_PASSES or (passes > QUIET_PASSES and not gathered):
            break
    why = f"{len(gathered)} distinct records were found where row_count says {current.row_count}"
    return _outcome(current, gathered, passes, why)


def _is_snapshot(import_: Import, gathered: _Gathered) -> bool:
    return gathered.replies == 1 and len(gathered) == import_.row_count < MAX_PER_PAGE


def _outcome(import_: Import, gathered: _Gathered, passes: int, why: str | None = None) -> ImportRead:
    verdict = Verdict.complete if why is None else Verdict.unreconciled
    records = tuple(gathered.records.values())
    return ImportRead(import_, verdict, records, tuple(gathered.rejects.values()), passes, why)


async def _read_pages(client: RecordsClient, import_: Import, gathered: _Gathered, size: int) -> None:
    """One pass: the pages `row_count` promises side by side, then on until the count is met or the pages end."""
    expected = max(import_.row_count, 0)
    promised = max(1, math.ceil(expected / size))
    page, longest, last = 1, 0, 0
    while page <= promised:
        upto = min(page + PAGES_AT_ONCE, promised + 1)
        replies = await together(client.list_records(import_.slug, n, size) for n in range(page, upto))
        for reply in replies:
            gathered.note(reply)
        longest = max(longest, *(reply.size for reply in replies))
        last, page = replies[-1].size, upto
        if 0 < longest < size and len(gathered) < expected:
            promised = max(promised, math.ceil(expected / longest))  # per_page is clamped lower than asked
    full = last >= (longest if promised > 1 else size)
    if len(gathered) < expected or full:
        await _read_on(client, import_, gathered, page, size)


async def _read_on(client: RecordsClient, import_: Import, gathered: _Gathered, page: int, size: int) -> None:
    """Pages behind the promised ones, until they are empty or only repeat what is there."""
    idle, limit = 0, 2 * page + 1000
    while idle < (1 if len(gathered) >= import_.row_count else EMPTY_PAGES) and page < limit:
        known = len(gathered.records) + len(gathered.rejects)
        gathered.note(await client.list_records(import_.slug, page, size))
        idle = 0 if len(gathered.records) + len(gathered.rejects) > known else idle + 1
        page += 1
