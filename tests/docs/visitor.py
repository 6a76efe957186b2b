"""A reader who does what a page says, in an empty directory: commands in this process where they need no shell."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import tomlkit
from dlt.common.configuration.container import Container
from dlt.common.configuration.specs.pluggable_run_context import PluggableRunContext

from connector.cli import main
from connector.cli.commands.sandbox import _service
from connector.cli.configuration import open_pipeline
from connector.cli.source_settings import load_settings
from connector.reporting.views.query import ask
from connector.sandbox import Service, serve
from tests.docs.pages import Block, logical_lines
from tests.docs.reference import TABLES, known_settings

LOCAL = "http://127.0.0.1:8080"
ELSEWHERE = re.compile(r"https://[\w.]+\.example")
DATABASE = re.compile(r"postgresql://[^\s\"']*db\.example[^\s\"']*")
EXPECTED = re.compile(r"\bhere exit code (\d+)")
ADMINISTRATION = ("CREATE ", "GRANT ", "ALTER ")
SHELL = "<>|;&$("
TIMEOUT_S = 60


@dataclass
class Visitor:
    """`database` stands in for any PostgreSQL of the page, a sandbox for any service."""

    directory: Path
    patch: pytest.MonkeyPatch
    stack: contextlib.ExitStack
    database: str = ""
    url: str = ""
    done: list[str] = field(default_factory=list)

    def serve(self, service: Service) -> None:
        self.url = self.stack.enter_context(serve(service))

    def carry_out(self, block: Block) -> None:
        text = self._here(block.text)
        if block.language == "sh":
            for line in logical_lines(text):
                self._line(line)
        elif block.language == "python":
            self._look_again()
            exec(compile(text, f"line {block.line}", "exec"), {"__name__": "__main__"})
        elif block.language == "sql":
            self._look_again()
            for statement in filter(None, map(str.strip, text.split(";"))):
                self._sql(statement)
        elif block.language == "toml":
            self._settings(text)
        else:
            raise AssertionError(f"nobody knows how to carry out a block of {block.language!r}")

    def _sql(self, statement: str) -> None:
        """A question through the command's own way; what an administrator does, on the database itself."""
        if not statement.startswith(ADMINISTRATION):
            with ask(open_pipeline(main.make_parser().parse_args(["query", ""])), statement) as answer:
                assert answer.columns
                list(answer.rows)
            return
        with (
            contextlib.closing(psycopg2.connect(self.database)) as connection,
            connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(statement)

    def _here(self, text: str) -> str:
        text = ELSEWHERE.sub(self.url, text.replace(LOCAL, self.url))
        return DATABASE.sub(lambda _: self.database, text).replace(
            "duckdb:///data/", f"duckdb://{self.directory}/data/"
        )

    def _look_again(self) -> None:
        """dlt reads its files once; each command of a reader is another process."""
        Container()[PluggableRunContext].reload_providers()

    def _line(self, line: str) -> None:
        words = shlex.split(line, comments=True)
        expected = int(found[1]) if (found := EXPECTED.search(line)) else 0
        code, said = self._invoked(words) if _is_plain(line) else self._in_a_shell(line)
        assert code == expected, f"{line}\nexit code {code}\n{said}"
        self.done.append(line)

    def _invoked(self, words: list[str]) -> tuple[int, str]:
        own: dict[str, str] = {}
        while "=" in words[0]:
            name, _, own[name] = words.pop(0).partition("=")
        if words[0] == "export":
            for word in words[1:]:
                self.patch.setenv(*word.split("=", 1))
            return 0, ""
        if words[:2] == ["importer-sync", "sandbox"]:
            self.serve(_service(main.make_parser().parse_args(words[1:])))
            return 0, ""
        return self._command(words[1:], own) if words[0] == "importer-sync" else self._in_a_shell(shlex.join(words))

    def _command(self, arguments: list[str], environment: Mapping[str, str]) -> tuple[int, str]:
        said = io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            self._look_again()
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                return main.invoke(arguments), said.getvalue()

    def _in_a_shell(self, line: str) -> tuple[int, str]:
        path = f"{self.directory / 'bin'}{os.pathsep}{os.environ['PATH']}"
        ended = subprocess.run(
            ["bash", "-c", line],
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        return ended.returncode, ended.stdout + ended.stderr

    def _settings(self, text: str) -> None:
        """Added to the file that the first line names, else to config.toml; whoever reads them finds nothing wrong."""
        named = re.match(r"# \.dlt/(secrets)\.toml\n", text)
        file = self.directory / ".dlt" / f"{'secrets' if named else 'config'}.toml"
        more = tomlkit.parse(text).unwrap()
        unknown = [
            key for key in _keys(more) if key not in known_settings() and not key[0].startswith(tuple(TABLES.values()))
        ]
        assert unknown == []
        file.parent.mkdir(exist_ok=True)
        before = tomlkit.parse(file.read_text()).unwrap() if file.exists() else {}
        file.write_text(tomlkit.dumps(_merged(before, more)))
        self._look_again()
        load_settings("importer")


def _is_plain(line: str) -> bool:
    words = shlex.shlex(line, posix=True, punctuation_chars=SHELL)
    words.whitespace_split = True
    return not any(set(word) <= set(SHELL) or word.startswith("$") for word in words)


def _keys(table: Mapping[str, Any], section: str = "") -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _keys(value, f"{section}.{key}".removeprefix("."))
        else:
            yield section, key


def _merged(before: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        key: _merged(before[key], more[key]) for key in before.keys() & more.keys() if isinstance(more[key], Mapping)
    }
    return {**before, **more, **both}
