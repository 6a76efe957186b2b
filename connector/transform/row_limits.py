"""Decide, before anything is written, whether rows fit into a table of the destination.

A row in PostgreSQL has to fit into one page of 8 kB. Long texts are stored elsewhere and leave a pointer; numbers,
times and short texts are not, so a thousand of them in one row are too many, whatever the number of columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from connector.transform.schema import TableSchema

_FIXED_BYTES = 8  # a number or a time
_POINTER_BYTES = 24  # the longest text that is stored in its row


@dataclass(frozen=True, slots=True)
class Limits:
    """`system_columns` and `system_bytes` are those of each typed row without the columns of its fields."""

    destination: str
    columns: int
    row_bytes: int
    system_columns: int = 7
    system_bytes: int = 300

    def refusal(self, schema: TableSchema, batches: Iterable[Mapping[str, pa.Array[Any]]]) -> str | None:
        """Return why rows of this schema cannot be stored, or None if they can."""
        columns = {*schema.physical, *(name for known in schema.fields.values() for name in known.columns())}
        count = len(columns) + (0 if schema.physical else self.system_columns)
        if count > self.columns:
            return f"{schema.table} would have {count} columns, and {self.destination} allows {self.columns}"
        room = self.row_bytes - self.system_bytes - count // 8
        widest = max((_widest(batch, room) for batch in batches), default=0)
        if widest > room:
            return (
                f"{schema.table} would have rows of more than {self.row_bytes} bytes, which {self.destination} refuses"
            )
        return None


LIMITS: Mapping[str, Limits] = {
    "postgres": Limits("PostgreSQL", columns=1600, row_bytes=8160),
    # 8,126 bytes; a text takes up to 40 of them, in PostgreSQL 24
    "mysql": Limits("MySQL", columns=1017, row_bytes=4800),
}


def _widest(columns: Mapping[str, pa.Array[Any]], room: int) -> int:
    """Return the minimum number of bytes of the widest row in its page; 0 if there are too few columns to matter."""
    if len(columns) * _POINTER_BYTES <= room:
        return 0
    kernels: Any = pc  # the stubs do not type sums of arrays that start at zero
    fixed: Any = 0
    texts: Any = 0
    lengths: Any = 0
    for column in columns.values():
        filled = kernels.cast(column.is_valid(), pa.int64())
        if not (pa.types.is_string(column.type) or pa.types.is_decimal(column.type)):
            fixed = kernels.add(fixed, filled)
            continue
        texts = kernels.add(texts, filled)
        lengths = kernels.add(lengths, _inline_bytes(kernels, column, filled))
    # a number starts at a multiple of eight, so one behind a text may leave up to seven bytes empty
    gaps = kernels.multiply(kernels.min_element_wise(fixed, texts), _FIXED_BYTES - 1)
    widest = kernels.max(kernels.add(kernels.add(kernels.multiply(fixed, _FIXED_BYTES), lengths), gaps))
    return int(widest.as_py() or 0)


def _inline_bytes(kernels: Any, column: pa.Array[Any], filled: pa.Array[Any]) -> Any:
    if pa.types.is_decimal(column.type):
        return kernels.multiply(filled, _POINTER_BYTES)
    length = kernels.cast(kernels.fill_null(kernels.binary_length(column), -1), pa.int64())
    return kernels.min_element_wise(kernels.add(length, 1), _POINTER_BYTES)


def within_row(columns: Mapping[str, pa.Array[Any]], room: int) -> dict[str, pa.Array[Any]]:
    """Return the columns with null for values that do not fit into a row of `room` bytes.

    Columns are filled in the order of their names; a value is left out if it does not fit with those before it.
    """
    kept = dict(columns)
    if len(columns) * _POINTER_BYTES <= room:
        return kept
    kernels: Any = pc
    used: Any = pa.repeat(pa.scalar(0, pa.int64()), len(next(iter(columns.values()))))
    for name in sorted(columns):
        column = columns[name]
        filled = kernels.cast(column.is_valid(), pa.int64())
        is_text = pa.types.is_string(column.type) or pa.types.is_decimal(column.type)
        taken = _inline_bytes(kernels, column, filled) if is_text else kernels.multiply(filled, _FIXED_BYTES)
        gap = kernels.multiply(filled, 0 if is_text else _FIXED_BYTES - 1)
        wanted = kernels.add(kernels.add(used, taken), gap)
        fits = kernels.less_equal(wanted, pa.scalar(room, pa.int64()))
        used = kernels.if_else(fits, wanted, used)
        kept[name] = kernels.if_else(fits, column, pa.scalar(None, column.type))
    return kept
