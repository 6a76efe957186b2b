"""Make the ledger row that a load package brings for an import: one that was read, failed, left out or deleted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from msgspec.structs import replace

from connector.extract.records import ImportRead
from connector.ledger import INCOMPLETE_ROWS, Due, LedgerRow, State, privacy_mark
from connector.models import Import
from connector.settings import Settings


@dataclass(frozen=True, slots=True)
class LedgerRows:
    """A maker of the ledger rows of one package; in each method `known` is the ledger row of the import so far."""

    load_id: str
    run_id: str
    now: datetime
    settings: Settings

    def read(
        self,
        read: ImportRead,
        size: int,
        table: str | None,
        known: LedgerRow | None,
        due: Due | None,
        text_conflicts: Mapping[str, int],
        refusal: str | None,
    ) -> LedgerRow:
        """Return the row of an import whose records were read."""
        import_ = read.import_
        state = State.synced
        unproven = read.unproven and not (read.miscounted and self.settings.reconcile == "off")
        if unproven or refusal is not None:
            state = State.unreconciled
        again = state is State.unreconciled and known is not None and known.state is State.unreconciled
        return LedgerRow(
            slug=import_.slug,
            state=state,
            updated_at=import_.updated_at,
            row_count=import_.row_count,
            status=import_.status,
            template_slug=import_.template_slug,
            table_name=table,
            has_raw=self.settings.raw,
            records_loaded=size,
            records_rejected=len(read.rejects),
            text_conflicts=json.dumps(text_conflicts, sort_keys=True) if text_conflicts else None,
            attempts=known.attempts + 1 if known is not None and again else 1,
            error=refusal or read.why,
            last_synced_at=self.now,
            run_id=self.run_id,
            due=due,
            privacy=self._privacy_mark(import_),
            load_id=self.load_id,
        )

    def failed(
        self, import_: Import, known: LedgerRow | None, error: str, killed_runs: int | None, fewer: int | None
    ) -> LedgerRow:
        """Return the row of an import that could not be read: its rows in the warehouse stay unchanged.

        An import that killed runs is left out until it changes, so its ledger row gets its present version. `fewer` is
        a number of records lower than the loaded ones; the ledger row stores since when it was found.
        """
        first = LedgerRow(import_.slug, State.failed, template_slug=import_.template_slug)
        row = self._as_before(known or first)
        if fewer is not None and fewer != row.fewer_found:
            row = replace(row, fewer_found=fewer, fewer_since=self.now)
        if killed_runs:
            row = replace(_at_version(row, import_), killed_runs=killed_runs)
        if row.last_synced_at is None:  # as for an import that is left out
            row = replace(row, privacy=self._privacy_mark(import_))
        attempts = (known.attempts if known and known.state is State.failed else 0) + 1
        return replace(row, state=State.failed, attempts=attempts, error=error)

    def excluded(self, import_: Import, known: LedgerRow | None) -> LedgerRow:
        """Return the row of an import that the settings leave out: rows that were loaded before stay, at their version.

        An import that is only partly loaded counts as failed while it is left out.
        """
        if known is not None and known.is_incomplete:
            return replace(self._as_before(known), state=State.failed, attempts=1, error=INCOMPLETE_ROWS)
        row = self._as_before(known or _at_version(LedgerRow(import_.slug, State.excluded), import_))
        row = replace(row, state=State.excluded, attempts=0, error=None, due=None, fewer_found=None, fewer_since=None)
        if row.last_synced_at is None:  # all there is of it is its row in `imports`, which this run has listed
            row = replace(row, privacy=self._privacy_mark(import_))
        return row

    def off_status(self, known: LedgerRow) -> LedgerRow:
        """Return the row of an import that is left out by its status: its rows stay, and it is read once included."""
        row = replace(self._as_before(known), state=State.excluded, attempts=0, error=None, due=Due.status)
        return replace(row, fewer_found=None, fewer_since=None)

    def deleted(self, slug: str, known: LedgerRow | None) -> LedgerRow:
        """Return the row of an import that the service answers 404 for."""
        return replace(
            self._as_before(known or LedgerRow(slug, State.failed)),
            state=State.deleted,
            attempts=1,
            error=None,
            records_loaded=0,
            records_rejected=0,
            text_conflicts=None,
            due=None,
            fewer_found=None,
            fewer_since=None,
        )

    def _as_before(self, row: LedgerRow) -> LedgerRow:
        """Return the ledger row of an import of which nothing new is loaded."""
        due = Due.torn if row.is_incomplete else row.due
        return replace(row, killed_runs=None, run_id=self.run_id, load_id=self.load_id, due=due)

    def _privacy_mark(self, import_: Import) -> str | None:
        rules, of = self.settings.protection, (import_.template_slug, import_.template_name)
        return privacy_mark(rules.fingerprint(*of), rules.sections_of(*of))


def _at_version(row: LedgerRow, import_: Import) -> LedgerRow:
    """Return the row with the version of the import that is listed."""
    return replace(
        row,
        updated_at=import_.updated_at,
        row_count=import_.row_count,
        status=import_.status,
        template_slug=import_.template_slug,
    )
