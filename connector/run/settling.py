"""Whether an import can change without its `updated_at` showing it.

Invariant: an import counts as settled only if its records were asked for once the service's clock had left the unit of
its `updated_at` behind: a later change then gets a later time, and the next listing shows it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from math import gcd

MICROSECOND, SECOND = timedelta(microseconds=1), timedelta(seconds=1)
FINE_UNITS = (SECOND, timedelta(milliseconds=1), MICROSECOND)
COARSE_UNITS = (timedelta(days=1), timedelta(hours=1), timedelta(minutes=1))
COARSE_TIMES = 3  # different times that agree before a unit above a second is believed
MOST_AHEAD = timedelta(days=1)  # a time further ahead of the service's clock was not taken from it
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def resolution(instants: Iterable[datetime]) -> timedelta:
    """Return the unit that the service's times are written in: the largest that all of them are multiples of."""
    distinct = {(instant - _EPOCH) // MICROSECOND for instant in instants}
    step = gcd(*distinct)
    units = (*COARSE_UNITS, *FINE_UNITS) if len(distinct) >= COARSE_TIMES else FINE_UNITS
    return next(unit for unit in units if step % (unit // MICROSECOND) == 0)


def may_change_unseen(updated_at: datetime, reached: datetime, unit: timedelta) -> bool:
    """Return whether a change after `reached` may leave `updated_at` as it is.

    `reached` is an instant that the service's clock had passed when the records were asked for.
    """
    return -unit < updated_at - reached <= MOST_AHEAD
