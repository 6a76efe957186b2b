"""The format of a warehouse: stored with the ledger, and a newer one is refused before anything is written."""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import dlt
import pytest
from dlt.pipeline.pipeline import Pipeline

import connector
from connector import runs
from connector.cli.exit_codes import USAGE, exit_code
from connector.cli.main import make_parser
from connector.errors import ConfigError
from connector.load import table_rows
from connector.maintain.compact import compact
from connector.maintain.doctor import doctor
from connector.maintain.planning import plan
from connector.maintain.rebuild import rebuild
from connector.maintain.suggesting import suggest
from connector.reporting.changes import changes
from connector.reporting.html.gathering import gather
from connector.reporting.views import applying, checking
from connector.reporting.views.sources import sources
from connector.runs import connector_version
from connector.sandbox import Service, serve
from connector.settings import Settings
from connector.warehouse import Warehouse, ownership
from connector.warehouse.ownership import inspect_dataset
from connector.warehouse.tables import FORMAT
from connector.warehouse.upgrades import STEPS
from tests.processes import start

# What a command needs besides its name; and those that leave the warehouse alone: `query` has no rule of ours to apply.
WORDS = {
    "backfill": ["--full"],
    "changes": ["--since", "2026-01-01"],
    "doctor": ["--repair"],
    "query": ["SELECT 1 AS n"],
    "verify": ["--deep"],
}
WITHOUT_WAREHOUSE = {"init", "demo", "preview", "session create", "sandbox", "completion", "sql list", "query"}


def test_each_format_has_the_step_that_leads_to_it() -> None:
    assert len(STEPS) == FORMAT


def test_a_newer_format_is_refused_by_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "w.duckdb"
    service = Service(seed=1)
    service.add_generated("customers", imports=2, rows=3)

    def pipeline() -> Pipeline:
        made = dlt.destinations.duckdb(str(file))
        return dlt.pipeline("importer", destination=made, dataset_name="d", pipelines_dir=str(tmp_path / "p"))

    def found() -> int:
        with Warehouse(pipeline()).connect() as connection:
            return inspect_dataset(connection).format

    with serve(service) as url:
        source = connector.importer_source(base_url=url, access_token=service.token)
        settings = Settings.load(base_url=url, access_token=service.token)
        assert connector.sync(pipeline(), source).status == "succeeded"
        assert found() == FORMAT
        with monkeypatch.context() as newer:
            for module in (table_rows, ownership):
                newer.setattr(module, "FORMAT", FORMAT + 1)
            newer.setattr(runs, "connector_version", lambda: "9.1")
            assert connector.sync(pipeline(), source, scope=connector.Scope(full=True)).status == "succeeded"
        refused: dict[str, Callable[[], object]] = {
            "run": lambda: connector.sync(pipeline(), source),
            "backfill": lambda: connector.sync(pipeline(), source, scope=connector.Scope(full=True)),
            "dlt alone": lambda: pipeline().run(source),
            "verify": lambda: connector.verify(pipeline(), source),
            "status": lambda: connector.status(pipeline()),
            "doctor": lambda: doctor(pipeline(), repair=True),
            "rebuild": lambda: rebuild(pipeline(), settings, []),
            "report": lambda: gather(Warehouse(pipeline()), "", "d", datetime.now(UTC)),
            "sql apply": lambda: applying.apply(pipeline()),
            "sql check": lambda: checking.check(pipeline()),
            "sql drop": lambda: applying.drop(pipeline()),
            "templates": lambda: connector.templates(pipeline()),
            "plan": lambda: plan(pipeline(), settings),
            "changes": lambda: changes(pipeline(), datetime.now(UTC)),
            "compact": lambda: compact(pipeline(), mirrors=True),
            "hints suggest": lambda: suggest(pipeline(), {}),
            "dbt sources": lambda: sources(pipeline()),
        }
        for name, use in refused.items():
            before = contents(file)
            with pytest.raises(
                Exception, match=f"written in format {FORMAT + 1}, by importer-connector 9.1;"
            ) as raised:
                use()
            cause: BaseException | None = raised.value
            while cause is not None and not isinstance(cause, ConfigError):
                cause = cause.__cause__ or cause.__context__
            assert cause is not None, name
            assert name == "dlt alone" or exit_code(raised.value) == USAGE, name
            assert f"importer-connector {connector_version()} knows formats up to {FORMAT}." in str(cause)
            assert contents(file) == before, name


def commands(parser: argparse.ArgumentParser, name: str = "") -> Iterator[str]:
    inner = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for word, each in (pair for choices in inner for pair in choices.items()):
        yield from commands(each, f"{name} {word}".strip())
    if not inner:
        yield name


@pytest.mark.thorough
def test_a_newer_format_is_refused_by_each_command_of_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "importer.duckdb"
    service = Service(seed=1)
    service.add_generated("customers", imports=2, rows=3)
    with serve(service) as url:
        with monkeypatch.context() as newer:
            for module in (table_rows, ownership):
                newer.setattr(module, "FORMAT", FORMAT + 1)
            newer.setattr(runs, "connector_version", lambda: "9.1")
            made = dlt.destinations.duckdb(str(file))
            pipeline = dlt.pipeline(
                "importer", destination=made, dataset_name="importer_data", pipelines_dir=str(tmp_path / "p")
            )
            source = connector.importer_source(base_url=url, access_token=service.token)
            assert connector.sync(pipeline, source).status == "succeeded"
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "SOURCES__IMPORTER__BASE_URL": url,
            "SOURCES__IMPORTER__ACCESS_TOKEN": service.token,
        }
        names = set(commands(make_parser()))
        assert names >= WITHOUT_WAREHOUSE | WORDS.keys()
        for name in sorted(names - (WITHOUT_WAREHOUSE - {"query"})):
            before = contents(file)
            process = start([*name.split(), *WORDS.get(name, [])], cwd=tmp_path, env=environment)
            out, err = process.communicate(120)
            assert contents(file) == before, name
            if name not in WITHOUT_WAREHOUSE:
                assert process.returncode == USAGE, f"{name}: {out}{err}"
                assert (
                    f"format {FORMAT + 1}, by importer-connector 9.1; importer-connector {connector_version()} " in err
                )
            else:
                assert process.returncode == 0, f"{name}: {err}"


def contents(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
