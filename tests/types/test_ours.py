"""What is not ours is not touched, and what a hand took from the warehouse is made whole by the next run.

Each on DuckDB and on PostgreSQL: catalogs and DDL are theirs.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import dlt
import duckdb
import psycopg2
import pytest
from dlt.pipeline.exceptions import PipelineStepFailed

from connector.errors import ConfigError
from connector.maintain.doctor import doctor
from connector.maintain.rebuild import rebuild
from connector.maintain.verify import verify
from connector.runs import Status
from connector.sandbox import Service, Template, serve
from connector.settings import RunScope, Selection, Settings
from connector.warehouse import Warehouse as DatasetOf
from connector.warehouse.state import load_state
from tests.types.conftest import DuckDB, MySQL, PostgreSQL, SQLite, Warehouse, made

pytestmark = pytest.mark.thorough

ROWS = [{"a_b": n, "name": f"n{n}"} for n in range(3)]


def execute(warehouse: Warehouse, *statements: str) -> None:
    if isinstance(warehouse, DuckDB):
        with duckdb.connect(str(warehouse.file)) as connection:
            connection.execute(f"USE {warehouse.dataset}")
            for statement in statements:
                connection.execute(statement)
        return
    if isinstance(warehouse, SQLite):
        with closing(sqlite3.connect(warehouse.file)) as file, file:
            for statement in statements:
                file.execute(statement)
        return
    if isinstance(warehouse, MySQL):
        with closing(warehouse.server.session(warehouse.dataset)) as session, session.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        return
    assert isinstance(warehouse, PostgreSQL)
    with closing(psycopg2.connect(warehouse.uri)) as session, session, session.cursor() as cursor:
        cursor.execute(f"SET search_path = {warehouse.dataset}")
        for statement in statements:
            cursor.execute(statement)


def pretend_a_crashed_run(warehouse: Warehouse) -> None:
    """The next run audits, as after a kill."""
    execute(warehouse, "UPDATE sync_runs SET status = 'running'")


def check_whole(warehouse: Warehouse, service: Service) -> None:
    """Nothing differs from the service, nothing is wrong, and the next run has nothing to do."""
    with serve(service) as url:
        settings = Settings.load(base_url=url, access_token=service.token)
        assert verify(warehouse.pipeline(), settings, deep=True).differences == []
    assert doctor(warehouse.pipeline()).findings == []
    again = warehouse.run(service)
    assert (again.status, again.imports_changed) == (Status.succeeded, 0)


@pytest.fixture
def service() -> Service:
    service = Service(1)
    service.add_import("Customers", ROWS, {"source": "crm", "n": 1})
    service.add_import("Customers", [{"a_b": 7, "name": "seven"}], {"n": 2})
    return service


@pytest.mark.dialect
def test_a_backup_of_the_user_is_not_emptied_after_a_crashed_run(warehouse: Warehouse, service: Service) -> None:
    warehouse.run(service)
    execute(
        warehouse,
        "CREATE TABLE records_customers_backup AS SELECT * FROM records_customers",
        "CREATE VIEW records_odd AS SELECT 1 AS one",
        "CREATE TABLE records_other (one INTEGER)",
    )
    pretend_a_crashed_run(warehouse)

    ran = warehouse.run(service)

    assert (ran.status, ran.imports_changed) == (Status.succeeded, 0)
    assert warehouse.tuples("SELECT count(*) FROM records_customers_backup") == [(4,)]
    check_whole(warehouse, service)


@pytest.mark.parametrize(
    "taken",
    [
        "CREATE TABLE {} AS SELECT 1 AS one",
        pytest.param("CREATE VIEW {} AS SELECT 1 AS one", marks=pytest.mark.long),
    ],
)
def test_a_template_whose_name_is_taken_gets_another_table(warehouse: Warehouse, service: Service, taken: str) -> None:
    warehouse.run(service)
    execute(warehouse, taken.format("records_archive"), taken.format("records_untemplated"))
    service.add_import("Archive", [{"x": 1}])
    service.add_import(None, [{"y": 2}])

    assert warehouse.run(service).status is Status.succeeded

    assert (
        warehouse.tuples("SELECT one FROM records_archive UNION ALL SELECT one FROM records_untemplated") == [(1,)] * 2
    )
    own = [t for t in warehouse.tables() if t.startswith(("records_archive_", "records_untemplated_"))]
    assert len(own) == 2
    check_whole(warehouse, service)


@pytest.mark.parametrize("column", ["record_slug", "reason"])
def test_a_column_of_the_rejects_that_was_dropped_comes_back(duck: DuckDB, service: Service, column: str) -> None:
    duck.run(service)
    execute(duck, f"ALTER TABLE sync_rejects DROP COLUMN {column}")
    assert duck.run(service).status == Status.succeeded
    assert column in duck.columns("sync_rejects")


def test_a_copy_that_the_user_loads_by_the_same_pipeline_is_left_alone(duck: DuckDB, service: Service) -> None:
    """dlt adds its table to the schema that has ours, because that is the pipeline's default."""
    duck.run(service)
    with duckdb.connect(str(duck.file)) as connection:
        rows = connection.sql(f"SELECT * FROM {duck.dataset}.records_customers").to_arrow_table()
    required = {name: {"nullable": False} for name in ("_record_slug", "_import_slug", "_dlt_load_id")}
    copy: dict[str, Any] = {"table_name": "records_customers_2026", "columns": required}
    duck.pipeline().run(rows, **copy, write_disposition="merge", primary_key="_record_slug")
    for slug in service.slugs():
        service.delete_import(slug)
    service.add_import("Customers", [{"a_b": 8, "name": "eight"}])
    ran = duck.run(service, RunScope(allow_mass_delete=True))
    assert (ran.status, ran.imports_deleted) == (Status.succeeded, 2)
    assert duck.rows("SELECT count(*) AS n FROM records_customers_2026") == [{"n": 4}]
    check_whole(duck, service)


@pytest.mark.long
def test_more_copies_of_our_tables_than_a_statement_of_sqlite_has_conditions(tmp_path: Path, service: Service) -> None:
    """Tables with versions are looked up in the same way."""
    warehouse = SQLite(tmp_path)
    warehouse.run(service)
    execute(
        warehouse,
        *(f"CREATE TABLE records_copy_{n} AS SELECT * FROM records_customers WHERE 1 = 0" for n in range(1001)),
    )
    service.add_import("Customers", ROWS)
    assert warehouse.run(service).error is None


@pytest.mark.dialect
def test_a_table_that_was_replaced_by_another_is_left_alone(warehouse: Warehouse, service: Service) -> None:
    warehouse.run(service)
    execute(warehouse, "DROP TABLE records_customers", "CREATE TABLE records_customers AS SELECT 1 AS one")

    assert warehouse.run(service).status is Status.succeeded

    assert warehouse.tuples("SELECT one FROM records_customers") == [(1,)]
    check_whole(warehouse, service)


def test_a_name_that_cannot_be_another_is_refused_in_one_sentence(warehouse: Warehouse, service: Service) -> None:
    warehouse.run(service)
    execute(warehouse, "DROP TABLE sync_rejects", "CREATE TABLE sync_rejects AS SELECT 1 AS one")

    ran = warehouse.run(service)

    assert ran.status is Status.failed
    assert "sync_rejects" in str(ran.error)
    assert "Rename or drop it" in str(ran.error)


@pytest.mark.parametrize("kind", [DuckDB, SQLite])
@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("Imports", "TABLE {} AS SELECT 1 AS one"),
        ("SYNC_RUNS", "VIEW {} AS SELECT 1 AS one"),
        ("_DLT_loads", "TABLE {} AS SELECT 1 AS one"),
    ],
)
def test_a_name_that_only_differs_in_case_is_refused_where_it_is_the_same(
    tmp_path: Path, service: Service, kind: type[DuckDB | SQLite], name: str, what: str
) -> None:
    warehouse = kind(tmp_path)
    warehouse.run(service)
    execute(warehouse, f"DROP TABLE {name}", f"CREATE {what.format(name)}")

    ran = warehouse.run(service)

    assert isinstance(ran.fatal, ConfigError)
    assert name in str(ran.error)
    assert warehouse.tuples(f"SELECT * FROM {name}") == [(1,)]


@pytest.mark.dialect
def test_a_name_that_differs_in_case_is_left_alone_where_it_is_another(postgres: PostgreSQL, service: Service) -> None:
    postgres.run(service)
    execute(postgres, 'CREATE TABLE "Imports" AS SELECT 1 AS one')
    check_whole(postgres, service)
    assert postgres.tuples('SELECT * FROM "Imports"') == [(1,)]


@pytest.mark.parametrize("name", [pytest.param("note", marks=pytest.mark.long), "Note"])
def test_a_column_of_the_user_is_neither_emptied_nor_taken_over(
    warehouse: Warehouse, service: Service, name: str
) -> None:
    """DuckDB takes two names that differ only in case for one."""
    warehouse.run(service)
    execute(
        warehouse,
        f'ALTER TABLE records_customers ADD COLUMN "{name}" TEXT',
        f"UPDATE records_customers SET \"{name}\" = 'mine'",
    )
    service.add_import("Customers", [{"note": "theirs"}])

    assert warehouse.run(service).status is Status.succeeded

    mine = warehouse.tuples(f'SELECT "{name}" FROM records_customers')
    assert sorted(mine, key=str) == [("mine",)] * 4 + [(None,)]
    [(column,)] = warehouse.tuples("SELECT column_name FROM sync_fields WHERE path = 'note'")
    assert column.startswith("note_") or (column, name) == ("note", "Note")
    check_whole(warehouse, service)


def test_a_column_that_the_user_had_generated_is_not_taken_over(tmp_path: Path, service: Service) -> None:
    """SQLite does not list it among the columns of a table unless it is asked to."""
    warehouse = SQLite(tmp_path)
    warehouse.run(service)
    upper = "ALTER TABLE records_customers ADD COLUMN shout TEXT GENERATED ALWAYS AS (upper(_record_slug)) VIRTUAL"
    execute(warehouse, upper)
    service.append_rows(service.slugs()[0], [{"shout": "theirs"}])

    assert warehouse.run(service).status is Status.succeeded

    check_whole(warehouse, service)


@pytest.mark.long
def test_a_column_of_the_user_is_not_emptied_when_rows_are_kept(warehouse: Warehouse, service: Service) -> None:
    """dlt takes each column of the rows that a run hands over for one of the connector's."""
    other = service.add_import("Customers", ROWS)
    gone = service.add_import("Customers", ROWS)
    warehouse.run(service, deletes="keep")
    for table in ("records_customers", "records", "imports"):
        execute(warehouse, f"ALTER TABLE {table} ADD COLUMN mine TEXT", f"UPDATE {table} SET mine = 'mine'")
    service.delete_row(other, next(iter(service.record_slugs(other))))
    service.delete_import(gone)
    assert warehouse.run(service, deletes="keep").status is Status.succeeded
    new = service.add_import("Customers", [{"name": "new"}])
    assert warehouse.run(service, deletes="keep").status is Status.succeeded

    for table, key in (("records_customers", "_import_slug"), ("records", "import_slug"), ("imports", "slug")):
        untouched = f"{key} NOT IN ('{other}', '{gone}', '{new}')"
        assert warehouse.tuples(f"SELECT DISTINCT mine FROM {table} WHERE {untouched}") == [("mine",)], table
    check_whole(warehouse, service)


@pytest.mark.long
def test_a_column_of_the_user_that_is_called_like_one_of_a_field_is_not_emptied(duck: DuckDB, service: Service) -> None:
    duck.run(service, deletes="keep")
    mine = "UPDATE records_customers SET a_b__v_text = 'mine'"
    execute(duck, "ALTER TABLE records_customers ADD COLUMN a_b__v_text TEXT", mine)
    slug = service.slugs()[0]
    service.delete_row(slug, next(iter(service.record_slugs(slug))))
    for _ in range(2):
        assert duck.run(service, deletes="keep").status is Status.succeeded
        service.add_import("Customers", [{"a_b": 8}])

    assert duck.run(service, deletes="keep").status is Status.succeeded
    assert duck.tuples("SELECT a_b__v_text FROM records_customers WHERE a_b = 7") == [("mine",)]
    check_whole(duck, service)


TRIGGER = "CREATE TRIGGER mine AFTER INSERT ON records_customers"
INDEX = "CREATE INDEX mine ON records_customers (a_b)"
ATTACHED = {
    DuckDB: {INDEX: "index mine"},
    SQLite: {INDEX: "index mine", f"{TRIGGER} BEGIN DELETE FROM seen; END": "trigger mine"},
    MySQL: {
        INDEX: "index mine",
        f"{TRIGGER} FOR EACH ROW DELETE FROM seen": "trigger mine",
        "ALTER TABLE records_customers ADD CONSTRAINT mine CHECK (a_b < 9)": "constraint mine",
    },
    PostgreSQL: {
        "CREATE POLICY mine ON records_customers USING (a_b = 1)": "policy mine",
        "ALTER TABLE records_customers ENABLE ROW LEVEL SECURITY": "row-level security of records_customers",
        "ALTER TABLE records_customers ADD CONSTRAINT mine UNIQUE (_record_slug)": "constraint mine",
        "GRANT SELECT (name) ON records_customers TO PUBLIC": "right to the column name",
        "CREATE RULE mine AS ON DELETE TO records_customers WHERE old.a_b = 9 DO NOTHING": "rule mine",
        f"{TRIGGER} FOR EACH ROW WHEN (new.a_b = 9) EXECUTE FUNCTION suppress_redundant_updates_trigger()": (
            "trigger mine"
        ),
        "CREATE PUBLICATION mine FOR TABLE records_customers": "place in the publication mine",
    },
}


@pytest.mark.dialect
def test_what_the_user_attached_to_a_table_is_not_dropped_by_a_rebuild(recording: Warehouse, service: Service) -> None:
    recording.run(service)
    execute(recording, "CREATE TABLE seen (n INT)")
    attached = ATTACHED[type(recording)]
    execute(recording, *attached)
    with serve(service) as url, pytest.raises(ConfigError) as refused:
        rebuild(recording.pipeline(), Settings.load(base_url=url, access_token=service.token))
    names = ", ".join(sorted(attached.values()))
    assert f"A rebuild would drop what you added to records_customers: {names}." in str(refused.value)


@pytest.mark.dialect
@pytest.mark.parametrize("kind", [pytest.param(MySQL, marks=pytest.mark.long), SQLite, DuckDB])
def test_a_view_of_the_user_reads_the_table_that_a_rebuild_puts_in_place(
    kind: type[Warehouse], tmp_path: Path, service: Service, request: pytest.FixtureRequest
) -> None:
    server = [request.getfixturevalue("mariadb_server")] if kind is MySQL else []
    warehouse = kind(tmp_path, *server)
    warehouse.run(service)
    execute(warehouse, "CREATE VIEW mine AS SELECT a_b FROM records_customers")
    rows = warehouse.tuples("SELECT a_b FROM mine ORDER BY 1")

    with serve(service) as url:
        rebuild(warehouse.pipeline(), Settings.load(base_url=url, access_token=service.token))

    assert warehouse.tuples("SELECT a_b FROM mine ORDER BY 1") == rows
    assert warehouse.run(service).status == "succeeded"


@pytest.mark.long
def test_without_dlts_schema_the_imports_keep_their_columns(duck: DuckDB, service: Service) -> None:
    gone = service.add_import("Customers", ROWS)
    duck.run(service, deletes="keep", history=True)
    before = duck.tuples("SELECT * FROM imports_history WHERE slug = %s", gone)
    execute(duck, "DROP TABLE _dlt_version")
    service.delete_import(gone)
    assert duck.run(service, deletes="keep", history=True).status is Status.succeeded
    assert duck.tuples("SELECT row_count, _deleted_at IS NULL FROM imports WHERE slug = %s", gone) == [(3, False)]
    assert len(before) == 1
    changes = duck.tuples("SELECT _change, row_count FROM imports_history WHERE slug = %s ORDER BY 1", gone)
    assert changes == [("delete", 3), ("insert", 3)]


def test_a_column_whose_name_only_changed_its_case_is_the_same_in_duckdb(duck: DuckDB, service: Service) -> None:
    duck.run(service, deletes="keep")
    execute(duck, "ALTER TABLE records_customers RENAME a_b TO A_B")

    assert duck.run(service, deletes="keep").imports_changed == 0
    check_whole(duck, service)


def test_raw_rows_of_an_import_that_is_in_no_table_any_more_go_too(duck: DuckDB, service: Service) -> None:
    """A backfill of a part deletes nothing; the run after it looks again."""
    duck.run(service, typed=False)
    execute(duck, "DELETE FROM sync_imports", "DELETE FROM imports WHERE status = 'completed'")
    gone = service.slugs()[0]
    service.delete_import(gone)
    part = RunScope("backfill", selection=Selection(slugs=frozenset([service.slugs()[-1]])), force=True)
    duck.run(service, part, typed=False)

    assert duck.run(service, typed=False).status is Status.succeeded

    assert duck.tuples("SELECT slug FROM records WHERE import_slug = %s", gone) == []


@pytest.mark.parametrize(
    "also",
    [(), *(pytest.param((table,), marks=pytest.mark.long) for table in ("imports", "sync_fields", "_dlt_loads"))],
)
def test_without_the_ledger_deleted_imports_go_all_the_same(
    warehouse: Warehouse, service: Service, also: tuple[str, ...]
) -> None:
    warehouse.run(service)
    execute(warehouse, *(f"DROP TABLE {table}" for table in ("sync_imports", *also)))
    service.delete_import(service.slugs()[0])

    assert warehouse.run(service).status is Status.succeeded

    assert warehouse.tuples("SELECT count(*) FROM records_customers") == [(1,)]
    assert warehouse.tuples("SELECT count(*) FROM records") == [(1,)]
    check_whole(warehouse, service)


@pytest.mark.long
def test_the_table_of_loads_is_made_anew_though_the_ledger_lost_its_states(duck: DuckDB, service: Service) -> None:
    service.add_import("Customers", ROWS)
    gone = service.add_import("Customers", ROWS)
    duck.run(service)
    service.delete_import(gone)
    duck.run(service)
    execute(duck, "DROP TABLE _dlt_loads")
    execute(duck, "ALTER TABLE sync_imports DROP COLUMN state")

    assert duck.run(service).status is Status.succeeded
    check_whole(duck, service)


def test_a_backfill_is_remembered_for_an_import_whose_state_is_lost(duck: DuckDB, service: Service) -> None:
    for slug in service.slugs():
        service.delete_import(slug)
    gone = service.add_import("Customers", ROWS)
    duck.run(service)
    execute(duck, "ALTER TABLE sync_imports DROP COLUMN state")
    service.delete_import(gone)
    service.add_import("Customers", ROWS)
    assert duck.run(service).status is Status.partial  # nothing is deleted, and the column is back

    duck.run(service, RunScope(mode="backfill", force=True))

    assert duck.tuples("SELECT due FROM sync_imports WHERE slug = ?", gone) == [("backfill",)]
    duck.run(service, RunScope(allow_mass_delete=True))
    check_whole(duck, service)


@pytest.mark.dialect
def test_the_table_of_loads_is_made_anew(warehouse: Warehouse, service: Service) -> None:
    service.add_import("Customers", ROWS)
    gone = service.add_import("Customers", ROWS)
    warehouse.run(service)
    service.delete_import(gone)
    warehouse.run(service)
    execute(warehouse, "DROP TABLE _dlt_loads")

    ran = warehouse.run(service)

    assert (ran.status, ran.imports_changed, ran.imports_deleted) == (Status.succeeded, 3, 0)
    check_whole(warehouse, service)
    assert warehouse.tuples("SELECT DISTINCT status FROM sync_runs") == [("succeeded",)]


@pytest.mark.parametrize(
    "loss",
    [
        "DROP TABLE sync_fields",
        pytest.param("DELETE FROM sync_fields", marks=pytest.mark.long),
        pytest.param("DELETE FROM sync_fields WHERE path IN ('a-b', 'metadata.n')", marks=pytest.mark.long),
    ],
)
@pytest.mark.dialect
def test_without_the_dictionary_no_column_mixes_two_fields(warehouse: Warehouse, service: Service, loss: str) -> None:
    first = service.slugs()[0]
    service.append_rows(first, [{"a-b": 100}])
    warehouse.run(service)
    execute(warehouse, loss)
    service.add_import("Customers", [{"a-b": 200}])

    # only the new one is read: what is in columns that nobody knows must not stand beside its values
    warehouse.run(service, RunScope(selection=Selection(slugs=frozenset(service.slugs()[-1:]))))

    [(column,)] = warehouse.tuples("SELECT column_name FROM sync_fields WHERE path = 'a-b'")
    assert set(warehouse.tuples(f"SELECT {column} FROM records_customers WHERE {column} IS NOT NULL")) <= {
        (100,),
        (200,),
    }
    assert warehouse.run(service).status is Status.succeeded
    check_whole(warehouse, service)


@pytest.mark.long
def test_without_the_dictionary_rows_that_are_kept_stop_no_run(duck: DuckDB) -> None:
    """Such a row brings its column of a field that nobody knows any more, with the type that it has."""
    service = Service(seed=1)
    slug = service.add_import("Odd", [{"n": n, "list": [n]} for n in range(3)])
    duck.run(service, deletes="keep")
    service.delete_row(slug, next(iter(service.record_slugs(slug))))
    duck.run(service, deletes="keep")
    execute(duck, "DROP TABLE sync_fields")

    service.append_rows(slug, [{"n": 3, "list": [3]}])
    for _ in range(2):
        assert duck.run(service, deletes="keep").status is Status.succeeded
    found = duck.tuples("SELECT list, _deleted_at IS NULL FROM records_odd WHERE list IS NOT NULL")
    assert found == [("[0]", False)]
    [(column,)] = duck.tuples("SELECT column_name FROM sync_fields WHERE path = 'list'")
    assert sorted(duck.tuples(f"SELECT {column} FROM records_odd WHERE {column} IS NOT NULL")) == [
        ("[1]",),
        ("[2]",),
        ("[3]",),
    ]


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("records_customers", "name"),
        ("records", "data"),
        ("sync_imports", "records_loaded"),
        *(
            pytest.param(*column, marks=pytest.mark.long)
            for column in [
                ("imports", "metadata__n"),
                ("records_customers", "_sort"),
                ("imports", "status"),
                ("imports", "_content_hash"),
                ("sync_fields", "keys"),
                ("sync_imports", "state"),
                ("sync_runs", "requests"),
            ]
        ),
    ],
)
@pytest.mark.dialect
def test_a_dropped_column_is_made_whole(warehouse: Warehouse, service: Service, table: str, column: str) -> None:
    warehouse.run(service)
    execute(warehouse, f'ALTER TABLE {table} DROP COLUMN "{column}"')

    assert warehouse.run(service).status is Status.succeeded

    assert column in warehouse.columns(table)
    check_whole(warehouse, service)


def test_names_of_templates_whose_slugs_were_dropped_are_not_those_of_imports_without_one(
    duck: DuckDB, service: Service
) -> None:
    duck.run(service)
    execute(duck, "ALTER TABLE imports DROP COLUMN template__slug")
    with DatasetOf(duck.pipeline()).connect() as connection:
        assert load_state(connection).template_names.get("", set()) == set()


@pytest.mark.parametrize(
    "column", ["state", *(pytest.param(each, marks=pytest.mark.long) for each in ("error", "due"))]
)
def test_a_dropped_column_is_made_whole_though_the_ledger_lost_one_too(
    duck: DuckDB, service: Service, column: str
) -> None:
    duck.run(service)
    execute(duck, "ALTER TABLE records_customers DROP COLUMN name", f"ALTER TABLE sync_imports DROP COLUMN {column}")

    assert duck.run(service).status is Status.succeeded

    assert duck.tuples("SELECT count(name) FROM records_customers") == [(4,)]
    check_whole(duck, service)


@pytest.mark.long
def test_a_column_that_came_back_empty_is_still_made_whole(warehouse: Warehouse, service: Service) -> None:
    """A run that reads one import only has dlt add the column again, for all of them."""
    warehouse.run(service)
    execute(warehouse, "ALTER TABLE records_customers DROP COLUMN name")
    warehouse.run(service, RunScope(selection=Selection(slugs=frozenset(service.slugs()[:1])), force=True))
    assert "name" in warehouse.columns("records_customers")
    assert doctor(warehouse.pipeline()).findings != []

    assert warehouse.run(service).status is Status.succeeded

    assert warehouse.tuples("SELECT count(name) FROM records_customers") == [(4,)]
    check_whole(warehouse, service)


def test_a_template_of_empty_rows_keeps_its_table(warehouse: Warehouse) -> None:
    service = Service(1)
    slug = service.add_import(Template("Customers", "c"), [{}, {}])
    warehouse.run(service)
    service.set_template(slug, Template("Orders", "o"))
    warehouse.run(service)
    service.add_import(Template("Kunden", "c"), [{"x": 1}])

    assert warehouse.run(service).status is Status.succeeded

    assert warehouse.tables() == ["records_customers", "records_orders"]
    assert warehouse.tuples("SELECT count(*) FROM records_customers") == [(1,)]


def test_a_clean_run_reads_no_table_of_records(duck: DuckDB, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    from connector.warehouse import Connection

    duck.run(service)
    asked: list[str] = []
    query = Connection.query

    def noted(self: Connection, sql: str, *args: Any) -> Any:
        asked.append(sql)
        return query(self, sql, *args)

    monkeypatch.setattr(Connection, "query", noted)
    assert duck.run(service).imports_changed == 0

    assert not [sql for sql in asked if '"records' in sql and "count" in sql and "GROUP BY" in sql]
    assert not [sql for sql in asked if "records_customers" in sql]


@pytest.mark.long
def test_a_column_of_another_type_of_which_the_dictionary_knows_nothing_is_rebuilt(
    duck: DuckDB, service: Service
) -> None:
    slug = service.add_import("T", [{"n": 1}, {"n": 2}])
    duck.run(service)
    execute(duck, "DELETE FROM sync_fields")
    execute(duck, "ALTER TABLE records_t ALTER COLUMN n TYPE DOUBLE")
    service.append_rows(slug, [{"n": 4}])
    assert "run `importer-sync rebuild --table records_t`" in str(duck.run(service).error)
    with serve(service) as url:
        rebuild(duck.pipeline(), Settings.load(base_url=url, access_token=service.token), ["records_t"])
    assert duck.run(service).status is Status.succeeded
    check_whole(duck, service)


def test_a_column_of_another_type_than_it_was_made_with_rounds_nothing(warehouse: Warehouse) -> None:
    service = Service(1)
    service.add_import("T", [{"p": 1.5, "z": "007", "n": 5}], {"rate": 0.25})
    warehouse.run(service)
    using = " USING z::integer" if isinstance(warehouse, PostgreSQL) else ""
    execute(
        warehouse,
        "ALTER TABLE records_t ALTER COLUMN p TYPE INTEGER",
        f"ALTER TABLE records_t ALTER COLUMN z TYPE INTEGER{using}",
        "ALTER TABLE imports ALTER COLUMN metadata__rate TYPE INTEGER",
    )
    assert {finding.kind for finding in doctor(warehouse.pipeline()).findings} == {"column_type"}
    service.add_import("T", [{"p": 2.7, "z": "008", "n": 6}], {"rate": 0.75})

    tally = warehouse.run(service)

    assert (tally.status, tally.imports_changed) == (Status.succeeded, 2)
    assert warehouse.tuples("SELECT p, z, n FROM records_t ORDER BY n") == [(1.5, "007", 5), (2.7, "008", 6)]
    assert warehouse.tuples("SELECT metadata__rate FROM imports ORDER BY 1") == [(0.25,), (0.75,)]
    check_whole(warehouse, service)


@pytest.mark.dialect
@pytest.mark.parametrize("lost", ["records", "records_customers"])
def test_rows_of_a_lost_table_come_back_though_first_a_part_is_read(warehouse: Warehouse, lost: str) -> None:
    """That run makes the table again, and afterwards only the rows themselves tell that others are missing."""
    service = Service(1)
    part, _ = (service.add_import("Customers", [{"n": n}]) for n in range(2))
    warehouse.run(service)
    execute(warehouse, f"DROP TABLE {lost}")
    for _ in range(2):
        warehouse.run(service, RunScope(mode="backfill", selection=Selection(slugs=frozenset([part])), force=True))
    assert warehouse.run(service).status is Status.succeeded
    check_whole(warehouse, service)


COARSER = {  # statements that make a column round times, or store JSON otherwise than as it was received
    "duckdb": "ALTER TABLE {table} ALTER COLUMN {column} TYPE TIMESTAMP_S",
    "postgres": "ALTER TABLE {table} ALTER COLUMN {column} TYPE timestamptz(0)",
    "mysql": "ALTER TABLE {table} MODIFY COLUMN {column} DATETIME",
}
TIMES = {"records": "updated_at", "records_t": "_created_at", "imports": "created_at", "sync_imports": "updated_at"}


@pytest.mark.dialect
@pytest.mark.parametrize("kind", ["duckdb", "postgres", pytest.param("mysql", marks=pytest.mark.thorough)])
def test_columns_of_ours_with_a_coarser_type_round_nothing(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    warehouse = made(request, kind, tmp_path)
    service = Service(1)
    slug = service.add_import("T", [{"n": 1}, {"n": 2}], {"a": 1})
    service.add_import("U", [{"n": 1}])
    warehouse.run(service)
    execute(warehouse, *(COARSER[kind].format(table=table, column=column) for table, column in TIMES.items()))
    assert [finding.kind for finding in doctor(warehouse.pipeline()).findings] == ["column_type"] * len(TIMES)
    service.append_rows(slug, [{"n": 3}])

    assert (warehouse.run(service).status, warehouse.run(service).imports_changed) == (Status.succeeded, 0)
    check_whole(warehouse, service)


@pytest.mark.dialect
def test_raw_rows_that_were_given_a_type_of_postgresql_for_json_are_text_again(postgres: PostgreSQL) -> None:
    """Else no row could be loaded: dlt loads text."""
    service = Service(1)
    slug = service.add_import("T", [{"n": 1, "a": 2}])
    postgres.run(service)
    execute(postgres, "ALTER TABLE records ALTER COLUMN data TYPE jsonb USING data::jsonb")
    service.append_rows(slug, [{"n": 3}])

    assert postgres.run(service).status is Status.succeeded
    check_whole(postgres, service)


@pytest.mark.long
def test_a_column_that_cannot_have_its_type_again_takes_nothing(warehouse: Warehouse) -> None:
    service = Service(1)
    service.add_import("T", [{"p": 1.5}])
    warehouse.run(service)

    execute(warehouse, "ALTER TABLE records_t ALTER COLUMN p TYPE VARCHAR USING 'x'")
    service.add_import("T", [{"p": 2.7}])

    for _ in range(2):
        refused = str(warehouse.run(service).fatal)
        assert "The column records_t.p was changed to text, which rounds or truncates what is loaded into it" in refused
        assert "`importer-sync rebuild --table records_t`" in refused
        assert warehouse.tuples("SELECT p FROM records_t") == [("x",)]

    execute(warehouse, "ALTER TABLE records_t DROP COLUMN p")
    assert warehouse.run(service).status == Status.succeeded
    check_whole(warehouse, service)


# -- where rows are staged ---------------------------------------------------------------------------------------------


def edit(service: Service) -> None:
    slug = service.slugs()[0]
    service.edit_row(slug, next(iter(service.record_slugs(slug))), {"a_b": 100})


def beside(warehouse: Warehouse, schema: str, *statements: str) -> None:
    """Execute these in another schema of the same database."""
    dataset, warehouse.dataset = warehouse.dataset, schema
    try:
        execute(warehouse, *statements)
    finally:
        warehouse.dataset = dataset


def test_two_datasets_of_which_one_is_called_like_the_staging_of_the_other_keep_their_rows(
    warehouse: Warehouse, service: Service
) -> None:
    first = warehouse.dataset
    warehouse.dataset = f"{first}_staging"
    warehouse.run(service)
    warehouse.dataset = first
    ran = warehouse.run(service)
    assert isinstance(ran.fatal, ConfigError)
    assert f"Rows are staged in the schema '{first}_staging'" in str(ran.error)
    warehouse.dataset = f"{first}_staging"
    check_whole(warehouse, service)


@pytest.mark.long
def test_dlt_alone_stages_nothing_where_somebody_else_has_tables(warehouse: Warehouse, service: Service) -> None:
    warehouse.run_dlt(service)
    schema = f"{warehouse.dataset}_staging"
    execute(warehouse, f"DROP SCHEMA IF EXISTS {schema} CASCADE", f"CREATE SCHEMA {schema}")
    beside(warehouse, schema, "CREATE TABLE records_customers AS SELECT 1 AS one")
    edit(service)
    with pytest.raises(PipelineStepFailed, match=f"Rows are staged in the schema '{schema}'"):
        warehouse.run_dlt(service)
    warehouse.dataset = schema
    assert warehouse.tuples("SELECT one FROM records_customers") == [(1,)]


@pytest.mark.parametrize("taken", ["CREATE TABLE mine AS SELECT 1 AS one", "CREATE TABLE _dlt_loads (load_id INTEGER)"])
def test_nothing_is_staged_where_somebody_else_has_tables(warehouse: Warehouse, service: Service, taken: str) -> None:
    warehouse.run(service)
    schema = f"{warehouse.dataset}_staging"
    execute(warehouse, f"DROP SCHEMA IF EXISTS {schema} CASCADE", f"CREATE SCHEMA {schema}")
    beside(warehouse, schema, taken)
    edit(service)

    ran = warehouse.run(service)

    assert isinstance(ran.fatal, ConfigError)
    assert f"Rows are staged in the schema '{schema}'" in str(ran.error)
    with serve(service) as url, pytest.raises(ConfigError, match="Rename that schema"):
        rebuild(warehouse.pipeline(), Settings.load(base_url=url, access_token=service.token))


@pytest.mark.dialect
def test_tables_that_others_made_where_rows_are_staged_are_neither_filled_nor_dropped(
    warehouse: Warehouse, service: Service
) -> None:
    """As dbt makes them whose own schema for staging has the same name."""
    warehouse.run(service)
    edit(service)
    warehouse.run(service)
    schema = f"{warehouse.dataset}_staging"
    archive = "CREATE TABLE records_archive AS SELECT 1 AS one"
    beside(warehouse, schema, archive, "CREATE VIEW records_seen AS SELECT 1 AS one", "CREATE TABLE notes AS SELECT 1")
    service.add_import("Archive", [{"x": 1}])
    service.add_import("Seen", [{"x": 1}])
    assert warehouse.run(service).status is Status.succeeded
    assert {"records_archive", "records_seen"}.isdisjoint(warehouse.tables())
    check_whole(warehouse, service)

    copy = f"CREATE TABLE records_customers AS SELECT * FROM {warehouse.dataset}.records_customers"
    beside(warehouse, schema, "DROP TABLE records_customers", copy)
    edit(service)
    ran = warehouse.run(service)
    assert isinstance(ran.fatal, ConfigError)
    assert f"Rows are staged in the schema '{schema}'" in str(ran.error)
    assert "such as 'records_customers'. Rename or drop it" in str(ran.error)
    with serve(service) as url, pytest.raises(ConfigError, match="Rename or drop it"):
        rebuild(warehouse.pipeline(), Settings.load(base_url=url, access_token=service.token))
    beside(
        warehouse, schema, "INSERT INTO notes SELECT count(*) FROM records_customers", "DROP TABLE records_customers"
    )
    assert warehouse.run(service).status is Status.succeeded
    check_whole(warehouse, service)


@pytest.mark.dialect
@pytest.mark.parametrize("table", ["_dlt_loads", "_dlt_version"])
def test_a_table_of_dlt_that_somebody_dropped_is_made_anew_everywhere(
    recording: Warehouse, service: Service, table: str
) -> None:
    recording.run(service)
    execute(recording, f"DROP TABLE {table}")
    ran = recording.run(service)
    assert ran.error is None
    assert ran.records_loaded == 0 or table == "_dlt_loads"
    check_whole(recording, service)


@pytest.mark.dialect
@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("sync_runs", "retries"),
        ("sync_runs", "error"),
        ("sync_imports", "due"),
        ("sync_imports", "records_loaded"),
        ("sync_fields", "has_text"),
        ("sync_rejects", "reason"),
        ("imports", "status"),
        ("records", "sort"),
    ],
)
def test_a_dropped_column_is_made_whole_though_dlts_schemas_are_gone_too(
    warehouse: Warehouse, service: Service, table: str, column: str
) -> None:
    warehouse.run(service)
    execute(warehouse, "DROP TABLE _dlt_version", f"ALTER TABLE {table} DROP COLUMN {column}")
    assert warehouse.run(service).error is None
    assert column in warehouse.columns(table)
    check_whole(warehouse, service)


def test_a_name_among_staging_tables_that_only_differs_in_case_is_refused(duck: DuckDB, service: Service) -> None:
    duck.run(service)
    edit(service)
    duck.run(service)
    mine = "CREATE TABLE Records_Customers AS SELECT 1 AS one"
    beside(duck, f"{duck.dataset}_staging", "DROP TABLE records_customers", mine)
    edit(service)
    ran = duck.run(service)
    assert isinstance(ran.fatal, ConfigError)
    assert "such as 'Records_Customers'" in str(ran.error)


@pytest.mark.parametrize("alone", [False, True], ids=["run", "dlt alone"])
def test_a_staging_table_that_somebody_dropped_is_created_again(
    warehouse: Warehouse, service: Service, alone: bool
) -> None:
    run = warehouse.run_dlt if alone else warehouse.run
    run(service)
    edit(service)
    run(service)
    beside(warehouse, f"{warehouse.dataset}_staging", "DROP TABLE records_customers", "DROP TABLE sync_imports")
    run(service)  # nothing is loaded
    edit(service)
    run(service)
    check_whole(warehouse, service)


def test_a_layout_that_the_user_configured_stays(
    warehouse: Warehouse, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DESTINATION__STAGING_DATASET_NAME_LAYOUT", "%s_aside")
    warehouse.run(service)
    edit(service)
    warehouse.run(service)
    schemas = warehouse.tuples("SELECT schema_name FROM information_schema.schemata")
    assert (f"{warehouse.dataset}_aside",) in schemas
    assert (f"{warehouse.dataset}_staging",) not in schemas


def test_a_layout_by_which_datasets_share_their_staging_tables_is_refused(
    warehouse: Warehouse, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DESTINATION__STAGING_DATASET_NAME_LAYOUT", "aside")
    with pytest.raises(ConfigError, match='each other\'s; write "%s_aside"'):
        warehouse.run(service)
    with pytest.raises(PipelineStepFailed, match="each other's"):
        warehouse.run_dlt(service)


@pytest.mark.dialect
@pytest.mark.parametrize(
    "loss", ["DROP TABLE imports", "DELETE FROM imports", "ALTER TABLE imports DROP COLUMN records_metadata"]
)
def test_what_came_beside_the_records_comes_back(warehouse: Warehouse, service: Service, loss: str) -> None:
    """The listing does not have it."""
    warehouse.run(service)
    before = warehouse.rows("SELECT slug, records_metadata FROM imports ORDER BY slug")
    assert None not in {row["records_metadata"] for row in before}
    execute(warehouse, loss)

    assert warehouse.run(service).status is Status.succeeded

    assert warehouse.rows("SELECT slug, records_metadata FROM imports ORDER BY slug") == before
    check_whole(warehouse, service)


@pytest.mark.parametrize("column", ["path", pytest.param("template_slug", marks=pytest.mark.long)])
def test_a_column_that_the_dictionary_lost_is_written_again(duck: DuckDB, service: Service, column: str) -> None:
    duck.run(service)
    query = f"SELECT table_name, column_name, {column} FROM sync_fields ORDER BY ALL"
    before = duck.tuples(query)
    execute(duck, f"ALTER TABLE sync_fields DROP COLUMN {column}")

    assert duck.run(service).status is Status.succeeded

    assert duck.tuples(query) == before
    check_whole(duck, service)


@pytest.mark.parametrize("column", ["mode", "status", "started_at", "finished_at", "error_kind"])
def test_runs_without_a_column_that_every_run_needs_are_refused(duck: DuckDB, service: Service, column: str) -> None:
    duck.run(service)
    execute(duck, f"ALTER TABLE sync_runs DROP COLUMN {column}")

    ran = duck.run(service)

    assert ran.status is Status.failed
    assert f"it lacks {column}). Rename or drop it" in str(ran.error)
    execute(duck, "DROP TABLE sync_runs")
    assert duck.run(service).status is Status.succeeded
    check_whole(duck, service)


@pytest.mark.parametrize("loss", ["DROP TABLE sync_rejects", "DELETE FROM sync_rejects"])
def test_rejected_records_that_a_user_removed_come_back(duck: DuckDB, service: Service, loss: str) -> None:
    service.add_raw_record(service.slugs()[0], "17")
    duck.run(service)
    execute(duck, loss)
    ran = duck.run(service)
    assert (ran.status, ran.imports_changed) == (Status.partial, 1)
    assert duck.tuples("SELECT import_slug, payload FROM sync_rejects") == [(service.slugs()[0], "17")]
    assert duck.run(service).imports_changed == 0


@pytest.mark.parametrize("table", ["records_customers", "imports"])
def test_a_column_of_the_user_that_has_the_name_of_a_field_without_values(duck: DuckDB, table: str) -> None:
    service = Service(1)
    slug = service.add_import("Customers", [{"note": None}], {"owner": None})
    duck.run(service)
    column = "note" if table != "imports" else "metadata__owner"
    execute(duck, f"ALTER TABLE {table} ADD COLUMN {column} VARCHAR", f"UPDATE {table} SET {column} = 'mine'")
    service.append_rows(slug, [{"note": "hello"}])
    service.set_metadata(slug, {"owner": "ann"})
    service.add_import("Orders", [{"x": 1}])
    for _ in range(2):
        assert duck.run(service).status is Status.succeeded
    check_whole(duck, service)
    theirs = {value for (value,) in duck.tuples(f"SELECT {column} FROM {table}")}
    assert theirs <= {"mine", None}
    own = {name for name in duck.columns(table) if name.startswith(f"{column}_")}
    assert len(own) == 1
    assert {value for (value,) in duck.tuples(f"SELECT {own.pop()} FROM {table}")} >= {
        "hello" if column == "note" else "ann"
    }


def test_rows_do_not_pass_through_tables_that_were_staged_for_an_earlier_dataset(recording: Warehouse) -> None:
    """The staging tables stay if a user drops the dataset to begin anew, or puts a copy of it back."""
    service = Service(seed=1)
    slug = service.add_import(template="Customers", rows=[{"zip": 1, "x": "n/a"}, {"zip": 2, "x": "n/a"}])
    assert recording.run(service).status == "succeeded"
    first, second = service.record_slugs(slug)
    service.edit_row(slug, first, {"zip": 3, "x": "none"})
    assert recording.run(service).status == "succeeded", "rows are staged"
    execute(recording, *(f"DROP TABLE {table}" for table in recording.tables("")))
    recording.lose_working_directory()
    for row in (first, second):
        service.edit_row(slug, row, {"zip": "00234", "x": 0.15192482876760094})
    assert recording.run(service).status == "succeeded"
    service.edit_row(slug, first, {"zip": "01234", "x": 0.15192482876760094})
    assert recording.run(service).status == "succeeded"
    assert recording.tuples("SELECT zip, x FROM records_customers ORDER BY zip") == [
        ("00234", 0.15192482876760094),
        ("01234", 0.15192482876760094),
    ]
    with serve(service) as url:
        made = Settings.load(base_url=url, access_token=service.token)
        assert verify(recording.pipeline(), made, deep=True).differences == []


def test_a_view_with_one_of_our_names_is_no_warehouse(tmp_path: Path) -> None:
    file = tmp_path / "importer.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute("CREATE SCHEMA importer_data; CREATE VIEW importer_data.records AS SELECT 1 AS x")
    destination = dlt.destinations.duckdb(str(file))
    pipeline = dlt.pipeline("x", pipelines_dir=str(tmp_path), destination=destination, dataset_name="importer_data")
    assert not DatasetOf(pipeline).exists()
