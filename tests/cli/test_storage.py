"""The format of the DuckDB file, for clients of DuckDB 1.x."""

from __future__ import annotations

import duckdb

STORAGE = "IMPORTER_SYNC__DUCKDB_STORAGE"


def storage_of(command) -> str:
    with duckdb.connect(str(command.directory / "importer.duckdb"), read_only=True) as connection:
        [(tags,)] = connection.execute(
            "SELECT tags FROM duckdb_databases() WHERE database_name = current_database()"
        ).fetchall()
        return str(tags["storage_version"])


def test_a_file_is_made_for_older_clients_and_stays_so(command) -> None:
    assert command("run", **{STORAGE: "v1.2.0"}).code == 0
    assert storage_of(command) == "v1.2.0+"
    assert command("backfill", "--full").code == 0
    assert command("compact").code == 0
    assert storage_of(command) == "v1.2.0+"
    assert command.rows("SELECT count(*) FROM importer_data.records") == [(360,)]


def test_compact_takes_a_file_over(command) -> None:
    assert command("run").code == 0
    assert storage_of(command) != "v1.2.0+"
    assert command("compact", **{STORAGE: "v1.2.0"}).code == 0
    assert storage_of(command) == "v1.2.0+"
    assert command("run").code == 0


def test_a_version_that_is_none(command) -> None:
    for version in ("1.2", "v1.2.99", "newest"):
        ended = command("run", **{STORAGE: version})
        assert (ended.code, f"duckdb_storage = '{version}'" in ended.err) == (2, True), ended.err
    assert not (command.directory / "importer.duckdb").exists()
