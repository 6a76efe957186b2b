"""Read one import's records until they are proven complete (docs/guarantees.md, "Page numbers").

Invariant: rows get the verdict `complete` only if they were read while the import's fingerprint did not change, the
number of distinct rows equals its `row_count`, no page behind the last one is full, and no sweep received more rows. A
change that shows in no single reply is not missed: an import that fits into one page with room to spare is a snapshot,
and for every other import the fingerprint is read again after its pages. A page has room to spare if it is shorter than
the longest page that the service has sent so far, because the service may clamp pages far below the requested size.

If the count does not match, the rows of further sweeps are added as long as the fingerprint does not change (an order
that changes at every request hides rows from any single sweep). An unfinished import, whose `row_count` may lag, is
also complete when two consistent sweeps in a row show exactly the same rows, or when further sweeps add nothing.

A page behind the first that the service refuses with a 4xx counts as empty, because the service may report the end in
this way. It is the end only if no more rows are known than came on the pages before it; otherwise the count has to
match, or reading fails with that error.

An import's own URL is used only to see whether the import changed: its replies are compared with each other. The import
is returned as the listing shows it, because the next listing is compared with that. Its own URL may leave out fields
and show finer times.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from random import Random
from typing import Protocol

from msgspec import structs

from connector.errors import (
    AuthError,
    ConnectorError,
    ContractError,
    NotFoundError,
    TransientError,
    means_no_such_page,
)
from connector.extract.agreement import DIVISORS, SHORTENED_BY, UNEVEN_QUIET, quiet_sweeps_needed
from connector.extract.concurrency import run_concurrently, run_in_order
from connector.extract.convention import FROM_ONE, PageConvention
from connector.extract.page_sizes import MAX_PER_PAGE, SHORTER_PAGES
from connector.extract.shortening import Shortening
from connector.extract.spill import LatestRecords, Records
from connector.ledger import COMPLETED
from connector.models import EPOCH, Import, RecordPage, Reject

MAX_MOVES = 5  # times the import may change while it is read before it is left to the next run
MAX_SWEEPS = 40
PAGES_AHEAD = 64
VAIN_ENOUGH = 16  # pages within `row_count` in a row: if each is empty or repeats the last one, `row_count` is too high
EMPTY_PAGES = 2  # behind the last page, before the end is accepted although the count does not match
MAX_PAGES_BEYOND = 10_000  # behind the pages of `row_count`: a million rows too many are a fault
MAX_WINDOW_BEYOND = 16
MAX_ROWS = 1_000_000_000  # of one import; nobody uploads more, and reading on would never end
_UNITS = tuple(timedelta(microseconds=n) for n in (1, 1_000, 1_000_000, 60_000_000))  # of a service's times


class Verdict(StrEnum):
    """How reading an import ended."""

    complete = "complete"
    unreconciled = "unreconciled"  # it did not change, and the number of its records differs from `row_count`
    unstable = "unstable"  # it kept changing, or its pages never ended: some of its records may be missing
    gone = "gone"
    left = "left"  # it changed while it was read, so that another run has to decide whether and how to read it


class RecordsClient(Protocol):
    """What reading needs of `ServiceClient` (service/client): two endpoints, the largest page so far, and the time."""

    @property
    def largest_page(self) -> int: ...
    @property
    def largest_page_of_records(self) -> int: ...
    def service_time(self) -> datetime: ...
    async def get_import(self, slug: str) -> Import: ...
    async def list_records(self, import_slug: str, page: int, per_page: int = ...) -> RecordPage: ...


@dataclass(frozen=True, slots=True)
class ImportRead:
    """The outcome for one import, at the fingerprint of `import_`; `why` explains anything but `complete`.

    `asked_at`: an instant that the service's clock had passed before the first of these records was requested;
    `records_metadata`: the other contents of the first page.
    """

    import_: Import
    verdict: Verdict
    records: Records = ()
    rejects: tuple[Reject, ...] = ()
    sweeps: int = 0
    why: str | None = None
    asked_at: datetime | None = None
    records_metadata: bytes | None = None

    @property
    def unproven(self) -> bool:
        return self.verdict in (Verdict.unreconciled, Verdict.unstable)

    @property
    def miscounted(self) -> bool:
        """Return whether a completed import did not change and only its count is wrong, which `reconcile` is about."""
        return self.verdict is Verdict.unreconciled and self.import_.status == COMPLETED


@dataclass(slots=True)
class _Sweep:
    """One sweep over the pages of `size`: the rows that it showed and whether it was inconsistent."""

    size: int
    convention: PageConvention
    dice: Random | None = None  # for the order of its requests
    shown: set[str] = field(default_factory=set)
    received: int = 0
    replies: int = 0
    longest: int = 0
    last: int = 0
    ragged: bool = False  # rows followed a page that was not full
    gap: bool = False  # rows followed an empty page
    endless: bool = False
    refusal: ConnectorError | None = None  # of the first page that the service refused
    before_refusal: int = 0  # rows on the pages before that one

    def note(self, page: RecordPage | ConnectorError) -> RecordPage:
        """Note a page and return it; return an empty page if it was refused."""
        if isinstance(page, ConnectorError):
            if self.refusal is None:
                self.refusal, self.before_refusal = page, self.received
            page = RecordPage([], [], 0)
        self.replies += 1
        if page.size and self.replies > 1 and (self.last < self.longest or page.size > self.longest):
            self.ragged = True
        self.gap = self.gap or bool(page.size and self.replies > 1 and not self.last)
        self.received += page.size
        self.longest = max(self.longest, page.size)
        self.last = page.size
        self.shown.update(record.slug for record in page.records)
        self.shown.update(reject.payload for reject in page.rejects)
        return page

    @property
    def consistent(self) -> bool:
        """Return whether the sweep had as many rows as positions.

        If so, order alone hides no row while nothing is added or deleted.
        """
        return not self.ragged and self.received == len(self.shown)


@dataclass(slots=True)
class _Gathered:
    """Rows by slug (latest version) and rejects by payload, read since the fingerprint last changed, at `asked_at`."""

    asked_at: datetime
    records: LatestRecords = field(default_factory=LatestRecords)
    rejects: dict[str, Reject] = field(default_factory=dict)
    latest: _Sweep | None = None
    quiet: int = 0  # sweeps in a row that added nothing
    misses: float = 0.0  # the largest share of the known rows that a sweep did not show
    uneven: bool = False  # whether a sweep was not consistent
    lengths: set[int] = field(default_factory=set)  # of the longest page of each sweep
    clamp: int | None = None  # that of the sweeps in which rows followed an empty page: pages may be cut to that length
    gapless: bool = False  # whether there was a sweep without such a page
    gap_error: ConnectorError | None = None  # of a refused page that must have known rows, since the last new row
    metadata: bytes | None = None  # of the first page of the latest sweep

    def __len__(self) -> int:
        # a rejected row with a slug counts once, and not at all if there is a good row with that slug
        spoiled = {reject.record_slug or payload for payload, reject in self.rejects.items()}
        return len(self.records) + len(spoiled - self.records.slugs)

    def note(self, page: RecordPage) -> None:
        self.records.add(page.records)
        for reject in page.rejects:
            self.rejects[reject.payload] = reject

    def close(self, sweep: _Sweep, known: int) -> bool:
        """Close a sweep that began with `known` rows.

        Return whether two consistent sweeps in a row showed the same rows.
        """
        before, self.latest = self.latest, sweep
        self.quiet = self.quiet + 1 if before is not None and len(self) == known else 0
        self.gap_error = self.gap_error if self.quiet else None
        self.lengths.add(sweep.longest)
        if sweep.gap:
            self.clamp = max(self.clamp or 0, sweep.longest)
        self.gapless = self.gapless or not sweep.gap
        if sweep.refusal is not None and sweep.before_refusal < len(self):
            self.gap_error = sweep.refusal
        distinct = len(self.records) + len(self.rejects)
        self.uneven = self.uneven or not sweep.consistent
        self.misses = max(self.misses, 1 - len(sweep.shown) / distinct if distinct else 0.0)
        return before is not None and before.consistent and sweep.consistent and before.shown == sweep.shown

    @property
    def hides_rows(self) -> bool:
        """Return whether an empty page may have hidden the same rows in all sweeps, since their pages were as long."""
        return not self.gapless and len(self.lengths) == 1

    @property
    def sweeps_agree(self) -> bool:
        return self.quiet >= max(quiet_sweeps_needed(self.misses), UNEVEN_QUIET if self.uneven else 0)


async def read_import(client: RecordsClient, import_: Import, convention: PageConvention = FROM_ONE) -> ImportRead:
    """Read all records of `import_`, from pages that the service numbers by `convention`.

    Raises what the client raises, except a 404, which is the verdict `gone`. If a page exceeds the limit on a reply, or
    is answered only if it is shorter, everything is requested again in shorter pages.
    """

    async def fetch(page: int, per_page: int) -> RecordPage:
        return await client.list_records(import_.slug, page, per_page)

    shortening, size = Shortening(fetch, _shorter), MAX_PER_PAGE
    while True:
        try:
            return await _read_of(client, import_, convention, size)
        except ConnectorError as error:
            shorter = await shortening.next_size(error, convention, size)
            if shorter is None:
                raise
            size = shorter


def _shorter(size: int) -> int | None:
    return next((shorter for shorter in SHORTER_PAGES if shorter < size), None)


async def _read_of(client: RecordsClient, import_: Import, convention: PageConvention, size: int) -> ImportRead:
    try:
        return await _read(client, import_, convention, size)
    except NotFoundError:
        # only a 404 for the import itself counts: a records endpoint may be missing for other reasons
        before = await _get_or_none(client, import_)
        if before is None:
            return _gone(import_)
    try:
        return await _read(client, import_, convention, size, before)
    except NotFoundError as error:
        refusal = error
    asked_at = client.service_time()
    after = await _get_or_none(client, import_)
    if after is None:
        return _gone(import_)
    still = after.fingerprint == before.fingerprint
    if refusal.page == convention.first and still and await _has_no_records(client, after, convention):
        return ImportRead(as_listed(import_, after), Verdict.complete, asked_at=asked_at)
    raise refusal


async def _has_no_records(client: RecordsClient, import_: Import, convention: PageConvention) -> bool:
    """Return whether a 404 for the records, received twice while the import did not change, means that it has none.

    Its `row_count` must be 0 too, and page 0 of an unfinished import must be empty: a service that counts pages from 0
    unnoticed may have all its records there while `row_count` lags behind.
    """
    if import_.row_count != 0:
        return False
    if import_.status == COMPLETED or convention.first == 0:
        return True
    try:
        return not (await client.list_records(import_.slug, 0)).size
    except ConnectorError as error:
        if isinstance(error, AuthError | TransientError):
            raise
        return True


async def request_import(client: RecordsClient, slug: str) -> Import:
    """Return the import with this slug. Raises ContractError if the service returns another one."""
    found = await client.get_import(slug)
    if found.slug != slug:
        raise ContractError(f"The service answers with import {found.slug} where import {slug} is asked for.")
    return found


async def _get_or_none(client: RecordsClient, import_: Import) -> Import | None:
    try:
        return await request_import(client, import_.slug)
    except NotFoundError:
        return None


def _gone(import_: Import) -> ImportRead:
    return ImportRead(import_, Verdict.gone, why="the service answers 404 for it")


def is_same_time(one: datetime, other: datetime) -> bool:
    """Return whether one of two times is the other, cut to milliseconds, seconds or minutes."""
    earlier, later = sorted((one, other))
    return any(earlier == later - (later - EPOCH) % unit for unit in _UNITS)


def as_listed(listed: Import, own: Import) -> Import:
    """Return the version that an import's own URL shows, with the values of the listing as far as possible.

    A version that differs from the listed one only by a finer time counts as the listed one: if it is a later one, the
    next listing shows another time, and the import is read again.
    """
    alike = (listed.row_count, listed.status) == (own.row_count, own.status)
    if alike and is_same_time(listed.updated_at, own.updated_at):
        return listed
    if listed.template is not None and own.template_slug in (None, listed.template.slug):
        shown = listed.shown_name if own.template is None else own.named(listed.template).shown_name
        own = structs.replace(own, template=listed.template, shown_name=shown)
    told = ("metadata_json", "extra_json")
    return structs.replace(own, **{name: getattr(listed, name) for name in told if getattr(own, name) is None})


async def _read(
    client: RecordsClient, import_: Import, convention: PageConvention, size: int, own: Import | None = None
) -> ImportRead:
    """Read all records by pages of `size`; `own` is what the import's own URL showed last, if it was requested."""
    current = import_ if own is None else as_listed(import_, own)
    gathered, moves = _Gathered(client.service_time()), 0
    from_zero = convention.first == 1  # whether the service may count pages from 0, unnoticed so far
    for sweeps in range(1, MAX_SWEEPS + 1):
        known = len(gathered)
        if current.row_count > MAX_ROWS:
            raise ContractError(
                f"Its row_count is {current.row_count:,}, more than the limit of {MAX_ROWS:,} records in an import; "
                "report this to the operator of the service."
            )
        asked = size - SHORTENED_BY[(sweeps - 1) % len(SHORTENED_BY)] * size // MAX_PER_PAGE
        if gathered.clamp is not None:  # rows that an empty page hides in one sweep are on another page in the next
            asked = max(min(size, gathered.clamp) // DIVISORS[(sweeps - 1) % len(DIVISORS)], 1)
        # later sweeps are independent of each other only if replicas that answer in turn do not show the same pages
        sweep = _Sweep(asked, convention, None if sweeps == 1 else Random(sweeps))
        await _read_pages(client, current, gathered, sweep)
        whole = sweeps == 1 and sweep.replies == 1 and len(gathered) == current.row_count
        if whole and sweep.longest < min(_known_page_size(client, current), size):
            return _outcome(current, gathered, sweeps)
        if from_zero and len(gathered) != current.row_count:
            from_zero = await _page_0_adds(client, current, gathered, sweep)
        before, own = own or import_, await request_import(client, current.slug)
        if own.fingerprint != before.fingerprint:
            moves += 1
            current = as_listed(import_, own)
            if moves > MAX_MOVES:
                return _unstable(current, gathered, sweeps, f"it changed {moves} times while it was read")
            gathered = _Gathered(client.service_time())
            continue
        if sweep.endless:
            return _unstable(current, gathered, sweeps, "its pages never end")
        same = gathered.close(sweep, known)
        if _is_complete(current, gathered, sweep, same=same):
            return _outcome(current, gathered, sweeps)
        if gathered.sweeps_agree:
            if gathered.gap_error is not None:
                raise gathered.gap_error
            return _outcome(current, gathered, sweeps, Verdict.unreconciled, _count(current, gathered))
    count = len(gathered)
    why = (
        f"its pages still repeat rows after {sweeps} sweeps"
        if count == current.row_count
        else _count(current, gathered)
    )
    return _unstable(current, gathered, sweeps, why)


def _known_page_size(client: RecordsClient, import_: Import) -> int:
    """Return the largest page size that the service is known to send; if the count may lag, of records only."""
    return client.largest_page if import_.status == COMPLETED else client.largest_page_of_records


def _count(import_: Import, gathered: _Gathered) -> str:
    return f"{len(gathered)} distinct records were found where row_count says {import_.row_count}"


def _is_complete(import_: Import, gathered: _Gathered, sweep: _Sweep, *, same: bool) -> bool:
    found, announced = len(gathered), import_.row_count
    if found == announced:
        # more rows than `row_count` arrived: the count may match only because rows are missing
        return sweep.received <= announced or gathered.sweeps_agree
    whole = (found > announced or not sweep.ragged) and not gathered.hides_rows
    return import_.status != COMPLETED and gathered.gap_error is None and (same or (gathered.sweeps_agree and whole))


def _unstable(import_: Import, gathered: _Gathered, sweeps: int, why: str) -> ImportRead:
    return _outcome(import_, gathered, sweeps, Verdict.unstable, why)


def _outcome(
    import_: Import, gathered: _Gathered, sweeps: int, verdict: Verdict = Verdict.complete, why: str | None = None
) -> ImportRead:
    rejects = tuple(gathered.rejects.values())
    return ImportRead(
        import_, verdict, gathered.records.all(), rejects, sweeps, why, gathered.asked_at, gathered.metadata
    )


async def _read_pages(client: RecordsClient, import_: Import, gathered: _Gathered, sweep: _Sweep) -> None:
    """Read one sweep: the pages of `row_count` concurrently, then more until the count is met or the pages end."""
    size = sweep.size
    expected = max(import_.row_count, len(gathered))
    announced = expected // size + 1  # the last of them has room for more
    page, vain, before = 1, 0, None
    while page <= announced and vain < VAIN_ENOUGH:
        async with aclosing(_pages(client, import_.slug, range(page, announced + 1), sweep)) as replies:
            async for answer in replies:
                reply = sweep.note(answer)
                gathered.note(reply)
                if page == 1:
                    gathered.metadata = reply.metadata
                page += 1
                repeated = bool(reply.records) and reply.records == before
                vain, before = vain + 1 if repeated or not reply.size else 0, reply.records
                if vain >= VAIN_ENOUGH:
                    break
        if 0 < sweep.longest < size and len(sweep.shown) < expected:
            announced = max(announced, expected // sweep.longest + 1)  # per_page is clamped below the requested size
    full = sweep.last >= (sweep.longest if announced > 1 else min(size, _known_page_size(client, import_)))
    if len(gathered) != import_.row_count or full:
        await _read_on(client, import_, gathered, sweep, page)


async def _pages(
    client: RecordsClient, slug: str, numbers: range, sweep: _Sweep
) -> AsyncGenerator[RecordPage | ConnectorError, None]:
    """Yield the pages in order; closing it early cancels the requests under way."""
    if sweep.dice is None:
        requests = (_page(client, slug, number, sweep) for number in numbers)
        async with aclosing(run_in_order(requests, PAGES_AHEAD)) as replies:
            async for reply in replies:
                yield reply
        return
    for start in range(0, len(numbers), PAGES_AHEAD):
        some = (_page(client, slug, number, sweep) for number in numbers[start : start + PAGES_AHEAD])
        for reply in await run_concurrently(some, sweep.dice):
            yield reply


async def _read_on(client: RecordsClient, import_: Import, gathered: _Gathered, sweep: _Sweep, page: int) -> None:
    """Read pages behind those of `row_count`, more and more at once, until they are empty or only repeat this sweep."""
    idle, window, limit = 0, 1, page + MAX_PAGES_BEYOND
    while idle < (1 if len(gathered) == import_.row_count else EMPTY_PAGES):
        if page >= limit:
            sweep.endless = True
            return
        pages = (_page(client, import_.slug, number, sweep) for number in range(page, page + window))
        for answer in await run_concurrently(pages, sweep.dice):
            shown = len(sweep.shown)
            gathered.note(sweep.note(answer))
            idle = 0 if len(sweep.shown) > shown else idle + 1
        page += window
        window = 1 if idle else min(2 * window, MAX_WINDOW_BEYOND)


async def _page_0_adds(client: RecordsClient, import_: Import, gathered: _Gathered, sweep: _Sweep) -> bool:
    """Read page 0 and return whether it adds records, as it does if the service counts its pages from 0.

    Raises what the client raises if no other check would notice that records are missing.
    """
    known = len(gathered)
    try:
        page = await client.list_records(import_.slug, 0, sweep.size)
    except AuthError:
        raise
    except TransientError:
        if import_.status != COMPLETED and known < import_.row_count:
            raise
        return False
    except ConnectorError:
        return False
    gathered.note(page)
    if len(gathered) == known:
        return False
    sweep.before_refusal += page.size
    return True


async def _page(client: RecordsClient, slug: str, page: int, sweep: _Sweep) -> RecordPage | ConnectorError:
    """Return the page, or the error of a page that may be behind the last one.

    A deletion of the import is detected later.
    """

    try:
        return await client.list_records(slug, sweep.convention.number(page), sweep.size)
    except ConnectorError as error:
        if means_no_such_page(error, page):
            return error
        raise
