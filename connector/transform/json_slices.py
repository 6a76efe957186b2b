"""Slice the elements of a page out of JSON text that a parser refuses.

Splitting considers strings, brackets and commas only, so that one malformed element does not hide its
neighbours; `is_json` then says whether a slice is JSON. Both are iterative: depth costs no stack.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator

SPACE = b" \t\n\r"
_decode_laxly = json.JSONDecoder(strict=False).decode
_QUOTE, _COMMA, _OPENING = ord('"'), ord(","), b"{["
_CLOSING = {ord("{"): ord("}"), ord("["): ord("]")}

_STRUCTURE = re.compile(rb'"(?:[^"\\]*+(?:\\.[^"\\]*+)*+")?|[{}\[\],]', re.DOTALL)
_STRING = rb'"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+"'
_NUMBER = rb"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?"
_GAP = rb"[ \t\n\r]*+"
_KEY = re.compile(_GAP + rb"(" + _STRING + rb")" + _GAP + rb":" + _GAP)
_VALUE = re.compile(
    _GAP
    + rb"(?:(?:" + _STRING + rb"|" + _NUMBER + rb"|true|false|null|\{" + _GAP + rb"\}|\[" + _GAP + rb"\])"
    + rb"|([{\[]))"
)  # fmt: skip
_AFTER = re.compile(_GAP + rb"([,}\]])")


class NotJson(ValueError):
    """The text is not JSON; `cut` if it is truncated."""

    def __init__(self, message: str, *, cut: bool = False) -> None:
        super().__init__(message)
        self.cut = cut


class TooDeep(ValueError):
    """The text may be JSON, but is nested deeper than the given limit."""


def string_value(text: bytes) -> str:
    """Return the value of a JSON string, which may have control characters in it."""
    if b"\\" not in text:
        return text[1:-1].decode()
    value: str = _decode_laxly(text.decode())
    return value


def array_elements(text: bytes, most: int | None = None) -> list[bytes]:
    """Return the exact text of each element of the JSON array `text`; not of all if there are more than `most`."""
    return _parts(text, b"[", most)


def object_members(text: bytes) -> dict[str, bytes]:
    """Return the exact text of each value of the JSON object `text`; of equal keys the last counts."""
    return {key: value for _, key, value in members_of(text)}


def members_of(text: bytes) -> Iterator[tuple[bytes, str, bytes]]:
    """Yield each member of the JSON object `text` as (exact text up to the value, key, exact text of the value)."""
    for part in _parts(text, b"{"):
        key = _KEY.match(part)
        if key is None or key.end() == len(part):
            raise NotJson("an object has a member that is not key and value")
        try:
            yield part[: key.end()], json.loads(key[1].decode()), part[key.end() :]
        except UnicodeDecodeError:
            raise NotJson("a key is not UTF-8 text") from None


def _parts(text: bytes, bracket: bytes, most: int | None = None) -> list[bytes]:
    """Return the texts between the commas of the container in `text`."""
    text = text.strip(SPACE)
    if text[:1] != bracket:
        raise NotJson(f"it does not begin with {bracket.decode()}")
    found: list[bytes] = []
    depth, begin = 0, 1
    for token in _STRUCTURE.finditer(text):
        at = token.start()
        mark = text[at]
        if mark == _QUOTE:
            if token.end() == at + 1:
                break
        elif mark == _COMMA:
            if depth == 1:
                found.append(text[begin:at].strip(SPACE))
                begin = at + 1
                if most is not None and len(found) > most:
                    return found
        elif mark in _OPENING:
            depth += 1
        else:
            depth -= 1
            if depth == 0:
                return _closed(text, begin, at, found)
    raise NotJson("it ends in the middle", cut=True)


def _closed(text: bytes, begin: int, at: int, found: list[bytes]) -> list[bytes]:
    if text[at] != _CLOSING[text[0]] or at + 1 != len(text):
        raise NotJson("brackets do not match, or something follows the end")
    last = text[begin:at].strip(SPACE)
    if last or found:
        found.append(last)
    if b"" in found:
        raise NotJson("a comma has nothing before or after it")
    return found


def is_json(text: bytes, deepest: float = math.inf) -> bool:
    """Return whether `text` is exactly one JSON value (RFC 8259; lone surrogate escapes are legal there).

    Raises TooDeep once more than `deepest` brackets are open.
    """
    open_brackets = bytearray()
    at = 0
    while True:
        value = _VALUE.match(text, at)
        if value is None:
            return False
        at = value.end()
        if value[1]:
            open_brackets += value[1]
            if len(open_brackets) > deepest:
                raise TooDeep
            wants_key = value[1] == b"{"
        else:
            closed = _close(text, at, open_brackets)
            if closed is None or closed == len(text):
                return closed is not None
            at = closed
            wants_key = open_brackets[-1:] == b"{"
        if wants_key:
            key = _KEY.match(text, at)
            if key is None:
                return False
            at = key.end()


def _close(text: bytes, at: int, open_brackets: bytearray) -> int | None:
    """Move from the end of a value past the brackets it closes.

    Return where the next value begins, or the end of the text; None if it is not JSON.
    """
    while open_brackets:
        after = _AFTER.match(text, at)
        if after is None:
            return None
        at = after.end()
        mark = text[at - 1]
        if mark == _COMMA:
            return at if at < len(text) else None
        if mark != _CLOSING[open_brackets.pop()]:
            return None
    return len(text) if not text[at:].strip(SPACE) else None
