"""Determine the standing of every import that the service is known to have."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from connector.ledger import LedgerRow
from connector.runs import INCREMENTAL
from connector.standing import Standing, standing
from connector.warehouse.connection import Connection, batches, marks
from connector.warehouse.ownership import Dataset, inspect_dataset
from connector.warehouse.stored_imports import ImportSeen, imports_seen, ledger_rows
from connector.warehouse.tables import IMPORTS, OF_IMPORT, REJECTS, RUNS

UNREAD = f"{OF_IMPORT}%"
OPEN = (Standing.failed, Standing.unreconciled, Standing.waiting)  # none of these exists after a run that succeeded


def standings(connection: Connection, dataset: Dataset | None = None) -> dict[str, tuple[Standing, LedgerRow | None]]:
    """Return import → its standing and ledger row, for live imports and those that are only in the ledger."""
    dataset = dataset or inspect_dataset(connection)
    return standings_of(ledger_rows(connection, dataset), imports_seen(connection, dataset))


def standings_of(
    ledger: Mapping[str, LedgerRow], imports: Mapping[str, ImportSeen]
) -> dict[str, tuple[Standing, LedgerRow | None]]:
    """Return the same as `standings`, from the two tables already read."""
    found: dict[str, tuple[Standing, LedgerRow | None]] = {}
    for slug, seen in imports.items():
        if seen.shown is not None:
            known = ledger.get(slug)
            found[slug] = standing(known, seen.shown), known
    for slug, known in ledger.items():
        if slug not in imports and known.live:
            found[slug] = standing(known), known
    return found


def unread_in_listing(connection: Connection, tables: Collection[str]) -> int:
    """Return how many elements of the listing the latest run could not read as imports."""
    if not {REJECTS, RUNS} <= set(tables):
        return 0
    return int(connection.rows(f"SELECT {unread_sql(connection)} AS n", UNREAD)[0]["n"])


def unread_sql(connection: Connection) -> str:
    """Return SQL for the same number, with a parameter for `UNREAD`.

    `sync_rejects` has the elements once for each run in which they occurred, like rejected records.
    """
    incremental = f"substr(mode, 1, {len(INCREMENTAL)}) = '{INCREMENTAL}'"  # also one that `status` bounded
    runs = f"{connection.name(RUNS)} WHERE {incremental} AND status <> 'running'"
    latest = f"SELECT run_id FROM {runs} ORDER BY started_at DESC LIMIT 1"  # the ids of one second are in no order
    return (
        f"(SELECT count(*) FROM {connection.name(REJECTS)} "
        f"WHERE record_slug IS NULL AND reason LIKE %s AND run_id = ({latest}))"
    )


def delete_unread(connection: Connection, slugs: Sequence[str]) -> None:
    """Delete the rows of imports that this run listed for the first time and that vanished before they were read."""
    for some in batches(slugs):
        connection.execute(f"DELETE FROM {connection.name(IMPORTS)} WHERE slug IN ({marks(some)})", *some)
