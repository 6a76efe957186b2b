"""Decode a reply into pages of imports and records without losing digits or the neighbours of an invalid element.

In the fast path msgspec decodes a whole page of records and keeps the bytes of each row. If it refuses the page (an
invalid element, a lone surrogate escape, extreme depth), the page is split into its elements, and each is decoded
separately, member by member (`fields`). Undocumented fields are looked for only in a page that is known to have some.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Any, TypeVar, cast

import msgspec
import pyarrow as pa
from pydantic import SecretStr

from connector.ledger import STATUSES
from connector.models import Import, ImportPage, Record, RecordPage, Reject, Session, Template, microseconds
from connector.service import fields
from connector.service.fields import BRACE, LONGEST_KEY, Refused, is_utf8, parse_instant
from connector.service.limits import LIMITS
from connector.text import composed
from connector.transform.json_slices import (
    SPACE,
    NotJson,
    array_elements,
    is_json,
    members_of,
    object_members,
)
from connector.transform.numbers import INT64_MAX, INT64_MIN

_SHORT = 8 * 2**20  # bytes; a longer page may have millions of tiny elements and is not even split to count them
_BOM = b"\xef\xbb\xbf"
_USUAL_LENGTHS = frozenset(map(len, (f"2026-01-01T00:00:00{fraction}Z" for fraction in ("", ".000", ".000000"))))
_UTC_US = pa.timestamp("us", "UTC")
# Arrow has years before and after these, datetime does not.
_EARLIEST, _LATEST = (microseconds(each.replace(tzinfo=UTC)) for each in (datetime.min, datetime.max))
_IMPORT_FIELDS = frozenset({"slug", "row_count", "created_at", "updated_at", "status", "template", "metadata"})
_NO_SLUGS = frozenset({".", ".."})
_RECORD_FIELDS = frozenset({"slug", "data", "created_at", "updated_at", "sort"})

_FEW = 32  # so few times are parsed faster by Python than by Arrow
_TEMPLATE_BYTES = 1_000  # templates up to this size are cached, as most imports have the same few

_T = TypeVar("_T")
_Slug = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_KEY // 4)]  # longer ones are measured one by one
_Int64 = Annotated[int, msgspec.Meta(ge=INT64_MIN, le=INT64_MAX)]


class WrongShape(ValueError):
    """The reply is JSON, but does not match the interface; the message completes "the service sent …"."""


class _Row(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    slug: _Slug
    data: msgspec.Raw
    created_at: str | None = None
    updated_at: str | None = None
    sort: _Int64 | None = None


class _LaxRow(_Row, gc=False, forbid_unknown_fields=False):
    pass


class _RowPage(msgspec.Struct):
    data: list[_Row]
    metadata: msgspec.Raw = msgspec.Raw(b"null")


class _LaxRowPage(msgspec.Struct):
    data: list[_LaxRow]
    metadata: msgspec.Raw = msgspec.Raw(b"null")


class _MembersPage(msgspec.Struct):
    data: list[dict[str, msgspec.Raw]]


class _Upload(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    slug: _Slug
    row_count: _Int64
    created_at: str
    updated_at: str
    status: str
    template: msgspec.Raw = msgspec.Raw(b"null")
    metadata: msgspec.Raw = msgspec.Raw(b"null")


class _UncutPage(msgspec.Struct):
    data: msgspec.Raw


class _RawPage(msgspec.Struct):
    data: list[msgspec.Raw]


_ROW_PAGE = msgspec.json.Decoder(_RowPage)
_LAX_ROW_PAGE = msgspec.json.Decoder(_LaxRowPage)
_MEMBERS_PAGE = msgspec.json.Decoder(_MembersPage)
_ROW = msgspec.json.Decoder(_Row)
_UPLOAD = msgspec.json.Decoder(_Upload)
_UNCUT_PAGE = msgspec.json.Decoder(_UncutPage)
_RAW_PAGE = msgspec.json.Decoder(_RawPage)


def decode_record_page(body: bytes) -> RecordPage:
    """Decode a page of records. Raises `NotJson` or `WrongShape` if the page as a whole can't be read."""
    if is_utf8(body):
        for decode in (_usual_page, _page_with_extras):
            with suppress(ValueError, OverflowError, RecursionError):
                return decode(body)
    records: list[Record] = []
    rejects: list[Reject] = []
    elements = _elements(body)
    for text in elements:
        found = _read_record(text)
        if isinstance(found, Record):
            records.append(found)
        else:
            rejects.append(found)
    return RecordPage(records, rejects, len(elements), _or_none(_top_level(_document(body)).get("metadata", b"null")))


def _usual_page(body: bytes) -> RecordPage:
    page = _ROW_PAGE.decode(body)
    _check_elements(len(page.data))
    return RecordPage(_records(page.data), [], len(page.data), _or_none(page.metadata))


def decode_import_page(body: bytes) -> ImportPage:
    """Decode a page of imports. Raises `NotJson` or `WrongShape` if the page as a whole can't be read."""
    imports: list[Import] = []
    rejects: list[Reject] = []
    _check_single_list(body)
    elements = _elements(body)
    for text in elements:
        found = _read_import(text)
        if isinstance(found, Import):
            imports.append(found)
        else:
            rejects.append(found)
    return ImportPage(imports, rejects, len(elements))


def decode_import(body: bytes) -> Import:
    text = _document(body)
    found = _read_import(text)
    if isinstance(found, Import):
        return found
    if text[:1] != b"{" or not is_json(text):
        _top_level(text)
    raise WrongShape(f"an import that can't be read: {found.reason}")


def decode_session(body: bytes) -> Session:
    token = fields.parse_leniently(_top_level(_document(body)).get("token", b"null"))
    if not isinstance(token, str) or not token:
        raise WrongShape("a session without a token")
    return Session(token=SecretStr(token))


def _page_with_extras(body: bytes) -> RecordPage:
    """Return a page that has undocumented fields. Raises the same errors as `_records`."""
    page = _LAX_ROW_PAGE.decode(body)
    _check_elements(len(page.data))
    extras = [_unnamed(members, _RECORD_FIELDS) for members in _MEMBERS_PAGE.decode(body).data]
    return RecordPage(_records(page.data, extras), [], len(page.data), _or_none(page.metadata))


def _unnamed(members: Mapping[str, bytes | msgspec.Raw], named: frozenset[str]) -> bytes | None:
    """Return the members that are not `named` as one JSON object, each value as received; None if there are none."""
    found = [(key, value) for key, value in members.items() if key not in named]
    return _object_text(found) if found else None


def _object_text(members: Iterable[tuple[str, bytes | msgspec.Raw]]) -> bytes:
    return b"{" + b",".join([_key_text(key) + bytes(text) for key, text in members]) + b"}"


@lru_cache(maxsize=1024)
def _key_text(key: str) -> bytes:
    return json.dumps(key, ensure_ascii=not fields.is_encodable(key)).encode() + b":"


def _or_none(text: bytes | msgspec.Raw) -> bytes | None:
    found = bytes(text)
    return None if found == b"null" else found


def _records(rows: Sequence[_Row], extras: Sequence[bytes | None] | None = None) -> list[Record]:
    """Build records from decoded rows. Raises ValueError or OverflowError if one of them can't be used."""
    slugs = [row.slug for row in rows]
    data = [bytes(row.data) for row in rows]  # copied, because a row must not keep its whole page in memory
    if {text[0] for text in data} - {BRACE} or "\0" in "".join(slugs):
        raise Refused("data is not an object, or slug holds a NUL character")
    times = _instants([*[row.created_at for row in rows], *[row.updated_at for row in rows]])
    columns = (slugs, data, times[: len(rows)], times[len(rows) :], [row.sort for row in rows])
    return list(map(Record, *columns)) if extras is None else list(map(Record, *columns, extras))


def _instants(texts: Sequence[str | None]) -> Sequence[int | None]:
    """Return `parse_instant` of each text, in microseconds since 1970; Arrow parses usual texts all at once."""
    if len(texts) > _FEW and None not in texts and _USUAL_LENGTHS.issuperset(map(len, cast("Sequence[str]", texts))):
        with suppress(pa.ArrowInvalid):
            stamps: Any = pa.array(texts, pa.string()).cast(_UTC_US)
            found: list[int] = memoryview(stamps.buffers()[1]).cast("q")[: len(texts)].tolist()
            if min(found) >= _EARLIEST and max(found) <= _LATEST:
                return found
    return [None if text is None else microseconds(parse_instant(text)) for text in texts]


def _read_record(text: bytes) -> Record | Reject:
    if is_utf8(text):
        try:
            return _records([_ROW.decode(text)])[0]
        except (ValueError, OverflowError, RecursionError):
            pass
    slug: str | None = None
    try:
        members = fields.members_in(text, "the record")
        slug = fields.key_in(members)
        data = members.get("data", b"null")
        if data == b"null":
            raise Refused("data is missing")
        if data[0] != BRACE:
            raise Refused("data is not an object")
        created_at, updated_at = (
            None if time is None else microseconds(time)
            for time in (fields.instant_in(members, "created_at"), fields.instant_in(members, "updated_at"))
        )
        extra = _unnamed(members, _RECORD_FIELDS)
        return Record(slug, data, created_at, updated_at, fields.integer_in(members, "sort"), extra)
    except Refused as why:
        return _rejected(slug, why, text)


def _rejected(slug: str | None, why: Refused, text: bytes) -> Reject:
    """Build the reject of an element; try to read its slug even from invalid JSON."""
    if slug is None:
        with suppress(ValueError, RecursionError):
            slug = fields.slug_in(object_members(text))
    return Reject(slug, str(why), text.decode("utf-8", "backslashreplace"))


def _read_import(text: bytes) -> Import | Reject:
    if is_utf8(text):
        try:
            return _usual_import(_UPLOAD.decode(text))
        except (ValueError, OverflowError, RecursionError):
            pass
    slug: str | None = None
    try:
        members = fields.members_in(text, "the import")
        slug = fields.key_in(members)
        if slug in _NO_SLUGS:
            raise Refused("slug can't stand in an address")
        template, shown, rest = _template(members.get("template", b"null"))
        unnamed = [(key, value) for key, value in members.items() if key not in _IMPORT_FIELDS]
        if rest is not None:
            unnamed.append(("template", rest))
        return Import(
            slug=slug,
            row_count=fields.required(fields.integer_in(members, "row_count"), "row_count"),
            created_at=fields.required(fields.instant_in(members, "created_at"), "created_at"),
            updated_at=fields.required(fields.instant_in(members, "updated_at"), "updated_at"),
            updated_naive=fields.is_naive(fields.parse_leniently(members["updated_at"])),
            status=_status(fields.required(fields.text_in(members, "status"), "status")),
            template=template,
            shown_name=shown,
            metadata_json=_or_none(members.get("metadata", b"null")),
            extra_json=_object_text(unnamed) if unnamed else None,
        )
    except Refused as why:
        return _rejected(slug, why, text)


def _usual_import(found: _Upload) -> Import:
    """Build an import without undocumented fields. Raises ValueError or OverflowError if it needs the slower path."""
    template, shown, rest = _template(bytes(found.template))
    if rest is not None or found.slug in _NO_SLUGS or "\0" in found.slug or "\0" in found.status:
        raise Refused("not as usual")
    return Import(
        slug=found.slug,
        row_count=found.row_count,
        created_at=parse_instant(found.created_at),
        updated_at=parse_instant(found.updated_at),
        updated_naive=fields.is_naive(found.updated_at),
        status=_status(found.status),
        template=template,
        shown_name=shown,
        metadata_json=_or_none(found.metadata),
    )


def _status(text: str) -> str:
    """Return a status that the interface names as it is written there, so that the setting `status` selects it."""
    named = text.strip().lower()
    return named if named in STATUSES else text


_FoundTemplate = tuple[Template | None, str | None, bytes | None]


def _template(text: bytes) -> _FoundTemplate:
    return _same_template(text) if len(text) <= _TEMPLATE_BYTES else _read_template(text)


@lru_cache(maxsize=1024)
def _same_template(text: bytes) -> _FoundTemplate:
    return _read_template(text)


def _read_template(text: bytes) -> _FoundTemplate:
    """Return the template, its name as received if that is not composed, and the other members of its object as JSON.

    Invariant: inside, a name is composed, here and wherever else names come in (the settings and the warehouse), so
    that no comparison can take two forms of a name for two names.
    """
    if text == b"null":
        return None, None, None
    members = fields.members_in(text, "template")
    slug = fields.slug_in(members, "template.slug")
    name = fields.parse_leniently(members.get("name", b"null"))
    rest = _unnamed(members, frozenset({"slug", "name"}))
    usable = isinstance(name, str) and name and fields.is_encodable(name)
    given = name if usable else slug
    template = Template(slug=slug, name=composed(given))
    return template, None if template.name == given else given, rest


def _document(body: bytes) -> bytes:
    return body.removeprefix(_BOM).strip(SPACE)


def _check_single_list(body: bytes) -> None:
    """Raise WrongShape if `data` occurs twice in a page of imports: no count would show that one was dropped."""
    twice = len(body) <= _SHORT and body.count(b'"data"') > 1
    if twice and [key for _, key, _ in members_of(_document(body))].count("data") > 1:
        raise WrongShape("a page that has data twice")


def _elements(body: bytes) -> list[bytes]:
    """Return the exact text of each element of the page's `data`. Raises `NotJson` or `WrongShape`."""
    body = _document(body)
    try:
        if len(body) <= _SHORT and is_utf8(body):
            found = _RAW_PAGE.decode(body).data
            _check_elements(len(found))
            return [bytes(element) for element in found]
    except WrongShape:
        raise
    except (ValueError, RecursionError):
        pass
    elements = _uncut(body)
    if elements is None:
        raise WrongShape("a page without data")
    if elements[:1] != b"[":
        raise WrongShape("a page whose data is not a list")
    parts = array_elements(elements, LIMITS.elements)
    _check_elements(len(parts))
    return parts


def _uncut(body: bytes) -> bytes | None:
    """Return the exact text of the page's `data`; its elements may be malformed, but nothing outside it."""
    if is_utf8(body):
        with suppress(ValueError, RecursionError):
            return bytes(_UNCUT_PAGE.decode(body).data)
    members = _top_level(body)
    if not all(is_utf8(text) and is_json(text) for key, text in members.items() if key != "data"):
        raise NotJson("what stands beside its data cannot be read")
    return members.get("data")


def _check_elements(count: int) -> None:
    if count > LIMITS.elements:
        raise WrongShape(f"a page of more than {LIMITS.elements:,} elements, where 100 were asked for at most")


def _top_level(text: bytes) -> dict[str, bytes]:
    if text[:1] != b"{" and is_json(text):
        raise WrongShape("JSON that is not an object")
    return object_members(text)
