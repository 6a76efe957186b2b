"""Determine the standing of an import: one answer for a run, `status`, `verify`, the report and `sql check`.

Invariant: the standing depends only on the ledger row and the row of `imports`, so that commands on one warehouse
always agree; `sql/checks` has the same rules in SQL and is tested against this.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec

from connector.ledger import COMPLETED, Due, LedgerRow, State


class Standing(StrEnum):
    """The state of an import in the warehouse: the first one that applies."""

    failed = "failed"
    excluded = "excluded"  # left out by the settings
    unreconciled = "unreconciled"
    damaged = "damaged"  # loaded, but its rows no longer match its ledger row; found only by checking rows
    waiting = "waiting"  # the listed version is not in a completed load
    unfinished = "unfinished"  # the service has not completed it
    accepted = "accepted"  # the number of records differs from row_count, but `reconcile = "off"` accepts that
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
        # an older listed version changed while it was read; a vanished import has no version to wait for
        if shown.updated_at > known.updated_at and known.due != Due.vanished:
            return Standing.waiting
        if shown.updated_at == known.updated_at and shown.row_count != known.row_count:
            return Standing.unreconciled
    if known.status != COMPLETED:
        return Standing.unfinished
    return Standing.reconciled if known.adds_up else Standing.accepted
