"""The roles of docs/postgres.md: a loader that can do all that the command does, and readers who can only read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import dlt
import psycopg2
import pytest

from connector.cli.redaction import add_secret, scrub
from connector.sandbox import Service, serve
from connector.warehouse.failures import explain_failure
from tests.cli.conftest import Command, Ended
from tests.docs.pages import blocks

LOADER, READER, PERSON = "tested_loader", "tested_reader", "tested_person"
TOKEN = "tok-3cr3t-3cr3t-3cr3t"
GIVE = f"""
DO $$ DECLARE of_schema text; name text; BEGIN
    FOR of_schema, name IN SELECT schemaname, tablename FROM pg_tables WHERE schemaname LIKE 'importer_data%' LOOP
        EXECUTE format('ALTER TABLE %I.%I OWNER TO {LOADER}', of_schema, name);
    END LOOP;
END $$"""


@pytest.fixture
def address(postgres_uri: str) -> Iterator[str]:
    """Of a database of its own, in which the page's lines were carried out; `%s` stands for the user."""
    [sql] = [block.text for block in blocks("docs/postgres.md") if block.language == "sql"]
    sql = sql.replace("importer_loader", LOADER).replace("importer_reader", READER)
    with closing(psycopg2.connect(postgres_uri)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute("CREATE DATABASE roles")
    own = f"{postgres_uri.removesuffix('postgres')}roles"
    with closing(psycopg2.connect(own)) as connection, connection, connection.cursor() as cursor:
        cursor.execute("REVOKE ALL ON DATABASE roles FROM PUBLIC; GRANT CONNECT, TEMP ON DATABASE roles TO PUBLIC")
        cursor.execute(sql)
        cursor.execute(f"CREATE ROLE {PERSON} LOGIN PASSWORD 'secret'; GRANT {READER} TO {PERSON}")
    yield own.replace("postgres:x@", "%s:secret@")
    with closing(psycopg2.connect(postgres_uri)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute("DROP DATABASE roles WITH (FORCE)")
        cursor.execute(f"DROP ROLE {PERSON}, {READER}, {LOADER}")


@dataclass(frozen=True)
class RunAs:
    service: Service
    command: Command
    address: str

    def __call__(self, role: str, *arguments: str, password: str = "secret", **environment: str) -> Ended:
        user = "postgres:x" if role == "postgres" else f"{role}:{quote(password)}"
        return self.command("--to", self.address.replace("%s:secret", user), *arguments, script=None, **environment)


@pytest.fixture
def run_as(address: str, tmp_path: Path) -> Iterator[RunAs]:
    """A function that carries out a command as a role, with settings, on a warehouse of the service that it has."""
    service = Service(seed=1, token=TOKEN)
    service.add_generated("customers", imports=3, rows=40)
    with serve(service) as url:
        environment = {
            **os.environ,
            "SOURCES__IMPORTER__BASE_URL": url,
            "SOURCES__IMPORTER__ACCESS_TOKEN": TOKEN,
            "DLT_DATA_DIR": str(tmp_path / "dlt"),
        }
        yield RunAs(service, Command(tmp_path, environment), address)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("what", "loaded"), [("a template", LOADER), ("versions", LOADER), ("everything", "postgres")], ids=lambda x: x
)
def test_tables_that_a_run_as_another_role_created_are_not_passed_over(run_as: RunAs, what: str, loaded: str) -> None:
    """They would keep what the service changed or erased, while the rows went into other tables."""
    assert run_as(loaded, "run").code == 0
    run_as.service.add_generated("orders", imports=2, rows=10)
    history = {"SOURCES__IMPORTER__HISTORY": "true"} if what == "versions" else {}
    assert run_as("postgres", "run", **history).code == 0
    for words in ("run", "verify --deep", "doctor", "sql check", "report", "rebuild", "status"):
        ended = run_as(LOADER, *words.split(), **history)
        assert (ended.code, "no rights on" in ended.err) == (2, True), (words, ended.out, ended.err)
    if what == "a template":  # which readers may not read either, and may not need to
        admin = run_as.address.replace("%s:secret", "postgres:x")
        for more in ("", f"GRANT CREATE ON SCHEMA importer_data TO {PERSON}"):
            with closing(psycopg2.connect(admin)) as connection, connection:
                connection.cursor().execute(more or "SELECT 1")
            for words in ("status", "templates", "sql list", "report"):
                ended = run_as(PERSON, *words.split())
                assert ended.code == 0, (words, ended.err)
        with closing(psycopg2.connect(run_as.address.replace("%s", LOADER))) as connection, connection:
            connection.cursor().execute(f"REVOKE ALL ON importer_data.sync_rejects FROM {READER}")
        for words in ("status", "templates", "report"):
            assert run_as(PERSON, *words.split()).code == 0, words
        with closing(psycopg2.connect(run_as.address.replace("%s", LOADER))) as connection, connection:
            connection.cursor().execute(f"REVOKE ALL ON importer_data._dlt_loads FROM {READER}")
        for words in ("status", "verify", "doctor", "report"):
            ended = run_as(PERSON, *words.split())
            assert (ended.code, "may not read " in ended.err and "_dlt_loads" in ended.err) == (2, True), (
                words,
                ended.err,
            )
        assert run_as(PERSON, "query", "SELECT count(*) FROM importer_data.imports").code == 0
        # a loader that may create nothing any more would not notice what it cannot see
        with closing(psycopg2.connect(admin)) as connection, connection:
            connection.cursor().execute(f"REVOKE CREATE ON SCHEMA importer_data FROM {LOADER}")
            connection.cursor().execute("ALTER SCHEMA importer_data OWNER TO postgres")
            connection.cursor().execute(f"GRANT USAGE ON SCHEMA importer_data TO {LOADER}")
        assert "no rights on" in run_as(LOADER, "run").err
        with closing(psycopg2.connect(admin)) as connection, connection:
            connection.cursor().execute(f"ALTER SCHEMA importer_data OWNER TO {LOADER}")
            connection.cursor().execute(f"GRANT ALL ON SCHEMA importer_data TO {LOADER}")
    admin = run_as.address.replace("%s:secret", "postgres:x")
    with closing(psycopg2.connect(admin)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(GIVE)
    for words in ("run", "verify --deep", "doctor"):
        assert run_as(LOADER, *words.split(), **history).code == 0, words


@pytest.mark.thorough
def test_a_staging_schema_of_the_dlt_of_others_is_not_to_be_taken_over(run_as: RunAs) -> None:
    admin = run_as.address.replace("%s:secret", "postgres:x")
    with closing(psycopg2.connect(admin)) as connection, connection, connection.cursor() as cursor:
        cursor.execute("SET search_path = importer_data_staging; CREATE TABLE _dlt_loads (load_id text)")
        cursor.execute("CREATE TABLE _dlt_version (version_hash text)")
    ended = run_as(LOADER, "run")
    assert (ended.code, "Rows are staged in the schema 'importer_data_staging'" in ended.err) == (2, True), ended.err
    assert "OWNER" not in ended.err


@pytest.mark.thorough
def test_a_function_that_is_made_anew_keeps_its_rights(run_as: RunAs) -> None:
    """It is replaced whenever the template gets a field."""
    history = {"SOURCES__IMPORTER__HISTORY": "true"}
    assert run_as(LOADER, "run", **history).code == 0
    name = "importer_data_views.customers_as_of(timestamptz)"
    with closing(psycopg2.connect(run_as.address.replace("%s", LOADER))) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(f"REVOKE ALL ON FUNCTION {name} FROM PUBLIC; GRANT EXECUTE ON FUNCTION {name} TO {PERSON}")
        run_as.service.add_import("customers", [{"a field that is new": 1}])
        assert run_as(LOADER, "run", **history).code == 0
        cursor.execute("SELECT pg_get_function_result(%s::regprocedure)", [name])
        assert "a field that is new" in cursor.fetchone()[0]
        for role, may in ((PERSON, True), ("public", False)):
            cursor.execute("SELECT has_function_privilege(%s, %s, 'EXECUTE')", [role, name])
            assert cursor.fetchone() == (may,), role


@pytest.mark.thorough
def test_a_password_may_have_blanks(run_as: RunAs) -> None:
    """The server of the tests takes any password, but the driver that loads refuses blanks in an address."""
    run_as = replace(run_as, address=f"{run_as.address}?options=-c%20lock_timeout%3D120s")
    for words in ("check", "run", "verify --deep", "doctor"):
        ended = run_as(LOADER, *words.split(), password="correct horse p@ss+word%20")
        assert (ended.code, "horse" in ended.out + ended.err) == (0, False), (words, ended.err)


@pytest.mark.parametrize("form", ["my p@ss", "my%20p%40ss", "my p%40ss"])
def test_a_failure_does_not_quote_the_password(form: str, tmp_path: Path) -> None:
    """It is stored in `sync_runs`, which every reader reads, and shown by their commands."""
    destination = dlt.destinations.postgres("postgresql://loader:my%20p%40ss@localhost/warehouse")
    pipeline = dlt.pipeline("importer", pipelines_dir=str(tmp_path), destination=destination)
    told = str(explain_failure(RuntimeError(f"refused {form!r}"), pipeline))
    assert told == "An unexpected error occurred: refused '***'"
    add_secret("my p@ss")
    assert scrub(form) == "***"


@pytest.mark.thorough
def test_the_loader_can_do_everything_and_readers_can_read(run_as: RunAs, address: str) -> None:
    def done(*arguments: str) -> None:
        ended = run_as(LOADER, *arguments, SOURCES__IMPORTER__HISTORY="true")
        assert ended.code == 0, (arguments, ended.err)
        assert "superuser" not in ended.out + ended.err

    assert "is a PostgreSQL superuser" in run_as("postgres", "check").out
    for words in ("check", "run", "sql apply", "status", "doctor --repair", "verify --deep", "report", "templates"):
        done(*words.split())
    run_as.service.edit_randomly(20, seed=1)
    run_as.service.add_generated("orders", imports=2, rows=10)
    for words in ("run", "backfill --full", "rebuild", "compact", "sql apply"):
        done(*words.split())
    done("changes", "--since", "2020-01-01")
    done("query", "SELECT count(*) FROM v_imports")

    with closing(psycopg2.connect(address.replace("%s", PERSON))) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        for name in ("importer_data.records_orders", "importer_data.imports_history", "importer_data_views.v_imports"):
            cursor.execute(f"SELECT count(*) FROM {name}")
            assert cursor.fetchone() > (0,), name
        cursor.execute("SELECT count(*) FROM importer_data_views.orders")
        for refused in (
            "SELECT * FROM importer_data_staging.records",
            "DELETE FROM importer_data.records",
            "UPDATE importer_data.imports SET slug = slug",
            "INSERT INTO importer_data.sync_runs DEFAULT VALUES",
            "CREATE TABLE importer_data.x (a int)",
            "CREATE VIEW importer_data_views.x AS SELECT 1",
            "DROP TABLE importer_data.records",
            "TRUNCATE importer_data.records",
            "CREATE SCHEMA x",
        ):
            with pytest.raises(psycopg2.Error, match=r"permission denied|must be owner"):
                cursor.execute(refused)


def test_check_warns_of_a_database_that_lacks_characters(postgres_uri: str, tmp_path: Path) -> None:
    service = Service(seed=1, token=TOKEN)
    service.add_import("people", [{"name": "Erd\u0151s"}])
    with closing(psycopg2.connect(postgres_uri)) as connection, connection.cursor() as cursor, serve(service) as url:
        connection.autocommit = True
        environment = {**os.environ, "SOURCES__IMPORTER__BASE_URL": url, "SOURCES__IMPORTER__ACCESS_TOKEN": TOKEN}
        command = Command(tmp_path, environment | {"DLT_DATA_DIR": str(tmp_path / "dlt")})
        for encoding, warns in ("LATIN1", True), ("UTF8", False):
            name = f"in_{encoding.lower()}"
            cursor.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
            try:
                to = f"{postgres_uri.removesuffix('postgres')}{name}"
                assert (f"stores texts in {encoding}, which lacks" in command("--to", to, "check").out) is warns
                ran = command("--to", to, "run")
                assert ("has no equivalent in encoding" in ran.err, ran.code) == ((True, 1) if warns else (False, 0))
            finally:
                cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")
