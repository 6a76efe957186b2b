"""The unit of a service's times, and what may change without one of them showing it."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo, available_timezones, reset_tzpath

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from connector.run.settling import (
    CLOCKS_GO_BACK,
    DAY,
    HOUR,
    MICROSECOND,
    MINUTE,
    OFFSETS,
    SECOND,
    may_change_unseen,
    resolution,
)

QUARTER = timedelta(minutes=15)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("offsets", "unit"),
    [
        ([], SECOND),
        ([timedelta(0)], DAY),
        ([SECOND], SECOND),
        ([timedelta(0), MINUTE], MINUTE),
        ([timedelta(0), MINUTE, MINUTE], MINUTE),
        ([timedelta(0), MINUTE, 2 * MINUTE], MINUTE),
        ([timedelta(hours=12), DAY * 1.5, DAY * 2.5], DAY),
        ([timedelta(hours=6.5), timedelta(hours=6.5) + DAY], DAY),
        ([timedelta(hours=11), timedelta(hours=10) + 100 * DAY], DAY),
        ([timedelta(hours=1.5), timedelta(hours=5.5)], 4 * HOUR),
        ([timedelta(hours=1.5), timedelta(hours=3.5), timedelta(hours=5.5), timedelta(hours=7.5)], 2 * HOUR),
        ([timedelta(hours=n + 0.5) for n in range(4)], HOUR),
        ([timedelta(hours=1.5), timedelta(hours=5.75)], 15 * MINUTE),
        ([10 * MINUTE, 20 * MINUTE, 50 * MINUTE], 10 * MINUTE),
        ([5 * MINUTE, 15 * MINUTE, 35 * MINUTE], 10 * MINUTE),  # 5:45 from UTC
        ([5 * MINUTE, 10 * MINUTE, 35 * MINUTE], 5 * MINUTE),
        ([5 * MINUTE, 10 * MINUTE, 36 * MINUTE], MINUTE),
        ([timedelta(0), SECOND, 5 * MINUTE], SECOND),
        ([timedelta(0), timedelta(milliseconds=20)], timedelta(milliseconds=1)),
        ([timedelta(0), SECOND, MICROSECOND], MICROSECOND),
    ],
)
def test_the_unit_is_the_largest_that_all_times_are_multiples_of(offsets: list[timedelta], unit: timedelta) -> None:
    assert resolution(NOON + offset for offset in offsets) == unit


@pytest.mark.parametrize("instant", [datetime.min, datetime.max, datetime(9999, 12, 31, 23, 59, 59)])
def test_times_at_both_ends_of_the_calendar_have_a_unit(instant: datetime) -> None:
    moment = instant.replace(tzinfo=UTC)
    unit = resolution([moment])
    assert MICROSECOND <= unit <= DAY
    may_change_unseen(moment, NOON, unit)


@given(st.integers(0, 10**9), st.integers(0, 10**8), st.sampled_from([MICROSECOND, SECOND, MINUTE]))
def test_a_time_cut_to_a_minute_among_finer_ones_is_settled_after_its_minute(
    at: int, later: int, unit: timedelta
) -> None:
    reached = NOON + (at + later) * MICROSECOND
    shown = _truncated(NOON + at * MICROSECOND, MINUTE)
    if not may_change_unseen(shown, reached, unit):
        assert _truncated(reached, MINUTE) > shown


@given(st.integers(0, 2 * DAY // MINUTE), st.integers(0, 2 * DAY // MINUTE), st.sampled_from(OFFSETS))
def test_a_date_among_full_times_is_settled_after_its_day(at: int, later: int, offset: timedelta) -> None:
    reached = NOON + (at + later) * MINUTE
    shown = datetime.combine(NOON + at * MINUTE + offset, time(), UTC)
    if not may_change_unseen(shown, reached, SECOND, naive=True):
        assert (reached + offset).date() > shown.date()


@given(st.integers(0, 10**7), st.integers(-(10**7), 10**7), st.sampled_from([MICROSECOND, SECOND, MINUTE, 15 * MINUTE]))
def test_no_later_edit_has_the_time_of_a_settled_import(at: int, later: int, unit: timedelta) -> None:
    """The service truncates its clock to the unit; the import was changed `at`, and is read at `reached`."""
    changed = NOON + at * MICROSECOND
    shown = _truncated(changed, unit)
    reached = changed + later * MICROSECOND
    if reached >= changed and not may_change_unseen(shown, reached, unit):
        assert _truncated(reached, unit) > shown


@given(
    st.integers(0, 10**9),
    st.integers(0, 10**9),
    st.sampled_from([MICROSECOND, SECOND, MINUTE, timedelta(hours=1)]),
    st.sampled_from(OFFSETS),
    st.integers(0, 60 * 10**6),
)
def test_no_later_edit_has_the_local_time_of_a_settled_import(
    at: int, later: int, unit: timedelta, offset: timedelta, passed: int
) -> None:
    """The service writes its local time without an offset; its clock had passed `reached` by up to a minute."""
    changed = NOON + at * MICROSECOND
    shown = _truncated(changed + offset, unit)
    now = changed + later * MICROSECOND
    reached = now - passed * MICROSECOND
    if not may_change_unseen(shown, reached, unit, naive=True):
        assert _truncated(now + offset, unit) > shown


@given(
    st.sampled_from(CLOCKS_GO_BACK),
    st.sampled_from(range(2026, 2036)),
    st.integers(-3 * 3600, 3 * 3600),
    st.integers(0, 4 * 3600),
    st.sampled_from([SECOND, MINUTE]),
)
def test_no_later_edit_has_the_local_time_of_a_settled_import_where_clocks_go_back(
    place: str, year: int, at: int, later: int, unit: timedelta
) -> None:
    zone = ZoneInfo(place)
    turns = _turns_back(zone, year)
    assume(turns)  # laws change, and with them time zones
    turn = turns[0]
    changed = turn + at * SECOND
    reached = changed + later * SECOND
    shown = _truncated(_local(changed, zone), unit)
    if not may_change_unseen(shown, reached, unit, naive=True):
        edits = (reached + n * unit for n in range(4 * HOUR // unit))
        assert all(_truncated(_local(edit, zone), unit) != shown for edit in edits)


def test_each_zone_whose_clocks_go_back_is_known_or_does_it_with_one_that_is() -> None:
    turns: dict[str, set[tuple[datetime, datetime]]] = {}
    reset_tzpath(to=[])  # the pinned time zones rather than those of the machine
    try:
        for place in available_timezones():
            zone = ZoneInfo.no_cache(place)
            turns[place] = {(turn, _local(turn, zone)) for turn in _turns_back(zone, 2027)}
    finally:
        reset_tzpath()
    known = set().union(*(turns[place] for place in CLOCKS_GO_BACK))
    assert known
    assert {place: missing for place, found in turns.items() if (missing := found - known)} == {}


def test_few_of_the_times_without_an_offset_are_read_again() -> None:
    ages = [timedelta(minutes=1) + n * timedelta(seconds=7) for n in range(15_000)]  # about 29 hours
    again = [age for age in ages if may_change_unseen(NOON - age, NOON, SECOND, naive=True)]
    assert len(again) < len(ages) / 12
    assert max(again) < timedelta(hours=12, minutes=1)  # nowhere is it earlier than 12 hours behind UTC


def _turns_back(zone: ZoneInfo, year: int) -> list[datetime]:
    """Return when the zone's clocks go back; offsets change on full quarters of an hour."""
    days = [datetime(year, 1, 1, tzinfo=UTC) + n * DAY for n in range(367)]
    offsets = [_local(day, zone) - day for day in days]
    changes = [day for day, now, then in zip(days, offsets, offsets[1:], strict=False) if now != then]
    quarters = [day + n * QUARTER for day in changes for n in range(1, DAY // QUARTER + 1)]
    return [time for time in quarters if _local(time, zone) - _local(time - QUARTER, zone) < QUARTER]


def _local(instant: datetime, zone: ZoneInfo) -> datetime:
    return instant.astimezone(zone).replace(tzinfo=UTC)


def _truncated(instant: datetime, unit: timedelta) -> datetime:
    return instant - (instant - NOON) % unit
