"""`importer-sync sql`: apply the views for analysts and run the checks, from `sql/` and the data dictionary."""

from __future__ import annotations

import argparse
import json
from typing import Any

from connector.cli.configuration import open_pipeline
from connector.cli.exit_codes import PARTIAL
from connector.cli.options import add_global
from connector.cli.output import Output, amount
from connector.reporting.views.applying import Applied, apply, drop
from connector.reporting.views.checking import Checked, check
from connector.reporting.views.listing import listed

EXAMPLES = (
    "importer-sync sql apply",
    "importer-sync sql list",
    "importer-sync sql check failed_imports rejected_rows",
)


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    applying = actions.add_parser("apply", help="create or update the views, in a separate schema beside the dataset")
    applying.add_argument("--drop", action="store_true", help="drop the views instead")
    checking = actions.add_parser("check", help="run the checks; exit 3 if a row violates one")
    checking.add_argument("check", nargs="*", metavar="CHECK", help="only these (all)")
    actions.add_parser("list", help="list every view and check, with what one row of it means")
    for action in actions.choices.values():
        add_global(action, again=True)


def run(arguments: argparse.Namespace, output: Output) -> int:
    pipeline = open_pipeline(arguments)
    if arguments.action == "apply":
        applied = drop(pipeline) if arguments.drop else apply(pipeline)
        output.document({"status": "partial" if applied.blocked else "succeeded", **applied.as_json()})
        _print_applied(output, applied)
        return PARTIAL if applied.blocked else 0
    if arguments.action == "check":
        return _print_checked(output, check(pipeline, arguments.check))
    return _list(output, pipeline)


def _print_applied(output: Output, applied: Applied) -> None:
    summaries = {view.name: view.summary for view in applied.views}
    for verb, names in (("made", applied.made), ("rebuilt", applied.replaced), ("dropped", applied.dropped)):
        for name in names:
            output.say(f"{verb}  {applied.schema}.{name}" + (f"  {summaries[name]}" if name in summaries else ""))
    for name, reason in applied.left_out.items():
        output.note(f"left out: {name}, because {reason}; `importer-sync sql apply` creates it later")
    for reason in applied.blocked.values():
        output.note(f"blocked: {reason}.")
    changes = len(applied.made) + len(applied.replaced) + len(applied.dropped)
    if applied.kept:
        output.say(f"{amount(len(applied.kept), 'view')} in {applied.schema} left as they were.")
    elif not changes:
        output.say(f"There are no views in {applied.schema}.")
    if applied.made or applied.replaced:
        output.note('`importer-sync query "SELECT * FROM v_imports"` queries one.')


def _print_checked(output: Output, checked: list[Checked]) -> int:
    wrong = [each for each in checked if each.offending]
    document = {"status": "offending" if wrong else "clean", "checks": [each.as_json() for each in checked]}
    output.document(json.loads(json.dumps(document, default=_plain)))
    widest = max((len(each.name) for each in checked), default=0)
    for each in checked:
        output.say(f"{'FAIL' if each.offending else 'ok  '}  {each.name:<{widest}}  {amount(each.offending, 'row')}")
        if each.offending:
            more = each.offending - len(each.examples)
            title = f"      {each.summary}" + (f" The first {len(each.examples)}:" if more else "")
            output.table(title, each.columns, each.examples)
    checks = amount(len(checked), "check")
    output.say(f"{len(wrong)} of {checks} found violating rows." if wrong else f"{checks}, no violating row.")
    return PARTIAL if wrong else 0


def _plain(value: Any) -> str:
    return str(value.isoformat()) if hasattr(value, "isoformat") else str(value)


def _list(output: Output, pipeline: Any) -> int:
    statements = listed(pipeline)
    rows = [{"name": s.name, "kind": s.kind, "summary": s.summary, "grain": s.grain} for s in statements]
    output.document({"statements": rows})
    for kind in ("view", "check"):
        for row in rows:
            if row["kind"] == kind:
                output.say(f"{kind}  {row['name']}", f"       {row['summary']}", f"       Grain: {row['grain']}")
    return 0
