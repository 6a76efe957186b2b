"""Decide whether a value fits a column type unchanged, and what its text is if it doesn't.

A `Fit` returns the value to store, or None if the value must go to a variant.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal

import msgspec
from msgspec import Raw

from connector.transform.escaping import storable, storable_json
from connector.transform.json_rows import JsonText, Value
from connector.transform.numbers import (
    INT64_MAX,
    INT64_MIN,
    MINUS_ZERO,
    exact_decimal,
    exact_double,
    int64,
    is_number,
    is_whole,
    whole_double,
)
from connector.transform.schema import ColumnType, Kind
from connector.transform.written import Hint

Stored = bool | int | float | str | date | datetime | Decimal
Fit = Callable[[Value], Stored | None]

_encode = msgspec.json.Encoder().encode
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIMESTAMP = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}:[0-9]{2})"
    r"(?::([0-9]{2})(?:[.,]([0-9]{1,6})0*)?)?(Z|[+-][0-9]{2}(?::?[0-9]{2})?)?"
)


@dataclass(slots=True)
class Votes:
    """A count of values towards the type of their column, independent of their order."""

    by_kind: dict[Kind, int] = field(default_factory=lambda: {Kind.JSON: 0, Kind.TEXT: 0, Kind.BIGINT: 0, Kind.BOOL: 0})
    fraction: bool = False

    def add(self, values: Iterable[Value]) -> None:
        votes = self.by_kind
        for value in values:
            kind = type(value)
            if kind is str:
                votes[Kind.TEXT] += value != ""
            elif kind is bool:
                votes[Kind.BOOL] += 1
            elif kind is int:
                votes[Kind.BIGINT] += 1
            elif isinstance(value, Raw):
                votes[Kind.BIGINT] += 1
                self.fraction = self.fraction or not is_whole(_literal(value))
            else:
                votes[Kind.JSON] += 1

    @property
    def counted(self) -> bool:
        return any(self.by_kind.values())

    @property
    def kind(self) -> Kind:
        most = max(self.by_kind.values())
        if not most:
            return Kind.TEXT
        chosen = next(kind for kind, count in self.by_kind.items() if count == most)
        return Kind.DOUBLE if chosen is Kind.BIGINT and self.fraction else chosen


def choose_kind(values: Iterable[Value]) -> Kind:
    """Choose the type of a column from the first values it holds, whatever their order; nulls are not among them.

    The most frequent class wins; in a tie json comes before text, number and bool, in this order. Empty strings count
    only if there is nothing else.
    """
    votes = Votes()
    votes.add(values)
    return votes.kind


def text_of(value: Value, *, nul_safe: bool = False) -> str:
    """Return the value unchanged as text: a string as it is, anything else as its JSON text."""
    if isinstance(value, str) and not isinstance(value, JsonText):
        return storable(value, nul_safe=nul_safe)
    return json_text(value, nul_safe=nul_safe)


def json_text(value: Value, *, nul_safe: bool = False) -> str:
    """Return the value as JSON, numbers digit for digit, keys in their order."""
    if isinstance(value, JsonText):
        return storable_json(value, nul_safe=nul_safe)
    if isinstance(value, str):
        value = storable(value, nul_safe=nul_safe)
    return storable_json(_encode(value).decode(), nul_safe=nul_safe)


def double_beside_bigint(value: Value) -> float | None:
    """Return a fraction in a bigint column as a double, if the double is exactly the same number; None otherwise."""
    if not isinstance(value, Raw):
        return None
    literal = _literal(value)
    return None if is_whole(literal) else exact_double(literal)


def fit_for(column_type: ColumnType, *, hint: Hint | None, nul_safe: bool) -> Fit:
    """Return how values are stored in a column; with a `hint` the user chose this type, so strings are parsed by it."""
    if hint is not None and hint.read is not None:
        read_written, fit = hint.read, fit_for(column_type, hint=None, nul_safe=nul_safe)
        return lambda value: read_written(value) if type(value) is str else fit(value)
    kind = column_type.kind
    if kind is Kind.TEXT:
        return _text_fit(nul_safe)
    if kind is Kind.JSON:
        return lambda value: json_text(value, nul_safe=nul_safe)
    if kind is Kind.DECIMAL:
        return _decimal_fit(column_type.precision, column_type.scale)
    if kind is Kind.DATE:
        return _as_date
    if kind is Kind.TIMESTAMP:
        return _as_timestamp
    plain, read = _SCALARS[kind]
    if hint is None:
        return plain
    return lambda value: read(value) if type(value) is str else plain(value)


def is_scalar_beside_text(value: Value) -> bool:
    """Return True for a number or a boolean, which a text column stores as its JSON text."""
    return isinstance(value, bool | int | Raw)


def _text_fit(nul_safe: bool) -> Fit:
    def fit(value: Value) -> str | None:
        if type(value) is str or is_scalar_beside_text(value):
            return text_of(value, nul_safe=nul_safe)
        return None

    return fit


def _decimal_fit(precision: int, scale: int) -> Fit:
    def fit(value: Value) -> Decimal | None:
        if type(value) is int:
            return exact_decimal(str(value), precision, scale)
        literal = _literal(value) if isinstance(value, Raw) else value
        if type(literal) is str and is_number(literal):
            return exact_decimal(literal, precision, scale)
        return None

    return fit


def _as_bigint(value: Value) -> int | None:
    return value if type(value) is int and INT64_MIN <= value <= INT64_MAX else None


def _read_bigint(text: str) -> int | None:
    return int64(text) if is_number(text) and is_whole(text) else None


def _as_double(value: Value) -> float | None:
    if type(value) is int:
        return whole_double(value)
    if isinstance(value, Raw) and _literal(value) == MINUS_ZERO:
        return -0.0
    return double_beside_bigint(value)


def _read_double(text: str) -> float | None:
    if not is_number(text):
        return None
    if not is_whole(text):
        return exact_double(text)
    number = int64(text)
    return None if number is None else whole_double(number)


def _as_bool(value: Value) -> bool | None:
    return value if type(value) is bool else None


def _read_bool(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text)


def _as_date(value: Value) -> date | None:
    if type(value) is not str or not _DATE.fullmatch(value):
        return None
    try:
        return date.fromisoformat(value)
    except ValueError:
        return None


def _as_timestamp(value: Value) -> datetime | None:
    """Return an ISO 8601 text with a time of day as an instant in UTC, also without an offset.

    Return None if it does not fit, as if it is finer than microseconds.
    """
    found = _TIMESTAMP.fullmatch(value) if type(value) is str else None
    if found is None:
        return None
    day, clock, seconds, fraction, offset = found.groups()
    try:
        moment = datetime.fromisoformat(f"{day}T{clock}:{seconds or '00'}.{fraction or '0':0<6}{offset or 'Z'}")
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _literal(value: Raw) -> str:
    return bytes(value).decode()


_SCALARS: dict[Kind, tuple[Fit, Callable[[str], Stored | None]]] = {
    Kind.BIGINT: (_as_bigint, _read_bigint),
    Kind.DOUBLE: (_as_double, _read_double),
    Kind.BOOL: (_as_bool, _read_bool),
}
