"""`importer-sync plan`: report what the next run would read and delete, and what that costs; load nothing."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from connector.cli.configuration import open_pipeline
from connector.cli.output import Output, amount, duration, size
from connector.cli.progress import progress_of
from connector.cli.source_settings import load_settings
from connector.maintain.planning import RunPlan, plan

EXAMPLES = ("importer-sync plan", "importer-sync plan --json")


def configure(_: argparse.ArgumentParser) -> None:
    """Add no options."""


def run(arguments: argparse.Namespace, output: Output) -> int:
    settings, pipeline = load_settings(arguments.pipeline_name), open_pipeline(arguments)
    with progress_of(output, steps=False, loads=False) as progress:
        found = plan(pipeline, settings, progress=progress)
    output.document({**asdict(found), "problems": list(found.problems)})
    _print_result(output, found)
    return 0


def _print_result(output: Output, found: RunPlan) -> None:
    output.say(f"The service lists {amount(found.imports_listed, 'import')}. The next run would")
    records = amount(found.records, "record")
    output.say(f"  read      {found.imports_new:,} new and {found.imports_changed:,} changed, {records}")
    output.say(f"  delete    {amount(found.imports_deleted, 'import')}")
    output.say(f"  take      {amount(found.requests, 'request')}, about {duration(found.seconds)}")
    packages = amount(found.packages, "load package")
    output.say(f"  receive   about {size(found.bytes_received)}, loaded in {packages}")
    for problem in found.problems:
        output.note(f"  - {problem}")
    if not (found.imports_new or found.imports_changed or found.imports_deleted):
        output.say("Everything listed is loaded in its current version.")
