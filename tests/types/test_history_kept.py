"""What tables of versions hold stays true: templates left out, retyped columns, erased rows, rules that come later."""

from __future__ import annotations

import json
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any
from unittest import mock

import pytest
from dlt.pipeline.helpers import pipeline_drop

from connector.cli.unmatched import unmatched_templates
from connector.errors import ConfigError
from connector.load.dlt_bridge import load_package
from connector.maintain.rebuild import rebuild
from connector.maintain.verify import verify
from connector.reporting.changes import changes
from connector.reporting.views.applying import apply, keep_current
from connector.run import session as run_session
from connector.run import sync as run_sync
from connector.run.sync import sync
from connector.runs import Status, Tally
from connector.sandbox import Faults, Request, Response, Service, Switches, Template, serve
from connector.sandbox.catalogue import StoredImport
from connector.sandbox.messages import error_response, json_response
from connector.settings import RunScope, Selection, Settings
from connector.transform import width
from connector.transform.row_limits import Limits
from connector.warehouse import Warehouse as Opened
from connector.warehouse import history
from connector.warehouse.connection import Connection
from tests.types.conftest import DuckDB, PostgreSQL, Warehouse, made
from tests.types.test_ours import execute

pytestmark = pytest.mark.thorough


class Place:
    """A warehouse with history, and what to ask of it."""

    def __init__(self, warehouse: Warehouse, **settings: Any) -> None:
        self.warehouse, self.service = warehouse, Service(1)
        self.settings = {"history": True, **settings}

    def run(self, scope: RunScope | None = None, **settings: Any) -> Tally:
        ran = self.warehouse.run(self.service, scope, **{**self.settings, **settings})
        assert ran.status is Status.succeeded, (ran.error, ran.problems)
        return ran

    def loaded(self, url: str, **settings: Any) -> Settings:
        return Settings.load(base_url=url, access_token=self.service.token, **{**self.settings, **settings})

    def rebuild(self, **settings: Any) -> None:
        with serve(self.service) as url:
            rebuild(self.warehouse.pipeline(), self.loaded(url, **settings))

    def check(self, **settings: Any) -> None:
        with serve(self.service) as url:
            assert verify(self.warehouse.pipeline(), self.loaded(url, **settings), deep=True).differences == []

    def versions(self, column: str, table: str) -> list[tuple[Any, ...]]:
        return self.warehouse.tuples(
            f"SELECT {column}, _change, _valid_to IS NULL AS still FROM {table}_history "
            "ORDER BY _valid_from, _valid_to IS NULL, _valid_to, 1"
        )

    def as_of(self, ran: Tally, columns: str, template: str) -> list[tuple[Any, ...]]:
        moment = ran.started_at.isoformat()
        return self.warehouse.tuples(
            f"SELECT {columns} FROM {self.warehouse.dataset}_views.{template}_as_of('{moment}')"
        )

    @property
    def has_views(self) -> bool:
        return Opened(self.warehouse.pipeline()).traits.views

    def edit(self, slug: str, row: dict[str, Any]) -> None:
        self.service.edit_row(slug, next(iter(self.service.record_slugs(slug))), row)


@pytest.fixture
def place(recording: Warehouse) -> Place:
    return Place(recording)


@pytest.fixture
def duck_place(duck: DuckDB) -> Place:
    return Place(duck)


def test_what_changed_while_a_template_was_left_out_is_one_change(place: Place) -> None:
    place.service.add_import("Customers", [{"a": 1}])
    orders = place.service.add_import("Orders", [{"x": 1}, {"x": 2}])
    place.run()
    place.edit(orders, {"x": 100})
    place.run(history=["Customers"])
    assert place.run(history=["Customers"]).load_ids == []
    assert place.versions("x", "records_orders") == [(1, "insert", True), (2, "insert", True)]

    place.run()
    assert place.versions("x", "records_orders") == [(1, "insert", False), (2, "insert", True), (100, "update", True)]
    place.check()


def test_a_table_of_versions_that_a_run_made_and_did_not_fill_is_filled_by_the_next(place: Place) -> None:
    place.service.add_import("Customers", [{"a": 1}, {"a": 2}])
    place.run()
    place.run()
    execute(place.warehouse, "ALTER TABLE records_customers_history RENAME TO earlier_versions")
    with mock.patch.object(history._Recorder, "record", side_effect=RuntimeError("out of memory")):
        ran = place.warehouse.run(place.service, **place.settings)
    assert (ran.status, "out of memory" in (ran.error or "")) == (Status.failed, True)

    place.run()
    assert place.versions("a", "records_customers") == [(1, "insert", True), (2, "insert", True)]
    place.check()


@pytest.mark.long
def test_a_template_that_is_renamed_goes_on_being_recorded(duck_place: Place) -> None:
    place = duck_place
    slug = place.service.add_import(Template("Customers", "c1"), [{"a": 1}])
    place.run(history=["Customers"])
    place.service.set_template(slug, Template("Clients", "c1"))
    place.edit(slug, {"a": 2})
    place.run(history=["Customers"])
    assert place.versions("a", "records_customers") == [(1, "insert", False), (2, "update", True)]

    with serve(place.service) as url:
        wrong = place.loaded(url, history=["Customer", "Clients"])
        [said] = unmatched_templates(Opened(place.warehouse.pipeline()), wrong)
    assert said == "history names Customer, which no template is called: did you mean Customers?"


@pytest.mark.long
@pytest.mark.dialect
def test_a_rebuild_alters_no_value_of_an_earlier_version(place: Place) -> None:
    row = {"day": "01.02.2024", "share": "1.9", "exact": "12", "number": 9007199254740993, "code": "007"}
    slug = place.service.add_import("T", [row])
    first = place.run()
    place.edit(slug, {"day": "03.02.2024", "share": "2", "exact": "13", "number": 1.5, "code": "8"})
    place.run()
    hints = {
        "day": "date:%d.%m.%Y",
        "share": "bigint",
        "exact": "bigint",
        "number": "double",
        "code": "bigint",
    }
    place.rebuild(hints={"records_t": hints})
    place.run(hints={"records_t": hints})
    kept = ("01.02.2024", "1.9", 9007199254740993, "007", "12")
    names = ("day", "share", "number", "code", "exact")
    before = f"SELECT {', '.join(f'{name}__was_1' for name in names)} FROM records_t_history"
    assert place.warehouse.tuples(f"{before} WHERE day IS NULL AND _valid_to IS NOT NULL") == [kept]
    if place.has_views:
        apply(place.warehouse.pipeline())
        shown = ", ".join((*names, *(f"{name}__misfit" for name in names)))
        assert place.as_of(first, shown, "t") == [(*[None] * 5, *map(str, kept))]
    [now] = place.warehouse.rows("SELECT * FROM records_t_history WHERE _valid_to IS NULL")
    assert (now["share"], now["number"], now["code"]) == (2, 1.5, 8)
    found = {each.field: (each.old, each.new) for each in changes(place.warehouse.pipeline(), first.started_at)}
    assert found["number"] == (9007199254740993, 1.5)
    place.check(hints={"records_t": hints})


@pytest.mark.long
def test_values_beside_a_column_come_back_into_it(place: Place) -> None:
    slug = place.service.add_import("T", [{"b": 1}])
    place.run()
    place.edit(slug, {"b": 1.5})
    second = place.run()
    place.edit(slug, {"b": 2.5})
    place.run()
    place.rebuild()

    if place.has_views:
        apply(place.warehouse.pipeline())
        assert place.as_of(second, "b", "t") == [(1.5,)]
    assert place.versions("b", "records_t") == [(1, "insert", False), (1.5, "update", False), (2.5, "update", True)]
    assert [c for c in place.warehouse.columns("records_t_history") if c.startswith("b_")] == []


def told(place: Place, since: Tally) -> set[tuple[str, str]]:
    """Return the records and fields that changed, once `changes` and the view agree about them."""
    seen = [(each.record, each.field) for each in changes(place.warehouse.pipeline(), since.started_at) if each.field]
    if place.has_views:
        apply(place.warehouse.pipeline())
        view = f"{place.warehouse.dataset}_views.v_changes"
        shown = place.warehouse.tuples(f"SELECT record_slug, field FROM {view} WHERE change = 'update'")
        assert sorted(shown) == sorted(seen)
    assert len(set(seen)) == len(seen)
    return set(seen)


@pytest.mark.long
@pytest.mark.dialect
def test_a_rebuild_makes_no_change_of_a_version_and_hides_none(place: Place) -> None:
    row = {"day": "01.02.2024", "share": 1.5, "code": "x", "name": "n"}
    slug = place.service.add_import("T", [row, {**row, "day": None}])
    first, [one, other] = place.run(), place.service.record_slugs(slug)
    place.service.edit_row(slug, one, {**row, "name": "corrected"})
    place.service.edit_row(slug, other, {**row, "code": None})
    place.run()
    expected = {(one, "name"), (other, "day"), (other, "code")}

    assert told(place, first) == expected
    hints = {"records_t": {"day": "date:%d.%m.%Y", "share": "text", "code": "bigint"}}
    place.rebuild(hints=hints)
    assert told(place, first) == expected
    place.service.edit_row(slug, one, {**row, "name": "corrected", "day": "02.02.2024"})
    place.run(hints=hints)
    assert told(place, first) == {*expected, (one, "day")}
    if place.has_views:
        assert place.as_of(first, "day__misfit", "t") == [("01.02.2024",), (None,)]
        live = f"SELECT day__misfit FROM {place.warehouse.dataset}_views.t_as_of('2999-01-01')"
        assert place.warehouse.tuples(live) == [(None,), (None,)]
    place.rebuild(hints={"records_t": {"day": "text", "share": "double", "code": "text"}})
    assert told(place, first) == {*expected, (one, "day")}


@pytest.mark.long
@pytest.mark.parametrize("recorded", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_rebuild_that_dies_leaves_what_did_not_fit_where_it_was(
    place: Place, monkeypatch: pytest.MonkeyPatch, recorded: bool
) -> None:
    rows: list[dict[str, Any]] = [*[{"v": 7, "who": "n"}] * 3, {"v": "12", "who": "n"}, {"v": "abc", "who": "n"}]
    slug = place.service.add_import("T", rows)
    first, records = place.run(), [*place.service.record_slugs(slug)]
    for record, row in zip(records[1:], rows[1:], strict=True):
        place.service.edit_row(slug, record, {**row, "who": "corrected"})
    place.run()
    place.service.edit_row(slug, records[0], {"v": 7, "who": "corrected"})
    place.run(history=recorded)
    columns = "SELECT v, v__v_text, _valid_to FROM records_t_history ORDER BY _record_slug, _valid_from"
    before = place.warehouse.tuples(columns)
    with monkeypatch.context() as patch:
        patch.setattr("connector.maintain.rebuild.swapped", mock.Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            place.rebuild(hints={"records_t": {"v": "text"}})
    place.run()
    if recorded:
        assert place.warehouse.tuples(columns) == before
    assert told(place, first) == {(record, "who") for record in records}
    place.check()


RETOLD: dict[str, tuple[list[Any], str | None, str]] = {  # values, the hint at first, the hint of the rebuild
    "corrected": (["03/02/2024", "13/02/2024"], "date:%m/%d/%Y", "date:%d/%m/%Y"),
    "thousands": (["1.234", "12,5"], None, "decimal(12,3):1.234,56"),
    "misfits": ([7, "01.02.2024"], None, "date:%d.%m.%Y"),
    "iso": (["2024-02-01", "01.02.2024"], None, "date:%d.%m.%Y"),
    "nan": (["nan", "0.5"], None, "double"),
    "flag": ([7, "true"], None, "bool"),
}


@pytest.mark.long
def test_a_rebuild_that_reads_values_otherwise_tells_no_change(place: Place) -> None:
    rows = [{"who": f"n{n}", **{name: values[n] for name, (values, _, _) in RETOLD.items()}} for n in range(2)]
    slug = place.service.add_import("T", rows)
    before = {"records_t": {name: hint for name, (_, hint, _) in RETOLD.items() if hint}}
    first, records = place.run(hints=before), [*place.service.record_slugs(slug)]
    for record, row in zip(records, rows, strict=True):
        place.service.edit_row(slug, record, {**row, "who": "corrected"})
    place.run(hints=before)
    after = {"records_t": {name: hint for name, (_, _, hint) in RETOLD.items()}}
    place.rebuild(hints=after)
    assert told(place, first) == {(record, "who") for record in records}
    place.run(hints=after)
    place.check(hints=after)
    assert told(place, first) == {(record, "who") for record in records}
    earlier = "SELECT thousands, nan FROM records_t_history WHERE _valid_to IS NOT NULL"
    assert place.warehouse.tuples(earlier) == [(None, None)] * 2, "a text of then is no number of now"


@pytest.mark.long
@pytest.mark.dialect
@pytest.mark.parametrize("dies", [False, True])
def test_a_rebuild_before_the_versions_are_recorded_changes_no_record(
    place: Place, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    rows = [{"name": f"n{n}", "day": f"2{n}.02.2024"} for n in (1, 2, 3)]  # PostgreSQL cannot cast these
    slug = place.service.add_import("T", rows)
    place.run()
    place.edit(slug, {**rows[0], "name": "corrected"})
    place.run(history=False)
    hints = {"records_t": {"day": "date:%d.%m.%Y"}}

    def dying(*_: Any) -> None:
        raise RuntimeError("killed")

    if dies:
        with monkeypatch.context() as patch:
            patch.setattr("connector.maintain.rebuild.swapped", dying)
            with pytest.raises(Exception, match="killed"):
                place.rebuild(hints=hints)
    place.rebuild(hints=hints)
    place.run(hints=hints)
    told = [("n1", False), ("n2", True), ("n3", True), ("corrected", True)]
    assert [(name, still) for name, _, still in place.versions("name", "records_t")] == told
    place.check(hints=hints)


def test_what_did_not_fit_an_earlier_version_does_not_come_to_fit(place: Place) -> None:
    slug = place.service.add_import(
        "T", [*[{"n": 1, "t": "a", "u": 1, "w": 1}] * 9, {"n": "7", "t": ["list"], "u": ["list"], "w": "abc"}]
    )
    place.run()
    record = list(place.service.record_slugs(slug))[-1]
    place.service.edit_row(slug, record, {"n": 8, "t": "c", "u": 2, "w": 2})
    place.run()
    held = "SELECT n, n__v_text, t, t__v_text, u, u__v_text FROM records_t_history WHERE _valid_to IS NOT NULL"
    before = place.warehouse.tuples(held)
    assert before == [(None, "7", None, '["list"]', None, '["list"]')]

    place.rebuild()
    assert place.warehouse.tuples(held) == before
    place.rebuild(hints={"records_t": {"n": "double", "u": "text", "w": "text"}})
    assert place.warehouse.tuples(held) == before
    assert place.warehouse.tuples("SELECT w FROM records_t_history WHERE _valid_to IS NOT NULL") == [("abc",)]
    place.rebuild(hints={"records_t": {"n": "json"}})
    assert place.warehouse.tuples(held.replace("n,", "NULL,")) == before
    assert place.warehouse.tuples("SELECT n FROM records_t_history WHERE _valid_to IS NOT NULL") == [(None,)]


@pytest.mark.dialect
@pytest.mark.parametrize("hint", ["json", "text"])
def test_texts_and_json_of_earlier_versions_stay_what_they_are(place: Place, hint: str) -> None:
    slug = place.service.add_import("T", [{"j": "7" if hint == "json" else ["7"], "n": 1}])
    place.run()
    place.edit(slug, {"j": "8", "n": 2})
    place.run()
    before = place.versions("j", "records_t")

    if Opened(place.warehouse.pipeline()).traits.keeps_json:
        place.rebuild(hints={"records_t": {"j": hint}})
        [earlier] = place.warehouse.tuples("SELECT j, j__was_1 FROM records_t_history WHERE _valid_to IS NOT NULL")
        assert earlier == (None, before[0][0])
    else:
        other = "text" if hint == "json" else "json"
        with pytest.raises(
            ConfigError, match=f'Keep the type with a hint .j = "{other}"., or rename records_t_history'
        ):
            place.rebuild(hints={"records_t": {"j": hint}})
        assert place.versions("j", "records_t") == before
        place.check()
        place.rebuild(hints={"records_t": {"j": other}})
        execute(place.warehouse, "ALTER TABLE records_t_history RENAME TO mine")
        place.rebuild(hints={"records_t": {"j": hint}})
    place.run(hints={"records_t": {"j": hint}})
    place.check(hints={"records_t": {"j": hint}})


@pytest.mark.long
@pytest.mark.parametrize("dies", ["prepare_for_rebuild", "refresh_open"])
def test_a_rebuild_that_dies_leaves_versions_that_the_next_run_makes_whole(
    place: Place, monkeypatch: pytest.MonkeyPatch, dies: str
) -> None:
    slug = place.service.add_import("T", [{"d": "01.02.2024", "n": "1"}])
    place.run()

    def dying(*_: Any, **__: Any) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(f"connector.maintain.rebuild.{dies}", dying)
        with pytest.raises(Exception, match="killed"):
            place.rebuild(hints={"records_t": {"n": "bigint"}})
    assert place.run().load_ids == []
    assert place.versions("n", "records_t") == [("1", "insert", True)]
    place.check()
    place.edit(slug, {"d": "01.02.2024", "n": "2"})
    place.run()
    assert place.versions("n", "records_t") == [("1", "insert", False), ("2", "update", True)]


@pytest.mark.long
def test_a_rebuild_that_dies_before_its_fields_are_stored_leaves_the_values_as_they_were(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On MySQL a column of texts and one of JSON have the same type, by which a run could not tell them apart."""
    place.settings["history"] = False
    place.service.add_import("T", [{"j": "text"}])
    place.run()

    def dying(*_: Any) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("connector.warehouse.typed_tables._forget_rebuild", dying)
        with pytest.raises(Exception, match="killed"):
            place.rebuild(hints={"records_t": {"j": "json"}})
    place.run()
    assert place.warehouse.tuples("SELECT j FROM records_t") == [("text",)]
    place.check()


@pytest.mark.long
def test_a_rebuild_that_dies_beside_the_old_table_leaves_no_value_behind_that_is_dropped_later(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MySQL drops the old table in a transaction of its own."""
    from dlt.destinations.impl.sqlalchemy.db_api_client import SqlalchemyClient

    place = Place(made(request, "mysql", tmp_path))
    place.service.add_import("T", [{"n": "1", "email": "a@x"}])
    place.run()
    execute_sql = SqlalchemyClient.execute_sql

    def dying(self: Any, sql: str, *args: Any, **kwargs: Any) -> Any:
        if str(sql).startswith("DROP TABLE `"):
            raise RuntimeError("killed")
        return execute_sql(self, sql, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(SqlalchemyClient, "execute_sql", dying)
        with pytest.raises(Exception, match="killed"):
            place.rebuild(hints={"records_t": {"n": "bigint"}})
    rules = {"T": {"email": "drop"}}
    assert len(place.warehouse.tables("sync_rebuild")) == 1
    place.run(privacy=rules)
    assert place.warehouse.tables("sync_rebuild") == []
    assert place.warehouse.tuples("SELECT email FROM records_t") == [(None,)]
    place.check(privacy=rules)


@pytest.mark.dialect
def test_a_column_whose_change_of_type_was_cut_short_is_made_whole(place: Place) -> None:
    slug = place.service.add_import("T", [{"n": "1"}, {"n": "2"}])
    place.run()
    place.edit(slug, {"n": "3"})
    place.run()
    execute(place.warehouse, "ALTER TABLE records_t_history RENAME COLUMN n TO n__was_1")
    assert place.run().load_ids == []
    assert place.versions("n", "records_t") == [("1", "insert", False), ("2", "insert", True), ("3", "update", True)]
    assert "n__was_1" not in place.warehouse.columns("records_t_history")
    place.check()


@pytest.mark.dialect
@pytest.mark.parametrize("deletes", ["mirror", "keep"])
def test_versions_of_an_import_that_was_erased_while_its_table_was_away_end_once_it_is_back(
    place: Place, deletes: str
) -> None:
    place.settings["deletes"] = deletes
    gone = place.service.add_import("T", [{"email": "a@b.example"}, {"email": "c@d.example"}])
    stays = place.service.add_import("T", [{"email": "e"}])
    place.service.add_import("Other", [{"n": 1}])
    place.run()
    place.edit(gone, {"email": "new@b.example"})
    place.edit(stays, {"email": "e@f.example"})  # so that no import has typed rows by the ledger
    place.run(typed=False)
    execute(place.warehouse, "DROP TABLE records_t")
    place.service.delete_import(gone)
    place.run(typed=False)
    place.run()
    still = "SELECT email FROM records_t_history WHERE _valid_to IS NULL"
    assert place.warehouse.tuples(still) == [("e@f.example",)]
    left = place.warehouse.tuples("SELECT email FROM records_t_history WHERE email LIKE '%@%' AND email NOT LIKE 'e%'")
    assert bool(left) is (deletes == "keep")
    assert place.run().load_ids == []
    place.check()


@pytest.mark.dialect
@pytest.mark.parametrize("made", ["VIEW", "TABLE"])
def test_a_table_or_view_of_the_user_is_no_history_table_of_ours_because_of_its_name(place: Place, made: str) -> None:
    slug = place.service.add_import("T", [{"n": 1}])
    place.run()
    execute(place.warehouse, f"CREATE {made} records_all_history AS SELECT * FROM records_t_history")
    place.edit(slug, {"n": 2})
    place.run()
    assert place.warehouse.tuples("SELECT count(*) FROM sync_imports WHERE history IS NULL") == [(0,)]
    assert place.warehouse.tuples("SELECT count(*) FROM sync_imports WHERE history LIKE 'paused%'") == [(0,)]
    execute(place.warehouse, f"DROP {made} records_all_history")


@pytest.mark.dialect
def test_a_history_table_that_a_hand_emptied_is_begun_anew_by_the_next_run_that_sees_a_change(place: Place) -> None:
    place.service.add_import("T", [{"n": 1}, {"n": 2}])
    slug = place.service.add_import("T", [{"n": 3}])
    place.run()
    execute(place.warehouse, "DELETE FROM records_t_history")
    place.edit(slug, {"n": 4})
    place.run()
    assert sorted(n for n, _, still in place.versions("n", "records_t") if still) == [1, 2, 4]
    place.check()


@pytest.mark.dialect
@pytest.mark.parametrize("end", ["killed", "locked"])
def test_values_that_a_rebuild_set_aside_before_it_died_come_back(
    place: Place, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    place.settings |= {"privacy": {"*": {"iban": "hash"}}, "privacy_key": "k" * 32}
    slug = place.service.add_import("T", [{"n": 1, "text": "x", "iban": "DE1"}])
    place.run()
    place.edit(slug, {"n": 2, "text": "x", "iban": "DE2"})
    place.run()
    held = "SELECT iban, _change FROM records_t_history ORDER BY _valid_from, _valid_to IS NULL, _valid_to, 1"
    before, hints = place.warehouse.tuples(held), {"records_t": {"n": "double", "text": "bigint"}}

    execute_sql = Connection.execute

    def dies(*_: Any) -> None:
        raise RuntimeError("killed")

    def waits_in_vain(self: Connection, sql: str, *args: Any) -> None:
        if sql.startswith("UPDATE") and "__was_0" in sql and "CAST(" in sql:  # after the swap
            raise sqlite3.OperationalError("the database is locked")
        execute_sql(self, sql, *args)

    with monkeypatch.context() as patch:
        if end == "killed":
            patch.setattr("connector.maintain.rebuild.restore_values", dies)
        else:
            patch.setattr(Connection, "execute", waits_in_vain)
        with pytest.raises(Exception, match=end):
            place.rebuild(hints=hints)
    assert place.run(hints=hints).load_ids == []
    assert place.warehouse.tuples(held) == before
    assert place.versions("n", "records_t") == [(1.0, "insert", False), (2.0, "update", True)]
    names = place.warehouse.columns("records_t_history")
    assert [name for name in names if "__was_" in name] == ["text__was_1"], "texts are no numbers"
    place.check(hints=hints)


@pytest.mark.parametrize("history", [False, ["Customers"]])
def test_what_the_service_erased_leaves_no_version_where_none_is_made_any_more(place: Place, history: Any) -> None:
    kept = place.service.add_import("Orders", [{"x": "secret"}, {"x": "stays"}], {"who": "ann"})
    gone = place.service.add_import("Orders", [{"x": "gone"}], {"who": "bob"})
    for n in range(4):
        place.service.add_import("Customers", [{"a": n}])
    place.run()
    place.service.delete_row(kept, next(iter(place.service.record_slugs(kept))))
    place.service.delete_import(gone)
    place.run(history=history)

    assert place.versions("x", "records_orders") == [("stays", "insert", True)]
    assert ("bob",) not in place.warehouse.tuples("SELECT metadata__who FROM imports_history")


def test_a_record_that_moves_between_two_runs_keeps_its_versions(place: Place) -> None:
    first = place.service.add_import("Customers", [{"n": "moves"}, {"n": "b"}])
    second = place.service.add_import("Customers", [{"n": "c"}])
    place.run()
    record = next(iter(place.service.record_slugs(first)))
    text = next(each for each in place.service.record_texts(first) if record in each)
    place.service.delete_row(first, record)
    only = RunScope(mode="backfill", selection=Selection(slugs=frozenset([first])), force=True)
    assert place.warehouse.run(place.service, only, **place.settings).status is Status.succeeded
    place.service.add_raw_record(second, text)
    place.run()
    moves = [each for each in place.versions("n, _import_slug", "records_customers") if each[0] == "moves"]
    assert moves == [("moves", first, "insert", False), ("moves", second, "insert", True)]

    place.service.delete_import(second)
    place.run()
    assert place.versions("n", "records_customers") == [("b", "insert", True)]


def test_a_deletion_that_was_not_erased_yet_is_told_once_deletions_are_kept(place: Place) -> None:
    slug = place.service.add_import("Customers", [{"n": "a"}, {"n": "b"}])
    first = place.run()
    record = next(iter(place.service.record_slugs(slug)))
    place.service.delete_row(slug, record)
    only = RunScope(mode="backfill", selection=Selection(slugs=frozenset([slug])), force=True)
    place.run(only)
    place.run(deletes="keep")
    seen = [(each.record, each.change) for each in changes(place.warehouse.pipeline(), first.started_at)]
    assert (record, "delete") in seen
    place.run(RunScope(mode="backfill", force=True), deletes="keep")
    assert place.versions("n", "records_customers") == [
        ("a", "insert", False),
        ("b", "insert", True),
        ("a", "delete", False),
    ]


class ServiceThatHides(Service):
    """List all imports but the `hidden` ones, and `malformed` ones without a time; `forbidden` ones answer 403."""

    hidden: frozenset[str] = frozenset()
    malformed: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()

    def _ordered_imports(self) -> list[StoredImport]:
        return [found for found in super()._ordered_imports() if found.slug not in self.hidden]

    def _answer(self, endpoint: str, slug: str, request: Request) -> Response:
        if endpoint == "import" and slug in self.forbidden:
            return error_response(403, "forbidden", "no")
        reply = super()._answer(endpoint, slug, request)
        if endpoint != "imports" or not self.malformed:
            return reply
        page = json.loads(reply.body)
        page["data"] = [
            each | {"updated_at": None} if each["slug"] in self.malformed else each for each in page["data"]
        ]
        return json_response(200, json.dumps(page))


@pytest.mark.parametrize("why", ["another", "forbidden", "malformed", "status"])
def test_a_record_that_moves_to_an_import_that_is_not_read_yet_keeps_its_versions(place: Place, why: str) -> None:
    place.service = service = ServiceThatHides(1)
    place.settings |= {"status": "completed"} if why == "status" else {}
    first = service.add_import("Customers", [{"n": "moves"}, {"n": "b"}])
    second = service.add_import("Customers", [{"n": "c"}])
    place.run()
    record = next(iter(service.record_slugs(first)))
    text = next(each for each in service.record_texts(first) if record in each)
    service.delete_row(first, record)
    known = second
    if why == "another":  # a listing without an import that exists may lack others
        second = service.add_import("Customers", [])
    service.add_raw_record(second, text)
    if why == "malformed":
        service.malformed = frozenset([second])
    else:
        service.hidden = frozenset([known, second])
    service.forbidden = frozenset([second] if why == "forbidden" else ())
    assert place.warehouse.run(service, **place.settings).status is Status.partial
    service.hidden = service.malformed = service.forbidden = frozenset()
    place.run()
    moves = [each for each in place.versions("n, _import_slug", "records_customers") if each[0] == "moves"]
    assert moves == [("moves", first, "insert", False), ("moves", second, "insert", True)]


@pytest.mark.dialect
def test_what_is_left_to_erase_is_erased_though_the_ledger_was_lost(place: Place) -> None:
    service = place.service
    gone, _ = (service.add_import("Customers", [{"n": n}]) for n in (1, 2))
    place.run()
    service.delete_import(gone)
    with mock.patch.object(run_session.RunSession, "is_whole", False):  # as if an import could not be read
        place.run()
    assert len(place.versions("n", "records_customers")) == 2
    execute(place.warehouse, "DROP TABLE sync_imports")
    place.run()
    assert place.versions("n", "records_customers") == [(2, "insert", True)]


def test_a_run_that_refuses_to_delete_erases_no_version_of_a_record_that_moved(duck_place: Place) -> None:
    """The import that has the record now was not read, and is not deleted either."""
    place = duck_place
    place.service = service = ServiceThatHides(1)
    first = service.add_import("Customers", [{"n": "moves"}, {"n": "b"}])
    second = service.add_import("Customers", [{"n": "c"}])
    place.run()
    record = next(iter(service.record_slugs(first)))
    text = next(each for each in service.record_texts(first) if record in each)
    service.delete_row(first, record)
    service.add_raw_record(second, text)
    service.malformed = frozenset([second])
    assert place.warehouse.run(service, **place.settings).status is Status.partial
    service.malformed = frozenset()
    for slug in (first, second):
        service.delete_import(slug)
    service.add_import("Theirs", [{"x": 1}])
    ran = place.warehouse.run(service, **place.settings)
    assert (ran.status, ran.imports_deleted) == (Status.partial, 0)
    for slug in (first, second):
        service.restore_import(slug)
    place.run()
    moves = [each for each in place.versions("n, _import_slug", "records_customers") if each[0] == "moves"]
    assert moves == [("moves", first, "insert", False), ("moves", second, "insert", True)]


@pytest.mark.parametrize("moves", [True, False])
def test_a_record_that_leaves_its_import_during_a_run_keeps_its_versions_if_it_moved(place: Place, moves: bool) -> None:
    service = place.service
    first = service.add_import("Customers", [{"n": "leaves"}, {"n": "b"}])
    second = service.add_import("Customers", [{"n": "c"}])
    place.run()
    record, _ = service.record_slugs(first)
    text = next(each for each in service.record_texts(first) if record in each)
    service.add_raw_record(first, text.replace(record, "another").replace("leaves", "d"))

    def leave(request: Request) -> None:
        if request.path.endswith(f"/{first}/records"):
            service.on_request = None
            service.delete_row(first, record)
            if moves:
                service.add_raw_record(second, text)

    service.on_request = leave
    place.run()
    ended, moved = ("leaves", first, "insert", False), ("leaves", second, "insert", True)
    left = [each for each in place.versions("n, _import_slug", "records_customers") if each[0] == "leaves"]
    assert left == ([ended] if moves else [])
    place.run()
    left = [each for each in place.versions("n, _import_slug", "records_customers") if each[0] == "leaves"]
    assert left == ([ended, moved] if moves else [])


def test_a_record_that_vanished_while_imports_changed_is_erased_by_the_next_run(place: Place) -> None:
    service = place.service
    first = service.add_import("Customers", [{"n": "vanishes"}, {"n": "b"}])
    second = service.add_import("Customers", [{"n": "c"}])
    place.run()
    service.delete_row(first, next(iter(service.record_slugs(first))))

    def change(request: Request) -> None:
        if request.path.endswith(f"/{first}/records"):
            service.on_request = None
            service.append_rows(second, [{"n": "d"}])

    service.on_request = change
    place.run()
    assert ("vanishes", "insert", False) in place.versions("n", "records_customers")
    place.run()
    assert place.versions("n", "records_customers") == [
        ("b", "insert", True),
        ("c", "insert", True),
        ("d", "insert", True),
    ]


@pytest.mark.dialect
@pytest.mark.parametrize("history", [False, ["Customers"]])
def test_what_was_gone_in_a_part_is_erased_later_though_no_version_is_made_any_more(place: Place, history: Any) -> None:
    slug = place.service.add_import("Orders", [{"x": "gone"}, {"x": "stays"}])
    place.service.add_import("Customers", [{"a": 1}])
    place.run()
    place.service.delete_row(slug, next(iter(place.service.record_slugs(slug))))
    place.settings["history"] = history
    only = RunScope(mode="backfill", selection=Selection(slugs=frozenset([slug])), force=True)
    place.run(only)
    assert place.run().imports_changed == 0
    assert place.versions("x", "records_orders") == [("stays", "insert", True)]
    with serve(place.service) as url:
        settings, pipeline = place.loaded(url), place.warehouse.pipeline()
        with mock.patch.object(run_sync, "make_versions") as made_again:
            assert sync(pipeline, settings, RunScope()).status is Status.succeeded
    made_again.assert_not_called()

    place.service.edit_row(slug, next(iter(place.service.record_slugs(slug))), {"x": "edited"})
    place.run()
    place.run(history=True)
    assert place.versions("x", "records_orders") == [("stays", "insert", False), ("edited", "update", True)]


@pytest.mark.dialect
@pytest.mark.parametrize("deleted", [True, False])
def test_a_record_that_moved_out_of_the_templates_with_history_is_erased_with_its_versions(
    place: Place, deleted: bool
) -> None:
    service = place.service
    first = service.add_import("Customers", [{"n": "moves"}, {"n": "b"}])
    second = service.add_import("Orders", [{"n": "c"}])
    service.add_import("Customers", [{"n": "d"}])
    place.settings["history"] = ["Customers"]
    place.run()
    record, _ = service.record_slugs(first)
    service.move_row(first, record, second)
    if deleted:
        service.delete_import(first)
    place.run()
    service.append_rows(second, [{"n": "e"}])
    place.run()
    assert ("moves", "insert", False) in place.versions("n", "records_customers"), "it lives on"
    service.delete_row(second, record)
    place.run()
    assert {n for n, *_ in place.versions("n", "records_customers")} == ({"d"} if deleted else {"b", "d"})


@pytest.mark.dialect
def test_a_record_that_moves_within_the_second_of_a_reading_keeps_its_versions(place: Place) -> None:
    """The service counts seconds, so that the time of the import that gets the record does not tell."""
    now = datetime(2020, 1, 1, tzinfo=UTC)
    place.service = service = Service(1, clock=lambda: now, switches=Switches(time_fraction=0))
    second = service.add_import("Customers", [{"n": "c"}])
    first = service.add_import("Customers", [{"n": "moves"}, {"n": "b"}])
    place.run()
    now = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=60)
    service.append_rows(second, [{"n": "d"}])
    service.append_rows(first, [{"n": "e"}])
    record, *_ = service.record_slugs(first)
    was_read = Event()

    def move(request: Request) -> None:
        if request.path.endswith(second):
            was_read.set()
        elif request.path.endswith(f"/{first}/records") and record in service.record_slugs(first):
            assert was_read.wait(20), "the other import is read before it gets the record"
            service.move_row(first, record, second)

    service.on_request = move
    place.run(max_concurrency=2)
    service.on_request = None
    ended, moved = ("moves", first, "insert", False), ("moves", second, "insert", True)

    def versions() -> list[tuple[Any, ...]]:
        return [each for each in place.versions("n, _import_slug", "records_customers") if each[0] == "moves"]

    assert versions() == [ended]
    place.run()
    assert versions() == [ended, moved]


def test_a_record_of_an_import_that_is_deleted_while_imports_are_listed_keeps_its_versions(duck_place: Place) -> None:
    place, service = duck_place, duck_place.service
    imports = [service.add_import("Customers", [{"n": f"in {n}"}]) for n in range(260)]
    last = service.add_import("Customers", [{"n": "moves"}])
    place.run(max_concurrency=1)
    [record] = service.record_slugs(last)
    seen: set[str] = set()

    def move(request: Request) -> None:
        if request.path.endswith("/imports"):
            page = request.query["page"]
            if page == "3" and "2" in seen and last in service.slugs():
                service.move_row(last, record, imports[150])
                service.delete_import(last)
            seen.add(page)

    service.on_request = move
    place.run(max_concurrency=1)
    service.on_request = None
    assert last not in service.slugs(), "the record has moved"
    place.run()
    moves = [each for each in place.versions("n, _import_slug", "records_customers") if each[0] == "moves"]
    assert moves == [("moves", last, "insert", False), ("moves", imports[150], "insert", True)]


def test_a_record_that_moves_to_an_import_whose_rows_do_not_fit_keeps_its_versions(postgres: PostgreSQL) -> None:
    place = Place(postgres, raw=False)
    service = place.service
    for k in range(6):
        service.add_import("Customers", [{f"f{k}_{n}": "s" for n in range(150)}])
    first = service.add_import("Customers", [{"n": "moves"}, {"n": "b"}])
    second = service.add_import("Customers", [{"n": "c"}])
    place.run()
    service.move_row(first, next(iter(service.record_slugs(first))), second)
    service.append_rows(second, [{f"f{k}_{n}": "x" * 100 for n in range(150) for k in range(6)}])
    ran = postgres.run(service, **place.settings)
    assert ran.status is Status.partial
    assert "is in no typed table" in str(ran.problems)
    service.delete_row(second, list(service.record_slugs(second))[-1])
    place.run()
    moves = [each for each in place.versions("n, _import_slug", "records_customers") if each[0] == "moves"]
    assert moves == [("moves", first, "insert", False), ("moves", second, "insert", True)]


@pytest.mark.long
def test_views_are_made_though_versions_lack_a_new_column(duck_place: Place) -> None:
    place = duck_place
    place.service.add_import("Customers", [{"a": 1}])
    first = place.run()
    place.service.add_import("Customers", [{"b": 2}])
    place.run(history=False)
    assert apply(place.warehouse.pipeline()).blocked == {}
    assert place.as_of(first, "a", "customers") == [(1,)]
    place.run()
    assert keep_current(place.warehouse.pipeline(), loaded=True) is None
    assert place.as_of(first, "a, b", "customers") == [(1, None)]


def test_a_deleted_import_takes_versions_with_it_that_outlived_their_rows(place: Place) -> None:
    slug = place.service.add_import("Customers", [{"n": "secret"}, {"n": "b"}])
    for n in range(3):
        place.service.add_import("Customers", [{"n": str(n)}])
    place.run(deletes="keep")
    place.service.delete_row(slug, next(iter(place.service.record_slugs(slug))))
    place.run(deletes="keep")
    place.service.delete_import(slug)
    place.run(deletes="mirror")
    assert place.versions("n", "records_customers") == [(str(n), "insert", True) for n in range(3)]


@pytest.mark.parametrize("history", [True, False])
def test_a_rule_that_comes_later_reaches_earlier_versions(place: Place, history: bool) -> None:
    row = {"ssn": "123", "n": 1, "at": {"home": "Rome", "in": {"a": {"b": {"c": "Via"}}}}}
    slug = place.service.add_import("Customers", [row], {"who": "ann", "kind": "x"})
    place.run()
    place.edit(slug, {**row, "ssn": "456"})
    place.run()
    rules = {"Customers": {"ssn": "drop", "at.in.a.b.c": "null"}, "metadata": {"who": "mask:1"}}
    place.run(privacy=rules, history=history)

    shown = place.versions("ssn, n, at__home", "records_customers")
    assert shown == [(None, 1, "Rome", "insert", False), (None, 1, "Rome", "update", True)]
    everything = place.warehouse.tuples("SELECT * FROM records_customers_history")
    everything += place.warehouse.tuples("SELECT * FROM imports_history")
    assert not [value for row in everything for value in row if value in ("123", "456", "ann") or "Via" in str(value)]
    assert place.warehouse.tuples("SELECT DISTINCT metadata__kind FROM imports_history") == [("x",)]
    place.run(privacy=rules)
    assert len(place.versions("n", "records_customers")) == 2, "the service changed nothing"
    place.check(privacy=rules)


def test_a_rule_of_one_template_changes_no_versions_of_another_though_dlts_schemas_are_gone(place: Place) -> None:
    place.settings["privacy"] = {"slug-a": {"mail": "drop"}}
    place.service.add_import(Template("Alpha", "slug-a"), [{"mail": "a1"}])
    beta = place.service.add_import(Template("Beta", "slug-b"), [{"mail": "b1"}])
    other = place.service.add_import(Template("Gamma", "slug-c"), [{"mail": "c1"}])
    place.run()
    place.edit(beta, {"mail": "b2"})
    place.run()
    execute(place.warehouse, "DROP TABLE _dlt_version")
    place.edit(other, {"mail": "c2"})
    place.run()
    assert [mail for mail, *_ in place.versions("mail", "records_beta")] == ["b1", "b2"]
    execute(place.warehouse, "DROP TABLE _dlt_version")
    place.settings["privacy"] = {"slug-b": {"mail": "drop"}}
    place.run()
    assert {mail for mail, *_ in place.versions("mail", "records_beta")} == {None}
    place.check()


@pytest.mark.parametrize("ahead", [True, False], ids=["earlier runs by a clock that is ahead", "one clock"])
def test_a_rule_under_which_dlt_alone_has_read_reaches_versions_that_are_not_kept_any_more(
    duck: DuckDB, ahead: bool
) -> None:
    rules: dict[str, Any] = {"privacy": {"*": {"iban": "hash"}}, "privacy_key": "k" * 32, "deletes": "keep"}
    place = Place(duck)
    place.service = Service(1, clock=lambda: datetime(2020, 1, 1, tzinfo=UTC))
    slug = place.service.add_import("Customers", [{"iban": "DE0012"}])
    place.run()
    place.service.edit_row(slug, next(iter(place.service.record_slugs(slug))), {"iban": "DE0034"})
    place.service.append_rows(slug, [{"iban": "DE0056"}])
    place.run(RunScope(mode="backfill", force=True))
    if ahead:
        execute(duck, "UPDATE sync_runs SET started_at = started_at + INTERVAL 4 MINUTE")
    duck.run_dlt(place.service, **rules)
    assert place.run(history=False, **rules).imports_changed == 0
    held = {iban for iban, *_ in place.versions("iban", "records_customers")}
    assert not held & {"DE0012", "DE0034", "DE0056"}


@pytest.mark.long
@pytest.mark.parametrize("template", ["Customers", "Clients"])
def test_a_rule_reaches_what_a_record_was_in_an_import_that_is_gone(place: Place, template: str) -> None:
    first = place.service.add_import("Customers", [{"ssn": "123"}])
    second = place.service.add_import(template, [{"ssn": "456"}])
    place.service.add_import("Orders", [{"n": 1}])
    place.run()
    [text] = place.service.record_texts(first)
    place.service.delete_import(first)
    place.service.add_raw_record(second, text)
    place.run()
    assert ("123",) in place.warehouse.tuples("SELECT ssn FROM records_customers_history"), "it lives on elsewhere"
    rules = {"*": {"ssn": "drop"}}
    place.run(privacy=rules)
    for table in {"records_customers", f"records_{template.lower()}"}:
        assert place.warehouse.tuples(f"SELECT DISTINCT ssn FROM {table}_history") == [(None,)]
    place.check(privacy=rules)


@pytest.mark.parametrize("from_the_start", [True, False])
def test_the_rules_of_a_template_are_about_the_versions_of_its_own_table(place: Place, from_the_start: bool) -> None:
    rules = {"Customers": {"iban": "drop"}}
    if from_the_start:
        place.settings["privacy"] = rules
    moving = place.service.add_import("Leads", [{"iban": "DE0012", "n": 1}])
    place.service.add_import("Leads", [{"iban": "DE0034", "n": 2}])
    place.service.add_import("Customers", [{"iban": "DE0056", "n": 3}])
    place.run()
    place.edit(moving, {"iban": "DE0078", "n": 4})
    place.run()
    place.service.set_template(moving, "Customers")
    place.run()
    place.settings["privacy"] = rules
    place.run()
    values = {iban for iban, *_ in place.versions("iban", "records_leads")}
    assert values == {"DE0012", "DE0034", "DE0078"}, "an import of Leads is under no rule"
    if not from_the_start:  # otherwise there is no such column
        assert {iban for iban, *_ in place.versions("iban", "records_customers")} == {None}
    place.run(privacy={**rules, "Leads": {"iban": "drop"}})
    assert {iban for iban, *_ in place.versions("iban", "records_leads")} == {None}
    assert {n for n, *_ in place.versions("n", "records_leads")} == {1, 2, 4}, "what no rule covers stays"


@pytest.mark.long
def test_values_under_a_rule_stay_as_the_rule_leaves_them(place: Place) -> None:
    """An import that stays due, here as the run was not whole, is not emptied again."""
    slug = place.service.add_import("Customers", [{"iban": "DE0012"}, {"iban": "DE0034"}])
    place.run()
    place.settings["privacy"] = {"Customers": {"iban": "mask:2"}}
    place.service.delete_row(slug, next(iter(place.service.record_slugs(slug))))
    only = RunScope(mode="backfill", selection=Selection(slugs=frozenset([slug])), force=True)
    assert place.warehouse.run(place.service, only, **place.settings).status is Status.succeeded
    assert place.versions("iban", "records_customers") == [(None, "insert", False), ("****34", "insert", True)]
    place.edit(slug, {"iban": "DE0056"})
    assert place.warehouse.run(place.service, only, **place.settings).status is Status.succeeded
    kept = [("****34", "insert", False), ("****56", "update", True)]
    assert sorted(place.versions("iban", "records_customers"), key=str) == [*kept, (None, "insert", False)]
    place.run()
    assert place.versions("iban", "records_customers") == kept


@pytest.mark.dialect
@pytest.mark.parametrize("before", [None, {"Customers": {"iban": "hash"}}], ids=["no-rule", "another-key"])
def test_a_rule_or_key_that_comes_later_tells_no_change(place: Place, before: Any) -> None:
    """The versions before have no value then, and the open one has that of the row."""
    place.settings |= {"privacy": before, "privacy_key": "first" * 8}
    slug = place.service.add_import("Customers", [{"who": "a", "iban": "DE0012"}])
    first = place.run()
    [record] = place.service.record_slugs(slug)
    place.edit(slug, {"who": "b", "iban": "DE0012"})
    place.run()
    assert told(place, first) == {(record, "who")}
    place.settings |= {"privacy": {"Customers": {"iban": "hash"}}, "privacy_key": "second" * 8}
    place.run()
    assert told(place, first) == {(record, "who")}
    [(earlier,), (now,)] = place.warehouse.tuples("SELECT iban FROM records_customers_history ORDER BY _valid_from")
    assert (earlier, len(now)) == (None, 64)
    place.edit(slug, {"who": "b", "iban": "DE0034"})
    place.run()
    assert told(place, first) == {(record, "who"), (record, "iban")}


def test_a_record_that_moves_on_from_a_deleted_import_keeps_what_its_rules_left(place: Place) -> None:
    """The rules of both imports are the same, so that the version of the deleted one has nothing to be emptied."""
    place.settings |= {"privacy": {"*": {"iban": "hash"}}, "privacy_key": "k" * 32}
    doomed = place.service.add_import("Customers", [{"iban": "DE0012"}])
    place.service.add_import("Customers", [{"iban": "DE0034"}])
    first = place.run()
    place.edit(doomed, {"iban": "DE0056"})
    place.run()
    seen = place.versions("iban", "records_customers")
    [text], [record] = place.service.record_texts(doomed), place.service.record_slugs(doomed)
    place.service.delete_import(doomed)
    place.service.add_raw_record(place.service.add_import("Customers", [{"iban": "DE0078"}]), text)
    place.run()

    assert {iban for iban, *_ in seen} < {iban for iban, *_ in place.versions("iban", "records_customers")}
    assert told(place, first) == {(record, "iban"), (record, "import")}


@pytest.mark.long
@pytest.mark.dialect
def test_a_rebuild_after_a_run_under_new_rules_died_changes_no_record(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.settings |= {"privacy": {"*": {"iban": "hash"}}, "privacy_key": "first" * 8}
    slug = place.service.add_import("Customers", [{"iban": "DE0012", "day": "03.02.2024"}])
    first = place.run()
    place.settings["privacy_key"] = "second" * 8
    with monkeypatch.context() as patch:
        patch.setattr("connector.run.sync.make_versions", mock.Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            place.run()
    place.settings["hints"] = {"records_customers": {"day": "date:%d.%m.%Y"}}
    place.rebuild()
    place.run()
    assert told(place, first) == set()
    assert len(place.versions("iban, day", "records_customers")) == 1
    place.edit(slug, {"iban": "DE0034", "day": "03.02.2024"})
    place.run()
    assert {field for _, field in told(place, first)} == {"iban"}
    place.check()


@pytest.mark.long
@pytest.mark.parametrize(("value", "hints"), [("misfit", {}), (4, {"n": "date"})])
def test_a_value_that_is_gone_when_a_rebuild_comes_is_a_change(place: Place, value: Any, hints: dict[str, str]) -> None:
    slug = place.service.add_import("T", [{"n": value}, {"n": 1}, {"n": 2}, {"n": 3}])
    first = place.run()
    [record, *_] = place.service.record_slugs(slug)
    place.edit(slug, {"n": None})
    place.run(history=False)
    place.settings["hints"] = {"records_t": hints}
    place.rebuild()
    place.run()
    assert told(place, first) == {(record, "n")}
    place.rebuild()
    assert told(place, first) == {(record, "n")}
    place.check()


@pytest.mark.long
@pytest.mark.dialect
def test_a_rebuild_that_gives_each_field_a_column_makes_no_version_later(place: Place) -> None:
    """Versions have values in `_more`, and a later import fills that column of the table again."""
    rows = [{"n": k, "a": k, "b": k, "c": "x"} for k in (1, 2)]
    with mock.patch.object(width, "WIDTH", width.Width(columns=20, new_fields=2)):
        place.service.add_import("t", [{"n": 0}])
        first = place.run()
        slug = place.service.add_import("t", rows)
        place.run()
        place.edit(slug, {**rows[0], "c": "y"})
        place.run()
        before = told(place, first)
        assert {field for _, field in before} == {"_more"}
        place.rebuild()
        assert told(place, first) == before
        place.service.add_import("t", [{"d": 1, "e": 1, "f": 1}])
        place.run()
        place.check()
        place.edit(slug, {**rows[0], "c": "z"})
        place.run()
        [record, _] = place.service.record_slugs(slug)
        assert told(place, first) == before | {(record, "c")}
        place.check()


@pytest.mark.long
@pytest.mark.parametrize(
    ("was", "now", "columns", "fields"),
    [
        pytest.param({}, {"c": "y"}, 20, {"c"}, marks=pytest.mark.long),
        ({"e": 1}, {"c": "y"}, 20, {"c", "_more"}),
        pytest.param({"e": 1}, {"e": 1, "c": "y"}, 5, {"c"}, marks=pytest.mark.long),
        ({"c": "x"}, {"c": "y"}, 20, {"_more"}),
        pytest.param({"c": "x"}, {"c": "x", "d": 1}, 20, {"d", "_more"}, marks=pytest.mark.long),
        pytest.param({}, {"c": "y", "d": 1}, 4, {"c", "_more"}, marks=pytest.mark.long),
    ],
)
def test_a_first_value_without_a_column_is_told_after_a_rebuild_gave_it_one(
    place: Place, was: dict[str, Any], now: dict[str, Any], columns: int, fields: set[str]
) -> None:
    row = {"n": 1, "a": 1, "b": 1}
    with mock.patch.object(width, "WIDTH", width.Width(columns=20, new_fields=2)):
        place.service.add_import("t", [{"n": 0}])
        first = place.run()
        slug = place.service.add_import("t", [row | was, {"n": 2, "a": 2, "b": 2, "c": "x", "d": 1}])
        place.run()
        [record, _] = place.service.record_slugs(slug)
        place.edit(slug, row | now)
        place.run()
        assert told(place, first) == {(record, "_more")}
    with mock.patch.object(width, "WIDTH", width.Width(columns=columns, new_fields=20)):
        place.rebuild()
        assert told(place, first) == {(record, field) for field in fields}
        place.check()


@pytest.mark.long
def test_a_column_that_a_rebuild_retypes_is_no_new_one_of_a_field_without_a_column(place: Place) -> None:
    row = {"n": 1, "a": 1, "x": "abc"}
    with mock.patch.object(width, "WIDTH", width.Width(columns=20, new_fields=2)):
        place.service.add_import("t", [{"n": 0}])
        first = place.run()
        slug = place.service.add_import("t", [row, {"n": 2, "a": 2, "x": "b", "c": "x", "d": 1}])
        place.run()
        [record, _] = place.service.record_slugs(slug)
        place.edit(slug, row | {"c": "y"})
        place.run()
        place.settings["hints"] = {"records_t": {"x": "bigint"}}
        place.rebuild()
        assert told(place, first) == {(record, "c")}
        place.check()


@pytest.mark.long
def test_a_rebuild_waits_for_records_that_were_read_without_types(place: Place) -> None:
    slug = place.service.add_import("Customers", [{"n": k, "day": f"0{k}.02.2024"} for k in (1, 2)])
    first = place.run()
    [record, _] = place.service.record_slugs(slug)
    place.service.edit_row(slug, record, {"n": 7, "day": "01.02.2024"})
    place.run(typed=False)
    place.settings["hints"] = {"records_customers": {"day": "date:%d.%m.%Y"}}
    with pytest.raises(ConfigError, match="2 records of records_customers are in records as another load"):
        place.rebuild()
    place.run(hints={})
    place.rebuild()
    place.run()
    assert told(place, first) == {(record, "n")}
    place.check()


@pytest.mark.long
@pytest.mark.dialect
def test_a_rebuild_takes_no_row_of_a_load_that_died_for_its_version(place: Place) -> None:
    """The ledger has the load before, which is recorded."""
    slug = place.service.add_import("Customers", [{"n": 1}, {"n": 2}])
    first = place.run()
    [record, _] = place.service.record_slugs(slug)
    place.service.edit_row(slug, record, {"n": 7})
    loaded = "UPDATE records_customers SET n = 7, _dlt_load_id = 'dead' WHERE _record_slug"
    raw = f"""UPDATE records SET data = '{{"n": 7}}', _dlt_load_id = 'dead' WHERE slug = '{record}'"""
    execute(place.warehouse, f"{loaded} = '{record}'", raw, "UPDATE sync_runs SET status = 'running'")
    place.rebuild()
    place.run()
    assert told(place, first) == {(record, "n")}
    place.check()


@pytest.mark.long
@pytest.mark.dialect
def test_a_rebuild_waits_for_records_of_a_load_that_died(place: Place) -> None:
    """Made of its raw rows, a version would have values of later than its own time."""
    slug = place.service.add_import("Customers", [{"n": 1}, {"n": 2}])
    first = place.run()
    [record, _] = place.service.record_slugs(slug)
    place.service.edit_row(slug, record, {"n": 7})
    torn = f"UPDATE records SET _dlt_load_id = 'dead' WHERE slug = '{record}'"
    execute(place.warehouse, torn, "UPDATE sync_runs SET status = 'running'")
    with pytest.raises(ConfigError, match="1 records of records_customers are in records as another load"):
        place.rebuild()
    place.run()
    place.rebuild()
    place.run()
    assert told(place, first) == {(record, "n")}
    place.check()


@pytest.mark.long
def test_rules_reach_versions_that_a_rebuild_left_with_other_types_though_none_are_kept(place: Place) -> None:
    rows = [{"code": "17"}, {"code": "18"}]
    place.service.add_import("Customers", rows)
    place.run()
    died = mock.patch("connector.maintain.rebuild.swapped", side_effect=KeyboardInterrupt)
    with died, pytest.raises(KeyboardInterrupt):
        place.rebuild(hints={"records_customers": {"code": "bigint"}})
    rules: dict[str, Any] = {"privacy": {"*": {"code": "hash"}}, "privacy_key": "k" * 32}
    place.run(history=False, **rules)
    kept = place.warehouse.rows("SELECT * FROM records_customers_history")
    assert not {"17", "18", 17, 18} & {value for row in kept for value in row.values()}
    place.run(**rules)
    place.check(**rules)
    assert len(place.versions("code", "records_customers")) == 2


@pytest.mark.long
def test_a_value_under_a_rule_that_changes_makes_a_version(duck_place: Place) -> None:
    place = duck_place
    place.settings["privacy"] = {"Customers": {"iban": "mask:2"}, "metadata": {"who": "mask:1"}}
    slug = place.service.add_import("Customers", [{"iban": "DE0012"}], {"who": "ann"})
    place.run()
    place.edit(slug, {"iban": "DE0034"})
    place.service.set_metadata(slug, {"who": "bob"})
    place.run()
    place.run(RunScope(mode="backfill", force=True))
    assert place.versions("iban", "records_customers") == [("****12", "insert", False), ("****34", "update", True)]
    assert place.versions("metadata__who", "imports") == [("**n", "insert", False), ("**b", "update", True)]


def test_a_run_of_one_status_erases_versions_as_well(duck_place: Place) -> None:
    place = duck_place
    slug = place.service.add_import("Customers", [{"n": "gone"}, {"n": "stays"}])
    place.run(status="completed")
    place.service.delete_row(slug, next(iter(place.service.record_slugs(slug))))
    place.run(status="completed")
    assert place.versions("n", "records_customers") == [("stays", "insert", True)]


@pytest.mark.long
def test_versions_stay_while_an_import_that_may_have_the_record_now_cannot_be_read(duck_place: Place) -> None:
    place = duck_place
    slug = place.service.add_import("Customers", [{"n": "first"}, {"n": "stays"}])
    other = place.service.add_import("Customers", [{"n": "other"}])
    place.run()
    place.edit(slug, {"n": "second"})
    place.run()
    place.service.delete_row(slug, next(iter(place.service.record_slugs(slug))))
    place.service.append_rows(other, [{"n": "more"}])
    place.service.faults = Faults(failing_imports={other})
    assert place.warehouse.run(place.service, **place.settings).status is Status.partial
    versions = place.versions("n", "records_customers")
    assert {("first", "insert", False), ("second", "update", False)} <= set(versions)
    place.service.faults = Faults()
    place.run()
    assert {n for n, *_ in place.versions("n", "records_customers")} == {"stays", "other", "more"}, "it is gone"


@pytest.mark.parametrize("history", [True, False])
def test_versions_of_a_record_stay_while_it_is_only_in_records(duck_place: Place, history: bool) -> None:
    place = duck_place
    slug = place.service.add_import("Customers", [{"n": 1}, {"n": 7}])
    place.run()
    place.edit(slug, {"n": 2})
    place.run()
    place.edit(slug, {"n": 3})
    place.run(typed=False, history=history)
    place.run()
    versions = place.versions("n", "records_customers")
    assert {n for n, *_ in versions} == {1, 2, 3, 7}
    assert {n for n, _, is_open in versions if is_open} == {3, 7}
    erased, _ = place.service.record_slugs(slug)
    place.service.delete_row(slug, erased)
    place.run()
    assert {n for n, *_ in place.versions("n", "records_customers")} == {7}


def test_a_record_that_is_only_in_records_for_a_while_is_not_deleted(place: Place) -> None:
    place.settings["deletes"] = "keep"
    slug = place.service.add_import("Customers", [{"n": 1}, {"n": 7}])
    place.run()
    place.edit(slug, {"n": 2})
    place.run(typed=False)
    kept = [(1, "insert", True), (7, "insert", True)]
    assert place.versions("n", "records_customers") == kept
    place.check(typed=False)
    execute(place.warehouse, "UPDATE imports_history SET row_count = 9")
    with pytest.raises(AssertionError, match="imports_history"):
        place.check(typed=False)
    execute(place.warehouse, "UPDATE imports_history SET row_count = 2")
    place.run()
    assert place.versions("n", "records_customers") == [(1, "insert", False), (7, "insert", True), (2, "update", True)]


@pytest.mark.dialect
def test_versions_wait_for_rows_that_a_run_with_types_did_not_read(place: Place) -> None:
    """One moved and was read while `typed` was false, one then erased; first a backfill reads another import."""
    place.settings["deletes"] = "keep"
    away = place.service.add_import("Customers", [{"n": 1}, {"n": 5}])
    target = place.service.add_import("Customers", [])
    other = place.service.add_import("Customers", [{"n": 1}])
    first = place.run()
    moved, gone = place.service.record_slugs(away)
    place.service.edit_row(away, moved, {"n": 2})
    place.service.move_row(away, moved, target)
    place.run(typed=False)
    place.service.delete_row(away, gone)
    place.run(RunScope(mode="backfill", selection=Selection(slugs=frozenset([other])), force=True))
    assert place.versions("n", "records_customers") == [(1, "insert", True), (1, "insert", True), (5, "insert", True)]
    place.run()
    assert told(place, first) >= {(moved, "n")}
    assert sorted(place.versions("n", "records_customers")) == [
        *[(1, "insert", False), (1, "insert", True), (2, "update", True)],
        *[(5, "delete", False), (5, "insert", False)],
    ]
    place.check()
    assert place.run().load_ids == []


@pytest.mark.parametrize("deletes", ["mirror", "keep"])
def test_an_import_of_which_all_but_the_version_was_deleted_by_hand_is_gone(place: Place, deletes: str) -> None:
    """The first two have no rows, so that nothing but their versions shows that they were there."""
    gone, empty = (place.service.add_import("Customers", []) for _ in range(2))
    kept = place.service.add_import("Customers", [{"n": 1}])
    place.run(deletes=deletes)
    for table in ("sync_imports", "imports"):
        execute(place.warehouse, f"DELETE FROM {table}")
    place.service.delete_import(gone)
    backfill = RunScope(mode="backfill", selection=Selection(slugs=frozenset([kept])), force=True)
    place.run(backfill, deletes=deletes)
    assert len(place.versions("slug", "imports")) == 3, "a run that does not list all imports knows nothing of others"
    place.run(deletes=deletes)
    place.check(deletes=deletes)
    still = {slug for slug, _, is_open in place.versions("slug", "imports") if is_open}
    assert still == {empty, kept}
    assert len(place.versions("slug", "imports")) == (2 if deletes == "mirror" else 4)


@pytest.mark.parametrize("rows", [[], [{"n": 1}]])
def test_an_import_that_went_while_the_tables_were_dropped_leaves_no_version(
    duck_place: Place, rows: list[dict[str, Any]]
) -> None:
    """dlt does not know the tables of versions, and drops all others."""
    place = duck_place
    gone = place.service.add_import("Customers", rows)
    kept = place.service.add_import("Customers", [{"n": 2}])
    place.run()
    pipeline = place.warehouse.pipeline()
    pipeline.sync_destination()
    pipeline_drop(pipeline, resources=["imports", "records"])()
    place.service.delete_import(gone)
    place.run()
    place.check()
    assert place.versions("slug", "imports") == [(kept, "insert", True)]
    assert place.versions("n", "records_customers") == [(2, "insert", True)]


@pytest.mark.long
def test_versions_of_imports_that_a_hand_changed_are_found(duck_place: Place) -> None:
    place = duck_place
    place.service.add_import("Customers", [{"n": 1}], {"who": "ann"})
    place.run()
    execute(place.warehouse, "UPDATE imports_history SET metadata__who = 'eve'")
    with pytest.raises(AssertionError, match="imports_history"):
        place.check()


@pytest.mark.long
def test_rejects_of_an_erased_import_go_though_the_run_failed_or_was_not_ours(duck: DuckDB) -> None:
    service = Service(1)
    first, *others = [service.add_import("T", [{"x": n}]) for n in range(5)]
    duck.run(service)
    execute(
        duck,
        "INSERT INTO sync_rejects (reject_id, run_id, import_slug, reason, payload, seen_at, _dlt_load_id) "
        f"SELECT 'r1', run_id, '{first}', 'bad', 'secret', now(), '' FROM sync_runs",
    )
    service.delete_import(first)
    for other in others:
        service.append_rows(other, [{"x": 9}])
    loads: list[Any] = []

    def failing(*given: Any) -> Any:
        loads.append(given)
        if len(loads) == 2:
            raise RuntimeError("the destination is lost")
        return load_package(*given)

    with serve(service) as url:
        settings = Settings.load(base_url=url, access_token=service.token, batch_rows=1)
        assert sync(duck.pipeline(), settings, load=failing).status is Status.failed
    duck.run(service)
    assert duck.tuples("SELECT count(*) FROM sync_rejects") == [(0,)]

    execute(
        duck,
        "INSERT INTO sync_rejects (reject_id, run_id, import_slug, reason, payload, seen_at, _dlt_load_id) "
        f"SELECT 'r2', 'x', '{others[0]}', 'bad', 'secret', now(), ''",
    )
    service.delete_import(others[0])
    duck.run_dlt(service)
    assert duck.run(service).load_ids == []
    assert duck.tuples("SELECT count(*) FROM sync_rejects") == [(0,)]


@pytest.mark.long
def test_views_follow_a_load_after_which_nobody_made_them(duck: DuckDB) -> None:
    service = Service(1)
    service.add_import("Customers", [{"a": 1}])
    duck.run(service)
    assert keep_current(duck.pipeline(), loaded=True) is None
    service.add_import("Orders", [{"z": 1}])
    duck.run(service)  # and died before it made the views
    assert duck.run(service).load_ids == []
    assert keep_current(duck.pipeline(), loaded=False) is None
    assert duck.tuples(f"SELECT z FROM {duck.dataset}_views.orders") == [(1,)]
    before = duck.tuples("SELECT sql, comment FROM duckdb_views() WHERE NOT internal ORDER BY view_name")
    assert keep_current(duck.pipeline(), loaded=False) is None
    assert duck.tuples("SELECT sql, comment FROM duckdb_views() WHERE NOT internal ORDER BY view_name") == before


@pytest.mark.dialect
def test_tables_of_the_user_are_not_taken_for_ours(place: Place) -> None:
    """The names are those of our temporary tables."""
    slug = place.service.add_import("Customers", [{"a": 1}])
    place.run()
    names = ("importer_due", "importer_ruled", "importer_touched", "importer_erased")
    execute(place.warehouse, *(f"CREATE TABLE {name} AS SELECT 7 AS mine" for name in names))
    place.edit(slug, {"a": 2})
    place.run()
    assert place.versions("a", "records_customers") == [(1, "insert", False), (2, "update", True)]
    for name in names:
        assert place.warehouse.tuples(f"SELECT mine FROM {name}") == [(7,)]


def test_an_import_that_gets_another_template_keeps_in_versions_what_unchanged_rules_left(place: Place) -> None:
    place.settings["privacy"] = {
        "*": {"mail": "mask:2"},
        "Customers": {"iban": "mask:3", "phone": "drop"},
        "Orders": {"name": "null", "iban": "mask:3"},
        "metadata": {"by": "drop"},
    }
    row = {"mail": "a@b.cd", "iban": "DE0012", "name": "Ada", "n": 1}
    slug = place.service.add_import("Customers", [row])
    place.service.set_metadata(slug, {"by": "bob", "file": "a.csv"})
    place.run()
    place.edit(slug, {**row, "n": 2})
    place.service.set_metadata(slug, {"by": "bob", "file": "b.csv"})
    place.run()
    place.service.set_template(slug, "Orders")
    place.service.set_metadata(slug, {"by": "bob", "file": "c.csv"})
    place.run()
    kept = [("****cd", "***012", "Ada", number) for number in (1, 2)]
    assert [each[:4] for each in place.versions("mail, iban, name, n", "records_customers")] == kept
    files = "SELECT metadata__file, metadata FROM imports_history ORDER BY _valid_from"
    found = [
        (file, json.loads(whole) if isinstance(whole, str) else whole) for file, whole in place.warehouse.tuples(files)
    ]
    assert found == [(file, {"file": file}) for file in ("a.csv", "b.csv", "c.csv")]

    place.run(privacy={"*": {"mail": "drop"}})
    assert {mail for mail, *_ in place.versions("mail", "records_customers")} == {None}


def test_the_rules_of_an_earlier_name_are_not_those_of_a_renamed_template(duck_place: Place) -> None:
    place = duck_place
    slug = place.service.add_import("Customers", [{"a": "x", "b": "secret"}])
    place.run(privacy={"Customers": {"a": "drop"}})
    (template,) = {found.template_slug for found in place.service.live()}
    assert template is not None
    place.service.rename_template(template, "Clients")
    place.edit(slug, {"a": "y", "b": "secret"})
    place.run(privacy={"Customers": {"a": "drop"}, "Clients": {"a": "drop", "b": "drop"}})
    assert {b for b, *_ in place.versions("b", "records_customers")} == {None}


@pytest.mark.parametrize("typed", [True, False])
def test_a_rule_reaches_versions_from_a_deleted_import_although_nothing_is_typed_now(place: Place, typed: bool) -> None:
    gone = place.service.add_import("Customers", [{"ssn": "123", "n": 1}])
    kept = place.service.add_import("Customers", [{"ssn": "456", "n": 2}])
    place.run()
    (text,) = place.service.record_texts(gone)
    place.service.delete_import(gone)
    place.service.add_raw_record(kept, text)
    place.run()
    place.run(typed=typed, privacy={"Customers": {"ssn": "drop"}})
    place.run(privacy={"Customers": {"ssn": "drop"}})
    assert {ssn for ssn, *_ in place.versions("ssn", "records_customers")} == {None}


@pytest.mark.dialect
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_rule_reaches_versions_from_a_deleted_import_whose_record_lives_under_it(place: Place, when: str) -> None:
    """The import that has the record now is read under the rule before or after it gets it, the other one never."""
    service = place.service
    kept = service.add_import("Customers", [{"ssn": "111"}])
    doomed = service.add_import("Customers", [{"ssn": "222"}, {"ssn": "333"}])
    place.run()
    place.settings["privacy"] = {"Customers": {"ssn": "drop"}}
    only = RunScope(mode="backfill", selection=Selection(slugs=frozenset([kept])), force=True)
    if when == "before":
        place.run(only)
    service.move_row(doomed, next(iter(service.record_slugs(doomed))), kept)
    if when == "after":
        place.warehouse.run(service, only, **place.settings)
    service.delete_import(doomed)
    place.run()
    assert {ssn for ssn, *_ in place.versions("ssn", "records_customers")} == {None}
    assert {each for each, *_ in place.versions("_import_slug", "records_customers")} == {kept, doomed}


@pytest.mark.dialect
@pytest.mark.parametrize("again", ["edited", "a part"])
def test_metadata_that_was_listed_without_rules_while_its_import_was_left_out_is_emptied(
    place: Place, again: str
) -> None:
    rules = {"metadata": {"by": "drop"}}
    other = place.service.add_import("Customers", [{"n": 1}], {"by": "ann", "kind": "x"})
    slug = place.service.add_import("Orders", [{"n": 2}], {"by": "bob1", "kind": "y"})
    place.run(privacy=rules)
    place.service.set_metadata(slug, {"by": "bob2", "kind": "z"})
    place.warehouse.run(place.service, **place.settings, templates=["Customers"])
    if again == "edited":
        place.service.set_metadata(slug, {"by": "bob3", "kind": "z"})
        place.run(privacy=rules, templates=["Customers"])
    else:
        only = RunScope(mode="backfill", selection=Selection(slugs=frozenset([other])), force=True)
        place.run(only, privacy=rules)
    place.run(privacy=rules)
    assert "bob" not in str(place.warehouse.tuples("SELECT * FROM imports_history"))
    place.run(privacy=rules)
    place.check(privacy=rules)


@pytest.mark.dialect
@pytest.mark.parametrize("alone", [True, False])
def test_a_rule_reaches_versions_of_imports_that_have_left_its_template(place: Place, alone: bool) -> None:
    service = place.service
    moving = service.add_import("Leads", [{"iban": "DE0012"}])
    if not alone:
        service.add_import("Leads", [{"iban": "DE0034"}])
    place.run()
    service.set_template(moving, "Customers")
    place.run()
    place.settings["privacy"] = {"Leads": {"iban": "drop"}}
    service.add_import("Orders", [{"n": 1}])
    place.run()
    assert {iban for iban, *_ in place.versions("iban", "records_leads")} == {None}
    assert place.versions("iban", "records_customers") == [("DE0012", "insert", True)]


@pytest.mark.dialect
def test_a_template_that_an_import_had_for_a_while_changes_nothing_in_versions(place: Place) -> None:
    place.settings["privacy"] = {"*": {"mail": "mask:2"}, "Leads": {"iban": "mask:3"}, "Customers": {"phone": "drop"}}
    moving = place.service.add_import("Leads", [{"mail": "m@x.de", "iban": "DE0012"}])
    place.service.add_import("Leads", [{"mail": "n@x.de", "iban": "DE0034"}])
    for template in ("Leads", "Customers", "Orders", "Leads"):
        place.service.set_template(moving, template)
        place.run()
    values = {(mail, iban) for mail, iban, *_ in place.versions("mail, iban", "records_leads")}
    assert values == {("****de", "***012"), ("****de", "***034")}


def test_a_template_and_its_rules_that_are_renamed_alike_change_nothing_in_versions(duck_place: Place) -> None:
    place, service = duck_place, duck_place.service
    slug = service.add_import("Customers", [{"mail": "a@x.de"}])
    place.settings["privacy"] = {"Customers": {"mail": "mask:2"}}
    first = place.run()
    [record] = service.record_slugs(slug)
    [template] = service.templates()
    service.rename_template(template.slug, "Clients")
    place.settings["privacy"] = {"Clients": {"mail": "mask:2"}}
    place.warehouse.run(service, **place.settings)
    place.edit(slug, {"mail": "a@x.fr"})
    place.run()
    assert told(place, first) == {(record, "mail")}
    assert [mail for mail, *_ in place.versions("mail", "records_customers")] == ["****de", "****fr"]


@pytest.mark.dialect
def test_metadata_of_an_import_that_failed_when_its_rules_came_is_emptied_once_it_is_read(place: Place) -> None:
    service = place.service
    slug = service.add_import("Customers", [{"n": 1}], {"by": "bob1"})
    other = service.add_import("Customers", [{"n": 2}], {"by": "ann"})
    place.run()
    place.settings["privacy"] = {"metadata": {"by": "drop"}}
    service.faults = Faults(failing_imports={slug})
    service.set_metadata(slug, {"by": "bob2"})
    service.set_metadata(other, {"by": "eve"})
    place.warehouse.run(service, **place.settings)
    service.faults = Faults()
    service.set_metadata(slug, {"by": "bob3"})
    place.run()
    everything = str(place.warehouse.tuples("SELECT * FROM imports_history"))
    assert not [name for name in ("bob", "ann", "eve") if name in everything]


@pytest.mark.dialect
def test_a_rule_reaches_versions_of_imports_that_a_part_records_for_the_first_time(place: Place) -> None:
    """History begins in a run that reads one import under new rules; the other one was read without any."""
    service = place.service
    first = service.add_import("Customers", [{"ssn": "ssn-of-bob"}], {"by": "bob"})
    service.add_import("Customers", [{"ssn": "ssn-of-ann"}], {"by": "ann"})
    place.run(history=False)
    place.settings["privacy"] = {"Customers": {"ssn": "drop"}, "metadata": {"by": "drop"}}
    place.run(RunScope(mode="backfill", selection=Selection(slugs=frozenset([first])), force=True))
    place.run()
    everything = str(place.warehouse.tuples("SELECT * FROM imports_history"))
    everything += str(place.warehouse.tuples("SELECT * FROM records_customers_history"))
    assert not [value for value in ("bob", "ann") if value in everything]


@pytest.mark.dialect
def test_a_rule_reaches_versions_whose_load_died_after_the_ledger_had_the_new_reading(place: Place) -> None:
    """A run that reads another import comes before the one that reads theirs again."""
    service = place.service
    other = service.add_import("Customers", [{"ssn": "ssn-of-bob"}], {"by": "bob"})
    torn = service.add_import("Customers", [{"ssn": "ssn-of-ann"}], {"by": "ann"})
    place.run()
    place.settings["privacy"] = {"Customers": {"ssn": "drop"}, "metadata": {"by": "drop"}}
    backfill = RunScope(mode="backfill", selection=Selection(slugs=frozenset([other])), force=True)
    place.run(backfill)
    [(read_by,)] = place.warehouse.tuples(f"SELECT privacy FROM sync_imports WHERE slug = '{other}'")
    ledger = f"UPDATE sync_imports SET privacy = '{read_by}', history = NULL, _dlt_load_id = 'dead'"
    execute(place.warehouse, f"{ledger} WHERE slug = '{torn}'", "UPDATE sync_runs SET status = 'running'")
    place.run(backfill)
    place.run()
    everything = str(place.warehouse.tuples("SELECT * FROM imports_history"))
    everything += str(place.warehouse.tuples("SELECT * FROM records_customers_history"))
    assert not [value for value in ("bob", "ann") if value in everything]


def test_a_rule_that_comes_while_rows_are_away_from_their_table_tells_no_change(place: Place) -> None:
    """They were read while `typed` was false; a rebuild that is refused comes before they are read again."""
    away = place.service.add_import("Customers", [{"iban": "DE0012", "n": 1}])
    place.service.add_import("Customers", [{"iban": "DE0034", "n": 1}])
    first = place.run()
    [record] = place.service.record_slugs(away)
    place.edit(away, {"iban": "DE0012", "n": 2})
    place.run(typed=False)
    place.settings["privacy"] = {"Customers": {"iban": "mask:2"}}
    with pytest.raises(ConfigError, match="1 records of records_customers are in records as another load"):
        place.rebuild()
    place.run()
    assert told(place, first) == {(record, "n")}
    assert {iban for iban, *_ in place.versions("iban", "records_customers")} == {"****12", "****34"}


@pytest.mark.dialect
def test_rows_of_a_load_that_died_under_other_rules_leave_no_value_in_versions(place: Place) -> None:
    """Their ledger rows did not follow, and the run after reads another import."""
    service = place.service
    torn = service.add_import("Customers", [{"ssn": "ssn-of-ann", "n": 1}])
    other = service.add_import("Customers", [{"ssn": "ssn-of-bob", "n": 1}])
    place.settings["privacy"] = {"Customers": {"ssn": "mask:2"}}
    place.run()
    execute(
        place.warehouse,
        "UPDATE records_customers SET ssn = 'ssn-of-ann', n = 2, _ruled_by = NULL, _dlt_load_id = 'dead' "
        f"WHERE _import_slug = '{torn}'",
        f"UPDATE sync_imports SET history = NULL WHERE slug = '{torn}'",
        "UPDATE sync_runs SET status = 'running'",
    )
    place.run(RunScope(mode="backfill", selection=Selection(slugs=frozenset([other])), force=True))
    assert len(place.versions("n", "records_customers")) == 2, "rows under other rules wait"
    place.run()
    assert {ssn for ssn, *_ in place.versions("ssn", "records_customers")} <= {None, "********nn", "********ob"}


@pytest.mark.dialect
@pytest.mark.parametrize("how", ["left out", "failing"])
def test_metadata_that_is_listed_but_not_read_stays_in_versions_as_its_rules_leave_it(place: Place, how: str) -> None:
    service = place.service
    place.settings["privacy"] = {"metadata": {"by": "mask:2"}}
    service.add_import("Customers", [{"n": 1}], {"by": "alice"})
    if how == "left out":
        place.run()
    left = service.add_import("Leads", [{"n": 1}], {"by": "bob-1"})
    if how == "left out":
        place.run()
        place.settings["templates"] = ["Customers"]
    else:
        service.faults = Faults(failing_imports={left})
    for n in range(2, 5):
        service.set_metadata(left, {"by": f"bob-{n}"})
        place.warehouse.run(service, **place.settings)
    service.faults = Faults()
    place.settings.pop("templates", None)
    service.set_metadata(left, {"by": "bob-5"})
    place.run()
    place.run()
    found = place.warehouse.tuples(
        f"SELECT metadata__by FROM imports_history WHERE slug = '{left}' ORDER BY _valid_from"
    )
    first = 1 if how == "left out" else 2
    assert found == [(f"***-{n}",) for n in range(first, 6)]


@pytest.mark.dialect
def test_metadata_that_was_listed_while_there_were_no_rules_leaves_versions_once_they_are_back(place: Place) -> None:
    service = place.service
    place.settings["privacy"] = {"metadata": {"by": "mask:2"}}
    other = service.add_import("Customers", [{"n": 1}], {"by": "alice"})
    failing = service.add_import("Leads", [{"n": 1}], {"by": "bob-1"})
    place.run()
    service.set_metadata(failing, {"by": "bob-2"})
    service.faults = Faults(failing_imports={failing})
    place.warehouse.run(service, **{**place.settings, "history": False, "privacy": {}})
    assert ("bob-2",) in place.warehouse.tuples("SELECT metadata__by FROM imports")
    service.faults = Faults()
    place.run(RunScope(mode="backfill", selection=Selection(slugs=frozenset([other])), force=True))
    place.run()
    assert "bob" not in str(place.warehouse.tuples("SELECT metadata__by FROM imports_history"))


@pytest.mark.dialect
def test_a_rule_that_comes_after_an_import_left_for_a_template_without_rules_is_applied(place: Place) -> None:
    service = place.service
    moving = service.add_import("Leads", [{"iban": "DE0012"}])
    kept = service.add_import("Leads", [{"iban": "DE0034"}])
    place.run()
    place.settings["privacy"] = {"Leads": {"iban": "drop"}}
    place.run(RunScope(mode="backfill", selection=Selection(slugs=frozenset([kept])), force=True))
    service.set_template(moving, "Customers")
    place.run()
    assert {iban for iban, *_ in place.versions("iban", "records_leads")} == {None}


@pytest.mark.dialect
def test_a_part_does_not_hide_that_a_record_which_moved_is_to_be_erased(place: Place) -> None:
    service = place.service
    first = service.add_import("Customers", [{"n": "moves"}, {"n": "b"}])
    second = service.add_import("Orders", [{"n": "c"}])
    place.settings["history"] = ["Customers"]
    place.run()
    record, _ = service.record_slugs(first)
    service.move_row(first, record, second)
    place.run()
    service.delete_row(second, record)
    place.run(RunScope(mode="backfill", selection=Selection(slugs=frozenset([second])), force=True))
    place.run()
    assert {n for n, *_ in place.versions("n", "records_customers")} == {"b"}


@pytest.mark.dialect
def test_a_rule_for_records_changes_nothing_in_versions_of_metadata(place: Place) -> None:
    slug = place.service.add_import("Customers", [{"mail": "a@x.de"}], {"file": "first.csv"})
    place.settings["privacy"] = {"metadata": {"file": "mask:4"}}
    place.run()
    place.service.set_metadata(slug, {"file": "second.txt"})
    place.settings["privacy"] |= {"Customers": {"mail": "drop"}}
    place.run()
    shown = place.warehouse.tuples("SELECT metadata__file FROM imports_history ORDER BY _valid_from")
    assert shown == [("*****.csv",), ("******.txt",)]


def test_a_kept_row_that_was_deleted_does_not_bring_its_value_back(duck_place: Place) -> None:
    place = duck_place
    place.settings["deletes"] = "keep"
    slug = place.service.add_import("Customers", [{"ssn": "123", "n": 1}, {"ssn": "456", "n": 2}])
    place.run()
    place.service.delete_row(slug, next(iter(place.service.record_slugs(slug))))
    place.run(privacy={"Customers": {"ssn": "drop"}})
    assert {ssn for ssn, *_ in place.versions("ssn", "records_customers")} == {None}


@pytest.mark.long
def test_an_import_that_stays_due_forgets_the_rules_it_was_recorded_under(duck_place: Place) -> None:
    """It moves to a template without rules in runs that are not whole, and back."""
    place = duck_place
    place.settings["privacy"] = {"Customers": {"iban": "drop"}}
    moving = place.service.add_import("Customers", [{"iban": "DE0012", "n": 1}, {"iban": "DE0013", "n": 2}])
    place.service.add_import("Leads", [{"iban": "DE0034", "n": 3}])
    place.run()
    only = RunScope(mode="backfill", selection=Selection(slugs=frozenset([moving])), force=True)
    place.service.set_template(moving, "Leads")
    place.service.delete_row(moving, next(iter(place.service.record_slugs(moving))))
    assert place.warehouse.run(place.service, only, **place.settings).status is Status.succeeded
    assert ("DE0013", "insert", True) in place.versions("iban", "records_leads")
    place.service.set_template(moving, "Customers")
    place.run()
    assert {iban for iban, *_ in place.versions("iban", "records_leads")} == {None, "DE0034"}


@pytest.mark.long
def test_a_rebuild_for_which_the_history_has_no_room_changes_nothing(
    postgres: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(postgres)
    place.service.add_import("t", [{"n": "1", "b": 1}])
    place.run()
    columns = postgres.columns("records_t_history")
    limits = {"postgres": Limits("PostgreSQL", columns=len(columns), row_bytes=8160)}
    with monkeypatch.context() as patch:
        patch.setattr("connector.transform.row_limits.LIMITS", limits)
        with pytest.raises(ConfigError, match=f"records_t_history would have {len(columns) + 1} columns"):
            place.rebuild(hints={"records_t": {"n": "bigint"}})

    assert postgres.columns("records_t_history") == columns
    place.service.append_rows(place.service.slugs()[0], [{"n": "2"}])
    place.run()
    assert postgres.tuples("SELECT n FROM records_t_history ORDER BY 1") == [("1",), ("2",)]


def test_the_room_in_a_history_on_postgres_is_without_the_columns_that_were_dropped(
    postgres: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(postgres)
    place.service.add_import("t", [{"n": 1}, {"n": 2}])
    place.run()
    room = len(postgres.columns("records_t_history")) + 2
    monkeypatch.setattr("connector.transform.row_limits.LIMITS", {"postgres": Limits("PostgreSQL", room, 8160)})
    place.rebuild(hints={"records_t": {"n": "text"}})
    place.rebuild()
    with pytest.raises(ConfigError, match=f"records_t_history would have {room + 1} columns"):
        place.rebuild(hints={"records_t": {"n": "text"}})
    place.run()


@pytest.mark.dialect
def test_a_new_key_in_the_listing_is_in_no_earlier_version(place: Place) -> None:
    """Of an import that is not read then: it is left out, or its `updated_at` did not change."""
    place.settings["exclude_templates"] = ["Orders"]
    for template in ("Customers", "Orders"):
        place.service.add_import(template, [{"n": 1}], {"k": 1})
    place.run()
    for slug in place.service.slugs():
        found = place.service.find(slug)
        assert found
        found.metadata = {"k": 2, "fresh": "later"}
    place.service.version += 1
    place.run()
    expected = [(1, None, "insert", False), (2, "later", "update", True)]
    assert place.versions("metadata__k, metadata__fresh", "imports") == [*expected[:1] * 2, *expected[1:] * 2]


def test_metadata_that_was_listed_again_is_under_no_rule_before_it_is_read(duck_place: Place) -> None:
    """The service answers 404 for the records of an import without any, and so has no metadata beside them then."""
    place = duck_place
    place.service = Service(1, switches=Switches(no_records=404))
    place.service.add_import("Customers", [{"n": 1}], {"who": "ann"})
    place.service.add_import("Orders", [], {"who": "bob"})
    place.run()
    place.run(templates=["Customers"])
    place.settings["privacy"] = {"metadata": {"who": "mask:1"}}
    place.warehouse.run(place.service, templates=["Customers"], **place.settings)
    place.run()
    place.run()
    there = str(place.warehouse.tuples("SELECT * FROM imports_history"))
    assert [value for value in ("ann", "bob", "**b") if value in there] == ["**b"]


def under_others(place: Place, privacy: dict[str, Any], how: str = "killed") -> None:
    """Read everything under other rules in a run that records no versions."""
    settings = {**place.settings, "privacy": privacy}
    if how == "dlt alone":
        place.warehouse.run_dlt(place.service, **settings)
    else:
        with mock.patch.object(run_sync, "_make_versions", side_effect=RuntimeError("killed")):
            place.warehouse.run(place.service, **settings)


def test_rules_that_are_taken_back_while_an_import_is_left_out_tell_no_change(duck_place: Place) -> None:
    place = duck_place
    place.settings["privacy"] = {"Customers": {"iban": "mask:2"}}
    place.service.add_import("Customers", [{"iban": "DE0012", "n": 1}])
    place.service.add_import("Leads", [{"n": 1}])
    first = place.run()
    under_others(place, {"Customers": {"iban": "mask:3"}})
    left_out = {**place.settings, "templates": ["Leads"]}
    assert place.warehouse.run(place.service, **left_out).status is Status.partial
    place.run()
    assert told(place, first) == set()
    place.check()
    assert place.run().load_ids == []


@pytest.mark.dialect
def test_a_deletion_in_the_run_that_first_reads_an_import_under_a_changed_rule_is_told(place: Place) -> None:
    place.settings |= {"privacy": {"Customers": {"iban": "mask:2"}}, "deletes": "keep"}
    read = place.service.add_import("Customers", [{"iban": "DE0012", "n": 1}, {"iban": "DE0034", "n": 2}])
    place.service.add_import("Customers", [{"iban": "DE0056", "n": 3}])
    place.run()
    place.service.delete_row(read, next(iter(place.service.record_slugs(read))))
    place.settings["privacy"] = {"Customers": {"iban": "mask:3"}}
    place.run(RunScope(mode="backfill", selection=Selection(slugs=frozenset([read])), force=True))
    [(gone, *_)] = [version for version in place.versions("n", "records_customers") if version[1] == "delete"]
    assert [(n, still) for n, _, still in place.versions("n", "records_customers") if n == gone] == [(gone, False)] * 2
    place.run()
    place.check()


@pytest.mark.dialect
@pytest.mark.parametrize("lost", ["records_customers", "records"])
def test_a_version_waits_for_rows_that_a_user_dropped_with_their_table(place: Place, lost: str) -> None:
    """First a backfill reads another import, while what is due was loaded without versions or without types."""
    edited = place.service.add_import("Customers", [{"n": 1}, {"n": 2}])
    other = place.service.add_import("Customers", [{"n": 3}])
    first = place.run()
    record = next(iter(place.service.record_slugs(edited)))
    place.service.edit_row(edited, record, {"n": 9})
    if lost == "records":
        place.run(typed=False)
    else:
        with mock.patch.object(run_sync, "_make_versions", side_effect=RuntimeError("killed")):
            place.warehouse.run(place.service, **place.settings)
    execute(place.warehouse, f"DROP TABLE {lost}")
    place.run(RunScope(mode="backfill", selection=Selection(slugs=frozenset([other])), force=True))
    assert {(change, still) for _, change, still in place.versions("n", "records_customers")} == {("insert", True)}
    place.run()
    assert told(place, first) == {(record, "n")}
    place.check()
    assert place.run().load_ids == []


def test_versions_of_records_in_a_lost_table_are_not_erased_while_their_import_is_left_out(duck_place: Place) -> None:
    place = duck_place
    place.settings |= {"deletes": "mirror", "raw": False}
    edited = place.service.add_import("Customers", [{"n": 1}])
    other = place.service.add_import("Customers", [{"n": 3}])
    place.service.add_import("Orders", [{"k": 1}])
    place.run()
    for n in (2, 4):
        place.edit(edited, {"n": n})
        if n == 2:
            place.run()
    with mock.patch.object(run_sync, "_make_versions", side_effect=RuntimeError("killed")):
        place.warehouse.run(place.service, **place.settings)
    execute(place.warehouse, "DROP TABLE records_customers")
    place.run(RunScope(mode="backfill", selection=Selection(slugs=frozenset([other])), force=True))
    place.warehouse.run(place.service, **{**place.settings, "templates": ["Orders"]})
    assert {n for n, *_ in place.versions("n", "records_customers")} == {1, 2, 3}
    place.run()
    assert {n for n, *_ in place.versions("n", "records_customers")} == {1, 2, 3, 4}
    place.check()


@pytest.mark.parametrize("lost", ["all but the versions", "the ledger and the rows"])
def test_versions_wait_while_an_import_without_rows_and_ledger_cannot_be_read(duck_place: Place, lost: str) -> None:
    place = duck_place
    failing = place.service.add_import("Customers", [{"n": 1}, {"n": 2}])
    place.service.add_import("Customers", [{"n": 3}])
    place.run()
    tables = [t for t in place.warehouse.tables("") if not t.endswith("_history")]
    some = ["sync_imports", "records_customers"]
    execute(place.warehouse, *(f"DROP TABLE {table}" for table in (tables if lost.startswith("all") else some)))
    place.service.faults = Faults(failing_imports={failing})
    assert place.warehouse.run(place.service, **place.settings).status is Status.partial
    place.service.faults = Faults()
    place.run()
    assert place.versions("n", "records_customers") == [(n, "insert", True) for n in (1, 2, 3)]
    place.check()


def test_a_version_waits_for_its_types_though_its_import_changed_its_template(duck_place: Place) -> None:
    place = duck_place
    changed = place.service.add_import("Leads", [{"n": 1}])
    other = place.service.add_import("Customers", [{"n": 2}])
    place.run()
    place.service.set_template(changed, "Customers")
    place.run(typed=False)
    place.run(RunScope(mode="backfill", selection=Selection(slugs=frozenset([other])), force=True))
    assert place.versions("n", "records_leads") == [(1, "insert", True)]
    place.run()
    assert place.versions("n", "records_leads") == [(1, "insert", False)]
    place.check()


def test_a_run_that_leaves_out_a_template_that_the_settings_name_erases_no_version(duck_place: Place) -> None:
    place = duck_place
    place.settings |= {"deletes": "mirror", "templates": ["Customers", "Orders"]}
    place.service.add_import("Customers", [{"n": 1}])
    orders = place.service.add_import("Orders", [{"n": 2}, {"n": 3}])
    place.run()
    [customers] = {i["template"]["slug"] for i in place.service.imports() if i["template"]["name"] == "Customers"}
    place.service.rename_template(customers, "Clients")
    to = place.service.add_import("Clients", [{"n": 4}])
    place.service.move_row(orders, next(iter(place.service.record_slugs(orders))), to)
    assert place.warehouse.run(place.service, **place.settings).status is Status.partial
    assert [n for n, *_ in place.versions("n", "records_orders")] == [2, 3]


def test_rules_empty_no_version_of_an_import_that_was_read_without_types_and_is_left_out(duck_place: Place) -> None:
    place = duck_place
    place.settings["privacy"] = {"Customers": {"iban": "mask:2"}}
    read = place.service.add_import("Customers", [{"iban": "DE0012"}])
    place.service.add_import("Orders", [{"k": 1}])
    first = place.run()
    place.service.edit_row(read, next(iter(place.service.record_slugs(read))), {"iban": "DE0012", "n": 1})
    place.run(typed=False)
    place.settings["privacy"] = {"Customers": {"iban": "mask:3"}}
    ran = place.warehouse.run(place.service, **{**place.settings, "templates": ["Orders"]})
    assert ran.status is Status.partial
    place.run()
    assert told(place, first) == {(next(iter(place.service.record_slugs(read))), "n")}
    place.check()


def test_no_version_tells_that_metadata_beside_the_records_was_lost_with_the_table_of_imports(
    duck_place: Place,
) -> None:
    place = duck_place
    place.service.add_import("Customers", [{"n": 1}], {"by": "a"})
    place.service.add_import("Orders", [{"n": 1}], {"by": "b"})
    place.run()
    execute(place.warehouse, "DROP TABLE imports")
    place.run(templates=["Customers"])
    place.run()
    assert {change for _, change, _ in place.versions("records_metadata", "imports")} == {"insert"}
    place.check()


def test_rules_by_the_new_name_of_a_template_hold_though_an_import_that_is_not_listed_has_the_old_one(
    duck_place: Place,
) -> None:
    place = duck_place
    place.settings |= {"status": "completed", "privacy": {"*": {"m": "mask:1"}}}
    read = place.service.add_import("Customers", [{"iban": "DE0012", "m": "a"}])
    reopened = place.service.add_import("Customers", [{"iban": "DE0034", "m": "b"}])
    place.run()
    place.service.set_status(reopened, "submitted")
    place.edit(read, {"iban": "DE0056", "m": "a"})
    place.service.rename_template(place.service.imports()[0]["template"]["slug"], "Clients")
    first = place.run()
    place.settings["privacy"] = {"*": {"m": "mask:1"}, "Clients": {"iban": "mask:2"}}
    ran = place.warehouse.run(place.service, **place.settings)
    assert (ran.status, ran.imports_changed) == (Status.partial, 1)
    assert "loaded under other privacy rules" in " ".join(ran.problems)
    found = place.warehouse.tuples(
        "SELECT iban, _valid_to IS NULL FROM records_customers_history WHERE _import_slug = %s ORDER BY _valid_from",
        read,
    )
    assert found == [(None, False), ("****56", True)]
    del place.settings["status"]
    place.run()
    assert {field for _, field in told(place, first)} == {"iban"}
    place.check()


@pytest.mark.parametrize("how", ["a backfill", pytest.param("a stopped run", marks=pytest.mark.long)])
def test_rules_by_the_new_name_of_a_template_tell_no_change_though_first_a_part_is_read(
    duck_place: Place, how: str
) -> None:
    place = duck_place
    place.settings["privacy"] = {"Customers": {"m": "mask:1"}}
    slugs = [place.service.add_import("Customers", [{"iban": f"DE00{n}", "m": "a"}]) for n in range(3)]
    first = place.run()
    place.service.rename_template(place.service.imports()[0]["template"]["slug"], "Clients")
    place.settings["privacy"] |= {"Clients": {"m": "mask:1", "iban": "mask:1"}}
    if how == "a backfill":
        place.run(RunScope(mode="backfill", selection=Selection(slugs=frozenset(slugs[:1])), force=True))
    else:
        place.service.faults = Faults(failing_imports=set(slugs[1:]))
        assert place.warehouse.run(place.service, **place.settings).status is Status.partial
        place.service.faults = Faults()
    place.run()
    assert told(place, first) == set()
    assert {iban for iban, *_ in place.versions("iban", "records_customers")} == {f"*****{n}"[-5:] for n in range(3)}
    place.check()


def test_rows_without_rules_do_not_wait_because_another_name_of_their_template_has_some(duck_place: Place) -> None:
    place = duck_place
    read = place.service.add_import("Customers", [{"n": 1}])
    other = place.service.add_import("Customers", [{"n": 2, "iban": "DE0012"}])
    place.settings |= {"status": "completed", "privacy": {"Customers": {"iban": "mask:2"}}}
    first = place.run()
    place.service.set_status(other, "submitted")
    [template] = {each["template"]["slug"] for each in place.service.imports()}
    place.service.rename_template(template, "Clients")
    place.settings["privacy"] = {"Customers": {"iban": "mask:2"}, "Clients": {}}
    assert place.warehouse.run(place.service, **place.settings).status is Status.partial  # because of the other
    place.edit(read, {"n": 9})
    place.warehouse.run(place.service, **place.settings)
    assert told(place, first) == {(next(iter(place.service.record_slugs(read))), "n")}
    assert place.warehouse.run(place.service, **place.settings).load_ids == []


def test_a_record_that_moved_to_an_import_that_lost_values_keeps_its_version(duck_place: Place) -> None:
    place = duck_place
    place.settings["deletes"] = "keep"
    left = place.service.add_import("Customers", [{"n": 1, "m": "a"}, {"n": 2, "m": "b"}])
    to = place.service.add_import("Customers", [{"n": 3, "m": "c"}])
    first = place.run()
    moved = next(iter(place.service.record_slugs(left)))
    place.service.move_row(left, moved, to)
    place.warehouse.run_dlt(place.service, **place.settings)
    execute(place.warehouse, "ALTER TABLE records_customers DROP COLUMN m")
    place.service.faults = Faults(failing_imports={to})
    assert place.warehouse.run(place.service, **place.settings).status is Status.partial
    place.service.faults = Faults()
    place.run()
    assert {field for _, field in told(place, first)} == {"import", "sort"}
    assert "delete" not in {change for _, change, _ in place.versions("n", "records_customers")}
    place.check()


@pytest.mark.parametrize("lost", ["records_customers.n", "imports.status", "imports.records_metadata"])
def test_a_version_waits_for_values_that_a_user_dropped_with_their_column(duck_place: Place, lost: str) -> None:
    """The run that restores the column cannot read one import, or reads another one alone."""
    place = duck_place
    failing = place.service.add_import("Customers", [{"n": 1, "m": "a"}])
    other = place.service.add_import("Customers", [{"n": 3, "m": "b"}])
    first = place.run()
    table, _, column = lost.partition(".")
    execute(place.warehouse, f"ALTER TABLE {table} DROP COLUMN {column}")
    place.edit(other, {"n": 4, "m": "b"})
    if column == "status":
        place.run(RunScope(mode="backfill", selection=Selection(slugs=frozenset([other])), force=True))
    else:
        place.service.faults = Faults(failing_imports={failing})
        assert place.warehouse.run(place.service, **place.settings).status is Status.partial
        place.service.faults = Faults()
    place.run()
    assert told(place, first) == {(next(iter(place.service.record_slugs(other))), "n")}
    assert [change for _, change, _ in place.versions("slug", "imports")].count("update") == 1
    place.check()
    assert place.run().load_ids == []


@pytest.mark.dialect
@pytest.mark.parametrize("how", ["killed", "dlt alone"])
def test_rules_that_are_taken_back_before_versions_were_recorded_tell_no_change(place: Place, how: str) -> None:
    place.settings["privacy"] = {"Customers": {"iban": "mask:2"}, "metadata": {"by": "mask:2"}}
    read = place.service.add_import("Customers", [{"iban": "DE0012", "n": 1}], {"by": "alice"})
    place.service.add_import("Customers", [{"iban": "DE0034", "n": 1}], {"by": "carol"})
    first = place.run()
    under_others(place, {"Customers": {"iban": "mask:3"}, "metadata": {"by": "mask:3"}}, how)
    place.edit(read, {"iban": "DE0012", "n": 2})
    place.run(RunScope(mode="backfill", selection=Selection(slugs=frozenset([read])), force=True))
    place.run()
    assert {by for by, *_ in place.versions("metadata__by", "imports")} == {"***ce", "***ol"}
    assert [change for _, change, _ in place.versions("slug", "imports")].count("update") == 1
    assert told(place, first) == {(next(iter(place.service.record_slugs(read))), "n")}
    assert {iban for iban, *_ in place.versions("iban", "records_customers")} == {"****12", "****34"}
    place.check()
    assert place.run().load_ids == []


def test_nothing_is_due_once_rules_for_the_metadata_of_an_import_that_is_left_out_are_gone(duck_place: Place) -> None:
    place = duck_place
    place.service.add_import("Customers", [{"n": 1}], {"who": "ann"})
    place.service.add_import("Orders", [{"n": 1}], {"k": 1})
    place.run(privacy={"metadata": {"who": "mask:1"}})
    place.run(privacy={"metadata": {"who": "mask:1"}}, templates=["Customers"])
    place.run(templates=["Customers"])
    with mock.patch.object(run_sync, "make_versions") as made:
        place.run(templates=["Customers"])
    assert not made.called


def test_a_rule_tells_no_change_of_a_record_that_moved_while_its_table_was_not_recorded(duck_place: Place) -> None:
    place = duck_place
    left = place.service.add_import("Customers", [{"iban": "DE0012"}, {"iban": "DE0034"}])
    to = place.service.add_import("Customers", [{"iban": "DE0056"}])
    place.service.add_import("Leads", [{"n": 1}])
    first = place.run()
    moved = next(iter(place.service.record_slugs(left)))
    place.run(history=["Leads"])
    place.service.move_row(left, moved, to)
    place.run(history=["Leads"])
    place.settings["privacy"] = {"Customers": {"iban": "mask:2"}}
    place.run(history=["Leads"])
    place.run()
    assert told(place, first) == {(moved, "import"), (moved, "sort")}
    assert {iban for iban, *_ in place.versions("iban", "records_customers")} == {"****12", "****34", "****56"}
    place.check()


def test_versions_begin_anew_with_rows_under_other_rules_too(duck_place: Place) -> None:
    place = duck_place
    place.settings["privacy"] = {"Customers": {"iban": "mask:2"}}
    read = place.service.add_import("Customers", [{"iban": "DE0012"}])
    failing = place.service.add_import("Customers", [{"iban": "DE0034"}])
    place.run()
    execute(place.warehouse, "DROP TABLE records_customers_history")
    place.settings["privacy"] = {"Customers": {"iban": "mask:3"}}
    place.run(RunScope(mode="backfill", selection=Selection(slugs=frozenset([read])), force=True))
    place.service.faults = Faults(failing_imports={failing})
    assert place.warehouse.run(place.service, **place.settings).status is Status.partial
    assert len(place.versions("iban", "records_customers")) == 2
    place.service.faults = Faults()
    place.run()
    place.check()


@pytest.mark.parametrize("history", [True, False], ids=["recording", "history is off"])
def test_a_token_that_is_refused_meanwhile_erases_no_version_of_what_exists(duck: DuckDB, history: bool) -> None:
    """A record that moved is in an import that such a run did not read."""
    place = Place(duck, deletes="mirror", max_concurrency=1)
    ann, bob = place.service.add_import("Customers", [{"a": 1}]), place.service.add_import("Customers", [{"a": 2}])
    place.run()
    place.edit(ann, {"a": 100})
    place.run()
    (moving,) = place.service.record_slugs(ann)
    place.service.move_row(ann, moving, bob)
    token = place.service.token

    def revoke(request: Request) -> None:
        if request.path.endswith(f"{bob}/records"):
            place.service.token = "another"

    place.service.on_request = revoke
    refused = duck.run(place.service, **{**place.settings, "history": history})
    assert refused.status is Status.failed
    place.service.on_request, place.service.token = None, token
    place.run()
    assert sorted(a for a, *_ in place.versions("a", "records_customers")) == [1, 2, 100, 100]
    place.check()


@pytest.mark.parametrize("wrong", ["renamed", "misspelt", "rebuild"])
def test_versions_of_a_template_whose_rules_may_be_the_wrong_ones_stay_as_they_are(duck: DuckDB, wrong: str) -> None:
    rules: dict[str, Any] = {"*": {"mail": "hash"}, "Customers": {"iban": "mask:4"}}
    place = Place(duck, privacy=rules, privacy_key="key")
    slug = place.service.add_import("Customers", [{"mail": "a@x", "iban": "DE123456", "n": 1}])
    [template] = place.service.templates()
    place.run()
    place.edit(slug, {"mail": "a@x", "iban": "DE123456", "n": 2})
    place.run()
    before = place.versions("mail, iban, n", "records_customers")
    assert [iban for _, iban, *_ in before] == ["****3456"] * 2
    misspelt = {"*": rules["*"], "Custmers": rules["Customers"]}
    if wrong == "renamed":
        place.service.rename_template(template.slug, "Clients")
        assert duck.run(place.service, **place.settings).status is Status.partial
        place.settings["privacy"] = {"*": rules["*"], template.slug: rules["Customers"]}
    elif wrong == "misspelt":
        place.edit(slug, {"mail": "a@x", "iban": "DE123456", "n": 2})
        assert duck.run(place.service, **{**place.settings, "privacy": misspelt}).status is Status.partial
    else:
        place.rebuild(privacy=misspelt)
    assert place.versions("mail, iban, n", "records_customers") == before
    place.run()
    assert place.versions("mail, iban, n", "records_customers") == before


def test_a_backfill_does_not_end_versions_that_wait_for_what_is_lost(duck: DuckDB) -> None:
    place = Place(duck)
    slug = place.service.add_import("Customers", [{"a": 1}])
    place.run()
    execute(duck, "DELETE FROM imports")
    place.service.faults = Faults(failing_imports={slug})
    for scope in (None, RunScope(mode="backfill", force=True)):
        assert duck.run(place.service, scope, **place.settings).status is Status.partial
    place.service.faults = Faults()
    place.run()
    assert place.versions("records_metadata", "imports") == [("{}", "insert", True)]


def test_rules_for_all_reach_versions_of_a_template_that_is_gone(duck: DuckDB) -> None:
    """A section of which it was the name, or nearly, can be meant for it no more."""
    place = Place(duck, deletes="keep", mass_delete_limit=1.0)
    slug = place.service.add_import("Customers", [{"mail": "ann@example.com"}])
    place.service.add_import("Orders", [{"n": 1}])
    place.run()
    place.service.delete_import(slug)
    place.run()
    place.run(privacy={"*": {"mail": "drop"}, "Customer": {"n": "drop"}})
    assert place.versions("mail", "records_customers")[0][0] is None
