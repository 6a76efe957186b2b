"""Propose the hint that fits the texts of a column, or none if it would be ambiguous.

The form of the values gives one candidate per column. It is proposed if enough values fit, parsed as in a rebuild.
Values that may be codes give no candidate: leading zeros, long whole numbers, or whole numbers of one length, such as
zip codes, phone numbers and years. The order of day and month, and the decimal separator, are decided by values that
can be read in only one way, if no values contradict each other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from connector.transform.casting import Fit, fit_for
from connector.transform.written import Hint, parse_hint

Counted = Iterable[tuple[str, int]]  # distinct texts, each with the number of its rows

SHARE = 0.95  # of the texts have to fit; with fewer, the check conflicting_columns would report the column
FEWEST = 2  # the minimum number of values in a column
LONGEST = 40  # the longest text that a hint could parse, in characters

_CODE_LENGTH, _LONGEST_WHOLE = 4, 9
_WIDEST_SCALE, _ROOM = 9, 2
_PRECISIONS = (12, 18, 28, 38)
_DATE = re.compile(
    r"(?:(?P<y>[0-9]{4})(?P<s1>[./-])(?P<ym>[0-9]{1,2})(?P=s1)(?P<yd>[0-9]{1,2})"
    r"|(?P<a>[0-9]{1,2})(?P<s2>[./-])(?P<b>[0-9]{1,2})(?P=s2)(?P<c>[0-9]{4}))"
    r"(?:(?P<t>[ T])(?P<H>[0-9]{1,2}):[0-9]{2}(?P<S>:[0-9]{2}(?P<f>\.[0-9]{1,6})?)?(?P<p> ?[AaPp][Mm])?"
    r"(?P<z> ?(?:Z|[+-][0-9]{2}:?[0-9]{2}))?)?"
)
_MONEY = "[A-Z]{3}|[$€£¥₹₽₩₺₴₪฿₫]"
_NUMBER = re.compile(
    rf"-?(?:(?P<before>{_MONEY})(?P<gap1>[ \u00a0\u202f]?))?-?(?P<number>[0-9][0-9.,'’ \u00a0\u202f]*?)"
    rf"(?:(?P<gap2>[ \u00a0\u202f]?)(?P<after>{_MONEY}))?"
)
_WHOLE = re.compile(r"[0-9]+")
_FRACTION = re.compile(r"(?P<whole>[0-9]+)(?P<point>[.,])(?P<digits>[0-9]+)")
_GROUPED = re.compile(
    r"(?P<whole>[0-9]{1,3}(?P<group>[.,'’ \u00a0\u202f])[0-9]{3}(?:(?P=group)[0-9]{3})*)"
    r"(?:(?P<point>(?!(?P=group))[.,])(?P<digits>[0-9]+))?"
)
_ISO = re.compile(r"date:%Y-%m-%d|timestamp:%Y-%m-%d[ T]%H:%M(?::%S(?:\.%f)?)?(?:%z)?")
_MONTHS, _GROUP = 12, 3
_BLANKS = " \u00a0\u202f"
_OTHER = {".": ",", ",": "."}
_WORDS = (
    ("true", "false"), ("yes", "no"), ("ja", "nein"), ("oui", "non"), ("sí", "no"), ("si", "no"), ("sim", "não"),
    ("tak", "nie"), ("ano", "ne"), ("wahr", "falsch"), ("vrai", "faux"), ("y", "n"), ("j", "n"),
)  # fmt: skip


def guess(texts: Iterable[str]) -> str | None:
    """Return the hint that most of these texts look like; None if there is none, or several hints are possible."""
    dates, numbers, words = _Dates(), _Numbers(), Counter[str]()
    count = 0
    for text in texts:
        count += 1
        if (found := _DATE.fullmatch(text)) is not None:
            dates.add(found)
        elif (amount := _NUMBER.fullmatch(text)) is not None:
            numbers.add(amount)
        elif len(words) <= len(_WORDS):
            words[text.casefold()] += 1
    if dates.count > count / 2:
        return dates.hint()
    if numbers.count > count / 2:
        return numbers.hint()
    return _words(words, count)


def share(hint: str, texts: Counted) -> tuple[int, int]:
    """Return how many texts a load with this hint would accept, and how many there are."""
    fit = _fit(parse_hint(hint))
    fitting = rows = 0
    for text, count in texts:
        rows += count
        fitting += count if fit(text) is not None else 0
    return fitting, rows


def _fit(hint: Hint) -> Fit:
    return fit_for(hint.type, hint=hint, nul_safe=False)


def _words(words: Mapping[str, int], count: int) -> str | None:
    for yes, no in _WORDS:
        if yes in words and no in words and words[yes] + words[no] > count / 2:
            return f"bool:{yes}/{no}"
    return None


@dataclass(slots=True)
class _Dates:
    """Evidence of dates and times; `days` counts where a number beyond 12 stands, first or second."""

    count: int = 0
    forms: Counter[str] = field(default_factory=Counter)
    days: Counter[str] = field(default_factory=Counter)

    def add(self, found: re.Match[str]) -> None:
        self.count += 1
        self.forms[_form(found)] += 1
        if found["y"] is None:
            self.days["1"] += int(found["a"]) > _MONTHS
            self.days["2"] += int(found["b"]) > _MONTHS

    def hint(self) -> str | None:
        form = self.forms.most_common(1)[0][0]
        if _ISO.fullmatch(form):
            return form.partition(":")[0]
        if "1" not in form:
            return form
        day = _decided(self.days)
        return None if day is None else form.replace(day, "%d").replace("2" if day == "1" else "1", "%m")


def _form(found: re.Match[str]) -> str:
    """Return the hint for one text, with `1` and `2` for day and month in their order in the text."""
    separator = found["s1"] or found["s2"]
    form = separator.join(("%Y", "%m", "%d") if found["y"] else ("1", "2", "%Y"))
    if found["t"] is None:
        return f"date:{form}"
    clock = ("%I" if found["p"] else "%H") + ":%M" + (":%S" if found["S"] else "") + (".%f" if found["f"] else "")
    half = found["p"][:-2] + "%p" if found["p"] else ""
    offset = " %z" if found["z"] and found["z"][0] == " " else "%z" if found["z"] else ""
    return f"timestamp:{form}{found['t']}{clock}{half}{offset}"


def _decided(votes: Counter[str]) -> str | None:
    """Return the choice of nearly all votes; None without votes."""
    total = votes.total()
    winner, most = votes.most_common(1)[0] if total else ("", 0)
    return winner if total and most >= SHARE * total else None


@dataclass(slots=True)
class _Numbers:
    """Evidence of numbers: `points`, `groups` from values that can be read in one way only, `doubts` from others."""

    count: int = 0
    is_code: bool = False
    has_fraction: bool = False
    has_blank: bool = False
    lengths: set[int] = field(default_factory=set)
    points: Counter[str] = field(default_factory=Counter)
    groups: Counter[str] = field(default_factory=Counter)
    doubts: set[str] = field(default_factory=set)
    money: set[tuple[str, str]] = field(default_factory=set)
    scale: int = 0
    digits: int = 0

    def add(self, found: re.Match[str]) -> None:
        number = found["number"]
        whole, fraction, grouped = (kind.fullmatch(number) for kind in (_WHOLE, _FRACTION, _GROUPED))
        if whole is None and fraction is None and grouped is None:
            return
        self.count += 1
        self.is_code = self.is_code or bool(re.match("0[0-9]", number))
        self.has_blank = self.has_blank or bool(found["gap1"] or found["gap2"])
        if found["before"] or found["after"]:
            self.money.add((found["before"] or "", found["after"] or ""))
        self.digits = max(self.digits, sum(map(str.isdigit, number)))
        if whole is not None:
            self.lengths.add(len(number))
        elif grouped is not None and fraction is not None and not number.startswith("0"):
            self.doubts.add(fraction["point"])  # 1.234 may be one or a thousand
        elif fraction is not None:
            self._add_fraction(fraction)
        elif grouped is not None:
            group = " " if grouped["group"] in _BLANKS else grouped["group"]
            self.groups[group] += 1
            if grouped["point"] is not None:
                self._add_fraction(grouped)
            elif group in _OTHER:
                self.points[_OTHER[group]] += 1

    def _add_fraction(self, found: re.Match[str]) -> None:
        self.has_fraction = True
        self.points[found["point"]] += 1
        self.scale = max(self.scale, len(found["digits"]))

    def hint(self) -> str | None:
        if self.is_code or len(self.money) > 1:
            return None
        if not (self.has_fraction or self.doubts or self.groups or self.money):
            return self._whole()
        point, group = _decided(self.points), _decided(self.groups) or ""
        if point is None or not self.has_fraction or (self.groups and not group) or group == point:
            return None
        if _OTHER[point] in self.doubts:
            if group not in ("", _OTHER[point]):
                return None
            group = _OTHER[point]
        return self._decimal(group, point, max(self.scale, _GROUP) if point in self.doubts else max(self.scale, 2))

    def _whole(self) -> str | None:
        longest = max(self.lengths)
        is_code = longest >= _LONGEST_WHOLE or (len(self.lengths) == 1 and longest >= _CODE_LENGTH)
        return None if is_code else "bigint"

    def _decimal(self, group: str, point: str, scale: int) -> str | None:
        precision = next((p for p in _PRECISIONS if p >= self.digits + _ROOM), None)
        if scale > _WIDEST_SCALE or precision is None:
            return None
        plain = f"decimal({precision},{scale})"
        before, after = next(iter(self.money), ("", ""))
        if not (group or before or after) and point == ".":
            return plain
        gap = " " if self.has_blank else ""
        example = f"1{group}234{point}56"
        return f"{plain}:{before}{gap if before else ''}{example}{gap if after else ''}{after}"
