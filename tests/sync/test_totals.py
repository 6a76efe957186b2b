"""`sync_fields` counts the rows of the warehouse, though a table is asked for them only where it has to be."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from connector.core.schema import TableSchema
from connector.sandbox import Service, Switches
from connector.warehouse.connection import Connection
from connector.warehouse.typed import totals

from .conftest import Warehouse
from .test_guarantees import assert_equal

COUNTED = "SELECT value_count, null_count FROM sync_fields WHERE table_name = 'records_t' AND column_name = 'n'"
THERE = "SELECT count(n), count(*) - count(n) FROM records_t WHERE _deleted_at IS NULL"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tables that were counted, as often as they were."""
    tables: list[str] = []

    def noting(connection: Connection, schema: TableSchema, without: Sequence[str]) -> object:
        tables.append(schema.table)
        return totals(connection, schema, without)

    monkeypatch.setattr("connector.loading.totals", noting)
    return tables


def add(service: Service, *records: str) -> str:
    slug = service.add_import(template="t", rows=[])
    for record in records:
        service.add_raw_record(slug, record)
    return slug


def test_rows_that_are_only_added_are_counted_once_a_run(warehouse: Warehouse, asked: list[str]) -> None:
    service = Service(seed=1)
    for n in range(4):
        service.add_import(template="t", rows=[{"n": n}, {"other": n}])
    warehouse.run(service, batch_rows=2)
    assert asked == [], "the table was not there, and since then all that came is known"
    assert warehouse.query(COUNTED) == warehouse.query(THERE) == [(4, 4)]

    for n in range(4):
        service.add_import(template="t", rows=[{"n": n}, {}])
    warehouse.run(service, batch_rows=2)
    assert asked == ["records_t"]
    assert warehouse.query(COUNTED) == warehouse.query(THERE) == [(8, 8)]
    assert_equal(service, warehouse)


def test_rows_that_replace_others_make_it_count_anew(warehouse: Warehouse, asked: list[str]) -> None:
    service = Service(seed=1, switches=Switches(import_order="updated_asc"))
    for n in range(3):
        service.add_import(template="t", rows=[{"n": n}])
    warehouse.run(service)
    slugs = service.slugs()
    for n in range(2):
        service.add_import(template="t", rows=[{"n": n}])
    service.append_rows(slugs[1], [{"n": 7}, {"n": None}])  # and so is read last
    warehouse.run(service, batch_rows=1, max_concurrency=1)
    assert warehouse.query(COUNTED) == warehouse.query(THERE) == [(6, 1)]
    assert_equal(service, warehouse)


def test_a_record_that_leaves_another_import_is_not_counted_there(warehouse: Warehouse, asked: list[str]) -> None:
    """The rows that replace it are of a new import, so that only the merge shows that one went elsewhere."""
    service = Service(seed=1)
    add(service, '{"slug":"same","data":{"n":1}}', '{"slug":"left","data":{"n":2}}')
    warehouse.run(service)
    for slug in ("before", "same", "after"):
        add(service, f'{{"slug":"{slug}","data":{{"n":3}}}}')

    warehouse.run(service, batch_rows=1, max_concurrency=1)

    assert warehouse.query("SELECT count(*) FROM records_t") == [(4,)]
    assert warehouse.query(COUNTED) == warehouse.query(THERE) == [(4, 0)]
    assert len(asked) == 2, "at first, and after the one that replaced a row"


def test_after_a_load_that_fell_short_it_is_counted_anew(
    warehouse: Warehouse, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(seed=1)
    first = service.add_import(template="t", rows=[{"n": 1}, {"n": 2}])
    service.add_import(template="t", rows=[{"n": 3}])
    short = iter([[(first, "records_t", 2, 1)]])
    monkeypatch.setattr("connector.sync.missing_rows", lambda *_: next(short, []))
    assert warehouse.run(service, batch_rows=1, max_concurrency=1).status == "partial"
    assert asked == ["records_t"]
