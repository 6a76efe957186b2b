"""How every import stands that the service is known to have."""

from __future__ import annotations

from collections.abc import Sequence

from connector.ledger import LedgerRow
from connector.standing import Shown, Standing, standing
from connector.warehouse.connection import Connection, batches
from connector.warehouse.ownership import Dataset, take_stock
from connector.warehouse.state import ledger_rows, selected
from connector.warehouse.tables import IMPORTS

OPEN = (Standing.failed, Standing.unreconciled, Standing.waiting)  # what a run that succeeds leaves none of


def standings(connection: Connection, dataset: Dataset | None = None) -> dict[str, tuple[Standing, LedgerRow | None]]:
    """Import → how it stands, and its ledger row; of live imports, and of those that only the ledger knows."""
    dataset = dataset or take_stock(connection)
    ledger = ledger_rows(connection, dataset)
    shown, gone = _shown(connection, dataset) if IMPORTS in dataset.ours else ({}, frozenset[str]())
    known = {slug for slug, row in ledger.items() if row.live}
    return {
        slug: (standing(ledger.get(slug), shown.get(slug)), ledger.get(slug))
        for slug in sorted(shown.keys() | (known - gone))
    }


def forget_unread(connection: Connection, slugs: Sequence[str]) -> None:
    """Removes the rows of imports that this run listed first, and that were gone before anything of them was read."""
    for some in batches(slugs):
        connection.execute(
            f"DELETE FROM {connection.name(IMPORTS)} WHERE slug IN ({', '.join(['%s'] * len(some))})", *some
        )


def _shown(connection: Connection, dataset: Dataset) -> tuple[dict[str, Shown], frozenset[str]]:
    """The live rows of `imports`, and the slugs of the others."""
    names = ("slug", "updated_at", "row_count", "_deleted_at")
    rows = connection.query(
        f"SELECT {selected(connection, dataset, IMPORTS, names, 'i')} FROM {connection.name(IMPORTS)} i"
    ).to_pylist()
    live = {row["slug"]: Shown(row["updated_at"], row["row_count"]) for row in rows if row["_deleted_at"] is None}
    return live, frozenset(row["slug"] for row in rows if row["_deleted_at"] is not None)
