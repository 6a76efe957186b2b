"""Define the types and the names of the columns of a typed table; `casting` decides which type a column gets.

A column's type is chosen once, from the first batch that has a value for it, by counting, so that the order of the
rows does not matter; after that it never changes. A schema is immutable: extending it returns another one.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType

import pyarrow as pa

from connector.transform.naming import (
    DOUBLE_VARIANT,
    TEXT_VARIANT,
    column_name,
    display_path,
    more_column,
    naming_order,
)

Keys = tuple[str, ...]
OVERFLOW_KEYS: Keys = ()  # the path of the column `_more`, for values of all fields without a column
OVERFLOWED = "overflowed"  # instead of a type: the values have no column of their own

_TYPE = re.compile(r"\s*([a-z]+)\s*(?:\(\s*([0-9]{1,2})\s*,\s*([0-9]{1,2})\s*\)\s*)?")
_WIDEST_DECIMAL = 38
_PLAIN_DECIMAL = (38, 9)
NOT_OURS = "not ours"  # instead of a type: a column in the warehouse that no field may use


class Kind(StrEnum):
    BIGINT = "bigint"
    DOUBLE = "double"
    BOOL = "bool"
    TEXT = "text"
    JSON = "json"
    DATE = "date"
    TIMESTAMP = "timestamp"
    DECIMAL = "decimal"


@dataclass(frozen=True, slots=True)
class ColumnType:
    kind: Kind
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})" if self.kind is Kind.DECIMAL else str(self.kind)


@lru_cache(maxsize=512)
def parse_type(text: str) -> ColumnType:
    """Parse `bigint`, `decimal(10,2)`, …; raise ValueError that explains what is wrong with anything else."""
    found = _TYPE.fullmatch(text.lower())
    name = found.group(1) if found else ""
    if found is None or name not in set(Kind):
        raise ValueError(f"{text!r} is not a column type; use one of {', '.join(Kind)} or decimal(p,s)")
    if name != Kind.DECIMAL:
        if found.group(2):
            raise ValueError(f"{text!r}: only decimal takes a precision and a scale")
        return ColumnType(Kind(name))
    precision, scale = (int(found.group(2)), int(found.group(3))) if found.group(2) else _PLAIN_DECIMAL
    if not (1 <= precision <= _WIDEST_DECIMAL and scale <= precision):
        raise ValueError(f"{text!r}: decimal(p,s) needs 1 ≤ p ≤ {_WIDEST_DECIMAL} and s ≤ p")
    return ColumnType(Kind.DECIMAL, precision, scale)


def is_stored_as(there: str, kind: str) -> bool:
    """Return whether a column of type `there` can store a field of type `kind`: JSON may be text in the warehouse."""
    wanted = parse_type(kind)
    try:
        found = parse_type(there)
    except ValueError:
        return False
    return found == wanted or (wanted.kind is Kind.JSON and found.kind is Kind.TEXT)


_ARROW: Mapping[Kind, pa.DataType] = {
    Kind.BIGINT: pa.int64(),
    Kind.DOUBLE: pa.float64(),
    Kind.BOOL: pa.bool_(),
    Kind.TEXT: pa.string(),
    Kind.JSON: pa.string(),
    Kind.DATE: pa.date32(),
    Kind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
}


def arrow_type(text: str) -> pa.DataType:
    """Return the Arrow type of a column type; JSON is a string, which the caller declares as JSON."""
    column_type = parse_type(text)
    if column_type.kind is Kind.DECIMAL:
        return pa.decimal128(column_type.precision, column_type.scale)
    return _ARROW[column_type.kind]


@dataclass(frozen=True, slots=True)
class Field:
    keys: Keys
    column: str
    type: str | None = None  # None: only nulls so far
    has_text: bool = False
    has_double: bool = False

    @property
    def text_column(self) -> str:
        return self.column + TEXT_VARIANT

    @property
    def double_column(self) -> str:
        return self.column + DOUBLE_VARIANT

    def columns(self) -> dict[str, str]:
        """Return the physical columns of this field with their types; none before the first value."""
        if self.type is None:
            return {}
        columns = {self.column: self.type}
        if self.has_text:
            columns[self.text_column] = Kind.TEXT.value
        if self.has_double:
            columns[self.double_column] = Kind.DOUBLE.value
        return columns


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The fields of one typed table.

    `physical` are the columns in the warehouse, with types as `parse_type` reads them. A column without a field was
    left by a crash: a field that gets its name adopts its type. If the type is not one of ours, or is `NOT_OURS`, the
    name is avoided.

    Fields in `overflowed`, and in a `closed` table all unknown fields, get no column: they are members of the JSON
    column of the path `OVERFLOW_KEYS`, which exists once there is such a field. Invariant: a field with a column keeps
    it, and a field without one gets none, until the table is rebuilt.
    """

    table: str
    fields: Mapping[Keys, Field] = field(default_factory=lambda: MappingProxyType({}))
    physical: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    overflowed: frozenset[Keys] = frozenset()
    closed: bool = False

    def __post_init__(self) -> None:
        for name in ("fields", "physical"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def with_paths(self, paths: Iterable[Keys]) -> "TableSchema":
        """Return the table with names for unknown paths; the names do not depend on the order of the paths."""
        unknown = [keys for keys in paths if keys not in self.fields]
        if not unknown:
            return self
        taken = {known.column for known in self.fields.values()}
        taken.update(column for column in self.physical if not self._adoptable(column))
        named: dict[Keys, Field] = {}
        for keys in sorted(set(unknown), key=naming_order):
            named[keys] = self._adopt(Field(keys, column_name(keys, taken)))
            taken.add(named[keys].column)
        return replace(self, fields={**self.fields, **{keys: named[keys] for keys in unknown}})

    @property
    def width(self) -> int:
        """Return the number of columns of fields and variants; a field that was only null so far counts too."""
        return sum(
            1 + known.has_text + known.has_double for keys, known in self.fields.items() if keys != OVERFLOW_KEYS
        )

    @property
    def size(self) -> int:
        """Return the number of fields that have a column or will get one with their first value."""
        return len(self.fields) - (OVERFLOW_KEYS in self.fields)

    @property
    def is_bounded(self) -> bool:
        """Return whether some fields get no column."""
        return self.closed or bool(self.overflowed)

    def admits(self, keys: Keys) -> bool:
        """Return whether a field has a column or may get one."""
        return keys in self.fields or not (self.closed or keys in self.overflowed)

    def overflowing(self, paths: Iterable[Keys], listed: int) -> "TableSchema":
        """Return the table without columns for these fields; at most `listed` of all such fields are known by name."""
        room = max(listed - len(self.overflowed), 0)
        overflowed = self.overflowed.union(sorted(paths, key=naming_order)[:room])
        return replace(self, overflowed=overflowed, closed=self.closed or len(overflowed) >= listed)

    def with_overflow_column(self) -> "TableSchema":
        """Return the table with a column for values without one of their own."""
        if OVERFLOW_KEYS in self.fields:
            return self
        taken = {name for known in self.fields.values() for name in (known.column, *known.columns())}
        taken.update(name for name, kind in self.physical.items() if kind not in (Kind.JSON, Kind.TEXT))
        return self.with_fields([Field(OVERFLOW_KEYS, more_column(taken), Kind.JSON.value)])

    def with_fields(self, changed: Iterable[Field]) -> "TableSchema":
        """Return the table with these fields in place of those with the same keys."""
        updates = {each.keys: each for each in changed}
        return replace(self, fields={**self.fields, **updates}) if updates else self

    def retyped(self) -> "TableSchema":
        """Return the table with the same names and no types, as a rebuild of the table needs it."""
        names = {keys: Field(keys, known.column) for keys, known in self.fields.items() if keys != OVERFLOW_KEYS}
        return TableSchema(self.table, names)

    def _adopt(self, named: Field) -> Field:
        left = self.physical.get(named.column)
        return replace(
            named,
            type=None if left is None else str(parse_type(left)),
            has_text=named.text_column in self.physical,
            has_double=named.double_column in self.physical,
        )

    def _adoptable(self, column: str) -> bool:
        left = self.physical[column]
        if column.endswith(TEXT_VARIANT):
            return left == Kind.TEXT
        if column.endswith(DOUBLE_VARIANT):
            return left == Kind.DOUBLE
        try:
            parse_type(left)
        except ValueError:
            return False
        return True


def hint_for(known: Field, hints: Mapping[str, str]) -> str | None:
    """Return the hint for a field, by column name or by original key."""
    return hints.get(known.column) or hints.get(display_path(known.keys))
