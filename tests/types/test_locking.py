"""PostgreSQL: the lock of a dataset across machines, what happens when its session ends, and times in any zone."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg2
import pytest
from dlt.pipeline.pipeline import Pipeline

from connector import ConfigError, ConnectorError, LockedError
from connector.cli.configuration import open_pipeline
from connector.maintain.verify import verify
from connector.run.sync import sync
from connector.sandbox import Service, serve
from connector.settings import Settings
from connector.warehouse.destination import dataset_fingerprint
from connector.warehouse.lock import _sessions, check_lock_held, sole_writer
from tests.types.conftest import PostgreSQL

BACKEND = "SELECT pid FROM pg_stat_activity WHERE application_name = 'importer-connector lock'"
END = f"SELECT pg_terminate_backend(pid) FROM ({BACKEND}) AS held"


def opened(postgres: PostgreSQL, name: str = "importer", dataset: str | None = None) -> Pipeline:
    given = {"pipeline_name": name, "dataset": dataset or postgres.dataset, "destination": None, "to": postgres.uri}
    return open_pipeline(argparse.Namespace(**given))


def test_the_lock_holds_across_machines_and_names(postgres: PostgreSQL, monkeypatch: pytest.MonkeyPatch) -> None:
    with sole_writer(opened(postgres)):
        monkeypatch.setenv("DLT_DATA_DIR", str(postgres.folder / "another machine"))
        with pytest.raises(LockedError, match="another machine"), sole_writer(opened(postgres, "other")):
            pass
        with sole_writer(opened(postgres, dataset=f"{postgres.dataset}_other")):
            pass
    with sole_writer(opened(postgres, "other")):
        pass


def test_the_warehouse_is_the_database_whoever_asks(postgres: PostgreSQL) -> None:
    """A changed password or role leads to no other directory; another database does."""
    again = PostgreSQL(postgres.folder, postgres.uri.replace("postgres:x@", "loader:y@"))
    again.dataset = postgres.dataset
    elsewhere = PostgreSQL(postgres.folder, postgres.uri.removesuffix("postgres") + "other")
    elsewhere.dataset = postgres.dataset
    here, same, there = (dataset_fingerprint(opened(each)) for each in (postgres, again, elsewhere))
    assert here == same != there


def test_a_lost_lock_ends_the_run_before_it_commits_more(
    postgres: PostgreSQL, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service(seed=1)
    for n in range(4):
        service.add_import("T", [{"n": n}] * 10)
    commits: list[str] = []

    def end_the_session(record: logging.LogRecord) -> bool:
        if getattr(record, "event", "") == "package.committed":
            commits.append(record.getMessage())
            postgres.rows(END)
        return True

    log = logging.getLogger("connector.run")
    log.addFilter(end_the_session)
    try:
        with caplog.at_level(logging.INFO, "connector.run"), serve(service) as url:
            settings = Settings.load(base_url=url, access_token=service.token, batch_rows=10)
            tally = sync(opened(postgres), settings)
    finally:
        log.removeFilter(end_the_session)

    assert tally.status == "failed"
    assert "holds the lock" in str(tally.fatal)
    assert "this one loads no further package" in str(tally.fatal)
    assert len(commits) == 1
    assert len(postgres.rows("SELECT * FROM sync_imports")) == 1
    assert postgres.run(service).status == "succeeded"
    assert len(postgres.rows("SELECT * FROM records")) == 40


def test_the_session_of_the_lock_is_kept_alive(postgres: PostgreSQL) -> None:
    pipeline = opened(postgres)
    with sole_writer(pipeline):
        check_lock_held(pipeline)
        assert _sessions[pipeline].get_dsn_parameters()["keepalives_idle"] == "30"
        postgres.rows(END)
        for _ in range(2):  # a connection that was opened anew would be one without the lock
            with pytest.raises(ConnectorError, match="holds the lock"):
                check_lock_held(pipeline)
    check_lock_held(pipeline)  # after the lock was given back nothing is claimed


class Pooled:
    """A client of a pooler with a pool of one: each statement goes to the same session of the server."""

    def __init__(self, server: Any) -> None:
        self._server, self.autocommit = server, False

    def cursor(self) -> Any:
        return self._server.cursor()

    def close(self) -> None:
        pass


def test_a_pooler_that_shares_sessions_is_refused(postgres: PostgreSQL, monkeypatch: pytest.MonkeyPatch) -> None:
    """By such a session the lock is taken as often as somebody asks, and two runs would write at once."""
    with closing(psycopg2.connect(postgres.uri)) as server:
        server.autocommit = True
        monkeypatch.setattr(psycopg2, "connect", lambda *_, **__: Pooled(server))
        with pytest.raises(ConfigError, match="pool_mode = session"), sole_writer(opened(postgres)):
            pass


@pytest.fixture(params=["America/New_York", "Pacific/Kiritimati"])
def zoned(request: pytest.FixtureRequest, postgres: PostgreSQL) -> Iterator[PostgreSQL]:
    def to(zone: str) -> None:
        connection = psycopg2.connect(postgres.uri)
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER DATABASE postgres {zone}")
        connection.close()

    to(f"SET timezone = '{request.param}'")
    yield postgres
    to("RESET timezone")


@pytest.mark.parametrize("options", ["", "?options=-ctimezone%3DAsia/Tokyo"])
def test_times_at_both_ends_of_the_calendar(zoned: PostgreSQL, options: str) -> None:
    zoned.uri += options
    ends = [datetime.min.replace(tzinfo=UTC) + timedelta(seconds=1), datetime.max.replace(tzinfo=UTC)]
    service = Service(seed=1, clock=lambda: ends[0])
    service.add_import("T", [{"n": 1}])
    ends.reverse()
    service.add_import("T", [{"n": 1}])
    for _ in range(2):
        tally = zoned.run(service)
        assert (tally.status, tally.fatal) == ("succeeded", None)
    assert zoned.run_dlt(service)
    with serve(service) as url:
        settings = Settings.load(base_url=url, access_token=service.token)
        assert verify(zoned.pipeline(), settings, True).exit_code == 0
    shown = zoned.tuples("SELECT to_char(updated_at, 'YYYY-MM-DD HH24:MI:SS.US BC') FROM imports ORDER BY updated_at")
    assert shown == [("0001-01-01 00:00:01.000000 AD",), ("9999-12-31 23:59:59.999999 AD",)]
