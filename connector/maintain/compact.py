"""Rewrite the warehouse so that deleted bytes are no longer in it.

A database marks rows as deleted, and their bytes stay in its file until something overwrites them. A DuckDB file is
therefore copied with everything in it, compared with the copy table by table, and replaced by the copy in one step. An
error or a kill before that leaves the file unchanged. SQLite rewrites its file itself (VACUUM), and PostgreSQL each of
our tables (VACUUM FULL). For a DuckLake see `compact_lake`.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import duckdb
from dlt.pipeline.pipeline import Pipeline

from connector.errors import ConfigError, ConnectorError
from connector.maintain.compact_lake import lake_size, rewrite_lake
from connector.warehouse import Connection, Warehouse
from connector.warehouse.adapters.dialect import literal, quoted
from connector.warehouse.destination import (
    dataset_name,
    destination_type,
    duckdb_file,
    lake_catalog,
    lake_place,
    local_file,
)
from connector.warehouse.erasing import empty_staging, erase_deleted, erase_kept
from connector.warehouse.failures import explain_failure
from connector.warehouse.history_tables import histories
from connector.warehouse.left_copy import copy_of, remove_copy
from connector.warehouse.left_spill import remove_left_spill
from connector.warehouse.lock import check_lock_held, sole_rewriter, sole_writer
from connector.warehouse.ownership import inspect_dataset, staged
from connector.warehouse.typed_tables import discard_rebuild

_OLD, _NEW = "importer_old", "importer_new"
_STATE = "_dlt_pipeline_state"
_CATALOGS = ("tables", "columns", "views", "indexes", "sequences", "types", "functions")
# Columns of the catalog that differ between equal databases, as ids do. A view has columns only once it was read.
_OF_THE_FILE = ("database_name", "estimated_size", "is_bound", "column_count")


@dataclass(frozen=True, slots=True)
class Compacted:
    """Bytes on disk before and after: of the file, of a lake, or of our tables in PostgreSQL."""

    bytes_before: int
    bytes_after: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def compact(pipeline: Pipeline, *, mirrors: bool, storage: str | None = None) -> Compacted:
    """Rewrite the warehouse; with `mirrors`, first erase what is left of imports and records that the service erased.

    `storage` is the version of DuckDB whose format the file gets; without it, the format stays. Raises LockedError
    while a run is under way, DatabaseBusyError if another program has the DuckDB file open, and ConnectorError if the
    copy differs from the file; in these cases nothing was changed.
    """
    warehouse = Warehouse(pipeline)
    warehouse.check_supported()
    try:
        if not warehouse.exists():
            raise ConfigError("There is no warehouse to compact yet; run `importer-sync run` first.")
        with sole_writer(pipeline):
            with warehouse.connect() as connection:
                dataset = inspect_dataset(connection)
                discard_rebuild(connection, dataset.ours)
                if (file := duckdb_file(pipeline)) is not None:
                    remove_left_spill(file, connection.client.native_connection)
                if mirrors:
                    erase_deleted(connection, dataset)
                    erase_kept(connection, dataset)
                else:
                    empty_staging(connection)
                ours = sorted({*dataset.ours, *(each.history for each in histories(dataset).values())})
                if connection.traits.dialect == "postgres":
                    return _vacuum(connection, ours)
            if lake_catalog(pipeline) is not None:
                before = lake_size(pipeline)
                rewrite_lake(pipeline)
                return Compacted(before, lake_size(pipeline))
            if destination_type(pipeline) == "sqlite" and (file := local_file(pipeline)) is not None:
                return _vacuum_file(file)
            if (place := lake_place(pipeline)) is not None:
                return _rewrite_tables(pipeline, place, ours)
            if file is None:
                raise ConfigError(
                    "Only a warehouse in a file, in PostgreSQL, in a DuckLake or in tables of files can be compacted."
                )
            file = file.resolve()
            with sole_rewriter(file):  # a compaction for another dataset could replace the file by an older copy
                return _rewrite(pipeline, file, storage)
    except Exception as error:
        raise explain_failure(error, pipeline) from None


def _vacuum(connection: Connection, ours: list[str]) -> Compacted:
    tables = [connection.name(table) for table in ours]
    with connection.client.with_staging_dataset():
        tables += [connection.name(table) for table in sorted(staged(connection))]
    before = _sizes(connection, tables)
    for table in tables:
        connection.execute(f"VACUUM (FULL) {table}")
    return Compacted(before, _sizes(connection, tables))


def _rewrite_tables(pipeline: Pipeline, place: str, ours: list[str]) -> Compacted:
    """Merge the files of our tables, and remove those with the rows of earlier versions."""
    untyped: Any = pipeline.destination
    lake = untyped.lake_at(place, dataset_name(pipeline))
    before = lake.log.size()
    lake.compact([*ours, _STATE])
    return Compacted(before, lake.log.size())


def _vacuum_file(file: Path) -> Compacted:
    """Have SQLite rewrite the file in its own transaction."""
    before = file.stat().st_size
    with closing(sqlite3.connect(file)) as session:
        session.execute("VACUUM")
        session.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return Compacted(before, file.stat().st_size)


def _sizes(connection: Connection, tables: list[str]) -> int:
    sizes = " + ".join(f"pg_total_relation_size('{table}')" for table in tables) or "0"
    return int(connection.query(f"SELECT CAST({sizes} AS BIGINT) AS bytes").column("bytes")[0].as_py())


def _rewrite(pipeline: Pipeline, file: Path, storage: str | None) -> Compacted:
    before = file.stat()
    if shutil.disk_usage(file.parent).free < before.st_size:
        raise ConnectorError(
            f"Compacting {file} may need {before.st_size / 1e6:,.0f} MB of free disk space beside it, and less is "
            "available; free some space and compact again."
        )
    copy = copy_of(file)
    with _scratch(copy), duckdb.connect(config={"temp_directory": str(copy.with_suffix(".tmp"))}) as session:
        # read-only, so that nobody can write to the file until the copy replaces it
        session.execute(f"ATTACH {literal(str(file))} AS {_OLD} (READ_ONLY)")
        if file.with_name(f"{file.name}.wal").exists():
            raise ConnectorError(f"Another program has just written to {file}; compact it again when it is done.")
        session.execute(f"ATTACH {literal(str(copy))} AS {_NEW}{_format(session, storage)}")
        session.execute(f"COPY FROM DATABASE {_OLD} TO {_NEW}")
        _compare(session, file)
        session.execute(f"DETACH {_NEW}")
        shutil.copymode(file, copy)
        os.chown(copy, before.st_uid, before.st_gid)
        with copy.open("rb") as written:
            os.fsync(written.fileno())
        check_lock_held(pipeline)
        copy.replace(file)
    return Compacted(before.st_size, file.stat().st_size)


@contextmanager
def _scratch(copy: Path) -> Iterator[None]:
    """Remove what an interrupted compaction leaves, before and after."""
    remove_copy(copy)
    try:
        yield
    finally:
        remove_copy(copy)


def _format(session: duckdb.DuckDBPyConnection, storage: str | None) -> str:
    """Return the option with which every DuckDB that reads the file, or `storage` and later ones, can read the copy."""
    if storage is not None:
        return f" (STORAGE_VERSION '{storage}')"
    rows: Any = session.execute(f"SELECT tags FROM duckdb_databases() WHERE database_name = '{_OLD}'").fetchall()
    version = str(rows[0][0].get("storage_version", "")).split("+")[0]
    return f" (STORAGE_VERSION '{version}')" if version.startswith("v") else ""


def _compare(session: duckdb.DuckDBPyConnection, file: Path) -> None:
    """Raise ConnectorError if the copy differs, in its catalog or in the rows of a table."""
    differing = [each for each in _CATALOGS if _catalog(session, each, _OLD) != _catalog(session, each, _NEW)]
    tables: Any = session.execute(
        f"SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = '{_OLD}'"
    ).fetchall()
    for schema, table in tables:
        name = f"{quoted(schema)}.{quoted(table)}"
        if _content(session, f"{_OLD}.{name}") != _content(session, f"{_NEW}.{name}"):
            differing.append(f"the rows of {schema}.{table}")
    if differing:
        raise ConnectorError(
            f"The copy of {file} differs from it in {', '.join(differing)}, so the file was left as it was. That is a "
            "defect of DuckDB's COPY FROM DATABASE or of this command; please report it."
        )


def _content(session: duckdb.DuckDBPyConnection, table: str) -> Any:
    return session.execute(f'SELECT count(*), sum(hash("the row")) FROM {table} AS "the row"').fetchall()


def _catalog(session: duckdb.DuckDBPyConnection, kind: str, database: str) -> Any:
    known: Any = session.execute(f"DESCRIBE SELECT * FROM duckdb_{kind}()").fetchall()
    compared = [c[0] for c in known if not c[0].endswith("_oid") and c[0] not in _OF_THE_FILE]
    names = ", ".join(f'"{name}"' for name in compared)
    own = " AND NOT internal" if "internal" in compared else ""
    sql = f"SELECT {names} FROM duckdb_{kind}() WHERE database_name = ?{own} ORDER BY ALL"
    return session.execute(sql, [database]).fetchall()
