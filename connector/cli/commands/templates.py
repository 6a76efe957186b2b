"""`importer-sync templates`: list the templates in the warehouse, with their tables and counts; no request."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from connector.cli.configuration import open_pipeline
from connector.cli.output import Output
from connector.warehouse.templates import templates

EXAMPLES = ("importer-sync templates", "importer-sync templates --json")


def configure(_: argparse.ArgumentParser) -> None:
    """Add no options."""


def run(arguments: argparse.Namespace, output: Output) -> int:
    found = templates(open_pipeline(arguments))
    output.document({"templates": [asdict(each) for each in found]})
    if not found:
        output.say("Nothing has been loaded yet; `importer-sync run` loads it.")
        return 0
    rows = [(t.name or t.slug or "(no template)", t.table, t.imports, t.records, t.open, t.slug) for t in found]
    output.table("templates", ("name", "table", "imports", "records", "open", "slug"), rows)
    return 0
