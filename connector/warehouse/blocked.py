"""Explain that another session has a table of PostgreSQL locked, by a typed error that names the session.

Invariant: every statement of ours stops waiting for a lock after `destination.LOCK_TIMEOUT_S`, and the error then names
the sessions that hold it. PostgreSQL shows which session blocks another only during the wait (`pg_blocking_pids`), so
the error names those that hold a lock on the table afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from dlt.pipeline.pipeline import Pipeline

from connector.errors import DatabaseBusyError
from connector.warehouse.destination import destination_type, open_client

_SIGNS = ("LockNotAvailable", "55P03")  # of psycopg2 and of ADBC, in dlt's text of a failed job too
_NAMED = 3
_HOLDERS = """
    SELECT c.relname, l.pid, a.usename, a.application_name, a.state, a.xact_start FROM pg_locks l
    JOIN pg_database d ON d.oid = l.database AND d.datname = current_database()
    JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.granted AND n.nspname IN (%s, %s) AND l.pid <> pg_backend_pid() AND c.relkind IN ('r', 'p', 'v')
    ORDER BY a.xact_start NULLS LAST, l.pid, c.relname
"""
_FIX = "run again to load what is missing."


def as_blocked(errors: Sequence[BaseException], pipeline: Pipeline | None) -> DatabaseBusyError | None:
    """Return the error to show if one of these means that a lock could not be acquired in time, else None."""
    if not any(sign in f"{type(error).__name__} {error}" for error in errors for sign in _SIGNS):
        return None
    holders: list[tuple[Any, ...]] = []
    if pipeline is not None and destination_type(pipeline) == "postgres":
        with suppress(Exception):  # the first error is the one to report
            holders = _holders(pipeline, _statement(errors))
    if not holders:
        return DatabaseBusyError(
            f"Another session locked a table of the dataset for longer than the lock timeout; {_FIX}"
        )
    table = holders[0][0]
    by = dict.fromkeys(_described(*rest) for name, *rest in holders if name == table)
    return DatabaseBusyError(
        f"Table {table} is locked by {' and '.join(list(by)[:_NAMED])}, and was not released in time; end that "
        f"session or wait for it, then {_FIX}"
    )


def _holders(pipeline: Pipeline, statement: str) -> list[tuple[Any, ...]]:
    """Return (table, pid, user, application, state, begin of its transaction), the longest transaction first."""
    with open_client(pipeline) as client:
        rows = client.execute_sql(_HOLDERS, client.dataset_name, client.staging_dataset_name) or ()
    found = [tuple(row) for row in rows]
    return [row for row in found if f'"{row[0]}"' in statement] or found


def _statement(errors: Sequence[BaseException]) -> str:
    """Return the SQL that gave up; '' if it is unknown, as for a load job of dlt."""
    for error in errors:
        query = getattr(getattr(error, "cursor", None), "query", None)
        if isinstance(query, bytes):
            return query.decode("utf-8", "replace")
    return ""


def _described(pid: int, user: str | None, application: str | None, state: str | None, since: datetime | None) -> str:
    """Describe a session; PostgreSQL shows its activity only to its own user and to superusers."""
    parts = [
        user and f"user {user}",
        application and f"application {application}",
        state and (f"{state} since {since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if since else state),
    ]
    known = ", ".join(part for part in parts if part)
    return f"process {pid} ({known})" if known else f"process {pid}"
