"""`importer-sync dbt sources`: write the tables as a source of a dbt project."""

from __future__ import annotations

import argparse
from pathlib import Path

from connector.cli.configuration import open_pipeline
from connector.cli.options import add_global
from connector.cli.output import STDOUT, Output, amount
from connector.errors import ConfigError
from connector.files import may_be_replaced, write_out
from connector.reporting.views.sources import WRITTEN_BY, as_yaml, sources

EXAMPLES = ("importer-sync dbt sources", "importer-sync dbt sources --out importer_sources.yml")


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    sources = actions.add_parser("sources", help="print sources.yml, or write it")
    sources.add_argument("--out", type=Path, metavar="FILE", help="write it here, e.g. models/sources.yml (stdout)")
    add_global(sources, again=True)


def run(arguments: argparse.Namespace, output: Output) -> int:
    document = sources(open_pipeline(arguments))
    tables = document["sources"][0]["tables"]
    if arguments.out is None or str(arguments.out) in STDOUT:
        output.document(document)
        if not output.json:
            output.say(*as_yaml(document).rstrip("\n").split("\n"), whole=True)
        return 0
    if not may_be_replaced(arguments.out, WRITTEN_BY.lower().encode()):
        raise ConfigError(
            f"--out {arguments.out} was not written by this command, and would be replaced: name another file, or "
            "remove it first."
        )
    try:
        write_out(arguments.out, as_yaml(document).encode("utf-8", "replace"))
    except OSError as error:
        raise ConfigError(f"--out {arguments.out} cannot be written ({error.strerror}).") from None
    output.document({"status": "succeeded", "path": str(arguments.out), "tables": [t["name"] for t in tables]})
    output.say(f"{arguments.out}: {amount(len(tables), 'table')}")
    return 0
