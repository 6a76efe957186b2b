"""The commands as a person starts them: what they print, their exit codes, and that a query only reads."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from connector.cli import main
from connector.cli.commands.sql import EXAMPLES
from connector.errors import ConfigError, ConnectorError, LockedError
from connector.reporting.views import query
from connector.reporting.views.query import check_reads
from connector.reporting.views.sources import as_yaml, sources
from connector.warehouse.lock import sole_writer
from tests.reporting.views.conftest import Place
from tests.types.conftest import DuckDB, PostgreSQL
from tests.types.hostile import KEYS

pytestmark = pytest.mark.thorough

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command on the warehouse of `place`, in this process."""
    monkeypatch.setattr(main, "prepare_environment", lambda **_: None)
    warehouse = place.warehouse
    uri = f"duckdb://{warehouse.file}" if isinstance(warehouse, DuckDB) else ""
    if isinstance(warehouse, PostgreSQL):
        uri = warehouse.uri

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main.invoke([*arguments, "--to", uri, "--dataset", warehouse.dataset])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def fill(place: Place) -> None:
    place.service.add_import(
        "customers", [{"name": "Ana", "n": 1}, {"name": '=Bo, "x"\n', "n": 2.5}, {"name": None, "n": 3}]
    )
    assert place.sync() == "succeeded"


@pytest.mark.dialect
def test_apply_list_check(place: Place, run: Run) -> None:
    fill(place)
    code, out, _ = run("sql", "apply")
    assert (code, out.count("made  ")) == (0, 10)
    assert f"made  {place.views_schema}.customers  Live rows of the template customers" in out
    code, out, _ = run("sql", "apply", "--json")
    assert (code, len(json.loads(out)["kept"])) == (0, 10)
    code, out, _ = run("sql", "list", "--json")
    kinds = {row["name"]: row["kind"] for row in json.loads(out)["statements"]}
    assert (code, kinds["customers"], kinds["v_imports"], kinds["stale_imports"]) == (0, "view", "view", "check")
    assert {"customers", "v_field_nulls"} <= {row[0] for row in place.tuples(LISTED.format(place.views_schema))}
    assert "Grain: one row per live record." in run("sql", "list")[1]

    code, out, _ = run("sql", "check", "failed_imports")
    assert (code, "1 check, no violating row." in out) == (0, True)
    place.execute("UPDATE sync_imports SET state = 'failed', error = 'cut off'")
    code, out, _ = run("sql", "check")
    assert code == 3
    assert re.search("FAIL  failed_imports +1 row", out)
    assert "cut off" in out
    code, out, _ = run("sql", "check", "--json")
    document = json.loads(out)
    found = {each["name"]: each for each in document["checks"]}
    assert (code, document["status"]) == (3, "offending")
    assert found["failed_imports"]["offending"] == 1
    assert found["failed_imports"]["examples"][0]["error"] == "cut off"
    code, _, err = run("sql", "check", "nothing")
    assert (code, "There is no check nothing" in err) == (2, True)
    code, out, _ = run("sql", "apply", "--drop")
    assert (code, out.count("dropped  ")) == (0, 10)
    assert place.views() == []

    place.execute(f"CREATE VIEW {place.views_schema}.v_runs AS SELECT 1 AS mine")
    code, out, err = run("sql", "apply")
    assert (code, out.count("made  ")) == (3, 9)
    assert f"blocked: {place.views_schema}.v_runs already exists and was not made by this command" in err


def test_status_tells_of_views_that_are_behind(place: Place, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(place)
    assert run("sql", "apply")[0] == 0
    assert json.loads(run("status", "--json")[1])["views_behind"] is False
    place.service.add_import("customers", [{"more": 1}])
    assert place.sync() == "succeeded"  # as where the disk is full when the views are to be made
    assert "→ The views for analysts are behind the tables; `importer-sync sql apply` updates them" in run("status")[1]
    monkeypatch.setenv("SOURCES__IMPORTER__VIEWS", "false")
    assert json.loads(run("status", "--json")[1])["views_behind"] is False


LISTED = "SELECT table_name FROM information_schema.tables WHERE table_schema = '{}'"


def test_query_prints_a_table_json_and_csv(place: Place, run: Run) -> None:
    fill(place)
    code, _, err = run("query", "SELECT name, n FROM customers ORDER BY n")
    assert (code, "`importer-sync sql apply` creates them" in err) == (1, True)
    run("sql", "apply")
    code, out, _ = run("query", "SELECT name, n FROM customers ORDER BY n")
    assert code == 0
    assert out.splitlines()[0] == "3 rows"
    assert out.splitlines()[1].split() == ["name", "n"]
    sql = "SELECT name, n, n AS n, CAST('NaN' AS DOUBLE PRECISION) AS nan, now() AS at FROM customers ORDER BY n"
    code, out, _ = run("query", sql, "--json", "--limit", "2")
    document = json.loads(out)
    assert (code, document["columns"], document["more"]) == (0, ["name", "n", "n_2", "nan", "at"], True)
    assert [(row["name"], row["n"], row["n_2"]) for row in document["rows"]] == [
        ("Ana", 1.0, 1.0),
        ('=Bo, "x"\n', 2.5, 2.5),
    ]
    assert (document["rows"][0]["nan"], document["rows"][0]["at"][-6:]) == ("nan", "+00:00")
    code, out, _ = run("query", "--csv", "SELECT name, n FROM customers ORDER BY n")
    assert list(csv.reader(io.StringIO(out))) == [["name", "n"], ["Ana", "1.0"], ['=Bo, "x"\n', "2.5"], ["", "3.0"]]
    code, out, _ = run("query", "--csv-for-excel", "SELECT name, -n AS n FROM customers ORDER BY n DESC")
    assert list(csv.reader(io.StringIO(out))) == [
        ["name", "n"],
        ["Ana", "-1.0"],
        ['\'=Bo, "x"⟨U+000A⟩', "-2.5"],
        ["", "-3.0"],
    ]
    code, out, _ = run("query", "SELECT 1 AS x WHERE 1 = 0")
    assert (code, out.splitlines()[0]) == (0, "0 rows")
    code, _, err = run("query", "SELECT 1", "--csv", "--json")
    assert (code, "give one of them" in err) == (2, True)
    code, _, err = run("query", "SELECT 1", "--csv", "--csv-for-excel")
    assert (code, "give one of them" in err) == (2, True)
    code, _, err = run("query", "SELECT nothing FROM nowhere")
    assert code == 1
    assert "The database refused the query" in err
    assert "nowhere" in err


def test_a_table_shows_the_first_fifty_rows_and_csv_all(place: Place, run: Run) -> None:
    place.service.add_import("many", [{"n": n} for n in range(5000)])
    place.sync()
    code, out, _ = run("query", "SELECT n FROM records_many")
    assert (code, out.splitlines()[0]) == (0, "50 rows, and there are more: see --limit")
    code, out, _ = run("query", "SELECT n FROM records_many", "--csv")
    assert (code, len(out.splitlines())) == (0, 5001)


WRITES = [
    "DELETE FROM imports",
    "UPDATE imports SET status = 'x'",
    "DROP TABLE imports",
    "CREATE TABLE x AS SELECT 1 AS a",
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP TABLE imports",
    "COPY imports TO '/tmp/never-written'",
    "SET search_path = 'public'",
    "BEGIN",
    "",
    "-- nothing",
]


@pytest.mark.parametrize("dialect", ["duckdb", "postgres"])
@pytest.mark.parametrize("sql", WRITES)
def test_anything_but_one_select_is_refused_before_it_runs(dialect: str, sql: str) -> None:
    with pytest.raises((ConfigError, ConnectorError)):
        check_reads(sql, dialect)


@pytest.mark.parametrize("dialect", ["duckdb", "postgres"])
@pytest.mark.parametrize(
    "sql", ["SELECT 1", "SELECT 1;", "WITH a AS (SELECT 1) SELECT * FROM a", "(SELECT 1) UNION SELECT 2", "VALUES (1)"]
)
def test_queries_are_let_through(dialect: str, sql: str) -> None:
    check_reads(sql, dialect)


@pytest.mark.parametrize(
    "sql",
    [
        "/*! CREATE OR REPLACE TABLE records AS */ SELECT 1 AS slug",
        "/*M!100100 CREATE TABLE x AS */ SELECT 1 AS slug",
        "/*m! CREATE TABLE x AS */ SELECT 1 AS slug",
        "SELECT 1 /*!50000 INTO OUTFILE '/tmp/never-written' */",
        "SELECT 5--1 INTO OUTFILE '/tmp/never-written'",
    ],
)
def test_what_only_mysql_takes_for_no_comment_is_refused(sql: str) -> None:
    with pytest.raises(ConfigError, match="runs what others take for a comment"):
        check_reads(sql, "mysql")
    check_reads("SELECT 5 - -1 AS n /* a comment */ -- another\n FROM records --", "mysql")


def test_a_query_reaches_nothing_but_the_warehouse(
    duck_place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file, address, extension, variable of this process or setting, in whatever the query wraps it."""
    place = duck_place
    fill(place)
    monkeypatch.chdir(tmp_path)
    secrets = tmp_path / "secrets.toml"
    secrets.write_text("CANARY")
    before = sorted(tmp_path.rglob("*"))
    for sql in (
        f"SELECT content FROM read_text('{secrets}')",
        f"SELECT * FROM '{secrets}'",
        f"SELECT * FROM glob('{tmp_path}/*')",
        f"SELECT * FROM sniff_csv('{secrets}')",
        f"SELECT * FROM query('SELECT * FROM read_blob(''{secrets}'')')",
        f"SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT * FROM read_text(''{secrets}'')'))",
        "SELECT * FROM read_csv('http://127.0.0.1:9/x.csv')",
        "SELECT * FROM read_blob('/proc/self/environ')",
        "SELECT * FROM sqlite_scan('x.sqlite', 't')",
        "SELECT * FROM duckdb_secrets()",
        "SELECT * FROM duckdb_extensions()",
        "SELECT * FROM secrets",
        "SELECT * FROM before",
        "SELECT * FROM enable_logging(storage_path = 'log')",
        "SELECT * FROM enable_profiling(save_location = 'profile')",
        "SELECT * FROM force_checkpoint()",
    ):
        with pytest.raises(ConnectorError, match="The database refused the query"):
            place.ask(sql)
    for sql in ("SET enable_external_access = true", "INSTALL httpfs", "LOAD httpfs", "ATTACH 'x'", "CALL x()"):
        with pytest.raises(ConfigError, match="not a query"):
            place.ask(sql)
    monkeypatch.setattr(query, "check_reads", lambda *_: None)
    for sql in ("SET enable_external_access = true", "RESET memory_limit", "PRAGMA enable_profiling"):
        with pytest.raises(ConnectorError, match="configuration has been locked"):
            place.ask(sql)
    for sql in ("INSTALL httpfs", "LOAD httpfs", "ATTACH 'x'", "COPY (SELECT 1) TO 'x'", "EXPORT DATABASE 'x'"):
        with pytest.raises(ConnectorError, match="The database refused the query"):
            place.ask(sql)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.dialect
def test_a_query_as_superuser_is_warned_of(place: Place, run: Run) -> None:
    fill(place)
    code, out, err = run("query", "SELECT 1 AS one", "--json")
    assert (code, json.loads(out)["rows"]) == (0, [{"one": 1}])
    assert ("is a PostgreSQL superuser, whose queries can read files of the server" in err) is not place.is_duckdb


@pytest.mark.dialect
def test_what_the_words_do_not_show_the_database_refuses(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(place)
    gone = "WITH gone AS (DELETE FROM imports RETURNING *) SELECT * FROM gone"
    if place.is_duckdb:
        with pytest.raises(ConnectorError, match="read-only mode"):
            place.ask(gone)
        return
    place.execute(
        "CREATE FUNCTION wipe() RETURNS int LANGUAGE sql AS $$ DELETE FROM imports; SELECT 1 $$; "
        "CREATE SEQUENCE counter"
    )
    for sql in ("SELECT wipe()", "SELECT nextval('counter')", "SELECT * FROM imports FOR UPDATE"):
        with pytest.raises(ConnectorError, match="read-only transaction"):
            place.ask(sql)
    for sql in (gone, "SELECT * INTO x FROM imports"):
        with pytest.raises(ConfigError, match="not a query"):
            place.ask(sql)
    monkeypatch.setattr(query, "check_reads", lambda *_: None)
    with pytest.raises(ConnectorError):
        place.ask("SELECT 1; COMMIT; DELETE FROM imports")
    assert place.tuples("SELECT count(*) FROM imports") == [(1,)]


def test_apply_waits_for_no_run_and_says_so(duck_place: Place) -> None:
    fill(duck_place)
    with sole_writer(duck_place.warehouse.pipeline()), pytest.raises(LockedError, match="under way"):
        duck_place.apply()


@pytest.mark.dialect
def test_sources_of_dbt_match_the_warehouse(place: Place, run: Run, tmp_path: Path) -> None:
    place.service.add_import("customers", [{"n": 1, "First 'name\": #": "x", "tags": []}, {"n": 0.5}, {"n": "x"}])
    place.service.add_import(None, [dict.fromkeys(KEYS[:60], 1)], {"who: me": "x"})
    place.service.add_import("payroll", [{"n": 1}])
    place.sync(exclude_templates=["payroll"])
    code, _, _ = run("dbt", "sources", "--out", str(tmp_path / "sources.yml"))
    assert code == 0
    text = (tmp_path / "sources.yml").read_text(encoding="utf-8")
    document = yaml.safe_load(text)
    assert document == sources(place.warehouse.pipeline())
    assert document == yaml.safe_load(run("dbt", "sources")[1])
    assert document == json.loads(run("dbt", "sources", "--json")[1])
    [source] = document["sources"]
    assert source["schema"] == place.warehouse.dataset
    tables: dict[str, Any] = {table["name"]: table for table in source["tables"]}
    there = {name for name in place.warehouse.tables("") if not name.startswith("_dlt")}
    assert set(tables) == there >= {"imports", "records", "records_customers", "records_untemplated", "sync_runs"}
    types = (
        "SELECT column_name, lower(data_type) FROM information_schema.columns "
        "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position"
    )
    for name, table in tables.items():
        assert table["description"]
        columns = [(column["name"], column["data_type"]) for column in table["columns"]]
        assert columns == place.warehouse.tuples(types, place.warehouse.dataset, name), name
    described = {column["name"]: column for column in tables["records_customers"]["columns"]}
    assert described["first_name"]["description"] == "`First 'name\": #`"
    assert described["_record_slug"]["data_tests"] == ["unique", "not_null"]
    assert described["_import_slug"]["data_tests"][1]["relationships"]["arguments"] == {
        "to": "source('importer', 'imports')",
        "field": "slug",
    }
    variants = [name for name in described if "__v_" in name]
    assert variants
    assert all("not" in described[name]["description"] for name in variants)
    tests = [
        (name, column["name"], test)
        for name, table in tables.items()
        for column in table["columns"]
        for test in column.get("data_tests", ())
    ]
    for table_name, column_name, test in tests:
        if "accepted_values" in test:
            found = {value for (value,) in place.tuples(f"SELECT {column_name} FROM {table_name}")}
            assert found
            assert found <= set(test["accepted_values"]["arguments"]["values"])
    assert tables["sync_runs"]["config"]["freshness"]["warn_after"] == {"count": 24, "period": "hour"}
    place.ask(
        f"SELECT {tables['sync_runs']['config']['loaded_at_field']} FROM sync_runs WHERE "
        f"{tables['sync_runs']['config']['freshness']['filter']}"
    )
    assert as_yaml({"version": 2, "sources": []}).startswith("# Written by")
    code, _, err = run("dbt", "sources", "--out", str(tmp_path / "no" / "dir.yml"))
    assert (code, "cannot be written" in err) == (2, True)


def test_the_examples_name_what_there_is(place: Place, run: Run) -> None:
    fill(place)
    for example in EXAMPLES:
        assert run(*example.split()[1:])[0] == 0
