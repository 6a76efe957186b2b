"""Every version of a row, exact under edits, deletes, moves, kills, backfills and rebuilds."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from connector.errors import ConfigError, ConnectorError
from connector.maintain.compact import compact
from connector.maintain.rebuild import rebuild
from connector.maintain.verify import verify
from connector.reporting.changes import changes
from connector.reporting.views.applying import apply, drop, keep_current
from connector.runs import Status, Tally
from connector.sandbox import Service, serve
from connector.settings import RunScope, Settings
from connector.transform import naming
from connector.warehouse import Warehouse as Opened
from connector.warehouse.history import mismatched_versions
from connector.warehouse.history_tables import OWN
from tests.types.conftest import DuckDB, SQLite, Warehouse
from tests.types.test_ours import check_whole, execute

pytestmark = pytest.mark.thorough

H = "records_customers_history"


@pytest.fixture
def service() -> Service:
    service = Service(1)
    service.add_import("Customers", [{"a": n, "name": f"n{n}"} for n in range(3)], {"uploaded_by": "ann"})
    service.add_import("Customers", [{"a": 7, "name": "seven"}], {"uploaded_by": "bob"})
    return service


class Place:
    """A warehouse, and what the service showed at each completed run."""

    def __init__(self, warehouse: Warehouse, service: Service, **settings: Any) -> None:
        self.warehouse, self.service = warehouse, service
        self.settings = {"history": True, **settings}
        self.seen: list[tuple[datetime, set[Any], bool]] = []

    def run(self, scope: RunScope | None = None) -> Tally:
        ran = self.warehouse.run(self.service, scope, **self.settings)
        assert ran.status is Status.succeeded, ran.problems
        self.seen.append((ran.started_at, self.shown(), bool(ran.load_ids)))
        self.check()
        return ran

    def shown(self) -> set[Any]:
        found = self.warehouse.tuples(
            "SELECT _record_slug, _import_slug, a, name FROM records_customers WHERE _deleted_at IS NULL"
        )
        return set(found)

    def versions(self, where: str = "TRUE") -> list[tuple[Any, ...]]:
        return self.warehouse.tuples(
            f"SELECT a, name, _change, _valid_to IS NULL AS still FROM {H} WHERE {where} "
            "ORDER BY _valid_from, _valid_to IS NULL, _valid_to, a, name"
        )

    def as_of(self, moment: datetime) -> set[Any]:
        return set(
            self.warehouse.tuples(
                f"SELECT _record_slug, _import_slug, a, name FROM {H} "
                "WHERE _valid_from <= %s AND (_valid_to IS NULL OR %s < _valid_to)",
                moment,
                moment,
            )
        )

    def check(self) -> None:
        """The open versions are the rows, and no two versions of a record overlap."""
        with Opened(self.warehouse.pipeline()).connect() as connection:
            assert mismatched_versions(connection, lambda *_: True) == {}
        overlaps = self.warehouse.tuples(
            f"SELECT count(*) FROM {H} a JOIN {H} b ON a._record_slug = b._record_slug "
            "AND a._valid_from < b._valid_from AND (a._valid_to IS NULL OR a._valid_to > b._valid_from)"
        )
        assert overlaps == [(0,)]


def first_record(service: Service, n: int = 0) -> tuple[str, str]:
    slug = service.slugs()[n]
    return slug, next(iter(service.record_slugs(slug)))


def test_each_completed_run_can_be_seen_again(recording: Warehouse, service: Service) -> None:
    place = Place(recording, service, deletes="keep")
    place.run()
    service.edit_row(*first_record(service), {"a": 100, "name": "n0", "new": "x"})
    place.run()
    service.delete_row(*first_record(service))
    service.append_rows(service.slugs()[1], [{"a": 8, "name": "eight"}])
    place.run()
    place.run()
    service.delete_import(service.slugs()[1])
    place.run()

    for moment, shown, _ in place.seen:
        assert place.as_of(moment) == shown
    assert place.versions("a IN (0, 100)") == [
        (0, "n0", "insert", False),
        (100, "n0", "update", False),
        (100, "n0", "delete", False),
    ]
    assert [change for _, _, change, _ in place.versions("a IN (7, 8)")] == ["insert", "insert", "delete", "delete"]
    metadata = recording.tuples("SELECT metadata__uploaded_by, _change FROM imports_history ORDER BY _valid_from, 1, 2")
    assert ("bob", "delete") in metadata
    check_whole(recording, service)


@pytest.mark.dialect
def test_nothing_is_a_version_that_was_only_read_again(recording: Warehouse, service: Service) -> None:
    place = Place(recording, service)
    place.run()
    before = place.versions()
    place.run(RunScope(mode="backfill", force=True))
    recording.lose_working_directory()
    place.run(RunScope(mode="backfill", force=True))
    with serve(service) as url:
        settings = Settings.load(base_url=url, access_token=service.token, hints={"records_customers": {"a": "text"}})
        rebuild(recording.pipeline(), settings)
    place.settings["hints"] = {"records_customers": {"a": "text"}}
    service.set_metadata(service.slugs()[1], {"uploaded_by": "eve"})
    place.run()
    assert [(str(a), *rest) for a, *rest in place.versions()] == [(str(a), *rest) for a, *rest in before]
    assert place.versions()[0][0] == "0"
    assert recording.tuples("SELECT count(*) FROM imports_history") == [(3,)]


def test_what_the_service_erased_leaves_no_version(recording: Warehouse, service: Service) -> None:
    place = Place(recording, service)
    place.run()
    service.edit_row(*first_record(service), {"a": 100, "name": "gone"})
    place.run()
    service.delete_row(*first_record(service))
    service.delete_import(service.slugs()[1])
    place.run()
    assert place.versions() == [(1, "n1", "insert", True), (2, "n2", "insert", True)]
    assert recording.tuples("SELECT count(*) FROM imports_history WHERE metadata__uploaded_by = 'bob'") == [(0,)]
    for moment, shown, _ in place.seen[2:]:
        assert place.as_of(moment) == shown


def test_a_run_that_died_before_it_recorded_is_caught_up_with(
    duck: DuckDB, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(duck, service)
    place.run()
    service.edit_row(*first_record(service), {"a": 100, "name": "n0"})

    def dying(*_: Any, **__: Any) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("connector.run.versions.record", dying)
        assert duck.run(service, history=True).status is Status.failed
    ran = place.run()
    assert ran.load_ids == []
    assert place.versions("a IN (0, 100)") == [(0, "n0", "insert", False), (100, "n0", "update", True)]
    place.run()
    assert len(place.versions()) == 5


def test_it_begins_with_what_is_there_for_the_templates_that_are_named(duck: DuckDB, service: Service) -> None:
    service.add_import("Orders", [{"x": 1}])
    place = Place(duck, service, history=["Customers"])
    duck.run(service)
    assert "records_customers_history" not in duck.tables()
    ran = place.run()
    assert ran.load_ids == []
    assert len(place.versions()) == 4
    assert "records_orders_history" not in duck.tables()
    place.settings["history"] = True
    place.run()
    assert duck.tuples("SELECT x, _change FROM records_orders_history") == [(1, "insert")]
    execute(duck, f"DROP TABLE {H}")
    place.run()
    assert len(place.versions()) == 4


def as_text(value: Any) -> str | None:
    return None if value is None else str(value)


@pytest.mark.parametrize("deletes", ["mirror", "keep"])
def test_fields_of_one_letter_are_no_aliases(duck: DuckDB, deletes: str) -> None:
    """In a subquery `h.x` is a member of the column h, before it is the column x of an outer h."""
    service = Service(1)
    place = Place(duck, service, deletes=deletes)
    letters: dict[str, Any] = {key: ["a list"] for key in "bcdefghijklmnopqrstuvwxyz"}
    slug = service.add_import("Customers", [{"a": n, "name": "x", **letters} for n in range(3)])
    other = service.add_import("Customers", [{"a": 9, "name": "x", **letters}])
    place.run()
    first, second, _ = service.record_slugs(slug)
    service.edit_row(slug, first, {"a": 0, "name": "y", **letters})
    service.delete_row(slug, second)
    service.delete_import(other)
    place.run()
    apply(duck.pipeline())
    with serve(service) as url:
        settings = Settings.load(base_url=url, access_token=service.token, history=True, deletes=deletes)
        assert verify(duck.pipeline(), settings, deep=True).differences == []
    compact(duck.pipeline(), mirrors=deletes == "mirror")
    found = duck.tuples(f"SELECT a, name, _change, _valid_to IS NULL FROM {H}")
    rest = [(0, "x", "insert", False), (0, "y", "update", True), (2, "x", "insert", True)]
    gone = [(a, "x", change, False) for a in (1, 9) for change in ("insert", "delete")]
    assert sorted(found) == sorted(rest + gone * (deletes == "keep"))
    shown = duck.tuples(
        f"SELECT field, old_value, new_value FROM {duck.dataset}_views.v_changes WHERE change = 'update'"
    )
    assert shown == [("name", "x", "y")]


def test_fields_may_be_called_like_the_columns_of_versions(duck: DuckDB) -> None:
    service = Service(1)
    slug = service.add_import("Exports", [{name: f"{name} 1" for name in OWN}])
    duck.run(service, history=True)
    service.edit_row(slug, next(iter(service.record_slugs(slug))), {name: f"{name} 2" for name in OWN})
    assert duck.run(service, history=True).status is Status.succeeded
    columns = duck.tuples("SELECT path, column_name FROM sync_fields WHERE table_name = 'records_exports'")
    assert {path for path, _ in columns} == set(OWN)
    for path, column in columns:
        found = duck.tuples(f"SELECT {column}, _change FROM records_exports_history ORDER BY _valid_from")
        assert found == [(f"{path} 1", "insert"), (f"{path} 2", "update")]


def test_a_field_that_an_earlier_version_called_like_them_is_named(
    duck: DuckDB, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.add_import("Exports", [{"_valid_from": "x"}])
    with monkeypatch.context() as earlier:
        earlier.setattr(naming, "VERSION_COLUMNS", ())
        duck.run(service)
    refused = duck.run(service, history=True).fatal
    assert isinstance(refused, ConfigError)
    assert str(refused).startswith("records_exports has a field in the column _valid_from")
    assert duck.run(service, history=["Customers"]).status is Status.succeeded
    assert duck.tuples(f"SELECT count(*) FROM {H}") == [(4,)]


def test_changes_and_a_moment_can_be_asked_for(warehouse: Warehouse, service: Service) -> None:
    views = f"{warehouse.dataset}_views"
    warehouse.run(service)
    apply(warehouse.pipeline())
    assert warehouse.tuples(f"SELECT * FROM {views}.v_changes") == [], "there without history, and empty"
    place = Place(warehouse, service, deletes="keep")
    first = place.run()
    slug, record = first_record(service)
    service.edit_row(slug, record, {"a": "many", "name": "n0"})
    service.delete_row(slug, list(service.record_slugs(slug))[1])
    [added] = service.append_rows(slug, [{"a": 9, "name": "nine"}])
    second = place.run()
    apply(warehouse.pipeline())

    for ran, expected in ((first, {0, 1, 2, 7}), (second, {2, 7, 9, None})):
        moment = ran.started_at.isoformat()
        assert {a for (a,) in warehouse.tuples(f"SELECT a FROM {views}.customers_as_of('{moment}')")} == expected
    found = changes(warehouse.pipeline(), second.started_at)
    shown = {(each.record, each.field, each.old, each.new, each.change) for each in found}
    assert {(record, "a", 0, "many", "update"), (added, None, None, None, "insert")} <= shown
    assert [each.change for each in found if each.field is None].count("delete") == 1
    of_field = changes(warehouse.pipeline(), first.started_at, "Customers", "name")
    assert len(of_field) == 4 + 1 + 1
    everything = changes(warehouse.pipeline(), first.started_at)
    in_sql = warehouse.tuples(
        f"SELECT record_slug, import_slug, template, field, old_value, new_value, change FROM {views}.v_changes"
    )
    assert sorted(map(str, in_sql)) == sorted(
        str((e.record, e.import_slug, e.template, e.field, *map(as_text, (e.old, e.new)), e.change)) for e in everything
    )
    newest = f"changed_at = '{second.started_at.isoformat()}' AND run_id = '{second.run_id}' AND import_slug = '{slug}'"
    assert set(warehouse.tuples(f"SELECT uploader FROM {views}.v_changes WHERE {newest}")) == {("ann",)}
    with pytest.raises(ConfigError, match="did you mean name"):
        changes(warehouse.pipeline(), first.started_at, None, "nam")


def test_changes_of_a_name_are_those_of_each_template_that_has_it(duck: DuckDB, service: Service) -> None:
    other = service.add_import("Orders", [{"b": 1}])
    place = Place(duck, service)
    first = place.run()
    [slug] = {row["template"]["slug"] for row in service.imports() if row["slug"] == other}
    service.rename_template(slug, "Customers")
    place.run()

    found = changes(duck.pipeline(), first.started_at, "Customers")
    assert len(found) == 3 + 1 + 1
    assert [each.import_slug for each in changes(duck.pipeline(), first.started_at, slug)] == [other]


@pytest.mark.dialect
def test_no_field_ends_the_text_of_a_function(warehouse: Warehouse) -> None:
    names = ["$as_of$", "$$", "a$as_of$; SELECT $as_of$", "'; --", "$1", "%s"]
    service = Service(1)
    service.add_import("Customers", [{name: n for n, name in enumerate(names)}])
    ran = Place(warehouse, service).warehouse.run(service, history=True)

    assert not apply(warehouse.pipeline()).blocked
    shown = warehouse.tuples(f"SELECT * FROM {warehouse.dataset}_views.customers_as_of('{ran.started_at.isoformat()}')")
    assert set(range(len(names))) <= set(shown[0])


@pytest.mark.dialect
def test_a_function_that_somebody_has_or_reads_is_not_touched(warehouse: Warehouse, service: Service) -> None:
    place = Place(warehouse, service)
    place.run()
    views = f"{warehouse.dataset}_views"
    body = "(m) AS TABLE SELECT 42 AS mine"
    if not isinstance(warehouse, DuckDB):
        body = "(m timestamptz) RETURNS TABLE (mine int) LANGUAGE sql AS 'SELECT 42'"
    made = "MACRO" if isinstance(warehouse, DuckDB) else "FUNCTION"
    execute(warehouse, f"CREATE SCHEMA {views}", f"CREATE {made} {views}.customers_as_of{body}")

    applied = apply(warehouse.pipeline())

    assert set(applied.blocked) == {"customers_as_of"}
    assert "customers" in applied.made
    assert warehouse.tuples(f"SELECT mine FROM {views}.customers_as_of(now())") == [(42,)]
    assert "customers_as_of already exists" in str(keep_current(warehouse.pipeline(), loaded=False))

    execute(warehouse, f"DROP {made} {'TABLE ' * isinstance(warehouse, DuckDB)}{views}.customers_as_of")
    assert keep_current(warehouse.pipeline(), loaded=False) is None
    if isinstance(warehouse, DuckDB):
        return
    execute(warehouse, f"CREATE VIEW theirs AS SELECT a FROM {views}.customers_as_of(now())")
    assert not apply(warehouse.pipeline()).blocked, "what stays as it is stands in nobody's way"
    service.add_import("Customers", [{"late": 1}])
    place.run()
    applied = apply(warehouse.pipeline())
    assert set(applied.blocked) == {"customers_as_of"}
    assert f"{warehouse.dataset}.theirs depends on it" in applied.blocked["customers_as_of"]
    assert "customers" in applied.replaced
    assert "theirs depends on it" in str(keep_current(warehouse.pipeline(), loaded=False)), "each run says it again"


@pytest.mark.dialect
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_column_of_the_users_own_makes_no_version(before: bool, warehouse: Warehouse, service: Service) -> None:
    """Whether it is added before versions are kept or after; reading an import again empties it in the table."""
    place = Place(warehouse, service)
    add = [f"ALTER TABLE {table} ADD COLUMN seen text" for table in ("records_customers", "imports")]
    note = [f"UPDATE {table} SET seen = 'by hand'" for table in ("records_customers", "imports")]
    if before:
        warehouse.run(service)
        execute(warehouse, *add, *note)
    place.run()
    if not before:
        execute(warehouse, *add, *note)
    kept = place.versions(), warehouse.tuples("SELECT count(*) FROM imports_history")
    for _ in range(2):
        place.run(RunScope("backfill", force=True))
        assert (place.versions(), warehouse.tuples("SELECT count(*) FROM imports_history")) == kept
        execute(warehouse, *note)
        assert place.run().load_ids == []
    slug, record = first_record(service)
    service.edit_row(slug, record, {"a": 40, "name": "n0", "more": 1})
    place.run()
    assert len(place.versions()) == len(kept[0]) + 1
    with serve(service) as url:
        settings = Settings.load(base_url=url, access_token=service.token, history=True)
        assert verify(warehouse.pipeline(), settings, deep=True).differences == []
        with pytest.raises(ConfigError, match="columns that are not the connector's"):
            rebuild(warehouse.pipeline(), settings)
        execute(warehouse, "ALTER TABLE records_customers DROP COLUMN seen")
        rebuild(warehouse.pipeline(), settings)
    place.run(RunScope("backfill", force=True))
    assert len(place.versions()) == len(kept[0]) + 1


@pytest.mark.dialect
def test_dropped_views_leave_no_function_behind(warehouse: Warehouse, service: Service) -> None:
    place = Place(warehouse, service)
    place.run()
    views = f"{warehouse.dataset}_views"
    assert not apply(warehouse.pipeline()).blocked
    [(shown,)] = warehouse.tuples(f"SELECT count(*) FROM {views}.customers_as_of(now())")
    assert shown

    assert {"customers", "customers_as_of"} <= set(drop(warehouse.pipeline()).dropped)
    with pytest.raises(Exception, match="customers_as_of"):
        warehouse.tuples(f"SELECT * FROM {views}.customers_as_of(now())")
    assert drop(warehouse.pipeline()).dropped == ()

    assert not apply(warehouse.pipeline()).blocked
    assert warehouse.tuples(f"SELECT count(*) FROM {views}.customers_as_of(now())") == [(shown,)]
    if not isinstance(warehouse, DuckDB):
        execute(warehouse, f"CREATE VIEW theirs AS SELECT a FROM {views}.customers_as_of(now())")
        with pytest.raises(ConnectorError, match="customers_as_of cannot be dropped, because something of yours"):
            drop(warehouse.pipeline())
        assert warehouse.tuples(f"SELECT count(*) FROM {views}.customers") == [(shown,)], "nothing was changed"


@pytest.mark.parametrize("deletes", ["keep", "mirror"])
@pytest.mark.parametrize("pauses", [False, True], ids=["", "while it is off"])
def test_versions_end_of_an_import_that_only_they_are_left_of(
    duck: DuckDB, service: Service, deletes: str, pauses: bool
) -> None:
    """A run died after it had removed the rows, and then somebody dropped the ledger."""
    place = Place(duck, service, deletes=deletes)
    place.run()
    gone = service.slugs()[1]
    service.delete_import(gone)
    for table, key in (("records_customers", "_import_slug"), ("records", "import_slug"), ("imports", "slug")):
        execute(duck, f"DELETE FROM {table} WHERE {key} = '{gone}'")
    execute(duck, "DROP TABLE sync_imports")
    if pauses:
        assert duck.run(service, deletes=deletes).status is Status.succeeded
    place.run()
    kept = [(7, "seven", "insert", False), (7, "seven", "delete", False)]
    assert place.versions("a = 7") == (kept if deletes == "keep" else [])


def test_versions_that_a_hand_changed_are_found(duck: DuckDB, service: Service) -> None:
    place = Place(duck, service)
    place.run()
    execute(duck, f"UPDATE {H} SET a = 99 WHERE a = 1", f"DELETE FROM {H} WHERE a = 2")
    with serve(service) as url:
        settings = Settings.load(base_url=url, access_token=service.token, history=True)
        found = verify(duck.pipeline(), settings, deep=True).differences
    assert [(str(each.kind), each.table) for each in found] == [("history_differs", H)]
    assert found[0].sentence.startswith("3 rows of")


@pytest.mark.dialect
@pytest.mark.parametrize("pauses", [False, True], ids=["", "while it is off"])
def test_open_versions_get_a_column_back_that_a_hand_dropped(
    recording: Warehouse, service: Service, pauses: bool
) -> None:
    place = Place(recording, service)
    place.run()
    execute(recording, f"ALTER TABLE {H} DROP COLUMN name")
    if pauses:
        assert recording.run(service).status is Status.succeeded
    service.add_import("Customers", [{"a": 8, "name": "eight"}])

    place.run()

    assert place.versions() == [(n, f"n{n}", "insert", True) for n in range(3)] + [
        (7, "seven", "insert", True),
        (8, "eight", "insert", True),
    ]


def test_tables_that_only_look_like_versions_are_left_alone(duck: DuckDB, service: Service) -> None:
    duck.run(service)
    execute(duck, f"CREATE TABLE {H} AS SELECT 1 AS mine")
    service.add_import("Customers history", [{"x": 1}])
    ran = duck.run(service, history=True)
    assert ran.status is Status.succeeded
    assert duck.tuples(f"SELECT mine FROM {H}") == [(1,)]
    assert duck.tuples(f"SELECT count(*) FROM {H}_2") == [(4,)]
    check_whole(duck, service)


@pytest.mark.parametrize("history", [True, False])
def test_versions_are_not_mixed_with_the_rows_of_a_template_whose_table_would_have_their_name(
    history: bool, duck: DuckDB, service: Service
) -> None:
    """While its imports have no rows, its table is only named in the ledger, and the name is free for versions."""
    other = service.add_import("Customers history", [])
    assert duck.run(service, history=True).status is Status.succeeded
    versions = duck.tuples(f"SELECT * FROM {H} ORDER BY 1")
    assert versions
    service.append_rows(other, [{"a": 9}])

    assert duck.run(service, history=history).status is Status.succeeded

    assert duck.tuples(f"SELECT * FROM {H} ORDER BY 1") == versions
    [(table,)] = duck.tuples(f"SELECT table_name FROM sync_imports WHERE slug = '{other}'")
    assert duck.tuples(f"SELECT a FROM {table}") == [(9,)]
    assert duck.run(service, history=True).status is Status.succeeded
    assert duck.tuples(f"SELECT * FROM {H} ORDER BY 1") == versions
    check_whole(duck, service)


def test_versions_follow_each_other_though_a_clock_was_ahead(duck: DuckDB, service: Service) -> None:
    place = Place(duck, service)
    slug, record = first_record(service)

    def the_last_run_was_ahead_by(interval: str) -> datetime:
        [(latest,)] = duck.tuples("SELECT max(started_at) FROM sync_runs")
        assert isinstance(latest, datetime)
        for table, column in (("sync_runs", "started_at"), (H, "_valid_from"), ("imports_history", "_valid_from")):
            moved = f"{column} = {column} + INTERVAL {interval}"
            execute(duck, f"UPDATE {table} SET {moved} WHERE {column} = '{latest.isoformat()}'")
        [(ahead,)] = duck.tuples("SELECT max(started_at) FROM sync_runs")
        assert isinstance(ahead, datetime)
        return ahead

    place.run()
    ahead = the_last_run_was_ahead_by("2 MINUTE")
    service.edit_row(slug, record, {"a": 40})
    ran = duck.run(service, history=True)
    assert (ran.started_at > ahead, ran.status) == (True, Status.succeeded)
    assert ran.finished_at is not None
    assert ran.finished_at >= ran.started_at, "though this clock is behind"
    the_last_run_was_ahead_by("3 DAY")
    service.edit_row(slug, record, {"a": 41})
    ran = duck.run(service, history=True)
    assert ran.status is Status.partial
    assert "which is in the future by the clock of this one" in ran.problems[0]
    assert duck.tuples("SELECT a FROM records_customers WHERE _record_slug = %s", record) == [(41,)]
    assert duck.tuples(f"SELECT count(*) FROM {H} WHERE _valid_to < _valid_from") == [(0,)]
    service.edit_row(slug, record, {"a": 42})
    assert duck.run(service, history=False).status is Status.succeeded, "it records nothing"

    execute(duck, "UPDATE sync_runs SET started_at = started_at - INTERVAL 3 DAY")
    for table in (H, "imports_history"):
        for bound in ("_valid_from", "_valid_to"):
            execute(duck, f"UPDATE {table} SET {bound} = {bound} - INTERVAL 3 DAY WHERE {bound} > now()")
    place.run()
    versions = duck.tuples(f"SELECT a FROM {H} WHERE _record_slug = '{record}' ORDER BY _valid_from")
    assert versions == [(0,), (40,), (42,)]


@pytest.mark.parametrize("whole", [True, False], ids=["an import", "a record"])
def test_versions_of_what_dlt_alone_erased_go_with_the_next_run_though_history_is_off(
    whole: bool, duck: DuckDB, service: Service
) -> None:
    """dlt alone erases no version, and the run after it has nothing to load."""
    assert duck.run(service, history=True).status is Status.succeeded
    assert duck.run(service, history=False).status is Status.succeeded
    slug, record = first_record(service)
    if whole:
        service.delete_import(slug)
    else:
        service.delete_row(slug, record)
    for _ in range(2):
        duck.run_dlt(service, history=False, mass_delete_limit=1)

    ran = duck.run(service, history=False)

    assert ran.status is Status.succeeded
    assert not ran.load_ids
    assert duck.tuples(f"SELECT 1 FROM {H} WHERE _record_slug = '{record}'") == []
    if whole:
        assert duck.tuples(f"SELECT 1 FROM imports_history WHERE slug = '{slug}'") == []


@pytest.mark.dialect
def test_versions_of_wide_tables_are_kept_in_sqlite(tmp_path: Path) -> None:
    """SQLite takes no condition with a thousand parts in a row."""
    warehouse, service = SQLite(tmp_path), Service(1)
    wide = {f"c{n}": n for n in range(600)}
    slug = service.add_import("Customers", [{**wide, "a": 1}, {"a": 2}], wide)
    gone = service.add_import("Customers", [{"a": 3}], {**wide, "a": 3})
    settings: dict[str, Any] = {"history": True, "mass_delete_limit": 1}
    rules = {"*": {"c1": "drop"}, "metadata": {"c1": "drop"}}
    assert warehouse.run(service, **settings).error is None
    service.edit_row(slug, list(service.record_slugs(slug))[1], {"a": 4})
    assert warehouse.run(service, **settings).error is None
    service.delete_import(gone)
    assert warehouse.run(service, **settings, privacy=rules).error is None

    with serve(service) as url:
        loaded = Settings.load(base_url=url, access_token=service.token, **settings, privacy=rules)
        assert verify(warehouse.pipeline(), loaded, deep=True).differences == []
    versions = warehouse.tuples(f"SELECT a, c0, c1 FROM {H} ORDER BY 1")
    assert versions == [(1, 0, None), (2, None, None), (4, None, None)]
    assert warehouse.tuples("SELECT DISTINCT metadata__c0, metadata__c1 FROM imports_history") == [(0, None)]
