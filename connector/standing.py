"""Determine the standing of an import: one answer for a run, `status`, `verify`, the report and `sql check`.

Invariant: it follows from the ledger row and the row of `imports` alone, so that two commands on one warehouse never
differ; `sql/checks` has the same rules in SQL, and is tested against this.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec

from connector.ledger import COMPLETED, Due, LedgerRow, State


class Standing(StrEnum):
    """The state of an import in the warehouse: the first that applies."""

    failed = "failed"
    excluded = "excluded"  # of a template that the settings leave out
    unreconciled = "unreconciled"
    damaged = "damaged"  # loaded, but its rows are no longer those of its ledger row; found only by looking at rows
    waiting = "waiting"  # listed, and that version of it not loaded by a load that was completed
    unfinished = "unfinished"  # the service itself is not done with it
    accepted = "accepted"  # it has other than row_count records, which `reconcile = "off"` does not look at
    reconciled = "reconciled"


class Shown(msgspec.Struct, frozen=True, gc=False):
    """The version of an import that the table `imports` has."""

    updated_at: datetime | None
    row_count: int | None


def standing(known: LedgerRow | None, shown: Shown | None = None) -> Standing:
    """Return the standing of an import that the service lists; without `shown`, by its ledger row alone."""
    if known is not None and known.state is State.failed:
        return Standing.failed
    if known is not None and known.state is State.excluded:
        return Standing.excluded
    if known is None or not known.trusted or known.state is State.deleted:
        return Standing.waiting
    if known.state is State.unreconciled:
        return Standing.unreconciled
    if shown is not None and shown.updated_at is not None and known.updated_at is not None:
        # an earlier one changed while it was read, and one that vanished has no version to wait for
        if shown.updated_at > known.updated_at and known.due != Due.vanished:
            return Standing.waiting
        if shown.updated_at == known.updated_at and shown.row_count != known.row_count:
            return Standing.unreconciled
    if known.status != COMPLETED:
        return Standing.unfinished
    return Standing.reconciled if known.adds_up else Standing.accepted
