"""`importer-sync demo`: show the whole package in a minute, offline and without configuration."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from connector.cli.output import Output
from connector.cli.signals import Stop, supervised
from connector.errors import ConfigError, ConnectorError

if TYPE_CHECKING:
    from dlt.pipeline.pipeline import Pipeline

    from connector.cli.demo_script import Demonstration

EXAMPLES = ("importer-sync demo",)
DATABASE = "importer_demo.duckdb"
PIPELINE = "importer_demo"
DATASET = "importer_data"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--file",
        action="append",
        default=[],
        metavar="PATH",
        help="a CSV, JSON or JSON Lines file of your own to serve and sync, instead of the two samples",
    )
    parser.add_argument("--seed", type=int, default=7, help="the same seed shows the same data (7)")


def run(arguments: argparse.Namespace, output: Output) -> int:
    if arguments.to or arguments.destination:
        raise ConfigError(f"The demo always writes to ./{DATABASE}; --to and --destination are for the other commands.")
    with tempfile.TemporaryDirectory(prefix="importer-demo-", ignore_cleanup_errors=True) as scratch:
        # dlt, imported below for that reason, must find neither the user's configuration nor a directory at home
        os.environ["DLT_DATA_DIR"] = os.environ["DLT_PROJECT_DIR"] = scratch
        return supervised(
            lambda stop: _perform(arguments, output, scratch, stop),
            on_first=lambda _: output.note("Stopping the demo."),
            on_forced=lambda _: None,
        )


def _perform(arguments: argparse.Namespace, output: Output, scratch: str, stop: Stop) -> int:
    from connector.cli.demo_script import Demonstration, offered
    from connector.sandbox import serve

    database = Path.cwd() / DATABASE
    service = offered(arguments.seed, arguments.file)
    pipeline = _pipeline(database, scratch)
    with serve(service) as url:
        shown = Demonstration(service, url, pipeline, output, stop)
        shown.act()
    signal = stop()
    status = "interrupted" if signal is not None else "succeeded" if shown.equal else "failed"
    output.document({"status": status, "file": str(database), **shown.document()})
    if signal is not None:
        return 128 + signal
    if not shown.equal:
        raise ConnectorError("The warehouse differs from the service; please report this.")
    _print_next_steps(output, shown)
    return 0


def _pipeline(database: Path, scratch: str) -> Pipeline:
    import dlt

    _check_own(database)
    for leftover in (database, database.with_name(f"{database.name}.wal")):
        leftover.unlink(missing_ok=True)
    return dlt.pipeline(
        PIPELINE,
        destination=dlt.destinations.duckdb(str(database)),
        dataset_name=DATASET,
        pipelines_dir=scratch,
    )


def _check_own(database: Path) -> None:
    """Raise ConfigError if the file has anything that no demo loaded into it."""
    import duckdb

    if not database.exists() or not database.stat().st_size:
        return
    try:
        with duckdb.connect(str(database), read_only=True) as connection:
            schemas = {row[0] for row in connection.execute("SELECT schema_name FROM duckdb_tables()").fetchall()}
            state = f"SELECT DISTINCT pipeline_name FROM {DATASET}._dlt_pipeline_state"
            loaded_by = {row[0] for row in connection.execute(state).fetchall()} if schemas else set()
    except duckdb.Error:
        schemas, loaded_by = set(), {None}
    if not (schemas <= {DATASET, f"{DATASET}_staging"} and loaded_by <= {PIPELINE}):
        raise ConfigError(
            f"{database} is in use or was not written by the demo, which would replace it: rename it, or run the demo "
            "in another folder."
        )


def _print_next_steps(output: Output, shown: Demonstration) -> None:
    to = f"--to duckdb:{DATABASE}"
    output.say("Three queries to try:")
    for question, sql, rows in shown.queries:
        output.say("", f"  # {question}")
        output.say(f'  {_command()} query {to} "{sql}"', whole=True)
        output.say(f"  # → {_first(rows)}")
    output.say("", "And then:")
    output.say(f"  {_command()} report {to} --open      # everything on one page", whole=True)
    output.say(f"  {_command()} sql apply {to}          # updates the views, as each run does", whole=True)
    output.say("For your own service: `importer-sync init` asks for its address and token.")


def _command() -> str:
    """Return how this command is called here, so that what is printed can be pasted."""
    called = Path(sys.argv[0])
    if called.name != "importer-sync":
        return f"{shlex.quote(sys.executable)} -m connector"
    found = shutil.which("importer-sync")
    if found is not None and Path(found).resolve() == called.resolve():
        return "importer-sync"
    absolute = called.absolute()
    inside = absolute.is_relative_to(Path.cwd())
    return shlex.quote(str(absolute.relative_to(Path.cwd()) if inside else absolute))


def _first(rows: list[dict[str, Any]]) -> str:
    first = ", ".join(f"{name}: {value}" for name, value in rows[0].items()) if rows else "no rows"
    return f"{first} (the first of {len(rows)})" if len(rows) > 1 else first
