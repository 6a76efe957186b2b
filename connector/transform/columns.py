"""Convert the values of one field in one batch to its Arrow column, and to its variants if some do not fit.

Nearly every column has values of one kind that all fit. Such a column is converted as a whole, others value by value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw

from connector.transform.casting import Stored, double_beside_bigint, fit_for, text_of
from connector.transform.json_rows import JsonText, Value
from connector.transform.numbers import FEW_CHARACTERS, exact_double, is_whole
from connector.transform.schema import Kind, arrow_type, parse_type
from connector.transform.written import Hint

_EXACT_WHOLE = 2**53
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class FieldCount:
    """The values of one field in one batch that are not null, and how many of them are not of the column's type.

    Those are in a variant, except the `kept` ones, because a text column takes every scalar; they are in `kept_rows`.
    """

    values: int
    conflicts: int
    kept_rows: tuple[int, ...] = ()

    @property
    def kept(self) -> int:
        return len(self.kept_rows)


@dataclass(frozen=True, slots=True)
class Placed:
    base: pa.Array[Any]
    text: pa.Array[Any] | None
    double: pa.Array[Any] | None
    count: FieldCount


def place(
    cells: Sequence[Value], kinds: frozenset[type], column_type: str, *, hint: Hint | None, nul_safe: bool
) -> Placed:
    """Convert the cells of one field to its column and its variants.

    `kinds` are the types of the cells without null; with a `hint` of the column's type, strings are parsed as that
    type.
    """
    whole = _whole_column(cells, kinds, parse_type(column_type).kind, nul_safe)
    if whole is not None:
        return Placed(whole, None, None, FieldCount(len(whole) - whole.null_count, 0))
    return _one_by_one(cells, column_type, hint, nul_safe)


def _whole_column(cells: Sequence[Value], kinds: frozenset[type], kind: Kind, nul_safe: bool) -> pa.Array[Any] | None:
    """Convert the whole column at once; return None if a value may not fit."""
    try:
        if kind is Kind.TEXT and kinds == {str}:
            return _unless_found(pa.array(cells, pa.string()), "\0" if nul_safe else None)
        if kind is Kind.BIGINT and kinds == {int}:
            return pa.array(cells, pa.int64())
        if kind is Kind.BOOL and kinds == {bool}:
            return pa.array(cells, pa.bool_())
        if kind is Kind.DOUBLE and kinds <= {Raw, int}:
            return _doubles(cells, mixed=int in kinds)
        if kind is Kind.JSON and JsonText not in kinds:
            texts = [None if cell is None else _encode(cell) for cell in cells]
            return _unless_found(pa.array(texts, pa.string()), "\\u0000" if nul_safe else None)
    except (UnicodeEncodeError, OverflowError, pa.ArrowInvalid):
        return None
    return None


def _unless_found(texts: pa.Array[Any], pattern: str | None) -> pa.Array[Any] | None:
    if pattern is not None and pc.any(pc.match_substring(texts, pattern)).as_py():
        return None
    return texts


def _doubles(cells: Sequence[Value], *, mixed: bool) -> pa.Array[Any] | None:
    """Convert number literals to doubles; return None unless each double is exactly the number of its literal.

    For a literal of few digits this is always so. Arrow writes a double with the fewest digits that give the same
    double, so an equal text proves it for most others; the rest is compared as numbers.
    """
    if mixed and any(type(cell) is int and not -_EXACT_WHOLE <= cell <= _EXACT_WHOLE for cell in cells):
        return None
    numeric = cast("Sequence[Raw | int | None]", cells)
    pieces = [b"" if cell is None else b"%d" % cell if isinstance(cell, int) else cell for cell in numeric]
    # Splitting one text in Arrow takes half the time of a Python object for each literal.
    joined = b"\n".join(pieces)
    split: Any = pc.split_pattern(pa.array([joined], pa.string()), "\n")
    texts: Any = pc.if_else(pc.equal(split.values, pa.scalar("")), pa.scalar(None, pa.string()), split.values)
    numbers: pa.Array[Any] = texts.cast(pa.float64())
    if pc.max(pc.binary_length(texts)).as_py() <= FEW_CHARACTERS and b"e" not in joined and b"E" not in joined:
        return numbers
    same = pc.equal(numbers.cast(pa.string()), texts)
    for literal in texts.filter(pc.invert(same)).to_pylist():
        if exact_double(literal) is None or is_whole(literal):
            return None
    return numbers


def _one_by_one(cells: Sequence[Value], column_type: str, hint: Hint | None, nul_safe: bool) -> Placed:
    parsed = parse_type(column_type)
    fit = fit_for(parsed, hint=hint, nul_safe=nul_safe)
    keeps_blank = parsed.kind in (Kind.TEXT, Kind.JSON)
    base: list[Stored | None] = [None] * len(cells)
    texts: list[str | None] = [None] * len(cells)
    doubles: list[float | None] = [None] * len(cells)
    is_text = parsed.kind is Kind.TEXT and hint is None
    values = conflicts = 0
    kept: list[int] = []
    for row, cell in enumerate(cells):
        if cell is None or (cell == "" and not keeps_blank):
            continue
        values += 1
        stored = fit(cell)
        if stored is not None:
            base[row] = stored
            if is_text and type(cell) is not str:
                kept.append(row)
            continue
        conflicts += 1
        fraction = double_beside_bigint(cell) if parsed.kind is Kind.BIGINT else None
        if fraction is None:
            texts[row] = text_of(cell, nul_safe=nul_safe)
        else:
            doubles[row] = fraction
    return Placed(
        pa.array(base, arrow_type(column_type)),
        _variant(texts, pa.string()),
        _variant(doubles, pa.float64()),
        FieldCount(values, conflicts + len(kept), tuple(kept)),
    )


def _variant(cells: list[str | None] | list[float | None], arrow: pa.DataType) -> pa.Array[Any] | None:
    column = pa.array(cells, arrow)
    return None if column.null_count == len(column) else column
