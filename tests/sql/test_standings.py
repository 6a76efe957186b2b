"""The checks in SQL say of every state of ledger and imports what the one function says that all commands use."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import psycopg2

import connector
from connector.core.planning import COMPLETED, Known, State
from connector.core.standing import Shown, Standing, standing

THEN = datetime(2026, 2, 1, 8, tzinfo=UTC)
TABLES = """
    CREATE TABLE imports (slug text, template__name text, row_count bigint, updated_at timestamptz, status text,
                          _deleted_at timestamptz);
    CREATE TABLE sync_imports (slug text, state text, row_count bigint, updated_at timestamptz, status text,
                               records_loaded bigint, records_rejected bigint, has_raw boolean, attempts bigint,
                               error text, last_synced_at timestamptz);
    CREATE TABLE records (slug text, import_slug text, _deleted_at timestamptz)
"""
IMPORT = "INSERT INTO imports (slug, row_count, updated_at, status) VALUES (%s, %s, %s, %s)"
LEDGER = (
    "INSERT INTO sync_imports (slug, state, row_count, updated_at, status, records_loaded, records_rejected, has_raw) "
    "VALUES (%s, %s, %s, %s, %s, %s, %s, FALSE)"
)


def cases() -> Iterator[tuple[Shown, Known]]:
    times = (THEN - timedelta(seconds=1), THEN, THEN + timedelta(seconds=1))
    states = (State.synced, State.unreconciled, State.failed)
    space = itertools.product(times, (2, 3), states, (COMPLETED, "submitted"), (1, 2, 3), (0, 1))
    for at, row_count, state, status, loaded, rejected in space:
        known = Known("", state, THEN, 2, status, None, None, loaded, rejected, 1, None, trusted=True)
        yield Shown(at, row_count), known


def offending(execute: Any, check: str) -> set[int]:
    sql = (Path(connector.__file__).parent / "sql" / "checks" / f"{check}.sql").read_text()
    return {int(row[0]) for row in execute(sql)}


def compare(execute: Any) -> None:
    found = list(cases())
    for n, (shown, known) in enumerate(found):
        execute(IMPORT, str(n), shown.row_count, shown.updated_at, known.status)
        values = (known.row_count, known.updated_at, known.status, known.records_loaded, known.records_rejected)
        execute(LEDGER, str(n), known.state.value, *values)
    stands = [standing(known, shown) for shown, known in found]
    assert set(stands) == set(Standing) - {Standing.damaged}
    for check, meant in (("counts_do_not_reconcile", Standing.unreconciled), ("failed_imports", Standing.failed)):
        wanted = {n for n, each in enumerate(stands) if each is meant}
        differ = offending(execute, check) ^ wanted
        assert not differ, [(check, stands[n], found[n]) for n in differ]


def test_on_duckdb() -> None:
    with duckdb.connect() as connection:
        connection.execute(TABLES)
        compare(lambda sql, *values: connection.execute(sql.replace("%s", "?"), values).fetchall())


def test_on_postgres(postgres_uri: str) -> None:
    with closing(psycopg2.connect(postgres_uri)) as connection, connection.cursor() as cursor:

        def execute(sql: str, *values: Any) -> list[Any]:
            cursor.execute(sql, values or None)
            return cursor.fetchall() if cursor.description else []

        cursor.execute(f"CREATE SCHEMA standings; SET search_path = standings; {TABLES}")
        compare(execute)
        connection.rollback()
