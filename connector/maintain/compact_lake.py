"""Rewrite a DuckLake, so that neither its files nor its catalog have deleted rows.

This removes the old versions of all its datasets, in which DuckLake keeps deleted rows. Files of this dataset that
belong to no version, as a killed run leaves them, are removed as well if no other lake can have its files there.
Invariant: no file of another lake or of a user is removed. The caller holds the lock.
"""

from __future__ import annotations

import logging
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from dlt.pipeline.pipeline import Pipeline

from connector.errors import ConfigError
from connector.warehouse import Warehouse
from connector.warehouse.adapters.dialect import literal
from connector.warehouse.destination import (
    destination_config,
    lake_files,
    lake_folders,
    local_file,
    postgres_credentials,
)

log = logging.getLogger("connector.maintain")

_MADE = re.compile(r"ducklake-[\w-]+\.parquet")  # the names that DuckLake gives to its files
_STEPS = (
    "ducklake_flush_inlined_data({lake})",
    "ducklake_rewrite_data_files({lake}, delete_threshold => 0)",
    "ducklake_merge_adjacent_files({lake})",
    "ducklake_expire_snapshots({lake}, older_than => now())",
    "ducklake_cleanup_old_files({lake}, cleanup_all => true)",
)


def rewrite_lake(pipeline: Pipeline) -> None:
    """Have DuckLake rewrite its files without deleted rows, and the database of the catalog its own files."""
    if lake_files(pipeline) is None:
        raise ConfigError(
            "Only a DuckLake whose files are in a folder is compacted here; see DuckLake's documentation for others "
            "(ducklake_rewrite_data_files, ducklake_expire_snapshots, ducklake_cleanup_old_files)."
        )
    lake = literal(destination_config(pipeline).credentials.ducklake_name)
    unknown = f"CALL ducklake_delete_orphaned_files({lake}, cleanup_all => true, dry_run => true)"
    with Warehouse(pipeline).connect() as connection:
        native: Any = connection.client.native_connection
        for step in _STEPS:
            native.execute(f"CALL {step.format(lake=lake)}").fetchall()
        left = native.execute(unknown).fetchall()
    _remove_unknown(pipeline, [Path(name).resolve() for (name,) in left])
    _rewrite_catalog(pipeline)


def _remove_unknown(pipeline: Pipeline, unknown: Sequence[Path]) -> None:
    """Remove files of DuckLake that the catalog does not know, or name them if another lake may know them.

    Only the default folder, which is named for the file of the catalog, belongs to one lake for certain.
    """
    catalog, files = local_file(pipeline), lake_files(pipeline)
    folders = [folder.resolve() for folder in lake_folders(pipeline)]
    ours = [file for file in unknown if _MADE.fullmatch(file.name) and any(map(file.is_relative_to, folders))]
    if catalog is not None and files is not None and files.resolve() == Path(f"{catalog}.files").resolve():
        for file in ours:
            file.unlink(missing_ok=True)
    elif ours:
        log.warning(
            "%d files in %s belong to no version of this lake, and may be those of another lake: they stay. A run that "
            "was killed leaves such files; if this lake alone has the folder, remove them: %s%s.",
            len(ours),
            files,
            ", ".join(str(file) for file in ours[:3]),
            ", …" * (len(ours) > 3),
            extra={"event": "lake.unknown_files", "files": len(ours)},
        )


def _rewrite_catalog(pipeline: Pipeline) -> None:
    """Have the database of the catalog rewrite itself without deleted rows; this process has no connection to it."""
    file, credentials = local_file(pipeline), postgres_credentials(pipeline)
    if file is not None:
        with closing(sqlite3.connect(file)) as session:
            session.execute("VACUUM")
            session.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    if credentials is not None:
        _vacuum(credentials.to_native_representation(), _schema(pipeline))


def _vacuum(address: str, schema: str) -> None:
    import psycopg2

    with closing(psycopg2.connect(address)) as session, session.cursor() as cursor:
        session.autocommit = True
        cursor.execute(
            "SELECT format('%%I.%%I', schemaname, tablename) FROM pg_tables "
            "WHERE schemaname = %s AND tablename LIKE 'ducklake%%'",
            (schema,),
        )
        for (table,) in cursor.fetchall():
            cursor.execute(f"VACUUM (FULL) {table}")


def lake_size(pipeline: Pipeline) -> int:
    """Return the bytes of the lake's files, and of a catalog in a file."""
    return sum(file.stat().st_size for file in _files(pipeline))


def _files(pipeline: Pipeline) -> Iterator[Path]:
    files, catalog = lake_files(pipeline), local_file(pipeline)
    if catalog is not None:
        yield catalog
    if files is not None:
        yield from (file for file in files.rglob("*.parquet") if file.is_file())


def _schema(pipeline: Pipeline) -> str:
    credentials = destination_config(pipeline).credentials
    return str(credentials.metadata_schema or credentials.ducklake_name)
