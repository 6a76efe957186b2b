"""Wrong usage and configuration: exit code 2 and one sentence that says what to set, where."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from connector.cli.configuration import _path, _postgres_address
from connector.cli.environment import DLT_DEFAULTS, prepare_environment
from connector.cli.redaction import add_password_of, add_secret, scrub, scrubbed


@pytest.fixture
def unconfigured(command):
    for name in ("SOURCES__IMPORTER__BASE_URL", "SOURCES__IMPORTER__ACCESS_TOKEN"):
        command.environment.pop(name)
    return command


def test_a_missing_key_is_named_with_its_file_and_variable(unconfigured) -> None:
    ended = unconfigured("run", "--json")
    assert ended.code == 2
    assert ended.document["status"] == "failed"
    for words in ("base_url", ".dlt/config.toml", "[sources.importer]", "SOURCES__IMPORTER__BASE_URL"):
        assert words in ended.document["error"]
    ended = unconfigured("check", SOURCES__IMPORTER__BASE_URL="http://127.0.0.1:9")
    assert ended.code == 2
    for words in ("access_token", ".dlt/secrets.toml", "SOURCES__IMPORTER__ACCESS_TOKEN"):
        assert words in ended.err


def test_files_of_dlt_are_read_hints_too(unconfigured, command, service) -> None:
    folder = command.directory / ".dlt"
    folder.mkdir()
    (folder / "config.toml").write_text(
        f'[sources.importer]\nbase_url = "{service.base_url}"\nraw = false\n'
        '[sources.importer.hints.records_customers]\nsignup_date = "date"\n'
    )
    secrets = folder / "secrets.toml"
    secrets.write_text(f'[sources.importer]\naccess_token = "{service.token}"\n')
    ended = unconfigured("run", "--json", "--to", "duckdb:sub/other.duckdb")
    secrets.unlink()  # the one file that may hold the token
    assert ended.code == 0
    typed = (
        "SELECT data_type FROM information_schema.columns "
        "WHERE table_schema = 'importer_data' AND table_name = 'records_customers' AND column_name = 'signup_date'"
    )
    assert command.rows(typed, "sub/other.duckdb") == [("DATE",)]
    assert not (command.directory / "importer.duckdb").exists()


def test_destinations_that_cannot_be_used(command) -> None:
    ended = command("run", "--json", "--destination", "filesystem")
    assert (ended.code, ended.document["status"]) == (2, "failed")
    assert "cannot replace rows" in ended.err
    ended = command("run", "--to", "duckdb:Importer.duckdb", "--dataset", "importer")
    assert ended.code == 2
    assert "DuckDB cannot tell the dataset 'importer' from the file Importer.duckdb" in ended.err
    ended = command("status", "--destination", "nosuch")
    assert ended.code == 2
    assert "nosuch" in ended.err
    ended = command("run", "--to", "postgresql://ana:pass-word-12@127.0.0.1:9/db")
    assert ended.code == 1
    assert "pass-word-12" not in ended.err + ended.out


@pytest.mark.parametrize("arguments", [["nonsense"], ["run", "--recheck-days", "0"], ["backfill"]])
def test_wrong_usage(command, arguments: list[str]) -> None:
    ended = command(*arguments, "--json")
    assert ended.code == 2
    assert ended.document["status"] == "failed"
    assert ended.err


def test_an_own_setting_of_dlt_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in DLT_DEFAULTS:
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    monkeypatch.setenv("LOAD__WORKERS", "3")
    (tmp_path / ".dlt").mkdir()
    (tmp_path / ".dlt" / "config.toml").write_text("[normalize]\nworkers = 5\n")
    prepare_environment()
    assert os.environ["LOAD__WORKERS"] == "3"
    assert "NORMALIZE__WORKERS" not in os.environ
    assert os.environ["RUNTIME__DLTHUB_TELEMETRY"] == "false"


def test_where_a_duckdb_address_leads(tmp_path: Path) -> None:
    assert _path("///data/w.duckdb") == Path("/data/w.duckdb")
    assert _path("////data/w.duckdb") == Path("/data/w.duckdb")
    assert _path("/data/w.duckdb") == Path("/data/w.duckdb")
    assert _path("///w.duckdb") == tmp_path / "w.duckdb"
    assert _path("w.duckdb") == tmp_path / "w.duckdb"
    assert _path("sub/my%20w.duckdb") == tmp_path / "sub" / "my w.duckdb"


def test_an_address_of_postgres_is_put_as_dlt_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGUSER", "PGPASSWORD"):
        monkeypatch.delenv(name, raising=False)
    assert _postgres_address("//ana:s%40fe@host:5433/db?sslmode=require") == (
        "postgresql://ana:s%40fe@host:5433/db?sslmode=require"
    )
    assert _postgres_address("//postgres:@/db?host=/run/pg") == "postgresql://postgres:not-given@%2Frun%2Fpg/db"
    monkeypatch.setenv("PGPASSWORD", "a/b")
    assert _postgres_address("//ana@host/db") == "postgresql://ana:a%2Fb@host/db"


def test_secrets_are_hidden_however_they_are_quoted() -> None:
    add_secret("hush/hush")
    add_password_of("postgresql://ana:s%40fely@host/db")
    assert scrub("a hush/hush b hush%2Fhush c s@fely d s%40fely") == "a *** b *** c *** d ***"
    assert scrubbed({"hush/hush": ["hush/hush", 1]}) == {"hush/hush": ["***", 1]}
    add_secret("text")
    assert scrub("text") == "text"
    assert scrub("postgresql://bob:unknown@host/db") == "postgresql://bob:***@host/db"
