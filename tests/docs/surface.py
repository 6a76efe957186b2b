"""The public names of docs/compatibility.md, a line each.

surface.txt has those of the last release. `python -m tests.docs.surface` writes it, once
for each release; until the next, every name that changes has to be in an entry of the newest section of CHANGELOG.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import connector
from connector.cli import exit_codes, main
from connector.cli.notices import SECTION
from connector.warehouse.tables import RECORDS, RECORDS_SCHEMA, SYSTEM_SCHEMAS, TYPED_SCHEMA
from tests.docs.reference import known_settings

FILE = Path(__file__).with_name("surface.txt")
CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"
_COMMON = ("-h", "--help")
_SAID_BY_ALL = {"importer-sync", "importer_sync", "connector", "sources", "importer"}


def surface() -> list[str]:
    """Return every public name, sorted."""
    return sorted({*_commands(), *_exit_codes(), *_python(), *_settings(), *_tables()})


def _commands() -> Iterator[str]:
    yield from _options("importer-sync", main.make_parser())


def _options(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"command {name}"
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, inner in action.choices.items():
                yield from _options(f"{name} {word}", inner)
        elif action.option_strings:
            yield from (f"option {name} {option}" for option in action.option_strings if option not in _COMMON)
        else:
            yield f"argument {name} {action.metavar or action.dest}"


def _exit_codes() -> Iterator[str]:
    named = {"0": "done", "130": "SIGINT", "143": "SIGTERM"}
    named |= {str(getattr(exit_codes, each)): each.lower() for each in ("FAILED", "USAGE", "PARTIAL", "LOCKED")}
    yield from (f"exit code {code} {word}" for code, word in named.items())


def _python() -> Iterator[str]:
    for name in connector.__all__:
        public = getattr(connector, name)
        yield f"python connector.{name}"
        if is_dataclass(public):
            yield from (f"python connector.{name}.{each.name}" for each in fields(public))
        elif inspect.isfunction(public):
            parameters = inspect.signature(inspect.unwrap(public)).parameters
            yield from (f"python connector.{name}({each}=)" for each in parameters)


def _settings() -> Iterator[str]:
    yield from (
        f"setting {section}.{key}" for section, key in known_settings() if section.startswith(("sources.", SECTION))
    )


def _tables() -> Iterator[str]:
    for table, schema in {**SYSTEM_SCHEMAS, RECORDS: RECORDS_SCHEMA, "records_<template>": TYPED_SCHEMA}.items():
        yield from (f"column {table}.{name}" for name in schema.names)


def unsaid(known: Iterable[str], found: Iterable[str], changelog: str) -> list[str]:
    """Return the names that are new or gone, and of which no entry of the newest section has all words."""
    newest = changelog.split("\n## ")[1]
    entries = [set(re.findall(r"[\w<>-]+", entry)) for entry in newest.split("\n- ")[1:]]
    changed = sorted(set(known) ^ set(found))
    return [name for name in changed if not any(_words(name) <= entry for entry in entries)]


def _words(name: str) -> set[str]:
    return set(re.findall(r"[\w<>-]+", name)[1:]) - _SAID_BY_ALL


def write() -> None:
    FILE.write_text("".join(f"{line}\n" for line in surface()), encoding="utf-8")


if __name__ == "__main__":
    write()
