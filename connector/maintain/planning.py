"""Report what the next run would read and delete, and what that costs, without loading or writing anything.

The service is listed and every decision is made as in a run. The cost of reading is computed from the `row_count` of
each import, and the time from the duration of one requested page of records.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from dlt.pipeline.pipeline import Pipeline

from connector.errors import NotFoundError, TooLargeError, TransientError
from connector.extract.convention import PageConvention
from connector.extract.page_sizes import MAX_PER_PAGE, SHORTER_PAGES
from connector.ledger import COMPLETED
from connector.models import Import
from connector.run.decision import Discovered
from connector.run.discover import Discovery
from connector.run.plan import Planned, Reason
from connector.run.ports import Loop, Ports, Progress, Silent
from connector.runs import Tally
from connector.service.client import ServiceClient
from connector.service.retry import WATCHED
from connector.settings import RunScope, Settings
from connector.warehouse import Warehouse
from connector.warehouse.failures import explain_failure
from connector.warehouse.state import WarehouseState, load_state

ROWS_PER_S = 20_000  # flattened and loaded, about, if the service is not the limit


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What the next run would do.

    Attributes:
        imports_listed: Imports that the service shows.
        imports_new: Imports that would be read for the first time.
        imports_changed: Imports that would be read again: changed, unfinished, failed before, or asked for.
        imports_completed: Those of the new and changed imports that the service has completed.
        imports_deleted: Imports that the run would find gone.
        records: Records of the imports to read, by their `row_count`.
        requests: Requests that the run would send, the listing included.
        bytes_received: Approximate bytes of the replies, by the size of the records on the page that is requested.
        packages: Load packages of `batch_rows` that it would commit, one after the other.
        seconds: Approximately how long that takes.
        problems: What keeps the listing from being complete, as sentences.
    """

    imports_listed: int
    imports_new: int
    imports_changed: int
    imports_completed: int
    imports_deleted: int
    records: int
    requests: int
    bytes_received: int
    packages: int
    seconds: float
    problems: tuple[str, ...] = ()


def plan(
    pipeline: Pipeline,
    settings: Settings,
    *,
    progress: Progress | None = None,
    ports: Ports | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> RunPlan:
    """Return what an incremental run would do now.

    Raises ConfigError for a destination that cannot be used, and ConnectorError if the service cannot be listed.
    """
    warehouse, ports = Warehouse(pipeline), ports or Ports.real(WATCHED)
    warehouse.check_supported()
    try:
        state = WarehouseState()
        if warehouse.exists():
            with warehouse.connect() as connection:
                state = load_state(connection)
        with ports.open_loop() as loop:
            client = ports.open_client(settings)
            loop.call(client.__aenter__)
            try:
                return _Planning(settings, state, client, loop, ports, progress or Silent(), monotonic).make()
            finally:
                loop.call(client.__aexit__, None, None, None)
    except Exception as error:
        raise explain_failure(error, pipeline) from None


@dataclass(frozen=True, slots=True)
class _Page:
    """The time for a page of records of the largest size that is answered, and the bytes of one of its records."""

    size: int = MAX_PER_PAGE
    seconds: float = 0.0
    record_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class _Planning:
    settings: Settings
    state: WarehouseState
    client: ServiceClient
    loop: Loop
    ports: Ports
    progress: Progress
    monotonic: Callable[[], float]

    def make(self) -> RunPlan:
        now = self.ports.now()
        tally = Tally("", "incremental", now)
        discovery = Discovery(
            self.settings,
            RunScope(),
            self.state,
            self.client,
            tally,
            progress=self.progress,
            stop=lambda: None,
            now=now,
        )
        began = self.monotonic()
        discovered = self.loop.call(discovery.make)
        listing_s, listing_requests = self.monotonic() - began, self.client.stats.requests
        listing_bytes = self.client.stats.bytes_received
        reading = [planned.import_ for planned in discovered.plan.read]
        new = sum(planned.reason is Reason.new for planned in discovered.plan.read)
        page = self._page_of(reading, discovery.convention, tally.problems)
        requests = sum(self._requests_of(import_, reading, page.size) for import_ in reading)
        records = sum(max(import_.row_count, 0) for import_ in reading)
        return RunPlan(
            imports_listed=tally.imports_listed or len(discovered.imports),
            imports_new=new,
            imports_changed=len(reading) - new,
            imports_completed=sum(map(_is_news, discovered.plan.read)),
            imports_deleted=len(self._gone(discovered)),
            records=records,
            requests=listing_requests + requests,
            bytes_received=listing_bytes + round(records * page.record_bytes),
            packages=max(math.ceil(records / self.settings.batch_rows), int(bool(reading or discovered.deleted))),
            seconds=math.ceil(10 * (listing_s + self._seconds(page, requests, records))) / 10,
            problems=tuple(tally.problems),
        )

    def _gone(self, discovered: Discovered) -> list[str]:
        seen = self.state.imports
        return [slug for slug in discovered.deleted if slug not in seen or not seen[slug].deleted]

    def _requests_of(self, import_: Import, reading: list[Import], size: int) -> int:
        """Return the number of requests for an import: one page if it has room to spare, else every page and a recheck.

        The last of several pages is never full.
        """
        most = max((each.row_count for each in reading), default=0)
        room = min(max(self.client.largest_page, most), size)
        if import_.row_count < room:
            return 1
        return import_.row_count // size + 2

    def _page_of(self, reading: list[Import], convention: PageConvention, problems: list[str]) -> _Page:
        """Request the first page of the largest import, to measure its duration and the size of a record."""
        if not reading:
            return _Page()
        largest, unanswered = max(reading, key=lambda each: each.row_count), ""
        for size in (MAX_PER_PAGE, *SHORTER_PAGES):
            began, before = self.monotonic(), self.client.stats.bytes_received
            try:
                records = self.loop.call(self.client.list_records, largest.slug, convention.number(1), size).size
            except NotFoundError:  # it was deleted meanwhile
                return _Page()
            except (TransientError, TooLargeError) as error:
                unanswered = unanswered or str(error)
                continue
            return _Page(size, self.monotonic() - began, (self.client.stats.bytes_received - before) / max(records, 1))
        problems.append(f"The time cannot be estimated: {unanswered}")
        return _Page()

    def _seconds(self, page: _Page, requests: int, records: int) -> float:
        waiting_s = requests * page.seconds / self.settings.max_concurrency
        ceiling_s = requests / self.settings.requests_per_second if self.settings.requests_per_second else 0.0
        return max(waiting_s, ceiling_s, records / ROWS_PER_S) if page.seconds else 0.0


def _is_news(planned: Planned[Import]) -> bool:
    """Return whether the import was completed since the last run, in a version that was never read."""
    return planned.reason in (Reason.new, Reason.changed) and planned.import_.status == COMPLETED
