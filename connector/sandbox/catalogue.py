"""Keep the imports that the service holds, with every way to change them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, get_args

from connector.sandbox.files import FileRows, read_document
from connector.sandbox.generator import GeneratedRows
from connector.sandbox.rows import ImportRows, KeptRows, RowSource, row_text
from connector.sandbox.seeding import SeededClock, SlugRange, uuid_from
from connector.sandbox.templates import TEMPLATES

Status = Literal["created", "submitting", "submitted", "completed"]
STATUSES: tuple[Status, ...] = get_args(Status)
Metadata = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Template:
    """The template of an import."""

    name: str
    slug: str


@dataclass(slots=True)
class StoredImport:
    """One import, live or deleted. `revision` counts its changes; `row_count` overrides the true count."""

    slug: str
    template_slug: str | None
    created_at: datetime
    updated_at: datetime
    status: Status
    metadata: Metadata | None
    rows: ImportRows
    deleted: bool = False
    revision: int = 0
    row_count: int | None = field(default=None)

    def shown_row_count(self) -> int:
        return len(self.rows) if self.row_count is None else self.row_count


class Catalogue:
    """The imports and rows of the service. Every change is atomic and moves `version`."""

    def __init__(self, seed: int = 0, clock: Callable[[], datetime] | None = None) -> None:
        self.seed = seed
        self.clock = clock or SeededClock(seed)
        self.importers: set[str] = {"demo", *TEMPLATES}
        self.version = 0
        self.edit_moves_import = True
        self._lock = threading.RLock()
        self._imports: dict[str, StoredImport] = {}
        self._templates: dict[str, Template] = {}
        self._serial = 0

    # Adding

    def add_import(
        self,
        template: str | Template | None = None,
        rows: Iterable[Mapping[str, Any] | str] = (),
        metadata: Metadata | None = None,
        status: Status = "completed",
        slug: str | None = None,
    ) -> str:
        """Add an import of these rows; a row given as a text is served byte for byte. Return its slug."""
        return self._add(template, KeptRows([row_text(row) for row in rows]), metadata or {}, status, slug)

    def add_generated(
        self,
        template: str = "customers",
        imports: int = 1,
        rows: int = 100,
        status: Status = "completed",
        metadata: Metadata | None = None,
    ) -> list[str]:
        """Add imports whose rows are computed on request, so that any number of them costs nothing.

        `metadata` is added to the metadata of each.
        """
        if template not in TEMPLATES:
            raise ValueError(f"there is a generator for {', '.join(TEMPLATES)}; not for {template}")
        slugs = []
        for part in range(imports):
            source = GeneratedRows(template, (self.seed, self._serial), rows)
            own = {"source": "generator", "file_name": f"{template} {part + 1}.xlsx", "part": part + 1}
            slugs.append(self._add(template, source, {**own, **(metadata or {})}, status, None))
        return slugs

    def add_file(self, path: Path | str, rows_per_import: int = 1000, name: str | None = None) -> list[str]:
        """Serve a CSV, JSON or JSON Lines file as a template, in imports of `rows_per_import` rows each."""
        path = Path(path)
        document = read_document(path)
        starts = range(0, max(len(document), 1), rows_per_import)
        slugs = []
        for part, first in enumerate(starts, start=1):
            source = FileRows(document, first, min(rows_per_import, len(document) - first))
            metadata = {"source": "file", "file_name": path.name, "part": part, "parts": len(starts)}
            slugs.append(self._add(name or path.stem, source, metadata, "completed", None))
        return slugs

    def _known(self, template: str | Template | None) -> str | None:
        """Return the slug of a template, which is created on first use of its name; a `Template` is used unchanged."""
        if isinstance(template, str):
            self.importers.add(template)
            slug = uuid_from(self.seed, "template", template)
            template = self._templates.get(slug) or Template(template, slug)
        if template is None:
            return None
        self._templates[template.slug] = template
        return template.slug

    def _add(
        self,
        template: str | Template | None,
        source: RowSource,
        metadata: Metadata,
        status: Status,
        slug: str | None,
    ) -> str:
        with self._lock:
            slug = slug or uuid_from(self.seed, "import", self._serial)
            if slug in self._imports:
                raise ValueError(f"there is an import {slug} already")
            now = self.clock()
            created_at = now - timedelta(seconds=1)
            rows = ImportRows(source, SlugRange(self.seed, slug), created_at)
            known = self._known(template)
            self._imports[slug] = StoredImport(slug, known, created_at, now, _checked(status), metadata, rows)
            self._serial += 1
            self.version += 1
            return slug

    # Editing

    def append_rows(self, slug: str, rows: Iterable[Mapping[str, Any] | str]) -> list[str]:
        """Add rows at the end; return their record slugs."""
        with self._lock:
            found = self._live(slug)
            now = self._moved(found)
            return [found.rows.slugs.slug(found.rows.append(row_text(row), now)) for row in rows]

    def add_raw_record(self, slug: str, text: str) -> str:
        """Add a whole record as a text that need not be valid; it counts in `row_count`.

        Return the slug under which `delete_row` knows it; the text itself may hold another, or none.
        """
        with self._lock:
            found = self._live(slug)
            return found.rows.slugs.slug(found.rows.append(text, self._moved(found), whole=True))

    def edit_row(self, slug: str, record_slug: str, data: Mapping[str, Any] | str) -> None:
        """Replace a row's content. A switch decides whether that changes its import's `updated_at`."""
        with self._lock:
            found = self._live(slug)
            index = found.rows.index_of(record_slug)
            now = self._moved(found) if self.edit_moves_import else self._touched_only()
            found.rows.edit(index, row_text(data), now)

    def delete_row(self, slug: str, record_slug: str) -> None:
        with self._lock:
            found = self._live(slug)
            index = found.rows.index_of(record_slug)
            self._moved(found)
            found.rows.delete(index)

    def move_row(self, slug: str, record_slug: str, to: str) -> None:
        """Move a record to another import under the slug it has; both imports are updated at the same instant.

        Raises ValueError for a record that was added as a whole text.
        """
        with self._lock:
            found, other = self._live(slug), self._live(to)
            index = found.rows.index_of(record_slug)
            touched = found.rows.touched.get(index)
            if touched is not None and touched.whole:
                raise ValueError(f"the record {record_slug} is a whole text and cannot be moved")
            text = touched.text if touched is not None else found.rows.source.text(index)
            created_at, _ = found.rows.times(index)
            now = other.updated_at = self._moved(found)
            other.revision = self.version
            found.rows.delete(index)
            other.rows.move_in(record_slug, text, created_at, now)

    def delete_import(self, slug: str) -> None:
        with self._lock:
            self._live(slug).deleted = True
            self.version += 1

    def restore_import(self, slug: str) -> None:
        """Restore a deleted import with the same rows and times."""
        with self._lock:
            self._imports[slug].deleted = False
            self.version += 1

    def set_status(self, slug: str, status: Status) -> None:
        with self._lock:
            found = self._live(slug)
            found.status = _checked(status)
            self._moved(found)

    def set_template(self, slug: str, template: str | Template | None) -> None:
        with self._lock:
            found = self._live(slug)
            found.template_slug = self._known(template)
            self._moved(found)

    def rename_template(self, template_slug: str, name: str) -> None:
        """Rename a template for all imports; none of them counts as updated."""
        with self._lock:
            self._templates[template_slug] = replace(self._templates[template_slug], name=name)
            self.version += 1

    def set_metadata(self, slug: str, metadata: Metadata | None) -> None:
        """Set the metadata of an import; None is shown as null."""
        with self._lock:
            found = self._live(slug)
            found.metadata = metadata
            self._moved(found)

    def set_row_count(self, slug: str, row_count: int | None) -> None:
        """Show a `row_count` that is not the number of rows; None restores the true count."""
        with self._lock:
            found = self._live(slug)
            found.row_count = row_count
            self._moved(found)

    # Looking

    def slugs(self) -> list[str]:
        """Return the slugs of the live imports, oldest first."""
        with self._lock:
            return [found.slug for found in self._imports.values() if not found.deleted]

    def record_slugs(self, slug: str) -> Iterator[str]:
        """Yield the slugs of an import's live records, in the order they were added."""
        rows = self._live(slug).rows
        return map(rows.slug, rows)

    def templates(self) -> list[Template]:
        return list(self._templates.values())

    def template_of(self, found: StoredImport) -> Template | None:
        return None if found.template_slug is None else self._templates[found.template_slug]

    def find(self, slug: str) -> StoredImport | None:
        """Return the live import of this slug, if there is one."""
        found = self._imports.get(slug)
        return None if found is None or found.deleted else found

    def live(self) -> list[StoredImport]:
        return [found for found in self._imports.values() if not found.deleted]

    def _live(self, slug: str) -> StoredImport:
        found = self.find(slug)
        if found is None:
            raise KeyError(slug)
        return found

    def _moved(self, found: StoredImport) -> datetime:
        found.updated_at = self._touched_only()
        found.revision = self.version
        return found.updated_at

    def _touched_only(self) -> datetime:
        self.version += 1
        return self.clock()


def _checked(status: Status) -> Status:
    if status not in STATUSES:
        raise ValueError(f"status is one of {', '.join(STATUSES)}; not {status!r}")
    return status
