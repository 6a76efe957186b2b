"""Keep the rows of one import: a source that may be computed, and the edits since."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from connector.sandbox.seeding import SlugRange

TIE_ROWS = 50
UPLOAD_US = 800_000


class RowSource(Protocol):
    """Rows as they were uploaded, by position; they may be computed, read from a file, or stored."""

    @property
    def count(self) -> int: ...

    def text(self, index: int) -> str: ...


@dataclass(frozen=True, slots=True)
class KeptRows:
    """Rows held in memory, each a JSON text that is served byte for byte."""

    texts: Sequence[str]

    @property
    def count(self) -> int:
        return len(self.texts)

    def text(self, index: int) -> str:
        return self.texts[index]


@dataclass(frozen=True, slots=True)
class TouchedRow:
    """A row that was appended or edited. `whole`: `text` is the entire record, legal or not."""

    text: str
    created_at: datetime
    updated_at: datetime
    serial: int
    whole: bool = False


def row_text(row: Mapping[str, Any] | str) -> str:
    """Return a row as JSON text; return a text unchanged."""
    if isinstance(row, str):
        return row
    text = json.dumps(row, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # lone surrogates cannot be encoded in UTF-8, but their escapes can
        return json.dumps(row, separators=(",", ":"), allow_nan=False)
    return text


class ImportRows:
    """Rows by position. A position is used once and never again; it is also the record's `sort`."""

    def __init__(self, source: RowSource, slugs: SlugRange, created_at: datetime) -> None:
        self.source = source
        self.slugs = slugs
        self.created_at = created_at
        self.version = 0
        self.touched: dict[int, TouchedRow] = {}
        self._gone: list[int] = []
        self._moved_in: dict[int, str] = {}  # position → slug of a record that was in another import before
        self._next_index = source.count
        self._order: tuple[int, str, Callable[[int], int]] | None = None

    def __len__(self) -> int:
        return self._next_index - len(self._gone)

    def __contains__(self, index: object) -> bool:
        if not isinstance(index, int) or not 0 <= index < self._next_index:
            return False
        place = bisect_left(self._gone, index)
        return place == len(self._gone) or self._gone[place] != index

    def index_at(self, rank: int) -> int:
        """Return the position of the live row that has `rank` live rows before it."""
        before = bisect_right(range(len(self._gone)), rank, key=lambda place: self._gone[place] - place)
        return rank + before

    def slug(self, index: int) -> str:
        """Return the slug of the record at a position; a record that moved here keeps its own."""
        return self._moved_in.get(index) or self.slugs.slug(index)

    def index_of(self, record_slug: str) -> int:
        moved = (index for index, slug in self._moved_in.items() if slug == record_slug)
        index = next(moved, self.slugs.index(record_slug))
        if index is None or index not in self:
            raise KeyError(record_slug)
        return index

    def __iter__(self) -> Iterator[int]:
        return map(self.index_at, range(len(self)))

    def holes(self) -> list[int]:
        """Return the positions within the source that no longer show the source's row."""
        gone = self._gone[: bisect_left(self._gone, self.source.count)]
        return sorted([*gone, *(index for index in self.touched if index < self.source.count)])

    def cached_order(self, name: str, build: Callable[[], Callable[[int], int]]) -> Callable[[int], int]:
        """Return the order last requested, until the rows change: pages of one list are requested in turn."""
        if self._order is None or self._order[:2] != (self.version, name):
            self._order = (self.version, name, build())
        return self._order[2]

    def times(self, index: int) -> tuple[datetime, datetime]:
        row = self.touched.get(index)
        if row is None:
            stamp = self.uploaded_at(index)
            return stamp, stamp
        return row.created_at, row.updated_at

    def uploaded_at(self, index: int) -> datetime:
        """Return when a row was uploaded: uploads arrive in batches of fifty, which share an instant, in order."""
        offset_us = (index // TIE_ROWS) * TIE_ROWS * UPLOAD_US // max(self.source.count, 1)
        return self.created_at + timedelta(microseconds=offset_us - offset_us % 1000)

    def append(self, text: str, now: datetime, *, whole: bool = False) -> int:
        index = self._next_index
        self._next_index += 1
        self._touch(index, text, now, now, whole=whole)
        return index

    def move_in(self, slug: str, text: str, created_at: datetime, updated_at: datetime) -> None:
        """Append a record that was in another import."""
        index = self._next_index
        self._next_index += 1
        self._moved_in[index] = slug
        self._touch(index, text, created_at, updated_at, whole=False)

    def edit(self, index: int, text: str, now: datetime) -> None:
        self._touch(index, text, self.times(index)[0], now, whole=False)

    def delete(self, index: int) -> None:
        self.touched.pop(index, None)
        self._moved_in.pop(index, None)
        insort(self._gone, index)
        self.version += 1

    def _touch(self, index: int, text: str, created: datetime, updated: datetime, *, whole: bool) -> None:
        self.version += 1
        self.touched[index] = TouchedRow(text, created, updated, self.version, whole)
