"""Erase what is left of deleted imports and records: with `deletes = "mirror"`, nothing stays in the warehouse.

The package that marks an import as deleted removes its rows and reduces its row in `imports` to what identifies it.
Everything else is erased here, based only on the state of the warehouse, so that the next run completes it if a run
dies in between.
"""

from __future__ import annotations

from connector.warehouse.adapters.dialect import any_of
from connector.warehouse.connection import Connection
from connector.warehouse.history_tables import CHANGE, histories, record_again
from connector.warehouse.ownership import Dataset, staged
from connector.warehouse.runs_table import unsettle_latest_run
from connector.warehouse.standings import UNREAD
from connector.warehouse.tables import IMPORTS, IMPORTS_SCHEMA, LEDGER, RECORDS, REJECTS, RUNS, TOMBSTONE, keys_of


def erase_deleted(connection: Connection, dataset: Dataset) -> None:
    """Erase the rejects of deleted imports, their remaining data in `imports`, and staged rows."""
    empty_staging(connection)
    if IMPORTS not in dataset.ours:
        return
    deleted = f"{connection.column('_deleted_at')} IS NOT NULL"
    # an earlier version left all columns; dlt's schemas, by which some are ours, may be lost
    ours = dataset.made[IMPORTS] | set(IMPORTS_SCHEMA.names)
    erased = sorted((ours & dataset.columns[IMPORTS].keys()) - set(TOMBSTONE))
    with connection.client.begin_transaction():
        if erased:
            nothing = ", ".join(f"{connection.column(c)} = NULL" for c in erased)
            something = any_of(f"{connection.column(c)} IS NOT NULL" for c in erased)
            connection.execute(f"UPDATE {connection.name(IMPORTS)} SET {nothing} WHERE {deleted} AND {something}")
        if REJECTS in dataset.ours:
            connection.execute(
                f"DELETE FROM {connection.name(REJECTS)} "
                f"WHERE import_slug IN (SELECT slug FROM {connection.name(IMPORTS)} WHERE {deleted})"
            )


def erase_kept(connection: Connection, dataset: Dataset) -> None:
    """Erase the rows of records that runs with `deletes = "keep"` marked as deleted; this reads each table.

    A run with `mirror` looks rows up by the import that it reads, and so misses those of imports that are deleted, and
    those in the table of a template that the import had before. The next run erases the versions of these rows, and of
    those whose deletion has a version, which only runs with `keep` add.
    """
    deleted = f"{connection.column('_deleted_at')} IS NOT NULL"
    tables = sorted({RECORDS, *dataset.typed} & dataset.ours)
    imports = [f"SELECT {connection.column(keys_of(t)[1])} FROM {connection.name(t)} WHERE {deleted}" for t in tables]
    for table, each in histories(dataset).items():
        imported, history = connection.column(each.import_key), connection.name(each.history)
        imports.append(f"SELECT {imported} FROM {history} WHERE {connection.column(CHANGE)} = 'delete'")
        if table == IMPORTS:
            imports.append(
                f"SELECT slug FROM {connection.name(IMPORTS)} WHERE {deleted} AND slug IN (SELECT slug FROM {history})"
            )
    with connection.client.begin_transaction():
        if LEDGER in dataset.ours:
            record_again(connection, dataset, imports)
        # a run with nothing to load looks for versions to erase while history is off only if it checks all rows
        if histories(dataset) and any(connection.query(f"{some} LIMIT 1").num_rows for some in imports):
            unsettle_latest_run(connection, dataset.columns.get(RUNS, ()))
        for table in tables:
            connection.execute(f"DELETE FROM {connection.name(table)} WHERE {deleted}")


def has_rejects_of_deleted(connection: Connection, dataset: Dataset) -> bool:
    """Return whether there are rejects of a deleted import: a load by dlt alone does not erase them."""
    return {IMPORTS, REJECTS} <= dataset.ours and (
        connection.query(
            f"SELECT 1 FROM {connection.name(REJECTS)} WHERE import_slug IN (SELECT slug FROM "
            f"{connection.name(IMPORTS)} WHERE {connection.column('_deleted_at')} IS NOT NULL) LIMIT 1"
        ).num_rows
        > 0
    )


def erase_unlisted(connection: Connection, run_id: str) -> None:
    """Erase what earlier runs could not read in the listing and no run has read, once this run has listed everything.

    Nothing else tells whether the service still has it. What it lists is among the rejects of this run again.
    """
    known = f"SELECT slug FROM {connection.name(IMPORTS)}"
    connection.execute(
        f"DELETE FROM {connection.name(REJECTS)} WHERE record_slug IS NULL AND reason LIKE %s AND run_id <> %s "
        f"AND (import_slug IS NULL OR import_slug NOT IN ({known}))",
        UNREAD,
        run_id,
    )


def empty_staging(connection: Connection) -> None:
    """Empty the tables in which dlt staged rows; dlt itself empties each only before it is used again."""
    tables = sorted(staged(connection))
    if not tables:
        return
    with connection.client.with_staging_dataset():
        connection.empty(tables)
