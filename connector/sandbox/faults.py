"""Inject faults between the service and its clients, each with a seeded probability."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from email.utils import format_datetime
from random import Random
from typing import Literal

from connector.sandbox.messages import Request, Response, error_response, html_response
from connector.sandbox.seeding import number

RetryAfter = Literal["seconds", "date", "zero", "missing", "mixed"]
REMEMBERED_URLS = 8192
SERVER_ERRORS = {500: "Internal Server Error", 502: "Bad Gateway", 503: "Service Unavailable"}
FORMS: tuple[RetryAfter, ...] = ("seconds", "date", "zero", "missing")


@dataclass(frozen=True, slots=True)
class Faults:
    """Probabilities from 0 to 1; the kinds exclude each other, so they add up to 1 at most.

    A draw depends on the seed, the URL and the number of requests for it, and on nothing else.
    `max_consecutive`: after so many faults in a row a URL answers, so a client that tries once more than
    that always gets through (not to `failing_imports`, whose records always answer 500, nor to `misrouted_imports`,
    which are listed and whose own address answers 404).
    `rate_limit_rps` is not a probability but a limit: a bucket of `rate_limit_burst` requests that fills at that rate.
    """

    latency: tuple[float, float] = (0.0, 0.0)
    rate_limited: float = 0.0
    retry_after: RetryAfter = "seconds"
    retry_after_s: int = 1
    server_error: float = 0.0
    reset: float = 0.0
    cut: float = 0.0
    html_200: float = 0.0
    failing_imports: Set[str] = field(default_factory=set)
    misrouted_imports: Set[str] = field(default_factory=set)
    rate_limit_rps: float | None = None
    rate_limit_burst: int = 1
    max_consecutive: int | None = None

    def __post_init__(self) -> None:
        if min(self.shares()) < 0 or sum(self.shares()) > 1 + 1e-9:
            raise ValueError("fault probabilities are from 0 to 1 and add up to 1 at most")

    def shares(self) -> tuple[float, ...]:
        return (self.rate_limited, self.server_error, self.reset, self.cut, self.html_200)


KINDS = ("rate_limited", "server_error", "reset", "cut", "html_200")


@dataclass(frozen=True, slots=True)
class Draw:
    """The fault of one request."""

    kind: str | None
    delay_s: float
    number: int


class FaultGenerator:
    """A generator of faults, which counts the faults in a row for each of the last few thousand URLs."""

    def __init__(self, seed: int, wall_clock: Callable[[], datetime], monotonic: Callable[[], float]) -> None:
        self._seed = seed
        self._wall_clock = wall_clock
        self._monotonic = monotonic
        self._visits: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._forgotten = 0
        self._bucket: tuple[float, float] | None = None

    def draw(self, faults: Faults, request: Request) -> Draw:
        if not any(faults.shares()) and not any(faults.latency):
            return Draw(None, 0.0, 0)
        url = f"{request.method} {request.path} {sorted(request.query.items())}"
        visit, in_a_row = self._visits.pop(url, (0, 0))
        dice = Random(number(self._seed, url, visit, self._forgotten // REMEMBERED_URLS))
        delay_s, kind = dice.uniform(*faults.latency), self._kind(faults, dice.random())
        if faults.max_consecutive is not None and in_a_row >= faults.max_consecutive:
            kind = None
        self._visits[url] = (visit + 1, in_a_row + 1 if kind else 0)
        if len(self._visits) > REMEMBERED_URLS:
            self._visits.popitem(last=False)
            self._forgotten += 1
        return Draw(kind, delay_s, dice.getrandbits(32))

    def before(self, faults: Faults, draw: Draw) -> Response | None:
        """Return the reply of a proxy in front of the service, if it does not pass on the request."""
        wait_s = self._over_limit(faults)
        if wait_s is not None:
            return error_response(429, "rate_limited", "Too many requests.", retry_after=str(math.ceil(wait_s)))
        if draw.kind == "rate_limited":
            return self._rate_limited(faults, draw)
        if draw.kind == "server_error":
            status = list(SERVER_ERRORS)[draw.number % len(SERVER_ERRORS)]
            return html_response(status, f"{status} {SERVER_ERRORS[status]}")
        if draw.kind == "html_200":
            return html_response(200, "Down for maintenance")
        if draw.kind == "reset":
            return Response(503, {}, b"", fault="reset")
        return None

    def after(self, draw: Draw, response: Response) -> Response:
        cut = draw.kind == "cut" and response.body
        return replace(response, delay_s=draw.delay_s, fault="cut" if cut else response.fault)

    def _kind(self, faults: Faults, drawn: float) -> str | None:
        for kind, probability in zip(KINDS, faults.shares(), strict=True):
            drawn -= probability
            if drawn < 0:
                return kind
        return None

    def _rate_limited(self, faults: Faults, draw: Draw) -> Response:
        form = faults.retry_after
        if form == "mixed":
            form = FORMS[draw.number % len(FORMS)]
        if form == "missing":
            return error_response(429, "rate_limited", "Too many requests.")
        wait_s = 0 if form == "zero" else faults.retry_after_s
        value = str(wait_s)
        if form == "date":
            moment = self._wall_clock() + timedelta(seconds=wait_s)
            if moment.microsecond:  # an HTTP date has whole seconds, and must not come too early
                moment = moment.replace(microsecond=0) + timedelta(seconds=1)
            value = format_datetime(moment, usegmt=True)
        return error_response(429, "rate_limited", "Too many requests.", retry_after=value)

    def _over_limit(self, faults: Faults) -> float | None:
        """Take a request out of the bucket and return None, or return the seconds until the bucket holds one."""
        if faults.rate_limit_rps is None:
            return None
        now = self._monotonic()
        held, since = self._bucket or (float(faults.rate_limit_burst), now)
        held = min(float(faults.rate_limit_burst), held + (now - since) * faults.rate_limit_rps)
        allowed = held >= 1
        self._bucket = (held - 1 if allowed else held, now)
        return None if allowed else (1 - held) / faults.rate_limit_rps
