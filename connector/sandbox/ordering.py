"""Order lists in all supported ways. Any page of any order costs about the same for any number of rows."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from connector.sandbox.rows import ImportRows
from connector.sandbox.seeding import Scatter, number, share
from connector.sandbox.switches import Order

SHUFFLE_ROWS = 1000
SortKey = tuple[Any, int]


class Ranks:
    """Live positions of an import in one order: `at(rank)` for any rank below `len`."""

    def __init__(self, count: int, at: Callable[[int], int]) -> None:
        self._count = count
        self.at = at

    def __len__(self) -> int:
        return self._count

    def window(self, start: int, size: int) -> list[int]:
        return [self.at(rank) for rank in range(start, min(start + size, self._count))]


def shuffled(count: int, *seed: object) -> Callable[[int], int]:
    """Return a new order for each request: a real shuffle of small lists, a computed permutation of large ones."""
    if count <= SHUFFLE_ROWS:
        places = list(range(count))
        Random(number(*seed)).shuffle(places)
        return places.__getitem__
    return Scatter(count, *seed).at


def record_ranks(rows: ImportRows, order: Order, seed: object, request_number: int) -> Ranks:
    count = len(rows)
    if order == "insertion":
        return Ranks(count, rows.index_at)
    if order == "random":
        place = shuffled(count, seed, request_number)
        return Ranks(count, lambda rank: rows.index_at(place(rank)))
    if order == "arbitrary":
        return Ranks(count, rows.cached_order("arbitrary", lambda: _heap_order(rows, seed)))
    updated = order.startswith("updated")
    by_time = rows.cached_order(order[:7], lambda: _time_order(rows, updated=updated))
    if order.endswith("desc"):
        return Ranks(count, lambda rank: by_time(count - 1 - rank))
    return Ranks(count, by_time)


def _time_order(rows: ImportRows, *, updated: bool) -> Callable[[int], int]:
    """Return the order by time: unedited rows are already in this order, edited ones are merged in."""
    touched = [((row.updated_at if updated else row.created_at, index), index) for index, row in rows.touched.items()]
    return _merged(rows.source.count, rows.holes(), lambda index: (rows.uploaded_at(index), index), touched)


def _heap_order(rows: ImportRows, seed: object) -> Callable[[int], int]:
    """Return the order of a database heap: arbitrary, stable until something changes; an edited row moves."""
    count = rows.source.count
    scatter = Scatter(count, seed)
    holes = sorted(map(scatter.rank, rows.holes()))
    touched = [((share(seed, index, row.serial), index), count + index) for index, row in rows.touched.items()]
    merged = _merged(count, holes, lambda rank: (rank / count, -1), touched)

    def at(rank: int) -> int:
        place = merged(rank)
        return place - count if place >= count else scatter.at(place)

    return at


def _merged(
    count: int, holes: Sequence[int], key: Callable[[int], SortKey], extra: list[tuple[SortKey, int]]
) -> Callable[[int], int]:
    """Return a function from rank to value: range(count) without its holes, merged with a few sorted extras.

    `key` keeps the range in order.
    """
    extra.sort()
    left = count - len(holes)

    def present(rank: int) -> int:
        return rank + bisect_right(range(len(holes)), rank, key=lambda place: holes[place] - place)

    places = [
        number_before + bisect_left(range(left), sort_key, key=lambda rank: key(present(rank)))
        for number_before, (sort_key, _) in enumerate(extra)
    ]

    def at(rank: int) -> int:
        place = bisect_left(places, rank)
        if place < len(places) and places[place] == rank:
            return extra[place][1]
        return present(rank - place)

    return at
