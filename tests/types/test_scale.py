"""Wide, many and empty: 1,000 columns, 200 templates, tables and columns that never had a value."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from connector.maintain.rebuild import rebuild
from connector.sandbox import Service, serve
from connector.settings import Settings
from connector.transform import width
from connector.transform.width import Width
from connector.warehouse.adapters import base
from connector.warehouse.connection import Connection
from connector.warehouse.status import status
from tests.types.conftest import DuckDB, PostgreSQL, SQLite, Warehouse
from tests.types.reader import assert_rows, dictionary

pytestmark = pytest.mark.thorough


def test_a_thousand_columns_that_come_bit_by_bit(
    warehouse: Warehouse, record_property: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(width, "WIDTH", Width(columns=1_000, new_fields=1_000))
    service = Service(seed=1)
    service.add_import(template="wide", rows=[{f"Column {n}": f"t{n}" for n in range(500)}])
    assert warehouse.run(service).status == "succeeded"
    service.add_import(
        template="wide", rows=[{f"Column {n}": n for n in range(250, 1000)}, {f"Column {n}": "" for n in range(1000)}]
    )
    began = time.monotonic()
    tally = warehouse.run(service)
    record_property("seconds for the second half", round(time.monotonic() - began, 1))
    assert (tally.status, len(tally.load_ids)) == ("succeeded", 1), tally.error
    assert_rows(warehouse, service)
    assert len(dictionary(warehouse, "records_wide")) == 1000


@pytest.mark.long
@pytest.mark.dialect
def test_a_package_of_more_imports_than_a_statement_takes_arguments(
    recording: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def limited(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **kwargs)
        connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 600)
        return connection

    monkeypatch.setattr(sqlite3, "connect", limited)
    service = Service(seed=1)
    service.add_import(template="many", rows=[{"n": 1}, {}])
    edited = service.add_import(template="many", rows=[{"n": 1}, {}])
    assert recording.run(service).status == "succeeded"
    service.append_rows(edited, [{"n": 2}])
    for n in range(700):
        service.add_import(template="many", rows=[{"n": n}])

    tally = recording.run(service)

    assert (tally.status, len(tally.load_ids)) == ("succeeded", 1), tally.error
    assert recording.tuples("SELECT value_count, null_count FROM sync_fields WHERE path = 'n'") == [(703, 2)]
    assert recording.tuples("SELECT count(*) AS r, count(n) AS v FROM records_many") == [(705, 703)]


TOO_WIDE: dict[str, list[Any]] = {
    "numbers": [{f"Column {n}": n for n in range(1000)}],
    "columns": [{f"Column {n}": 0.5 for n in range(n, n + 100)} for n in range(0, 1700, 100)],
    "texts": [{f"Column {n}": "ten letters" for n in range(900)}],
}


def test_what_a_table_cannot_hold_is_said_and_stops_nobody(
    postgres: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(width, "WIDTH", Width(columns=5_000, new_fields=5_000))
    service = Service(seed=1)
    wide = {name: service.add_import(template=name, rows=[{"Column 1": 5}]) for name in TOO_WIDE}
    for name in TOO_WIDE:
        service.add_import(template=name, rows=[{"Column 1": 7}])
    assert postgres.run(service).status == "succeeded"
    for name, slug in wide.items():
        service.append_rows(slug, TOO_WIDE[name])
    service.add_import(template="narrow", rows=[{"a": 1}])

    tally = postgres.run(service)

    assert_rows(postgres, service, typed=False)
    assert tally.status == "partial"
    for name, slug in wide.items():
        assert f"Import {slug} is in no typed table: records_{name} would have" in str(tally.error)
        assert postgres.tuples(f"SELECT column_1 FROM records_{name}") == [(7,)]
    assert postgres.tuples("SELECT a FROM records_narrow") == [(1,)]
    assert status(postgres.pipeline()).standings == {"reconciled": 4, "unreconciled": 3}
    with serve(service) as url:
        rebuild(postgres.pipeline(), Settings.load(base_url=url, access_token=service.token))
    assert [postgres.tuples(f"SELECT column_1 FROM records_{name}") for name in wide] == [[(7,)]] * 3
    assert postgres.run(service, raw=False).imports_changed == 3
    for slug in wide.values():
        for row in list(service.record_slugs(slug))[1:]:
            service.delete_row(slug, row)
    assert postgres.run(service).status == "succeeded"
    assert_rows(postgres, service)


def test_a_rebuild_keeps_deleted_rows_of_an_import_that_no_table_can_hold(
    postgres: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(width, "WIDTH", Width(columns=5_000, new_fields=5_000))
    service = Service(seed=1)
    slug = service.add_import(template="numbers", rows=[{"Column 1": 5}, {"Column 1": 6}])
    service.add_import(template="numbers", rows=[{"Column 1": 7}])
    assert postgres.run(service, deletes="keep").status == "succeeded"
    service.delete_row(slug, next(iter(service.record_slugs(slug))))
    service.append_rows(slug, TOO_WIDE["numbers"])
    assert postgres.run(service, deletes="keep").status == "partial"
    kept = "SELECT column_1, _deleted_at IS NULL FROM records_numbers ORDER BY 1"
    before = postgres.tuples(kept)
    assert (5, False) in before
    with serve(service) as url:
        rebuild(postgres.pipeline(), Settings.load(base_url=url, access_token=service.token))
    assert postgres.tuples(kept) == before


@pytest.mark.long
def test_every_table_is_bounded_alike(postgres: PostgreSQL) -> None:
    service = Service(seed=1)
    for name, rows in TOO_WIDE.items():
        service.add_import(template=name, rows=[{"Column 1": 5}])
        service.add_import(template=name, rows=rows)
    tally = postgres.run(service)
    assert (tally.status, tally.error) == ("succeeded", None)
    assert_rows(postgres, service, typed=False)
    for name, rows in TOO_WIDE.items():
        (found,) = postgres.tuples(f"SELECT count(*) AS n, count(_more) AS wide FROM records_{name}")
        assert found[0] == 1 + len(rows)
        assert found[1] > 0


@pytest.mark.parametrize("templates", [40, pytest.param(200, marks=pytest.mark.long)])
def test_many_templates_in_one_run(duck: DuckDB, record_property: Any, templates: int) -> None:
    service = Service(seed=1)
    for n in range(templates):
        service.add_import(template=f"Template {n}", rows=[{"a": n, f"b {n}": "x"}])
    began = time.monotonic()
    tally = duck.run(service)
    record_property("seconds", round(time.monotonic() - began, 1))
    assert (tally.status, tally.records_loaded, len(tally.load_ids)) == ("succeeded", templates, 1)
    assert len(duck.tables()) == templates
    assert_rows(duck, service)


def test_statements_about_versions_grow_with_the_templates_and_not_with_their_square(
    duck: DuckDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A subquery for each pair of tables took DuckDB minutes with 100 templates."""
    longest: list[int] = []
    gather = Connection.gather

    def measured(connection: Connection, name: str, *selects: str) -> None:
        longest[-1] = max(longest[-1], sum(map(len, selects)))
        gather(connection, name, *selects)

    monkeypatch.setattr(Connection, "gather", measured)
    service = Service(seed=1)
    for first, last in ((0, 5), (5, 20)):
        for n in range(first, last):
            service.add_import(f"template {n}", [{"n": n}])
        longest.append(0)
        some = [f"template {n}" for n in range(1, last)]  # all but one, so that a record may go where nothing tells
        for history in (True, some):
            service.append_rows(service.slugs()[0], [{"n": 1}])
            assert duck.run(service, history=history).status == "succeeded"
    assert longest[1] < 6 * longest[0]


def test_more_templates_than_selects_in_a_statement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite takes 500."""
    connect = sqlite3.connect

    def limited(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **kwargs)
        connection.setlimit(sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 10)
        return connection

    monkeypatch.setattr(base, "_SELECTS", 8)
    monkeypatch.setattr(sqlite3, "connect", limited)
    warehouse, service = SQLite(tmp_path), Service(seed=1)
    slugs = [service.add_import(template=f"template {n}", rows=[{"n": n}, {"n": 0}]) for n in range(20)]
    assert warehouse.run(service, history=True).status == "succeeded"
    for slug in slugs:
        service.delete_row(slug, next(iter(service.record_slugs(slug))))
    service.delete_import(slugs[0])
    assert warehouse.run(service, history=True).status == "succeeded"
    assert_rows(warehouse, service, typed=False)
    assert [warehouse.tuples(f"SELECT n FROM records_template_{n}") for n in range(1, 20)] == [[(0,)]] * 19
    found = [warehouse.tuples(f"SELECT count(*) FROM records_template_{n}_history") for n in range(20)]
    assert found == [[(0,)], *[[(1,)]] * 19], "mirror erases the versions of deleted rows"


@pytest.mark.dialect
def test_what_never_had_a_value_has_no_column_and_jams_nothing(warehouse: Warehouse) -> None:
    service = Service(seed=1)
    nulls = service.add_import(template="nulls", rows=[{"a": None, "b": {"c": None}}] * 3)
    service.add_import(template="blanks", rows=[{"a": ""}, {}, {"b": {}}])
    service.add_import(template="objects", rows=[{}, {}])
    service.add_import(template="nothing", rows=[])
    service.add_import(rows=[])
    first = warehouse.run(service)
    assert (first.status, len(first.load_ids)) == ("succeeded", 1)
    assert_rows(warehouse, service)
    fields = dictionary(warehouse, "records_nulls")
    assert {path: (row["data_type"], row["null_count"]) for path, row in fields.items()} == {
        ("a",): (None, 3),
        ("b", "c"): (None, 3),
    }

    service.append_rows(nulls, [{"a": 1.5, "b": "now a text"}, {"b": {"c": [1]}}])
    for slug in service.slugs()[3:]:
        service.append_rows(slug, [{"late": None}, {"late": True}])
    assert warehouse.run(service).status == "succeeded"
    assert_rows(warehouse, service)
    for slug in service.slugs():
        for row in list(service.record_slugs(slug)):
            service.delete_row(slug, row)
    assert warehouse.run(service).status == "succeeded"
    assert_rows(warehouse, service)
    assert warehouse.run(service).records_loaded == 0
