"""Looking up rows by key: the indexes that make it quick.

Invariant: what a package asks of a table of records, and what it deletes there, costs as much as the package has rows,
not as much as the table holds. DuckDB reads one column for it; PostgreSQL has an index on each key.
"""

from __future__ import annotations

from collections.abc import Collection

from connector.warehouse.connection import Connection
from connector.warehouse.ledger_table import distrust
from connector.warehouse.tables import LOAD_ID, keys_of

_INDEXED_BYTES = 2_000  # of a slug; one that is longer is rejected as it arrives


def index_keys(connection: Connection, tables: Collection[str]) -> None:
    """Give a database of rows the indexes that these tables of records lack, and the statistics to use them by.

    Without an index on each key a merge reads the whole table for every package. Destinations that read a column at a
    time need none.
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
    """Delete rows that no index takes, which an earlier version loaded; their imports are read again."""
    keys = [connection.column(key) for key in keys_of(table)]
    long = " OR ".join(f"octet_length({key}) > {_INDEXED_BYTES}" for key in keys)
    found = connection.rows(f"SELECT DISTINCT {keys[1]} AS slug FROM {connection.name(table)} WHERE {long}")
    if found:
        distrust(connection, [row["slug"] for row in found], f"{table} had rows of it with a slug too long to look up.")
        connection.execute(f"DELETE FROM {connection.name(table)} WHERE {long}")
