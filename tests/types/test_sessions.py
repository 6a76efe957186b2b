"""What a session with PostgreSQL is set to by others, which must neither change a value nor keep a run waiting."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing

import psycopg2
import pytest

from connector.maintain.verify import verify
from connector.sandbox import Service, serve
from connector.settings import Settings
from connector.warehouse import Warehouse as Destination
from connector.warehouse.destination import session_options
from tests.types.conftest import PostgreSQL

ODD = {"client_encoding": "LATIN1", "extra_float_digits": "-12", "timezone": "Pacific/Kiritimati"}
ADDRESS = "?client_encoding=LATIN1&options=-cextra_float_digits%3D-12%09-ctimezone%3DAsia/Tokyo"
TEXT, NUMBER = "é€😀", 1e300 / 7  # the number has seventeen digits


@pytest.fixture(scope="module")
def databases(postgres_uri: str) -> Iterator[dict[str, str]]:
    """Two more databases: one that sets all its sessions oddly, and one that knows no encoding."""
    names = {"odd": "", "ascii": " ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"}
    with closing(psycopg2.connect(postgres_uri)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        for name, how in names.items():
            cursor.execute(f"CREATE DATABASE {name}{how}")
        for setting, value in ODD.items():
            cursor.execute(f"ALTER DATABASE odd SET {setting} = '{value}'")
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


def test_every_session_is_set_alike_and_keeps_what_the_user_set(oddly_set: PostgreSQL) -> None:
    oddly_set.uri += ("\t" if "options=" in oddly_set.uri else "?options=").replace("\t", "%09") + "-cwork_mem%3D7MB"
    with Destination(oddly_set.pipeline()).connect() as connection:
        names = ("TimeZone", "client_encoding", "extra_float_digits", "lock_timeout", "work_mem")
        shown = [connection.query(f"SELECT current_setting('{name}') AS value").to_pylist()[0] for name in names]
    assert [row["value"] for row in shown] == ["UTC", "UTF8", "3", "1min", "7MB"]


def test_the_options_of_an_address_are_combined_once() -> None:
    combined = session_options("-c lock_timeout=1s  -ctimezone=Asia/Tokyo")
    before, after = "-clock_timeout=60s\t", "\t-ctimezone=UTC\t-cextra_float_digits=3"
    assert combined == f"{before}-c\tlock_timeout=1s\t-ctimezone=Asia/Tokyo{after}"
    assert session_options(combined) == combined
