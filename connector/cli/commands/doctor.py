"""`importer-sync doctor`: explain what is wrong, and make the repairs that lose nothing."""

from __future__ import annotations

import argparse

from connector.cli.configuration import open_pipeline
from connector.cli.output import Output, amount
from connector.cli.source_settings import settings_if_configured
from connector.maintain.doctor import doctor
from connector.transform.privacy import Privacy

NO_PROBLEM = (
    "No problems found. Checked: the working directory, runs that died, the tables and their columns, and each "
    "import's rows against the ledger. `importer-sync verify` compares with the service."
)
EXAMPLES = ("importer-sync doctor", "importer-sync doctor --repair")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repair", action="store_true", help="make the repairs that lose nothing, and list them")


def run(arguments: argparse.Namespace, output: Output) -> int:
    report = doctor(open_pipeline(arguments), repair=arguments.repair, privacy=_rules(arguments.pipeline_name))
    output.document(report.as_json())
    for sentence in report.repaired:
        output.say(f"repaired: {sentence}")
    for finding in report.findings:
        output.say(f"{finding.kind}: {finding.sentence}", f"    → {finding.fix}")
    for sentence in report.notes:
        output.note(f"note: {sentence}")
    output.say(amount(len(report.findings), "problem") if report.findings else NO_PROBLEM)
    return report.exit_code


def _rules(pipeline: str) -> Privacy | None:
    """Return the privacy rules; None if the source is not configured, which the warehouse does not need."""
    settings = settings_if_configured(pipeline)
    return None if settings is None else settings.protection
