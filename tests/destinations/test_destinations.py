"""Every destination by the same commands: what is loaded, changed, deleted, kept, killed and asked for."""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from dlt.destinations.impl.sqlalchemy.db_api_client import SqlalchemyClient
from dlt.pipeline.pipeline import Pipeline

from connector import LockedError
from connector.cli import conformance
from connector.cli.configuration import open_pipeline
from connector.cli.conformance import prove
from connector.cli.main import invoke
from connector.sandbox import Service
from connector.warehouse.destination import local_file
from connector.warehouse.lock import sole_writer
from tests.support.mariadb import MariaDB

KILLS = int(os.environ.get("KILLS", "2"))


def run(capsys: pytest.CaptureFixture[str], *command: str) -> tuple[int, Any]:
    """Return the exit code of a command and its JSON document."""
    capsys.readouterr()
    code = invoke([*command, "--json"])
    out = capsys.readouterr().out
    return code, json.loads(out) if out.strip() else None


@pytest.mark.dialect
@pytest.mark.thorough
@pytest.mark.parametrize("deletes", ["mirror", "keep"])
def test_a_service_that_changes(
    address: str, deletes: str, served: Service, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCES__IMPORTER__DELETES", deletes)
    monkeypatch.setenv("SOURCES__IMPORTER__VIEWS", "false")
    monkeypatch.setenv("SOURCES__IMPORTER__HISTORY", "true")
    first, second = served.slugs()[:2]

    code, ran = run(capsys, "run", "--to", address)
    assert (code, ran["records_loaded"]) == (0, 123)
    code, ran = run(capsys, "run", "--to", address)
    assert (code, ran["imports_changed"], ran["load_ids"]) == (0, 0, [])

    records = list(served.record_slugs(first))
    served.edit_row(first, records[0], {"new": "🦆", "order": 2**60})
    served.delete_row(first, records[1])
    served.append_rows(second, [{"new": 1.5}, {"order": "none"}])
    served.delete_import(served.slugs()[2])
    code, ran = run(capsys, "run", "--to", address)
    assert (code, ran["imports_changed"], ran["imports_deleted"]) == (0, 2, 1)
    code, found = run(capsys, "verify", "--deep", "--to", address)
    assert (code, found["differences"]) == (0, [])

    code, found = run(capsys, "status", "--to", address)
    assert (code, [each["status"] for each in found["runs"]]) == (0, ["succeeded"] * 3)
    code, found = run(capsys, "query", "SELECT count(*) AS n FROM records WHERE _deleted_at IS NULL", "--to", address)
    assert (code, found["rows"]) == (0, [{"n": 122}])
    code, found = run(capsys, "query", "SELECT count(*) AS n FROM records", "--to", address)
    assert found["rows"] == [{"n": 122 if deletes == "mirror" else 125}]
    code, found = run(capsys, "doctor", "--to", address)
    assert (code, found["status"]) == (0, "healthy")
    assert run(capsys, "rebuild", "--to", address)[0] == 0
    assert run(capsys, "backfill", "--full", "--to", address)[0] == 0
    asked = ("changes", "--since", "1d", "--template", "orders", "--to", address)
    code, found = run(capsys, *asked, "--field", "new")
    assert (code, [each["new"] for each in found["changes"]]) == (0, ["🦆", "1.5"])
    _, found = run(capsys, *asked)
    assert [each["change"] for each in found["changes"] if each["field"] is None].count("delete") == (deletes == "keep")
    assert run(capsys, "compact", "--to", address)[0] == (2 if address.startswith("mysql") else 0)
    code, found = run(capsys, "verify", "--deep", "--to", address)
    assert (code, found["differences"]) == (0, [])


@pytest.mark.thorough
def test_every_guarantee_is_proven(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KILLS of them (2): `make destinations` has 20."""
    monkeypatch.setattr(conformance, "KILLED", ("committed", *["loading"] * (KILLS - 1)))

    found = list(prove(argparse.Namespace(to=address, destination=None, dataset="d", pipeline_name="importer")))

    assert [each.detail for each in found if not each.proven] == []
    assert len(found) == 9
    assert [path for path in tmp_path.glob("lies/*") if not address.startswith("ducklake:postgres")] == []


def test_what_a_query_may_not(tmp_path: Path, served: Service, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"sqlite:///{tmp_path}/w.db"
    assert run(capsys, "run", "--to", address)[0] == 0
    for sql in ("DELETE FROM records", "SELECT load_extension('x')", "SELECT 1; SELECT 2", "ATTACH 'x' AS y"):
        assert invoke(["query", sql, "--to", address]) != 0
    with closing(sqlite3.connect(tmp_path / "w.db")) as connection:
        assert connection.execute("SELECT count(*) FROM records").fetchall() == [(123,)]


@pytest.mark.thorough
def test_a_query_to_mysql_makes_no_table(
    mariadb_server: MariaDB, served: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    address = mariadb_server.address
    assert run(capsys, "run", "--to", address, "--dataset", "asked")[0] == 0
    for sql in (
        "/*! CREATE OR REPLACE TABLE records AS */ SELECT 1 AS slug",
        "SELECT 5--1 INTO OUTFILE '/tmp/never-written'",
    ):
        assert invoke(["query", sql, "--to", address, "--dataset", "asked"]) == 2
    with closing(mariadb_server.session("asked")) as session, session.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM records")
        assert cursor.fetchall() == ((123,),)
    mariadb_server.drop("asked", "asked_staging")


def test_a_hint_of_a_decimal_without_a_fraction(
    tmp_path: Path, served: Service, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later run that adds a column compares the type in the file with the hinted one."""
    monkeypatch.setenv("SOURCES__IMPORTER__HINTS", '{"records_values": {"a": "decimal(20,0)"}}')
    monkeypatch.setenv("SOURCES__IMPORTER__DELETES", "keep")
    address = f"sqlite:///{tmp_path}/w.db"
    assert run(capsys, "run", "--to", address)[0] == 0
    served.append_rows(served.slugs()[2], [{"new": "column"}])
    assert run(capsys, "run", "--to", address)[0] == 0
    assert run(capsys, "verify", "--deep", "--to", address) == (0, ANY)
    with closing(sqlite3.connect(tmp_path / "w.db")) as connection:
        declared = {name: kind for _, name, kind, *_ in connection.execute("PRAGMA table_info(records_values)")}
    assert "20,0" in declared["a"]


def test_another_dataset_is_another_file(tmp_path: Path, served: Service, capsys: pytest.CaptureFixture[str]) -> None:
    """Two datasets in one place never see each other's rows as their own."""
    address = f"sqlite:///{tmp_path}/w.db"
    assert run(capsys, "run", "--to", address)[0] == 0
    assert run(capsys, "run", "--to", address, "--dataset", "other")[1]["records_loaded"] == 123
    assert {path.name for path in tmp_path.glob("*.db")} == {"w.db", "w__other.db"}


def test_a_dataset_that_is_named_in_two_ways_has_one_lock(tmp_path: Path) -> None:
    """Else two runs at once would append the same records."""

    def named(address: str, dataset: str) -> Pipeline:
        given = {"pipeline_name": "importer", "dataset": dataset, "destination": None, "to": address}
        return open_pipeline(argparse.Namespace(**given))

    other = named(f"sqlite:///{tmp_path}/w.db", "other")
    same = named(f"sqlite:///{tmp_path}/w__other.db", "importer_data")
    assert local_file(other) == local_file(same)
    with sole_writer(other), pytest.raises(LockedError), sole_writer(same):
        pass
    with sole_writer(other), sole_writer(named(f"sqlite:///{tmp_path}/w.db", "importer_data")):
        pass


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["sql", "apply"], "query the tables"),
        (["report"], "query the tables"),
    ],
)
def test_what_sqlite_cannot_is_said_in_a_sentence(
    command: list[str],
    said: str,
    tmp_path: Path,
    served: Service,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = f"sqlite:///{tmp_path}/w.db"
    assert run(capsys, "run", "--to", address)[0] == 0
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert invoke([*command, "--to", address]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.thorough
def test_mysql_of_a_collation_that_takes_two_keys_for_one_is_refused(
    mariadb: str, mariadb_server: MariaDB, served: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(mariadb_server.session()) as session, session.cursor() as cursor:
        cursor.execute("CREATE DATABASE importer_data COLLATE utf8mb4_general_ci")
        code, ran = run(capsys, "run", "--to", mariadb)
        assert (code, "collation utf8mb4_general_ci" in ran["error"]) == (2, True)
        cursor.execute("SHOW TABLES IN importer_data")
        assert cursor.fetchall() == ()
        cursor.execute("DROP DATABASE importer_data")
        assert run(capsys, "run", "--to", mariadb)[0] == 0
        cursor.execute("ALTER TABLE importer_data.imports CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci")
        code, ran = run(capsys, "run", "--to", mariadb)
        assert (code, "imports of importer_data was converted" in ran["error"]) == (2, True)


@pytest.mark.thorough
def test_mysql_without_transactions_is_not_used(
    mariadb: str, mariadb_server: MariaDB, served: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(mariadb_server.session()) as session, session.cursor() as cursor:
        cursor.execute("SET GLOBAL default_storage_engine = MyISAM")
        try:
            assert run(capsys, "run", "--to", mariadb)[0] == 0
        finally:
            cursor.execute("SET GLOBAL default_storage_engine = InnoDB")
        cursor.execute("SELECT DISTINCT engine FROM information_schema.tables WHERE table_schema = 'importer_data'")
        assert cursor.fetchall() == (("InnoDB",),)
        cursor.execute("ALTER TABLE importer_data.records ENGINE = MyISAM")
        code, ran = run(capsys, "run", "--to", mariadb)
        assert (code, "records of importer_data has the storage engine MyISAM" in ran["error"]) == (2, True)


@pytest.mark.thorough
def test_a_collation_of_duckdb_that_takes_two_keys_for_one_is_refused(
    served: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DESTINATION__DUCKDB__CREDENTIALS__GLOBAL_CONFIG", '{"default_collation": "NOCASE"}')
    code, ran = run(capsys, "run", "--to", f"duckdb:///{tmp_path}/w.duckdb")
    assert (code, "default_collation NOCASE" in ran["error"]) == (2, True)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "died", ["before a table is created", "before the schema is stored", "while staging tables are"]
)
def test_a_table_that_a_killed_run_has_created_in_mysql_is_ours(
    died: str,
    mariadb_server: MariaDB,
    served: Service,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create, dataset = SqlalchemyClient.create_table, "created"

    def killed(client: Any, table: Any) -> None:
        name, staging = table.name, client.dataset_name != dataset
        if died == "while staging tables are" and staging and not name.startswith("_dlt"):
            create(client, table)
            raise OSError("killed")
        if name.startswith("records_") and not staging:
            if died == "before the schema is stored":
                create(client, table)
            raise OSError("killed")
        create(client, table)

    mariadb_server.drop(dataset, f"{dataset}_staging")
    command = ("--to", mariadb_server.address, "--dataset", dataset)
    with monkeypatch.context() as patch:
        patch.setattr(SqlalchemyClient, "create_table", killed)
        assert run(capsys, "run", *command)[0] == 1

    assert run(capsys, "run", *command)[0] == 0
    assert run(capsys, "verify", "--deep", *command)[0] == 0
    with closing(mariadb_server.session(dataset)) as session, session.cursor() as cursor:
        cursor.execute("SELECT DISTINCT table_name FROM sync_imports ORDER BY 1")
        used = cursor.fetchall()
        cursor.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = %s "
            "AND table_name LIKE 'records!_%%' ESCAPE '!' ORDER BY 1",
            [dataset],
        )
        assert cursor.fetchall() == used
        cursor.execute("SELECT count(*) FROM _dlt_version WHERE version_hash LIKE '% begun'")
        assert cursor.fetchall() == ((0,),)
    mariadb_server.drop(dataset, f"{dataset}_staging")


@pytest.mark.thorough
def test_mysql_looks_up_what_a_package_replaces(
    mariadb: str, mariadb_server: MariaDB, served: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    """It looks up no texts in a set, and would go through all rows of a package for each row of a table."""

    def rows_looked_at() -> int:
        with closing(mariadb_server.session()) as session, session.cursor() as cursor:
            cursor.execute("SHOW GLOBAL STATUS LIKE 'Handler_read_rnd_next'")
            return int(cursor.fetchone()[1])

    served.add_generated("orders", imports=10, rows=300)
    assert run(capsys, "run", "--to", mariadb)[0] == 0
    slug = served.slugs()[-1]
    served.edit_row(slug, next(iter(served.record_slugs(slug))), {"new": 1})
    before = rows_looked_at()
    assert run(capsys, "run", "--to", mariadb)[0] == 0
    assert rows_looked_at() - before < 3_000 * 300 / 10
