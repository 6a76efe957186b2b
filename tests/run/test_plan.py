"""What a run decides to read: every way an import may differ from the ledger, and none in which it does not."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from connector.ledger import COMPLETED, LedgerRow, State
from connector.run.plan import Plan, Planned, Reason, Rules, make_plan
from tests.support.ledger import THEN, Shown, known

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def plan(shown: list[Shown], ledger: list[LedgerRow], **options: object) -> Plan[Shown]:
    return make_plan(shown, {row.slug: row for row in ledger}, Rules(NOW, **options))  # type: ignore[arg-type]


def reason(shown: Shown, ledger: list[LedgerRow], **options: object) -> Reason | None:
    read = plan([shown], ledger, **options).read
    return read[0].reason if read else None


def test_what_is_new_is_read() -> None:
    assert reason(Shown(), []) is Reason.new


def test_what_failed_comes_last_and_what_failed_less_before_it() -> None:
    slugs = ["thrice", "new", "once", "changed", "also new"]
    failures = {"thrice": 3, "once": 1}
    ledger = [structs.replace(known(Shown(slug=s)), state=State.failed, attempts=n) for s, n in failures.items()]
    ledger.append(structs.replace(known(Shown(slug="changed", row_count=9)), attempts=4))
    read = plan([Shown(slug=slug) for slug in slugs], ledger).read
    assert [each.import_.slug for each in read] == ["new", "changed", "also new", "once", "thrice"]


def test_what_is_the_same_is_left_alone() -> None:
    found = plan([Shown()], [known(Shown())])
    assert found == Plan((), 1)


@pytest.mark.parametrize(
    "change",
    [
        {"row_count": 4},
        {"row_count": 2},
        {"updated_at": THEN + timedelta(microseconds=1)},
        {"updated_at": THEN - timedelta(days=1)},
        {"status": "submitted"},
        {"template_slug": "u"},
        {"template_slug": None},
    ],
)
def test_any_difference_is_read_also_one_backwards(change: dict[str, object]) -> None:
    assert reason(replace(Shown(), **change), [known(Shown())]) is Reason.changed  # type: ignore[arg-type]


def test_an_instant_is_the_same_at_any_offset() -> None:
    there = Shown(updated_at=THEN.astimezone(timezone(timedelta(hours=5, minutes=30))))
    assert reason(there, [known(Shown())]) is None


@pytest.mark.parametrize("gap", ["updated_at", "row_count", "status"])
def test_a_ledger_row_with_gaps_is_no_proof(gap: str) -> None:
    assert reason(Shown(), [structs.replace(known(Shown()), **{gap: None})]) is Reason.changed


@pytest.mark.parametrize("status", ["created", "submitting", "submitted", "anything"])
def test_the_unfinished_is_read_each_run(status: str) -> None:
    assert reason(Shown(status=status), [known(Shown(status=status))]) is Reason.unfinished


@pytest.mark.parametrize("state", [State.failed, State.unreconciled])
def test_what_failed_is_tried_again(state: State) -> None:
    assert reason(Shown(), [known(Shown(), state)]) is Reason.retry


@pytest.mark.parametrize("state", list(State))
def test_what_is_not_in_a_completed_load_is_read_again(state: State) -> None:
    assert reason(Shown(), [known(Shown(), state, trusted=False)]) is Reason.retry


def test_an_import_that_comes_back_is_new() -> None:
    found = plan([Shown()], [known(Shown(), State.deleted)])
    assert found.read == (Planned(Shown(), Reason.new),)


@pytest.mark.parametrize(
    ("days", "expected"),
    [(None, None), (27, None), (28, Reason.recheck), (29, Reason.recheck), (10**12, Reason.recheck), (0, None)],
)
def test_the_recently_completed_is_rechecked_on_demand(days: int | None, expected: Reason | None) -> None:
    shown = Shown(updated_at=NOW - timedelta(days=28))
    assert reason(shown, [known(shown)], recheck_days=days) is expected


def test_force_reads_what_is_unchanged_and_keeps_better_reasons() -> None:
    changed = Shown("b", row_count=9)
    found = plan([Shown(), changed, Shown("c")], [known(Shown()), known(Shown("b"))], force=True)
    assert [(p.import_.slug, p.reason) for p in found.read] == [
        ("a", Reason.asked),
        ("b", Reason.changed),
        ("c", Reason.new),
    ]
    assert found.unchanged == 0


def test_the_order_of_the_listing_is_the_order_of_reading() -> None:
    slugs = ["c", "a", "b"]
    assert [p.import_.slug for p in plan([Shown(slug) for slug in slugs], []).read] == slugs


SHOWN = st.builds(
    Shown,
    slug=st.sampled_from("abcdef"),
    row_count=st.integers(0, 2),
    updated_at=st.sampled_from([THEN, THEN + timedelta(seconds=1)]),
    status=st.sampled_from([COMPLETED, "submitting"]),
    template_slug=st.sampled_from([None, "t"]),
)
KNOWN = st.builds(
    lambda shown, state, trusted: known(shown, state, trusted=trusted), SHOWN, st.sampled_from(State), st.booleans()
)


@given(st.lists(SHOWN, unique_by=lambda s: s.slug), st.lists(KNOWN, unique_by=lambda k: k.slug))
def test_only_what_a_completed_load_holds_at_this_fingerprint_is_left_alone(
    shown: list[Shown], ledger: list[LedgerRow]
) -> None:
    found = plan(shown, ledger)
    up_to_date = {known(s).slug for s in shown if s.status == COMPLETED and known(s) in ledger}
    assert {p.import_.slug for p in found.read} == {s.slug for s in shown} - up_to_date
    assert found.unchanged == len(up_to_date)
