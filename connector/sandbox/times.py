"""Write instants: the interface says ISO 8601, which leaves zone and fraction open."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache

from connector.sandbox.seeding import number
from connector.sandbox.switches import Fraction, Zone

OFFSET = timezone(timedelta(hours=2))
MIXED_ZONES = (UTC, OFFSET, timezone(timedelta(hours=-5)), timezone(timedelta(hours=5, minutes=30)))
PRECISIONS = {0: "seconds", 3: "milliseconds", 6: "microseconds"}


@lru_cache(maxsize=4096)
def time_text(instant: datetime, zone: Zone, fraction: Fraction) -> str:
    """Return the instant as text.

    The same instant is always written in the same way, so comparing texts seems to work although it is wrong. With
    `fraction="mixed"` only zeros are left out: a mixed precision never changes the instant.
    """
    instant = instant.astimezone(UTC)
    if fraction == "mixed":
        exact = [digits for digits in (0, 3, 6) if instant.microsecond % 10 ** (6 - digits) == 0]
        precision = PRECISIONS[exact[number("fraction", instant) % len(exact)]]
    else:
        precision = PRECISIONS[fraction]
    if zone == "mixed":
        instant = instant.astimezone(MIXED_ZONES[number("zone", instant) % len(MIXED_ZONES)])
    elif zone == "offset":
        instant = instant.astimezone(OFFSET)
    if zone == "naive":
        return instant.replace(tzinfo=None).isoformat(timespec=precision)
    return instant.isoformat(timespec=precision).replace("+00:00", "Z")
