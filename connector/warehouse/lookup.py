"""Create the indexes that make looking up rows by key fast.

Invariant: look-ups and deletions of a package in a table of records cost in proportion to the rows of the package, not
of the table. DuckDB reads one column for them; PostgreSQL has an index on each key.
"""

from __future__ import annotations

from collections.abc import Collection

from connector.warehouse.connection import Connection
from connector.warehouse.ledger_table import mark_failed
from connector.warehouse.tables import LOAD_ID, keys_of

_INDEXED_BYTES = 2_000  # of a slug; a record with a longer slug is rejected


def index_keys(connection: Connection, tables: Collection[str]) -> None:
    """Create the indexes that these tables of records lack, and update the statistics for using them.

    Without an index on each key, a merge reads the whole table for every package. Column stores need no index.
    """
    if not connection.traits.indexes or not tables:
        return
    there = connection.adapter.indexed(connection.client)
    for table in sorted(tables):
        missing = [key for key in (*keys_of(table), LOAD_ID) if key not in there.get(table, ())]
        if connection.traits.counts_rows and set(missing) & set(keys_of(table)):
            _without_long_keys(connection, table)
        for key in missing:
            connection.adapter.index(connection.client, table, key, in_order=key == LOAD_ID)
        if missing and connection.traits.counts_rows:
            connection.execute(f"ANALYZE {connection.name(table)}")


def _without_long_keys(connection: Connection, table: str) -> None:
    """Delete rows of an earlier version whose keys are too long for an index; their imports are read again."""
    keys = [connection.column(key) for key in keys_of(table)]
    long = " OR ".join(f"octet_length({key}) > {_INDEXED_BYTES}" for key in keys)
    found = connection.rows(f"SELECT DISTINCT {keys[1]} AS slug FROM {connection.name(table)} WHERE {long}")
    if found:
        mark_failed(
            connection, [row["slug"] for row in found], f"{table} had rows of it with a slug too long to look up."
        )
        connection.execute(f"DELETE FROM {connection.name(table)} WHERE {long}")
