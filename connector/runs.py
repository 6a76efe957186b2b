"""Define a row of `sync_runs`: what a run did, counted while it is running, and its outcome."""

from __future__ import annotations

import json
import secrets
from collections import Counter, defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache
from importlib.metadata import version
from typing import Any

from connector.errors import ConfigError, NewerFormatError
from connector.text import composed
from connector.window import Window

DISTRIBUTION = "importer-connector"
# `sync_runs.error_kind` if a run may have left half-loaded packages, and after a later run found everything in order
UNSETTLED, REPAIRED = "Unsettled", "Repaired"
INCREMENTAL = "incremental"
CLOCKS_DIFFER = timedelta(minutes=5)  # the largest difference between the clocks of two machines that are set


class Status(StrEnum):
    """`sync_runs.status`; `running` is replaced by the run itself, or by the next one if it died."""

    running = "running"
    succeeded = "succeeded"
    partial = "partial"
    failed = "failed"
    interrupted = "interrupted"


def mode_of(mode: str, status: str | None) -> str:
    """Return `sync_runs.mode`: one that the setting `status` bounds has not read everything, and says so."""
    return f"{mode} ({status})" if mode == INCREMENTAL and status is not None else mode


@cache
def connector_version() -> str:
    return version(DISTRIBUTION)


def make_run_id(now: datetime) -> str:
    """Return a unique id that sorts by second: `20261121T093000-4f1c2ab7`."""
    return f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class Noted:
    """What later runs have to know, in the rows of `sync_runs`; of several values, the smallest one holds.

    `delete_limit_base`: how many imports were known when a run first did not see some, and did not delete them; None
    if that is settled. `left_out_by_name`: name under `exclude_templates` → slugs of the templates that it left out,
    under whichever name they are listed now; None if no run has noted any.
    """

    delete_limit_base: int | None = None
    left_out_by_name: Mapping[str, Set[str]] | None = None

    def as_row(self) -> dict[str, Any]:
        """Return the columns of `sync_runs`; names and slugs are sorted, so that equal ones are equal text."""
        names = self.left_out_by_name
        told = None if names is None else json.dumps({name: sorted(names[name]) for name in sorted(names)})
        return {"delete_limit_base": self.delete_limit_base, "left_out_by_name": told}

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Noted:
        """Return what these columns tell; a missing one is null."""
        told = row.get("left_out_by_name")
        if told is None:
            return cls(row.get("delete_limit_base"))
        names = defaultdict[str, set[str]](set)
        for name, slugs in json.loads(told).items():
            names[composed(name)].update(slugs)
        return cls(row.get("delete_limit_base"), dict(names))


@dataclass(slots=True)
class Tally:
    """The counts of a running run; `status` is the outcome if it ended now."""

    run_id: str
    mode: str
    started_at: datetime
    window: Window = field(default_factory=Window)
    destination: str | None = None
    finished_at: datetime | None = None
    imports_listed: int = 0
    imports_changed: int = 0
    imports_deleted: int = 0
    imports_failed: int = 0
    imports_unreconciled: int = 0
    records_loaded: int = 0
    records_rejected: int = 0
    requests: int = 0
    retries: int = 0
    bytes_received: int = 0
    load_ids: list[str] = field(default_factory=list)
    tables: Counter[str] = field(default_factory=Counter)  # committed rows, by table
    templates: Counter[str] = field(default_factory=Counter)  # committed records, by slug of the template, '' for none
    problems: list[str] = field(default_factory=list)
    schema_changes: list[str] = field(default_factory=list)  # committed; sentences without a full stop
    fatal: BaseException | None = None
    interrupted_by: int | None = None
    needs_audit: bool = False  # the warehouse may contradict the ledger: the next run checks the rows themselves
    loads_seen: int | None = None  # packages that dlt had completed when the run opened, and its own since
    noted: Noted = field(default_factory=Noted)
    shortfall: bool = False  # something is known to be missing, so the run is partial

    @property
    def status(self) -> Status:
        if self.fatal is not None:
            return Status.failed
        if self.interrupted_by is not None:
            return Status.interrupted
        if self.shortfall or self.imports_failed or self.records_rejected:
            return Status.partial
        return Status.succeeded

    @property
    def refused(self) -> bool:
        """Return whether a backfill did nothing because its selection is wrong; it does not count as a run."""
        wrong = isinstance(self.fatal, ConfigError) and not isinstance(self.fatal, NewerFormatError)
        return wrong and self.mode == "backfill" and not self.load_ids and not self.needs_audit

    @property
    def error(self) -> str | None:
        """Return the first reasons, as sentences."""
        reasons = [str(self.fatal) or type(self.fatal).__name__] if self.fatal is not None else []
        reasons += self.problems
        if len(reasons) > 5:
            reasons = [*reasons[:5], f"… and {len(reasons) - 5} more, see sync_imports."]
        return " ".join(reasons) or None

    @property
    def _error_kind(self) -> str | None:
        if self.needs_audit:
            return UNSETTLED
        return type(self.fatal).__name__ if self.fatal is not None else None

    def as_json(self) -> dict[str, Any]:
        """Return what `run --json` prints; times in ISO 8601."""
        return {
            "run_id": self.run_id,
            "status": self.status.value,
            "mode": self.mode,
            "started_at": self.started_at.isoformat(),
            "finished_at": self.finished_at.isoformat() if self.finished_at else None,
            "imports_listed": self.imports_listed,
            "imports_changed": self.imports_changed,
            "imports_deleted": self.imports_deleted,
            "imports_failed": self.imports_failed,
            "imports_unreconciled": self.imports_unreconciled,
            "records_loaded": self.records_loaded,
            "records_rejected": self.records_rejected,
            "requests": self.requests,
            "retries": self.retries,
            "bytes_received": self.bytes_received,
            "load_ids": list(self.load_ids),
            "tables": dict(self.tables),
            "templates": dict(self.templates),
            "schema_changes": list(self.schema_changes),
            "error": self.error,
        }

    def as_row(self, status: Status | None = None) -> dict[str, Any]:
        """Return the row for `sync_runs`; `status` overrides, for the row written before the run ends."""
        shown = self.as_json()
        del shown["schema_changes"]  # these are in sync_fields
        return {
            **shown,
            "status": (status or self.status).value,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
            "load_ids": json.dumps(self.load_ids),
            "error_kind": self._error_kind,
            "connector_version": connector_version(),
            "destination": self.destination,
            "window_since": self.window.since,
            "window_until": self.window.until,
            "loads_seen": self.loads_seen,
            **self.noted.as_row(),
        }
