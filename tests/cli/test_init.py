"""`init`: what it writes and for whom, what it keeps, and what it asks on a terminal."""

from __future__ import annotations

import os
import pty
import select
import stat
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from connector.cli.settings_files import SettingsFile, ignore_in_git, open_folder
from connector.errors import ConfigError
from tests.processes import start

TOKEN = "very-secret-token-4711"
CONFIG = """# mine
[sources.importer]  # the importer
batch_rows = 1000   # small

[normalize]
workers = 2
"""


class Fresh:
    """A command without any configuration; what it writes may hold the token, so it goes before that is looked for."""

    def __init__(self, command) -> None:
        self.url = command.environment.pop("SOURCES__IMPORTER__BASE_URL")
        command.environment.pop("SOURCES__IMPORTER__ACCESS_TOKEN")
        self.directory: Path = command.directory
        self.config = self.directory / ".dlt" / "config.toml"
        self.secrets = self.directory / ".dlt" / "secrets.toml"
        self.command = command

    def piped(self, *arguments: str, token: str = TOKEN, **environment: str):
        typed, pipe = os.pipe()
        os.write(pipe, f"{token}\n".encode())
        os.close(pipe)
        env = {**os.environ, **self.command.environment, **environment}
        process = start(["init", *arguments], cwd=self.directory, env=env, stdin=typed)
        os.close(typed)
        return self.command.end(process)

    def typed(self, answers: list[tuple[str, str]], *arguments: str, **environment: str) -> tuple[int, str]:
        """At a terminal: each answer is typed as soon as its question is there; the exit code and all that showed."""
        terminal, theirs = pty.openpty()
        process = start(
            ["init", *arguments],
            cwd=self.directory,
            env={**os.environ, **self.command.environment, **environment},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            new_session=True,  # away from the terminal that the tests were started from
        )
        os.close(theirs)
        shown = ""
        until = time.monotonic() + 60
        pending = list(answers)
        seen = 0
        while time.monotonic() < until:
            if not select.select([terminal], [], [], 1)[0]:
                continue
            try:
                shown += os.read(terminal, 4096).decode()
            except OSError:
                break
            if pending and pending[0][0] in shown[seen:]:
                seen = len(shown)
                time.sleep(0.2)  # the echo goes off after the question
                os.write(terminal, f"{pending.pop(0)[1]}\n".encode())
        os.close(terminal)
        try:
            code = process.wait(10)
        finally:
            process.kill()
        self.command.outputs.append(shown)
        assert not pending, shown
        return code, shown


@pytest.fixture
def fresh(command) -> Iterator[Fresh]:
    fresh = Fresh(command)
    yield fresh
    fresh.secrets.unlink(missing_ok=True)


def read(path: Path) -> dict:
    return tomllib.loads(path.read_text())


def test_flags_alone_are_enough(fresh: Fresh) -> None:
    ended = fresh.piped("--base-url", fresh.url, "--token-stdin", "--json")
    assert (ended.code, ended.document["ok"]) == (0, True)
    assert ended.document["check"]["service"]["imports"] == 4
    assert read(fresh.config) == {"sources": {"importer": {"base_url": fresh.url}}}
    assert read(fresh.secrets) == {"sources": {"importer": {"access_token": TOKEN}}}
    assert stat.S_IMODE(fresh.secrets.stat().st_mode) == 0o600
    assert (fresh.directory / ".gitignore").read_text() == ".dlt/secrets.toml\n*.duckdb*\n"
    before = fresh.config.read_text(), fresh.secrets.read_text()
    again = fresh.piped()
    assert again.code == 0
    assert again.out.count("nothing to change") == 2
    assert (fresh.config.read_text(), fresh.secrets.read_text()) == before
    assert (fresh.directory / ".gitignore").read_text() == ".dlt/secrets.toml\n*.duckdb*\n"
    assert fresh.command("run").code == 0


def test_what_is_missing_is_named_and_nothing_written(fresh: Fresh) -> None:
    ended = fresh.command("init", "--json")
    assert (ended.code, "--base-url" in ended.document["error"]) == (2, True)
    ended = fresh.command("init", "--base-url", fresh.url)
    assert ended.code == 2
    assert "--token-stdin" in ended.err
    ended = fresh.piped("--base-url", fresh.url, "--token-stdin", token="")
    assert ended.code == 2
    ended = fresh.piped("--base-url", "service.example", "--token-stdin")
    assert (ended.code, "base_url" in ended.err) == (2, True)
    assert not (fresh.directory / ".dlt").exists()


def test_what_is_in_the_files_stays(fresh: Fresh) -> None:
    fresh.config.parent.mkdir()
    fresh.config.write_text(CONFIG)
    fresh.secrets.write_text('[sources.importer]\naccess_token = "an-older-token"  # from Ana\n')
    fresh.secrets.chmod(0o644)
    refused = fresh.piped("--base-url", fresh.url, "--token-stdin")
    assert refused.code == 2
    assert "--force" in refused.err
    assert "an-older-token" not in refused.err
    assert fresh.config.read_text() == CONFIG
    ended = fresh.piped("--base-url", fresh.url, "--token-stdin", "--force", "--to", "duckdb:deep/down/w.duckdb")
    assert ended.code == 0, ended.err
    text = fresh.config.read_text()
    for kept in ("# mine", "# the importer", "batch_rows = 1000   # small", "[normalize]\nworkers = 2"):
        assert kept in text
    assert read(fresh.config)["sources"]["importer"] == {"batch_rows": 1000, "base_url": fresh.url}
    assert read(fresh.secrets)["sources"]["importer"] == {"access_token": TOKEN}
    assert stat.S_IMODE(fresh.secrets.stat().st_mode) == 0o600
    assert fresh.command("run").code == 0  # with no flag: the destination is the one that init was told
    assert fresh.command.rows("SELECT count(*) FROM importer_data.records", "deep/down/w.duckdb") == [(360,)]


def test_a_check_that_fails_fails_init(fresh: Fresh) -> None:
    ended = fresh.piped("--base-url", fresh.url, "--token-stdin", token="not-the-token-0815")
    assert ended.code == 1
    assert "check access_token" in ended.out
    assert "not-the-token-0815" not in ended.out + ended.err
    assert fresh.secrets.exists()


def test_at_a_terminal_it_asks_and_shows_no_secret(fresh: Fresh) -> None:
    code, shown = fresh.typed(
        [
            ("Address of the service", "nonsense"),
            ("Address of the service", fresh.url),
            ("Access token", "two words"),
            ("Access token", TOKEN),
            ("Load into", "duckdb:mine.duckdb"),
        ]
    )
    assert code == 0, shown
    assert TOKEN not in shown
    assert "two words" not in shown
    assert read(fresh.secrets)["destination"]["duckdb"]["credentials"] == str(fresh.directory / "mine.duckdb")
    code, shown = fresh.typed([("Address", ""), ("Enter keeps", ""), ("duckdb, unchanged", "")])
    assert code == 0
    assert shown.count("nothing to change") == 2


def test_an_address_without_a_scheme_and_a_token_that_is_refused(fresh: Fresh) -> None:
    code, shown = fresh.typed(
        [
            ("Address of the service", fresh.url.removeprefix("http://")),
            (f"Is it {fresh.url}?", ""),
            ("Access token", "wrong-token-0815"),
            ("Load into", ""),
        ]
    )
    assert (code, read(fresh.config)["sources"]["importer"]["base_url"]) == (1, fresh.url)
    assert "check access_token" in shown
    assert "Correct them with `importer-sync init`" in " ".join(shown.split())


def test_a_password_of_the_warehouse_is_hidden_too(fresh: Fresh) -> None:
    code, shown = fresh.typed(
        [("Load into", "postgresql://ana@127.0.0.1:9/db"), ("Password of ana", "sea/horse 9")],
        SOURCES__IMPORTER__BASE_URL=fresh.url,
        SOURCES__IMPORTER__ACCESS_TOKEN=TOKEN,
    )
    assert code == 1  # nobody listens there
    assert "horse" not in shown
    credentials = read(fresh.secrets)["destination"]["postgres"]["credentials"]
    assert credentials == "postgresql://ana:sea%2Fhorse%209@127.0.0.1:9/db"
    assert read(fresh.config)["importer_sync"] == {"destination": "postgres"}


def test_a_private_file_is_private_before_its_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []
    fdopen = os.fdopen

    def watched(handle: int, *arguments, **options):
        modes.append(stat.S_IMODE(os.fstat(handle).st_mode))
        return fdopen(handle, *arguments, **options)

    monkeypatch.setattr(os, "fdopen", watched)
    file = SettingsFile(tmp_path / "secrets.toml")
    file.set(("a", "b"), "c")
    before = os.umask(0)
    try:
        file.save(private=True)
    finally:
        os.umask(before)
    assert modes == [0o600]


@pytest.mark.parametrize("text", ["[sources\n", "sources = 3\n", "[sources]\nimporter = 3\n"])
def test_a_file_that_cannot_be_kept_is_not_touched(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="correct it"):
        SettingsFile(path).set(("sources", "importer", "base_url"), "x")
    assert path.read_text() == text


def test_folders_that_will_not_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        open_folder(tmp_path / "file")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ConfigError, match="chmod"):
        open_folder(tmp_path / "open")


@pytest.mark.parametrize("line", [".dlt/secrets.toml", "/.dlt/", ".dlt", "**/secrets.toml"])
def test_git_is_told_once(tmp_path: Path, line: str) -> None:
    (tmp_path / ".gitignore").write_text(f"*.pyc\n!demo.duckdb\n{line}")
    assert ignore_in_git(tmp_path / ".dlt" / "secrets.toml") is None
    (tmp_path / ".gitignore").write_text("*.pyc")
    assert ignore_in_git(tmp_path / ".dlt" / "secrets.toml") is not None
    assert (tmp_path / ".gitignore").read_text() == "*.pyc\n.dlt/secrets.toml\n*.duckdb*\n"
