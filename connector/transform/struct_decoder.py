"""Decode rows whose keys are all known into one structure per row, which takes half the time of a dict per row.

A shape is built from the keys of a table. If a row has another shape (an unknown key, a value instead of members, or
members instead of a value), the whole batch is decoded in the general way, with the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from connector.transform.json_rows import MAX_DEPTH, Value
from connector.transform.schema import Keys

MOST_LEAVES = 256  # wider tables tend to be sparse, and a structure has a slot for each key

_NULL = type(None)
_Tree = dict[str, "_Tree"]


@dataclass(frozen=True, slots=True)
class Leaf:
    """The values of all rows at one path; `kinds` are the types of the cells without null."""

    keys: Keys
    cells: Sequence[Value]
    kinds: frozenset[type]


@dataclass(frozen=True, slots=True)
class _Objects:
    """The members of an object as a structure; `inner` are the members that have members themselves."""

    kind: type[msgspec.Struct]
    names: tuple[str, ...]
    inner: tuple[_Objects | None, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder of rows of exactly these keys, any of which may be missing."""

    _top: _Objects
    _decoder: msgspec.json.Decoder[Any]

    def read(self, rows: Iterable[bytes]) -> list[Leaf] | None:
        """Return one leaf per path that has a value other than null, or None if a row is of another shape."""
        decode = self._decoder.decode
        try:
            return list(_leaves(self._top, [decode(row) for row in rows], ()))
        except (ValueError, RecursionError, msgspec.MsgspecError):
            return None


@lru_cache(maxsize=256)
def shape_of(paths: tuple[Keys, ...]) -> Shape | None:
    """Return the shape of a table with these fields; None if it is too wide or has a name msgspec does not take."""
    if not 0 < len(paths) <= MOST_LEAVES:
        return None
    tree: _Tree = {}
    for keys in paths:
        level = tree
        for name in keys:
            level = level.setdefault(name, {})
    try:
        top = _objects(tree, frozenset(paths), ())
    except ValueError:  # a name with a quote, a backslash or a control character in it
        return None
    return Shape(top, msgspec.json.Decoder(top.kind, float_hook=Raw))


def _objects(tree: _Tree, values: frozenset[Keys], prefix: Keys) -> _Objects:
    inner = tuple(_objects(below, values, (*prefix, name)) if below else None for name, below in tree.items())
    fields: list[tuple[str, Any, Any]] = []
    for n, (name, below) in enumerate(zip(tree, inner, strict=True)):
        if below is None:
            fields.append((f"f{n}", Any, UNSET if prefix else None))
        elif (*prefix, name) in values:
            fields.append((f"f{n}", below.kind | None, None))
        else:  # null would be its first value and make it a field
            fields.append((f"f{n}", below.kind | UnsetType, UNSET))
    spelled = {f"f{n}": name for n, name in enumerate(tree)}
    kind = msgspec.defstruct("Objects", fields, rename=spelled, forbid_unknown_fields=True, gc=False)
    return _Objects(kind, tuple(tree), inner)


def _leaves(level: _Objects, objects: Sequence[Any], prefix: Keys) -> Iterator[Leaf]:
    for n, (name, below) in enumerate(zip(level.names, level.inner, strict=True)):
        keys = (*prefix, name)
        cells = list(map(attrgetter(f"f{n}"), objects))
        if below is not None:
            empty = below.kind()
            if empty in cells:
                raise ValueError("{} is a value and not the absence of members")
            yield from _leaves(below, [cell if type(cell) is below.kind else empty for cell in cells], keys)
            continue
        kinds = frozenset(map(type, cells)) - {_NULL}
        if UnsetType in kinds:
            cells = [None if cell is UNSET else cell for cell in cells]
            kinds -= {UnsetType}
        if dict in kinds and len(keys) < MAX_DEPTH:
            raise ValueError("members where a value was")
        if kinds:
            yield Leaf(keys, cells, kinds)
