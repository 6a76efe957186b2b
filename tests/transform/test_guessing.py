"""Proposed hints: what the values decide is proposed, what they leave open or could be a code is not."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from connector.transform.guessing import SHARE, guess, share
from connector.transform.written import parse_hint


@pytest.mark.parametrize(
    ("texts", "hint"),
    [
        (["31.12.1979", "1.2.2026"], "date:%d.%m.%Y"),
        (["12/31/1979", "1/2/2026"], "date:%m/%d/%Y"),
        (["31-12-1979", "01-02-2026"], "date:%d-%m-%Y"),
        (["01.02.2026", "03.04.2026"], None),
        (["31.12.2026", "12.31.2026"], None),
        (["2026-01-31", "2026-02-01"], "date"),
        (["2026/01/31", "2026/02/01"], "date:%Y/%m/%d"),
        (["31.12.2026 8:30", "1.2.2026 23:59"], "timestamp:%d.%m.%Y %H:%M"),
        (["12/31/2026 8:30 AM", "1/2/2026 11:59 PM"], "timestamp:%m/%d/%Y %I:%M %p"),
        (["2026-01-31T08:30:00Z", "2026-01-31T08:30:00Z"], "timestamp"),
        (["2026-01-31 08:30", "2026-01-31 09:30"], "timestamp"),
        (["1.234,56", "7,5"], "decimal(12,2):1.234,56"),
        (["1.234,56 €", "7,50 €", "n/a"], "decimal(12,2):1.234,56 €"),
        (["$1,234.56", "-$7.5"], "decimal(12,2):$1,234.56"),
        (["CHF 1'234.50", "CHF 7.50"], "decimal(12,2):CHF 1'234.56"),
        (["1 234,50", "7,50"], "decimal(12,2):1 234,56"),
        (["1234,50", "7,50"], "decimal(12,2):1234,56"),
        (["1.234", "7,50"], "decimal(12,2):1.234,56"),
        (["1.234", "7.50"], "decimal(12,3)"),
        (["7.50", "0.125"], "decimal(12,3)"),
        (["1.234", "5.678"], None),
        (["1.234,50", "1,234.50"], None),
        (["1.234.567", "2.345.678"], None),
        (["5,50 €", "5.50 $"], None),
        (["12", "7", "-1045"], "bigint"),
        (["01067", "10115", "80331"], None),
        (["10115", "80331", "20095"], None),
        (["2024", "2025"], None),
        (["0301234567", "4930123456"], None),
        (["4930123456", "49301234567"], None),
        (["171 123 456", "30 123 456"], None),
        (["0,5", "00,5"], None),
        (["1.2.3", "1.2.4"], None),
        (["1.234", "1'234,5", "7,50"], None),
        (["0,1234567890123", "7,1"], None),
        (["192.168.0.1", "10.0.0.1"], None),
        (["ja", "nein", "Ja"], "bool:ja/nein"),
        (["ja", "ja"], None),
        (["yes", "no"], "bool:yes/no"),
        (["sí", "no"], "bool:sí/no"),
        (["0", "1"], "bigint"),
        (["Ana", "Bo"], None),
        ([], None),
    ],
)
def test_what_is_proposed(texts: list[str], hint: str | None) -> None:
    assert guess(texts) == hint
    if hint is not None:
        fitting, values = share(hint, [(text, 1) for text in texts])
        assert fitting == values - texts.count("n/a")


def test_a_few_misfits_do_not_decide() -> None:
    texts = [f"{n}.{month}.2026" for n in range(1, 31) for month in (8, 12)]
    assert guess([*texts, "12.31.2026", "unknown"]) == "date:%d.%m.%Y"
    assert share("date:%d.%m.%Y", [("1.2.2026", 5), ("12.31.2026", 2), ("x", 3)]) == (5, 10)


@given(st.lists(st.dates(dt.date(1000, 1, 1)), min_size=1), st.sampled_from(["%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y"]))
def test_a_date_is_proposed_only_as_it_was_written(days: list[dt.date], form: str) -> None:
    texts = [
        form.replace("%d", f"{day.day:02}").replace("%m", f"{day.month:02}").replace("%Y", f"{day.year:04}")
        for day in days
    ]
    found = guess(texts)
    assert found in (f"date:{form}", None)
    assert (found is None) == all(day.day <= 12 for day in days)


@given(
    st.lists(st.decimals(-(10**9), 10**9, places=2, allow_nan=False, allow_infinity=False), min_size=1),
    st.sampled_from([(".", ","), (",", "."), (" ", ","), ("", ","), ("", ".")]),
    st.sampled_from(["{}", "{} €", "${}"]),
)
def test_an_amount_is_proposed_only_as_it_was_written(
    amounts: list[Decimal], marks: tuple[str, str], money: str
) -> None:
    group, point = marks
    written = [f"{abs(a):,.2f}".translate({ord(","): group, ord("."): point}) for a in amounts]
    texts = [("-" if a < 0 else "") + money.format(text) for a, text in zip(amounts, written, strict=True)]
    found = guess(texts)
    assert found is not None
    assume(":" in found)
    read = parse_hint(found).read
    assert read is not None
    assert [read(text) for text in texts] == amounts
    assert share(found, [(text, 1) for text in texts])[0] >= SHARE * len(texts)
