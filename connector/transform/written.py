"""Parse dates, amounts and booleans as people write them, by the format behind the colon of a hint.

A string either matches the format exactly or does not fit: there is no locale, no guess, and no intermediate float.
Values that are not strings are read as without a format.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from functools import lru_cache
from types import MappingProxyType

from connector.transform.numbers import exact_decimal
from connector.transform.schema import ColumnType, Field, Kind, hint_for, parse_type

Read = Callable[[str], bool | date | datetime | Decimal | None]

_PIVOT = 69  # as in POSIX: years of two digits are 1969 to 2068
_NOON = 12
_MOST_DIGITS = 80  # decimals have 38, and a longer text need not be tried
_BLANK = " \u00a0\u202f"
_GROUPING = ".,'’_" + _BLANK
_EXAMPLE = re.compile(
    rf"(?P<before>[^0-9]*?)(?P<whole>[0-9]{{1,3}}(?:(?P<group>[{_GROUPING}])[0-9]{{3}}(?:(?P=group)[0-9]{{3}})*)|[0-9]+)"
    r"(?:(?P<point>[.,])(?P<fraction>[0-9]+))?(?P<after>[^0-9]*)"
)
_DIRECTIVE = re.compile(r"%(.?)", re.DOTALL)
_PARTS: Mapping[str, str] = MappingProxyType(
    {
        "d": "(?P<d>[0-9]{1,2})",
        "m": "(?P<m>[0-9]{1,2})",
        "Y": "(?P<Y>[0-9]{4})",
        "y": "(?P<y>[0-9]{2})",
        "H": "(?P<H>[0-9]{1,2})",
        "I": "(?P<I>[0-9]{1,2})",
        "p": "(?P<p>[AaPp][Mm])",
        "M": "(?P<M>[0-9]{1,2})",
        "S": "(?P<S>[0-9]{1,2})",
        "f": "(?P<f>[0-9]{1,6})",
        "z": "(?P<z>Z|[+-][0-9]{2}(?::?[0-9]{2})?)",
    }
)
_OF_DATES = "dmYy"


@dataclass(frozen=True, slots=True)
class Hint:
    """A column type, and the parser of strings if the hint has a format."""

    type: ColumnType
    read: Read | None = None


@lru_cache(maxsize=512)
def parse_hint(text: str) -> Hint:
    """Parse `date`, `date:%d.%m.%Y`, `decimal(12,2):1.234,56 €`, …; ValueError says what is wrong with any other."""
    kind, colon, form = text.partition(":")
    column_type = parse_type(kind)
    if not colon:
        return Hint(column_type)
    reader = _READERS.get(column_type.kind)
    if reader is None:
        raise ValueError(f"{text!r}: only {', '.join(_READERS)} take a format after the colon")
    try:
        return Hint(column_type, reader(form.strip(), column_type))
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None


def hints_as_stored(fields: Iterable[Field], hints: Mapping[str, str]) -> dict[str, str]:
    """Return column → hint of existing columns: the given hint if it has the column's type, else that type."""
    return {
        known.column: hint
        if (hint := hint_for(known, hints)) and parse_hint(hint).type == parse_type(known.type)
        else known.type
        for known in fields
        if known.type is not None
    }


def _date(form: str, _: ColumnType) -> Read:
    pattern = _pattern(form, _OF_DATES)

    def read(text: str) -> date | None:
        found = pattern.fullmatch(text)
        if found is None:
            return None
        try:
            return _day(found.groupdict())
        except ValueError:
            return None

    return read


def _timestamp(form: str, _: ColumnType) -> Read:
    """Return the parser of a timestamp in this format; a timestamp without an offset is UTC."""
    pattern = _pattern(form, _OF_DATES + "HIpMSfz")
    names = set(pattern.groupindex)
    if not ({"H"} <= names or {"I", "p"} <= names) or {"H", "I"} <= names or ("p" in names) != ("I" in names):
        raise ValueError("a time of day needs %H, or %I and %p")
    if "M" not in names or ("f" in names and "S" not in names):
        raise ValueError("a time of day needs %M, and %S where it has %f")

    def read(text: str) -> datetime | None:
        found = pattern.fullmatch(text)
        if found is None:
            return None
        parts = found.groupdict()
        try:
            day, micro = _day(parts), int(parts.get("f", "0").ljust(6, "0"))
            moment = datetime(
                day.year, day.month, day.day, _hour(parts), int(parts["M"]), int(parts.get("S", "0")), micro,
                _zone(parts.get("z", "Z")),
            )  # fmt: skip
            return moment.astimezone(UTC)
        except (ValueError, OverflowError):
            return None

    return read


def _pattern(form: str, allowed: str) -> re.Pattern[str]:
    """Compile the format: a directive takes two digits if another follows at once, else one or two, like `strptime`."""
    parts: list[str] = []
    seen: list[str] = []
    end = 0
    for found in _DIRECTIVE.finditer(form):
        parts.append(re.escape(form[end : found.start()]))
        end, name = found.end(), found.group(1)
        if name == "%":
            parts.append("%")
            continue
        if name not in allowed or not name:
            raise ValueError(f"%{name} is not one of {', '.join(f'%{each}' for each in allowed)}")
        if name in seen:
            raise ValueError(f"%{name} is there twice")
        seen.append(name)
        is_followed = form[end : end + 1] == "%" and form[end + 1 : end + 2] != "%"
        parts.append(_PARTS[name].replace("{1,2}", "{2}") if is_followed else _PARTS[name])
    parts.append(re.escape(form[end:]))
    if not {"d", "m"} <= set(seen) or ("Y" in seen) == ("y" in seen):
        raise ValueError("a date needs %d, %m and %Y (or %y), for instance %d.%m.%Y")
    return re.compile("".join(parts), re.ASCII)


def _day(parts: Mapping[str, str]) -> date:
    if "Y" in parts:
        year = int(parts["Y"])
    else:
        year = int(parts["y"])
        year += 1900 if year >= _PIVOT else 2000
    return date(year, int(parts["m"]), int(parts["d"]))


def _hour(parts: Mapping[str, str]) -> int:
    if "H" in parts:
        return int(parts["H"])
    hour = int(parts["I"])
    if not 1 <= hour <= _NOON:
        raise ValueError("no hour of twelve")
    return hour % _NOON + (_NOON if parts["p"] in ("PM", "pm", "Pm", "pM") else 0)


def _zone(text: str) -> timezone:
    if text == "Z":
        return UTC
    digits = text[1:].replace(":", "").ljust(4, "0")
    minutes = int(digits[:2]) * 60 + int(digits[2:])
    if int(digits[2:]) >= 60:
        raise ValueError("no such offset")
    return timezone(timedelta(minutes=-minutes if text[0] == "-" else minutes))


def _decimal(form: str, column_type: ColumnType) -> Read:
    found = _EXAMPLE.fullmatch(form)
    if found is None:
        raise ValueError("write a number as people do, for instance 1.234,56 or 1,234.56 or 1234,56 €")
    group, point = found["group"], found["point"]
    if group is not None and group == point:
        raise ValueError(f"{group!r} cannot stand both between thousands and before the fraction")
    if group is not None and group in ".," and point is None and form.count(group) == 1 and column_type.scale:
        raise ValueError(f"{group!r} may be of thousands or of a fraction; write it as 1{group}234{_other(group)}56")
    whole = "0|[1-9][0-9]*"
    if group is not None:
        whole = f"0|[1-9][0-9]{{0,2}}(?:{_one_of(group)}[0-9]{{3}})+|[1-9][0-9]*"
    fraction = f"(?:{re.escape(point)}(?P<fraction>[0-9]+))?" if point is not None else "(?P<fraction>(?!))?"
    before, after = _end_checks(found["before"], "{}{}?"), _end_checks(found["after"], "{1}?{0}")
    sign = "(?P<sign>-)?"
    pattern = re.compile(f"{sign}{before}(?P<whole>{whole}){fraction}{after}")
    inner = re.compile(f"{before}{sign}(?P<whole>{whole}){fraction}{after}") if before else pattern
    drop = str.maketrans("", "", _BLANK if group is not None and group in _BLANK else group or "")

    def read(text: str) -> Decimal | None:
        if len(text) > _MOST_DIGITS:
            return None
        given = pattern.fullmatch(text) or inner.fullmatch(text)
        if given is None:
            return None
        literal = f"{given['sign'] or ''}{given['whole'].translate(drop)}.{given['fraction'] or '0'}"
        return exact_decimal(literal, column_type.precision, column_type.scale)

    return read


def _end_checks(text: str, form: str) -> str:
    """Return a pattern for the optional currency before or behind the amount, and the blank between."""
    sign = text.strip(_BLANK)
    if not sign:
        return ""
    if any(c in "-+.," or c in _BLANK for c in sign):
        raise ValueError(f"{sign!r} is not a currency sign; an amount below zero is read with any format")
    return f"(?:{form.format(re.escape(sign), f'[{_BLANK}]')})?"


def _one_of(group: str) -> str:
    return f"[{_BLANK}]" if group in _BLANK else re.escape(group)


def _other(group: str) -> str:
    return "." if group == "," else ","


def _bool(form: str, _: ColumnType) -> Read:
    yes, slash, no = (part.strip() for part in form.partition("/"))
    if not (slash and yes and no) or "/" in no or yes.casefold() == no.casefold():
        raise ValueError("write the word for true, a slash and the one for false, for instance ja/nein")
    words = {yes.casefold(): True, no.casefold(): False}
    return lambda text: words.get(text.casefold())


_READERS: Mapping[Kind, Callable[[str, ColumnType], Read]] = MappingProxyType(
    {Kind.DATE: _date, Kind.TIMESTAMP: _timestamp, Kind.DECIMAL: _decimal, Kind.BOOL: _bool}
)
