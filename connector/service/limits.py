"""Define all limits on replies in one table, from which docs/limits.md is generated. `retry` decides what follows.

Invariant: whatever a service sends, no reply takes more memory or time than this table says. A reply beyond a limit is
a classified outcome of that one request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

MIB = 1024 * 1024
FEW = 10  # a page of so few elements cannot be shortened much


@dataclass(frozen=True, slots=True)
class Limit:
    """What a limit applies to, and what happens to a reply beyond it."""

    on: str
    beyond: str


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of each client; sizes in bytes, times in seconds."""

    reply_bytes: Annotated[
        int,
        Limit(
            "a reply as it arrives, and once it is unpacked", "an import is requested in shorter pages, a listing fails"
        ),
    ] = 32 * MIB  # a hundred rows of 300 kB
    # such a page cannot be shortened much
    short_reply_bytes: Annotated[int, Limit(f"the same, of a page of at most {FEW} elements", "the import fails")] = (
        256 * MIB
    )
    in_flight_bytes: Annotated[
        int, Limit("all replies together as they arrive", "those with more than their share take turns")
    ] = 64 * MIB
    gzip_members: Annotated[int, Limit("parts of a gzip body", "tried again as an invalid reply")] = 100
    elements: Annotated[int, Limit("elements of a page, of which 100 are requested", "the request fails")] = 1_000
    nesting: Annotated[int, Limit("brackets within brackets in an element", "the element is rejected")] = 100_000
    connect_s: Annotated[float, Limit("until there is a connection", "tried again as an error")] = 10.0
    silence_s: Annotated[float, Limit("until the next byte", "tried again as an error")] = 60.0
    least_rate: Annotated[int, Limit("bytes a second of a body on average, at least", "tried again as an error")] = 1024
    slow_start_s: Annotated[float, Limit("of a body", "from then on its rate counts")] = 30.0
    attempt_s: Annotated[float, Limit("from a request to the end of its reply", "tried again as an error")] = 300.0
    call_s: Annotated[
        float, Limit("all attempts of a call with the pauses between them", "not tried again, whatever the error")
    ] = 900.0


LIMITS = Limits()
QUICK_LIMITS = Limits(attempt_s=30.0, call_s=60.0)
"""The limits for commands with which a person waits at the terminal."""


class Stopwatch:
    """A stopwatch for the attempts of a call; time spent waiting for their turn does not count."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._began_s = 0.0
        self.s = 0.0

    def __enter__(self) -> None:
        self._began_s = self._monotonic()

    def __exit__(self, *_: object) -> None:
        self.s += self._monotonic() - self._began_s
