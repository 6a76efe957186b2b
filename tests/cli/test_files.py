"""What the command writes is for this user alone, goes through no link, and its lock is nobody else's."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from unittest import mock

import duckdb
import pytest

from connector.errors import ConfigError
from connector.files import append, check_owners, make_lock_file, write_note, write_out
from connector.sandbox import Service
from connector.warehouse import Warehouse as Opened
from connector.warehouse.lock import check_lockable
from connector.warehouse.status import status
from tests.run.conftest import Warehouse

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes and links are POSIX's")
root = pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root may give a file away")
STRANGER = 4002


def modes_below(folder: Path) -> dict[str, int]:
    found = {str(path.relative_to(folder)): path.lstat() for path in folder.rglob("*")}
    return {name: stat.S_IMODE(each.st_mode) & 0o077 for name, each in found.items()}


@pytest.mark.parametrize(("group", "file", "folder"), [("false", 0o600, 0o700), ("true", 0o640, 0o750)])
def test_files_are_for_this_user_or_the_group(command, group: str, file: int, folder: int) -> None:
    asked = {"SOURCES__IMPORTER__GROUP_READABLE": group}
    home = command.directory / "dlt"
    before = os.umask(0o022)
    try:
        assert command("run", DLT_DATA_DIR=str(home), **asked).code == 0
        assert command("report", "--out", "page.html", **asked).code == 0
    finally:
        os.umask(before)
    for name in ("importer.duckdb", "page.html"):
        assert stat.S_IMODE((command.directory / name).stat().st_mode) == file
    found = modes_below(home)
    assert found
    assert not {name: oct(mode) for name, mode in found.items() if mode & ~folder & ~file}
    lock = next(command.directory.glob(".importer.duckdb.*.lock"))
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600, "whoever can open it can hold it"


def test_a_report_replaces_only_a_report(command) -> None:
    assert command("run").code == 0
    assert command("report", "--out", "page.html").code == 0
    assert command("report", "--out", "page.html").code == 0
    before = (command.directory / "importer.duckdb").read_bytes()
    ended = command("report", "--out", "importer.duckdb")
    assert ended.code == 2
    assert "importer.duckdb is not an HTML page" in ended.err
    assert (command.directory / "importer.duckdb").read_bytes() == before


def test_dbt_sources_replaces_only_what_it_wrote(command) -> None:
    assert command("run").code == 0
    for _ in range(2):
        assert command("dbt", "sources", "--out", "sources.yml").code == 0
    own = command.directory / "models.yml"
    own.write_text("models: []\n")
    ended = command("dbt", "sources", "--out", "models.yml")
    assert (ended.code, own.read_text()) == (2, "models: []\n")
    assert "models.yml was not written by this command" in ended.err


def test_the_demo_replaces_only_its_own_file(command) -> None:
    file = command.directory / "importer_demo.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute("CREATE TABLE mine AS SELECT 1 AS one")
    loaded = file.read_bytes()
    for content in (loaded, b"notes of mine"):
        file.write_bytes(content)
        ended = command("demo")
        assert (ended.code, file.read_bytes()) == (2, content)
        assert "importer_demo.duckdb is in use or was not written by the demo" in ended.err


def test_a_file_with_a_second_name_is_refused(command) -> None:
    """Its lock and its log have the name by which it was opened."""
    assert command("run").code == 0
    (command.directory / "second.duckdb").hardlink_to(command.directory / "importer.duckdb")
    ended = command("run", "--to", "duckdb:second.duckdb")
    assert ended.code == 2
    assert "second.duckdb has a second name (a hard link)" in ended.err
    assert command("status", "--to", "duckdb:second.duckdb").code == 0


def test_no_write_follows_or_replaces_a_link(tmp_path: Path) -> None:
    precious, link = tmp_path / "precious.txt", tmp_path / "link"
    precious.write_text("precious")
    link.symlink_to(precious)
    for write in (write_note, write_out, append):
        with pytest.raises(OSError, match=r"link|symbolic"):
            write(link, b"gone")
    with pytest.raises(ConfigError, match="it is a link"):
        make_lock_file(link)
    assert link.is_symlink()
    assert precious.read_text() == "precious"


def test_a_folder_that_cannot_hold_the_lock_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"The folder {tmp_path}/none cannot be written \(No such file"):
        make_lock_file(tmp_path / "none" / "lock")


def test_a_lock_of_an_earlier_version_is_closed_to_others(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch(0o644)
    make_lock_file(lock)
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600
    (tmp_path / "second").hardlink_to(lock)
    with pytest.raises(ConfigError, match="not a regular file with a single name"):
        make_lock_file(lock)


@root
def test_a_lock_of_a_stranger_is_refused_unless_the_folder_is_theirs(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    os.chown(lock, STRANGER, STRANGER)
    with pytest.raises(ConfigError, match=r"belongs to another user \(uid 4002\)"):
        make_lock_file(lock)
    os.chown(tmp_path, STRANGER, STRANGER)
    make_lock_file(lock)


@root
@pytest.mark.parametrize(("name", "asked"), [("", "run"), (".wal", "run"), (".wal", "check")])
def test_a_link_that_a_stranger_planted_where_a_database_writes_is_refused(command, name: str, asked: str) -> None:
    """DuckDB would write its log into whatever the link names, or the warehouse where the stranger likes."""
    precious, link = command.directory / "precious.txt", command.directory / f"importer.duckdb{name}"
    precious.write_bytes(b"")
    link.symlink_to(precious)
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    ended = command(asked)
    assert ended.code in (1, 2)
    assert f"{link} belongs to another user (uid 4002)" in ended.out + ended.err
    assert precious.read_bytes() == b""
    assert sorted(path.name for path in command.directory.glob("*importer.duckdb*")) == [link.name]


@root
def test_only_what_a_stranger_owns_is_refused_beside_a_database(tmp_path: Path) -> None:
    file, other, link = tmp_path / "w.duckdb", tmp_path / "elsewhere" / "w.duckdb", tmp_path / "link.duckdb"
    other.parent.mkdir()
    for path in (file, other, tmp_path / "w.duckdb.backup"):
        path.touch()
    os.chown(tmp_path / "w.duckdb.backup", STRANGER, STRANGER)
    link.symlink_to(other)
    check_owners(file)
    check_owners(link)
    for beside in (".wal", ".wal.checkpoint", ".wal.recovery", ".tmp", "-wal", "-shm", "-journal"):
        path = tmp_path / f"w.duckdb{beside}"
        path.symlink_to(other)
        check_owners(file)
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
        with pytest.raises(ConfigError, match=rf"w.duckdb{beside} belongs to another user"):
            check_owners(file)
        path.unlink()
    for path in (file, other):
        os.chown(path, STRANGER, STRANGER)
    for path in (file, link):
        with pytest.raises(ConfigError, match=r"w.duckdb belongs to another user \(uid 4002\)"):
            check_owners(path)
    os.chown(tmp_path, STRANGER, STRANGER)
    check_owners(file)


@root
def test_a_page_is_not_given_to_a_stranger(tmp_path: Path) -> None:
    """Neither through a pipe of theirs, nor with the mode of a file of theirs."""
    page, pipe = tmp_path / "page.html", tmp_path / "pipe.html"
    page.touch(0o666)
    page.chmod(0o666)
    os.chown(page, STRANGER, STRANGER)
    before = os.umask(0o077)
    try:
        write_out(page, b"<html>")
    finally:
        os.umask(before)
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    os.mkfifo(pipe)
    os.chown(pipe, STRANGER, STRANGER)
    with pytest.raises(PermissionError, match="it belongs to another user"):
        write_out(pipe, b"<html>")


def test_one_warehouse_on_a_host_of_others(command) -> None:
    """A query reads no file and shows no token, a file that is open is named, and a planted link is not followed."""
    assert command("run").code == 0
    precious = command.directory / "precious.txt"
    precious.write_text("CANARY")
    ended = command("query", f"SELECT content FROM read_text('{precious}')")
    assert ended.code == 1
    assert "The database refused the query" in ended.err
    assert "CANARY" not in ended.out + ended.err
    token = command.environment["SOURCES__IMPORTER__ACCESS_TOKEN"]
    assert command("query", "--csv", f"SELECT '{token}' AS a, '\x1b[2J' AS b").out == "a,b\n***,\x1b[2J\n"

    (command.directory / "importer.duckdb").chmod(0o644)
    secrets = command.directory / ".dlt" / "secrets.toml"
    secrets.parent.mkdir(mode=0o755)
    secrets.touch()
    secrets.chmod(0o640)
    said = command("check").out
    assert "(mode 644) and so read all rows: chmod 600, or set group_readable = true" in said
    assert "can read .dlt/secrets.toml (mode 640) and so the secrets in it: chmod 600." in said
    secrets.parent.chmod(0o700)
    assert "secrets.toml" not in command("check").out

    lock = next(command.directory.glob(".importer.duckdb.*.lock"))
    lock.with_suffix(".holder").symlink_to(precious)
    ended = command("run")
    assert ended.code == 1
    assert "it is a link" in ended.err
    assert precious.read_text() == "CANARY"


def test_a_warehouse_that_cannot_be_written_can_be_read(tmp_path: Path) -> None:
    """As on a file system that is mounted for reading; whoever is root could write into any other file."""
    service = Service(seed=1)
    service.add_import("customers", [{"name": "Ada"}])
    place = Warehouse(tmp_path)
    assert place.run(service).status == "succeeded"
    with mock.patch("os.access", side_effect=lambda path, mode: mode != os.W_OK):
        assert status(place.pipeline()).imports == {"synced": 1}
        with pytest.raises(ConfigError, match=r"warehouse.duckdb can be read but not written"):
            place.run(service)
        with pytest.raises(ConfigError, match="can be read but not written by this user"):
            check_lockable(place.pipeline())
        with Opened(place.pipeline()).connect() as connection, pytest.raises(Exception, match="read-only mode"):
            connection.execute(f"DELETE FROM {connection.name('imports')}")
    assert place.run(service).status == "succeeded"


@root
def test_check_on_a_host_where_others_planted_folders_links_and_locks(command) -> None:
    precious = command.directory / "precious.txt"
    precious.write_text("CANARY")
    before = sorted(path.name for path in command.directory.iterdir())
    theirs = command.directory / "theirs"
    theirs.mkdir(0o777)
    os.chown(theirs, STRANGER, STRANGER)
    ended = command("check", DLT_DATA_DIR=str(theirs))
    assert (ended.code, "belongs to another user" in ended.err) == (2, True)
    assert list(theirs.iterdir()) == []

    assert command("run").code == 0
    lock = next(command.directory.glob(".importer.duckdb.*.lock"))
    lock.unlink()
    lock.symlink_to(precious)
    ended = command("check")
    assert ended.code != 0
    assert "it is a link" in ended.out + ended.err
    lock.unlink()
    lock.touch(0o644)
    os.chown(lock, STRANGER, STRANGER)
    ended = command("check")
    assert ended.code != 0
    assert "belongs to another user (uid 4002)" in ended.out + ended.err
    assert "block every run" in ended.out + ended.err
    lock.unlink()
    assert command("check").code == 0
    assert precious.read_text() == "CANARY"
    assert "CANARY" not in "".join(command.outputs)
    assert "precious.txt" in before
