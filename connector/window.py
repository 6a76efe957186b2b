"""Define a window of time on an import's `updated_at`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from connector.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Window:
    """A half-open interval `[since, until)` with optional ends in UTC; a time without an offset counts as UTC."""

    since: datetime | None = None
    until: datetime | None = None

    def __post_init__(self) -> None:
        for name in ("since", "until"):
            object.__setattr__(self, name, _utc(name, getattr(self, name)))

    def contains(self, instant: datetime) -> bool:
        return (self.since is None or instant >= self.since) and (self.until is None or instant < self.until)


def _utc(name: str, value: datetime | None) -> datetime | None:
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise ConfigError(f"{name} of a window takes a datetime, and {value!r} is none.")
    try:
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except OverflowError:
        raise ConfigError(f"{name} of a window, {value}, is no time in UTC: leave it out.") from None
