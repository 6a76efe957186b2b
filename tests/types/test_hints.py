"""`[sources.importer.hints.<table>]`: strings become what the user says they are, or go to the variant."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from connector.sandbox import Service
from tests.types.conftest import DuckDB, PostgreSQL, Warehouse
from tests.types.reader import assert_rows, dictionary

HINTS = {
    "records_t": {
        "day": "date",
        "at": "timestamp",
        "price": "decimal(10,2)",
        "zip": "text",
        "count": "bigint",
        "share": "double",
        "yes": "bool",
        "any": "json",
        "Größe (cm)": "decimal(38,9)",
        "address.since": "date",
    }
}
GOOD = {
    "day": "2024-02-29",
    "at": "2024-02-29T12:30:00.123456+02:00",
    "price": "12345678.90",
    "zip": 12345,
    "count": "9223372036854775807",
    "share": "0.25",
    "yes": "true",
    "any": "x",
    "Größe (cm)": "179.5",
    "address": {"since": "2020-01-01"},
}
BAD = {
    "day": "2024-02-30",
    "at": "2024-13-01T00:00:00Z",
    "price": "0.001",
    "zip": [1],
    "count": "1e3",
    "share": "1.",
    "yes": "yes",
    "any": None,
    "Größe (cm)": "179,5",
    "address": {"since": 5},
}
BLANK = dict.fromkeys(("day", "at", "price", "count", "share", "yes", "zip"), "")


@pytest.mark.dialect
def test_hints_decide_and_what_does_not_parse_goes_to_the_variant(warehouse: Warehouse) -> None:
    service = Service(seed=1)
    service.add_import(template="t", rows=[GOOD, BAD, BLANK, {"day": "12024-01-01", "at": "2024-01-01 00:00"}])
    assert warehouse.run(service, hints=HINTS).status == "succeeded"
    assert_rows(warehouse, service, hinted=True)
    good, bad = warehouse.rows("SELECT * FROM records_t ORDER BY _sort")[:2]
    assert good["day"] == date(2024, 2, 29)
    assert good["at"] == datetime(2024, 2, 29, 10, 30, 0, 123456, UTC)
    assert (good["price"], good["grosse_cm"]) == (Decimal("12345678.90"), Decimal("179.5"))
    assert (good["zip"], good["count"], good["share"], good["yes"]) == ("12345", 2**63 - 1, 0.25, True)
    assert good["address__since"] == date(2020, 1, 1)
    assert (bad["day__v_text"], bad["price__v_text"], bad["zip__v_text"]) == ("2024-02-30", "0.001", "[1]")
    counts = {path: row["conflict_count"] for path, row in dictionary(warehouse, "records_t").items()}
    assert counts == {("day",): 2, ("any",): 0, ("address", "since"): 1} | {
        (key,): 1 for key in ("at", "price", "zip", "count", "share", "yes", "Größe (cm)")
    }

    service.add_import(template="t", rows=[BAD, GOOD, {"day": 20240101, "at": 0, "price": 1.5, "count": 1.5}])
    assert warehouse.run(service, hints=HINTS).status == "succeeded"
    assert_rows(warehouse, service, hinted=True)

    service.add_import(template="t", rows=[{**GOOD, "zip": "12345"}, {"price": 2.25}])
    assert warehouse.run(service).status == "succeeded", "a hint that was taken away leaves the column as it is"
    assert_rows(warehouse, service, hinted=True)


def test_a_hint_that_comes_too_late_changes_no_column_and_loses_nothing(duck: DuckDB) -> None:
    service = Service(seed=1)
    service.add_import(template="t", rows=[{"day": "2024-01-01", "price": "1.50"}])
    duck.run(service)
    service.add_import(template="t", rows=[{"day": "2024-01-02", "price": 2}])
    late = {"records_t": {"day": "date", "price": "decimal(10,2)"}}
    assert duck.run(service, hints=late).status == "succeeded"
    assert_rows(duck, service)
    assert {row["data_type"] for row in dictionary(duck, "records_t").values()} == {"text"}


def test_rows_kept_after_their_deletion_keep_every_cell_of_every_type(postgres: PostgreSQL) -> None:
    service = Service(seed=1)
    plain = {"whole": 1, "half": 0.5, "text": "a\\b", "list": [0, {"a": None}], "flag": True, "null": None}
    slug = service.add_import(template="t", rows=[{**GOOD, **plain}, {**BAD, **plain}, {"whole": "x", "half": 10**30}])
    postgres.run(service, hints=HINTS, deletes="keep")
    before = _cells(postgres)
    for row in list(service.record_slugs(slug))[:2]:
        service.delete_row(slug, row)
    kept = postgres.run(service, hints=HINTS, deletes="keep")
    assert kept.status == "succeeded", kept.error
    assert _cells(postgres) == before
    assert postgres.tuples("SELECT count(*) FROM records_t WHERE _deleted_at IS NOT NULL") == [(2,)]
    assert_rows(postgres, service, hinted=True)
    service.delete_import(slug)
    assert postgres.run(service, hints=HINTS, deletes="keep", mass_delete_limit=1).status == "succeeded"
    assert _cells(postgres) == before
    assert postgres.tuples("SELECT count(*) FROM records_t WHERE _deleted_at IS NOT NULL") == [(3,)]


def _cells(warehouse: Warehouse) -> list[dict[str, object]]:
    rows = warehouse.rows("SELECT * FROM records_t ORDER BY _record_slug")
    return [{k: v for k, v in row.items() if k not in ("_deleted_at", "_dlt_load_id")} for row in rows]
