"""Collect the values of each row that have no column of their own, as one JSON object with the row's own keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from connector.transform.casting import json_text
from connector.transform.json_rows import MAX_DEPTH, Row, Value
from connector.transform.schema import Keys, TableSchema


class Overflow:
    """The rests of a number of rows; objects above the last level of keys stay objects in them."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._overflowed: list[Row] = []

    def split(self, objects: Sequence[Row], schema: TableSchema) -> list[Row]:
        """Return the objects without the fields that get no column; the rests keep those."""
        both = [_split(members, (), schema) for members in objects]
        self._overflowed = [rest for _, rest in both]
        return [kept for kept, _ in both]

    def put(self, row: int, keys: Keys, value: Value) -> None:
        if not self._overflowed:
            self._overflowed = [{} for _ in range(self._rows)]
        members: Any = self._overflowed[row]
        for key in keys[:-1]:
            members = members.setdefault(key, {})
        members[keys[-1]] = value

    def column(self, *, nul_safe: bool) -> pa.Array[Any] | None:
        """Return the rests as JSON text, null for a row without rest; None if no row has one."""
        if not any(self._overflowed):
            return None
        return pa.array([_text(rest, 1, nul_safe) if rest else None for rest in self._overflowed], pa.string())


def _split(members: Row, prefix: Keys, schema: TableSchema) -> tuple[Row, Row]:
    kept: Row = {}
    rest: Row = {}
    for name, value in members.items():
        keys = (*prefix, name)
        if type(value) is dict and value and len(keys) < MAX_DEPTH:
            inner, outer = _split(value, keys, schema)
            if inner:
                kept[name] = inner
            if outer:
                rest[name] = outer
        elif schema.admits(keys):
            kept[name] = value
        else:
            rest[name] = value
    return kept, rest


def _text(members: Row, depth: int, nul_safe: bool) -> str:
    written = (
        f"{json_text(name, nul_safe=nul_safe)}:"
        + (
            _text(value, depth + 1, nul_safe)
            if type(value) is dict and depth < MAX_DEPTH
            else json_text(value, nul_safe=nul_safe)
        )
        for name, value in members.items()
    )
    return "{" + ",".join(written) + "}"
