"""`importer-sync changes`: what changed in the records, from the versions that `history` keeps; without a request."""

from __future__ import annotations

import argparse

from connector.cli.configuration import open_pipeline
from connector.cli.options import moment
from connector.cli.output import Output
from connector.reporting.changes import changes

EXAMPLES = ("importer-sync changes --since 7d",)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--since",
        type=moment,
        required=True,
        metavar="TIME",
        help="a length of time such as 7d, yesterday, or a date or time (UTC)",
    )
    parser.add_argument("--template", metavar="NAME", help="only of this template, by name or slug")
    parser.add_argument("--field", metavar="PATH", help="only of this field, as in sync_fields")


def run(arguments: argparse.Namespace, output: Output) -> int:
    found = changes(open_pipeline(arguments), arguments.since, arguments.template, arguments.field)
    output.document({"changes": [each.as_json() for each in found]})
    if not found:
        output.say(f"Nothing changed since {arguments.since:%Y-%m-%d %H:%M} UTC.")
        return 0
    rows = [
        (
            f"{e.at:%Y-%m-%d %H:%M}",
            e.template or "(no template)",
            e.import_slug,
            e.record,
            e.change,
            e.field,
            e.old,
            e.new,
        )
        for e in found
    ]
    output.table("changes", ("when", "template", "import", "record", "change", "field", "old", "new"), rows)
    return 0
