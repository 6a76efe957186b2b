"""What is DuckLake's own: its address, who excludes whom, what a query may not, and what is left of what was deleted.

All but the addresses need DuckLake's extensions, which `make ducklake` has.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from connector.cli.configuration import open_pipeline
from connector.cli.main import invoke
from connector.errors import ConfigError, LockedError
from connector.sandbox import Service
from connector.warehouse import Warehouse
from connector.warehouse.adapters import ducklake_destination
from connector.warehouse.destination import dataset_fingerprint
from connector.warehouse.lock import lock_path, sole_writer
from tests.destinations.test_destinations import run

POSTGRES = "ducklake:postgresql://u:sesame99@127.0.0.1:1/db"
TEXTS = ("secret-zzzz", "secret-0000")
VALUES: list[Any] = [
    *(0, -1, 2**53 + 1, 2**63 - 1, 10**30, -0.0, 0.1, 5e-324, 1.7976931348623157e308, True, "", "007", "a\0b"),
    *("2026-02-30", "0001-01-01", "9999-12-31T23:59:59.999999Z", "\U0001f986", "'; --", "\\", "x" * 100_000, [], {}),
]
_HOLD = (
    "import argparse, sys; from connector.cli.configuration import open_pipeline; "
    "from connector.warehouse.lock import sole_writer\n"
    "with sole_writer(open_pipeline(argparse.Namespace(to=sys.argv[1], destination=None, dataset='importer_data', "
    "pipeline_name='importer'))):\n print('held', flush=True); sys.stdin.read()"
)


def pipeline(to: str, dataset: str = "importer_data") -> Any:
    return open_pipeline(argparse.Namespace(to=to, destination=None, dataset=dataset, pipeline_name="importer"))


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("ducklake:catalog.duckdb", "lets nobody read during a run"),
        ("ducklake:duckdb:///dir/catalog.duckdb", "lets nobody read during a run"),
        ("ducklake:postgresql://u@h/db", "add ?data=/dir"),
        ("ducklake:sqlite:c.sqlite?data=s3://bucket/lake", "have to be in a folder"),
        ("ducklake:", "needs the address of the catalog behind it"),
    ],
)
def test_an_address_that_is_none(address: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("?", r"\?")):
        pipeline(address)


def test_the_files_lie_beside_the_catalog_unless_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for address, files in [
        ("ducklake:sqlite:a lake.sqlite", "a lake.sqlite.files"),
        (f"ducklake:sqlite:///{tmp_path}/c.sqlite?data=b/lake", "b/lake"),
        (f"{POSTGRES}?data={tmp_path}/d&sslmode=disable", "d"),
    ]:
        credentials = pipeline(address).destination_client().config.credentials
        assert credentials.storage_url == str(tmp_path / files)
        assert "data" not in (credentials.catalog.query or {})


def test_two_lakes_share_neither_lock_nor_working_directory(tmp_path: Path) -> None:
    lakes = [
        f"ducklake:sqlite:///{tmp_path}/one.sqlite",
        f"ducklake:sqlite:///{tmp_path}/two.sqlite",
        *(f"{POSTGRES}?data={tmp_path}/{name}&schema={name}" for name in ("one", "two")),
    ]
    pipelines = [pipeline(lake) for lake in lakes]
    assert len({dataset_fingerprint(each) for each in pipelines}) == len(lakes)
    assert len({lock_path(each) for each in pipelines}) == len(lakes)


def test_a_link_to_a_catalog_is_the_same_lake(tmp_path: Path) -> None:
    (tmp_path / "link.sqlite").symlink_to(tmp_path / "w.sqlite")
    link, real = (pipeline(f"ducklake:sqlite:///{tmp_path}/{name}.sqlite") for name in ("link", "w"))
    assert lock_path(link) == lock_path(real)
    assert dataset_fingerprint(link) == dataset_fingerprint(real)


def test_extensions_that_are_not_there_are_asked_for(
    tmp_path: Path, served: Service, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ducklake_destination, "find_spec", lambda _: None)
    code, ran = run(capsys, "run", "--to", f"ducklake:sqlite:///{tmp_path}/w.sqlite")
    assert code == 2
    assert "has no extension ducklake here: pip install 'importer-connector[ducklake]'" in ran["error"]


@pytest.mark.thorough
def test_each_value_comes_back_from_a_package_of_a_few_rows(
    lake: str, served: Service, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckLake writes those into its catalog rather than into a file, and PostgreSQL takes no row of 500 texts."""
    monkeypatch.setenv("SOURCES__IMPORTER__BATCH_ROWS", "8")
    for start in range(0, len(VALUES), 8):
        served.add_import("alone", [{"value": value} for value in VALUES[start : start + 8]])
    served.add_import("wide", [{f"c{n}": f"{n:060d}" for n in range(500)}])
    assert run(capsys, "run", "--to", lake)[0] == 0
    code, found = run(capsys, "verify", "--deep", "--to", lake)
    assert (code, found["differences"], found["records_compared"]) == (0, [], 124 + len(VALUES))


@pytest.mark.thorough
def test_rows_that_exceed_memory_are_not_left_in_the_working_directory(
    lake: str, served: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "run", "--to", lake)[0] == 0
    sql = "SELECT current_setting('temp_directory') AS place"
    with Warehouse(pipeline(lake)).connect() as connection:
        [loading] = connection.query(sql).to_pylist()
    _, asking = run(capsys, "query", sql, "--to", lake)
    for place in (loading["place"], asking["rows"][0]["place"]):
        assert Path(place).name.startswith(f"importer-spill-{os.getpid()}-")
    with Warehouse(pipeline(lake)).connect() as connection:
        connection.execute("SET memory_limit = '40MB'")
        connection.execute("CREATE TEMP TABLE large AS SELECT range AS n, md5(range::VARCHAR) AS t FROM range(2000000)")
        assert list(Path(loading["place"]).iterdir())
    assert not Path(".tmp").exists()


@pytest.mark.thorough
def test_a_run_excludes_others_whatever_their_machine(lake: str, tmp_path: Path) -> None:
    """Another data directory of dlt is what another machine has: only the catalog is common."""
    elsewhere = {**os.environ, "DLT_DATA_DIR": str(tmp_path / "elsewhere")}
    command = [sys.executable, "-P", "-c", _HOLD, lake]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=elsewhere) as holding:
        assert holding.stdout is not None
        assert holding.stdout.readline() == b"held\n"
        with pytest.raises(LockedError), sole_writer(pipeline(lake)):
            pass
        if lake.endswith("schema=lake"):
            for other in (pipeline(lake, "other"), pipeline(f"{lake}_other")):
                with sole_writer(other):
                    pass
        else:  # SQLite has one writer
            with pytest.raises(LockedError), sole_writer(pipeline(lake, "other")):
                pass
        holding.communicate()
    with sole_writer(pipeline(lake)):
        pass


@pytest.mark.thorough
def test_what_a_query_may_not_do_in_a_lake(lake: str, served: Service, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "run", "--to", lake)[0] == 0
    for sql in (
        "DELETE FROM records",
        "SELECT * FROM read_csv('/etc/passwd')",
        "ATTACH 'x' AS y",
        "SELECT * FROM sqlite_scan('x.sqlite', 't')",
        "SELECT * FROM postgres_scan('host=x', 'public', 't')",
        "WITH a AS (SELECT 1) SELECT (SELECT count(*) FROM SQLITE_SCAN('x.sqlite', 't')) FROM a",
        "SELECT * FROM query('SELECT * FROM sqlite_scan(''x.sqlite'', ''t'')')",
        "SELECT * FROM ducklake_expire_snapshots('lake', older_than => now())",
    ):
        code = invoke(["query", sql, "--to", lake])
        assert code != 0, sql
    _, found = run(capsys, "query", "SELECT count(*) AS n, max(len(data)) > 0 AS filled FROM records", "--to", lake)
    assert found["rows"] == [{"n": 123, "filled": True}]
    _, found = run(capsys, "query", "SELECT count(*) AS n FROM orders", "--to", lake)
    assert found["rows"] == [{"n": 120}]


@pytest.mark.thorough
def test_what_was_deleted_is_nowhere_after_a_compaction(
    lake: str, tmp_path: Path, served: Service, capsys: pytest.CaptureFixture[str], request: Any
) -> None:
    """Neither in the files, nor in the catalog, which keeps the least and the greatest value of each; others stay."""
    slug = served.add_import("orders", [{"order": text, "buyer": text} for text in TEXTS])
    assert run(capsys, "run", "--to", lake)[0] == 0
    assert run(capsys, "run", "--to", lake, "--dataset", "other")[0] == 0
    folder = next(path for path in tmp_path.rglob("importer_data") if path.is_dir())
    left = folder / "records" / "ducklake-of-a-killed-run.parquet"
    left.write_bytes(b"PAR1")
    mine = folder / "records" / "mine.parquet"
    mine.write_bytes(b"PAR1")
    alone = folder.parent.name.endswith(".sqlite.files")  # in a folder that is told another lake may have files as well
    assert _found(tmp_path, request) == {*TEXTS}
    served.delete_import(slug)
    for dataset in ("importer_data", "other"):
        assert run(capsys, "run", "--to", lake, "--dataset", dataset)[0] == 0
    code, found = run(capsys, "compact", "--to", lake)
    assert (code, found["bytes_after"] < found["bytes_before"]) == (0, True)
    assert (left.exists(), mine.exists()) == (not alone, True)
    assert run(capsys, "compact", "--to", lake, "--dataset", "other")[0] == 0
    assert _found(tmp_path, request) == set()
    for dataset in ("importer_data", "other"):
        code, found = run(capsys, "verify", "--deep", "--to", lake, "--dataset", dataset)
        assert (code, found["differences"], found["records_compared"]) == (0, [], 123)


@pytest.mark.thorough
def test_a_compaction_leaves_the_files_of_another_lake_in_the_same_folder(
    tmp_path: Path, served: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("duckdb_extension_ducklake")
    one, other = (f"ducklake:sqlite:///{tmp_path}/{name}.sqlite?data={tmp_path}/files" for name in ("a", "b"))
    for lake in (one, other):
        assert run(capsys, "run", "--to", lake)[0] == 0
    assert run(capsys, "compact", "--to", one)[0] == 0
    for lake in (one, other):
        code, found = run(capsys, "verify", "--deep", "--to", lake)
        assert (code, found["differences"]) == (0, [])


def _found(folder: Path, request: Any) -> set[str]:
    """Return the texts that are in a file of the lake, or in its catalog."""
    held = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file() and "dlt" not in path.parts)
    if "postgres_lake" in request.fixturenames:
        uri = request.getfixturevalue("postgres_uri")
        with closing(psycopg2.connect(uri)) as session, session.cursor() as cursor:
            cursor.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'lake'")
            for (table,) in cursor.fetchall():
                cursor.execute(f'SELECT row_to_json(t)::text FROM lake."{table}" t')
                held += "".join(row for (row,) in cursor.fetchall()).encode()
    return {text for text in TEXTS if text.encode() in held}


@pytest.mark.thorough
def test_a_column_that_somebody_widened_gets_its_type_back(
    lake: str, served: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    """A lake alters no type but to a wider one."""
    assert run(capsys, "run", "--to", lake)[0] == 0
    with Warehouse(pipeline(lake)).connect() as connection:
        connection.execute(f"ALTER TABLE {connection.name('records_orders')} ALTER COLUMN order_id TYPE DOUBLE")
    code, ran = run(capsys, "run", "--to", lake)
    assert (code, ran["records_loaded"]) == (0, 120)
    with Warehouse(pipeline(lake)).connect() as connection:
        assert connection.declared("records_orders")["order_id"] == "BIGINT"
    code, found = run(capsys, "verify", "--deep", "--to", lake)
    assert (code, found["differences"]) == (0, [])


@pytest.mark.thorough
def test_a_password_is_in_no_message_of_a_lake(
    tmp_path: Path, served: Service, capsys: pytest.CaptureFixture[str], sqlite_lake: str
) -> None:
    address = f"{POSTGRES}?data={tmp_path}/lies"
    with pytest.raises(Exception, match="Failed to attach") as raised, Warehouse(pipeline(address)).connect():
        pass
    seen: BaseException | None = raised.value
    while seen is not None:
        assert "sesame99" not in str(seen)
        seen = seen.__cause__ or seen.__context__
    for command in (["check"], ["run"], ["query", "SELECT 1"], ["status"]):
        capsys.readouterr()
        assert invoke([*command, "--to", address]) != 0
        assert "sesame99" not in json.dumps(capsys.readouterr())
