"""Decide whether an import may have changed without a change of its `updated_at`.

Invariant: an import counts as settled only if its records were requested, and the reply of a cache or a replica was
created, after the service's clock had passed the unit of its `updated_at`: a later change then gets a later time, and
the next listing shows it. Some of a service's times may be cut to minutes though others are not, so the unit of a full
minute is a minute at least. The lag of a replica is unknown, so `REPLICAS_LAG` is assumed for any. A time without an
offset may be local time anywhere, so the condition has to hold for every offset in use: all whole quarters of an hour.
Where clocks go back, a local time occurs twice, so it has to hold for the second time as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from functools import cache
from math import gcd
from zoneinfo import ZoneInfo

MICROSECOND, SECOND, MINUTE = timedelta(microseconds=1), timedelta(seconds=1), timedelta(minutes=1)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
UNITS = (MINUTE, SECOND, timedelta(milliseconds=1), MICROSECOND)
LOCAL_UNITS = (  # those of which a full one is not full at every offset, and of a clock that is read now and then
    *(timedelta(hours=n) for n in (24, 12, 8, 6, 4, 3, 2, 1)),
    *(timedelta(minutes=n) for n in (30, 20, 15, 10, 5)),
)
REPLICAS_LAG = timedelta(seconds=30)  # the assumed lag of the replica that records are read from, behind the listing
MOST_AHEAD = timedelta(days=2)  # a time a day ahead of ours and the service's clock, which are a day apart at most
OFFSETS = tuple(timedelta(minutes=15) * quarters for quarters in range(-12 * 4, 14 * 4 + 1))  # of local time from UTC
# Where clocks go back each year, one time zone for each local time and instant at which they do.
CLOCKS_GO_BACK = (
    *(f"Africa/{city}" for city in ("Cairo", "Casablanca")),
    *(f"America/{city}" for city in ("Adak", "Anchorage", "Chicago", "Denver", "Halifax", "Havana", "Los_Angeles")),
    *(f"America/{city}" for city in ("Miquelon", "New_York", "Nuuk", "Santiago", "St_Johns")),
    *(f"Asia/{city}" for city in ("Beirut", "Gaza", "Jerusalem")),
    *(f"Australia/{city}" for city in ("Adelaide", "Lord_Howe", "Sydney")),
    *(f"Europe/{city}" for city in ("Athens", "Berlin", "Chisinau", "Lisbon")),
    *(f"Pacific/{city}" for city in ("Auckland", "Chatham", "Easter", "Norfolk")),
    *("Antarctica/Troll", "Atlantic/Azores"),
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def resolution(instants: Iterable[datetime]) -> timedelta:
    """Return the unit of the service's times: the largest one of which all are multiples.

    A small number of times does no harm: if the only one is a full minute by chance, its import is read again within
    that minute.
    """
    times = {(instant - _EPOCH) // MICROSECOND for instant in instants}
    if not times:
        return SECOND
    for unit in LOCAL_UNITS:
        if _are_local_multiples(times, unit):
            return unit
    step = gcd(*times)
    return next(unit for unit in UNITS if step % (unit // MICROSECOND) == 0)


def _are_local_multiples(times: Collection[int], unit: timedelta) -> bool:
    """Return whether all are full units in one time zone, where midnight is an hour earlier in summer."""
    size = unit // MICROSECOND
    # of two hours, every hour would be a full one in winter or in summer
    full = {0, -(HOUR // MICROSECOND) % size} if unit > 2 * HOUR else {0}
    offsets = (offset // MICROSECOND for offset in OFFSETS)
    return any(all((time + offset) % size in full for time in times) for offset in offsets)


def may_change_unseen(
    updated_at: datetime,
    reached: datetime,
    unit: timedelta,
    *,
    naive: bool = False,
    clock_uncertainty: timedelta = MINUTE,
    clock_difference: timedelta = timedelta(0),
    age: timedelta = timedelta(0),
) -> bool:
    """Return whether a change after `reached` may leave `updated_at` unchanged.

    `reached` is an instant that the service's clock had passed, by `clock_uncertainty` at most, when the records were
    requested. A `naive` time has no offset: about one in fifteen of all times is within a minute of `reached` at one of
    the offsets, and few still are when they are read again; where clocks go back over it, it occurs once more. A
    `clock_difference` is how far another clock was from the service's, if that is so much that either may be wrong:
    then the time has to be settled by both. The reply may have that `age`, and then lacks later changes.
    """
    # some times may be cut to minutes, or be only dates, where others are not
    own = max([unit, *(each for each in (MINUTE, DAY) if (updated_at - _EPOCH) % each == timedelta(0))])
    ahead, least = updated_at - reached, -own - age
    if least < ahead <= MOST_AHEAD or (clock_difference and least < ahead - clock_difference <= clock_uncertainty):
        return True
    if not naive:
        return False
    most = dict.fromkeys(OFFSETS, clock_uncertainty) | dict.fromkeys(_second_offsets(updated_at), MOST_AHEAD)
    clocks = {timedelta(0), clock_difference}
    return any(least < ahead - clock - offset <= limit for offset, limit in most.items() for clock in clocks)


def _second_offsets(shown: datetime) -> set[timedelta]:
    """Return the offsets from UTC at which a local time occurs for the second time, where clocks go back over it."""
    local = shown.replace(tzinfo=None)
    offsets = set()
    for zone in _zones():
        first, second = zone.utcoffset(local), zone.utcoffset(local.replace(fold=1))
        if first is not None and second is not None and first > second:
            offsets.add(second)
    return offsets


@cache
def _zones() -> tuple[ZoneInfo, ...]:
    return tuple(map(ZoneInfo, CLOCKS_GO_BACK))
