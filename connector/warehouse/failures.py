"""Explain a failure of dlt or of the destination to an operator, with a sentence and an exception type.

This module, `busy` and `blocked` are the only ones that parse the text of a destination's message: some errors have no
type of their own.
"""

from __future__ import annotations

import errno
import os
import re
import sqlite3
from collections.abc import Iterator

import duckdb
from dlt.common.destination.exceptions import DestinationException
from dlt.common.schema.exceptions import DataValidationError
from dlt.pipeline.exceptions import PipelineStepFailed
from dlt.pipeline.pipeline import Pipeline

from connector.errors import ConfigError, ConnectorError, TransientError
from connector.warehouse.blocked import as_blocked
from connector.warehouse.busy import as_busy
from connector.warehouse.destination import without_password

_NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
_NO_MEMORY = (
    "Out of Memory Error",
    "could not allocate block",  # in a commit, as the next one
    "failed to pin block",
    "Conflict on tuple deletion",  # for a deletion that was rolled back when memory ran out, in DuckDB 2.0
)
# PostgreSQL's classes of errors about connections, conflicts, resources, locks and interventions, and MySQL's codes.
_LOST = "08"  # psycopg2 names no class if the connection was lost
_PASSING_STATES = (_LOST, "40", "53", "55", "57")
_PASSING_CODES = (1205, 1213, 1927, 2006, 2013, 3024)
_OURS_IN_DUCKDB = re.compile(r"Traceback \(most recent call last\):.*?\n(TransientError|ConfigError): ([^\n]+)", re.S)
_NO_DATABASE = re.compile(r'The file "([^"]+)" exists, but it is not a valid DuckDB database file')
_NEWER_FILE = re.compile(r"version number \d+, but we can only read versions? (?:between )?[\d and]+\d")
_NO_EXTENSION = re.compile(r"/(\w+)\.duckdb_extension\" not found")
_FILE_NOT_WRITTEN = re.compile(r'Could not write (?:all bytes to )?file "[^"]*"')


def explain_failure(error: BaseException, pipeline: Pipeline | None = None) -> ConnectorError:
    """Return the cause that an operator can act on from dlt's nested exceptions.

    If `pipeline` is given, the error names the session that held a lock too long, and lacks the destination's password.
    """
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        seen.append(cause)
        if isinstance(cause, ConnectorError):
            return cause
        cause = cause.__cause__ or cause.__context__
    if ours := next((within for e in seen if (within := ours_within(e))), None):
        return ours
    root = next((e for e in reversed(seen) if not isinstance(e, PipelineStepFailed)), error)
    step = next((e.step for e in seen if isinstance(e, PipelineStepFailed)), None)
    where = f" while dlt was in its step {step!r}" if step else ""
    if busy := next((held for e in seen if (held := as_busy(e))), None):
        return busy
    if blocked := as_blocked(seen, pipeline):
        return blocked
    if is_out_of_memory(error):
        return ConnectorError(
            f"DuckDB ran out of memory{where}; give it more, by raising a memory_limit of yours if there is one, or "
            "load less at once with a lower batch_rows."
        )
    if foreign := next((no.group(1) for e in seen if (no := _NO_DATABASE.search(str(e)))), None):
        return ConnectorError(
            f"The file {foreign} exists but is not a DuckDB database, so it was left unchanged; name another file "
            "with --to."
        )
    if newer := next((no.group() for e in seen if (no := _NEWER_FILE.search(str(e)))), None):
        return ConnectorError(
            f"The DuckDB file was written by a newer DuckDB ({newer}); install that version, `pip install -U duckdb`."
        )
    if lacking := next((no.group(1) for e in seen if (no := _NO_EXTENSION.search(str(e)))), None):
        return ConfigError(
            f"DuckDB {duckdb.__version__} has no extension {lacking} here: pip install 'importer-connector[ducklake]', "
            f"which brings DuckDB 1.5 with it, or have yours fetch it once (INSTALL {lacking})."
        )
    if unlike := next((e for e in seen if isinstance(e, DataValidationError)), None):
        return ConnectorError(
            f"{unlike.table_name}.{unlike.column_name} has another type in the warehouse than it was made with, and "
            f"`sync_fields` no longer says which; run `importer-sync rebuild --table {unlike.table_name}`, or drop the "
            "column and run again."
        )
    if room := next((found for e in seen if (found := _without_room(e))), None):
        return ConnectorError(f"A disk is full{where}: {room}; free some space and run again to read what is missing.")
    drivers = ("duckdb", "_duckdb", "psycopg2", "sqlalchemy", "sqlite3", "pymysql")
    destination = any(isinstance(e, DestinationException) or type(e).__module__.startswith(drivers) for e in seen)
    what = "The destination refused" if destination else "An unexpected error occurred"
    told = str(root) if pipeline is None else without_password(pipeline, str(root))
    text = " ".join(told.split())[:500] or type(root).__name__
    return ConnectorError(f"{what}{where}: {text}")


def ours_within(error: BaseException) -> ConnectorError | None:
    """Return our error that DuckDB has quoted in its own, because it was raised while DuckDB read a file."""
    found = _OURS_IN_DUCKDB.search(str(error))
    return found and (ConfigError if found[1] == "ConfigError" else TransientError)(found[2])


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether DuckDB ran out of memory, at any depth of dlt's exceptions."""
    return any(
        isinstance(each, duckdb.OutOfMemoryException) or any(sign in str(each) for sign in _NO_MEMORY)
        for each in _chain(error)
    )


def may_pass(error: BaseException) -> bool:
    """Return whether the statement may succeed later: a lock was not had in time, or the connection was lost."""
    for each in _chain(error):
        module, state = type(each).__module__, getattr(each, "pgcode", None)
        if module.startswith("psycopg2") and (state or _LOST)[:2] in _PASSING_STATES:
            return True
        if module.startswith("pymysql") and each.args and each.args[0] in _PASSING_CODES:
            return True
        if isinstance(each, sqlite3.OperationalError) and "locked" in str(each):
            return True
    return False


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        yield error
        seen.append(error)
        error = error.__cause__ or error.__context__


def _without_room(error: BaseException) -> str | None:
    """Return the error, with the file if it is known, if a disk is full; None for other errors.

    DuckDB and dlt quote the system's message in theirs.
    """
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return str(error)
    if isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
        return str(error)
    reason = next((why for number in _NO_ROOM if (why := os.strerror(number)) in str(error)), None)
    written = _FILE_NOT_WRITTEN.search(str(error))
    return reason and (f"{written[0]}: {reason}" if written else reason)
