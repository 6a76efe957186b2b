"""The examples in each command's help, carried out as they stand there."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from connector.cli import main

pytestmark = pytest.mark.thorough

TOKEN = "very-secret-token-4711"
SHELL = "<>|;&"
SERVES = "importer-sync sandbox"
ELSEWHERE = ("importer-sync demo", "importer-sync check --destination-deep", "importer-sync backfill --shard 2/4")
FIRST = ("importer-sync init", "importer-sync run", "importer-sync sql apply")
OWN_HOME = ".local/share/bash-completion/completions .zfunc .config/fish/completions"


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Every command that can be given, those below another one included."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield parser
    for action in below:
        for choice in action.choices.values():
            yield from leaves(choice)


def examples(parser: argparse.ArgumentParser) -> list[str]:
    _, found, shown = parser.format_help().partition("\nexample")
    return [line.strip() for line in shown.splitlines()[1:] if line.strip()] if found else []


def every_example() -> list[str]:
    found = dict.fromkeys(example for parser in leaves(main.make_parser()) for example in examples(parser))
    return sorted(found, key=lambda line: next((n for n, first in enumerate(FIRST) if line.startswith(first)), 99))


@pytest.mark.parametrize("parser", [*leaves(main.make_parser())], ids=lambda parser: parser.prog)
def test_every_command_has_an_example_of_its_own(parser: argparse.ArgumentParser) -> None:
    shown = examples(parser)
    assert shown, f"{parser.prog} --help has no example"
    assert all(f"{line} ".startswith(f"{parser.prog} ") for line in shown)


@pytest.fixture
def surroundings(command, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with what the examples speak of, and `importer-sync` on the path."""
    programs = command.directory / "bin"
    programs.mkdir()
    program = programs / "importer-sync"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m connector "$@"\n')
    program.chmod(0o755)
    for folder in OWN_HOME.split():
        (command.directory / folder).mkdir(parents=True)
    (command.directory / "token.txt").write_text(f"{TOKEN}\n")
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(command.directory))
    for name, value in command.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SOURCES__IMPORTER__HISTORY", "true")  # for `changes`
    monkeypatch.setattr(main, "prepare_environment", lambda **_: None)
    yield command.directory
    for path in (command.directory / "token.txt", command.directory / ".dlt" / "secrets.toml"):
        path.unlink()  # the two files that may hold the token


def carried_out(example: str) -> tuple[int, str]:
    """Its exit code and what it said on stderr; in this process where it needs no shell, for speed."""
    words = shlex.shlex(example, posix=True, punctuation_chars=SHELL)
    if any(set(word) <= set(SHELL) for word in words):
        ended = subprocess.run(["bash", "-c", example], capture_output=True, text=True, timeout=60, check=False)
        return ended.returncode, ended.stderr
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        return main.invoke(shlex.split(example)[1:]), said.getvalue()


@pytest.mark.long
def test_every_example_works(command, surroundings: Path) -> None:
    tried = 0
    for example in every_example():
        if example.startswith(SERVES) or example in ELSEWHERE:
            continue  # below, in test_the_demo and in test_conformance
        line = example.replace("https://service.example", command.environment["SOURCES__IMPORTER__BASE_URL"])
        code, said = carried_out(line)
        assert code == 0, f"{line}\n{said}"
        tried += 1
    assert tried >= 20
    assert (surroundings / ".zfunc" / "_importer-sync").read_text().startswith("#compdef importer-sync")


@pytest.mark.parametrize("example", [line for line in every_example() if line.startswith(SERVES)])
def test_every_example_of_the_sandbox_serves(command, example: str) -> None:
    process = command.start(*shlex.split(example)[1:])
    assert process.stdout is not None
    assert process.stdout.readline().startswith("Serving ")
    process.terminate()
    assert command.end(process).code == 143
