"""Remove the database file and the folders that a check created, unless somebody has put something into them meanwhile.

Invariant: a file that has a table, or that another process has open or is about to write, is never removed. The lock of
the dataset and the database's own lock on the file are held while it is looked at and removed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import duckdb
from dlt.pipeline.pipeline import Pipeline
from filelock import FileLock, Timeout

from connector.files import make_lock_file
from connector.warehouse.destination import destination_type, lake_files, lake_folders, local_file
from connector.warehouse.lock import lock_path

_TABLES = {
    "duckdb": "SELECT 1 FROM information_schema.tables LIMIT 1",
    "sqlite": "SELECT 1 FROM sqlite_master LIMIT 1",
    "ducklake": "SELECT 1 FROM ducklake_table WHERE end_snapshot IS NULL LIMIT 1",
}


@contextmanager
def removed_if_unused(pipeline: Pipeline) -> Iterator[None]:
    """Remove afterwards the file and the folders above it that did not exist before, unless somebody uses them."""
    file = local_file(pipeline)
    folders = [folder for folder in file.parents if not folder.exists()] if file is not None else []
    absent = file is not None and not file.exists()
    try:
        yield
    finally:
        if absent:
            remove_unused_file(pipeline)
        for folder in folders:
            with suppress(OSError):  # it is not empty, or was not created
                folder.rmdir()


def remove_unused_file(pipeline: Pipeline) -> bool:
    """Remove the file, the files that databases keep beside it, and empty folders of a lake; return whether it did."""
    file, files = local_file(pipeline), lake_files(pipeline)
    if file is None or not file.exists():
        return False
    make_lock_file(lock_path(pipeline))
    with suppress(Timeout), FileLock(lock_path(pipeline), timeout=0):
        with suppress(duckdb.Error, sqlite3.Error), _exclusively(file, destination_type(pipeline)) as is_empty:
            if is_empty:
                for beside in (file, *(file.with_name(file.name + ending) for ending in ("-wal", "-shm"))):
                    beside.unlink(missing_ok=True)
        if not file.exists():
            lock_path(pipeline).unlink(missing_ok=True)
            for folder in (*lake_folders(pipeline), *([files] if files is not None else ())):
                with suppress(OSError):  # it is not empty, or does not exist
                    folder.rmdir()
            return True
    return False


@contextmanager
def _exclusively(file: Path, kind: str) -> Iterator[bool]:
    """Open the file so that no other process can, and yield whether it has no table. Raises if that is not possible."""
    if kind == "duckdb":
        with duckdb.connect(str(file)) as connection:
            yield not connection.execute(_TABLES[kind]).fetchall()
        return
    with closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as database:
        database.execute("BEGIN EXCLUSIVE")
        yield not database.execute(_TABLES[kind]).fetchall()
