"""Decide, by this table, which failures are retried, after how long, and which error is raised in the end.

===================================  ==================  ================
outcome                              retried             error in the end
===================================  ==================  ================
401, 403                             never               AuthError
404, 410                             never               NotFoundError
429, and any retryable reply with    within the waiting  TransientError
a `Retry-After`                      budget
the same with a `Retry-After`        error attempts      TransientError
longer than that budget
408, 425, 5xx, time-out, connection  error attempts      TransientError
lost, body cut short or empty
the same while nobody answers at     until the outage    TransientError
all: no connection, 502 to 504, …    is too long
not JSON, not HTTP                   garbage attempts    ContractError
other statuses, wrong shape          never               ContractError
reply too large, 413                 never               TooLargeError
certificate not trusted              never               ConfigError
===================================  ==================  ================

All failures of a request during one outage (`outage`) count as one error attempt, so that the client waits for a
restart of the service, but gives up a request that fails while others are answered.

No call is retried once it has reached the maximum duration of a call (`limits`).

A request that must not be executed twice is retried only after a 429 or 503, which mean that the service did not act.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from random import Random

from connector.errors import (
    AuthError,
    ConfigError,
    ConnectorError,
    ContractError,
    NotFoundError,
    TooLargeError,
    TransientError,
)

_ANY_MOMENT = datetime(2000, 1, 1, tzinfo=UTC)  # to test whether a header can be parsed
_SECONDS = re.compile(r"[0-9]{1,15}(\.[0-9]*)?", re.ASCII)


class Trouble(enum.Enum):
    """The kind of failure of one attempt."""

    STATUS = "status"
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    CERTIFICATE = "certificate"
    PLAIN = "no TLS"
    CUT = "cut"
    GARBAGE = "garbage"
    SHAPE = "shape"
    TOO_LARGE = "too large"


class Budget(enum.Enum):
    """The budget that limits the retries of a failure."""

    NONE = "none"
    ERRORS = "errors"
    GARBAGE = "garbage"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class AttemptFailure:
    """An attempt that did not succeed; `words` completes "the service …", `advice` says what to do if that is known."""

    trouble: Trouble
    words: str
    status: int | None = None
    retry_after: str | None = None
    too_long: bool = False  # its `Retry-After` was longer than a call may wait
    advice: str | None = None


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to retry; times in seconds, attempts include the first."""

    error_attempts: int = 6
    garbage_attempts: int = 3
    base_s: float = 0.3
    backoff_cap_s: float = 20.0
    retry_after_cap_s: float = 120.0
    wait_budget_s: float = 300.0
    outage_s: float = 90.0  # a restart takes up to a minute

    def attempts(self, budget: Budget) -> float:
        return {
            Budget.NONE: 1,
            Budget.ERRORS: self.error_attempts,
            Budget.GARBAGE: self.garbage_attempts,
            Budget.WAITING: float("inf"),
        }[budget]


QUICK = RetryPolicy(error_attempts=3, wait_budget_s=30.0, outage_s=0.0)
"""The policy for a person who waits at the terminal to see what is wrong."""
WATCHED = RetryPolicy(error_attempts=3, outage_s=0.0)
"""The policy for a person who watches a long listing: wait for a rate limit, but not for an absent service."""


@dataclass(frozen=True, slots=True)
class Retry:
    delay_s: float


@dataclass(frozen=True, slots=True)
class Raise:
    kind: type[ConnectorError]


@dataclass(frozen=True, slots=True)
class _Rule:
    budget: Budget
    kind: type[ConnectorError]


_FATAL = _Rule(Budget.NONE, ContractError)
_ERROR = _Rule(Budget.ERRORS, TransientError)
_THROTTLE = _Rule(Budget.WAITING, TransientError)

_BY_STATUS = {
    401: _Rule(Budget.NONE, AuthError),
    403: _Rule(Budget.NONE, AuthError),
    404: _Rule(Budget.NONE, NotFoundError),
    410: _Rule(Budget.NONE, NotFoundError),
    413: _Rule(Budget.NONE, TooLargeError),
    408: _ERROR,
    425: _ERROR,
    429: _THROTTLE,
}
_BY_TROUBLE = {
    Trouble.TIMEOUT: _ERROR,
    Trouble.CONNECTION: _ERROR,
    Trouble.CUT: _ERROR,
    Trouble.GARBAGE: _Rule(Budget.GARBAGE, ContractError),
    Trouble.SHAPE: _FATAL,
    Trouble.TOO_LARGE: _Rule(Budget.NONE, TooLargeError),
    Trouble.CERTIFICATE: _Rule(Budget.NONE, ConfigError),
    Trouble.PLAIN: _Rule(Budget.NONE, ConfigError),
}
_NOT_CARRIED_OUT = frozenset({429, 503})
_UNAVAILABLE = frozenset({502, 503, 504, *range(520, 528), 530})  # sent by a proxy in front of the service


def decide(
    outcome: AttemptFailure,
    attempt: int,
    waited: float,
    policy: RetryPolicy,
    random: Random,
    now: datetime,
    *,
    once: bool = False,
) -> Retry | Raise:
    """Decide what to do after the `attempt`-th failure (counted from 1) with the same budget.

    `waited` is the time that this call has waited so far; `once` marks a request that must not be executed twice.
    """
    rule = _rule(outcome)
    if once and outcome.status not in _NOT_CARRIED_OUT:
        return Raise(rule.kind)
    if attempt >= policy.attempts(rule.budget):
        return Raise(rule.kind)
    delay_s = _delay(outcome, rule.budget, attempt, policy, random, now)
    return Raise(rule.kind) if waited + delay_s > policy.wait_budget_s else Retry(delay_s)


def without_endless_wait(outcome: AttemptFailure, policy: RetryPolicy, now: datetime) -> AttemptFailure:
    """Drop a `Retry-After` longer than the whole waiting budget; such a reply is retried a few times, as an error."""
    asked_s = retry_after_s(outcome.retry_after, now)
    if asked_s is None or asked_s <= policy.wait_budget_s:
        return outcome
    words = f"{outcome.words} (with a pause of {asked_s:,.0f} s, too long to wait)"
    return replace(outcome, words=words, retry_after=None, too_long=True)


def is_unreachable(outcome: AttemptFailure) -> bool:
    """Return whether the service gave no answer, and no `Retry-After` says for how long."""
    nobody = outcome.trouble is Trouble.CONNECTION or outcome.status in _UNAVAILABLE
    return nobody and budget_of(outcome) is Budget.ERRORS


def is_reachable(outcome: AttemptFailure) -> bool:
    """Return whether the service itself answered, even with an error."""
    return outcome.trouble is Trouble.STATUS and (outcome.status or 0) // 100 < 5


def budget_of(outcome: AttemptFailure) -> Budget:
    """Return the budget of a failure; the caller counts attempts for each."""
    return _rule(outcome).budget


def error_of(outcome: AttemptFailure) -> type[ConnectorError]:
    """Return the error that is raised for the failure in the end."""
    return _rule(outcome).kind


def retry_after_s(value: str | None, now: datetime) -> float | None:
    """Return a `Retry-After` header, in either form, as seconds from `now`; None if it is absent or unreadable."""
    if value is None:
        return None
    value = value.strip()
    if _SECONDS.fullmatch(value):
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return max(0.0, (moment - now).total_seconds())
    except (ValueError, OverflowError, TypeError, IndexError):
        return None


def _rule(outcome: AttemptFailure) -> _Rule:
    if outcome.trouble is not Trouble.STATUS:
        return _BY_TROUBLE[outcome.trouble]
    status = outcome.status or 0
    rule = _BY_STATUS.get(status) or (_ERROR if 500 <= status <= 599 else _FATAL)
    if outcome.too_long and rule is _THROTTLE:
        return _ERROR
    if rule is _ERROR and retry_after_s(outcome.retry_after, _ANY_MOMENT) is not None:
        return _THROTTLE
    return rule


def _delay(
    outcome: AttemptFailure, budget: Budget, attempt: int, policy: RetryPolicy, random: Random, now: datetime
) -> float:
    ceiling_s = min(policy.backoff_cap_s, policy.base_s * 2.0 ** min(attempt - 1, 30))
    if budget is not Budget.WAITING:
        return random.uniform(0, ceiling_s)
    asked_s = retry_after_s(outcome.retry_after, now)
    if asked_s:
        # a little later than requested, so that clients with the same `Retry-After` do not all return at once
        return min(asked_s, policy.retry_after_cap_s) + random.uniform(0, policy.base_s)
    return random.uniform(ceiling_s / 2, ceiling_s)
