"""`importer-sync rebuild`: rebuild typed tables from the raw rows."""

from __future__ import annotations

import argparse

from connector.cli.configuration import open_pipeline
from connector.cli.output import Output, amount
from connector.cli.source_settings import load_settings
from connector.maintain.rebuild import rebuild

EXAMPLES = ("importer-sync rebuild", "importer-sync rebuild --table records_customers")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--table", action="append", default=[], metavar="TABLE", help="only this typed table (may be given repeatedly)"
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    settings, pipeline = load_settings(arguments.pipeline_name), open_pipeline(arguments)
    done = rebuild(pipeline, settings, arguments.table)
    output.document({"status": "succeeded", "tables": [table.as_json() for table in done]})
    for table in done:
        conflicts = f"values that do not fit their column {table.conflicts_before:,} → {table.conflicts:,}"
        output.say(f"{table.table}: {amount(table.rows, 'row')}, {conflicts}")
        for column, before, after in table.retyped:
            output.say(f"  {column}: {before or 'no type yet'} → {after}")
    if not done:
        output.say("There is no typed table with rows, so there was nothing to rebuild.")
    return 0
