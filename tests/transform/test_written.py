"""Hints that say how people write: a string is read exactly as the format says, or it does not fit."""

from __future__ import annotations

import datetime as dt
import json
import re
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.transform.flatten import flatten
from connector.transform.schema import TableSchema
from connector.transform.written import Read, parse_hint

EURO = "decimal(12,2):1.234,56 €"


def read(hint: str, text: str) -> Any:
    reader = parse_hint(hint).read
    assert reader is not None
    return reader(text)


@pytest.mark.parametrize(
    ("hint", "text", "value"),
    [
        ("date:%d.%m.%Y", "31.12.1979", dt.date(1979, 12, 31)),
        ("date:%d.%m.%Y", "1.2.2026", dt.date(2026, 2, 1)),
        ("date:%d.%m.%Y", "31.02.2026", None),
        ("date:%d.%m.%Y", "29.02.2024", dt.date(2024, 2, 29)),
        ("date:%d.%m.%Y", "2026-02-01", None),
        ("date:%d.%m.%Y", "01.02.26", None),
        ("date:%d.%m.%Y", " 01.02.2026", None),
        ("date:%d.%m.%Y", "01.02.2026\n", None),
        ("date:%d.%m.%Y", "٠١.02.2026", None),
        ("date:%d.%m.%Y", "01x02x2026", None),
        ("date:%m/%d/%Y", "12/31/2026", dt.date(2026, 12, 31)),
        ("date:%m/%d/%Y", "31/12/2026", None),
        ("date:%d.%m.%y", "31.12.68", dt.date(2068, 12, 31)),
        ("date:%d.%m.%y", "31.12.69", dt.date(1969, 12, 31)),
        ("date:%Y%m%d", "20261231", dt.date(2026, 12, 31)),
        ("date:%d%m%Y", "1122026", None),
        ("date:%Y%%%m%%%d", "2026%12%31", dt.date(2026, 12, 31)),
        ("timestamp:%d.%m.%Y %H:%M", "31.12.2026 23:59", dt.datetime(2026, 12, 31, 23, 59, tzinfo=dt.UTC)),
        ("timestamp:%d.%m.%Y %H:%M", "31.12.2026 24:00", None),
        ("timestamp:%m/%d/%Y %I:%M %p", "1/2/2026 12:05 am", dt.datetime(2026, 1, 2, 0, 5, tzinfo=dt.UTC)),
        ("timestamp:%m/%d/%Y %I:%M %p", "1/2/2026 12:05 PM", dt.datetime(2026, 1, 2, 12, 5, tzinfo=dt.UTC)),
        ("timestamp:%m/%d/%Y %I:%M %p", "1/2/2026 13:05 PM", None),
        ("timestamp:%Y/%m/%d %H:%M:%S.%f %z", "2026/01/02 03:04:05.5 +02:00",
         dt.datetime(2026, 1, 2, 1, 4, 5, 500_000, tzinfo=dt.UTC)),
        ("timestamp:%Y/%m/%d %H:%M:%S.%f %z", "2026/01/02 03:04:05.1234567 Z", None),
        ("timestamp:%Y/%m/%d %H:%M %z", "0001/01/01 00:00 +01:00", None),
        ("timestamp:%Y/%m/%d %H:%M %z", "2026/01/01 00:00 +00:60", None),
        ("decimal(12,2):1.234,56", "1.234,56", Decimal("1234.56")),
        ("decimal(12,2):1.234,56", "-1.234.567,5", Decimal("-1234567.50")),
        ("decimal(12,2):1.234,56", "1234,56", Decimal("1234.56")),
        ("decimal(12,2):1.234,56", "1.234", Decimal("1234.00")),
        ("decimal(12,2):1.234,56", "1.23", None),
        ("decimal(12,2):1.234,56", "1.2345,6", None),
        ("decimal(12,2):1.234,56", "1234.567,8", None),
        ("decimal(12,2):1.234,56", "1,234.56", None),
        ("decimal(12,2):1.234,56", "1,234", None),
        ("decimal(12,2):1.234,56", "1,230", Decimal("1.23")),
        ("decimal(12,2):1.234,56", "12.345.678.901,00", None),
        ("decimal(12,2):1.234,56", "007,5", None),
        ("decimal(12,2):1.234,56", "0.123,5", None),
        ("decimal(12,2):1.234,56", ",5", None),
        ("decimal(12,2):1.234,56", "5,", None),
        ("decimal(12,2):1.234,56", "1.234,56 €", None),
        ("decimal(12,2):1.234,56", "1e3", None),
        ("decimal(12,2):1.234,56", "0,00", Decimal(0)),
        (EURO, "1.234,56 €", Decimal("1234.56")),
        (EURO, "1.234,56\u00a0€", Decimal("1234.56")),
        (EURO, "-5€", Decimal(-5)),
        (EURO, "5", Decimal(5)),
        (EURO, "5 $", None),
        (EURO, "5  €", None),
        (EURO, "5 ", None),
        ("decimal(12,2):$1,234.56", "-$1,234.5", Decimal("-1234.50")),
        ("decimal(12,2):$1,234.56", "$-1,234.5", Decimal("-1234.50")),
        ("decimal(12,2):$1,234.56", "--5", None),
        ("decimal(12,2):$1,234.56", "-$-5", None),
        ("decimal(12,2):1 234,56", "1\u202f234,5", Decimal("1234.50")),
        ("decimal(12,2):1'234.56", "1'234.5", Decimal("1234.50")),
        ("decimal(12,2):1234,56", "1.234,56", None),
        ("decimal(12,0):1.234", "12.345", Decimal(12345)),
        ("decimal(38,9):1.234,56", "9" * 29 + ",123456789", Decimal("9" * 29 + ".123456789")),
        ("decimal(38,9):1.234,56", "9" * 5000, None),
        ("bool:ja/nein", "ja", True),
        ("bool:ja/nein", "NEIN", False),
        ("bool:ja/nein", "vielleicht", None),
        ("bool:ja/nein", "true", None),
    ],
)  # fmt: skip
def test_what_fits(hint: str, text: str, value: Any) -> None:
    assert read(hint, text) == value


@pytest.mark.parametrize(
    ("hint", "why"),
    [
        ("date:", "a date needs"),
        ("date:%d.%m", "a date needs"),
        ("date:%d.%m.%Y %y", "a date needs"),
        ("date:%d.%m.%Y %H", "%H is not one of"),
        ("date:%d %B %Y", "%B is not one of"),
        ("date:%d.%m.%Y %", "% is not one of"),
        ("date:%d.%d.%m.%Y", "%d is there twice"),
        ("timestamp:%d.%m.%Y", "a time of day needs"),
        ("timestamp:%d.%m.%Y %I:%M", "a time of day needs"),
        ("timestamp:%d.%m.%Y %H:%M %p", "a time of day needs"),
        ("timestamp:%d.%m.%Y %H", "needs %M"),
        ("timestamp:%d.%m.%Y %H:%M.%f", "%S where it has %f"),
        ("decimal(12,2):", "write a number"),
        ("decimal(12,2):euro", "write a number"),
        ("decimal(12,2):1.234", "may be of thousands or of a fraction"),
        ("decimal(12,2):1.234.567.89", "cannot stand both"),
        ("decimal(12,2):-1.234,56", "not a currency sign"),
        ("decimal(39,2):1.234,56", "p ≤ 38"),
        ("bool:ja", "for instance ja/nein"),
        ("bool:ja/", "for instance ja/nein"),
        ("bool:ja/Ja", "for instance ja/nein"),
        ("bool:ja/nein/oui", "for instance ja/nein"),
        ("text:%d", "only date, timestamp, decimal, bool"),
        ("bigint:1.234", "only date, timestamp, decimal, bool"),
        ("dat:%d.%m.%Y", "is not a column type"),
    ],
)
def test_a_hint_that_cannot_be_is_named(hint: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)) as caught:
        parse_hint(hint)
    assert hint.partition(":")[0] in str(caught.value)


DATES = [f"date:{a}{sep}{b}{sep}{c}" for sep in (".", "/", "-", " ", "|") for a, b, c in (
    ("%d", "%m", "%Y"), ("%m", "%d", "%Y"), ("%Y", "%m", "%d"))]  # fmt: skip


@given(st.sampled_from(DATES), st.dates(dt.date(1000, 1, 1)), st.booleans())
def test_each_date_that_is_written_so_comes_back(hint: str, day: dt.date, short: bool) -> None:
    form = hint.removeprefix("date:")
    written = form.replace("%Y", str(day.year))
    for name, number in (("%d", day.day), ("%m", day.month)):
        written = written.replace(name, str(number) if short else f"{number:02}")
    assert read(hint, written) == day


@given(st.sampled_from(DATES), st.text("0123456789./- |x", max_size=12))
def test_no_other_text_is_a_date(hint: str, text: str) -> None:
    try:
        strict: dt.date | None = dt.datetime.strptime(text, hint.removeprefix("date:")).date()
    except ValueError:
        strict = None
    assert read(hint, text) in (None, strict)


FORMS = {"1.234,56": (".", ","), "1,234.56": (",", "."), "1 234,56": (" ", ","), "1234,56": ("", ","), "1.5": ("", ".")}
FORMS = {f"{b}{form}{a}": of for form, of in FORMS.items() for b, a in (("", ""), ("", " €"), ("$", ""), ("CHF ", ""))}


@given(
    st.sampled_from(sorted(FORMS)),
    st.decimals(-(10**12), 10**12, places=4, allow_nan=False, allow_infinity=False),
    st.booleans(),
)
def test_each_amount_that_is_written_so_comes_back_digit_for_digit(form: str, amount: Decimal, grouped: bool) -> None:
    group, point = FORMS[form]
    digits = f"{abs(amount):,.4f}" if grouped else f"{abs(amount):.4f}"
    written = digits.translate({ord(","): group, ord("."): point})
    before, after = re.match(r"(\D*)[\d., ]*\d(\D*)", form).groups()  # type: ignore[union-attr]
    sign = "-" if amount < 0 else ""
    assert read(f"decimal(20,4):{form}", f"{sign}{before}{written}{after}") == amount
    assert read(f"decimal(20,3):{form}", f"{sign}{before}{written}{after}") in (None, amount)


@given(st.sampled_from(sorted(FORMS)), st.text("0123456789., -€$", max_size=14))
def test_an_amount_has_the_digits_of_its_text(form: str, text: str) -> None:
    found = read(f"decimal(38,9):{form}", text)
    if found is not None:
        group, point = FORMS[form]
        digits = "".join(c for c in text if c.isdigit() or c in ("-", point)).replace(point, ".")
        assert found == Decimal(digits)
        assert not group or all(len(part) == 3 for part in re.split(re.escape(group), text.split(point)[0])[1:-1])


HINTS = ["date:%d.%m.%Y", EURO, "bool:ja/nein", "timestamp:%d.%m.%Y %H:%M"]
CELLS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=5),
    st.sampled_from(["", "ja", "Nein", "31.02.2026", "1.02.2026", "1.23", "5 €", "1.2.2026 8:00"]),
    st.text(max_size=5), st.lists(st.integers(), max_size=1),
)  # fmt: skip


@given(st.sampled_from(HINTS), st.lists(CELLS, min_size=1, max_size=6))
def test_a_value_is_in_its_column_or_unchanged_beside_it(hint: str, cells: list[Any]) -> None:
    rows = [json.dumps({"a": cell}).encode() for cell in cells]
    flat = flatten(rows, TableSchema("t"), {"a": hint})
    assert next(iter(flat.schema.fields.values())).type in (hint.partition(":")[0], None)
    if not flat.columns:
        assert not any(cell not in (None, "") for cell in cells)
        return
    base = flat.columns["a"].to_pylist()
    beside = flat.columns["a__v_text"].to_pylist() if "a__v_text" in flat.columns else [None] * len(cells)
    reader: Read | None = parse_hint(hint).read
    assert reader is not None
    plain = flatten(rows, TableSchema("t"), {"a": hint.partition(":")[0]})
    for n, cell in enumerate(cells):
        if cell in (None, "") and not isinstance(cell, bool):
            assert (base[n], beside[n]) == (None, None)
        elif isinstance(cell, str):
            assert base[n] == reader(cell)
            assert beside[n] == (cell if base[n] is None else None)
        else:
            assert base[n] == plain.columns["a"].to_pylist()[n], "what is no string is read as without a format"
    assert flat.counts["a",].conflicts == sum(text is not None for text in beside)
