"""Load packages with dlt: all that relies on its undocumented parts (those of destinations: `warehouse.destination`).

Everything here relies on dlt's source code and may break with a minor version of dlt.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import Any, Protocol, cast
from weakref import WeakKeyDictionary, ref

import dlt
import pyarrow as pa
from dlt.common.configuration.container import Container
from dlt.common.configuration.resolve import resolve_configuration
from dlt.common.destination.client import WithStateSync
from dlt.common.pipeline import LoadInfo
from dlt.common.schema import Schema
from dlt.common.schema.typing import TColumnSchema, TTableSchema
from dlt.common.storages.load_package import LoadPackageStateInjectableContext
from dlt.common.time import increasing_precise_time, precise_time
from dlt.load.configuration import LoaderConfiguration
from dlt.pipeline.pipeline import Pipeline

from connector.errors import ConfigError
from connector.load.pending_packages import note_origin
from connector.load.table_rows import TableRows, hints
from connector.warehouse.lock import check_lock_held
from connector.warehouse.ownership import TYPED_PREFIX
from connector.warehouse.tables import IMPORTS, RECORDS, SOURCE

WriteDispositions = Mapping[str, Mapping[str, Any]]  # table → what its entry in dlt's schema says for one package
_REBUILT = "x-importer-rebuilt"
_extracting: WeakKeyDictionary[Pipeline, str] = WeakKeyDictionary()  # the package into which a sync was extracted last


class LoadPackage(Protocol):
    """A loader of one package; `load_package` is the implementation that uses dlt."""

    def __call__(
        self,
        pipeline: Pipeline,
        tables: Callable[[str], Iterator[TableRows]],
        dispositions: Callable[[], WriteDispositions] = ...,
        /,
    ) -> str | None: ...


class Marker:
    """Marks rows with their table and hints for dlt: in full the first time and whenever they differ, else by name."""

    def __init__(self) -> None:
        self._told: dict[str, Mapping[str, Any]] = {}

    def __call__(self, table_rows: TableRows) -> Any:
        arguments = hints(table_rows)
        if self._told.get(table_rows.table) == arguments:
            return dlt.mark.with_table_name(table_rows.rows, table_rows.table)
        self._told[table_rows.table] = arguments
        made = dlt.mark.make_hints(**arguments)
        return dlt.mark.with_hints(table_rows.rows, made, create_table_variant=True)


def follow_clock() -> None:
    """Make dlt number packages by the clock of this machine again, if it was set back.

    dlt's ids never go back within a process, so processes forked from one that began while the clock was ahead would
    all use the same few ids, and a new load would look like a completed and recorded one.
    """
    increasing_precise_time._last = min(increasing_precise_time._last, precise_time())


def current_load_id() -> str:
    """Return the id of the package that dlt is extracting into, from dlt's own context of the extract step."""
    return Container()[LoadPackageStateInjectableContext].load_id


def package_state() -> Mapping[str, Any]:
    """Return dlt's state of the package that it is extracting into, which lists what a refresh drops or empties."""
    return Container()[LoadPackageStateInjectableContext].state


def check_only_source(pipeline: Pipeline) -> None:
    """Raise ConfigError if the pipeline has extracted another sync that it has not loaded yet.

    A sync is compared with what is loaded: the second one would take the imports of the first for missing.
    """
    load_id = current_load_id()
    if _extracting.get(pipeline) == load_id:
        raise ConfigError(
            "Two sources of importer_source() cannot be loaded in one pipeline.run, because each is compared with what "
            "is loaded; list all templates in one of them, or run the pipeline once for each."
        )
    if pipeline.has_pending_data:
        raise ConfigError(
            "The pipeline has extracted packages that are not loaded yet, and a sync is compared with what is loaded; "
            "call pipeline.normalize() and pipeline.load() before the next pipeline.extract."
        )
    _extracting[pipeline] = load_id


def check_failed_jobs_raise() -> None:
    """Raise ConfigError if dlt is configured to complete a package although some of its tables failed to load.

    The ledger, which is loaded with them, would then list rows that are missing.
    """
    if not resolve_configuration(LoaderConfiguration(), sections=("load",), accept_partial=True).raise_on_failed_jobs:
        raise ConfigError(
            "raise_on_failed_jobs is false in dlt's configuration ([load], or LOAD__RAISE_ON_FAILED_JOBS), so a "
            "table that failed to load would count as loaded. Remove the setting, or use the command, which works "
            "with it."
        )


def hold_until_loaded(pipeline: Pipeline, held: ExitStack) -> Callable[[], None]:
    """Hold the lock of a pipeline that is extracting until it has loaded; return a function that releases it.

    Invariant: from the moment a run reads the state of the warehouse until its last row is written, nobody else writes,
    whoever calls dlt. dlt has no callback after a load, so the pipeline's step methods are replaced on this object
    until they have been called. If the package is never loaded, the lock is released with the object.
    """
    loading = ref(pipeline)  # a weak reference, because the pipeline refers to the held object

    def release() -> None:
        if (pipeline := loading()) is not None:
            for name in ("normalize", "load"):
                vars(pipeline).pop(name, None)
        held.close()

    def stand_in(name: str) -> Callable[..., Any]:
        def step(*args: Any, **named: Any) -> Any:
            try:
                result = getattr(Pipeline, name)(loading(), *args, **named)
            except BaseException:
                release()
                raise
            if name == "load":
                release()
            return result

        return step

    vars(pipeline).update({name: stand_in(name) for name in ("normalize", "load")})
    return release


# -- loading a package -------------------------------------------------------------------------------------------------


def load_package(
    pipeline: Pipeline,
    tables: Callable[[str], Iterator[TableRows]],
    dispositions: Callable[[], WriteDispositions] = dict,
    /,
) -> str | None:
    """Load the tables that `tables(load_id)` yields as one package, with the write dispositions of `dispositions()`.

    Return its load id, or None if there was nothing to load. Raise ConnectorError if the lock was lost meanwhile.
    """

    @dlt.source(name=SOURCE, section=SOURCE)
    def importer() -> Any:
        @dlt.resource(name="records")
        def records() -> Iterator[Any]:
            mark = Marker()
            note_origin(None)
            yield from map(mark, tables(current_load_id()))
            pa.default_memory_pool().release_unused()  # return memory to the system before the destination needs it
            written = dlt.current.source_schema().tables
            for table, disposition in dispositions().items():
                written[table].update(cast("TTableSchema", disposition))
            check_lock_held(pipeline)  # a package that was not extracted completely is never loaded

        return records

    return _load_id(pipeline.run(importer()))


def load_again(pipeline: Pipeline) -> str | None:
    """Load the package that was extracted and then failed to load; return its load id."""
    return _load_id(pipeline.load())


def _load_id(loaded: LoadInfo) -> str | None:
    loaded.raise_on_failed_jobs()
    return loaded.loads_ids[-1] if loaded.loads_ids else None


# -- rebuilding a table ------------------------------------------------------------------------------------------------


def forget_tables(pipeline: Pipeline, tables: Sequence[str], now: datetime) -> str | None:
    """Make dlt forget these tables: here, in the warehouse, and in other working directories.

    A mark makes this schema different from all earlier ones, so that dlt stores it. The changed state makes every other
    working directory fetch it before its next run. Return the load id, or None if dlt has no schema yet.
    """
    pipeline.sync_destination()
    schema = pipeline.schemas[SOURCE] if SOURCE in pipeline.schemas else _stored_schema(pipeline)
    if schema is None:
        return None
    schema.drop_tables([table for table in tables if table in schema.tables])
    if RECORDS in schema.tables:
        schema.tables[RECORDS][_REBUILT] = now.isoformat()  # type: ignore[literal-required]
    pipeline.schemas.save_schema(schema)

    @dlt.source(name=SOURCE, section=SOURCE)
    def importer() -> Any:
        @dlt.resource(name=RECORDS)
        def records() -> Iterator[Any]:
            dlt.current.source_state()["rebuilt_at"] = now.isoformat()
            yield from ()

        return records

    return _load_id(pipeline.run(importer()))


def adopt_rebuilt_tables(pipeline: Pipeline, live: Schema) -> None:
    """Update the tables with columns of data in the schema that dlt extracts with to those in the warehouse.

    After a rebuild under another pipeline name, or while this process was running, or once an older copy of the
    warehouse was put back, dlt still has another schema here. It would refuse every later load, because it considers
    the types that it knows frozen, and store to which template a table belonged there.
    """
    tables = [table for table in live.tables if table == IMPORTS or table.startswith(TYPED_PREFIX)]
    stored = _stored_schema(pipeline) if tables else None
    if stored is None:
        return
    for table in tables:
        newest = stored.tables.get(table)
        if newest is None:
            live.drop_tables([table] * (table != IMPORTS))
        elif newest != live.tables[table]:
            live.tables[table] = newest


def _stored_schema(pipeline: Pipeline) -> Schema | None:
    """Return the schema that other pipelines stored in the warehouse, or None."""
    with pipeline.destination_client() as client:
        stored = client.get_stored_schema(SOURCE) if isinstance(client, WithStateSync) else None
    return None if stored is None else Schema.from_dict(json.loads(stored.schema))


def load_replacement(
    pipeline: Pipeline, schema_name: str, table: str, batches: Iterator[pa.Table], json_columns: Sequence[str]
) -> None:
    """Load a table with a separate dlt schema, in a working directory that is removed afterwards.

    It lies in that of the pipeline, so that the next run removes what a killed rebuild left there.
    """
    folder = tempfile.mkdtemp(prefix="rebuild-", dir=pipeline.working_dir)
    try:
        separate = dlt.pipeline(
            pipeline.pipeline_name,
            destination=pipeline.destination,
            dataset_name=pipeline.dataset_name,
            pipelines_dir=folder,
        )
        separate.config.restore_from_destination = False  # otherwise it would read and overwrite the pipeline's state

        @dlt.source(name=schema_name, section=SOURCE)
        def rebuilt() -> Any:
            columns: list[TColumnSchema] = [{"name": name, "data_type": "json"} for name in json_columns]
            return dlt.resource(batches, name=table, write_disposition="append", columns=columns, file_format="parquet")

        separate.run(rebuilt()).raise_on_failed_jobs()
    finally:
        pipeline.activate()
        shutil.rmtree(folder, ignore_errors=True)
