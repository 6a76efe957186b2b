"""`importer-sync verify`: compare the service with the warehouse, and print one line for each difference."""

from __future__ import annotations

import argparse

from connector.cli.configuration import open_pipeline
from connector.cli.output import Output, amount
from connector.cli.progress import progress_of
from connector.cli.source_settings import load_settings
from connector.maintain.verify import VerifyReport, verify

EXAMPLES = ("importer-sync verify", "importer-sync verify --deep --json")
LINES_SHOWN = 50


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--deep", action="store_true", help="read every record again and compare each row and cell")


def run(arguments: argparse.Namespace, output: Output) -> int:
    settings, pipeline = load_settings(arguments.pipeline_name), open_pipeline(arguments)
    with progress_of(output, verb="compared", loads=False) as progress:
        report = verify(pipeline, settings, arguments.deep, progress)
    output.document(report.as_json())
    _print_result(output, report)
    return report.exit_code


def _print_result(output: Output, report: VerifyReport) -> None:
    for difference in report.differences[:LINES_SHOWN]:
        output.say(f"{difference.kind}  {difference.sentence}")
    more = len(report.differences) - LINES_SHOWN
    if more > 0:
        output.say(f"… and {more:,} more; --json has them all")
    for sentence in report.unchecked:
        output.note(f"not compared: {sentence}")
    if report.moved:
        imports = amount(len(report.moved), "import")
        output.say(f"{imports} changed meanwhile and are not counted as differences; the next run reads them.")
    compared = amount(report.imports, "import")
    if report.deep:
        compared += f" and {amount(report.records, 'record')}"
    found = amount(len(report.differences), "difference") if report.differences else "no difference"
    by = "every value" if report.deep else "their fields and counts; with --deep every value"
    output.say(f"{compared} compared ({by}), {found}, {amount(report.requests, 'request')}.")
    if report.differences and not report.deep:
        output.note("`importer-sync run` reads what changed; `backfill --import SLUG` reads one import again.")
