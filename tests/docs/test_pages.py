"""Every block of the documentation is carried out, in the order of its page, and every command in passing exists."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from dlt.common.configuration.container import Container
from dlt.common.configuration.specs.pluggable_run_context import PluggableRunContext

from connector.cli import main, redaction
from connector.cli.environment import DLT_DEFAULTS
from connector.sandbox import Service
from tests.docs.pages import CHECKOUT, COMMAND, PAGES, Block, blocks, in_passing, links, text_of
from tests.docs.visitor import SHELL, Visitor
from tests.types.conftest import postgres_uri

__all__ = ["postgres_uri"]


# What no test can carry out: installing, make, schedulers. The commands inside have to exist all the same.
ONLY_READ = {
    "README.md": Counter({"text": 2}),
    "docs/dagster.md": Counter({"text": 1}),
    "docs/delta.md": Counter({"text": 1}),
    "docs/ducklake.md": Counter({"text": 1}),
    "docs/parquet.md": Counter({"text": 1}),
    "docs/shards.md": Counter({"text": 1}),
    "docs/postgres.md": Counter({"text": 1}),
    "docs/schedule.md": Counter({"cron": 1, "ini": 1, "python prefect": 1}),
}
NEWCOMERS = {"README.md"}  # whoever reads it has configured nothing yet
WITH_DATABASE = {"docs/postgres.md"}
WITH_EXTENSIONS = {"docs/ducklake.md"}  # where `make ducklake` has them
AFTER_A_RUN = {"docs/troubleshooting.md"}
PLACEHOLDERS = {f"{COMMAND}COMMAND --help"}
PEOPLE = "Last name,E-mail,Country\nCurie,marie@example.com,Poland\nNoether,emmy@example.com,Germany\n"


def to_carry_out(page: str) -> list[Block]:
    return [block for block in blocks(page) if block.language not in ONLY_READ.get(page, ())]


@pytest.fixture
def process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A command sets up the logs, the secrets and dlt's settings of its process, and this process goes on."""
    loggers = [logging.getLogger(name) for name in ("connector", "dlt", "opentelemetry", "py.warnings")]
    before = [(log, log.handlers[:], log.level, log.propagate) for log in loggers]
    context = Container()[PluggableRunContext]
    providers = context.providers
    monkeypatch.setattr(redaction, "_known", set())
    yield
    context.providers = providers
    context.context.reset_config()
    logging.captureWarnings(False)
    for log, handlers, level, propagate in before:
        log.handlers[:], log.level, log.propagate = handlers, level, propagate


@pytest.fixture
def visitor(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process_as_it_was: None
) -> Iterator[Visitor]:
    """In an empty directory but for a file of one's own, and the pipelines that a checkout has."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, start in (("importer-sync", "-m connector "), ("python", ""), ("dlt", "-m dlt ")):
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {start}"$@"\n')
        (programs / name).chmod(0o755)
    (tmp_path / "people.csv").write_text(PEOPLE)
    shutil.copytree(CHECKOUT / "pipelines", tmp_path / "pipelines")
    for name, value in {**DLT_DEFAULTS, "DLT_DATA_DIR": str(tmp_path / "dlt")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(main, "prepare_environment", lambda **_: None)
    page = request.node.callspec.params["page"]
    if page in WITH_EXTENSIONS:
        pytest.importorskip("duckdb_extension_ducklake")
    database = request.getfixturevalue("postgres_uri") if page in WITH_DATABASE else ""
    with contextlib.ExitStack() as stack:
        visitor = Visitor(tmp_path, monkeypatch, stack, database)
        if page not in NEWCOMERS:
            service = Service()
            for template in ("customers", "orders"):
                service.add_generated(template, imports=2, rows=40)
            visitor.serve(service)
            monkeypatch.setenv("SOURCES__IMPORTER__BASE_URL", visitor.url)
            monkeypatch.setenv("SOURCES__IMPORTER__ACCESS_TOKEN", service.token)
        if page in AFTER_A_RUN:
            visitor.carry_out(Block("sh", "importer-sync run", 0))
        yield visitor


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=() if page in NEWCOMERS else pytest.mark.long) for page in PAGES if to_carry_out(page)],
)
def test_a_reader_can_do_what_the_page_says(visitor: Visitor, page: str) -> None:
    for block in to_carry_out(page):
        try:
            visitor.carry_out(block)
        except Exception as error:
            error.add_note(f"{page}, line {block.line}:\n{block.text}")
            raise
    assert len(visitor.done) >= len([block for block in to_carry_out(page) if block.language == "sh"])


@pytest.mark.parametrize("page", PAGES)
def test_only_these_blocks_are_not_carried_out(page: str) -> None:
    known = ONLY_READ.get(page, Counter())
    found = Counter(block.language for block in blocks(page) if block.language in known or not block.language)
    assert found == known
    for block in blocks(page):
        if block.language == "python prefect":
            compile(block.text, page, "exec")


def named(page: str) -> Iterator[str]:
    """Commands in the text and in every block, without the shell around them."""
    lines = [line for block in blocks(page) for line in block.text.replace("\\\n", " ").splitlines()]
    for line in [*in_passing(page), *lines]:
        before, found, rest = line.partition(COMMAND)
        if found and "#" not in before and line not in PLACEHOLDERS:
            yield rest


@pytest.mark.parametrize("page", PAGES)
def test_every_command_exists_with_its_options(page: str) -> None:
    for line in named(page):
        words = shlex.shlex(line, posix=True, punctuation_chars=SHELL)
        words.whitespace_split = True
        arguments: list[str] = []
        for word in words:
            if set(word) <= set(SHELL) or word.isdigit():
                break
            arguments.append(word)
        assert is_understood(arguments), f"{page}: importer-sync {line}"


def is_understood(arguments: list[str]) -> bool:
    if len(arguments) == 1 and arguments[0] in main.COMMANDS:
        return True  # spoken of, with what it needs left out
    try:
        main.make_parser().parse_args(arguments)
    except SystemExit as end:
        return end.code == 0  # --help
    return True


@pytest.mark.parametrize("page", PAGES)
def test_every_link_within_the_checkout_leads_somewhere(page: str) -> None:
    for link in links(page):
        if not link.startswith(("https://", "http://")):
            assert (CHECKOUT / page).parent.joinpath(link).is_file(), f"{page}: {link}"


def test_the_readme_is_short_and_leads_to_every_page() -> None:
    readme = text_of("README.md")
    assert len(readme.splitlines()) <= 130
    assert all(os.fspath(page) in readme for page in PAGES if page.startswith("docs/"))


def test_the_page_of_commands_names_every_command() -> None:
    table = "\n".join(line for line in text_of("docs/commands.md").splitlines() if line.startswith("| `"))
    for command in main.COMMANDS:
        assert f"| `{command}`" in table, command
