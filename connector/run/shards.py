"""Divide a full backfill among shards: concurrent processes, on one machine or several, into one dataset.

The first one alone lists the service, writes every row of `imports`, creates the typed tables, marks each import as due
in the ledger, and notes the templates of each shard and those that all share, after it has loaded a few imports of each
new template that is too large for one shard (`connector.warehouse.split` has the invariants). Each then reads its part
as any run reads what is due: one that is killed and started again continues from there. The run after them reads the
rest.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set

import pyarrow as pa
from dlt.pipeline.pipeline import Pipeline

from connector.errors import ConfigError
from connector.load.dlt_bridge import LoadPackage, load_package
from connector.load.table_rows import TableRows, placeholders
from connector.load.working_directory import check_folders, rebuild_working_directory, use_own_working_directory
from connector.models import Import
from connector.run.crash_suspects import CrashSuspects
from connector.run.ports import Ports, Progress
from connector.run.session import RunSession
from connector.run.sync import carry_out
from connector.run.sync import sync as sync_alone
from connector.runs import Status, Tally
from connector.scope import MOST_SHARDS, shard_of
from connector.settings import RunScope, Selection, Settings
from connector.transform.naming import RULES_COLUMN, table_name
from connector.warehouse import Warehouse
from connector.warehouse.destination import (
    capabilities_resolved_once,
    prepare_for_loading,
    staging_name,
    use_own_staging,
)
from connector.warehouse.failures import explain_failure
from connector.warehouse.lock import shard_path, shard_writer
from connector.warehouse.lookup import index_keys
from connector.warehouse.ownership import inspect_dataset
from connector.warehouse.split import SHARED, Split, intact_tables, split_of, staging_suffix, write_split
from connector.warehouse.state import unaudited_state
from connector.warehouse.tables import NO_SLUG, RECORDS, TYPED_SCHEMA

log = logging.getLogger("connector.run")

SAMPLES = 3  # imports that determine the columns of a large template
IMPORT_ROWS = 100  # an import costs as much as so many rows more: for its request and its share of a package
NAME_BYTES = 63  # of a schema's name in PostgreSQL


def sync(
    pipeline: Pipeline,
    settings: Settings,
    scope: RunScope | None = None,
    *,
    progress: Progress | None = None,
    stop: Callable[[], int | None] = lambda: None,
    ports: Ports | None = None,
    load: LoadPackage = load_package,
) -> Tally:
    """Carry out one run, as `connector.run.sync.sync` does, or the part of a shard if the scope is one."""
    if scope is None or scope.shard is None:
        return sync_alone(pipeline, settings, scope, progress=progress, stop=stop, ports=ports, load=load)
    return _Shard(pipeline, settings, scope.shard, progress, stop, ports or Ports.real(), load).sync()


def divide(sizes: Mapping[str, Counter[int]], shards: int, intact: Collection[str]) -> dict[str, int]:
    """Assign each template to a shard, counted from 1: the largest first, each to the shard that has least so far.

    A template whose tables are `intact` and that is larger than one shard's part is shared by all shards; its number is
    SHARED. `sizes` has the sizes of each template's imports, by the shard that would then read them.
    """
    assigned = {template: SHARED for template in too_large(sizes, shards) & set(intact) if len(sizes[template]) > 1}
    loads = Counter(dict.fromkeys(range(1, shards + 1), 0))
    for template in assigned:
        loads.update(sizes[template])
    for template in sorted(sizes.keys() - assigned, key=lambda each: (-sizes[each].total(), each)):
        shard = min(loads, key=lambda each: (loads[each], each))
        assigned[template] = shard
        loads[shard] += sizes[template].total()
    return assigned


def too_large(sizes: Mapping[str, Counter[int]], shards: int) -> Set[str]:
    """Return the templates that are larger than one shard's part of the rows."""
    total = sum(each.total() for each in sizes.values())
    return {template for template, each in sizes.items() if each.total() * shards > total}


class _Shard:
    """One shard: its locks, then a run over its part."""

    def __init__(
        self,
        pipeline: Pipeline,
        settings: Settings,
        shard: tuple[int, int],
        progress: Progress | None,
        stop: Callable[[], int | None],
        ports: Ports,
        load: LoadPackage,
    ) -> None:
        self._pipeline = pipeline
        self._settings = settings
        self._number, self._shards = shard
        self._progress = progress
        self._stop = stop
        self._ports = ports
        self._load = load
        self._warehouse = Warehouse(pipeline)
        self._split: Split | None = None
        self._preparing: Tally | None = None  # the tally of a division that failed
        self._listed: list[Import] = []  # during the division: all imports, and each typed table with its template
        self._tables: dict[str, str] = {}

    def sync(self) -> Tally:
        """Return the tally of the shard's run, or of the division of the work if that failed."""
        check_folders()
        self._warehouse.check_writable()
        self._refuse()
        prepare_for_loading(self._pipeline)
        use_own_working_directory(self._pipeline, f"shard-{self._number}-of-{self._shards}")
        with (
            shard_writer(self._pipeline, self._number, self._shards, self._prepare),
            capabilities_resolved_once(self._pipeline),
        ):
            if self._preparing is not None:
                return self._preparing
            # not before: if this process dies while it divides the work, no run knows of another schema to empty
            use_own_staging(self._pipeline, staging_suffix(self._number))
            rebuild_working_directory(self._pipeline)
            return self._read_part()

    def _refuse(self) -> None:
        """Raise ConfigError if shards cannot write concurrently."""
        if self._warehouse.destination_type != "postgres":
            raise ConfigError(
                "Shards write into one dataset at the same time, which only PostgreSQL supports; a DuckDB file has "
                "one writer at a time. Leave out --shard, or use PostgreSQL."
            )
        if self._settings.history:
            raise ConfigError(
                "With history on, only one run at a time can record versions of rows; leave out --shard, or set "
                "history = false under [sources.importer] until all shards are done."
            )
        schema = f"{staging_name(self._pipeline)}_{staging_suffix(MOST_SHARDS)}"
        if len(schema.encode()) > NAME_BYTES:
            raise ConfigError(
                f"Each shard stages rows in a schema of its own, and {schema} is longer than PostgreSQL's limit of "
                f"{NAME_BYTES} bytes; choose a dataset with a shorter name, or leave out --shard."
            )

    def _read_part(self) -> Tally:
        if self._split is None:
            raise RuntimeError("the work is not divided")
        rate = self._settings.requests_per_second
        settings = self._settings.model_copy(
            update={"requests_per_second": None if rate is None else rate / self._shards}
        )
        part = self._split.part(self._number)
        scope = RunScope(mode=f"shard {self._number}/{self._shards}", selection=Selection(part=part))
        crash_suspects = CrashSuspects(shard_path(self._pipeline, self._number, self._shards).with_suffix(".reading"))
        session = RunSession(
            settings,
            scope,
            self._warehouse,
            self._ports,
            progress=self._progress,
            stop=self._stop,
            crash_suspects=crash_suspects,
        )
        carry_out(self._pipeline, session, settings, self._load)
        crash_suspects.close()
        if session.left:
            log.warning(
                "%d imports need columns that the shared tables lack, or moved meanwhile; the run after the shards "
                "reads them.",
                session.left,
                extra={"event": "shard.left", "imports": session.left},
            )
        return session.tally

    # -- dividing the work -----------------------------------------------------------------------------------------

    def _prepare(self, alone: bool) -> None:
        """Divide the work, unless it is divided already; the caller holds the lock, `alone` if no other shard runs."""
        with self._warehouse.connect() as connection:
            self._split = split_of(connection, inspect_dataset(connection))
        if self._split is None and alone:
            with capabilities_resolved_once(self._pipeline):
                rebuild_working_directory(self._pipeline)
                self._divide()
            return
        if self._split is None or self._split.shards != self._shards:
            divided = "not divided" if self._split is None else f"divided among {self._split.shards} shards"
            raise ConfigError(
                f"The work is {divided} already, so there is no shard {self._number}/{self._shards} of it; start the "
                "other shards of that division, or `importer-sync run`, which reads the rest and ends it."
            )

    def _divide(self) -> None:
        session = self._session(RunScope(mode=f"split {self._shards}", force=True))
        carry_out(self._pipeline, session, self._settings, self._load, self._load_listing)
        if _ended_early(session.tally):
            self._preparing = session.tally
            return
        sizes = _sizes(self._listed, self._shards)
        large = too_large(sizes, self._shards)
        try:
            samples = _samples(self._listed, large - self._intact(sizes))
            if samples:
                session = self._session(RunScope(mode=f"split {self._shards}", selection=Selection(slugs=samples)))
                carry_out(self._pipeline, session, self._settings, self._load)
            if not _ended_early(session.tally):
                self._write(sizes, divide(sizes, self._shards, self._intact(sizes)))
        except Exception as error:
            session.tally.fatal = explain_failure(error, self._pipeline)
        if _ended_early(session.tally):
            self._split, self._preparing = None, session.tally

    def _session(self, scope: RunScope) -> RunSession:
        return RunSession(self._settings, scope, self._warehouse, self._ports, progress=self._progress, stop=self._stop)

    def _load_listing(self, pipeline: Pipeline, session: RunSession, settings: Settings, load: LoadPackage) -> None:
        session.open(reading=False)
        if session.lacks_tables():
            session.tables_created(load(pipeline, lambda _: session.missing_tables()))
        discovered = session.reader.discovered()
        if session.tally.interrupted_by is not None:
            return
        self._listed = [planned.import_ for planned in discovered.plan.read]
        self._tables = dict(session.catalogue.template_tables)
        if settings.typed:
            _name_tables(self._tables, self._listed, session.state.foreign | session.taken)
        of_records = settings.protection.fingerprint_of_records
        ruled = {i.template_slug or "" for i in self._listed if of_records(i.template_slug, i.template_name)}
        session.committed(load(pipeline, lambda load_id: _listing(session, self._tables, ruled, load_id)))

    def _intact(self, templates: Iterable[str]) -> Set[str]:
        """Return the templates that are expected to add no column: their typed tables exist and are complete."""
        if not self._settings.typed:
            return set(templates)
        with self._warehouse.connect() as connection:
            there = intact_tables(unaudited_state(connection))
        damaged = {template for table, template in self._tables.items() if table not in there}
        return set(self._tables.values()) - damaged

    def _write(self, sizes: Mapping[str, Counter[int]], assigned: Mapping[str, int]) -> None:
        total = sum(each.total() for each in sizes.values())
        names = {i.template_slug or "": i.template_name or i.template_slug for i in self._listed}
        for template in sorted(too_large(sizes, self._shards)):
            name = f"Template {names[template]}" if template else "What has no template"
            told = f"{name} is {sizes[template].total() / total:.0%} of the work"
            if assigned[template] == SHARED:
                log.info("%s; all shards share it.", told, extra={"event": "shards.shared"})
                continue
            whole = f"shard {assigned[template]}/{self._shards} reads all of it"
            log.warning(
                "%s; %s, because it has too few imports to share, or its columns are not known yet.",
                told,
                whole,
                extra={"event": "shards.whole"},
            )
        split = Split(self._shards, assigned, {t: s for t, s in self._tables.items() if s in sizes})
        with self._warehouse.connect() as connection:
            index_keys(connection, {RECORDS, *self._tables} & connection.columns().keys())
            write_split(connection, split)
        self._split = split


def _ended_early(tally: Tally) -> bool:
    return tally.status in (Status.failed, Status.interrupted)


def _sizes(imports: Iterable[Import], shards: int) -> dict[str, Counter[int]]:
    """Return the sizes of each template's imports, by the shard that would read them if all shared it."""
    sizes: dict[str, Counter[int]] = defaultdict(Counter)
    for import_ in imports:
        sizes[import_.template_slug or ""][shard_of(import_.slug, shards)] += max(import_.row_count, 0) + IMPORT_ROWS
    return sizes


def _samples(imports: Iterable[Import], templates: Set[str]) -> frozenset[str]:
    """Return some imports of each of these templates, not the largest, to read first: they determine its columns."""
    filled: dict[str, list[Import]] = defaultdict(list)
    for import_ in imports:
        if import_.row_count > 0 and (import_.template_slug or "") in templates:
            filled[import_.template_slug or ""].append(import_)
    chosen: set[str] = set()
    for some in filled.values():
        some.sort(key=lambda each: (each.row_count, each.slug))
        middle = len(some) // 2
        chosen.update(each.slug for each in some[middle : middle + min(SAMPLES, len(some) // 4)])
    return frozenset(chosen)


def _name_tables(tables: dict[str, str], imports: Iterable[Import], foreign: frozenset[str]) -> None:
    """Add a table for each template that has none, with the name that a run would give it."""
    for import_ in imports:
        table = table_name(import_.template_name, import_.template_slug, tables, foreign)
        tables.setdefault(table, import_.template_slug or "")


def _listing(
    session: RunSession, tables: Mapping[str, str], ruled: Collection[str], load_id: str
) -> Iterator[TableRows]:
    """Yield the rows of `imports`, and for each typed table that is new or lacks a column a row that the merge drops.

    The tables of the templates `ruled` have a column for their privacy rules.
    """
    yield from session.listed_rows(load_id)
    for table, template in sorted(tables.items()):
        is_new = table not in session.state.tables
        lacks_rules = template in ruled and (is_new or RULES_COLUMN not in session.catalogue.schema(table).physical)
        if is_new or lacks_rules:
            rows = placeholders(TYPED_SCHEMA, table, [NO_SLUG], load_id)
            if lacks_rules:
                rows = rows.append_column(RULES_COLUMN, pa.nulls(rows.num_rows, pa.string()))
            yield TableRows(table, rows, template=template)
