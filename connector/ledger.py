"""Define the ledger: one `LedgerRow` for each import, stored as its row of `sync_imports`, and the values in it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from types import NoneType
from typing import Annotated, Any, Protocol, get_args, get_origin, get_type_hints

import msgspec

from connector.text import composed

STATUSES = ("created", "submitting", "submitted", "completed")  # of an import, as the service's interface names them
COMPLETED = "completed"  # the only status after which an import is finished


class State(StrEnum):
    """`sync_imports.state`."""

    synced = "synced"
    failed = "failed"
    unreconciled = "unreconciled"
    deleted = "deleted"
    excluded = "excluded"  # left out by the settings: its template, or its status after a failure; loaded rows stay


class Due(StrEnum):
    """`sync_imports.due`: why an import is read again though its fingerprint has not changed; null if it is not due."""

    racy = "racy"  # read within the resolution of its `updated_at`: a later change may not show
    backfill = "backfill"  # a backfill selected it, and has not read it yet
    upgrade = "upgrade"  # an earlier version of this package read it and kept less of the reply
    lost = "lost"  # what came beside its rows is lost: its metadata, or its rejects
    vanished = "vanished"  # it was gone when its records were requested
    torn = "torn"  # of its rows in the warehouse, some may be missing or of another version
    status = "status"  # no longer has the status that is read; if it is `excluded`, some of its rows may be in others


INCOMPLETE_ROWS = (
    "some of its rows may be missing or of another version, because a run died while it loaded them, the warehouse "
    "lost some, or another import has some of its records now, and templates, exclude_templates or status leaves it "
    "out. Run once without that setting."
)


def privacy_mark(rules: str | None, sections: Iterable[str]) -> str | None:
    """Return `sync_imports.privacy` for a fingerprint of rules, and the sections by template that are among them."""
    return f"{rules}:{json.dumps(sorted(sections))}" if rules else rules


class Listed(Protocol):
    """The fields of a listed import that planning needs."""

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


class LedgerRow(msgspec.Struct, frozen=True, gc=False):
    """One row of `sync_imports`; each annotated field is a column of it, with its meaning (see `LEDGER_COLUMNS`).

    Invariant: the Arrow schema, the SELECT list, reading, writing and the documentation follow from these fields. A new
    column is added here and set in `load/ledger_rows.py`; in a warehouse that lacks it, it is null until the next load.

    `trusted` is not a column: it is false if the row's load did not complete or its rows in the warehouse disagree.
    `has_raw` and `table_name` say where its rows are: the settings `raw` and `typed` may change between runs. `due` is
    one of `Due`, or a value that another version of this package wrote: any value makes a run read the import.
    """

    slug: Annotated[str, "Key of the import."]
    state: Annotated[
        State,
        "synced, failed, unreconciled (its number of records is wrong, or no typed table can hold them), deleted or "
        "excluded (the settings leave it out).",
    ]
    updated_at: Annotated[datetime | None, "The import's updated_at when it was last read."] = None
    row_count: Annotated[int | None, "Its row_count then."] = None
    status: Annotated[str | None, "Its status then."] = None
    template_slug: Annotated[str | None, "Its template then."] = None
    table_name: Annotated[str | None, "The typed table that holds its rows."] = None
    has_raw: Annotated[bool, "Whether its rows are in records too."] = False
    records_loaded: Annotated[int, "Live rows that were loaded."] = 0
    records_rejected: Annotated[int, "Rows that could not be loaded; they are in sync_rejects."] = 0
    text_conflicts: Annotated[
        str | None, "JSON: column → numbers and booleans of this import that a text column took as their text."
    ] = None
    killed_runs: Annotated[
        int | None,
        "How many runs died while they read this version of it; it is then left out until it changes or a backfill "
        "selects it.",
    ] = None
    attempts: Annotated[int, "How many reads of it failed in a row, and 1 if the last one succeeded."] = 0
    error: Annotated[str | None, "Why it is not synced."] = None
    last_synced_at: Annotated[datetime | None, "When it was last read completely (UTC)."] = None
    run_id: Annotated[str | None, "The run that last read it."] = None
    due: Annotated[
        str | None,
        "Why the next run reads it again though it looks unchanged: racy (read within the resolution of its "
        "updated_at), backfill (selected and not read yet), lost (the warehouse lost what came beside its rows), "
        "vanished (gone when its records were requested), torn (a run died while it loaded its rows, or the "
        "warehouse lost some), status (no longer had the status that is read).",
    ] = None
    fewer_found: Annotated[
        int | None,
        "How many records the last read found, if fewer than are loaded although it looks unchanged.",
    ] = None
    fewer_since: Annotated[datetime | None, "When a read first found that number (UTC)."] = None
    privacy: Annotated[
        str | None,
        "Fingerprint of the privacy rules under which it was read, and behind a colon the sections of its template "
        "among them; null for none.",
    ] = None
    history: Annotated[
        str | None,
        "The load whose changes are recorded in the history tables; behind `paused` if its table is not recorded now, "
        "behind `moved` if records of it are in a template without history.",
    ] = None
    load_id: Annotated[str, "The load that brought it; the row counts only once dlt has completed that load."] = ""
    trusted: bool = False

    @property
    def is_incomplete(self) -> bool:
        """Return whether some of its rows may be missing or of another version.

        Invariant: it stays incomplete until a load that dlt completed brings all its rows, however often reading fails.
        """
        half_loaded = not self.trusted and self.state in (State.synced, State.unreconciled, State.deleted)
        return half_loaded or self.due == Due.torn

    @property
    def is_refused(self) -> bool:
        """Return whether the destination refused its rows in a typed table: they are in `records` alone."""
        return self.state is not State.synced and self.table_name is None and self.records_loaded > 0

    @property
    def rules(self) -> str | None:
        """Return the fingerprint of the privacy rules under which it was read."""
        return None if self.privacy is None else self.privacy.partition(":")[0]

    @property
    def rule_sections(self) -> frozenset[str] | None:
        """Return the sections by template that were among these rules; None for a row that does not tell."""
        named = "" if self.privacy is None else self.privacy.partition(":")[2]
        return frozenset(map(composed, json.loads(named))) if named else None

    @property
    def live(self) -> bool:
        return not (self.state is State.deleted and self.trusted)

    @property
    def adds_up(self) -> bool:
        """Return whether `row_count` can be right; a record that occurred twice may have been rejected twice."""
        count = self.row_count
        return count is not None and self.records_loaded <= count <= self.records_loaded + self.records_rejected

    def is_at(self, import_: Listed) -> bool:
        """Return whether this is the version of the import that was synced."""
        seen = (self.updated_at, self.row_count, self.status, self.template_slug)
        return seen == (import_.updated_at, import_.row_count, import_.status, import_.template_slug)


@dataclass(frozen=True, slots=True)
class LedgerColumn:
    """A column of `sync_imports`: its field of `LedgerRow`, its type, and what null is read as."""

    field: str
    name: str
    kind: type
    absent: Any
    meaning: str


def _columns() -> Iterator[LedgerColumn]:
    """Yield the columns; a missing number is 0, a missing flag false; a missing state makes a run read the import."""
    zeros = {str: "", int: 0, bool: False, State: State.failed}
    for name, hint in get_type_hints(LedgerRow, include_extras=True).items():
        if get_origin(hint) is not Annotated:
            continue
        declared, meaning = get_args(hint)
        kinds = [kind for kind in get_args(declared) if kind is not NoneType] or [declared]
        absent = None if get_args(declared) else zeros[declared]
        yield LedgerColumn(name, "_dlt_load_id" if name == "load_id" else name, kinds[0], absent, meaning)


LEDGER_COLUMNS = tuple(_columns())
