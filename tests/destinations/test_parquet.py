"""What is special about plain Parquet: who else can read it, who may commit, and what `compact` removes."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

import connector
from connector.cli.main import invoke
from connector.errors import ConfigError, ConnectorError, LockedError, NewerFormatError
from connector.sandbox import Service
from connector.warehouse.adapters import folder_store
from connector.warehouse.adapters.folder_store import FolderStore
from connector.warehouse.adapters.lake import Lake
from connector.warehouse.adapters.lake_log import new_name
from connector.warehouse.adapters.parquet_log import ParquetLog
from connector.warehouse.adapters.s3_store import S3Store
from connector.warehouse.destination import dataset_fingerprint
from connector.warehouse.lock import lock_path, sole_writer
from connector.warehouse.s3_address import S3Address
from tests.destinations.test_destinations import run
from tests.support.lakes import execute, pipeline

Make = Callable[[], Lake]


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return "filesystem:lake"


@pytest.fixture(params=["folder", "bucket"])
def make(request: Any, tmp_path: Path) -> Make:
    """Make another lake of the same dataset, as another process on another machine would."""
    if request.param == "folder":
        return lambda: Lake(ParquetLog(FolderStore(tmp_path / "d")), "d")
    place = S3Address.of(request.getfixturevalue("s3"))
    return lambda: Lake(ParquetLog(S3Store(place, "d")), "d")


@pytest.fixture
def lake(make: Make) -> Lake:
    """A lake with two tables, one of them of two files."""
    lake = make()
    lake.create()
    execute(lake, 'CREATE TABLE "d"."t" (n BIGINT NOT NULL, word VARCHAR)')
    execute(lake, """INSERT INTO "d"."t" VALUES (1, 'one'), (2, 'two')""")
    execute(lake, """INSERT INTO "d"."t" VALUES (3, 'three')""", 'CREATE TABLE "d"."u" AS SELECT * FROM "d"."t"')
    return lake


def log_of(lake: Lake) -> ParquetLog:
    assert isinstance(lake.log, ParquetLog)
    return lake.log


def rows(lake: Lake, table: str = "t") -> list[Any]:
    connection = lake.connect()
    try:
        return [each for (each,) in connection.execute(f'SELECT n FROM "d"."{table}" ORDER BY ALL').fetchall()]
    finally:
        lake.close(connection)


def versions(lake: Lake) -> list[str]:
    return [each.name for each in log_of(lake).store.list("_importer") if each.name.endswith(".json")]


# -- what a run leaves ---------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_other_readers_see_what_the_service_has(
    address: str, tmp_path: Path, served: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "lake" / "importer_data"

    def there() -> set[str]:
        return {each for slug in served.slugs() for each in served.record_slugs(slug)}

    def by_views(table: str) -> list[Any]:
        with closing(duckdb.connect()) as database:
            database.execute((folder / "_importer" / "current.sql").read_text())
            return database.execute(f"SELECT slug FROM {table}").fetchall()

    def by_log(table: str) -> list[Any]:
        newest = max(folder.glob("_importer/*.json"))
        files = json.loads(newest.read_text())["tables"][table]["files"]
        return [slug for file in files for slug in pq.read_table(folder / table / file).column("slug").to_pylist()]

    def by_pattern(table: str) -> list[Any]:
        return duckdb.execute(f"SELECT slug FROM read_parquet('{folder}/{table}/*.parquet')").fetchall()

    assert run(capsys, "run", "--to", address)[0] == 0
    for n in range(2):
        served.edit_row(served.slugs()[n], next(iter(served.record_slugs(served.slugs()[n]))), {"new": n})
        assert run(capsys, "run", "--to", address)[0] == 0
    served.delete_import(served.slugs()[1])
    assert run(capsys, "run", "--to", address)[0] == 0
    assert sorted(by_log("records")) == sorted(slug for (slug,) in by_views("records")) == sorted(there())
    assert len(by_pattern("records")) > len(there())  # superseded rows, too

    assert run(capsys, "compact", "--to", address)[0] == 0
    for each in (by_views, by_pattern):
        assert sorted(slug for (slug,) in each("records")) == sorted(there())
    kinds = duckdb.execute(f"DESCRIBE FROM read_parquet('{folder}/records/*.parquet')").fetchall()
    assert {name: kind for name, kind, *_ in kinds}["created_at"] == "TIMESTAMP WITH TIME ZONE"


@pytest.mark.thorough
def test_dlt_alone_loads_it(address: str, served: Service) -> None:
    into = pipeline("filesystem:a läke #1/[x]*?'%25/slug=x")
    into.run(connector.importer_source())
    served.delete_row(served.slugs()[0], next(iter(served.record_slugs(served.slugs()[0]))))
    into.run(connector.importer_source())
    with into.sql_client() as client:
        assert client.execute_sql("SELECT count(*), min(sort) FROM records") == [(122, 0)]
    assert connector.verify(into, deep=True).differences == ()


@pytest.mark.thorough
def test_what_was_erased_is_in_no_file_after_compact_and_files_of_the_user_stay(
    address: str, tmp_path: Path, served: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    served.add_import("secrets", [{"text": "secret-zzzz"}, {"text": "secret-0000"}])
    assert run(capsys, "run", "--to", address)[0] == 0
    served.delete_import(served.slugs()[-1])
    assert run(capsys, "run", "--to", address)[0] == 0
    folder = tmp_path / "lake" / "importer_data"
    killed = [folder / table / new_name(table) for table in ("records", "records_never")]
    theirs = [folder / "records" / name for name in ("theirs.parquet", f"{killed[0].stem} (copy).parquet")]
    theirs += [folder / "my_copy" / each.name for each in folder.glob("records/importer-*.parquet")]
    theirs += [folder / "_importer" / "notes.txt", tmp_path / "lake" / "other" / "records" / killed[0].name]
    for path in (*killed, *theirs):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"secret-zzzz")
    code, told = run(capsys, "compact", "--to", address)
    assert (code, told["bytes_after"] < told["bytes_before"]) == (0, True)
    assert [path.exists() for path in (*killed, *theirs)] == [False] * len(killed) + [True] * len(theirs)
    for file in folder.rglob("*.parquet"):
        if file not in theirs:
            sql = f"SELECT count(*) FROM '{file}' AS t WHERE CAST(t AS VARCHAR) LIKE '%secret-%'"
            assert duckdb.execute(sql).fetchall() == [(0,)], file
    assert len([*folder.glob("_importer/*.json")]) == 1
    assert run(capsys, "verify", "--deep", "--to", address)[1]["differences"] == []
    assert run(capsys, "run", "--to", address)[1]["load_ids"] == []


def test_a_place_that_is_not_there_is_not_created_by_reading(
    address: str, tmp_path: Path, served: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["status"], ["query", "SELECT 1"], ["verify"], ["plan"]):
        run(capsys, *command, "--to", address)
        assert not (tmp_path / "lake").exists(), command
    assert run(capsys, "check", "--to", address)[0] == 0
    assert [path for path in tmp_path.glob("lake/*") if path.is_dir()] == []


def test_a_query_reads_the_tables_and_no_other_file(
    tmp_path: Path, served: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    address = "filesystem:la[k]e *"  # none of this is a pattern
    log = tmp_path / "la[k]e *" / "importer_data" / "_importer"
    assert run(capsys, "run", "--to", address)[0] == 0
    newest = max(each for each in log.iterdir() if each.suffix == ".json")
    for sql in (
        "DELETE FROM records",
        f"SELECT * FROM read_text('{newest}')",
        f"SELECT * FROM glob('{tmp_path}/*')",
        "SELECT getenv('HOME')",
    ):
        assert invoke(["query", sql, "--to", address]) != 0, sql
    assert run(capsys, "query", "SELECT count(*) AS n FROM records", "--to", address)[1]["rows"] == [{"n": 123}]
    with closing(duckdb.connect()) as database:
        database.execute((log / "current.sql").read_text())
        assert database.execute("SELECT count(*) FROM records").fetchall() == [(123,)]
    for command in (["sql", "apply"], ["report"], ["dbt", "sources"]):
        assert invoke([*command, "--to", address]) == 2
        assert "query the tables" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["filesystem:", "filesystem://", "gs://bucket/lake", "az://container/lake"])
def test_a_place_that_is_refused(place: str) -> None:
    with pytest.raises(ConfigError, match="is not supported"):
        pipeline(place)


@pytest.mark.parametrize("scheme", ["filesystem", "delta"])
def test_the_lock_is_in_the_folder_whatever_link_leads_to_it(scheme: str, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    real, link, other = (pipeline(f"{scheme}:///{tmp_path}/{name}") for name in ("real", "link", "other"))
    assert lock_path(real) == lock_path(link) == tmp_path / "real" / ".importer_data.lock"
    assert dataset_fingerprint(real) == dataset_fingerprint(link) != dataset_fingerprint(other)
    with sole_writer(real), sole_writer(other), pytest.raises(LockedError), sole_writer(link):
        pass


# -- commits --------------------------------------------------------------------------------------------------------


def test_a_view_has_a_column_that_is_in_no_file_yet(lake: Lake) -> None:
    execute(lake, 'ALTER TABLE "d"."t" ADD COLUMN more JSON', 'CREATE TABLE "d"."empty" (a JSON, b DATE)')
    with closing(duckdb.connect()) as database:
        if lake.log.filesystem is not None:
            database.register_filesystem(lake.log.filesystem)
        database.execute(log_of(lake).store.read("_importer/current.sql"))
        assert database.execute("SELECT * FROM t ORDER BY n").fetchall()[2] == (3, "three", None)
        assert database.execute("SELECT count(*) FROM empty").fetchall() == [(0,)]


@pytest.mark.parametrize("meanwhile", ["commits", "compacts", "drops", "drops and creates"])
def test_of_two_writers_the_one_that_is_overtaken_commits_nothing_more(meanwhile: str, lake: Lake, make: Make) -> None:
    other, connection = make(), lake.connect()  # a run keeps one open
    if meanwhile == "commits":
        execute(other, 'DELETE FROM "d"."t" WHERE n = 1')
    elif meanwhile == "compacts":  # so that the version which the one creates is not there any more
        execute(other, 'DELETE FROM "d"."t" WHERE n = 1')
        other.compact(["t"])
    else:
        other.drop(with_tables=True)
    if meanwhile == "drops and creates":
        other.create()
        for n in range(9):  # up to a later version than before
            execute(other, f'CREATE TABLE "d"."t{n}" AS SELECT 7 AS n')
    there = log_of(make()).read({})
    for _ in range(2):
        with pytest.raises((LockedError, duckdb.Error) if meanwhile == "drops" else LockedError):
            execute(lake, 'CREATE TABLE "d"."mine" AS SELECT 1 AS n')
    assert meanwhile == "drops" or log_of(make()).read({}) == there
    if meanwhile == "drops":
        assert log_of(make()).read({}) is None
    lake.close(connection)

    lake.begin()  # the next run builds on what is there
    lake.create()
    execute(lake, 'CREATE TABLE "d"."mine" AS SELECT 1 AS n')
    assert rows(make(), "mine") == [1]


def test_a_run_that_reads_what_another_one_has_committed_meanwhile_is_overtaken_too(lake: Lake, make: Make) -> None:
    other = make()
    assert rows(other) == [1, 2, 3]
    execute(lake, 'DELETE FROM "d"."t" WHERE n = 1')
    assert rows(other) == [2, 3]
    with pytest.raises(LockedError):
        execute(other, 'DELETE FROM "d"."t" WHERE n = 2')
    assert rows(make()) == [2, 3]


@pytest.mark.parametrize("answer", ["asked again", "lost"])
def test_a_commit_whose_answer_is_lost_is_known_as_our_own(
    answer: str, lake: Lake, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = type(log_of(lake).store)
    create = store.create

    def lost(own: Any, name: str, text: str) -> object:
        create(own, name, text)
        raise FileExistsError if answer == "asked again" else OSError("the connection was cut")

    monkeypatch.setattr(store, "create", lost)
    with suppress(*[OSError] * (answer == "lost")):
        execute(lake, 'DELETE FROM "d"."t" WHERE n = 1', 'DELETE FROM "d"."u" WHERE n = 2')
    monkeypatch.undo()
    assert (rows(lake), rows(lake, "u")) == (rows(make()), rows(make(), "u")) == ([2, 3], [1, 3])
    execute(lake, 'DELETE FROM "d"."t" WHERE n = 3')
    assert rows(make()) == [2]


@pytest.mark.parametrize("step", ["add", "create", "replace"])
def test_a_commit_to_several_tables_is_one_step(
    step: str, lake: Lake, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = type(log_of(lake).store)

    def killed(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(store, step, killed)
    both = ("""UPDATE "d"."t" SET word = 'new' WHERE n = 3""", 'DELETE FROM "d"."u" WHERE n < 3', 'DROP TABLE "d"."u"')
    with pytest.raises(KeyboardInterrupt):
        execute(lake, both[0], both[1], 'CREATE TABLE "d"."w" AS SELECT 1::BIGINT AS n')
    monkeypatch.undo()
    after = make()
    assert rows(after, "u") == ([3] if step == "replace" else [1, 2, 3])
    execute(after, 'DELETE FROM "d"."t" WHERE n = 1')
    assert rows(make()) == [2, 3]


def test_compact_leaves_a_file_that_another_run_has_written_meanwhile(
    lake: Lake, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other run began after the version that `compact` commits, and commits its file only afterwards."""
    store = type(log_of(lake).store)
    other, delete = make(), store.delete

    def slowly(own: Any, names: Any) -> None:
        monkeypatch.undo()
        execute(other, """INSERT INTO "d"."t" VALUES (9, 'theirs')""")
        delete(own, names)

    execute(lake, 'DELETE FROM "d"."t" WHERE n = 1')
    monkeypatch.setattr(store, "delete", slowly)
    lake.compact(["t", "u"])
    assert rows(make()) == rows(other) == [2, 3, 9]


def test_compact_leaves_a_file_of_a_run_that_began_after_its_commit(
    lake: Lake, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That run can still commit the file, unlike one that began before the last commit of `compact`."""
    commit = ParquetLog._commit
    written: list[str] = []

    def write(path: str) -> None:
        duckdb.execute(f"COPY (SELECT 9 AS n, 'theirs' AS word) TO '{path}'")

    def followed(own: ParquetLog, tables: Any) -> None:
        commit(own, tables)
        written.append(log_of(make()).add("t", write)[0])

    monkeypatch.setattr(ParquetLog, "_commit", followed)
    lake.compact(["t", "u"])
    assert f"t/{written[-1]}" in {each.name for each in log_of(lake).store.list("t")}


@pytest.mark.parametrize("merges", [True, False])
def test_compact_stops_a_run_whose_files_it_may_remove(
    merges: bool, lake: Lake, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run has written a file and is about to commit it."""
    if not merges:
        lake.compact(["t", "u"])
    commit = ParquetLog._commit

    def slowly(own: ParquetLog, tables: Any) -> None:
        monkeypatch.undo()
        other = make()
        other.compact(["t", "u"])
        commit(own, tables)

    monkeypatch.setattr(ParquetLog, "_commit", slowly)
    with pytest.raises(LockedError):
        execute(lake, """INSERT INTO "d"."t" VALUES (9, 'lost')""")
    assert rows(make()) == [1, 2, 3]


def test_a_log_that_cannot_be_read_is_named(lake: Lake, make: Make) -> None:
    store = log_of(lake).store
    store.replace(versions(lake)[-1], '{"format": 2}')
    with pytest.raises(NewerFormatError, match="newer version"):
        rows(make())
    store.replace(versions(lake)[-1], "[]")
    with pytest.raises(ConnectorError, match=r"\d{20}\.json cannot be read"):
        rows(make())


def test_what_a_commit_needs_is_on_disk_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(folder_store, "sync", synced.append)
    folder = tmp_path / "new" / "d"
    lake = Lake(ParquetLog(FolderStore(folder)), "d")
    lake.create()
    log = folder / "_importer"
    assert synced[:3] == [folder.parent, folder, log]
    synced.clear()
    execute(lake, 'CREATE TABLE "d"."t" AS SELECT 1 AS n')
    file = synced[0]
    assert (file.parent, synced[:4]) == (folder / "t", [file, folder / "t", folder, log])
    assert file.stat().st_size > 0
