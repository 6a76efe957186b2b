"""`mass_delete_limit`: the share that may vanish, and what it is the share of while runs go on loading."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.run.delete_limit import check_delete_limit, too_many_vanished


@pytest.mark.parametrize(
    ("vanished", "live", "limit", "refused"),
    [
        (0, 0, 0.0, False),
        (0, 10, 0.0, False),
        (1, 10, 0.0, True),
        (5, 10, 0.5, False),
        (6, 10, 0.5, True),
        (1, 1, 0.5, True),
        (1, 2, 0.5, False),
        (10, 10, 1.0, False),
        (3, 10, 0.3, False),
        (29, 100, 0.29, False),
        (7, 100, 0.07, False),
    ],
)
def test_the_share_that_may_vanish(vanished: int, live: int, limit: float, refused: bool) -> None:
    assert too_many_vanished(vanished, live, limit) is refused


COUNTS = st.integers(0, 50)
SHARES = st.sampled_from((0.0, 0.1, 0.5, 0.9))


@given(st.integers(1, 50), st.lists(COUNTS, max_size=6), SHARES)
def test_what_a_wrong_service_has_does_not_make_the_share_smaller(
    known: int, loaded: Sequence[int], limit: float
) -> None:
    """Each run finds none of the imports known at first, and loads others."""
    noted, there = None, known
    for more in loaded:
        found = check_delete_limit(limit, known=there, gone=known, unseen=known, noted=noted)
        assert not found.allows
        assert found.problem is not None
        assert found.base == found.base_after == known
        noted, there = found.base, there + more
    assert check_delete_limit(limit, known=there, gone=0, unseen=0, noted=noted).base is None  # the right service again


@given(COUNTS, COUNTS, COUNTS, st.none() | COUNTS, SHARES, st.booleans(), st.booleans())
def test_a_run_deletes_at_most_the_share_of_what_it_knows(
    known: int, gone: int, unseen: int, noted: int | None, limit: float, deletes: bool, waived: bool
) -> None:
    found = check_delete_limit(
        limit, known=known, gone=gone, unseen=unseen, noted=noted, deletes=deletes, waived=waived
    )
    assert not (found.allows and not deletes)
    assert (found.problem is not None) == (deletes and not found.allows)
    if found.allows and not waived:
        assert gone <= limit * known
    if not found.allows and noted is not None and found.base is not None:
        assert found.base <= noted


def test_a_base_stays_until_the_imports_are_deleted() -> None:
    """A run that may delete can still die before it does, so it notes the base, and what it is afterwards."""
    found = check_delete_limit(0.5, known=10, gone=4, unseen=6, noted=None)
    assert (found.allows, found.base, found.base_after) == (True, 10, 6)
    again = check_delete_limit(0.5, known=10, gone=0, unseen=0, interrupted=4, noted=10)
    assert (again.allows, again.base, again.base_after) == (True, 10, None)
    allowed = check_delete_limit(0.5, known=10, gone=8, unseen=8, noted=10, waived=True)
    assert (allowed.allows, allowed.base, allowed.base_after) == (True, 10, None)
