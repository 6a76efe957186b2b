"""Compare the service with the warehouse: every import, every count, and with `deep` every row and every typed cell.

Verify writes nothing and takes no lock, so both sides may change while they are read. An import that differs is
therefore compared again: a difference counts only if neither the import nor its rows in the warehouse changed between
the two comparisons, or if the warehouse was outdated before anything changed. Imports that changed meanwhile are
reported as moved.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from dlt.pipeline.pipeline import Pipeline

from connector.errors import ConnectorError
from connector.extract.records import ImportRead, Verdict, as_listed
from connector.ledger import State
from connector.load.data_dictionary import Catalogue
from connector.load.imports_table import import_table_rows, listed_row, read_row, records_metadata_of
from connector.maintain.compare import (
    Difference,
    Holding,
    Kind,
    import_differences,
    live_rows,
    record_differences,
    row_differences,
    sorted_lines,
    typed_differences,
)
from connector.maintain.service_view import Answer, ServiceView
from connector.models import Import, Reject
from connector.run.ports import Ports, Progress, Silent
from connector.service.retry import WATCHED
from connector.settings import Settings
from connector.transform.escaping import storable
from connector.transform.row_limits import LIMITS
from connector.warehouse import Connection, Warehouse
from connector.warehouse.failures import explain_failure
from connector.warehouse.history import mismatched_versions
from connector.warehouse.state import WarehouseState, load_state, rows_by_import
from connector.warehouse.tables import IMPORTS, LOAD_ID, RECORDS, REJECTS

MAX_COMPARISONS = 4
IMPORTS_AT_ONCE = 500
_NOTHING = Holding(None, None, {})
_RAW_COLUMNS = {name: name for name in ("slug", "sort", "created_at", "updated_at", "data", "extra")}
_TYPED_COLUMNS = {"slug": "_record_slug", "sort": "_sort", "created_at": "_created_at", "updated_at": "_updated_at"}


@dataclass(slots=True)
class VerifyReport:
    """The result of verify.

    `imports` is the number of compared imports, with `deep` of those whose records could be read. `moved` are imports
    that changed meanwhile, `unchecked` are sentences on what was not compared.
    """

    deep: bool
    imports: int = 0
    records: int = 0
    differences: list[Difference] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    requests: int = 0

    @property
    def exit_code(self) -> int:
        """Return 0 if equal, 3 if different, 1 if something could not be compared and nothing else is wrong."""
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
    ports: Ports | None = None,
) -> VerifyReport:
    """Compare both sides. Raise ConnectorError if that is impossible: no warehouse, no service, no permission."""
    warehouse, progress = Warehouse(pipeline), progress or Silent()
    ports = ports or Ports.real(until_first_reply=WATCHED)
    warehouse.check_supported()
    try:
        if not warehouse.exists():
            raise ConnectorError("There is no warehouse to verify yet; run `importer-sync run` first.")
        with _service_view(settings, ports, progress) as view:
            return _Verification(warehouse, settings, view, progress, ports, VerifyReport(deep)).run()
    except Exception as error:
        raise explain_failure(error, pipeline) from None


@contextmanager
def _service_view(settings: Settings, ports: Ports, progress: Progress) -> Iterator[ServiceView]:
    with ports.open_loop() as loop:
        client = ports.open_client(settings)
        loop.call(client.__aenter__)
        try:
            yield ServiceView(client, loop, settings, progress)
        finally:
            loop.call(client.__aexit__, None, None, None)


@dataclass(frozen=True, slots=True)
class _Comparison:
    """One comparison of one import: the versions on both sides, and the differences.

    `behind`: by its ledger, the warehouse does not have this version. `unstable`: the import changed meanwhile.
    """

    version: object
    behind: bool
    unstable: bool
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class _Verification:
    warehouse: Warehouse
    settings: Settings
    view: ServiceView
    progress: Progress
    ports: Ports
    report: VerifyReport
    sizes: dict[str, int] = field(default_factory=dict)
    unread: dict[str, ConnectorError] = field(default_factory=dict)  # at the latest comparison
    vanished: dict[str, _Comparison] = field(default_factory=dict)

    def run(self) -> VerifyReport:
        report = self.report
        with self.warehouse.connect() as connection:
            expected = sum(not seen.deleted for seen in load_state(connection).imports.values())
        listing = self.view.listing(expected)
        if not listing.complete:
            report.unchecked.append(f"The listing of imports is not known to be complete: {listing.reason}.")
        listed = {i.slug: i for i in listing.rows if isinstance(i, Import) and self.view.wanted(i)}
        for reject in (row for row in listing.rows if isinstance(row, Reject)):
            sentence = f"Import {reject.record_slug or 'without a slug'} can't be read: {reject.reason}."
            report.differences.append(Difference(Kind.import_differs, sentence, reject.record_slug))
        included = [i for i in listed.values() if self.view.included(i)]
        if report.deep:  # otherwise nothing is read that could change
            self.progress.planned(len(included), sum(max(i.row_count, 0) for i in included))
        self._compare_again(self._compare_imports(listed), listed)
        self._check_vanished()
        self._extras({*listed, *(row.record_slug for row in listing.rows if isinstance(row, Reject))})
        if report.deep and self.settings.history:
            self._compare_history()
        if report.deep and not report.differences:  # otherwise the values that are counted differ
            self._compare_counts()
        report.unchecked += (f"Import {slug} could not be read: {error}" for slug, error in sorted(self.unread.items()))
        report.imports, report.records = len(listed.keys() - self.unread), sum(self.sizes.values())
        report.differences = sorted_lines(report.differences)
        report.moved.sort()
        report.requests = self.view.client.stats.requests
        return report

    def _compare_history(self) -> None:
        with self.warehouse.connect() as connection:
            for history, n in mismatched_versions(connection, self.settings.keeps_history_of).items():
                sentence = f"{n} rows of {history} that should be current differ from the rows they are versions of."
                self.report.differences.append(Difference(Kind.history_differs, sentence, table=history))

    def _compare_counts(self) -> None:
        with self.warehouse.connect() as connection:
            state = load_state(connection, force_audit=True)
        if not state.consistent:
            return  # a run has begun to load meanwhile; its counts follow the rows
        # a run knows that it has to count the others; a table of a template that is left out may be dropped
        for table in sorted(state.miscounted & state.stored.keys() & state.tables):
            sentence = f"The counts in sync_fields are not those of the values in {table}; a backfill counts them anew."
            self.report.differences.append(Difference(Kind.counts_differ, sentence, table=table))

    # -- one comparison ------------------------------------------------------------------------------------------

    def _compare_imports(self, imports: Mapping[str, Import]) -> dict[str, _Comparison]:
        """Compare each of these imports on both sides."""
        with self.warehouse.connect() as connection:
            state = load_state(connection)
            holdings = _holdings(connection, state)
            found = {
                slug: list(import_differences(import_, holdings.get(slug, _NOTHING), self.settings))
                for slug, import_ in imports.items()
            }
            self._compare_fields(connection, state, imports, found)
            reads = dict(self._compare_all_rows(connection, state, imports, found)) if self.report.deep else {}
        return {slug: _comparison_of(i, state, reads.get(slug), found[slug]) for slug, i in imports.items()}

    def _compare_fields(
        self,
        connection: Connection,
        state: WarehouseState,
        imports: Mapping[str, Import],
        found: Mapping[str, list[Difference]],
    ) -> None:
        """Compare the columns of `imports` with what a sync would write now."""
        there = [i for slug, i in imports.items() if slug in state.imports]
        nul_safe, rules = not self.warehouse.traits.keeps_nul, self.settings.protection.fingerprint_of_metadata
        limits = LIMITS.get(self.warehouse.destination_type)
        columns = {name for known in state.schemas[IMPORTS].fields.values() for name in known.columns()}
        for start in range(0, len(there), IMPORTS_AT_ONCE):
            some = there[start : start + IMPORTS_AT_ONCE]
            stored = connection.rows_of(IMPORTS, "slug", [i.slug for i in some])
            kept = records_metadata_of(stored)  # compared by its hash, or with the records
            written = import_table_rows(
                [listed_row(i, kept.get(i.slug), rules) for i in some],
                Catalogue.of(state),
                "",
                self.ports.now(),
                limits=limits,
                nul_safe=nul_safe,
            )
            expected = next(iter(written)).rows.drop_columns([LOAD_ID, "_deleted_at"])
            for name in sorted((columns & set(stored.column_names)) - set(expected.column_names)):
                expected = expected.append_column(name, pa.nulls(expected.num_rows))
            for slug, unlike in row_differences("slug", expected, stored):
                names = ", ".join([name for name in unlike if name != "_content_hash"] or unlike)
                sentence = f"Import {slug} differs in imports: {names}."
                found[slug].append(Difference(Kind.import_differs, sentence, slug, table=IMPORTS, column=names))

    def _compare_all_rows(
        self,
        connection: Connection,
        state: WarehouseState,
        imports: Mapping[str, Import],
        found: Mapping[str, list[Difference]],
    ) -> Iterator[tuple[str, ImportRead]]:
        for import_, read in self.view.reads(i for i in imports.values() if self.view.included(i)):
            self.unread.pop(import_.slug, None)
            if isinstance(read, ConnectorError):
                self.unread[import_.slug] = read
                continue
            own = list(self._compare_rows(connection, state, read))
            told = {each.kind for each in own} & {Kind.record_rejected, Kind.not_reconciled}
            by_ledger = found[import_.slug]  # the comparison of records reports these in more detail
            by_ledger[:] = [*(each for each in by_ledger if each.kind not in told), *own]
            self.progress.read(import_.slug, len(read.records), read.verdict.value)
            yield import_.slug, ImportRead(read.import_, read.verdict)

    def _compare_rows(self, connection: Connection, state: WarehouseState, read: ImportRead) -> Iterator[Difference]:
        if read.verdict is Verdict.gone:
            return
        slug, known = read.import_.slug, state.ledger.get(read.import_.slug)
        yield from self._unreconciled(read)
        yield from _compare_records_metadata(connection, read)
        if known is None:
            yield Difference(Kind.count_differs, f"Import {slug}: {len(read.records)} records are not loaded.", slug)
            return
        self.sizes[slug] = len(read.records)
        yield from self._rejects(connection, state, read)
        source = None
        if self.settings.raw and RECORDS in state.tables:
            stored = connection.rows_of(RECORDS, "import_slug", [slug])
            shared = {"template_slug": known.template_slug}
            yield from record_differences(slug, RECORDS, read.records, stored, _RAW_COLUMNS, shared)
            source = live_rows(stored)
        table = known.table_name
        if not self.settings.typed or table is None or table not in state.tables:
            return
        typed = connection.rows_of(table, "_import_slug", [slug])
        if source is None:
            yield from record_differences(slug, table, read.records, typed, _TYPED_COLUMNS)
        renamed = {} if source is None else _TYPED_COLUMNS
        source = _texts(read) if source is None else source
        hints, nul_safe = self.settings.hints.get(table, {}), not self.warehouse.traits.keeps_nul
        yield from typed_differences(slug, source, typed, state.schemas[table], renamed, hints, nul_safe=nul_safe)

    def _unreconciled(self, read: ImportRead) -> Iterator[Difference]:
        if read.unproven and not (read.miscounted and self.settings.reconcile == "off"):
            sentence = f"Import {read.import_.slug} does not reconcile now: {read.why}."
            yield Difference(Kind.not_reconciled, sentence, read.import_.slug)

    def _rejects(self, connection: Connection, state: WarehouseState, read: ImportRead) -> Iterator[Difference]:
        """Report records that the service sends and that cannot be loaded; they do not count as missing."""
        slug = read.import_.slug
        noted: set[Any] = set()
        if read.rejects and REJECTS in state.tables:
            rows = connection.rows_of(REJECTS, "import_slug", [slug])
            noted = set(rows.column("payload").to_pylist()) if rows.num_rows else noted
        for reject in read.rejects:
            there = storable(reject.payload, nul_safe=not self.warehouse.traits.keeps_nul) in noted
            where = "is in sync_rejects" if there else "is not in sync_rejects either"
            sentence = f"Import {slug}: record {reject.record_slug or 'without a slug'} can't be loaded and {where}"
            yield Difference(Kind.record_rejected, f"{sentence} ({reject.reason}).", slug, reject.record_slug)

    # -- imports that moved --------------------------------------------------------------------------------------

    def _compare_again(self, first: Mapping[str, _Comparison], listed: Mapping[str, Import]) -> None:
        """Compare again what differed, until neither side changed between two comparisons, or the limit is reached."""
        latest = {slug: each for slug, each in first.items() if each.differences or each.unstable}
        for number in range(2, MAX_COMPARISONS + 1):
            if not latest:
                return
            answers = self.view.current(list(latest))
            self._leave_out(answers, latest)
            found = {slug: answer for slug, answer in answers.items() if isinstance(answer, Import)}
            again = self._compare_imports({slug: as_listed(listed[slug], own) for slug, own in found.items()})
            before, latest = latest, {}
            for slug, comparison in again.items():
                unchanged = not comparison.unstable and before[slug].version == comparison.version
                if number == MAX_COMPARISONS or unchanged or not (comparison.differences or comparison.unstable):
                    self._conclude(slug, first[slug], comparison)
                else:
                    latest[slug] = comparison

    def _conclude(self, slug: str, first: _Comparison, now: _Comparison) -> None:
        moved = first.unstable or now.unstable or first.version != now.version
        if now.differences and (first.behind or not moved):
            self.report.differences += now.differences
        else:
            self.report.moved.append(slug)

    def _leave_out(self, answers: Mapping[str, Answer], latest: Mapping[str, _Comparison]) -> None:
        for slug, answer in answers.items():
            if answer is None:
                self.vanished[slug] = latest[slug]
            elif isinstance(answer, ConnectorError):
                self.report.differences += latest[slug].differences
                if slug not in self.unread:
                    self.report.unchecked.append(f"Import {slug} could not be checked again: {answer}")

    def _check_vanished(self) -> None:
        """Treat imports that answered 404 as deleted meanwhile, unless the service still lists them."""
        if not self.vanished:
            return
        listing = self.view.listing(len(self.vanished))
        listed = {row.slug if isinstance(row, Import) else row.record_slug for row in listing.rows}
        for slug, comparison in self.vanished.items():
            if slug in listed or not listing.complete:
                self.report.differences += comparison.differences
                self.report.unchecked.append(f"Import {slug}: the service lists it but answers 404 for it.")
            else:
                self.report.moved.append(slug)

    def _extras(self, listed: set[str | None]) -> None:
        """Find imports that are live in the warehouse and that the service did not list."""
        unlisted = self._unlisted(listed)
        answers = self.view.current(sorted(unlisted))
        still = self._unlisted(listed) if unlisted else {}  # a sync under way may have removed it
        for slug, answer in answers.items():
            if isinstance(answer, ConnectorError):
                self.report.unchecked.append(f"Import {slug} is not listed, and the request for it failed: {answer}")
            elif answer is not None and self.view.wanted(answer):
                self.report.unchecked.append(f"Import {slug} exists, but the service does not list it.")
            elif answer is None and slug in still:
                rows = ", ".join(f"{n} rows in {t}" for t, n in sorted(still[slug].live.items()) if n) or "no rows"
                sentence = f"Import {slug} is live in the warehouse ({rows}), but the service has no such import."
                self.report.differences.append(Difference(Kind.import_extra, sentence, slug))

    def _unlisted(self, listed: set[str | None]) -> dict[str, Holding]:
        """Return imports in the warehouse that the service did not list, of the pipeline's `status` if it has one."""
        with self.warehouse.connect() as connection:
            state = load_state(connection)
            holdings = _holdings(connection, state)
        known = None if self.settings.status is None else state.known_at(self.settings.status)
        return {
            slug: h
            for slug, h in holdings.items()
            if slug not in listed and (h.deleted is False or any(h.live.values())) and (known is None or slug in known)
        }


def _compare_records_metadata(connection: Connection, read: ImportRead) -> Iterator[Difference]:
    slug = read.import_.slug
    stored = connection.rows_of(IMPORTS, "slug", [slug])
    shown = read_row(read.import_, read.records_metadata, None).records_metadata
    kept = records_metadata_of(stored).get(slug)
    if stored.num_rows and (kept and kept.text) != shown:
        sentence = f"Import {slug} differs in imports: records_metadata."
        yield Difference(Kind.import_differs, sentence, slug, table=IMPORTS, column="records_metadata")


def _comparison_of(
    import_: Import, state: WarehouseState, read: ImportRead | None, found: Sequence[Difference]
) -> _Comparison:
    known = state.ledger.get(import_.slug)
    unstable = read is not None and (read.verdict is Verdict.gone or read.import_.fingerprint != import_.fingerprint)
    behind = known is None or not known.trusted or known.state is not State.synced or not known.is_at(import_)
    return _Comparison((import_.fingerprint, known), behind, unstable, tuple(found))


def _holdings(connection: Connection, state: WarehouseState) -> dict[str, Holding]:
    live: dict[str, dict[str, int]] = defaultdict(dict)
    for table, counts in rows_by_import(connection, state).items():
        for slug, (rows, _) in counts.items():
            live[slug][table] = rows
    slugs = {*live, *state.ledger, *state.imports}
    seen = state.imports
    return {s: Holding(state.ledger.get(s), seen[s].deleted if s in seen else None, live.get(s, {})) for s in slugs}


def _texts(read: ImportRead) -> pa.Table:
    """Return the records as the service sends them, in place of raw rows."""
    texts = pa.array([r.data for r in read.records], pa.binary()).cast(pa.string())
    return pa.table({"slug": pa.array([r.slug for r in read.records], pa.string()), "data": texts})
