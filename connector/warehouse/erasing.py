"""Erase what is left of deleted imports: with `deletes = "mirror"`, nothing stays in the warehouse.

The rows of an import go with the package that marks it as deleted, and its row in `imports` keeps no more than what
identifies it. The rest is erased here, by what the warehouse itself says: so if a run dies in between, the next one
finds what it left.
"""

from __future__ import annotations

from connector.warehouse.connection import Connection
from connector.warehouse.ownership import Dataset, staged
from connector.warehouse.tables import IMPORTS, REJECTS, TOMBSTONE


def erase_deleted(connection: Connection, dataset: Dataset) -> None:
    """Erase the rejects of deleted imports, what `imports` still has of them, and staged rows."""
    empty_staging(connection)
    if IMPORTS not in dataset.ours:
        return
    deleted = f"{connection.column('_deleted_at')} IS NOT NULL"
    # an earlier version left all of it there
    erased = sorted((dataset.made[IMPORTS] & dataset.columns[IMPORTS].keys()) - set(TOMBSTONE))
    with connection.client.begin_transaction():
        if erased:
            nothing = ", ".join(f"{connection.column(c)} = NULL" for c in erased)
            something = " OR ".join(f"{connection.column(c)} IS NOT NULL" for c in erased)
            connection.execute(f"UPDATE {connection.name(IMPORTS)} SET {nothing} WHERE {deleted} AND ({something})")
        if REJECTS in dataset.ours:
            connection.execute(
                f"DELETE FROM {connection.name(REJECTS)} "
                f"WHERE import_slug IN (SELECT slug FROM {connection.name(IMPORTS)} WHERE {deleted})"
            )


def has_rejects_of_deleted(connection: Connection, dataset: Dataset) -> bool:
    """Return whether there are rejects of a deleted import: a load by dlt alone does not erase them."""
    return {IMPORTS, REJECTS} <= dataset.ours and (
        connection.query(
            f"SELECT 1 FROM {connection.name(REJECTS)} WHERE import_slug IN (SELECT slug FROM "
            f"{connection.name(IMPORTS)} WHERE {connection.column('_deleted_at')} IS NOT NULL) LIMIT 1"
        ).num_rows
        > 0
    )


def empty_staging(connection: Connection) -> None:
    """Empty the tables in which dlt staged rows; dlt itself empties each only before it is used again."""
    tables = sorted(staged(connection))
    if not tables:
        return
    with connection.client.with_staging_dataset():
        connection.empty(tables)
