"""Parse JSON rows into Python values that keep every digit.

whole number → int; number with fraction or exponent, and `-0` → its literal as `msgspec.Raw`; the rest as usual. Of a
key that occurs twice in an object, the last value counts (the raw row keeps both).
"""

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from connector.transform.numbers import LONGEST_INT, MINUS_ZERO, is_number, is_whole

MAX_DEPTH = 3


class JsonText(str):
    """An array or object as JSON text, in the form in which msgspec writes it."""

    __slots__ = ()


Value = None | bool | int | str | Raw | JsonText | list["Value"] | dict[str, "Value"]
Row = dict[str, Value]

_decode = msgspec.json.Decoder(dict, float_hook=Raw).decode
_TOKEN = re.compile(r'[ \t\n\r]*("[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^ \t\n\r{}\[\],:"]+)', re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")
_MINUS_ZERO = re.compile(rb"-0(?=[ \t\n\r,}\]])")
_STRING_OR_MINUS_ZERO = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|-0(?=[ \t\n\r,}\]])', re.DOTALL)
_WORDS: dict[str, Value] = {"true": True, "false": False, "null": None}


def has_minus_zero(*rows: bytes) -> bool:
    """Return True if msgspec must not decode one of these rows: it reads the whole number `-0` as 0."""
    joined = b"\n".join(rows)  # a tenth of the time of single searches
    if _MINUS_ZERO.search(joined) is None:
        return False
    return any(found.group() == b"-0" for found in _STRING_OR_MINUS_ZERO.finditer(joined))


def without_minus_zero(row: bytes) -> bytes:
    """Return the row with 0 for each number `-0`."""
    return _STRING_OR_MINUS_ZERO.sub(lambda found: b"0" if found.group() == b"-0" else found.group(), row)


def read_rows(rows: Sequence[bytes]) -> list[Row]:
    """Parse every row, fast if msgspec can hold it, and exactly in any case."""
    if has_minus_zero(*rows):
        return [_read_row(row) for row in rows]
    try:
        return [_decode(row) for row in rows]
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return [_read_row(row) for row in rows]


def _read_row(row: bytes) -> Row:
    if has_minus_zero(row):
        return read_exactly(row)
    try:
        decoded: Row = _decode(row)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return read_exactly(row)
    return decoded


def read_exactly(row: bytes) -> Row:
    """Parse a row that msgspec refuses or changes.

    Such rows have lone surrogates, `-0`, numbers of thousands of digits, or unbounded nesting. Arrays and deep objects
    are returned as text (`JsonText`), so that depth costs no recursion.
    """
    reader = _Reader(row.decode())
    if reader.lexeme() != "{":
        raise ValueError("not a JSON object")
    return reader.members(1)


def was_kept_as_received(row: bytes) -> bool:
    """Return whether an earlier version kept the arrays and deep objects of the row as they were written."""
    try:
        _decode(row)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return True
    return _MINUS_ZERO.search(row) is not None


def normal_json(text: str) -> str:
    """Return an array or object in the form of `JsonText`. Raises ValueError if the text is neither."""
    reader = _Reader(text)
    if reader.lexeme() not in ("{", "["):
        raise ValueError("neither a JSON array nor an object")
    return reader.container()


class _Reader:
    __slots__ = ("_at", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def lexeme(self) -> str:
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            raise ValueError(f"not JSON at character {self._at}")
        self._at = found.end()
        return found.group(1)

    def members(self, depth: int) -> Row:
        read: Row = {}
        lexeme = self.lexeme()
        while lexeme != "}":
            if lexeme == ",":
                lexeme = self.lexeme()
            key: str = json.loads(lexeme, strict=False)
            if self.lexeme() != ":":
                raise ValueError(f"not JSON at character {self._at}")
            read[key] = self._value(depth)
            lexeme = self.lexeme()
        return read

    def _value(self, depth: int) -> Value:
        lexeme = self.lexeme()
        if lexeme == "{" and depth < MAX_DEPTH:
            return self.members(depth + 1)
        if lexeme in "{[":
            text = self.container()
            return {} if text == "{}" else JsonText(text)
        if lexeme[0] == '"':
            string: str = json.loads(lexeme, strict=False)
            return string
        if lexeme in _WORDS:
            return _WORDS[lexeme]
        if not is_number(lexeme):
            raise ValueError(f"not JSON before character {self._at}")
        reads_back = is_whole(lexeme) and len(lexeme) <= LONGEST_INT and lexeme != MINUS_ZERO
        return int(lexeme) if reads_back else Raw(lexeme)

    def container(self) -> str:
        """Return the array or object that begins with the last lexeme.

        Invariant: its text is the one that msgspec would write for it, so that a value looks the same in every row.
        """
        self._at -= 1
        holder: list[Any] = []
        containers: list[list[Any] | dict[str, Any]] = [holder]
        while len(containers) > 1 or not holder:
            lexeme, into = self.lexeme(), containers[-1]
            if lexeme == ",":
                continue
            if lexeme == ("}" if type(into) is dict else "]"):
                containers.pop()
                continue
            key = ""
            if type(into) is dict:
                key, colon, lexeme = _written_string(lexeme), self.lexeme(), self.lexeme()
                if colon != ":":
                    raise ValueError(f"not JSON at character {self._at}")
            value = self._written_value(lexeme)
            if isinstance(into, dict):
                into[key] = value
            else:
                into.append(value)
            if not isinstance(value, str):
                containers.append(value)
        return _written(holder[0])

    def _written_value(self, lexeme: str) -> Any:
        if lexeme == "{":
            return {}
        if lexeme == "[":
            return []
        if lexeme[0] == '"':
            return _written_string(lexeme)
        if lexeme not in _WORDS and not is_number(lexeme):
            raise ValueError(f"not JSON before character {self._at}")
        return lexeme


def _written_string(lexeme: str) -> str:
    """Return a string as msgspec writes it, and a lone surrogate, which it refuses, as an escape."""
    read = json.loads(lexeme, strict=False)
    if not isinstance(read, str):
        raise ValueError("not JSON: a key is no string")
    written = json.dumps(read, ensure_ascii=False)
    return _SURROGATE.sub(lambda found: f"\\u{ord(found.group()):04x}", written)


def _written(container: list[Any] | dict[str, Any]) -> str:
    """Return the JSON of nested containers whose scalars and keys are written already."""
    pieces: list[str] = []
    waiting: list[Any] = [container]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            pieces.append(each)
            continue
        opening, closing = "{}" if isinstance(each, dict) else "[]"
        inner: list[Any] = [opening]
        for key, value in each.items() if isinstance(each, dict) else ((None, value) for value in each):
            inner += ["," * (len(inner) > 1), "" if key is None else f"{key}:", value]
        waiting.append(closing)
        waiting.extend(reversed(inner))
    return "".join(pieces)
