"""Parse lengths of time such as 90s, 15m, 6h, 2d, 1w."""

from __future__ import annotations

import re
from datetime import timedelta

_WRITTEN = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def parse_duration(text: str) -> timedelta:
    """Return the length of time. Raises ValueError with the accepted forms."""
    found = _WRITTEN.fullmatch(text.strip().lower())
    try:
        if found is not None:
            return timedelta(seconds=float(found[1]) * _SECONDS[found[2]])
    except OverflowError:
        pass
    raise ValueError(f"{text!r} is not a length of time, such as 90s, 15m, 6h or 2d")
