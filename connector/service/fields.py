"""Read the members of one element of a page, an import or a record, and say which of them cannot be used, and why."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from connector.service.limits import LIMITS
from connector.transform.json_slices import TooDeep, is_json, object_members
from connector.transform.numbers import INT64_MAX, INT64_MIN

BRACE = ord("{")
LONGEST_KEY = 2_000  # bytes of a slug: PostgreSQL has an index on it, which accepts up to 2,704
_UNUSUAL_TIME = re.compile(r"(\d{4}-?\d\d-?\d\d|\d{4}-?W\d\d-?\d)([ Tt][0-9:.,]+ ?([Zz]|[+-][0-9:]+)?)?", re.ASCII)
_PLAIN_TEXT = re.compile(rb'"([ !#-\[\]-~]*)"')
_PLAIN_NUMBER = re.compile(rb"0|[1-9][0-9]{0,17}")
_RAW_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])

_T = TypeVar("_T")


class Refused(ValueError):
    """An element cannot be used; the message says why."""


def parse_instant(text: str) -> datetime:
    """Return an ISO 8601 date-time as an instant in UTC; no offset means UTC, digits beyond microseconds are dropped.

    Raises ValueError or OverflowError.
    """
    if text[10:11] != "T" or text[-1:] == "z":
        if not _UNUSUAL_TIME.fullmatch(text):
            raise ValueError("not ISO 8601")
        text = text.upper()
    found = datetime.fromisoformat(text)
    zone = found.tzinfo
    if zone is UTC:
        return found
    return found.replace(tzinfo=UTC) if zone is None else found.astimezone(UTC)


def is_naive(text: str) -> bool:
    """Return whether an ISO 8601 date-time has no offset."""
    time = text[10:]  # after the date; even with a short form of the date, only an offset has `+` or `-` there
    return time[-1:] not in ("Z", "z") and "+" not in time and "-" not in time


def members_in(text: bytes, what: str) -> Mapping[str, bytes]:
    """Return name → text of the members of an object. Raises `Refused`, as all below, with `what` as its subject."""
    if not is_utf8(text):
        raise Refused(f"{what} is not UTF-8 text")
    try:
        return {key: bytes(value) for key, value in _RAW_MEMBERS.decode(text).items()}
    except (ValueError, RecursionError):
        pass
    try:
        if not is_json(text, LIMITS.nesting):
            raise Refused(f"{what} is not JSON")
    except TooDeep:
        raise Refused(f"{what} is nested deeper than {LIMITS.nesting:,} levels") from None
    if text[0] != BRACE:
        raise Refused(f"{what} is not an object")
    return object_members(text)


def key_in(members: Mapping[str, bytes]) -> str:
    """Return the slug of a record or an import. Raises `Refused` if it is too long for some destination's index."""
    slug = slug_in(members)
    if len(slug.encode()) > LONGEST_KEY:
        raise Refused(f"slug is longer than {LONGEST_KEY:,} bytes")
    return slug


def slug_in(members: Mapping[str, bytes], field: str = "slug") -> str:
    slug = text_in(members, "slug", field)
    if slug is None:
        raise Refused(f"{field} is missing")
    if not slug:
        raise Refused(f"{field} is empty")
    return slug


def text_in(members: Mapping[str, bytes], key: str, field: str | None = None) -> str | None:
    found = parse_leniently(members.get(key, b"null"))
    if found is None:
        return None
    if not isinstance(found, str):
        raise Refused(f"{field or key} is not a string")
    if not is_encodable(found):
        raise Refused(f"{field or key} holds half a surrogate pair")
    if "\0" in found:  # some destinations cannot store it, and a key has to be the same in all of them
        raise Refused(f"{field or key} holds a NUL character")
    return found


def integer_in(members: Mapping[str, bytes], key: str) -> int | None:
    found = parse_leniently(members.get(key, b"null"))
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int | float) or found != found // 1:
        raise Refused(f"{key} is not an integer")
    if not INT64_MIN <= found <= INT64_MAX:
        raise Refused(f"{key} does not fit into 64 bits")
    return int(found)


def instant_in(members: Mapping[str, bytes], key: str) -> datetime | None:
    found = parse_leniently(members.get(key, b"null"))
    if found is None:
        return None
    try:
        if isinstance(found, str):
            return parse_instant(found)
    except (ValueError, OverflowError):
        pass
    raise Refused(f"{key} is not a date-time")


def required(value: _T | None, field: str) -> _T:
    if value is None:
        raise Refused(f"{field} is missing")
    return value


def parse_leniently(text: bytes) -> Any:
    """Parse a value as leniently as the standard library; return the text itself if that fails too."""
    if plain := _PLAIN_TEXT.fullmatch(text):
        return plain[1].decode()
    if _PLAIN_NUMBER.fullmatch(text):
        return int(text)
    try:
        return json.loads(text.decode())
    except (ValueError, RecursionError):
        return text


def is_utf8(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def is_encodable(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)
