"""Explain that another process has a DuckDB file open, by a typed error, and wait until the file is free.

DuckDB lets one process at a time open a file for writing, and reports that only in the text of its message, which is
parsed only here.
"""

from __future__ import annotations

import glob
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from connector.errors import DatabaseBusyError
from connector.warehouse.lock import Holder

T = TypeVar("T")
WAIT_S = 5.0
POLL_S = 0.1
_HELD = re.compile(r'Could not set lock on file "([^"]+)"[^(]*(?:\((PID \d+)\))?')


def as_busy(error: BaseException) -> DatabaseBusyError | None:
    """Return `error` as DatabaseBusyError if another process has the DuckDB file open, else None."""
    if isinstance(error, DatabaseBusyError):
        return error
    found = _HELD.search(" ".join(str(error).split()))
    if found is None:
        return None
    run = _run_with(Path(found[1]), found[2])
    if run is not None:
        return DatabaseBusyError(
            f"A run of importer-sync is under way and has {found[1]} open ({run}), and DuckDB allows only one "
            "process; try again when it has ended. `importer-sync status` works meanwhile."
        )
    by = f" ({found[2]})" if found[2] else ""
    return DatabaseBusyError(
        f"Another program{by} has {found[1]} open, and DuckDB allows only one process; close the file there and try "
        "again."
    )


def _run_with(file: Path, process: str | None) -> Holder | None:
    """Return our run that has the file open in that process, from the notes beside its locks; None for others."""
    for lock in sorted(file.parent.glob(f".{glob.escape(file.name)}.*.lock")):
        holder = Holder.read_at(lock)
        if holder is not None and holder.is_alive and process in (None, f"PID {holder.process}"):
            return holder
    return None


def when_free(ask: Callable[[], T], meanwhile: Callable[[], T | None] = lambda: None) -> T:
    """Return what `ask` returns, trying for WAIT_S while another process has the file open.

    After each failed attempt `meanwhile` may answer instead. Raises DatabaseBusyError if the file stays open elsewhere.
    """
    until = time.monotonic() + WAIT_S
    while True:
        try:
            return ask()
        except Exception as error:
            busy = as_busy(error)
            if busy is None:
                raise
            answer = meanwhile()
            if answer is not None:
                return answer
            if time.monotonic() > until:
                raise busy from None
            time.sleep(POLL_S)
