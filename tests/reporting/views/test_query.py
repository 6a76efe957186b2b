"""What analysts ask, each in one query, with answers that are known."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from connector.sandbox import Service
from tests.reporting.views.conftest import Place

FAILING_ROWS = """
    SELECT uploader, sum(rows_failed) AS failing
    FROM v_imports
    WHERE uploaded_at >= date_trunc('month', now()) - INTERVAL '1 month' AND uploaded_at < date_trunc('month', now())
    GROUP BY uploader
    ORDER BY failing DESC, uploader
"""
INCOMPLETE = """
    SELECT import_slug, state, status, row_count, rows_loaded, error
    FROM v_imports
    WHERE NOT is_complete
    ORDER BY import_slug
"""
NULL_SHARE = """
    SELECT upload_day, row_count, null_share, null_share_change
    FROM v_field_nulls
    WHERE template = 'customers' AND field = 'phone'
    ORDER BY upload_day
"""


def month_before(now: datetime, day: int) -> datetime:
    last = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
    return last.replace(day=day, hour=12)


@pytest.fixture
def uploads(place: Place) -> Place:
    """Two months of uploads: the last one with failing rows of two people, this one with more that do not count."""
    now = datetime.now(UTC)
    third, fourth = month_before(now, 3), month_before(now, 4)
    service = place.service = Service(seed=4, clock=lambda: place._tick())

    def upload(at: datetime, slug: str, uploader: str, phones: list[str | None], bad: int = 0) -> None:
        place.now = at
        service.add_import("customers", [{"phone": p, "n": 1} for p in phones], {"uploader": uploader}, slug=slug)
        for n in range(bad):
            service.add_raw_record(slug, f'{{"data": {{"n": {n}}}}}')

    upload(third, "a", "ana", ["1", "2", None, "4"], bad=2)
    upload(third, "b", "bo", ["1", "2", "3", "4"])
    upload(fourth, "c", "bo", [None, None, "x", "y"], bad=1)
    upload(fourth, "d", "cy", ["1", 5, True, None])  # type: ignore[list-item]
    upload(now.replace(day=1, hour=0, minute=0, second=0), "e", "bo", ["1"], bad=9)
    service.set_row_count("d", 9)
    service.set_status("b", "submitted")
    place.sync()
    place.apply()
    return place


@pytest.mark.dialect
def test_three_questions_each_in_one_query(uploads: Place) -> None:
    failing = [(uploader, int(rows)) for uploader, rows in uploads.tuples(FAILING_ROWS)]
    assert failing == [("cy", 5), ("ana", 2), ("bo", 1)]

    incomplete = {row["import_slug"]: row for row in uploads.ask(INCOMPLETE)}
    assert set(incomplete) == {"a", "b", "c", "d", "e"}
    assert (incomplete["a"]["row_count"], incomplete["a"]["rows_loaded"]) == (6, 4)
    assert (incomplete["d"]["state"], incomplete["d"]["row_count"]) == ("unreconciled", 9)
    assert (incomplete["b"]["status"], incomplete["b"]["state"]) == ("submitted", "synced")

    shares = uploads.tuples(NULL_SHARE)
    assert [(rows, share, change) for _, rows, share, change in shares] == [
        (8, 0.125, None),
        (8, 0.375, 0.25),
        (1, 0.0, -0.375),
    ]
    assert [day.day for day, *_ in shares] == [3, 4, 1]

    # once what was wrong is right, nothing is incomplete
    for slug in ("a", "c", "e"):
        uploads.service.delete_import(slug)
    uploads.service.set_row_count("d", None)
    uploads.service.set_status("b", "completed")
    uploads.sync(mass_delete_limit=1)
    assert uploads.ask(INCOMPLETE) == []
    assert {uploader: int(rows) for uploader, rows in uploads.tuples(FAILING_ROWS)} == {"bo": 0, "cy": 0}
    the_others(uploads)
    uploads.execute("UPDATE sync_imports SET state = 'failed', error = 'cut off' WHERE slug = 'd'")
    assert [row["error"] for row in uploads.ask(INCOMPLETE)] == ["cut off"], "as many rows as before, but not the same"


def the_others(place: Place) -> None:
    [day] = place.ask("SELECT * FROM v_uploads_per_day WHERE upload_day = (SELECT min(upload_day) FROM v_imports)")
    assert (day["template"], day["imports"], day["imports_incomplete"], day["rows_loaded"]) == ("customers", 1, 0, 4)
    [fresh] = place.ask("SELECT * FROM v_freshness")
    assert (fresh["template"], fresh["imports"], fresh["imports_incomplete"]) == ("customers", 2, 0)
    assert 0 <= fresh["age_hours"] < 1
    runs = place.ask("SELECT * FROM v_runs ORDER BY started_at")
    assert [run["status"] for run in runs] == ["partial", "succeeded"]
    assert runs[0]["is_full"] is True
    assert min(runs[0]["duration_s"], runs[0]["rows_per_s"]) > 0
    profile = {row["field"]: row for row in place.ask("SELECT * FROM v_fields WHERE template = 'customers'")}
    phone = profile["phone"]
    assert (phone["row_count"], phone["null_count"], phone["conflict_count"]) == (8, 1, 2)
    assert (phone["null_share"], phone["conflict_share"]) == (0.125, 2 / 7)
    distinct = {row["field"]: row for row in place.ask("SELECT * FROM v_field_distinct")}
    assert (distinct["phone"]["value_count"], distinct["phone"]["distinct_count"]) == (7, 6)
    assert (distinct["n"]["value_count"], distinct["n"]["distinct_count"]) == (8, 1)


def test_whole_numbers_beyond_doubles_are_distinct_beside_a_fraction(place: Place) -> None:
    ids = [2**53, 2**53 + 1, 2**53 + 2, 2**53 + 3, 7]
    place.service.add_import("devices", [{"id": number} for number in [*ids, 7]])
    place.sync()
    place.service.add_import("devices", [{"id": 7.0}, {"id": 0.5}, {"id": 0.5}])
    place.sync()
    place.apply()
    [distinct] = place.ask("SELECT value_count, distinct_count FROM v_field_distinct WHERE field = 'id'")
    assert (distinct["value_count"], distinct["distinct_count"]) == (9, 6)
