"""What is special about Delta tables: who else can read them, what a killed commit leaves, what is not supported."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import connector
from connector.cli import configuration
from connector.cli.main import invoke
from connector.errors import ConfigError, ConnectorError
from connector.maintain.verify import verify
from connector.run.sync import sync
from connector.sandbox import Service, serve
from connector.settings import Settings
from connector.warehouse import Warehouse
from connector.warehouse.adapters import delta_log, folder_store
from connector.warehouse.adapters import lake as lakes
from connector.warehouse.adapters.delta_log import Commit, DeltaLog
from connector.warehouse.adapters.lake import Lake
from connector.warehouse.adapters.lake_log import new_name
from connector.warehouse.adapters.lake_statements import clauses_of
from connector.warehouse.lock import sole_writer
from tests.destinations.test_destinations import run
from tests.support.lakes import execute, pipeline

VALUES: list[Any] = [
    *(0, -1, 2**53 + 1, 2**63 - 1, 10**30, -0.0, 0.1, 5e-324, 1.7976931348623157e308, True, "", "007", "a\0b"),
    *("2026-02-30", "0001-01-01", "9999-12-31T23:59:59.999999Z", "\U0001f986", "'; --", "\\", "x" * 100_000, [], {}),
]


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return "delta:lake"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A lake with a table of two files."""
    lake = Lake(DeltaLog(tmp_path / "d"), "d")
    lake.create()
    execute(lake, 'CREATE TABLE "d"."t" (n BIGINT NOT NULL, word VARCHAR)')
    execute(lake, """INSERT INTO "d"."t" VALUES (1, 'one'), (2, 'two')""")
    execute(lake, """INSERT INTO "d"."t" VALUES (3, 'three')""")
    return lake


def folder_of(lake: Lake) -> Path:
    assert isinstance(lake.log, DeltaLog)
    return lake.log.folder


def rows(lake: Lake, table: str = "t") -> list[tuple[Any, ...]]:
    """Return the rows by another reader of Delta tables."""
    found = pa.table(DeltaTable(folder_of(lake) / table).to_pyarrow_table())
    return sorted(tuple(row.values()) for row in found.to_pylist())


# -- what a run leaves ---------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_any_reader_of_delta_tables_sees_what_the_service_has(
    address: str, tmp_path: Path, served: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    served.add_import("alone", [{"value": value} for value in VALUES])
    assert run(capsys, "run", "--to", address)[0] == 0
    slug = served.slugs()[0]
    served.edit_row(slug, next(iter(served.record_slugs(slug))), {"new": "🦆", "order": 2**60})
    served.delete_import(served.slugs()[1])
    assert run(capsys, "run", "--to", address)[0] == 0
    assert run(capsys, "verify", "--deep", "--to", address)[1]["differences"] == []

    folder = tmp_path / "lake" / "importer_data"
    found = {row["slug"]: row for row in DeltaTable(folder / "records").to_pyarrow_table().to_pylist()}
    assert set(found) == {each for slug in served.slugs() for each in served.record_slugs(slug)}
    alone = [row for row in found.values() if row["import_slug"] == served.slugs()[-1]]
    received = [json.loads(row["data"])["value"] for row in sorted(alone, key=lambda row: row["sort"])]
    assert list(map(repr, received)) == list(map(repr, VALUES))
    typed = DeltaTable(folder / "records_orders").to_pyarrow_table()
    assert str(typed.schema.field("_created_at").type) == "timestamp[us, tz=UTC]"
    assert typed.num_rows == 60
    assert not DeltaTable(folder / "_dlt_loads").to_pyarrow_table().column("status").to_pylist().count(1)


@pytest.mark.thorough
@pytest.mark.parametrize("folder", ["lake", "a läke #1/[x]*?'%", "slug=x/sort=7"])
def test_dlt_alone_loads_it(folder: str, address: str, served: Service) -> None:
    into = pipeline(f"delta:{quote(folder)}")
    into.run(connector.importer_source())
    into.run(connector.importer_source().with_resources("imports"))
    served.delete_row(served.slugs()[0], next(iter(served.record_slugs(served.slugs()[0]))))
    into.run(connector.importer_source())
    with into.sql_client() as client:
        assert client.execute_sql("SELECT count(*), min(sort) FROM records") == [(122, 0)]
    assert connector.verify(into, deep=True).differences == ()


def test_a_folder_that_is_not_there_is_not_created_by_reading(
    address: str, tmp_path: Path, served: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["status"], ["query", "SELECT 1"], ["verify"], ["plan"]):
        run(capsys, *command, "--to", address)
        assert not (tmp_path / "lake").exists(), command


def test_check_leaves_no_table(
    address: str, tmp_path: Path, served: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = run(capsys, "check", "--to", address)
    assert (code, [name for name, check in found["checks"].items() if not check["ok"]]) == (0, [])
    assert [path for path in tmp_path.glob("lake/*") if path.is_dir()] == []


def test_what_was_erased_is_in_no_file_after_compact(
    address: str, tmp_path: Path, served: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    served.add_import("secrets", [{"text": "secret-zzzz"}, {"text": "secret-0000"}])
    assert run(capsys, "run", "--to", address)[0] == 0
    served.delete_import(served.slugs()[-1])
    assert run(capsys, "run", "--to", address)[0] == 0
    folder = tmp_path / "lake" / "importer_data"
    orphan, never = (folder / table / new_name(table) for table in ("records", "records_never"))  # never committed
    never.parent.mkdir()
    theirs = [folder / "records" / name for name in ("theirs.parquet", f"{orphan.stem} (copy).parquet")]
    theirs += [folder / "my_copy" / each.name for each in folder.glob("records/importer-*.parquet")]
    theirs[-1].parent.mkdir()
    for path in (orphan, never, *theirs):
        path.write_bytes(b"secret-zzzz")
    code, told = run(capsys, "compact", "--to", address)
    assert (code, told["bytes_after"] < told["bytes_before"]) == (0, True)
    assert (orphan.exists(), never.exists(), [path.exists() for path in theirs]) == (False, False, [True] * len(theirs))
    for file in (tmp_path / "lake").rglob("*.parquet"):
        if file not in theirs and "_delta_log" not in file.parts:
            sql = f"SELECT count(*) FROM '{file}' AS t WHERE CAST(t AS VARCHAR) LIKE '%secret-%'"
            assert duckdb.execute(sql).fetchall() == [(0,)], file
    assert run(capsys, "verify", "--deep", "--to", address)[1]["differences"] == []
    assert run(capsys, "run", "--to", address)[1]["load_ids"] == []


# -- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["sql", "apply"], ["report"], ["dbt", "sources"]])
def test_what_is_not_supported_is_said_in_a_sentence(
    command: list[str], address: str, served: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "run", "--to", address)[0] == 0
    capsys.readouterr()
    assert invoke([*command, "--to", address]) == 2
    assert "query the tables" in capsys.readouterr().err


def test_what_a_query_may_not(
    tmp_path: Path, served: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    address = "delta:la[k]e *"  # none of this is a pattern
    assert run(capsys, "run", "--to", address)[0] == 0
    secret = tmp_path / "other.csv"
    secret.write_text("a\n1\n")
    for sql in (
        "DELETE FROM records",
        "SELECT 1; SELECT 2",
        f"SELECT * FROM '{secret}'",
        f"SELECT * FROM glob('{tmp_path}/*')",
        "SELECT getenv('HOME')",
    ):
        assert invoke(["query", sql, "--to", address]) != 0, sql
    assert run(capsys, "query", "SELECT count(*) AS n FROM records", "--to", address)[1]["rows"] == [{"n": 123}]


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("delta:", "is not supported"),
        ("delta:s3://bucket/lake", "have to be in a folder of this machine"),
        ("delta:az://container/lake", "have to be in a folder of this machine"),
        ("delta:a%2520b", "deltalake cannot open"),
    ],
)
def test_a_place_that_is_refused(place: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        pipeline(place)


@pytest.mark.parametrize("dataset", ["main", "memory", "temp", "system"])
def test_a_dataset_with_a_name_of_duckdb_is_refused(
    dataset: str, address: str, served: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["run", "--to", address, "--dataset", dataset]) == 2
    assert f"uses the name '{dataset}' itself" in capsys.readouterr().err


def test_the_extra_is_asked_for(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuration, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'importer-connector\[delta\]'"):
        pipeline(address)


# -- one writer -----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_run_reads_what_another_process_wrote_while_a_connection_was_open_here(
    address: str, served: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    here = pipeline(address)
    with serve(served) as url:
        made = Settings.load(base_url=url, access_token=served.token)
        assert sync(here, made).status == "succeeded"
        with here.sql_client():
            served.append_rows(served.slugs()[0], [{"new": 1}])
            for command in ("run", "compact"):
                assert run(capsys, command, "--to", address)[0] == 0
            served.append_rows(served.slugs()[0], [{"new": 2}])
            again = sync(here, made)
            assert (again.status, again.error, again.imports_changed) == ("succeeded", None, 1)
        assert verify(here, made, deep=True).differences == []


def test_the_folders_of_a_new_table_are_on_disk_before_its_commit_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    for module in (delta_log, folder_store):
        monkeypatch.setattr(module, "sync", synced.append)
    lake = Lake(DeltaLog(tmp_path / "new" / "d"), "d")
    lake.create()
    execute(lake, 'CREATE TABLE "d"."t" (n BIGINT)')
    folder = folder_of(lake)
    assert synced == [folder.parent, folder, folder / "t", folder / "t" / "_delta_log"]
    synced.clear()
    execute(lake, 'INSERT INTO "d"."t" VALUES (1)')
    file, *later = synced
    assert (file.parent, file.suffix, later) == (folder / "t", ".parquet", [folder / "t", folder / "t" / "_delta_log"])


def test_a_table_that_another_program_wrote_at_the_same_time_is_not_overwritten(lake: Lake) -> None:
    connection = lake.connect()

    def both_write() -> None:
        with lake.transaction(connection) as transaction:
            transaction.execute('DELETE FROM "d"."t" WHERE n = 1', ())
            write_deltalake(folder_of(lake) / "t", pa.table({"n": [9], "word": ["theirs"]}), mode="append")

    with pytest.raises(ConnectorError, match="Another program has written"):
        both_write()
    lake.close(connection)
    assert rows(lake) == [(1, "one"), (2, "two"), (3, "three"), (9, "theirs")]


def test_an_aborted_transaction_leaves_nothing(lake: Lake) -> None:
    before = rows(lake)
    connection = lake.connect()
    with suppress(ZeroDivisionError), lake.transaction(connection) as transaction:
        transaction.execute('DELETE FROM "d"."t" WHERE n = 1', ())
        transaction.execute('ALTER TABLE "d"."t" ADD COLUMN more BIGINT', ())
        transaction.execute('DROP TABLE "d"."t"', ())
        raise ZeroDivisionError
    assert rows(lake) == before == sorted(connection.execute('SELECT * FROM "d"."t"').fetchall())
    lake.close(connection)


@pytest.mark.parametrize("published", [0, 1])
def test_of_a_commit_to_two_tables_no_half_is_kept_if_another_program_writes_meanwhile(
    published: int, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes the second table after the first was written, or before the killed commit is completed."""
    execute(lake, 'CREATE TABLE "d"."u" AS SELECT * FROM "d"."t"')
    publish, left = DeltaLog._publish, [None] * published

    def overtaken(log: DeltaLog, commit: Commit) -> None:
        if not left:
            write_deltalake(folder_of(lake) / "u", pa.table({"n": [9], "word": ["theirs"]}), mode="append")
            raise KeyboardInterrupt
        left.pop()
        publish(log, commit)

    monkeypatch.setattr(DeltaLog, "_publish", overtaken)
    with pytest.raises(KeyboardInterrupt):
        execute(lake, 'DELETE FROM "d"."t" WHERE n < 3', 'DELETE FROM "d"."u" WHERE n < 3')
    monkeypatch.undo()

    into = pipeline(f"delta:///{tmp_path}", "d")
    if not published:  # nothing of it was written, so it is given up
        with pytest.raises(ConnectorError, match="nothing of this was committed"), sole_writer(into):
            pass
        with sole_writer(into):
            assert (len(rows(lake)), len(rows(lake, "u"))) == (3, 4)
        return
    theirs = folder_of(lake) / "u" / "_delta_log" / f"{1:020d}.json"
    for _ in range(2):  # no run goes on until somebody has decided
        with pytest.raises(ConnectorError, match=f"Remove {re.escape(str(theirs))}"), sole_writer(into):
            pass
    theirs.unlink()
    with sole_writer(into):
        assert rows(lake) == rows(lake, "u") == [(3, "three")]
        assert list(folder_of(lake).glob(".journal-*")) == []


def test_a_table_that_another_program_wrote_is_not_dropped_with_a_killed_commit(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(lake, 'CREATE TABLE "d"."u" AS SELECT * FROM "d"."t"')

    def killed(log: DeltaLog, commit: Commit) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(DeltaLog, "_publish", killed)
    with pytest.raises(KeyboardInterrupt):
        execute(lake, 'DROP TABLE "d"."u"', 'DELETE FROM "d"."t" WHERE n < 3')
    monkeypatch.undo()
    write_deltalake(folder_of(lake) / "u", pa.table({"n": [9], "word": ["theirs"]}), mode="append")
    with pytest.raises(ConnectorError, match="Another program"), sole_writer(pipeline(f"delta:///{tmp_path}", "d")):
        pass
    assert (len(rows(lake)), len(rows(lake, "u"))) == (3, 4)


@pytest.mark.parametrize("published", [0, 1, 2])
def test_the_next_run_completes_a_commit_to_two_tables_of_a_killed_one(
    published: int, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(lake, 'CREATE TABLE "d"."u" AS SELECT * FROM "d"."t"')
    publish, left = DeltaLog._publish, [None] * published

    def killed(log: DeltaLog, commit: Commit) -> None:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        publish(log, commit)

    monkeypatch.setattr(DeltaLog, "_publish", killed)
    both = ("""UPDATE "d"."t" AS v SET word = 'new' WHERE v.n = 3""", 'DELETE FROM "d"."u" WHERE n < 3')
    with pytest.raises(KeyboardInterrupt):
        execute(lake, *both, 'CREATE TABLE "d"."w" AS SELECT 1::BIGINT AS n')
    monkeypatch.undo()
    with sole_writer(pipeline(f"delta:///{tmp_path}", "d")):
        assert rows(lake) == [(1, "one"), (2, "two"), (3, "new")]
        assert (rows(lake, "u"), rows(lake, "w")) == ([(3, "three")], [(1,)])
        assert list(folder_of(lake).glob(".journal-*")) == []
        connection = lake.connect()
        assert connection.execute('SELECT count(*) FROM "d"."u"').fetchall() == [(1,)]
        lake.close(connection)


def test_what_a_killed_process_spilled_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead = subprocess.Popen(["true"])
    dead.wait()
    left, alive, theirs = (
        tmp_path / f"importer-spill-{who}" for who in (f"{dead.pid}-x", f"{os.getppid()}-x", "notes")
    )
    for folder in (left, alive, theirs):
        folder.mkdir()
        (folder / "duckdb_temp_storage-0.tmp").write_bytes(b"secret")
    lake = Lake(DeltaLog(tmp_path / "lake" / "d"), "d")
    connection = lake.connect()
    [[place]] = connection.execute("SELECT current_setting('temp_directory')").fetchall()
    assert Path(place).is_dir()
    assert (left.exists(), alive.exists(), theirs.exists()) == (False, True, True)
    lake.close(connection)


# -- statements -----------------------------------------------------------------------------------------------------


def test_statements_change_what_they_would_in_a_database(lake: Lake) -> None:
    execute(lake, 'CREATE TABLE "d"."plain" AS SELECT * FROM "d"."t"')
    with closing(duckdb.connect()) as database:
        database.execute("CREATE SCHEMA d; CREATE TABLE d.t (n BIGINT NOT NULL, word VARCHAR)")
        database.execute("INSERT INTO d.t VALUES (1, 'one'), (2, 'two'), (3, 'three')")
        database.execute("CREATE TABLE d.plain AS SELECT * FROM d.t")
        for sql, args in (
            ("UPDATE d.t SET word = ? WHERE n IN (?)", ("where", 2)),
            ("UPDATE d.t AS v SET word = 'set, from' FROM d.plain AS p WHERE v.n = p.n AND p.n > ?", (2,)),
            ("DELETE FROM d.t WHERE word IS NOT DISTINCT FROM 'one'", ()),
            ("INSERT INTO d.t(word, n) SELECT word || '!', n + 10 FROM d.t", ()),
            ("""ALTER TABLE "d"."t" ADD COLUMN IF NOT EXISTS "it's" DOUBLE""", ()),
            ("""UPDATE "d"."t" SET "it's" = n / 2""", ()),
            ("INSERT INTO d.t BY NAME SELECT 77 AS n", ()),
            ("DELETE FROM d.t AS a WHERE EXISTS (SELECT 1 FROM d.plain AS b WHERE b.n = a.n AND b.n < 3)", ()),
            ("ALTER TABLE d.t ALTER COLUMN n TYPE VARCHAR USING CAST(n AS VARCHAR)", ()),
            ('ALTER TABLE d.t RENAME COLUMN word TO "from"', ()),
            ("""UPDATE d.t SET "from" = NULL WHERE n = '13'""", ()),
            ("""ALTER TABLE d.t DROP COLUMN "it's" """, ()),
            ("ALTER TABLE d.t RENAME TO t2", ()),
            ("DROP TABLE IF EXISTS d.gone", ()),
        ):
            database.execute(sql, args or None)
            execute(lake, sql, args=args)
            table = "t2" if "t2" in sql or "gone" in sql else "t"
            expected = database.execute(f"SELECT * FROM d.{table}").fetchall()
            assert sorted(map(repr, rows(lake, table))) == sorted(map(repr, expected)), sql
    assert not (folder_of(lake) / "t").exists()


def test_a_table_keeps_its_id(lake: Lake) -> None:
    before = DeltaTable(folder_of(lake) / "t").metadata().id
    execute(lake, 'ALTER TABLE "d"."t" ADD COLUMN more BIGINT')
    after = DeltaTable(folder_of(lake) / "t")
    assert (after.metadata().id, [each.name for each in after.schema().fields]) == (before, ["n", "word", "more"])


def test_only_files_with_changed_rows_are_written_again(lake: Lake) -> None:
    def files() -> set[str]:
        return {Path(uri).name for uri in DeltaTable(folder_of(lake) / "t").file_uris()}

    before = files()
    execute(lake, 'DELETE FROM "d"."t" WHERE n = 3')
    assert len(before) == 2
    assert files() < before
    execute(lake, 'DELETE FROM "d"."t" WHERE n = 4')
    assert DeltaTable(folder_of(lake) / "t").version() == 3  # nothing changed, so nothing was committed


def test_small_files_do_not_pile_up(lake: Lake) -> None:
    for n in range(60):
        execute(lake, f"""INSERT INTO "d"."t" VALUES ({n}, 'more')""")
    table = DeltaTable(folder_of(lake) / "t")
    assert len(table.file_uris()) <= lakes._SMALL_FILES + 1
    assert len(rows(lake)) == 63
    assert (folder_of(lake) / "t" / "_delta_log" / "_last_checkpoint").exists()
    assert len(rows(Lake(lake.log, "d"))) == 63


def test_a_table_of_another_program_is_left_alone(
    address: str, tmp_path: Path, served: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "lake" / "importer_data"
    write_deltalake(folder / "theirs", pa.table({"a": pa.array([[1]])}))
    for n in (1, 2):
        write_deltalake(folder / "plain", pa.table({"a": [n]}), mode="append")
    assert run(capsys, "run", "--to", address)[0] == 0
    assert run(capsys, "compact", "--to", address)[0] == 0
    assert (DeltaTable(folder / "theirs").version(), DeltaTable(folder / "plain").version()) == (0, 1)
    with Warehouse(pipeline(address)).connect() as connection:
        tables, taken = connection.names()
        assert ("theirs" in tables, "theirs" in taken) == (False, True)
    assert run(capsys, "query", "SELECT sum(a) AS n FROM plain", "--to", address)[1]["rows"] == [{"n": 3}]
    assert invoke(["query", "SELECT * FROM theirs", "--to", address]) == 1
    assert "The Delta table theirs has types" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "value"), [("Imports", 1), ("imports", [1])])
def test_a_table_of_another_program_under_a_name_of_ours_is_refused(
    name: str, value: Any, address: str, tmp_path: Path, served: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    write_deltalake(tmp_path / "lake" / "importer_data" / name, pa.table({"a": pa.array([value])}))
    assert invoke(["run", "--to", address]) == 2
    assert f"The {name!r} in the dataset is not" in capsys.readouterr().err


def test_a_table_that_differs_only_in_case_does_not_hide_ours(lake: Lake) -> None:
    theirs = folder_of(lake) / "T"
    for n in (77, 78):
        write_deltalake(theirs, pa.table({"n": [n], "word": ["theirs"]}), mode="append")
        connection = lake.connect()
        assert connection.execute('SELECT min(n) FROM "d"."t"').fetchall() == [(1,)]
        lake.close(connection)
    execute(lake, 'DELETE FROM "d"."t" WHERE n > 1')
    assert (rows(lake), len(rows(lake, "T"))) == ([(1, "one")], 2)


def test_a_table_that_cannot_be_read_is_named(lake: Lake) -> None:
    log = folder_of(lake) / "theirs" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text("{}")
    with pytest.raises(ConnectorError, match=r"theirs cannot be read .*move it into another folder"):
        lake.connect()


def test_a_commit_that_failed_after_a_part_is_completed_before_the_next(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(lake, 'CREATE TABLE "d"."u" (n BIGINT)')
    publish = DeltaLog._publish

    def full(log: DeltaLog, commit: Commit) -> None:
        if commit.table == "u":
            raise OSError(28, "No space left on device")
        publish(log, commit)

    monkeypatch.setattr(DeltaLog, "_publish", full)
    with pytest.raises(OSError, match="No space"):
        execute(lake, 'DELETE FROM "d"."t" WHERE n = 1', 'INSERT INTO "d"."u" VALUES (1)')
    monkeypatch.undo()
    execute(lake, 'INSERT INTO "d"."u" VALUES (2)')
    assert (len(rows(lake)), rows(lake, "u")) == (2, [(1,), (2,)])
    assert list(folder_of(lake).glob(".journal-*")) == []


@pytest.mark.parametrize(
    ("rest", "parts"),
    [
        (" AS v SET a = ?, b = 'where' WHERE c = ?", ("v", "", "c = ?", 1)),
        (" SET a = (SELECT 1 FROM x WHERE y = ?)", ("", "", "", 1)),
        (" v SET a = ? FROM (SELECT ? AS k) AS s WHERE s.k = v.k;", ("v", "(SELECT ? AS k) AS s", "s.k = v.k", 1)),
        (" WHERE a IS DISTINCT FROM b AND c = ?", ("", "", "a IS DISTINCT FROM b AND c = ?", 0)),
        (" SET a = b IS DISTINCT FROM c WHERE d", ("", "", "d", 0)),
        (' AS d WHERE "from" = $$where$$ -- set\n', ("d", "", '"from" = $$where$$ -- set', 0)),
        ("", ("", "", "", 0)),
    ],
)
def test_the_parts_of_a_statement(rest: str, parts: tuple[str, str, str, int]) -> None:
    assert clauses_of(rest) == parts
