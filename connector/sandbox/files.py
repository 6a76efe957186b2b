"""Serve a person's own CSV, JSON or JSON Lines file as rows, with unchanged values.

Cells of a CSV file stay text; rows of a JSON file are served byte for byte, including digits.
"""

from __future__ import annotations

import codecs
import csv
import json
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol

from connector.sandbox.generator import encode

LINE = re.compile(rb"[^\n]*\n|[^\n]+")
SPACE = re.compile(r"[ \t\r\n]*")


class FileError(ValueError):
    """The file can't be served; the message names it and says what is wrong with it."""


class Document(Protocol):
    """A file's rows by number."""

    def __len__(self) -> int: ...

    def text(self, index: int) -> str: ...


@dataclass(frozen=True, slots=True)
class FileRows:
    """The part of a file that one import holds."""

    document: Document
    first: int
    count: int

    def text(self, index: int) -> str:
        return self.document.text(self.first + index)


def read_document(path: Path) -> Document:
    suffix = path.suffix.lower()
    if suffix in (".csv", ".tsv", ".txt"):
        return CsvDocument(path)
    if suffix in (".json", ".jsonl", ".ndjson"):
        return JsonDocument(path)
    raise FileError(f"{path.name}: serves .csv, .tsv, .json, .jsonl and .ndjson files")


def _read_text(path: Path) -> str:
    content = path.read_bytes()
    marked = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    for encoding in ("utf-16",) if marked else ("utf-8-sig", "cp1252"):
        try:
            return content.decode(encoding)
        except UnicodeDecodeError:
            continue
    raise FileError(f"{path.name}: is neither UTF-8, UTF-16 nor Windows-1252 text")


class CsvDocument:
    """A CSV file, kept as bytes with the start of each row; a row is parsed on request."""

    def __init__(self, path: Path) -> None:
        self._content = _read_text(path).encode()
        first_line = self._content.split(b"\n", 1)[0].decode()
        self._delimiter = max(",;\t|", key=first_line.count)
        self._starts = array("Q")
        self._position = 0
        reader = csv.reader(self._lines(), delimiter=self._delimiter)
        try:
            self._header = _distinct(next(reader, []))
            start = self._position
            for cells in reader:
                if cells:
                    self._starts.append(start)
                start = self._position
        except csv.Error as error:
            raise FileError(f"{path.name}: line {reader.line_num}: {error}") from error

    def __len__(self) -> int:
        return len(self._starts)

    def text(self, index: int) -> str:
        start = self._starts[index]
        end = self._starts[index + 1] if index + 1 < len(self._starts) else len(self._content)
        lines = (line.decode() for line in LINE.findall(self._content, start, end))
        cells = next(csv.reader(lines, delimiter=self._delimiter))
        names = self._header
        if len(cells) > len(names):
            surplus = range(len(names) + 1, len(cells) + 1)
            names = _distinct([*names, *(f"column {place}" for place in surplus)])
        blanks = [None] * (len(names) - len(cells))
        return encode(dict(zip(names, [*cells, *blanks], strict=True)))

    def _lines(self) -> Iterator[str]:
        """Yield lines for the csv module, while `_position` counts the bytes read."""
        for match in LINE.finditer(self._content):
            self._position = match.end()
            yield match.group().decode()


def _distinct(names: list[str]) -> list[str]:
    """Return the names made distinct by numbers, because a JSON object keeps one value per key."""
    distinct: dict[str, None] = {}
    for name in names:
        unused, times = name, 1
        while unused in distinct:
            times += 1
            unused = f"{name} ({times})"
        distinct[unused] = None
    return list(distinct)


class JsonDocument:
    """An array of objects, or one object per line, kept as text with the beginning and end of each object."""

    def __init__(self, path: Path) -> None:
        self._name = path.name
        self._text = _read_text(path)
        self._spans = array("Q")
        self._decoder = json.JSONDecoder(parse_constant=self._refuse_constant, parse_float=str, parse_int=str)
        array_start = re.match(r"\s*\[", self._text)
        if array_start:
            self._scan(array_start.end(), separator=",", closing="]")
        else:
            self._scan(0, separator="", closing="")

    def __len__(self) -> int:
        return len(self._spans) // 2

    def text(self, index: int) -> str:
        return self._text[self._spans[2 * index] : self._spans[2 * index + 1]]

    def _scan(self, position: int, separator: str, closing: str) -> None:
        position = self._skip(position)
        while not self._at_end(position, closing):
            try:
                value, end = self._decoder.raw_decode(self._text, position)
            except ValueError as error:
                raise FileError(f"{self._name}: row {len(self) + 1}: {error}") from error
            if not isinstance(value, dict):
                raise FileError(f"{self._name}: row {len(self) + 1} is not a JSON object")
            self._spans.extend((position, end))
            position = self._skip(end)
            if self._text.startswith(separator, position) and separator:
                position = self._skip(position + 1)

    def _at_end(self, position: int, closing: str) -> bool:
        if closing:
            return self._text.startswith(closing, position)
        return position == len(self._text)

    def _skip(self, position: int) -> int:
        match = SPACE.match(self._text, position)
        return match.end() if match else position

    def _refuse_constant(self, name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")
