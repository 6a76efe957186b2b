"""What a run reads: the listing against the ledger, import by import, and never a watermark.

Invariant: an import is left alone only if a load that dlt completed holds it at exactly the fingerprint the
service shows now. Everything else that is listed is read; everything that is known and not listed is a suspect
that has yet to earn its deletion (CONTRACT §4).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from fractions import Fraction
from typing import Generic, Protocol, TypeVar

COMPLETED = "completed"  # the only status after which an import is finished (interface, States)


class State(StrEnum):
    """`sync_imports.state` (CONTRACT §3)."""

    synced = "synced"
    failed = "failed"
    unreconciled = "unreconciled"
    deleted = "deleted"


class Listed(Protocol):
    """What planning needs of an import as the service lists it."""

    @property
    def slug(self) -> str: ...
    @property
    def row_count(self) -> int: ...
    @property
    def updated_at(self) -> datetime: ...
    @property
    def status(self) -> str: ...
    @property
    def template_slug(self) -> str | None: ...


T = TypeVar("T", bound=Listed)


@dataclass(frozen=True, slots=True)
class Known:
    """One ledger row. `trusted` is false if its load did not complete or its rows in the warehouse disagree.

    `has_raw` and `table_name` say where its rows are: the settings `raw` and `typed` may change between runs.
    """

    slug: str
    state: State
    updated_at: datetime | None
    row_count: int | None
    status: str | None
    template_slug: str | None
    table_name: str | None
    records_loaded: int
    records_rejected: int
    attempts: int
    last_synced_at: datetime | None
    trusted: bool
    has_raw: bool = True
    text_conflicts: str | None = None
    killed_runs: int = 0

    @property
    def live(self) -> bool:
        return not (self.state is State.deleted and self.trusted)


class Reason(StrEnum):
    """Why an import is read."""

    new = "new"
    changed = "changed"
    unwritten = "unwritten"
    unfinished = "unfinished"
    retry = "retry"
    recheck = "recheck"
    asked = "asked"


@dataclass(frozen=True, slots=True)
class Planned(Generic[T]):
    import_: T
    reason: Reason


@dataclass(frozen=True, slots=True)
class Plan(Generic[T]):
    """`read` in the order to read it; `suspects` are slugs known as live that the listing does not show."""

    read: tuple[Planned[T], ...]
    suspects: tuple[str, ...]
    unchanged: int
    known_live: int


@dataclass(frozen=True, slots=True)
class Rules:
    """What, besides an import that differs from its ledger row, is worth reading at `now`.

    `force`: everything; `recheck_days`: what was last changed so many days ago or less; `raw`, `typed`: the tables that
    rows have to be in. `named`: the imports were asked for by their slugs.
    """

    now: datetime
    force: bool = False
    recheck_days: int | None = None
    raw: bool = True
    typed: bool = True
    named: bool = False

    def reason(self, import_: Listed, known: Known | None) -> Reason | None:
        """Why to read the import; None if it is up to date, or killed runs as it is and nobody asked for it."""
        if known is not None and known.killed_runs and not self.named and not _differs(import_, known):
            return None
        return self._reason(import_, known) or (Reason.asked if self.force else None)

    def _reason(self, import_: Listed, known: Known | None) -> Reason | None:
        if known is None or (known.state is State.deleted and known.trusted):
            return Reason.new
        if not known.trusted or known.state in (State.failed, State.unreconciled):
            return Reason.retry
        if _differs(import_, known):
            return Reason.changed
        if (self.raw and not known.has_raw) or (self.typed and known.table_name is None):
            return Reason.unwritten
        if import_.status != COMPLETED:
            return Reason.unfinished
        if self.recheck_days is not None and import_.updated_at >= self.now - timedelta(days=self.recheck_days):
            return Reason.recheck
        return None


def _differs(import_: Listed, known: Known) -> bool:
    seen = (known.updated_at, known.row_count, known.status, known.template_slug)
    return seen != (import_.updated_at, import_.row_count, import_.status, import_.template_slug)


def make_plan(listed: Iterable[T], ledger: Mapping[str, Known], rules: Rules) -> Plan[T]:
    """Decides for every listed import."""
    read: list[Planned[T]] = []
    slugs: set[str] = set()
    unchanged = 0
    for import_ in listed:
        slugs.add(import_.slug)
        reason = rules.reason(import_, ledger.get(import_.slug))
        if reason is None:
            unchanged += 1
        else:
            read.append(Planned(import_, reason))
    live = [known.slug for known in ledger.values() if known.live]
    suspects = tuple(slug for slug in live if slug not in slugs)
    return Plan(tuple(read), suspects, unchanged, len(live))


def too_many_vanished(vanished: int, known_live: int, limit: float) -> bool:
    """Whether deleting `vanished` of `known_live` imports would exceed `mass_delete_limit` (CONTRACT §1)."""
    # as the decimal it was written as: 0.29 * 100 is less than 29
    return vanished > 0 and vanished > Fraction(str(limit)) * known_live
