"""Check that a typed row has every value of its record, without using the connector's code."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from decimal import Decimal
from typing import Any

from tests.simulation.hinting import is_read_as

MAX_DEPTH = 3


class Literal(str):
    """A number with a fraction or exponent, or `-0`, as it is written."""

    __slots__ = ()


def parse(text: str) -> Any:
    return json.loads(
        text, parse_float=Literal, parse_int=lambda number: Literal(number) if number == "-0" else int(number)
    )


def leaves(value: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, member in value.items():
        path = (*above, key)
        if isinstance(member, dict) and member and len(path) < MAX_DEPTH:
            yield from leaves(member, path)
        else:
            yield path, member


def stored(row: Mapping[str, Any], field: Mapping[str, Any]) -> tuple[bool, bool]:
    """(whether there is a value, whether it is in a variant)."""
    column = field["column_name"]
    base = row.get(column) is not None
    variant = any(row.get(column + suffix) is not None for suffix in ("__v_text", "__v_double"))
    return base or variant, variant


def gives_back(row: Mapping[str, Any], field: Mapping[str, Any], value: Any, hints: Collection[str] = ()) -> bool:
    """Return whether a row has a value in the column of its field or in a variant; `hints` are all it ever had."""
    column, kind = field["column_name"], field["data_type"]
    base, text, double = row.get(column), row.get(f"{column}__v_text"), row.get(f"{column}__v_double")
    there = [cell for cell in (base, text, double) if cell is not None]
    if value is None or (type(value) is str and value == "" and kind not in ("text", "json")):
        return not there
    if len(there) != 1:
        return False
    if double is not None:
        return _is_number(value) and _same_number(double, value)
    if text is not None:
        return bool(text == value) if type(value) is str else same_json(text, value)
    if kind == "json":
        return same_json(base, value)
    if kind == "text" and is_scalar(value):
        return bool(base == written(value))
    if type(value) is str and kind != "text":
        return is_read_as(value, base, kind, hints)
    if kind == "double":
        return _is_number(value) and _same_number(base, value)
    if kind.startswith("decimal"):
        return _is_number(value) and bool(base == Decimal(value))
    return type(base) is type(value) and bool(base == value)


def is_scalar(value: Any) -> bool:
    """Return whether it is a number or a boolean."""
    return isinstance(value, Literal | bool | int)


def written(value: Any) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


def at(rest: Any, path: tuple[str, ...]) -> tuple[bool, Any]:
    """(whether the object has something at this path, what it is)."""
    for key in path:
        if not isinstance(rest, dict) or key not in rest:
            return False, None
        rest = rest[key]
    return True, rest


def same(one: Any, other: Any) -> bool:
    return bool(_plain(one) == _plain(other))


def _is_number(value: Any) -> bool:
    return isinstance(value, Literal) or type(value) is int


def _same_number(double: Any, value: Any) -> bool:
    """Return whether a double is this number: a fraction by its shortest text, a whole number exactly.

    A zero may lose its sign, except in `data`.
    """
    return Decimal(double if type(value) is int else repr(double)) == Decimal(value)


def same_json(text: Any, value: Any) -> bool:
    """Return whether the JSON text represents this value with the same digits."""
    try:
        return bool(_plain(parse(text)) == _plain(value))
    except ValueError:
        return False


def _plain(value: Any) -> Any:
    """Return a value that compares types and digits: 1, 1.0 and true differ."""
    if isinstance(value, dict):
        return {key: _plain(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_plain(member) for member in value]
    return (type(value).__name__, value)
