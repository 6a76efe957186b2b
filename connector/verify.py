"""The service against the warehouse: every import, every count, and with `deep` every row and every typed cell.

Writes nothing and takes no lock, so both sides may move while they are read. What looks different is therefore looked
at again: a difference counts only if neither the import nor its rows in the warehouse moved between the two looks,
or if the warehouse was behind before anything moved. What changed meanwhile is reported as moved.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from dlt.pipeline.pipeline import Pipeline

from connector.client import ServiceClient
from connector.comparison import (
    Difference,
    Holding,
    Kind,
    import_differences,
    is_stale,
    live_rows,
    record_differences,
    row_differences,
    sorted_lines,
    typed_differences,
)
from connector.core.planning import COMPLETED, State
from connector.errors import AuthError, ConfigError, ConnectorError, NotFoundError
from connector.extraction import READ_AHEAD_ROWS, Loop, Outside, Progress, Silent
from connector.imports import import_emissions
from connector.loading import Catalogue
from connector.models import Import, Reject
from connector.paging import Lister, Listing, together
from connector.reading import ImportRead, Verdict, read_import
from connector.settings import Settings
from connector.tables import IMPORTS, LOAD_ID, RECORDS, REJECTS
from connector.warehouse import Connection, Memory, Warehouse

MAX_LOOKS = 4
IMPORTS_AT_ONCE = 500
READS_AT_ONCE = 32
_BEGINNING = datetime.min.replace(tzinfo=UTC)


@dataclass(slots=True)
class VerifyReport:
    """What verify found. `moved` are imports that changed meanwhile, `unchecked` sentences on what was not compared."""

    deep: bool
    imports: int = 0
    records: int = 0
    differences: list[Difference] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    requests: int = 0

    @property
    def exit_code(self) -> int:
        """0 equal, 3 different, 1 if something could not be compared and nothing else is wrong."""
        return 3 if self.differences else 1 if self.unchecked else 0

    def as_json(self) -> dict[str, Any]:
        return {
            "status": {0: "equal", 3: "different", 1: "unknown"}[self.exit_code],
            "deep": self.deep,
            "imports_compared": self.imports,
            "records_compared": self.records,
            "kinds": dict(sorted(Counter(str(d.kind) for d in self.differences).items())),
            "differences": [difference.as_json() for difference in self.differences],
            "moved": list(self.moved),
            "unchecked": list(self.unchecked),
            "requests": self.requests,
        }


def verify(
    pipeline: Pipeline,
    settings: Settings,
    deep: bool = False,
    progress: Progress | None = None,
    *,
    outside: Outside | None = None,
) -> VerifyReport:
    """Compares. Raises ConnectorError if it can't be done: no warehouse, no service, no right to see it."""
    warehouse = Warehouse(pipeline)
    warehouse.check_supported()
    if not warehouse.exists():
        raise ConfigError("There is no warehouse to verify yet; run `importer-sync run` first.")
    world = outside or Outside.real()
    with world.open_loop() as loop:
        client = world.open_client(settings)
        stack = AsyncExitStack()
        loop.call(stack.enter_async_context, client)
        try:
            return _Verification(warehouse, settings, deep, progress or Silent(), world, loop, client).run()
        finally:
            loop.call(stack.aclose)


@dataclass(frozen=True, slots=True)
class _Seen:
    """One look at one import: the version of both sides that was looked at, and what differed."""

    fingerprint: object
    mark: object
    behind: bool
    differences: tuple[Difference, ...]
    changed_while_read: bool = False


@dataclass(slots=True)
class _Verification:
    warehouse: Warehouse
    settings: Settings
    deep: bool
    progress: Progress
    outside: Outside
    loop: Loop
    client: ServiceClient
    report: VerifyReport = field(init=False)

    def __post_init__(self) -> None:
        self.report = VerifyReport(self.deep)

    def run(self) -> VerifyReport:
        with self.warehouse.connect() as connection:
            known = _live(connection.recall())
        listing = self.loop.call(self._list, len(known))
        if not listing.complete:
            self.report.unchecked.append(f"The listing of imports is not known to be complete: {listing.reason}.")
        listed = {i.slug: i for i in listing.rows if isinstance(i, Import) and self._wanted(i)}
        self._rejected_imports([row for row in listing.rows if isinstance(row, Reject)])
        self.progress.planned(len(listed), sum(max(i.row_count, 0) for i in listed.values()))
        first = self._look(listed)
        self._extras(set(listed))
        self._settle(listed, first)
        self.report.imports = len(listed)
        self.report.differences = sorted_lines(self.report.differences)
        self.report.requests = self.client.stats.requests
        return self.report

    # -- the service ---------------------------------------------------------------------------------------------

    async def _list(self, expected: int) -> Listing[Import | Reject]:
        async def fetch(page: int, per_page: int) -> Sequence[Import | Reject]:
            reply = await self.client.list_imports(page, per_page, self.settings.status)
            self.progress.listed(reply.size)
            return [*reply.imports, *reply.rejects]

        lister = Lister(fetch, _key, _newer, _born, expected=0 if self.settings.status else expected)
        return await lister.all()

    def _wanted(self, import_: Import) -> bool:
        return self.settings.status is None or import_.status == self.settings.status

    async def _current(self, slugs: Sequence[str]) -> list[Import | ConnectorError | None]:
        """Each import as it is now; None where the service answers 404."""

        async def ask(slug: str) -> Import | ConnectorError | None:
            try:
                return await self.client.get_import(slug)
            except NotFoundError:
                return None
            except ConnectorError as error:
                return error

        found: list[Import | ConnectorError | None] = []
        for start in range(0, len(slugs), READS_AT_ONCE):
            found += await together(ask(slug) for slug in slugs[start : start + READS_AT_ONCE])
        return found

    def _reads(self, imports: Iterable[Import]) -> Iterator[tuple[Import, ImportRead | ConnectorError]]:
        """Reads ahead, by a bounded number of rows, while the caller looks at the warehouse."""
        outcomes = _read_ahead(self.client, imports)
        try:
            while True:
                try:
                    yield self.loop.call(outcomes.__anext__)
                except StopAsyncIteration:
                    return
        finally:
            self.loop.call(outcomes.aclose)  # type: ignore[attr-defined]

    # -- comparing -----------------------------------------------------------------------------------------------

    def _look(self, imports: Mapping[str, Import]) -> dict[str, _Seen]:
        """One look at each of these imports, on both sides."""
        with self.warehouse.connect() as connection:
            memory = connection.recall()
            holdings = _holdings(connection, memory)
            differences = {
                slug: [*import_differences(i, holdings.get(slug, _NOTHING), self.settings)] for slug, i in imports.items()
            }
            self._compare_fields(connection, memory, imports, differences)
        reads: dict[str, ImportRead] = {}
        if self.deep:
            for import_, read in self._reads(imports.values()):
                if isinstance(read, ConnectorError):
                    self.report.unchecked.append(f"Import {import_.slug} could not be read: {read}")
                    continue
                reads[import_.slug] = ImportRead(read.import_, read.verdict)
                with self.warehouse.connect() as connection:
                    differences[import_.slug] += self._compare_rows(connection, memory, read)
                self.progress.read(import_.slug, len(read.records), read.verdict.value)
        return {
            slug: self._seen(import_, memory, reads.get(slug), differences[slug]) for slug, import_ in imports.items()
        }

    def _seen(
        self, import_: Import, memory: Memory, read: ImportRead | None, differences: Sequence[Difference]
    ) -> _Seen:
        known = memory.ledger.get(import_.slug)
        moved = read is not None and (
            read.verdict is Verdict.gone or read.import_.fingerprint != import_.fingerprint
        )
        behind = known is None or not known.trusted or known.state is not State.synced or is_stale(import_, known)
        mark = known and (known.last_synced_at, known.state, known.attempts, known.trusted)
        return _Seen(import_.fingerprint, mark, behind, tuple(differences), moved)

    def _compare_fields(
        self,
        connection: Connection,
        memory: Memory,
        imports: Mapping[str, Import],
        differences: dict[str, list[Difference]],
    ) -> None:
        """The columns of `imports`, as a sync would write them now."""
        there = [i for slug, i in imports.items() if slug in memory.imports]
        for start in range(0, len(there), IMPORTS_AT_ONCE):
            some = there[start : start + IMPORTS_AT_ONCE]
            emissions = import_emissions(
                some, Catalogue.of(memory), "", self.outside.now(), nul_safe=not self.warehouse.is_duckdb
            )
            expected = next(iter(emissions)).rows.drop_columns([LOAD_ID, "_deleted_at"])
            stored = connection.rows_of(IMPORTS, "slug", [i.slug for i in some])
            for slug, columns in row_differences(IMPORTS, "slug", expected, stored):
                told = [name for name in columns if name != "_content_hash"] or columns
                sentence = f"Import {slug} differs in imports: {', '.join(told)}."
                difference = Difference(Kind.import_differs, sentence, slug, table=IMPORTS, column=", ".join(told))
                differences[slug].append(difference)

    def _compare_rows(self, connection: Connection, memory: Memory, read: ImportRead) -> Iterator[Difference]:
        if read.verdict is Verdict.gone:
            return
        slug, known = read.import_.slug, memory.ledger.get(read.import_.slug)
        finished = read.import_.status == COMPLETED
        if read.verdict is Verdict.unreconciled and not (finished and self.settings.reconcile == "off"):
            yield Difference(Kind.not_reconciled, f"Import {slug} does not reconcile now: {read.why}.", slug)
        if known is None:
            yield Difference(Kind.count_differs, f"Import {slug}: {len(read.records)} records are not loaded.", slug)
            return
        self.report.records += len(read.records)
        nul_safe = not self.warehouse.is_duckdb
        yield from self._rejects(connection, memory, read)
        source = None
        if self.settings.raw and RECORDS in memory.tables:
            stored = connection.rows_of(RECORDS, "import_slug", [slug])
            yield from record_differences(slug, RECORDS, read.records, stored, _RAW_COLUMNS)
            source = live_rows(stored)
        table = known.table_name
        if self.settings.typed and table is not None and table in memory.tables:
            typed = connection.rows_of(table, "_import_slug", [slug])
            yield from record_differences(slug, table, read.records, typed, _TYPED_COLUMNS)
            schema = memory.schemas[table]
            texts = source if source is not None else _texts(read)
            yield from typed_differences(slug, texts, typed, schema, nul_safe=nul_safe)

    def _rejects(self, connection: Connection, memory: Memory, read: ImportRead) -> Iterator[Difference]:
        """What the service sends and nobody can load: reported, and not as missing."""
        if not read.rejects:
            return
        slug, noted = read.import_.slug, set()
        if REJECTS in memory.tables:
            rows = connection.rows_of(REJECTS, "import_slug", [slug])
            noted = set(rows.column("reason").to_pylist()) if rows.num_rows else noted
        for reject in read.rejects:
            where = "is in sync_rejects" if reject.reason in noted else "is not in sync_rejects either"
            sentence = f"Import {slug}: record {reject.record_slug or 'without a slug'} can't be loaded and {where}"
            yield Difference(Kind.record_rejected, f"{sentence} ({reject.reason}).", slug, reject.record_slug)

    def _rejected_imports(self, rejects: Sequence[Reject]) -> None:
        for reject in rejects:
            sentence = f"Import {reject.record_slug or 'without a slug'} can't be read: {reject.reason}."
            self.report.differences.append(Difference(Kind.import_differs, sentence, reject.record_slug))

    # -- what moved ----------------------------------------------------------------------------------------------

    def _extras(self, listed: set[str]) -> None:
        """What the warehouse shows as live and the service did not list."""
        for _ in range(2):  # a sync under way may be removing them just now
            with self.warehouse.connect() as connection:
                memory = connection.recall()
                holdings = _holdings(connection, memory)
            extra = sorted(s for s, h in holdings.items() if s not in listed and _shown(h, self._in_scope(s, memory)))
            found = dict(zip(extra, self.loop.call(self._current, extra), strict=True))
        for slug, answer in found.items():
            if isinstance(answer, ConnectorError):
                self.report.unchecked.append(f"Import {slug} is not listed, and asking for it failed: {answer}")
            elif answer is not None and self._wanted(answer):
                self.report.unchecked.append(f"Import {slug} exists, but the service does not list it.")
            elif answer is None:
                rows = ", ".join(f"{n} rows in {t}" for t, n in sorted(holdings[slug].live.items()) if n) or "no rows"
                sentence = f"Import {slug} is live in the warehouse ({rows}), but the service has no such import."
                self.report.differences.append(Difference(Kind.import_extra, sentence, slug))

    def _in_scope(self, slug: str, memory: Memory) -> bool:
        """With a status filter only imports that were synced at that status are this pipeline's business."""
        known = memory.ledger.get(slug)
        return self.settings.status is None or (known is not None and known.status == self.settings.status)

    def _settle(self, listed: Mapping[str, Import], seen: Mapping[str, _Seen]) -> None:
        """Looks again at whatever differed, until both sides stood still between two looks."""
        first = seen
        open_ = {slug: look for slug, look in seen.items() if look.differences or look.changed_while_read}
        for _ in range(MAX_LOOKS - 1):
            if not open_:
                return
            answers = dict(zip(open_, self.loop.call(self._current, list(open_)), strict=True))
            self._note_gone(answers, first)
            again = self._look({s: a for s, a in answers.items() if isinstance(a, Import)})
            open_ = {slug: look for slug, look in again.items() if not self._settled(first[slug], open_[slug], look, slug)}
        for slug, look in open_.items():
            self._conclude(slug, first[slug], look)

    def _settled(self, first: _Seen, before: _Seen, now: _Seen, slug: str) -> bool:
        if now.changed_while_read:
            return False
        stood_still = (before.fingerprint, before.mark) == (now.fingerprint, now.mark) and not before.changed_while_read
        if now.differences and not stood_still:
            return False
        self._conclude(slug, first, now)
        return True

    def _conclude(self, slug: str, first: _Seen, now: _Seen) -> None:
        moved = now.changed_while_read or (first.fingerprint, first.mark) != (now.fingerprint, now.mark)
        if now.differences and (first.behind or not moved):
            self.report.differences += now.differences
        else:
            self.report.moved.append(slug)

    def _note_gone(self, answers: Mapping[str, Import | ConnectorError | None], first: Mapping[str, _Seen]) -> None:
        for slug, answer in answers.items():
            if answer is None:
                self.report.moved.append(slug)
            elif isinstance(answer, ConnectorError):
                self.report.differences += first[slug].differences
                self.report.unchecked.append(f"Import {slug} could not be looked at again: {answer}")


_NOTHING = Holding(None, None, {})
_RAW_COLUMNS = {n: n for n in ("slug", "sort", "created_at", "updated_at", "data")}
_TYPED_COLUMNS = {
    "slug": "_record_slug",
    "sort": "_sort",
    "created_at": "_created_at",
    "updated_at": "_updated_at",
}
