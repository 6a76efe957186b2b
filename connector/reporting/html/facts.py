"""Define the contents of the page as values, without SQL or HTML."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Generic, TypeVar

from connector.standing import Standing

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Capped(Generic[T]):
    """The rows that are shown, and the number of all rows."""

    rows: tuple[T, ...] = ()
    total: int = 0

    @classmethod
    def of(cls, rows: Iterable[T], most: int) -> Capped[T]:
        everything = tuple(rows)
        return cls(everything[:most], len(everything))

    @property
    def hidden(self) -> int:
        return self.total - len(self.rows)


DAYS_OF_CHANGES = 30
DOUBTFUL = (Standing.failed, Standing.unreconciled, Standing.damaged, Standing.waiting)


@dataclass(frozen=True, slots=True)
class Run:
    run_id: str
    status: str
    mode: str
    started_at: datetime | None
    finished_at: datetime | None
    seconds: float | None
    imports_listed: int
    imports_changed: int
    imports_deleted: int
    records_loaded: int
    records_rejected: int
    requests: int
    retries: int
    error: str | None


@dataclass(frozen=True, slots=True)
class Template:
    """The live imports of one template. `expected` is the sum of their `row_count`."""

    slug: str
    name: str
    imports: int
    expected: int
    loaded: int
    rejected: int
    standings: dict[Standing, int]
    uploaded_at: datetime | None
    synced_at: datetime | None

    @property
    def doubtful(self) -> int:
        return sum(self.standings.get(s, 0) for s in DOUBTFUL)


@dataclass(frozen=True, slots=True)
class OpenImport:
    """An import that failed, does not reconcile or is not loaded yet."""

    slug: str
    template: str
    standing: Standing
    expected: int | None
    loaded: int
    attempts: int
    error: str | None
    synced_at: datetime | None
    file_name: str | None = None
    uploader: str | None = None


@dataclass(frozen=True, slots=True)
class Upload:
    """The uploads of one template on one day, in UTC."""

    day: date
    template: str
    imports: int
    rows: int


@dataclass(frozen=True, slots=True)
class Reject:
    """All records that were rejected for one reason."""

    reason: str
    records: int
    imports: int
    first_seen_at: datetime | None
    last_seen_at: datetime | None
    example: str | None


@dataclass(frozen=True, slots=True)
class ValueProfile:
    """The distribution of a field's values. `bars` count values from `least` to `most`, `top` has values and shares."""

    least: str | None = None
    most: str | None = None
    bars: tuple[int, ...] = ()
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class FieldProfile:
    """A field with its counts in `sync_fields`. A share is None if nothing was counted."""

    template: str
    table: str
    path: str
    column: str
    data_type: str | None
    values: int
    nulls: int
    conflicts: int
    first_seen_at: datetime | None
    looks: ValueProfile | None = None

    @property
    def null_share(self) -> float | None:
        rows = self.values + self.nulls
        return self.nulls / rows if rows else None

    @property
    def conflict_share(self) -> float | None:
        return self.conflicts / self.values if self.values else None


@dataclass(frozen=True, slots=True)
class FieldChanges:
    """The records that a day's runs (UTC) saw changed in one field; `field` is None for inserted and deleted ones."""

    day: date
    template: str
    field: str | None
    change: str
    records: int


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything on the page.

    `synced` is false until a run has loaded into the warehouse. `undated` are imports without a time of upload,
    `unknown_imports` imports that have rows but are not in the ledger, `changes` those of the last `DAYS_OF_CHANGES`
    days, None if no version of a row is kept.
    """

    warehouse: str
    dataset: str
    made_at: datetime
    version: str
    synced: bool = False
    fresh_as_of: datetime | None = None
    records: int = 0
    rejected: int = 0
    undated: int = 0
    unknown_imports: int = 0
    templates: Capped[Template] = Capped()
    standings: dict[Standing, int] = field(default_factory=dict)
    runs: Capped[Run] = Capped()
    uploads: tuple[Upload, ...] = ()
    open_imports: Capped[OpenImport] = Capped()
    rejects: Capped[Reject] = Capped()
    fields: Capped[FieldProfile] = Capped()
    typed: bool = False
    changes: Capped[FieldChanges] | None = None

    @property
    def imports(self) -> int:
        return sum(self.standings.values())

    @property
    def last_run(self) -> Run | None:
        return self.runs.rows[0] if self.runs.rows else None
