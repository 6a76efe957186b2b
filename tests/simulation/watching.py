"""Observe the contents of the service while it is edited: the truth to which a warehouse is compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from connector.sandbox import Service
from connector.sandbox.catalogue import StoredImport
from connector.sandbox.rendering import import_fields, record_extra_text
from connector.sandbox.rows import TouchedRow

EXTRA = ("file_name", "uploader")
TRUNCATED_US: dict[Any, int] = {0: 1_000_000, 3: 1_000}


@dataclass(frozen=True, slots=True)
class Row:
    """A record as it must arrive; `data` is its exact text."""

    import_slug: str
    data: str
    created_at: datetime
    updated_at: datetime
    sort: int
    extra: str | None = None


@dataclass(frozen=True, slots=True)
class ImportTruth:
    """An import as it must arrive; `shown` is how the API shows it."""

    shown: dict[str, Any]
    created_at: datetime
    updated_at: datetime
    template_slug: str | None
    rows: dict[str, Row]
    spoiled: int
    version: tuple[Any, ...]
    touches: Mapping[int, TouchedRow] = field(default_factory=dict)  # the edits that `rows` were computed with

    @property
    def slug(self) -> str:
        return str(self.shown["slug"])


@dataclass(slots=True)
class Watch:
    """The truth now, and what changed since `begin`."""

    service: Service
    truth: dict[str, ImportTruth] = field(default_factory=dict)
    at_start: dict[str, ImportTruth] = field(default_factory=dict)
    touched_imports: set[str] = field(default_factory=set)
    touched_records: set[str] = field(default_factory=set)
    absent: set[str] = field(default_factory=set)

    def begin(self) -> None:
        self.look()
        self.at_start = dict(self.truth)
        self.touched_imports, self.touched_records = set(), set()
        self.absent = set(self.service._imports) - set(self.truth)

    def edit(self, change: Callable[[], Any]) -> Any:
        result = change()
        self.look()
        return result

    def look(self) -> None:
        now = {found.slug: found for found in self.service.live()}
        for slug in set(self.truth) - set(now):
            gone = self.truth.pop(slug)
            self.touched_imports.add(slug)
            self.absent.add(slug)
            self.touched_records.update(gone.rows)
        for slug, found in now.items():
            before = self.truth.get(slug)
            shown = self._shown(found)
            version = (id(found), found.rows.version, len(found.rows))
            # their texts: 0 and 0.0, which are equal, are not the same metadata
            if before is not None and before.version == version and repr(before.shown) == repr(shown):
                continue
            truth = self._truth(found, shown, version, before)
            self.truth[slug] = truth
            self.touched_imports.add(slug)
            old = before.rows if before is not None else {}
            changed = {s for s in {*old, *truth.rows} if old.get(s) != truth.rows.get(s)}
            self.touched_records.update(changed)

    def steady_imports(self) -> dict[str, ImportTruth]:
        return {s: t for s, t in self.at_start.items() if s not in self.touched_imports}

    def steady_records(self) -> dict[str, Row]:
        return {
            slug: row
            for truth in self.at_start.values()
            for slug, row in truth.rows.items()
            if slug not in self.touched_records and truth.slug not in self.absent
        }

    def _shown(self, found: StoredImport) -> dict[str, Any]:
        switches = self.service.switches
        template = self.service.template_of(found) if switches.template == "object" else None
        return {
            "slug": found.slug,
            "row_count": found.shown_row_count(),
            "updated_at": found.updated_at,
            "status": found.status,
            "template": template and (template.slug, template.name),
            "metadata": found.metadata if switches.metadata == "object" else None,
            "records_metadata": (found.metadata or {}) if self._has_metadata_beside(found) else None,
            "extra": {n: v for n, v in import_fields(self.service, found, switches).items() if n in EXTRA} or None,
        }

    def _has_metadata_beside(self, found: StoredImport) -> bool:
        """Return whether the reply with its records has metadata; a 404 has none."""
        switches = self.service.switches
        return switches.records_metadata == "object" and (bool(len(found.rows)) or switches.no_records != 404)

    def _truth(
        self, found: StoredImport, shown: dict[str, Any], version: tuple[Any, ...], before: ImportTruth | None
    ) -> ImportTruth:
        """Compute the rows, except those not edited since `before`, which saves most of the work."""
        same = before if before is not None and before.version[0] == version[0] else None
        rows: dict[str, Row] = {}
        touches = dict(found.rows.touched)
        spoiled = 0
        for index in found.rows:
            touched = touches.get(index)
            if touched is not None and touched.whole:
                spoiled += 1
                continue
            slug = found.rows.slug(index)
            if same is not None and slug in same.rows and same.touches.get(index) is touched:
                rows[slug] = same.rows[slug]
                continue
            data = touched.text if touched is not None else found.rows.source.text(index)
            created_at, updated_at = map(self._shown_time, found.rows.times(index))
            members = record_extra_text(index, self.service.switches)
            extra = None if members is None else f"{{{members}}}"
            rows[slug] = Row(found.slug, data, created_at, updated_at, index, extra)
        created_at, updated_at = self._shown_time(found.created_at), self._shown_time(found.updated_at)
        template = shown["template"][0] if shown["template"] else None
        return ImportTruth(shown, created_at, updated_at, template, rows, spoiled, version, touches)

    def _shown_time(self, instant: datetime) -> datetime:
        unit = TRUNCATED_US.get(self.service.switches.time_fraction, 1)
        return instant.replace(microsecond=instant.microsecond - instant.microsecond % unit)
