"""`importer-sync changes`: list what changed in the records, from the versions that `history` keeps; no request."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from connector.cli.configuration import open_pipeline
from connector.cli.options import moment, whole
from connector.cli.output import Output
from connector.reporting.changes import Change, changes

EXAMPLES = ("importer-sync changes --since 7d",)
FEW_RECORDS = 5


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--since",
        type=moment,
        required=True,
        metavar="TIME",
        help="a length of time such as 7d, yesterday, or a date or time (UTC)",
    )
    parser.add_argument("--template", metavar="NAME", help="only of this template, by name or slug")
    parser.add_argument("--limit", type=whole(1), default=100, metavar="N", help="lines to show (100); --json has all")
    parser.add_argument("--field", metavar="PATH", help="only of this field, as in sync_fields")


def run(arguments: argparse.Namespace, output: Output) -> int:
    found = changes(open_pipeline(arguments), arguments.since, arguments.template, arguments.field)
    if output.json:
        output.document({"changes": [each.as_json() for each in found]}, of_data=True)
        return 0
    if not found:
        output.say(f"Nothing changed since {arguments.since:%Y-%m-%d %H:%M} UTC.")
        return 0
    rows = list(_rows(found))
    columns = ("when", "template", "import", "record", "change", "field", "old", "new")
    output.table("changes", columns, rows[: arguments.limit])
    more = len(rows) - arguments.limit
    if more > 0:
        output.say(f"… and {more:,} more; --limit shows more of them, --json all.")
    return 0


def _rows(found: Sequence[Change]) -> Iterator[tuple[Any, ...]]:
    """Yield a line for each change, and one for all records of an import inserted or deleted in one run."""
    alike = Counter(_together(each) for each in found if each.field is None)
    told = set()
    for each in found:
        records, together = each.record, _together(each)
        if each.field is None and alike[together] > FEW_RECORDS:
            if together in told:
                continue
            told.add(together)
            records = f"{alike[together]:,} records"
        when, template = f"{each.at:%Y-%m-%d %H:%M}", each.template or "(no template)"
        yield when, template, each.import_slug, records, each.change, each.field, each.old, each.new


def _together(each: Change) -> tuple[Any, ...]:
    return each.at, each.template, each.import_slug, each.change
