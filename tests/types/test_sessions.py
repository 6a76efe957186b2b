"""What a session with PostgreSQL is set to by others, which must neither change a value nor keep a run waiting."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from connector.errors import DatabaseBusyError
from connector.maintain.rebuild import rebuild
from connector.maintain.verify import verify
from connector.reporting.views.applying import keep_current
from connector.sandbox import Faults, Service, serve
from connector.settings import Settings
from connector.warehouse import Warehouse as Destination
from connector.warehouse.destination import session_options
from tests.types.conftest import MySQL, PostgreSQL, made

pytestmark = pytest.mark.thorough

ODD = {
    "client_encoding": "LATIN1",
    "extra_float_digits": "-12",
    "timezone": "Pacific/Kiritimati",
    "quote_all_identifiers": "on",
    "DateStyle": "SQL, DMY",
    "standard_conforming_strings": "off",
}
ADDRESS = "?client_encoding=LATIN1&options=-cextra_float_digits%3D-12%09-ctimezone%3DAsia/Tokyo"
TEXT, NUMBER = "é€😀", 1e300 / 7  # the number has seventeen digits


@pytest.fixture(scope="module")
def databases(postgres_uri: str) -> Iterator[dict[str, str]]:
    """Three more databases: one sets all its sessions oddly, one ends them soon, and one knows no encoding."""
    names = {
        "odd": "",
        "impatient": "",
        "ascii": " ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'",
    }
    with closing(psycopg2.connect(postgres_uri)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        for name, how in names.items():
            cursor.execute(f"CREATE DATABASE {name}{how}")
        for setting, value in ODD.items():
            cursor.execute(f"ALTER DATABASE odd SET {setting} = '{value}'")
        cursor.execute("ALTER DATABASE impatient SET idle_session_timeout = '200ms'")
        yield {name: postgres_uri.removesuffix("postgres") + name for name in names}
        for name in names:
            cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["database", "environment", "address of ascii"])
def oddly_set(
    request: pytest.FixtureRequest, postgres: PostgreSQL, databases: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> PostgreSQL:
    if request.param == "database":
        postgres.uri = databases["odd"]
    if request.param == "environment":
        monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
        monkeypatch.setenv("PGTZ", ODD["timezone"])
        monkeypatch.setenv("PGOPTIONS", "-cextra_float_digits=-12")
    if request.param == "address of ascii":
        postgres.uri = databases["ascii"] + ADDRESS
    return postgres


def test_values_are_stored_and_carried_over_as_they_came(oddly_set: PostgreSQL) -> None:
    service = Service(seed=1)
    kept = service.add_import("t", [{"text": TEXT, "number": NUMBER, "row": n} for n in range(2)])
    service.set_metadata(kept, {"é": TEXT})
    assert oddly_set.run(service, deletes="keep").status == "succeeded"
    service.delete_row(kept, next(service.record_slugs(kept)))
    assert oddly_set.run(service, deletes="keep").status == "succeeded"

    stored = oddly_set.tuples(
        "SELECT encode(convert_to(text, 'UTF8'), 'hex') AS text, encode(float8send(number), 'hex') AS number, "
        "_deleted_at IS NULL AS live FROM records_t ORDER BY row"
    )
    as_sent = (TEXT.encode().hex(), struct.pack(">d", NUMBER).hex())
    assert stored == [(*as_sent, False), (*as_sent, True)]
    with serve(service) as url:
        settings = Settings.load(base_url=url, access_token=service.token, deletes="keep")
        assert verify(oddly_set.pipeline(), settings, True).as_json()["differences"] == []


def test_the_name_of_a_template_is_never_read_as_sql(oddly_set: PostgreSQL) -> None:
    service = Service(seed=1)
    table = f"{oddly_set.dataset}.records"
    name = f"\\'; DELETE FROM {table}; COMMIT; --"  # where a backslash escapes, its first quote ends the literal
    service.add_import(name, [{"a": 1}])
    assert oddly_set.run(service).status == "succeeded"

    assert keep_current(oddly_set.pipeline(), loaded=True) is None

    assert oddly_set.tuples("SELECT count(*) AS n FROM records") == [(1,)]
    assert oddly_set.tuples(f"SELECT DISTINCT template FROM {oddly_set.dataset}_views.v_fields") == [(name,)]


def test_every_session_is_set_alike_and_keeps_what_the_user_set(oddly_set: PostgreSQL) -> None:
    oddly_set.uri += ("\t" if "options=" in oddly_set.uri else "?options=").replace("\t", "%09") + "-cwork_mem%3D7MB"
    with Destination(oddly_set.pipeline()).connect() as connection:
        names = ("TimeZone", "client_encoding", "extra_float_digits", "lock_timeout", "work_mem")
        shown = [connection.query(f"SELECT current_setting('{name}') AS value").to_pylist()[0] for name in names]
    assert [row["value"] for row in shown] == ["UTC", "UTF8", "3", "1min", "7MB"]


def test_a_session_outlasts_the_limit_of_its_server_on_idle_ones(
    postgres: PostgreSQL, databases: dict[str, str]
) -> None:
    postgres.uri = databases["impatient"]
    service = Service(seed=1, faults=Faults(latency=(0.4, 0.4)))
    service.add_import("t", [{"n": 1}])

    ran = postgres.run(service)

    assert ran.status == "succeeded", ran.error
    with Destination(postgres.pipeline()).connect() as connection:
        native: Any = connection.client.native_connection
        assert native.get_dsn_parameters()["keepalives_idle"] == "30"


def test_a_session_with_mysql_outlasts_the_usual_limit(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    mysql = made(request, "mysql", tmp_path)
    assert mysql.run(Service(seed=1)).status == "succeeded"
    with Destination(mysql.pipeline()).connect() as connection:
        [row] = connection.query("SELECT @@session.wait_timeout AS seconds").to_pylist()
    assert row["seconds"] == 30 * 24 * 3600


@pytest.mark.dialect
def test_a_server_of_mysql_may_take_double_quotes_for_names(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    warehouse = made(request, "mysql", tmp_path)
    assert isinstance(warehouse, MySQL)
    service = Service(seed=1)
    service.add_import("t", [{"text": TEXT}])
    with closing(warehouse.server.session()) as session, session.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.sql_mode")
        [usual] = cursor.fetchone()
        cursor.execute("SET GLOBAL sql_mode = 'ANSI'")
        try:
            assert warehouse.run(service).status == "succeeded"
        finally:
            cursor.execute("SET GLOBAL sql_mode = %s", [usual])
    assert warehouse.tuples("SELECT text FROM records_t") == [(TEXT,)]


def test_the_options_of_an_address_are_combined_once() -> None:
    combined = session_options("-c lock_timeout=1s  -ctimezone=Asia/Tokyo")
    before, after = "-clock_timeout=60s\t", "\t-ctimezone=UTC\t-cextra_float_digits=3\t-cquote_all_identifiers=off"
    after += "\t-cstandard_conforming_strings=on"
    assert combined == f"{before}-c\tlock_timeout=1s\t-ctimezone=Asia/Tokyo{after}"
    assert session_options(combined) == combined


@pytest.fixture
def read_elsewhere(postgres: PostgreSQL) -> Callable[[str], AbstractContextManager[int]]:
    """Reads a table in a transaction that is left open, under a name; gives the process that holds it."""

    @contextmanager
    def reading(table: str) -> Iterator[int]:
        with closing(psycopg2.connect(postgres.uri, application_name="notebook")) as session:
            with session.cursor() as cursor:
                cursor.execute(f"SELECT * FROM {postgres.dataset}.{table}")
            yield session.info.backend_pid

    return reading


def test_a_reader_that_leaves_its_transaction_open_stops_no_run_for_ever(
    postgres: PostgreSQL, read_elsewhere: Callable[[str], AbstractContextManager[int]]
) -> None:
    service = Service(seed=1)
    service.add_import("t", [{"a": 1}])
    postgres.run(service)
    postgres.uri += "?options=-clock_timeout%3D100ms"
    service.add_import("t", [{"a": "text", "new": 2}, {"a": "text"}])

    with read_elsewhere("records_t") as process, read_elsewhere("sync_fields"):
        tally = postgres.run(service)
        assert isinstance(tally.fatal, DatabaseBusyError)
        assert re.fullmatch(
            rf"Table records_t is locked by process {process} \(user postgres, application notebook, idle in "
            r"transaction since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\), and was not released in time; end that "
            "session or wait for it, then run again to load what is missing.",
            str(tally.fatal),
        )
    assert postgres.run(service).status == "succeeded"
    assert postgres.tuples("SELECT new FROM records_t ORDER BY 1") == [(2,), (None,), (None,)]

    settings = Settings.load(base_url="http://127.0.0.1", access_token="x")
    with read_elsewhere("records_t") as process, pytest.raises(DatabaseBusyError, match=f"process {process} "):
        rebuild(postgres.pipeline(), settings)
    assert [done.rows for done in rebuild(postgres.pipeline(), settings)] == [3]


def test_a_job_that_waits_for_a_row_in_vain_is_explained_too(
    postgres: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOAD__RAISE_ON_MAX_RETRIES", "1")  # five, with a second in between
    service = Service(seed=1)
    changed = service.add_import("t", [{"a": 1}])
    postgres.run(service)
    service.append_rows(changed, [{"a": 2}])
    with closing(psycopg2.connect(postgres.uri)) as session, session.cursor() as cursor:
        holder = session.info.backend_pid
        cursor.execute(f"UPDATE {postgres.dataset}.records SET sort = sort")
        postgres.uri += "?options=-clock_timeout%3D20ms"
        tally = postgres.run(service)
    assert f"locked by process {holder} (" in str(tally.fatal)
    assert postgres.run(service).status == "succeeded"
    assert postgres.tuples("SELECT count(*) FROM records") == [(2,)]
