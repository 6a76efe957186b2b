"""Upgrade a warehouse of an earlier format (docs/guarantees.md, "Upgrades").

`STEPS[n]` upgrades format n to n + 1. Invariant: a step can be repeated, because the new format is stored only with the
first load after it, and the earlier version can still use the warehouse after a step. Steps add no columns: dlt adds
them with the first load that has them, so a new column alone needs no step and no new format.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from connector.ledger import Due
from connector.warehouse.connection import Connection
from connector.warehouse.due_imports import can_mark_due, mark_all_due
from connector.warehouse.ownership import Dataset
from connector.warehouse.tables import IMPORTS, LEDGER

log = logging.getLogger("connector.warehouse.upgrades")


def upgrade_dataset(connection: Connection, dataset: Dataset) -> bool:
    """Apply the steps that a warehouse lacks, in order, and return whether one of them changed something."""
    changed = [step(connection, dataset) for step in STEPS[dataset.format :]]
    return any(changed)


def _reread_for_metadata(connection: Connection, dataset: Dataset) -> bool:
    """Mark every import as due, because `records_metadata` and `extra` were not stored and must be read again."""
    if not {IMPORTS, LEDGER} <= dataset.ours or "records_metadata" in dataset.columns[IMPORTS]:
        return False
    log.warning(
        "An earlier version wrote the warehouse; its imports are read once more for what that version did not keep.",
        extra={"event": "warehouse.taken_over"},
    )
    if can_mark_due(dataset.columns[LEDGER]):
        mark_all_due(connection, Due.upgrade)
    return True


STEPS: tuple[Callable[[Connection, Dataset], bool], ...] = (
    _reread_for_metadata,
    lambda *_: False,  # by which name a template is left out is in `sync_runs` now, where format 1 does not look
)
