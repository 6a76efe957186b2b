"""A full backfill divided among shards: processes side by side, on one machine or several, into one dataset.

The first one alone lists the service, writes every row of `imports`, makes the typed tables, asks for each import in
the ledger and notes which templates are whose (`connector.warehouse.split` has the invariants). Each then reads its
part as any run reads what is due: one that is killed and started again goes on from there. The run after them reads
what is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from dlt.pipeline.pipeline import Pipeline

from connector.errors import ConfigError
from connector.load.dlt_bridge import LoadPackage, load_package
from connector.load.emission import Emission, placeholders
from connector.load.working_directory import believe_folders, make_anew, work_apart
from connector.models import Import
from connector.run.deaths import UnderWay
from connector.run.ports import Ports, Progress
from connector.run.session import RunSession
from connector.run.sync import carry_out
from connector.run.sync import sync as sync_alone
from connector.runs import Status, Tally
from connector.scope import MOST_SHARDS
from connector.settings import RunScope, Selection, Settings
from connector.transform.naming import table_name
from connector.warehouse import Warehouse
from connector.warehouse.destination import (
    capabilities_resolved_once,
    prepare_for_loading,
    stage_apart,
    staging_name,
)
from connector.warehouse.lock import one_of_shards, shard_path
from connector.warehouse.lookup import index_keys
from connector.warehouse.ownership import take_stock
from connector.warehouse.split import Split, split_of, staging_suffix, write_split
from connector.warehouse.tables import NO_SLUG, RECORDS, TYPED_SCHEMA

IMPORT_ROWS = 100  # that an import costs besides its rows: the request for them, and its share of a package
NAME_BYTES = 63  # of a schema in PostgreSQL


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
    """One run, as `connector.run.sync.sync`, or the part of a shard if the scope is one."""
    if scope is None or scope.shard is None:
        return sync_alone(pipeline, settings, scope, progress=progress, stop=stop, ports=ports, load=load)
    return _Shard(pipeline, settings, scope.shard, progress, stop, ports or Ports.real(), load).sync()


def divide(sizes: Mapping[str, int], shards: int) -> dict[str, int]:
    """Give each template to a shard, counted from 1: the largest first, each to the shard that has least so far."""
    loads = Counter(dict.fromkeys(range(1, shards + 1), 0))
    assigned: dict[str, int] = {}
    for template, size in sorted(sizes.items(), key=lambda each: (-each[1], each[0])):
        shard = min(loads, key=lambda each: (loads[each], each))
        assigned[template] = shard
        loads[shard] += size
    return assigned


class _Shard:
    """One shard: made ready by its locks, then a run over its part."""

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
        self._preparing: Tally | None = None  # that could not divide the work

    def sync(self) -> Tally:
        """Return the tally of the shard's run, or of the dividing of the work where that did not succeed."""
        believe_folders()
        self._warehouse.check_writable()
        self._refuse()
        stage_apart(self._pipeline, staging_suffix(self._number))
        prepare_for_loading(self._pipeline)
        work_apart(self._pipeline, f"shard-{self._number}-of-{self._shards}")
        with (
            one_of_shards(self._pipeline, self._number, self._shards, self._prepare),
            capabilities_resolved_once(self._pipeline),
        ):
            if self._preparing is not None:
                return self._preparing
            make_anew(self._pipeline)
            return self._read_part()

    def _refuse(self) -> None:
        """Raise ConfigError where shards cannot write side by side."""
        if self._warehouse.destination_type != "postgres":
            raise ConfigError(
                "Shards write into one dataset side by side, which only PostgreSQL lets them; a DuckDB file has one "
                "writer at a time. Leave out --shard, or use PostgreSQL."
            )
        if self._settings.history:
            raise ConfigError(
                "With history on, the versions of rows are made by one run after the other; leave out --shard, or set "
                "history = false under [sources.importer] until all shards are done."
            )
        schema = f"{staging_name(self._pipeline)}_{staging_suffix(MOST_SHARDS)}"
        if len(schema.encode()) > NAME_BYTES:
            raise ConfigError(
                f"Each shard stages rows in a schema of its own, and {schema} is longer than the {NAME_BYTES} bytes "
                "that PostgreSQL takes; choose a dataset of a shorter name, or leave out --shard."
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
        under_way = UnderWay(shard_path(self._pipeline, self._number, self._shards).with_suffix(".reading"))
        session = RunSession(
            settings,
            scope,
            self._warehouse,
            self._ports,
            progress=self._progress,
            stop=self._stop,
            under_way=under_way,
        )
        carry_out(self._pipeline, session, settings, self._load)
        under_way.close()
        return session.tally

    # -- dividing the work -----------------------------------------------------------------------------------------

    def _prepare(self, alone: bool) -> None:
        """Divide the work, unless it is divided already; the caller holds the lock, `alone` if no other shard runs."""
        with self._warehouse.connect() as connection:
            self._split = split_of(connection, take_stock(connection))
        if self._split is None and alone:
            with capabilities_resolved_once(self._pipeline):
                make_anew(self._pipeline)
                self._divide()
            return
        if self._split is None or self._split.shards != self._shards:
            divided = "not divided" if self._split is None else f"divided among {self._split.shards} shards"
            raise ConfigError(
                f"The work is {divided} already, so there is no shard {self._number}/{self._shards} of it; start the "
                "others of these, or `importer-sync run`, which reads what is left and ends it."
            )

    def _divide(self) -> None:
        scope = RunScope(mode=f"split {self._shards}", force=True)
        session = RunSession(
            self._settings, scope, self._warehouse, self._ports, progress=self._progress, stop=self._stop
        )
        carry_out(self._pipeline, session, self._settings, self._load, self._load_listing)
        if self._split is None or session.tally.status in (Status.failed, Status.interrupted):
            self._split, self._preparing = None, session.tally

    def _load_listing(self, pipeline: Pipeline, session: RunSession, settings: Settings, load: LoadPackage) -> None:
        session.open(reading=False)
        if session.lacks_tables():
            session.made_tables(load(pipeline, lambda _: session.missing_tables()))
        decided = session.reader.decided()
        if session.tally.interrupted_by is not None:
            return
        imports = [planned.import_ for planned in decided.plan.read]
        tables = dict(session.catalogue.template_tables)
        if settings.typed:
            _name_tables(tables, imports, session.state.foreign | session.taken)
        session.committed(load(pipeline, lambda load_id: _listing(session, tables, load_id)))
        sizes: Counter[str] = Counter()
        for import_ in imports:
            sizes[import_.template_slug or ""] += max(import_.row_count, 0) + IMPORT_ROWS
        split = Split(self._shards, divide(sizes, self._shards), {t: s for t, s in tables.items() if s in sizes})
        with self._warehouse.connect() as connection:
            index_keys(connection, {RECORDS, *tables} & connection.columns().keys())
            write_split(connection, split)
        self._split = split


def _name_tables(tables: dict[str, str], imports: Iterable[Import], foreign: frozenset[str]) -> None:
    """Add a table for each template that has none, by the rules of a run that comes upon them one by one."""
    for import_ in imports:
        table = table_name(import_.template_name, import_.template_slug, tables, foreign)
        tables.setdefault(table, import_.template_slug or "")


def _listing(session: RunSession, tables: Mapping[str, str], load_id: str) -> Iterator[Emission]:
    """The rows of `imports`, and of each new typed table one that the merge keeps out."""
    yield from session.listed_rows(load_id)
    for table in sorted(tables.keys() - session.state.tables):
        yield Emission(table, placeholders(TYPED_SCHEMA, table, [NO_SLUG], load_id), template=tables[table])
