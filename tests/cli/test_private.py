"""What the command writes is its user's alone, no link leads it astray, and the token stays off open networks."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from connector.errors import ConfigError, ConnectorError
from connector.files import put, put_where_wanted
from connector.settings import Settings
from connector.warehouse.lock import _file_lock


def modes(folder: Path) -> dict[str, int]:
    """All files and folders below, without those that were there before the command."""
    return {
        str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode)
        for path in folder.rglob("*")
        if not path.is_symlink()
    }


@pytest.mark.parametrize(("group", "others"), [(None, 0o077), ("true", 0o027)])
def test_files_and_folders_are_the_users_alone_unless_the_group_may_read(command, group, others) -> None:
    before = modes(command.directory)
    environment = {} if group is None else {"SOURCES__IMPORTER__GROUP_READABLE": group}
    assert command("run", **environment).code == 0
    assert command("report", "--out", "report.html", **environment).code == 0

    made = {name: mode for name, mode in modes(command.directory).items() if name not in before}
    assert {"importer.duckdb", "report.html", "dlt"} <= made.keys()
    assert {name: oct(mode) for name, mode in made.items() if mode & others} == {}
    assert bool(made["importer.duckdb"] & 0o040) == (group is not None)
    locks = [mode for name, mode in made.items() if name.endswith(".lock") and "/" not in name]
    assert locks == [0o600]


def test_a_lock_of_an_earlier_version_is_closed_to_others(tmp_path: Path) -> None:
    lock = tmp_path / ".x.lock"
    lock.touch()
    lock.chmod(0o644)
    precious = tmp_path / "precious"
    precious.write_text("mine")
    lock.with_suffix(".holder").symlink_to(precious)
    with _file_lock(lock, "into it"):
        assert stat.S_IMODE(lock.stat().st_mode) == 0o600
        assert '"process"' in lock.with_suffix(".holder").read_text()
    assert precious.read_text() == "mine"


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "precious").chmod(0o644)
    (tmp_path / ".x.lock").symlink_to(tmp_path / "precious")
    with pytest.raises((ConnectorError, OSError)), _file_lock(tmp_path / ".x.lock", "into it"):
        pass
    assert stat.S_IMODE((tmp_path / "precious").stat().st_mode) == 0o644


def test_a_file_that_cannot_be_finished_leaves_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "report.html"
    put(file, b"the last one", 0o640)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left on device"):
            put_where_wanted(file, b"half")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert file.read_bytes() == b"the last one"
    put_where_wanted(file, b"whole")
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (b"whole", 0o640)


@pytest.mark.parametrize("where", ["missing/report.html", "."])
def test_a_place_that_cannot_be_written_is_named(command, where: str) -> None:
    command("run")
    ended = command("report", "--out", where)
    assert ended.code == 1
    assert "name another file with --out" in ended.err


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8080", "http://localhost", "http://[::1]:1", "https://service.example"]
)
def test_the_token_goes_to_this_machine_or_encrypted(url: str) -> None:
    assert Settings.load(base_url=url, access_token="x").base_url == url


@pytest.mark.parametrize("url", ["http://service.example", "http://10.0.0.7:8080", "http://127.0.0.1.example"])
def test_the_token_goes_to_no_other_host_in_the_clear_unless_allowed(url: str) -> None:
    with pytest.raises(ConfigError, match="allow_plain_http = true, which allows that"):
        Settings.load(base_url=url, access_token="x")
    assert Settings.load(base_url=url, access_token="x", allow_plain_http=True).base_url == url


def test_no_command_sends_it(command) -> None:
    for arguments in (("check",), ("run",), ("init", "--base-url", "http://service.example")):
        done = command(*arguments, SOURCES__IMPORTER__BASE_URL="http://service.example")
        assert done.code == 2
        assert "allow_plain_http" in done.err
