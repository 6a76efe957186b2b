"""The views: what they show, what they are called, and that they stay in step with tables that change."""

from __future__ import annotations

import json
from typing import Any

import pytest

from connector.errors import ConfigError, ConnectorError
from connector.maintain.rebuild import rebuild
from connector.reporting.views import select, standing
from connector.reporting.views.applying import drop, keep_current
from connector.sandbox.catalogue import Template
from connector.settings import Settings
from tests.reporting.views.conftest import Place
from tests.types.hostile import KEYS
from tests.types.test_identifiers import NAMES

pytestmark = pytest.mark.thorough

GENERATED = ["v_changes", "v_field_distinct", "v_field_nulls", "v_misfits"]
FIXED = sorted([*GENERATED, "v_fields", "v_freshness", "v_imports", "v_runs", "v_uploads_per_day"])


def columns_of(place: Place, view: str) -> list[str]:
    sql = (
        "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s "
        "ORDER BY ordinal_position"
    )
    return [name for (name,) in place.warehouse.tuples(sql, place.views_schema, view)]


def test_every_file_says_what_it_answers_and_what_a_row_is() -> None:
    statements = standing()
    assert {s.name for s in statements if s.kind == "view"} == set(FIXED) - set(GENERATED)
    assert len([s for s in statements if s.kind == "check"]) >= 7
    for statement in statements:
        assert statement.summary.endswith("."), statement.name
        assert statement.grain.startswith("one row per "), statement.name
        for dialect in ("duckdb", "postgres"):
            assert '"a ""b"""' in select(statement, dialect, 'a "b"')


@pytest.mark.dialect
def test_a_clean_view_has_the_names_people_wrote_and_live_rows_only(place: Place) -> None:
    rows: list[dict[str, Any]] = [
        {"First name": "Ana", "E-mail ": "a@x", "n": 1, "mixed": 1, "Total": 1, "total": "x", "a": {"b": [1]}},
        {"First name": "Bo", "E-mail ": None, "n": 2, "mixed": 2, "Total": 2, "total": "y"},
        {"First name": "Cy", "E-mail ": "c@x", "n": 3, "mixed": 3, "Total": 3, "total": "z"},
    ]
    slug = place.service.add_import("customers", rows)
    assert place.sync() == "succeeded"
    gone = place.service.add_import("customers", [{"First name": "Dee", "n": 2.5, "mixed": "four"}])
    assert place.sync() == "succeeded"
    place.apply()
    assert columns_of(place, "customers")[-6:] == [
        "_record_slug",
        "_import_slug",
        "_sort",
        "_created_at",
        "_updated_at",
        "_dlt_load_id",
    ]
    own = columns_of(place, "customers")[:-6]
    assert {name.casefold() for name in own} >= {"first name", "e-mail", "n", "mixed", "total", "a.b"}
    assert len({name.casefold() for name in own}) == len(own) == 9
    assert any(name.casefold().startswith("total #") for name in own)
    found = place.ask(
        'SELECT "First name", "E-mail", n, n__misfit, mixed, mixed__misfit FROM customers ORDER BY "First name"'
    )
    assert [(row["n"], row["n__misfit"]) for row in found] == [(1, None), (2, None), (3, None), (None, "2.5")]
    assert [(row["mixed"], row["mixed__misfit"]) for row in found] == [(1, None), (2, None), (3, None), (None, "four")]
    assert found[0]["E-mail"] == "a@x"

    place.service.delete_import(gone)
    assert place.sync(deletes="keep") == "succeeded"
    assert place.tuples("SELECT count(*) FROM customers") == [(3,)]
    assert place.tuples("SELECT count(*) FROM records_customers") == [(4,)]
    assert place.tuples("SELECT DISTINCT _import_slug FROM customers") == [(slug,)]


@pytest.mark.long
def test_hostile_names_of_templates_and_fields(place: Place) -> None:
    templates = [Template(name, f"slug-{n}") for n, name in enumerate(NAMES)]
    templates += [Template("Twin", "twin-1"), Template("twin", "twin-2"), Template("v runs", "v"), Template("", "e")]
    for n, template in enumerate(templates):
        place.service.add_import(template, [{"n": n, "": "x", "created_at": 5, "upload day": "x"}])
    keys = KEYS[: len(KEYS) // 2] if place.is_duckdb else KEYS
    for start in range(0, len(keys), 40):  # a row of PostgreSQL has 8 kB
        place.service.add_import(None, [dict.fromkeys(keys[start : start + 40], n) for n in (1, None)])
    place.service.add_import("deep", [{"x" * 300: {"y" * 300: {"'z": 1}}}, {"x" * 300: {"y" * 300: {"'z": "%s"}}}])
    assert place.sync() == "succeeded"
    applied = place.apply()
    tables = place.warehouse.tables("")
    views = place.views()
    assert sorted(views) == sorted(applied.made)
    assert len({view.casefold() for view in views}) == len(views) == len(templates) + 2 + len(FIXED)
    assert not {view.casefold() for view in views} & {table.casefold() for table in tables}
    assert "v_runs_rows" in views
    for view in views:
        quoted = view.replace('"', '""')
        assert place.ask(f'SELECT * FROM "{quoted}"') or view in ("v_changes", "v_field_distinct", "v_misfits")
        names = columns_of(place, view)
        assert all(0 < len(name.encode()) <= 63 and name.strip() == name for name in names)
        assert len({name.casefold() for name in names}) == len(names)
    assert "🎉" in columns_of(place, "untemplated")
    [count] = place.tuples("SELECT count(*) FROM sync_fields WHERE table_name = 'records_untemplated'")
    misfits = [name for name in columns_of(place, "untemplated") if name.endswith("__misfit")]
    assert len(columns_of(place, "untemplated")) == count[0] + 6 + len(misfits)
    nulls = place.ask("SELECT DISTINCT null_share, row_count FROM v_field_nulls WHERE field = '🎉'")
    assert nulls[0]["null_share"] > 0.5
    assert place.apply().kept == applied.made


def test_a_column_keeps_its_type_whatever_one_cell_holds(place: Place) -> None:
    """Each value of a field is in the view's column or in the one of its misfits, and then it is in v_misfits."""
    fits = {"Salary": 5, "share": 0.5, "ok": True, "name": "x", "n": 1, "list": [1]}
    slug = place.service.add_import("staff", [fits, {"Salary": 7}])
    assert place.sync() == "succeeded"
    place.apply()
    kinds = {name: type(value) for name, value in place.ask("SELECT * FROM staff WHERE _sort = 0")[0].items()}
    columns = columns_of(place, "staff")
    assert place.ask("SELECT * FROM v_misfits") == []
    assert not [name for name in columns if name.endswith("__misfit")]

    odd = {"Salary": "n/a", "share": "half", "ok": [1], "name": 7, "n": 2.5, "list": "x"}
    other = place.service.add_import("staff", [odd, {"n": "2.5", "Salary": {}}, {"Salary": 10**20, "n": 2.0}])
    assert place.sync() == "succeeded"
    applied = place.apply()
    assert {"staff", "v_misfits"} <= set(applied.replaced)
    assert set(columns_of(place, "staff")) - set(columns) == {
        f"{name}__misfit" for name in ("Salary", "share", "ok", "n")
    }
    row = place.ask(f"SELECT * FROM staff WHERE _import_slug = '{slug}' AND _sort = 0")[0]
    assert {name: type(row[name]) for name in kinds} == kinds
    assert float(place.tuples('SELECT avg("Salary") FROM staff')[0][0]) == 6
    expected = {
        (0, "Salary", "n/a"),
        (0, "share", "half"),
        (0, "ok", "[1]"),
        (0, "n", "2.5"),
        (1, "n", "2.5"),
        (1, "Salary", "{}"),
        (2, "Salary", "1" + "0" * 20),
        (2, "n", "2.0"),
    }
    misfits = place.ask("SELECT * FROM v_misfits")
    assert list(misfits[0]) == ["template", "field", "value", "import_slug", "record_slug", "sort"]
    assert {(row["sort"], row["field"], row["value"]) for row in misfits} == expected
    assert len(misfits) == len(expected)
    assert {(row["template"], row["import_slug"]) for row in misfits} == {("staff", other)}
    for sort, field, value in expected:
        found = place.tuples(
            f'SELECT "{field}", "{field}__misfit" FROM staff WHERE _import_slug = \'{other}\' AND _sort = {sort}'
        )
        assert found == [(None, value)], field
    place.service.delete_import(other)
    assert place.sync(deletes="keep") == "succeeded"
    assert place.ask("SELECT * FROM v_misfits") == [], "live rows only"


def test_a_field_called_as_a_column_of_misfits_is(duck_place: Place) -> None:
    place = duck_place
    place.service.add_import("t", [{"a": 1, "b__misfit": 1, "x" * 60: 1}])
    place.sync()
    place.service.add_import("t", [{"a": "?", "a__misfit": "mine", "b": 1, "x" * 60: "?"}])
    place.sync()
    place.service.add_import("t", [{"b": "?"}])
    place.sync()
    place.apply()
    names = columns_of(place, "t")[:-6]
    misfits = [name for name in names if name.endswith("__misfit")]
    assert {"a", "a__misfit", "b", "b__misfit"} < set(names)
    assert len(names) == 8
    assert len(misfits) == 4
    [marked] = [name for name in names if name.startswith("a__misfit #")]
    [long] = [name for name in misfits if name.startswith("xxx")]
    [other] = set(misfits) - {"a__misfit", "b__misfit", long}
    found = place.ask(f'SELECT a, a__misfit, "{marked}" AS own, b__misfit, "{other}" AS q, "{long}" AS x FROM t')
    assert {row["a__misfit"] for row in found} == {None, "?"}
    assert {row["own"] for row in found} == {None, "mine"}
    assert {row["b__misfit"] for row in found} == {None, 1}
    assert {row["q"] for row in found} == {None, "?"}
    assert {row["x"] for row in found} == {None, "?"}


def test_field_names_stay_when_twins_come_later(duck_place: Place) -> None:
    place = duck_place
    place.service.add_import("t", [{"Total": 1, "x" * 100: 1}])
    place.sync()
    place.apply()
    before = columns_of(place, "t")[:-6]
    assert "Total" in before
    place.service.add_import("t", [{"ToTal": 0, "TOTAL": 1, "total": 2, "total ": 3, "x" * 101: 1}])
    place.sync()
    assert place.apply().replaced == ("v_field_distinct", "v_field_nulls", "t")
    after = columns_of(place, "t")[:-6]
    assert set(before) < set(after)
    assert len([name for name in after if name.casefold().startswith("total #")]) == 4
    assert len([name for name in after if name.startswith("xxx") and " #" in name]) == 2


def test_new_columns_break_nothing_and_show_after_the_next_apply(place: Place) -> None:
    place.service.add_import("t", [{"a": 1}])
    place.sync()
    first = place.apply()
    assert set(first.made) == {*FIXED, "t"}
    place.service.add_import("t", [{"a": 2, "b": "new"}])
    assert place.sync() == "succeeded"
    assert place.tuples("SELECT a FROM t ORDER BY 1") == [(1,), (2,)]
    second = place.apply()
    assert (second.made, set(second.replaced)) == ((), {"t", "v_field_nulls", "v_field_distinct"})
    assert place.tuples("SELECT a, b FROM t ORDER BY 1") == [(1, None), (2, "new")]
    third = place.apply()
    assert (third.made, third.replaced, third.dropped, len(third.kept)) == ((), (), (), 10)


def test_views_that_no_longer_apply_go_and_those_of_others_stay(place: Place) -> None:
    place.service.add_import("t", [{"a": 1}])
    place.service.add_import("u", [{"a": 1}])
    place.sync()
    place.apply()
    place.execute(f"CREATE VIEW {place.views_schema}.own AS SELECT 1 AS x")
    place.execute(f"CREATE TABLE {place.views_schema}.w (x int)")
    place.service.add_import("w", [{"a": 1}])
    place.sync()
    place.execute(f"DROP VIEW {place.views_schema}.u")
    place.execute("DROP TABLE records_u CASCADE" if not place.is_duckdb else "DROP TABLE records_u")
    if place.is_duckdb:
        place.execute(f"CREATE VIEW {place.views_schema}.u AS SELECT 2 AS x")
        place.execute(f"COMMENT ON VIEW {place.views_schema}.u IS 'importer-sync 000: once ours'")
    applied = place.apply()
    assert applied.dropped == (("u",) if place.is_duckdb else ())
    assert {"own", "t", "w", "w_rows"} <= set(place.views())
    assert place.tuples("SELECT a FROM w_rows") == [(1,)]
    assert set(drop(place.warehouse.pipeline()).dropped) == {*FIXED, "t", "w_rows"}
    assert place.views() == ["own", "w"]


@pytest.mark.dialect
def test_a_foreign_view_of_a_standing_name_is_not_touched(place: Place) -> None:
    place.service.add_import("t", [{"a": 1}])
    place.sync()
    place.execute(f"CREATE SCHEMA {place.views_schema}")
    place.execute(f"CREATE VIEW {place.views_schema}.v_runs AS SELECT 1 AS mine")
    applied = place.apply()
    assert set(applied.blocked) == {"v_runs"}
    assert "_views.v_runs already exists" in applied.blocked["v_runs"]
    assert "t" in applied.made, "one that cannot be made keeps no other from it"
    assert place.tuples(f"SELECT mine FROM {place.views_schema}.v_runs") == [(1,)]
    assert "_views.v_runs already exists" in str(keep_current(place.warehouse.pipeline(), loaded=False)), (
        "a run that loads nothing says it again"
    )

    place.execute(f"DROP VIEW {place.views_schema}.v_runs")
    assert place.apply().made == ("v_runs",)
    assert keep_current(place.warehouse.pipeline(), loaded=False) is None


def test_missing_tables_leave_out_what_reads_them(place: Place) -> None:
    place.service.add_import("t", [{"a": 1}])
    assert place.sync(typed=False) == "succeeded"
    place.execute("DROP TABLE sync_runs")
    applied = place.apply()
    assert set(applied.left_out) == {"v_freshness", "v_runs"}
    assert "sync_runs" in applied.left_out["v_runs"]
    assert set(place.views()) == {"v_changes", "v_fields", "v_imports", "v_misfits", "v_uploads_per_day"}
    assert [each.name for each in place.check().values() if each.offending] == []


def test_an_empty_text_is_no_misfit_and_one_of_blanks_is(duck_place: Place) -> None:
    place, hints = duck_place, {"records_t": {"day": "date"}}
    place.service.add_import("t", [{"n": 1, "d": 1.5, "b": True, "day": "2026-01-01", "text": "a"}] * 9)
    assert place.sync(hints=hints) == "succeeded"
    place.service.add_import("t", [dict.fromkeys(("n", "d", "b", "day", "text"), text) for text in ("", " ")])
    assert place.sync(hints=hints) == "succeeded"
    place.apply()
    misfits = place.tuples("SELECT field, value FROM v_misfits ORDER BY 1")
    assert misfits == [(field, " ") for field in ("b", "d", "day", "n")]
    assert place.tuples("SELECT path, null_count FROM sync_fields WHERE table_name = 'records_t' ORDER BY 1") == [
        *((field, 1) for field in ("b", "d", "day", "n")),
        ("text", 0),
    ]
    assert place.tuples("""SELECT count(*) FROM records WHERE data LIKE '%"n":""%'""") == [(1,)]


def test_no_warehouse_yet(duck_place: Place) -> None:
    for act in (duck_place.apply, duck_place.check, lambda: duck_place.ask("SELECT 1")):
        with pytest.raises(ConfigError, match=r"There is no warehouse at .*create it with `importer-sync run`"):
            act()


def test_grants_outlive_a_change_and_a_dependent_stops_that_view_alone(postgres_place: Place) -> None:
    place = postgres_place
    role = f"analyst_{place.warehouse.dataset}"
    place.service.add_import("t", [{"a": 1}])
    place.sync()
    place.apply()
    place.execute(f"CREATE ROLE {role}")
    place.execute(f"GRANT SELECT ON {place.views_schema}.t TO {role} WITH GRANT OPTION")
    place.execute(f"GRANT SELECT ON {place.views_schema}.t TO PUBLIC")
    granted = (
        "SELECT grantee, is_grantable FROM information_schema.role_table_grants WHERE table_name = 't' "
        f"AND table_schema = '{place.views_schema}' AND grantee IN ('PUBLIC', '{role}') ORDER BY 1"
    )
    before = place.tuples(granted)
    assert len(before) == 2
    place.service.add_import("t", [{"b": 1}])
    place.sync()
    assert "t" in place.apply().replaced
    assert place.tuples(granted) == before

    place.execute(f"CREATE VIEW theirs AS SELECT a FROM {place.views_schema}.t")
    place.service.add_import("t", [{"c": 1}])
    place.service.add_import("u", [{"c": 1}])
    assert place.sync() == "succeeded"
    applied = place.apply()
    assert set(applied.blocked) == {"t"}
    assert f"{place.warehouse.dataset}.theirs depends on it" in applied.blocked["t"]
    assert "u" in applied.made
    assert "c" not in columns_of(place, "t")
    assert "theirs depends on it" in str(keep_current(place.warehouse.pipeline(), loaded=False)), (
        "a run that loads nothing says it again"
    )
    with pytest.raises(ConnectorError, match="nothing was changed"):
        drop(place.warehouse.pipeline())
    place.execute(f"DROP VIEW theirs; REVOKE ALL ON {place.views_schema}.t FROM {role}")
    assert keep_current(place.warehouse.pipeline(), loaded=False) is None, "it is made once it can be"
    assert "c" in columns_of(place, "t")
    assert "t" in place.apply().kept

    privileges = f"ALTER DEFAULT PRIVILEGES IN SCHEMA {place.views_schema}"
    place.execute(
        f"{privileges} GRANT SELECT ON TABLES TO {role}; GRANT USAGE ON SCHEMA {place.views_schema} TO {role}"
    )
    drop(place.warehouse.pipeline())
    place.apply()
    assert place.tuples(f"SELECT has_table_privilege('{role}', '{place.views_schema}.t', 'SELECT')") == [(True,)]
    assert place.tuples(f"SELECT has_schema_privilege('{role}', '{place.views_schema}', 'USAGE')") == [(True,)]
    place.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.dialect
def test_a_rebuild_brings_the_views_along(place: Place) -> None:
    place.service.add_import("orders", [{"n": "a few"}])
    place.sync()
    place.service.add_import("orders", [{"n": n} for n in range(20)])
    place.sync()
    place.apply()
    before = place.views()
    assert place.tuples("SELECT n FROM orders WHERE n = 'a few'") == [("a few",)]
    settings = Settings.load(base_url="http://127.0.0.1:9", access_token="x")
    if not place.is_duckdb:
        place.execute(f"GRANT SELECT ON {place.views_schema}.orders TO PUBLIC")
    [table] = rebuild(place.warehouse.pipeline(), settings)
    assert table.retyped == (("n", "text", "bigint"),)
    assert place.views() == before
    assert place.tuples("SELECT n FROM orders WHERE n = 7") == [(7,)]
    assert place.tuples("SELECT field, value FROM v_misfits") == [("n", "a few")]
    if not place.is_duckdb:
        granted = f"SELECT has_table_privilege('public', '{place.views_schema}.orders', 'SELECT')"
        assert place.tuples(granted) == [(True,)]
    first = place.service.slugs()[0]
    place.service.edit_row(first, next(place.service.record_slugs(first)), {"n": 99})
    place.sync()
    rebuild(place.warehouse.pipeline(), settings)
    assert max(place.tuples("SELECT n FROM orders")) == (99,)
    assert {name: each.offending for name, each in place.check().items() if each.offending} == {}


@pytest.mark.parametrize("read", ["importer_data.records_orders", "importer_data_views.orders"])
def test_a_rebuild_refuses_where_a_view_of_the_users_reads_the_table(postgres_place: Place, read: str) -> None:
    place = postgres_place
    place.service.add_import("orders", [{"n": 1}])
    place.sync()
    place.apply()
    schema = place.views_schema.removesuffix("_views")
    place.execute(f"CREATE VIEW public.theirs AS SELECT n FROM {read.replace('importer_data', schema)}")
    before = place.views()
    settings = Settings.load(base_url="http://127.0.0.1:9", access_token="x")
    with pytest.raises(ConfigError, match=r"views of yours do: public\.theirs\. Drop them"):
        rebuild(place.warehouse.pipeline(), settings)
    assert place.views() == before
    assert place.tuples("SELECT n FROM public.theirs") == [(1,)]
    place.execute("DROP VIEW public.theirs")


def test_uploaders_are_found_in_metadata_of_any_shape(place: Place) -> None:
    shapes: list[tuple[Any, str | None]] = [
        ({"uploader": "ana"}, "ana"),
        ({"user": {"id": 7, "email": "bo@x"}, "file_name": "b.xlsx"}, "bo@x"),
        ({"user": {"id": 7}}, "7"),
        ({"uploaded_by": "", "email": "cy@x"}, "cy@x"),
        ({"user_id": 12}, "12"),
        ({"user": "Bj\u00f6rn 🎉"}, "Bj\u00f6rn 🎉"),
        ({"user": None}, None),
        (None, None),
        ({}, None),
        ({"user": "dee", "nul": "\x00"}, "dee or none"),
        ({"user": "dee", "lone": "\ud800"}, "dee or none"),
        ({"'": '"', "user": "%s"}, "%s"),
    ]
    slugs = [place.service.add_import("t", [{"n": 1}]) for _ in shapes]
    for slug, (metadata, _) in zip(slugs, shapes, strict=True):
        place.service.set_metadata(slug, metadata)
    assert place.sync() == "succeeded"
    place.apply()
    found = {row["import_slug"]: row for row in place.ask("SELECT * FROM v_imports")}
    for slug, (metadata, uploader) in zip(slugs, shapes, strict=True):
        allowed = ("dee", None) if uploader == "dee or none" else (uploader,)
        assert found[slug]["uploader"] in allowed, metadata
        assert found[slug]["metadata"] is None or json.loads(found[slug]["metadata"]) is not None
    assert found[slugs[1]]["file_name"] == "b.xlsx"
    deep = f'{{"user": {"[" * 20_000}{"]" * 20_000}}}'  # PostgreSQL cannot read it as JSON
    place.execute(f"UPDATE {place.views_schema.removesuffix('_views')}.imports SET metadata = '{deep}'")
    assert {row["uploader"] for row in place.ask("SELECT * FROM v_imports")} == {None}
