"""`importer-sync hints suggest`: propose types and formats that fit the loaded texts, as configuration lines."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from itertools import groupby
from operator import attrgetter

from connector.cli.configuration import open_pipeline
from connector.cli.options import add_global
from connector.cli.output import Output
from connector.dlt_config import configured
from connector.maintain.suggesting import Suggestion, suggest
from connector.transform.guessing import SHARE

EXAMPLES = ("importer-sync hints suggest", "importer-sync hints suggest --json")


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    suggesting = actions.add_parser(
        "suggest", help="propose a type for each text column if nearly all its values fit it; no request"
    )
    add_global(suggesting, again=True)


def run(arguments: argparse.Namespace, output: Output) -> int:
    pipeline = open_pipeline(arguments)
    found = suggest(pipeline, _given())
    output.document(
        {"suggestions": [{"table": s.table, "column": s.column, "hint": s.hint, "share": s.share} for s in found]}
    )
    if not found:
        output.say(f"No hint fits {SHARE:.0%} of the texts of a column that has none.")
        return 0
    output.say("# For .dlt/config.toml; `importer-sync rebuild` then applies them to what is loaded.")
    for table, lines in groupby(found, attrgetter("table")):
        output.say("", f"[sources.importer.hints.{table}]")
        for each in lines:
            output.say(f"{each.column} = {json.dumps(each.hint, ensure_ascii=False)}  # {_fits(each)}", whole=True)
    output.note("Where a table has hints already, add the lines to them.")
    return 0


def _given() -> Mapping[str, Mapping[str, str]]:
    """Return the configured hints; URL and token are not needed here."""
    given = configured("sources.importer.hints", dict)
    return given if isinstance(given, Mapping) else {}


def _fits(suggestion: Suggestion) -> str:
    """Return the share in words; "all" only if it is exactly all."""
    if suggestion.share == 1:
        return f"fits all {suggestion.values:,} values"
    return f"fits {min(suggestion.share * 100, 99.9):.1f} % of {suggestion.values:,} values"
