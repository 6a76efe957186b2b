"""What is special about S3: who may commit from which machine, what is asked for, and what is never shown."""

from __future__ import annotations

import argparse
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import obstore
import pytest
from dlt.pipeline.pipeline import Pipeline

from connector.cli import configuration
from connector.cli.configuration import open_pipeline
from connector.cli.main import invoke
from connector.errors import ConfigError, LockedError, TransientError
from connector.load.dlt_bridge import load_package
from connector.maintain.verify import verify
from connector.run.sync import sync
from connector.sandbox import Service, serve
from connector.settings import Settings
from connector.warehouse.adapters.lake import Lake
from connector.warehouse.adapters.lake_log import Change, Column, Table
from connector.warehouse.adapters.parquet_log import ParquetLog
from connector.warehouse.adapters.s3_store import S3Store
from connector.warehouse.destination import dataset_fingerprint, location
from connector.warehouse.failures import explain_failure
from connector.warehouse.lock import lock_path, sole_writer
from connector.warehouse.s3_address import S3Address
from tests.destinations.test_destinations import run
from tests.support.lakes import pipeline
from tests.support.s3_server import SECRET

COMMAND = (sys.executable, "-m", "connector")


def elsewhere(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a command on another machine: it sees no lock of this one."""
    (tmp_path / "elsewhere").mkdir(exist_ok=True)
    return {**os.environ, "DLT_DATA_DIR": str(tmp_path / "elsewhere")}


# -- one writer -----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("other", ["run", "compact"])
def test_of_two_runs_on_two_machines_the_one_that_is_overtaken_commits_nothing_more(
    other: str, s3: str, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loaded: list[str] = []

    def overtaken(into: Pipeline, *arguments: Any) -> str | None:
        if not loaded:
            ended = subprocess.run(
                [*COMMAND, other, "--to", s3], env=elsewhere(tmp_path), capture_output=True, text=True, check=False
            )
            assert ended.returncode == 0, ended.stderr
            assert SECRET not in ended.stdout + ended.stderr
        loaded.append(other)
        return load_package(into, *arguments)

    with serve(service) as url:
        made = Settings.load(base_url=url, access_token=service.token)
        monkeypatch.setenv("SOURCES__IMPORTER__BASE_URL", url)
        monkeypatch.setenv("SOURCES__IMPORTER__ACCESS_TOKEN", service.token)
        assert sync(pipeline(s3), made).status == "succeeded"
        for slug in service.slugs():
            service.append_rows(slug, [{"new": 1}])
        ran = sync(pipeline(s3), made, load=overtaken)
        assert isinstance(ran.fatal, LockedError)
        assert "on another machine" in str(ran.fatal)
        assert (verify(pipeline(s3), made, deep=True).differences == []) == (other == "run")
        assert sync(pipeline(s3), made).status == "succeeded"
        assert verify(pipeline(s3), made, deep=True).differences == []


def test_the_lock_is_of_this_machine_and_of_the_place(s3: str) -> None:
    here, same, there = (pipeline(to) for to in (s3, s3, s3.replace("/lake?", "/lake2?")))
    assert lock_path(here) == lock_path(same)
    assert dataset_fingerprint(here) == dataset_fingerprint(same) != dataset_fingerprint(there)
    with sole_writer(here), sole_writer_of_another_dataset(s3), pytest.raises(LockedError), sole_writer(same):
        pass


def sole_writer_of_another_dataset(to: str) -> Any:
    into = open_pipeline(argparse.Namespace(to=to, destination=None, dataset="other", pipeline_name="other"))
    return sole_writer(into)


def test_the_endpoint_may_be_in_the_environment(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, _, endpoint = s3.partition("?endpoint=")
    other = dataset_fingerprint(pipeline(f"{place}?endpoint=https://minio.example"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    assert dataset_fingerprint(pipeline(place)) == dataset_fingerprint(pipeline(s3)) != other
    assert location(pipeline(place)) == place
    Lake(ParquetLog(S3Store(S3Address.of(place), "d")), "d").create()
    assert Lake(ParquetLog(S3Store(S3Address.of(s3), "d")), "d").log.read({}) == {}


def test_a_version_that_another_run_has_created_is_not_overwritten(s3: str) -> None:
    """Nothing but the service's own refusal tells of it: the commit asks for nothing before."""
    here, there = (ParquetLog(S3Store(S3Address.of(s3), "d")) for _ in range(2))
    here.create()
    assert here.read({}) == there.read({}) == {}
    table = Table(0, "id", {"n": Column("BIGINT")}, {})
    there.commit([Change("theirs", None, table, {})])
    with pytest.raises(LockedError):
        here.commit([Change("ours", None, table, {})])
    assert (ParquetLog(S3Store(S3Address.of(s3), "d")).read({}) or {}).keys() == {"theirs"}


def test_a_service_that_overwrites_what_is_to_be_created_only_once_is_refused(
    s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = obstore.put

    def careless(*given: Any, mode: str = "overwrite", **more: Any) -> Any:
        del mode
        return put(*given, **more)

    monkeypatch.setattr(obstore, "put", careless)
    store = S3Store(S3Address.of(s3), "d")
    with pytest.raises(ConfigError, match="overwrites an object"):
        Lake(ParquetLog(store), "d").create()
    assert [each.name for each in store.list("_importer")] == ["_importer/probe"]


# -- reading --------------------------------------------------------------------------------------------------------


def test_a_query_reads_only_the_parts_of_a_file_that_it_needs(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake(ParquetLog(S3Store(S3Address.of(s3), "d")), "d")
    lake.create()
    connection = lake.connect()
    with lake.transaction(connection) as transaction:
        wide = "SELECT range AS n, md5(range::VARCHAR) AS a, md5((-range)::VARCHAR) AS b FROM range(200_000)"
        transaction.execute(f'CREATE TABLE "d"."t" AS {wide}', ())
    lake.close(connection)
    again = Lake(ParquetLog(S3Store(S3Address.of(s3), "d")), "d")
    read: list[int] = []
    get_range = obstore.get_range

    def counted(*given: Any, start: int, end: int) -> Any:
        read.append(end - start)
        return get_range(*given, start=start, end=end)

    monkeypatch.setattr(obstore, "get_range", counted)
    connection = again.connect()
    assert connection.execute('SELECT sum(n) FROM "d"."t"').fetchall() == [(19_999_900_000,)]
    assert sum(read) < again.log.size() / 4
    assert connection.execute('SELECT count(DISTINCT a) FROM "d"."t"').fetchall() == [(200_000,)]
    again.close(connection)


def test_a_query_reads_the_tables_and_no_other_object(
    s3: str, served: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "run", "--to", s3)[0] == 0
    store = S3Store(S3Address.of(s3), "importer_data")
    newest = store.list("_importer")[-2].name
    for sql in (f"SELECT * FROM read_text('{store.path(newest)}')", "SELECT * FROM 's3://bucket/other.parquet'"):
        assert invoke(["query", sql, "--to", s3]) != 0, sql
    assert run(capsys, "query", "SELECT count(*) AS n FROM records", "--to", s3)[1]["rows"] == [{"n": 123}]


def test_a_place_that_is_not_there_is_not_created_by_reading(
    s3: str, served: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["status"], ["query", "SELECT 1"], ["verify"], ["plan"], ["check"]):
        run(capsys, *command, "--to", s3)
        assert S3Store(S3Address.of(s3), "importer_data").list() == [], command


# -- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("s3://", "is not a place in S3"),
        ("s3:bucket/lake", "is not supported"),
        ("s3://bucket", "is not a place in S3"),
        ("s3://bucket/", "is not a place in S3"),
        ("s3://bucket/a/../b", "is not a place in S3"),
        ("s3://bucket/a%20b", "is not a place in S3"),
        ("s3://bucket/lake*", "is not a place in S3"),
        ("s3://UPPER/lake", "is not a place in S3"),
        ("s3://key:s3cr3t-s3cr3t@bucket/lake", "has no room for keys"),
        ("s3://bucket/lake?access_key=x", "and not access_key"),
        ("s3://bucket/lake#x", "and not x"),
        ("s3://bucket/lake?endpoint=http://minio.example:9000", "is not encrypted"),
        ("s3://bucket/lake?endpoint=minio.example:9000", "is no address such as"),
        ("delta:s3://bucket/lake", "in S3 use plain Parquet"),
    ],
)
def test_a_place_that_is_refused(place: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        pipeline(place)
    assert "s3cr3t" not in str(refused.value)


def test_plain_http_is_allowed_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    assert S3Address.of("s3://bucket/lake?endpoint=http://minio.example:9000").is_plain_http


def test_the_extra_is_asked_for(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuration, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'importer-connector\[s3\]'"):
        pipeline(s3)


class Refusing(http.server.BaseHTTPRequestHandler):
    """A service that refuses every request with one status."""

    status = 403

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_PUT = do_POST = do_HEAD = do_GET

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def refusing() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_what_went_wrong_is_said_in_one_sentence_without_keys(
    s3: str, refusing: str, served: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    for to, code, said in (
        (s3.replace("//bucket/", "//no-bucket/"), 2, "There is no bucket no-bucket"),
        (f"{s3.partition('?')[0]}?endpoint={refusing}", 2, "S3 refused access to s3://bucket/"),
    ):
        for command in ("run", "status", "compact"):
            capsys.readouterr()
            assert invoke([command, "--to", to]) == code, (command, to)
            err = capsys.readouterr().err
            assert said in err
            assert SECRET not in err


def test_an_error_of_ours_within_duckdb_is_explained(s3: str) -> None:
    lake = Lake(ParquetLog(S3Store(S3Address.of(s3), "d")), "d")
    lake.create()
    connection = lake.connect()
    with lake.transaction(connection) as transaction:
        transaction.execute('CREATE TABLE "d"."t" AS SELECT 1 AS n', ())
    lake.close(connection)
    store = S3Store(S3Address.of(s3), "d")
    store.delete([each.name for each in store.list("t")])
    with pytest.raises(duckdb.Error) as found:
        Lake(ParquetLog(store), "d").connect()
    explained = explain_failure(found.value)
    assert isinstance(explained, TransientError)
    assert str(explained).endswith(".parquet is gone: `compact` removed earlier versions meanwhile. Run again.")
