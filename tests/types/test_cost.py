"""The cost of a run follows what changed: rows are looked up by key, and the counts in `sync_fields` stay exact."""

from __future__ import annotations

import time
from typing import Any

import pytest

from connector.sandbox import Service
from tests.types.conftest import PostgreSQL, Warehouse

STORED = 200_000  # rows: with few, PostgreSQL reads the whole table although it has an index


def dictionary(warehouse: Warehouse) -> list[tuple[Any, ...]]:
    return warehouse.tuples("SELECT path, value_count, null_count, conflict_count FROM sync_fields ORDER BY path")


def rows_read(postgres: PostgreSQL) -> dict[str, int]:
    """Return table of records → rows that queries have read in it so far, once the figures no longer change."""
    sql = (
        "SELECT relname AS name, seq_tup_read + idx_tup_fetch AS read FROM pg_stat_user_tables "
        f"WHERE schemaname = '{postgres.dataset}' AND relname LIKE 'records%'"
    )
    before: dict[str, int] = {}
    for _ in range(20):
        found: dict[str, int] = dict(postgres.tuples(sql))
        if found == before:
            return found
        before = found
        time.sleep(0.6)  # a session reports its figures at most twice a second
    return before


@pytest.mark.thorough
def test_a_changed_import_makes_postgresql_read_no_whole_table(postgres: PostgreSQL) -> None:
    service = Service(seed=1)
    for first in range(0, STORED, 500):
        service.add_import(template="people", rows=[{"n": n, "name": f"p{n}"} for n in range(first, first + 500)])
    changing = service.slugs()[3]
    assert postgres.run(service, batch_rows=STORED // 2).status == "succeeded"
    service.append_rows(changing, [{"n": "many", "name": None}])
    assert postgres.run(service).status == "succeeded"  # makes the indexes
    service.append_rows(changing, [{"n": "more", "name": "x"}])
    before = rows_read(postgres)

    assert postgres.run(service).status == "succeeded"

    read = {table: rows - before[table] for table, rows in rows_read(postgres).items()}
    assert all(rows < STORED / 10 for rows in read.values()), read
    assert dictionary(postgres) == [("n", STORED + 2, 0, 2), ("name", STORED + 1, 1, 0)]


@pytest.mark.dialect
def test_values_are_counted_in_the_rows_that_a_run_replaces_alone(
    recording: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(seed=1)
    edited = service.add_import(template="t", rows=[{"a": 1, "b": "x"}])
    assert recording.run(service).status == "succeeded"  # the types are those of these values
    service.append_rows(edited, [{"a": "one", "b": 7}, {}])
    deleted = service.add_import(template="t", rows=[{"a": 2, "b": "y"}])
    source = service.add_import(template="t", rows=[{"a": 3, "b": "z"}, {"a": "three"}])
    target = service.add_import(template="t", rows=[{"a": 4}])
    assert recording.run(service).status == "succeeded"
    assert dictionary(recording) == [("a", 6, 1, 2), ("b", 4, 3, 1)]

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("the run reads a whole table")

    monkeypatch.setattr("connector.load.package.totals", refused)
    service.edit_row(edited, list(service.record_slugs(edited))[1], {"a": 1.5, "b": None})
    service.delete_import(deleted)
    service.move_row(source, list(service.record_slugs(source))[1], target)
    service.add_import(template="t", rows=[{"a": True, "c": 1}])
    tally = recording.run(service, mass_delete_limit=1)
    assert tally.status == "succeeded", tally.problems
    assert dictionary(recording) == [("a", 6, 1, 3), ("b", 2, 5, 0), ("c", 1, 6, 0)]
