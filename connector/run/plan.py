"""Decide what a run reads: compare the listing with the ledger, import by import, never with a watermark.

Invariant: an import is skipped only if a load that dlt completed has it at exactly the fingerprint that the service
shows now, its records reconcile, and it is not due (`LedgerRow.due`). Every other listed import is read; known imports
that are not listed are deleted only after further checks (`connector.run.discover`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Generic, TypeVar

from connector.errors import ContractError
from connector.ledger import COMPLETED, LedgerRow, Listed, State

T = TypeVar("T", bound=Listed)

MOST_DAYS = 36_500  # of `recheck_days`, so that the time is in the calendar
FEWER_CONFIRMED_AFTER = timedelta(days=1)  # a restart, a cache or the rebuilding of an index hides records for less


class Reason(StrEnum):
    """Why an import is read."""

    new = "new"
    changed = "changed"
    unwritten = "unwritten"
    unfinished = "unfinished"
    retry = "retry"
    due = "due"
    recheck = "recheck"
    asked = "asked"


@dataclass(frozen=True, slots=True)
class Planned(Generic[T]):
    import_: T
    reason: Reason


@dataclass(frozen=True, slots=True)
class Plan(Generic[T]):
    """The imports to `read`, in that order, and how many others there are."""

    read: tuple[Planned[T], ...]
    unchanged: int


@dataclass(frozen=True, slots=True)
class Rules:
    """Reasons at `now` to read imports that do not differ from their ledger row.

    `force`: read everything; `recheck_days`: read imports last changed so many days ago or less; `raw`, `typed`: the
    tables that rows have to be in; `counted`: whether the number of records of a completed import has to equal its
    `row_count`; `named`: whether the imports were requested by slug; `privacy`: the fingerprint of the rules for an
    import; `mixed`: whether its row of `imports` may have values under others, as a run may write that died.
    """

    now: datetime
    force: bool = False
    recheck_days: int | None = None
    raw: bool = True
    typed: bool = True
    counted: bool = True
    named: bool = False
    privacy: Callable[[Any], str | None] = lambda _: None
    mixed: Callable[[str], bool] = lambda _: False

    def reason(self, import_: Listed, known: LedgerRow | None) -> Reason | None:
        """Return why to read the import; None if it is up to date, or killed runs at this version and was not named."""
        if known is not None and known.killed_runs and not self.named and known.is_at(import_):
            return None
        return self._reason(import_, known) or (Reason.asked if self.force else None)

    def _reason(self, import_: Listed, known: LedgerRow | None) -> Reason | None:
        if known is None or (known.state in (State.deleted, State.excluded) and known.trusted):
            return Reason.new
        if not known.trusted or known.state in (State.failed, State.unreconciled):
            return Reason.retry
        if not known.is_at(import_):
            return Reason.changed
        if (self.raw and not known.has_raw) or (self.typed and known.table_name is None):
            return Reason.unwritten
        if known.due is not None or known.rules != self.privacy(import_) or self.mixed(import_.slug):
            return Reason.due
        if import_.status != COMPLETED:
            return Reason.unfinished
        if self.counted and not known.adds_up:
            return Reason.retry  # accepted under `reconcile = "off"`
        days = None if self.recheck_days is None else timedelta(days=min(self.recheck_days, MOST_DAYS))
        if days is not None and import_.updated_at >= self.now - days:
            return Reason.recheck
        return None


def make_plan(listed: Iterable[T], ledger: Mapping[str, LedgerRow], rules: Rules) -> Plan[T]:
    """Decide for every listed import whether to read it.

    Those whose last reads failed come last, the fewer failures the earlier: enough failures in a row end a run
    (`connector.run.pipeline`), and so no import keeps another from being read in every run.
    """
    read: list[Planned[T]] = []
    unchanged = 0
    for import_ in listed:
        reason = rules.reason(import_, ledger.get(import_.slug))
        if reason is None:
            unchanged += 1
        else:
            read.append(Planned(import_, reason))
    read.sort(key=lambda planned: _failures(ledger.get(planned.import_.slug)))
    return Plan(tuple(read), unchanged)


def _failures(known: LedgerRow | None) -> int:
    return known.attempts if known is not None and known.state is State.failed else 0


class FewerRecords(ContractError):
    """An import that has not changed shows fewer records than are loaded."""

    def __init__(self, found: int) -> None:
        super().__init__(
            f"{found} records were found, fewer than are loaded, though the import has not changed; the loaded "
            "records are kept, and the next run reads it again. If the number is still the same after a day, the "
            "missing records count as deleted."
        )
        self.found = found


def lost_rows(import_: Listed, found: int, known: LedgerRow | None, *, reconciles: bool, now: datetime) -> int:
    """Return how many rows an import would lose although its fingerprint has not changed; 0 if none.

    Invariant: rows of an unchanged import are removed only if it is completed and the number of its records equals its
    `row_count`, or if reads found the same lower number for a day (`FEWER_CONFIRMED_AFTER`). This holds for any
    `reconcile`, which accepts a wrong count, but not the loss of existing rows. The rows also stay if a run that died
    left them in doubt.
    """
    if known is None or not known.is_at(import_) or (import_.status == COMPLETED and reconciles):
        return 0
    if (
        found == known.fewer_found
        and known.fewer_since is not None
        and now - known.fewer_since >= FEWER_CONFIRMED_AFTER
    ):
        return 0
    return max(known.records_loaded - found, 0)
