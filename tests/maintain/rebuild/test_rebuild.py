"""A rebuild gives typed tables the types that all rows and the hints call for, and loses nothing on the way."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dlt
import pytest

from connector import importer_source
from connector.errors import ConfigError, ConnectorError, LockedError
from connector.load import dlt_bridge
from connector.sandbox import serve
from connector.warehouse import Connection, Warehouse
from connector.warehouse.lock import sole_writer
from connector.warehouse.state import load_state

from .conftest import Place, unlucky

pytestmark = pytest.mark.thorough

T = "2026-01-01T00:00:00Z"
HINTS = {"records_orders": {"when": "date", "half": "decimal(10,2)"}}


def test_an_unlucky_first_type_is_healed_and_hints_apply(place: Place) -> None:
    before = place.query("SELECT * FROM records_others")
    done = {table.table: table for table in place.rebuild(hints=HINTS)}
    assert set(done) == {"records_orders", "records_others"}
    orders = done["records_orders"]
    assert set(orders.retyped) == {
        ("n", "text", "bigint"),
        ("when", "text", "date"),
        ("half", "double", "decimal(10,2)"),
    }
    assert (orders.rows, orders.conflicts_before, orders.conflicts) == (21, 20, 1)
    assert done["records_others"].retyped == ()
    types = place.types("records_orders")
    assert (types["n"], types["when"], types["half"]) == ("bigint", "date", "decimal(10,2)")
    assert types["tags"] == "json"
    assert place.query("SELECT count(n), count(n__v_text), sum(n) FROM records_orders") == [(20, 1, 190)]
    assert sorted(place.query("SELECT * FROM records_others")) == sorted(before)
    assert place.verify(hints=HINTS).differences == []
    counts = place.query(
        "SELECT path, data_type, has_text, value_count, null_count, conflict_count FROM sync_fields "
        "WHERE table_name = 'records_orders' ORDER BY path"
    )
    assert counts == [
        ("gone", "text", False, 1, 20, 0),
        ("half", "decimal(10,2)", False, 20, 1, 0),
        ("n", "bigint", True, 21, 0, 1),
        ("tags", "json", False, 20, 1, 0),
        ("when", "date", False, 21, 0, 0),
    ]
    apart = (
        "SELECT count(*) FROM records_orders t JOIN sync_imports s ON s.slug = t._import_slug "
        "WHERE s._dlt_load_id <> t._dlt_load_id"
    )
    assert place.query(apart) == [(0,)], "typed rows keep the load of their import"


def test_hints_that_say_how_people_write(place: Place) -> None:
    """A rebuild, a run and a comparison read a cell alike, also beside rows that were loaded under the type alone."""
    typed = {"records_bills": {"on": "date", "total": "decimal(12,2)", "paid": "bool", "at": "timestamp"}}
    forms = ("%d.%m.%Y", "1.234,56 €", "ja/nein", "%d.%m.%Y %H:%M")
    written = {
        "records_bills": {
            column: f"{kind}:{form}" for (column, kind), form in zip(typed["records_bills"].items(), forms, strict=True)
        }
    }
    rows: list[dict[str, Any]] = [
        {"on": "31.12.1979", "total": "1.234,56 €", "paid": "ja", "at": "1.2.2026 8:30"},
        {"on": "31.02.2026", "total": "1.23", "paid": "vielleicht", "at": "1.2.2026"},
        {"on": "1.2.2026", "total": 7, "paid": False, "at": ""},
    ]
    place.service.add_import("bills", rows)
    assert place.sync() == "succeeded"
    [done] = [table for table in place.rebuild(hints=written) if table.table == "records_bills"]
    assert {(column, after) for column, _, after in done.retyped} == set(typed["records_bills"].items())
    assert place.verify(hints=written).differences == []
    select = 'SELECT CAST("on" AS TEXT), total, paid, on__v_text, total__v_text, paid__v_text FROM records_bills '
    cells = place.query(select + "ORDER BY _import_slug, _sort")
    assert cells == [
        ("1979-12-31", Decimal("1234.56"), True, None, None, None),
        (None, None, None, "31.02.2026", "1.23", "vielleicht"),
        ("2026-02-01", Decimal(7), False, None, None, None),
    ]
    assert place.query("SELECT sum(conflict_count) FROM sync_fields WHERE table_name = 'records_bills'") == [(4,)]
    place.service.add_import("bills", rows)
    assert place.sync(hints=written) == "succeeded"
    assert sorted(map(str, place.query(select))) == sorted(map(str, cells * 2))
    place.service.add_import("bills", [{"on": "2026-01-31", "total": "1.5", "paid": "true"}])
    assert place.sync(hints=typed) == "succeeded"
    assert place.query("SELECT total, paid FROM records_bills WHERE total = 1.5") == [(Decimal("1.50"), True)]
    assert place.verify(hints=written).differences == []
    assert place.query("SELECT count(*) FROM records_bills WHERE on__v_text = '2026-01-31'") == [(0,)]
    place.rebuild(hints=written)
    assert place.query("SELECT count(*) FROM records_bills WHERE on__v_text = '2026-01-31'") == [(1,)]
    assert place.verify(hints=written).differences == []


@pytest.mark.long
def test_what_a_run_stored_whose_clock_was_ahead_is_over_with_it(place: Place) -> None:
    for rows in ([1, 2], ["x", "y", "z"]):
        place.service.add_import("t", [{"a": value} for value in rows])
        assert place.sync() == "succeeded"
    place.query("UPDATE _dlt_version SET inserted_at = inserted_at + INTERVAL '400' DAY")
    place.rebuild()
    assert place.sync() == "succeeded"
    with Warehouse(place.pipeline()).connect() as connection:
        assert not load_state(connection).dropped


@pytest.mark.long
def test_a_second_rebuild_changes_nothing(place: Place) -> None:
    place.rebuild(hints=HINTS)
    rows = sorted(place.query("SELECT * FROM records_orders"), key=str)
    fields = "SELECT table_name, column_name, data_type, first_seen_at, value_count, conflict_count FROM sync_fields"
    known = sorted(place.query(fields), key=str)
    again = place.rebuild(hints=HINTS)
    assert [table.retyped for table in again] == [(), ()]
    assert sorted(place.query("SELECT * FROM records_orders"), key=str) == rows
    assert sorted(place.query(fields), key=str) == known


def test_only_the_table_that_was_asked_for(place: Place) -> None:
    assert [table.table for table in place.rebuild("records_others")] == ["records_others"]
    assert place.types("records_orders")["n"] == "varchar"
    with pytest.raises(ConfigError, match="no typed table records_nothing; there are: records_orders, records_others"):
        place.rebuild("records_nothing")


def _goes_on(place: Place, working: str) -> None:
    """Later runs load into the columns of another type, and a quiet one reads nothing."""
    place.service.add_import("orders", [{"n": 77, "when": "2024-03-01", "half": 1.25, "fresh": True}])
    place.service.edit_row(
        place.service.slugs()[0], next(place.service.record_slugs(place.service.slugs()[0])), {"n": 5}
    )
    assert place.sync(working, hints=HINTS) == "succeeded"
    assert place.verify(hints=HINTS).differences == []
    assert place.query("SELECT count(n), count(n__v_text), sum(n) FROM records_orders") == [(22, 0, 272)]
    place.service.requests.clear()
    assert place.sync(working, hints=HINTS) == "succeeded"
    assert place.service.requests["records"] == 0


@pytest.mark.parametrize("working", ["pipelines", "lost"])
def test_runs_go_on_after_it(place: Place, working: str) -> None:
    place.rebuild(hints=HINTS)
    _goes_on(place, working)


@pytest.mark.long
def test_runs_go_on_in_another_working_directory_that_knows_the_types_of_before(place: Place) -> None:
    place.service.add_import("orders", [{"n": 1}])
    assert place.sync("other") == "succeeded"
    place.rebuild(hints=HINTS)
    place.service.delete_import(place.service.slugs()[-1])
    _goes_on(place, "other")


@pytest.mark.long
def test_dlt_alone_goes_on_under_another_name(place: Place) -> None:
    """What dlt remembers of a pipeline of another name a rebuild cannot reach."""
    place.sync()
    alone = dlt.pipeline(
        "theirs",
        destination=place.destination(),
        dataset_name=place.dataset,
        pipelines_dir=str(place.folder / "theirs"),
    )

    def load(rows: list[dict[str, Any]]) -> None:
        place.service.add_import("orders", rows)
        with serve(place.service) as url:
            alone.run(importer_source(base_url=url, access_token=place.service.token, hints=HINTS))
        assert place.query("SELECT status FROM sync_runs ORDER BY started_at DESC LIMIT 1") == [("succeeded",)]

    load([{"n": 1}])
    place.rebuild(hints=HINTS)
    load([{"n": 2, "half": 2.25}])
    load([{"n": 3, "when": "2024-05-05"}])
    assert place.types("records_orders")["n"] == "bigint"
    assert place.verify(hints=HINTS).differences == []


@pytest.mark.long
def test_back_and_forth_between_types(place: Place) -> None:
    """The schema of the second rebuild was there before the first one: dlt must not take up the one in between."""
    place.rebuild(hints=HINTS)
    place.service.append_rows(place.service.slugs()[0], [{"n": 8, "when": "2024-01-03"}])
    assert place.sync(hints=HINTS) == "succeeded"
    place.rebuild(hints={"records_orders": {"n": "text", "when": "text"}})
    assert place.types("records_orders")["n"] == "varchar"
    place.service.append_rows(place.service.slugs()[0], [{"n": 9, "when": "x"}])
    assert place.sync("lost", hints={"records_orders": {"n": "text", "when": "text"}}) == "succeeded"
    assert place.verify(hints={"records_orders": {"n": "text"}}).differences == []


def test_kept_deletes_stay_marked_and_a_template_without_imports_is_rebuilt(place: Place) -> None:
    for slug in place.service.slugs()[1:]:
        place.service.delete_import(slug)
    assert place.sync(deletes="keep", mass_delete_limit=1) == "succeeded"
    marked = "SELECT _record_slug, _deleted_at FROM {} WHERE _deleted_at IS NOT NULL ORDER BY 1"
    before = [place.query(marked.format(table)) for table in ("records_orders", "records_others")]
    assert [len(rows) for rows in before] == [20, 1]
    place.rebuild(deletes="keep", hints={"records_others": {"a": "text"}})
    assert [place.query(marked.format(table)) for table in ("records_orders", "records_others")] == before
    assert place.types("records_others")["a"] == "varchar"
    assert place.query("SELECT value_count, null_count FROM sync_fields WHERE path = 'a'") == [(0, 0)]
    assert place.verify(deletes="keep").differences == []


@pytest.mark.parametrize(
    "moment", [*(pytest.param(name, marks=pytest.mark.long) for name in ("forget_tables", "load_replacement")), "swap"]
)
def test_a_kill_before_the_swap_changes_nothing_and_heals(
    place: Place, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = sorted(place.query("SELECT * FROM records_orders"), key=str)
    with monkeypatch.context() as patch:
        _dies_after(patch, moment)
        with pytest.raises(ConnectorError, match="killed"):
            place.rebuild(hints=HINTS)
    assert sorted(place.query("SELECT * FROM records_orders"), key=str) == rows
    place.service.add_import("orders", [{"n": "still text", "when": "2024-03-01"}])
    assert place.sync() == "succeeded"
    assert place.verify().differences == []
    assert {table.rows for table in place.rebuild(hints=HINTS)} == {22, 1}
    assert not place.types("sync_rebuild")
    assert place.verify(hints=HINTS).differences == []


def _dies_after(patch: pytest.MonkeyPatch, moment: str) -> None:
    import connector.maintain.rebuild as module

    real: Any = Connection.drop_table if moment == "swap" else getattr(module, moment)

    def dies(*args: Any, **kwargs: Any) -> Any:
        real(*args, **kwargs)
        raise ConnectorError("killed")

    patch.setattr(Connection if moment == "swap" else module, "drop_table" if moment == "swap" else moment, dies)


@pytest.mark.long
def test_a_half_written_table_is_no_typed_table_and_the_next_run_drops_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would keep what a privacy rule or a deletion removes from the table."""
    with monkeypatch.context() as patch:
        _dies_after(patch, "load_replacement")
        with pytest.raises(ConnectorError):
            place.rebuild()
    assert place.types("sync_rebuild")
    with Warehouse(place.pipeline()).connect() as connection:
        assert "sync_rebuild" not in load_state(connection).schemas
    assert place.sync() == "succeeded"
    assert not place.types("sync_rebuild")
    assert [table.rows for table in place.rebuild("records_orders")] == [21]


@pytest.mark.dialect
def test_a_run_that_is_killed_while_it_drops_a_half_written_table_leaves_no_record_of_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By such a record dlt would assume that the table exists, and no rebuild would end any more."""
    with monkeypatch.context() as patch:
        _dies_after(patch, "load_replacement")
        with pytest.raises(ConnectorError):
            place.rebuild()
    with monkeypatch.context() as patch:
        _dies_after(patch, "swap")
        assert place.sync() == "killed"
    assert place.sync() == "succeeded"
    assert [table.rows for table in place.rebuild("records_orders")] == [21]


def test_the_next_run_removes_the_folder_of_a_killed_rebuild(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    working_directory = Path(place.pipeline().working_dir)
    with monkeypatch.context() as patch:
        patch.setattr(dlt_bridge, "shutil", SimpleNamespace(rmtree=lambda *_, **__: None))
        place.rebuild("records_orders")
    assert list(working_directory.glob("rebuild-*"))
    assert place.sync() == "succeeded"
    assert not list(working_directory.glob("rebuild-*"))


def test_a_column_of_the_user_is_not_thrown_away(place: Place) -> None:
    place.query("ALTER TABLE records_orders ADD COLUMN mine VARCHAR(9)")
    place.query("UPDATE records_orders SET mine = 'mine'")
    with pytest.raises(ConfigError, match=r"records_orders has columns that are not the connector's.*: mine"):
        place.rebuild()
    assert place.query("SELECT count(mine) FROM records_orders") == [(21,)]
    assert [table.table for table in place.rebuild("records_others")] == ["records_others"]


def test_what_has_no_raw_row_is_not_thrown_away(place: Place) -> None:
    place.query("DELETE FROM records WHERE data LIKE '%few%'")
    with pytest.raises(ConfigError, match="1 rows of records_orders have no raw row"):
        place.rebuild()
    assert place.query("SELECT count(*) FROM records_orders") == [(21,)]
    assert [table.table for table in place.rebuild("records_others")] == ["records_others"]


def test_a_kept_row_whose_record_moved_to_another_template_is_not_thrown_away(empty: Place) -> None:
    """The raw row moved with the record, so the row that is kept has none."""
    whole = {"slug": "r", "data": {"n": 1}, "created_at": T, "updated_at": T, "sort": 0}
    first = empty.service.add_import("orders", [{"n": 2}])
    row = empty.service.add_raw_record(first, json.dumps(whole))
    second = empty.service.add_import("others", [{"a": 1}])
    assert empty.sync(deletes="keep") == "succeeded"
    empty.service.delete_row(first, row)
    empty.service.add_raw_record(second, json.dumps(whole))
    assert empty.sync(deletes="keep") == "succeeded"
    kept = "SELECT n FROM records_orders WHERE _deleted_at IS NOT NULL"
    assert empty.query(kept) == [(1,)]
    with pytest.raises(ConfigError, match="1 rows of records_orders are of records that moved to another template"):
        empty.rebuild(deletes="keep")
    assert empty.query(kept) == [(1,)]
    assert [table.table for table in empty.rebuild("records_others", deletes="keep")] == ["records_others"]


def test_it_needs_raw_rows_a_warehouse_and_the_lock(place: Place, empty: Place) -> None:
    with pytest.raises(ConfigError, match="raw = false"):
        place.rebuild(raw=False)
    with pytest.raises(ConfigError, match="no warehouse to rebuild"):
        empty.rebuild()
    assert not (empty.folder / "warehouse.duckdb").exists()
    with sole_writer(place.pipeline()), pytest.raises(LockedError):
        place.rebuild()


def test_on_postgresql(tmp_path: Path, postgres_uri: str) -> None:
    place = Place(tmp_path, lambda: dlt.destinations.postgres(postgres_uri), "rebuilding")
    unlucky(place)
    place.rebuild(hints=HINTS)
    types = place.types("records_orders")
    assert (types["n"], types["when"], types["half"]) == ("bigint", "date", "numeric")
    _goes_on(place, "pipelines")
    assert place.rebuild(hints=HINTS)[0].retyped == ()
    place.service.add_import("orders", [{"n": 3}])
    assert place.sync("lost", hints=HINTS) == "succeeded"
    assert place.verify(hints=HINTS).differences == []


def test_on_postgresql_rights_and_indexes_stay(
    tmp_path: Path, postgres_uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    place = unlucky(Place(tmp_path, lambda: dlt.destinations.postgres(postgres_uri), "rights"))
    table = "rights.records_orders"
    place.query(
        'CREATE ROLE "Ann"; CREATE ROLE bob; CREATE ROLE cleo; ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO cleo;'
        f'GRANT SELECT ON {table} TO "Ann" WITH GRANT OPTION; GRANT SELECT, DELETE ON {table} TO bob;'
        f"GRANT SELECT ON {table} TO PUBLIC; CREATE INDEX mine ON {table} (half) WHERE tags::text LIKE '%1%';"
        f"CREATE INDEX of_texts ON {table} (n varchar_pattern_ops)"
    )
    rights = (
        "SELECT grantee, privilege_type, is_grantable FROM information_schema.role_table_grants "
        "WHERE table_schema = 'rights' AND table_name = 'records_orders' ORDER BY 1, 2"
    )
    indexes = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'rights' AND tablename = 'records_orders' ORDER BY 1"
    before = place.query(rights), place.query(indexes)
    try:
        place.rebuild(hints=HINTS)
        assert place.query(rights) == before[0]
        assert place.query(indexes) == [row for row in before[1] if "of_texts" not in row[0]]
        assert "An index of records_orders does not fit the rebuilt table (operator class" in caplog.text
        assert place.types("records_orders")["n"] == "bigint"
    finally:
        place.query('DROP SCHEMA rights CASCADE; DROP OWNED BY "Ann", bob, cleo; DROP ROLE "Ann", bob, cleo')


@pytest.mark.parametrize("lost", ["ALTER TABLE records_orders DROP COLUMN _sort", "DROP TABLE sync_fields"])
def test_what_is_lost_after_a_rebuild_is_noticed_by_the_next_run(place: Place, lost: str) -> None:
    """dlt's schema knows nothing of a rebuilt table until rows are loaded into it."""
    place.rebuild()
    assert place.query("SELECT n, n__v_text FROM records_orders WHERE n__v_text IS NOT NULL") == [(None, "a few")]
    place.query("DROP VIEW IF EXISTS importer_data_views.orders")
    place.query(lost)
    slug = place.service.add_import("orders", [{"n": "many"}])
    assert place.sync() == "succeeded"
    assert place.sync() == "succeeded"
    assert place.query("SELECT n__v_text FROM records_orders WHERE n__v_text IS NOT NULL ORDER BY 1") == [
        ("a few",),
        ("many",),
    ]
    assert place.query("SELECT _sort FROM records_orders WHERE _import_slug = %s", slug) == [(0,)]
    assert "n__v_text__v_text" not in place.types("records_orders")
    assert place.verify().differences == []
