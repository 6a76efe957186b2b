"""Look up rows by key, and create the indexes that make that fast.

Invariant: look-ups and deletions of a package in a table of records cost in proportion to the rows of the package, not
of the table. DuckDB reads one column for them; PostgreSQL has an index on each key.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa

from connector.warehouse.connection import Connection
from connector.warehouse.ledger_table import mark_failed
from connector.warehouse.tables import keys_of

_INDEXED_BYTES = 2_000  # of a slug; a record with a longer slug is rejected


def index_keys(connection: Connection, tables: Collection[str]) -> bool:
    """Create the indexes that these tables of records lack, and update the statistics for using them.

    Return whether rows had to be deleted for it. Without an index on each key, a merge reads the whole table for every
    package. Column stores need no index.
    """
    if not connection.traits.indexes or not tables:
        return False
    deleted = False
    there = connection.adapter.indexed(connection.client)
    for table in sorted(tables):
        missing = [key for key in keys_of(table) if key not in there.get(table, ())]
        if missing and not connection.rows(f"SELECT 1 AS n FROM {connection.name(table)} LIMIT 1"):
            continue  # statistics of an empty table would mislead the planner about all that follows
        if missing and connection.traits.counts_rows:
            deleted = _without_long_keys(connection, table) or deleted
        for key in missing:
            connection.adapter.index(connection.client, table, key)
        if missing and connection.traits.counts_rows:
            connection.execute(f"ANALYZE {connection.name(table)}")
    return deleted


def incoming_slugs(
    connection: Connection, imports: Sequence[str], records: pa.ChunkedArray[Any]
) -> AbstractContextManager[None]:
    """Make the slugs of a package the relations `incoming_imports` and `incoming_records` for the queries within.

    Each has one column, `slug`. It takes a destination that finds slugs (`Traits`).
    """
    slugs = pa.chunked_array([pa.array(imports, pa.string())])
    return connection.relations({"incoming_imports": slugs, "incoming_records": records})


def _without_long_keys(connection: Connection, table: str) -> bool:
    """Delete rows of an earlier version whose keys are too long for an index, and return whether there were any.

    Their imports are read again.
    """
    keys = [connection.column(key) for key in keys_of(table)]
    long = " OR ".join(f"octet_length({key}) > {_INDEXED_BYTES}" for key in keys)
    found = connection.rows(f"SELECT DISTINCT {keys[1]} AS slug FROM {connection.name(table)} WHERE {long}")
    if found:
        mark_failed(
            connection, [row["slug"] for row in found], f"{table} had rows of it with a slug too long to look up."
        )
        connection.execute(f"DELETE FROM {connection.name(table)} WHERE {long}")
    return bool(found)
