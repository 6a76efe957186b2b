"""Define what replies are decoded into: a session (pydantic), and imports, records and rejects (msgspec).

The latter number thousands or millions in a run, so they are plain msgspec structs that the garbage collector skips.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec
from msgspec import structs
from pydantic import BaseModel, ConfigDict, SecretStr

from connector.text import composed

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Template(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The template of an import; `name` is the slug if the service sends no name, and composed (`text.composed`)."""

    name: str
    slug: str
    also: frozenset[str] = frozenset()
    """Other names that the service shows for the template at the same time, if the listing was searched for them."""

    @property
    def names(self) -> frozenset[str]:
        """Return all by which the settings may name the template, composed: its slug and its names."""
        return frozenset(map(composed, self.also | {self.slug, self.name}))


class Import(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One import. Times are aware and in UTC."""

    slug: str
    row_count: int
    created_at: datetime
    updated_at: datetime
    updated_naive: bool = False
    """Whether `updated_at` had no offset and was interpreted as UTC."""
    status: str
    template: Template | None = None
    shown_name: str | None = None
    """The name of the template in the reply, if the run uses another one: it uses one composed name of a template."""
    metadata_json: bytes | None = None
    """The exact JSON text of `metadata` as received; None if it is absent or null."""
    extra_json: bytes | None = None
    """Undocumented fields as one JSON object, values as received; None if there are none."""

    @property
    def fingerprint(self) -> tuple[datetime, int, str]:
        """Return what must stay the same for an import to count as unchanged."""
        return self.updated_at, self.row_count, self.status

    def named(self, template: Template) -> Import:
        """Return the import with this name of its template; the name in the reply stays in `shown_name`."""
        if template == self.template:
            return self
        shown = self.shown_template_name
        return structs.replace(self, template=template, shown_name=None if shown == template.name else shown)

    @property
    def shown_template_name(self) -> str | None:
        """Return the name of the template in the reply."""
        return self.template_name if self.shown_name is None else self.shown_name

    @property
    def template_names(self) -> frozenset[str]:
        """Return all by which the settings may name the template; nothing if the import has none."""
        return self.template.names if self.template else frozenset()

    @property
    def template_slug(self) -> str | None:
        return self.template.slug if self.template else None

    @property
    def template_name(self) -> str | None:
        return self.template.name if self.template else None


class Session(BaseModel):
    """An importer session; `token.get_secret_value()` gives the JWT."""

    model_config = ConfigDict(frozen=True)

    token: SecretStr


class Record(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One row of an import; `data` is the exact JSON text of its object, as received.

    `extra` has the undocumented fields as one JSON object, values as received; None if there are none.
    Times are microseconds since 1970 in UTC, which is how Arrow holds them.
    """

    slug: str
    data: bytes
    created_at: int | None
    updated_at: int | None
    sort: int | None
    extra: bytes | None = None


class Reject(msgspec.Struct, frozen=True, gc=False):
    """An element of a page that could not be read; `payload` is its text as received.

    `record_slug` is the element's slug, if it has a usable one. With `by_rules` it is readable, and the privacy rules
    cannot be applied to it.
    """

    record_slug: str | None
    reason: str
    payload: str
    by_rules: bool = False


@dataclass(frozen=True, slots=True)
class RecordPage:
    """One page of records; `size` counts the elements received, rejected ones too.

    `metadata` is the exact JSON text of the top-level `metadata` of the reply; None if it is absent or null.
    """

    records: list[Record]
    rejects: list[Reject]
    size: int
    metadata: bytes | None = None


@dataclass(frozen=True, slots=True)
class ImportPage:
    """One page of imports; `size` counts the elements received, rejected ones too."""

    imports: list[Import]
    rejects: list[Reject]
    size: int


def key_of(row: Import | Reject) -> str:
    """Return the key that identifies an element of a listing."""
    return row.slug if isinstance(row, Import) else f"reject {row.record_slug or row.payload}"


def replaces(before: Import | Reject, after: Import | Reject) -> bool:
    """Return whether `after` replaces `before` as the version of an element to keep."""
    if isinstance(before, Import) and isinstance(after, Import):
        return after.updated_at >= before.updated_at
    return True


def creation_time(row: Import | Reject) -> datetime:
    """Return when the service says the element was created; an unreadable one is as old as possible."""
    return row.created_at if isinstance(row, Import) else datetime.min.replace(tzinfo=UTC)


def microseconds(instant: datetime) -> int:
    """Return an aware time as microseconds since 1970 in UTC."""
    return (instant - EPOCH) // _MICROSECOND
