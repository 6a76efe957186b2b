"""The ledger's words: what is known of an import since it was last read, one `Known`, a row of `sync_imports` each."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

COMPLETED = "completed"  # the only status after which an import is finished (interface, States)


class State(StrEnum):
    """`sync_imports.state` (CONTRACT §3)."""

    synced = "synced"
    failed = "failed"
    unreconciled = "unreconciled"
    deleted = "deleted"


class Due(StrEnum):
    """`sync_imports.due`: why an import is read again though its fingerprint stands still; null if nothing asks."""

    racy = "racy"  # read within the resolution of its `updated_at`: it may have changed since, unseen
    backfill = "backfill"  # a backfill asked for it, and has not read it yet
    upgrade = "upgrade"  # an earlier version read it, and kept less of what it received
    vanished = "vanished"  # it was gone when its records were asked for


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


@dataclass(frozen=True, slots=True)
class Known:
    """One ledger row. `trusted` is false if its load did not complete or its rows in the warehouse disagree.

    `has_raw` and `table_name` say where its rows are: the settings `raw` and `typed` may change between runs. `due` is
    one of `Due`, or what another version of this package wrote: whatever it is, it asks for the import.
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
    due: str | None = None
    text_conflicts: str | None = None
    killed_runs: int = 0

    @property
    def live(self) -> bool:
        return not (self.state is State.deleted and self.trusted)

    @property
    def adds_up(self) -> bool:
        """Return whether as many records came as `row_count` says; of the rejected ones some may be one, seen twice."""
        count = self.row_count
        return count is not None and self.records_loaded <= count <= self.records_loaded + self.records_rejected

    def is_at(self, import_: Listed) -> bool:
        """Return whether this is the version of the import that was synced."""
        seen = (self.updated_at, self.row_count, self.status, self.template_slug)
        return seen == (import_.updated_at, import_.row_count, import_.status, import_.template_slug)
