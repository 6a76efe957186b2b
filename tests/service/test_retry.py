"""The table: every kind of outcome, what is tried again, how long it waits, what it ends in."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime
from random import Random

import pytest

from connector.errors import (
    AuthError,
    ConfigError,
    ConnectorError,
    ContractError,
    NotFoundError,
    TooLargeError,
    TransientError,
)
from connector.service.retry import (
    AttemptFailure,
    Budget,
    Raise,
    Retry,
    RetryPolicy,
    Trouble,
    budget_of,
    decide,
    retry_after_s,
    without_endless_wait,
)

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
POLICY = RetryPolicy()


def status(code: int, retry_after: str | None = None) -> AttemptFailure:
    return AttemptFailure(Trouble.STATUS, f"answered {code}", code, retry_after)


def verdict(
    outcome: AttemptFailure, attempt: int = 1, waited: float = 0, *, once: bool = False, seed: int = 1
) -> Retry | Raise:
    return decide(outcome, attempt, waited, POLICY, Random(seed), NOW, once=once)


@pytest.mark.parametrize(
    ("outcome", "tries", "kind"),
    [
        (status(401), 1, AuthError),
        (status(403), 1, AuthError),
        (status(404), 1, NotFoundError),
        (status(410), 1, NotFoundError),
        *((status(code), 1, ContractError) for code in (301, 302, 304, 307, 400, 405, 409, 422, 451)),
        *((status(code), 6, TransientError) for code in (408, 425, 500, 501, 502, 503, 504, 520, 599)),
        (AttemptFailure(Trouble.TIMEOUT, ""), 6, TransientError),
        (AttemptFailure(Trouble.CONNECTION, ""), 6, TransientError),
        (AttemptFailure(Trouble.CUT, "", 200), 6, TransientError),
        (AttemptFailure(Trouble.GARBAGE, "", 200), 3, ContractError),
        (AttemptFailure(Trouble.SHAPE, "", 200), 1, ContractError),
        (AttemptFailure(Trouble.TOO_LARGE, "", 200), 1, TooLargeError),
        (AttemptFailure(Trouble.STATUS, "", 413), 1, TooLargeError),
        (AttemptFailure(Trouble.CERTIFICATE, ""), 1, ConfigError),
    ],
    ids=str,
)
def test_each_outcome_has_its_number_of_attempts_and_its_error(
    outcome: AttemptFailure, tries: int, kind: type[ConnectorError]
) -> None:
    verdicts = [verdict(outcome, attempt) for attempt in range(1, tries + 1)]
    assert all(isinstance(each, Retry) for each in verdicts[:-1])
    assert verdicts[-1] == Raise(kind)


def test_backoff_is_exponential_with_full_jitter_and_a_cap() -> None:
    policy = RetryPolicy(error_attempts=100, wait_budget_s=1e9)
    for attempt, ceiling in [(1, 0.3), (2, 0.6), (3, 1.2), (7, 19.2), (8, 20.0), (60, 20.0)]:
        delays = []
        for seed in range(300):
            found = decide(status(500), attempt, 0, policy, Random(seed), NOW)
            assert isinstance(found, Retry)
            delays.append(found.delay_s)
        assert 0 <= min(delays) < ceiling * 0.1
        assert ceiling * 0.9 < max(delays) <= ceiling


@pytest.mark.parametrize("code", [429, 408, 500, 503, 504])
@pytest.mark.parametrize(
    ("header", "at_least"),
    [
        ("7", 7),
        (" 7 ", 7),
        ("1.5", 1.5),
        (format_datetime(NOW + timedelta(seconds=9), usegmt=True), 9),
        (format_datetime((NOW + timedelta(seconds=9)).astimezone(timezone(timedelta(hours=5)))), 9),
        ("Sunday, 01-Mar-26 12:00:09 GMT", 9),
        ("299", 120),
    ],
)
def test_retry_after_is_honoured_in_both_forms(code: int, header: str, at_least: float) -> None:
    for attempt in (1, 7, 50):
        found = verdict(status(code, header), attempt)
        assert isinstance(found, Retry)
        assert at_least <= found.delay_s <= at_least + POLICY.base_s


@pytest.mark.parametrize("code", [429, 408, 500, 503])
@pytest.mark.parametrize("header", ["999999999", "301", format_datetime(NOW + timedelta(days=9), usegmt=True)])
def test_a_pause_longer_than_the_budget_is_not_waited_for(code: int, header: str) -> None:
    given = without_endless_wait(status(code, header), POLICY, NOW)
    assert budget_of(given) is Budget.ERRORS
    assert "too long to wait" in given.words
    delays = [verdict(given, attempt) for attempt in range(1, POLICY.error_attempts)]
    assert all(isinstance(each, Retry) and each.delay_s <= POLICY.backoff_cap_s for each in delays)
    assert verdict(given, POLICY.error_attempts) == Raise(TransientError)


def test_a_pause_within_the_budget_stays() -> None:
    assert without_endless_wait(status(429, "300"), POLICY, NOW) == status(429, "300")
    final = without_endless_wait(status(404, "301"), POLICY, NOW)
    assert verdict(final) == Raise(NotFoundError)


@pytest.mark.parametrize("header", ["0", "Sun, 01 Mar 2026 11:00:00 GMT", None, "soon", "-5", "", "٣", "1e9", "nan"])
def test_a_429_without_a_usable_time_still_waits_and_burns_no_attempts(header: str | None) -> None:
    for attempt in (1, 6, 200):
        found = verdict(status(429, header), attempt)
        assert isinstance(found, Retry)
        assert found.delay_s >= min(POLICY.base_s * 2 ** (attempt - 1), POLICY.backoff_cap_s) / 2


def test_throttling_ends_with_the_waiting_budget() -> None:
    assert isinstance(verdict(status(429, "30"), waited=269), Retry)
    assert verdict(status(429, "30"), waited=271) == Raise(TransientError)
    assert verdict(status(500), waited=300.0) == Raise(TransientError)


def test_retry_after_on_a_final_status_changes_nothing() -> None:
    assert verdict(status(404, "1")) == Raise(NotFoundError)
    assert budget_of(status(503)) is Budget.ERRORS
    assert budget_of(status(503, "0")) is Budget.WAITING


@pytest.mark.parametrize(
    "outcome",
    [AttemptFailure(Trouble.TIMEOUT, ""), AttemptFailure(Trouble.CONNECTION, ""), AttemptFailure(Trouble.CUT, "", 201)]
    + [status(code) for code in (408, 425, 500, 502, 504)],
    ids=str,
)
def test_what_may_have_been_carried_out_is_not_repeated(outcome: AttemptFailure) -> None:
    assert verdict(outcome, once=True) == Raise(TransientError)


@pytest.mark.parametrize("code", [429, 503])
def test_what_was_not_carried_out_is_repeated(code: int) -> None:
    assert isinstance(verdict(status(code), once=True), Retry)


@pytest.mark.parametrize(
    "value", ["Sun, 99 Mar 2026 12:00:00 GMT", "x" * 10_000, "9" * 400, "Mon, 01 Jan 99999 00:00:00 GMT"]
)
def test_nonsense_in_retry_after_is_ignored(value: str) -> None:
    assert retry_after_s(value, NOW) is None
