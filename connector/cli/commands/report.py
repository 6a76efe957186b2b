"""`importer-sync report`: write the state of the warehouse as one HTML file."""

from __future__ import annotations

import argparse
import sys
import webbrowser
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dlt.pipeline.pipeline import Pipeline

from connector.cli.configuration import open_pipeline
from connector.cli.output import STDOUT, Output, size
from connector.cli.redaction import scrub
from connector.cli.source_settings import load_settings
from connector.errors import ConfigError
from connector.reporting.html import Facts, gather, judge, render, write
from connector.warehouse import Warehouse
from connector.warehouse.busy import when_free
from connector.warehouse.destination import duckdb_file, location, no_warehouse

EXAMPLES = (
    "importer-sync report --out report.html",
    "importer-sync report --out report.html --json",
    "importer-sync report --open",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("report.html"), metavar="FILE", help="file (report.html)")
    parser.add_argument("--open", action="store_true", help="open it in a browser")
    parser.add_argument("--no-values", action="store_true", help="leave out smallest, largest and most frequent values")


def run(arguments: argparse.Namespace, output: Output) -> int:
    pipeline = open_pipeline(arguments)
    _redact_token(arguments.pipeline_name)
    facts = _gathered(pipeline, arguments.dataset, values=not arguments.no_values)
    to_stdout = str(arguments.out) in STDOUT
    if to_stdout and arguments.open:
        raise ConfigError("--open opens a file; name one with --out.")
    if to_stdout and output.json:
        raise ConfigError("--json writes its document to standard output; name a file for the report with --out.")
    page = render(facts)
    if to_stdout:
        sys.stdout.buffer.write(page.encode("utf-8", "replace"))
        sys.stdout.buffer.flush()
        return 0
    written = write(arguments.out, page)
    verdict = judge(facts)
    output.document(_document(arguments.out, written, facts))
    output.say(verdict.sentence)
    for sentence in (*verdict.reasons, *verdict.notes):
        output.say(f"  {sentence}")
    output.say(f"{arguments.out} is written ({size(written)}); {_opened(arguments.out, wanted=arguments.open)}.")
    return 0


def _opened(file: Path, *, wanted: bool) -> str:
    """Open the page if requested and there is a browser; return how the sentence about it ends."""
    if not wanted:
        return "--open opens it in a browser"
    return "a browser shows it" if webbrowser.open(file.absolute().as_uri()) else "no browser was found to open it"


def _redact_token(pipeline: str) -> None:
    """Redact the token even if the warehouse holds it; the report itself needs no service."""
    with suppress(ConfigError):
        load_settings(pipeline)


def _gathered(pipeline: Pipeline, dataset: str, *, values: bool) -> Facts:
    file = duckdb_file(pipeline)
    if file is not None and not file.exists():
        raise no_warehouse(pipeline)
    warehouse = Warehouse(pipeline)
    warehouse.check_supported()
    return when_free(lambda: gather(warehouse, location(pipeline), dataset, datetime.now(UTC), scrub, values=values))


def _document(path: Path, written: int, facts: Facts) -> dict[str, Any]:
    verdict = judge(facts)
    return {
        "path": str(path),
        "bytes": written,
        "warehouse": facts.warehouse,
        "dataset": facts.dataset,
        "made_at": facts.made_at.isoformat(),
        "verdict": verdict.kind,
        "reasons": list(verdict.reasons),
        "fresh_as_of": facts.fresh_as_of.isoformat() if facts.fresh_as_of else None,
        "imports": facts.imports,
        "standings": {standing.value: count for standing, count in sorted(facts.standings.items())},
        "records": facts.records,
        "rejected": facts.rejected,
        "templates": facts.templates.total,
        "fields": facts.fields.total,
        "runs": facts.runs.total,
    }
