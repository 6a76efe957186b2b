"""Upgrade a warehouse of an earlier format (docs/guarantees.md, "Upgrades").

`STEPS[n]` turns format n into n + 1. Invariant: a step may be repeated, because the new format is in the warehouse only
with the first load after it, and it leaves a warehouse with which the earlier version can go on. Columns are not added
here: dlt adds them with the first load that has them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from connector.ledger import Due
from connector.warehouse.connection import Connection
from connector.warehouse.due_imports import mark_all_due
from connector.warehouse.ownership import Dataset
from connector.warehouse.tables import IMPORTS, LEDGER

log = logging.getLogger("connector.warehouse.upgrades")


def upgrade_dataset(connection: Connection, dataset: Dataset) -> bool:
    """Apply the steps that a warehouse lacks, in order, and return whether one of them changed something."""
    changed = [step(connection, dataset) for step in STEPS[dataset.format :]]
    return any(changed)


def _reread_for_metadata(connection: Connection, dataset: Dataset) -> bool:
    """Mark every import as due: `records_metadata` and `extra` were not kept, and only the service has them."""
    if not {IMPORTS, LEDGER} <= dataset.ours or "records_metadata" in dataset.columns[IMPORTS]:
        return False
    log.warning(
        "An earlier version wrote the warehouse; its imports are read once more for what that version did not keep.",
        extra={"event": "warehouse.taken_over"},
    )
    mark_all_due(connection, Due.upgrade)
    return True


STEPS: tuple[Callable[[Connection, Dataset], bool], ...] = (_reread_for_metadata,)
