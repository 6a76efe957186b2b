"""Read the service's clock, and how old its replies are, from the `Date` and `Age` headers of replies."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import lru_cache

SERVICE_CLOCKS_DIFFER = timedelta(seconds=2)  # between the machine that replies and the one that sets `updated_at`
OUR_CLOCK_DIFFERS = timedelta(minutes=5)
MAX_CLOCK_DIFFERENCE = timedelta(days=1)  # from our clock; a `Date` further off is not the time of any clock
_AGE = re.compile(r"[0-9]{1,9}", re.ASCII)  # seconds


class ServiceClock:
    """The service's clock as its replies show it; `now` is the clock of this machine."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._dated: datetime | None = None  # the `Date` of the latest reply
        self._difference = timedelta(0)  # its difference from this machine's clock when it arrived
        self._newest: datetime | None = None  # the latest `Date` that can be the time of a clock
        self._ages: dict[str, timedelta] = {}  # import → age of the oldest reply about it, where a cache sent one

    def time(self) -> datetime:
        """Return an instant that the service's clock has passed.

        It is the `Date` of the latest reply, because only the service's own clock can be compared with `updated_at`. If
        the service sends no `Date`, or one that no clock shows today, it is this machine's clock, which may differ by
        more.
        """
        dated = self._credible_date()
        return self._now() - OUR_CLOCK_DIFFERS if dated is None else dated - SERVICE_CLOCKS_DIFFER

    @property
    def uncertainty(self) -> timedelta:
        """Return how far the service's clock may be ahead of `time()`.

        Clocks of machines differ by less than a minute.
        """
        return 2 * OUR_CLOCK_DIFFERS if self._credible_date() is None else timedelta(minutes=1)

    @property
    def difference(self) -> timedelta:
        """Return the difference between the service's `Date` and this machine's clock if either may be wrong."""
        return self._difference if self._dated is not None and self._credible_date() is None else timedelta(0)

    def age_of(self, slug: str) -> timedelta:
        """Return how old the oldest reply about an import and its records was when it arrived."""
        return self._ages.get(slug, timedelta(0))

    def note(self, date: str | None, age: str | None, import_slug: str | None) -> None:
        """Note the headers of a reply, which may be about one import."""
        dated = _instant(date)
        if dated is not None:
            self._dated, self._difference = dated, dated - self._now()
            if abs(self._difference) <= MAX_CLOCK_DIFFERENCE:
                self._newest = max(self._newest or dated, dated)
        if import_slug is not None:
            self._note_age(import_slug, age, dated)

    def _note_age(self, slug: str, age_header: str | None, dated: datetime | None) -> None:
        """Note the age of a reply: the `Age` of a cache, or the lag of its `Date` behind the latest one if larger."""
        has_age = age_header is not None and _AGE.fullmatch(age_header.strip())
        age = timedelta(seconds=int(has_age[0])) if has_age else timedelta(0)
        if dated is not None and self._newest is not None:
            age = max(age, self._newest - dated)
        if age > max(self.age_of(slug), SERVICE_CLOCKS_DIFFER):
            self._ages[slug] = age

    def _credible_date(self) -> datetime | None:
        return self._dated if abs(self._difference) <= MAX_CLOCK_DIFFERENCE else None


@lru_cache(maxsize=16)  # replies within a second have the same date
def _instant(date: str | None) -> datetime | None:
    """Return the `Date` header of a reply as an instant; None if it is absent or unreadable."""
    try:
        found = parsedate_to_datetime(date or "")
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
