"""Looking up rows by key: arriving slugs as relations that SQL can join, and the indexes that make it quick.

Invariant: what a package asks of a table of records, and what it deletes there, costs as much as the package has rows,
not as much as the table holds. DuckDB reads one column for it; PostgreSQL has an index on each key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from io import StringIO
from typing import Any

import pyarrow as pa

from connector.warehouse.connection import Connection
from connector.warehouse.ledger_table import distrust
from connector.warehouse.tables import LOAD_ID, keys_of

_INDEXED_BYTES = 2_000  # of a slug; one that is longer is rejected as it arrives
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})


@contextmanager
def relations(connection: Connection, slugs: Mapping[str, pa.ChunkedArray[Any]]) -> Iterator[None]:
    """Make each array a relation of that name with one column, `slug`, for the queries within."""
    if connection.is_postgres:
        with _copied(connection, slugs):
            yield
        return
    native = connection.client.native_connection
    for name, values in slugs.items():
        native.register(name, pa.table({"slug": values}))
    try:
        yield
    finally:
        for name in slugs:
            native.unregister(name)


@contextmanager
def _copied(connection: Connection, slugs: Mapping[str, pa.ChunkedArray[Any]]) -> Iterator[None]:
    """Copy them into temporary tables: a parameter for each slug would be parsed, and planned, one by one."""
    try:
        for name, values in slugs.items():
            connection.execute(f"CREATE TEMPORARY TABLE {name} (slug text NOT NULL)")
            with connection.client.native_connection.cursor() as cursor:
                for chunk in values.chunks:
                    lines = "\n".join(str(slug).translate(_ESCAPES) for slug in chunk.to_pylist())
                    cursor.copy_expert(f"COPY pg_temp.{name} FROM STDIN", StringIO(lines))
            connection.execute(f"ANALYZE pg_temp.{name}")
        yield
    finally:
        for name in slugs:
            connection.execute(f"DROP TABLE IF EXISTS pg_temp.{name}")


def index_keys(connection: Connection, tables: Collection[str]) -> None:
    """Give PostgreSQL the indexes that these tables of records lack, and the statistics to use them by.

    Without an index on each key a merge reads the whole table for every package. Load ids lie in the order in which
    they were written, for which the smallest kind of index (BRIN) is enough. Other destinations need none.
    """
    if not connection.is_postgres or not tables:
        return
    there = _indexed(connection)
    for table in sorted(tables):
        missing = [key for key in (*keys_of(table), LOAD_ID) if key not in there.get(table, ())]
        if set(missing) & set(keys_of(table)):
            _without_long_keys(connection, table)
        for key in missing:
            how = "brin ({})" if key == LOAD_ID else "btree ({})"
            connection.execute(f"CREATE INDEX ON {connection.name(table)} USING {how.format(connection.column(key))}")
        if missing:
            connection.execute(f"ANALYZE {connection.name(table)}")


def _without_long_keys(connection: Connection, table: str) -> None:
    """Delete rows that no index takes, which an earlier version loaded; their imports are read again."""
    keys = [connection.column(key) for key in keys_of(table)]
    long = " OR ".join(f"octet_length({key}) > {_INDEXED_BYTES}" for key in keys)
    found = connection.rows(f"SELECT DISTINCT {keys[1]} AS slug FROM {connection.name(table)} WHERE {long}")
    if found:
        distrust(connection, [row["slug"] for row in found], f"{table} had rows of it with a slug too long to look up.")
        connection.execute(f"DELETE FROM {connection.name(table)} WHERE {long}")


def _indexed(connection: Connection) -> dict[str, set[str]]:
    """Table → columns that an index of the whole table begins with."""
    rows = connection.rows(
        "SELECT t.relname AS table_name, a.attname AS column_name FROM pg_index i "
        "JOIN pg_class t ON t.oid = i.indrelid JOIN pg_namespace n ON n.oid = t.relnamespace "
        "JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = i.indkey[0] "
        "WHERE n.nspname = %s AND i.indisvalid AND i.indpred IS NULL",
        connection.client.dataset_name,
    )
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(row["table_name"], set()).add(row["column_name"])
    return found
