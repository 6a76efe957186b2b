"""Name the copy of a DuckDB file that a compaction makes beside it, and remove one that a killed compaction left.

Invariant: after a run, no copy lies beside the file: it would keep what a privacy rule or a deletion removed.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from dlt.pipeline.pipeline import Pipeline

from connector.errors import LockedError
from connector.warehouse.destination import duckdb_file
from connector.warehouse.lock import sole_rewriter


def copy_of(file: Path) -> Path:
    """Return the path of the copy of a file."""
    return file.with_name(f".{file.name}.compact")


def remove_copy(copy: Path) -> None:
    """Remove a copy and what DuckDB keeps beside it. The caller holds the lock of the file's rewriter."""
    for file in (copy, _log_of(copy)):
        file.unlink(missing_ok=True)
    shutil.rmtree(_spill_of(copy), ignore_errors=True)


def remove_left_copy(pipeline: Pipeline) -> None:
    """Remove the copy that a killed compaction left, unless a compaction is under way."""
    file = duckdb_file(pipeline)
    if file is None:
        return
    copy = copy_of(file.resolve())
    if any(each.exists() for each in (copy, _log_of(copy), _spill_of(copy))):
        with suppress(LockedError), sole_rewriter(file.resolve()):
            remove_copy(copy)


def _log_of(copy: Path) -> Path:
    return copy.with_name(f"{copy.name}.wal")


def _spill_of(copy: Path) -> Path:
    return copy.with_suffix(".tmp")
