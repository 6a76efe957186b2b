"""Parse JSON rows into Python values that keep every digit.

whole number → int; number with fraction or exponent, and `-0` → its literal as `msgspec.Raw`; the rest as usual. Of a
key that occurs twice in an object, the last value counts (the raw row keeps both).
"""

import json
import re
from collections.abc import Sequence

import msgspec
from msgspec import Raw

from connector.transform.numbers import LONGEST_INT, MINUS_ZERO, is_number, is_whole

MAX_DEPTH = 3


class JsonText(str):
    """The source text of an array or object that is kept as it was written."""

    __slots__ = ()


Value = None | bool | int | str | Raw | JsonText | list["Value"] | dict[str, "Value"]
Row = dict[str, Value]

_decode = msgspec.json.Decoder(dict, float_hook=Raw).decode
_TOKEN = re.compile(r'[ \t\n\r]*("[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^ \t\n\r{}\[\],:"]+)', re.DOTALL)
_STRING_OR_BRACKET = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_MINUS_ZERO = re.compile(rb"-0(?=[ \t\n\r,}\]])")
_STRING_OR_MINUS_ZERO = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|-0(?=[ \t\n\r,}\]])', re.DOTALL)
_WORDS: dict[str, Value] = {"true": True, "false": False, "null": None}


def may_have_minus_zero(*rows: bytes) -> bool:
    """Return True if msgspec must not decode one of these rows: it reads the whole number `-0` as 0."""
    return _MINUS_ZERO.search(b"\n".join(rows)) is not None  # joined: a tenth of the time of single searches


def without_minus_zero(row: bytes) -> bytes:
    """Return the row with 0 for each number `-0`."""
    return _STRING_OR_MINUS_ZERO.sub(lambda found: b"0" if found.group() == b"-0" else found.group(), row)


def read_rows(rows: Sequence[bytes]) -> list[Row]:
    """Parse every row, fast if msgspec can hold it, and exactly in any case."""
    if may_have_minus_zero(*rows):
        return [_read_row(row) for row in rows]
    try:
        return [_decode(row) for row in rows]
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return [_read_row(row) for row in rows]


def _read_row(row: bytes) -> Row:
    if may_have_minus_zero(row):
        return read_exactly(row)
    try:
        decoded: Row = _decode(row)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return read_exactly(row)
    return decoded


def read_exactly(row: bytes) -> Row:
    """Parse a row that msgspec refuses or changes.

    Such rows have lone surrogates, `-0`, numbers of thousands of digits, or unbounded nesting. Arrays and deep objects
    are returned as their source text, so that depth costs no recursion.
    """
    reader = _Reader(row.decode())
    if reader.lexeme() != "{":
        raise ValueError("not a JSON object")
    return reader.members(1)


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
            return self._container()
        if lexeme[0] == '"':
            text: str = json.loads(lexeme, strict=False)
            return text
        if lexeme in _WORDS:
            return _WORDS[lexeme]
        if not is_number(lexeme):
            raise ValueError(f"not JSON before character {self._at}")
        reads_back = is_whole(lexeme) and len(lexeme) <= LONGEST_INT and lexeme != MINUS_ZERO
        return int(lexeme) if reads_back else Raw(lexeme)

    def _container(self) -> Value:
        start, level = self._at - 1, 1
        while level:
            found = _STRING_OR_BRACKET.search(self._text, self._at)
            if found is None:
                raise ValueError("not JSON: a bracket is left open")
            self._at = found.end()
            level += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found.group(), 0)
        text = self._text[start : self._at]
        empty_object = text[0] == "{" and not text[1:-1].strip()
        return {} if empty_object else JsonText(text)
