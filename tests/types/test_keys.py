"""Keys differ in all their bytes; PostgreSQL finds rows by them: new imports are appended, others replaced by keys."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest

from connector.load.table_rows import replaced_rows
from connector.sandbox import Service
from connector.warehouse import Warehouse as Opened
from connector.warehouse.adapters.dialect import PostgresSql
from tests.types.conftest import PostgreSQL, Warehouse
from tests.types.reader import assert_rows

pytestmark = pytest.mark.thorough

ODD_SLUGS = ["a\nb", "a\\b", "tab\there", "x\r", '"quoted"', "line\n\\.\nafter", "ends\\", " blank ", "é"]


def dispositions(postgres: PostgreSQL) -> dict[str, str]:
    """Return how dlt wrote each table of records last."""
    tables = postgres.pipeline().default_schema.tables
    return {name: str(table["write_disposition"]) for name, table in tables.items() if name.startswith("records")}


def test_new_imports_are_appended_and_changed_ones_replaced(postgres: PostgreSQL) -> None:
    service = Service(seed=1)
    first = service.add_import(template="t", rows=[{"n": 1}])
    postgres.run(service)
    assert set(dispositions(postgres).values()) == {"append"}
    service.add_import(template="t", rows=[{"n": 2}, {"n": 3}])
    postgres.run(service)
    assert set(dispositions(postgres).values()) == {"append"}

    service.append_rows(first, [{"n": 4}])
    assert postgres.run(service).status == "succeeded"

    assert set(dispositions(postgres).values()) == {"merge"}
    assert_rows(postgres, service)


def test_a_record_that_moves_to_another_import_is_there_once(postgres: PostgreSQL) -> None:
    service = Service(seed=1)
    record = json.dumps({"slug": "same", "data": {"n": 2}})
    service.add_raw_record(service.add_import(template="t", rows=[{"n": 1}]), record)
    postgres.run(service)
    two = service.add_import(template="t", rows=[])
    service.add_raw_record(two, record)

    tally = postgres.run(service)

    assert tally.status == "partial", "the first import is short of a row and did not change"
    assert postgres.tuples("SELECT import_slug FROM records WHERE slug = 'same'") == [(two,)]
    assert set(dispositions(postgres).values()) == {"merge"}


@pytest.mark.dialect
def test_slugs_that_differ_only_at_their_end_are_different_keys(recording: Warehouse) -> None:
    """MariaDB sorts by no more than `max_sort_length` bytes of a text, and so finds what is doubled."""
    service = Service(seed=1)
    for end in ("ü", "v", "w"):
        slug = service.add_import(template="t", rows=[], slug="s" * 1_998 + end)
        for record in ("a", "b"):
            service.add_raw_record(slug, json.dumps({"slug": "r" * 1_996 + record + end, "data": {"n": 2}}))
    for more in (0, 1):
        ran = recording.run(service, history=True)
        assert ran.status == "succeeded", ran.problems
        for table, rows in {"imports": 3, "sync_imports": 3, "records": 6 + more, "records_t": 6 + more}.items():
            assert recording.tuples(f"SELECT count(*) FROM {table}") == [(rows,)], table
        service.append_rows(slug, [{"n": 3}])
    assert recording.tuples("SELECT count(*) FROM records_t_history") == [(7,)]


def test_slugs_arrive_as_they_are(postgres: PostgreSQL) -> None:
    arriving = pa.chunked_array([pa.array(some, pa.string()) for some in (ODD_SLUGS[:4], ODD_SLUGS[4:], [])])
    with Opened(postgres.pipeline()).connect() as connection:
        with connection.relations({"arriving": arriving}):
            found: Any = connection.query("SELECT slug FROM arriving")
            assert found.column("slug").to_pylist() == ODD_SLUGS
        assert not connection.query("SELECT 1 AS n FROM pg_class WHERE relname = 'arriving'").num_rows


def test_keys_are_looked_up_in_indexes(postgres: PostgreSQL) -> None:
    """A scope with a subplan would be gone through for each row of the table, which never ends for large packages."""
    service = Service(seed=1)
    service.add_import(template="t", rows=[{"n": n} for n in range(50)])
    for _ in range(2):
        postgres.run(service)
        service.add_import(template="t", rows=[{"n": 1}])

    scope = replaced_rows("slug", "import_slug", PostgresSql())
    staging = "(SELECT 'a' AS slug, 'b' AS import_slug) AS staging"
    with postgres.held():
        postgres._connection.execute("SET enable_seqscan = off")
        plan = postgres.tuples(
            f"EXPLAIN DELETE FROM records WHERE {scope.format(table='records', staging_table=staging)}"
        )
    lines = "\n".join(line for (line,) in plan)
    assert "SubPlan" not in lines
    assert "records_slug_idx" in lines
    assert "records_import_slug_idx" in lines
    for table in ("records", "records_t"):
        found = "SELECT indexdef FROM pg_indexes WHERE schemaname = %s AND tablename = %s"
        indexed = postgres.tuples(found, postgres.dataset, table)
        assert len(indexed) == 2, "each key once"


def test_a_key_that_no_index_takes_is_taken_out(postgres: PostgreSQL) -> None:
    """As an earlier version left it: loaded into the typed table, and then each run failed to make the index."""
    service = Service(seed=1)
    service.add_import(template="t", rows=[{"n": 1}])
    postgres.run(service)
    postgres.rows(f"""
        ALTER TABLE records_t RENAME TO old; CREATE TABLE records_t (LIKE old); INSERT INTO records_t SELECT * FROM old;
        UPDATE records_t SET _record_slug = '{random.Random(1).randbytes(2000).hex()}'; DROP TABLE old;
        UPDATE sync_runs SET status = 'running'; COMMIT; SELECT 1 AS n
    """)
    service.add_import(template="t", rows=[{"n": 2}])

    ran = [postgres.run(service) for _ in range(2)]
    assert [each.status for each in ran] == ["succeeded", "succeeded"], [each.error for each in ran]

    assert_rows(postgres, service)
