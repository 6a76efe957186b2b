"""`importer-sync report`: the state of the warehouse as one HTML file to look at."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlt.pipeline.pipeline import Pipeline

    from connector.reporting.html import Facts

NAME = "report"
HELP = "write one HTML file: freshness, runs, uploads, reconciliation, rejects, fields"
EXAMPLES = ("importer-sync report --out report.html", "importer-sync report --out report.html --json")
WAIT_S = 5.0


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("report.html"), metavar="FILE", help="file (report.html)")


def run(arguments: argparse.Namespace) -> int:
    from connector.cli.configuration import open_pipeline
    from connector.cli.output import Output, size
    from connector.errors import ConfigError
    from connector.reporting.html import judge, render, write

    output = Output(arguments)
    pipeline = open_pipeline(arguments)
    _know_the_token()
    facts = _patiently(pipeline, arguments.dataset)
    to_stdout = str(arguments.out) == "-"
    if to_stdout and output.json:
        raise ConfigError("--json has standard output for its document; name a file with --out.")
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
    output.say(f"{arguments.out} is written ({size(written)}); open it in any browser.")
    return 0


def _know_the_token() -> None:
    """So that it could not show even if the warehouse held it. The report itself needs no service."""
    from contextlib import suppress

    from connector.cli.configuration import load_settings
    from connector.errors import ConfigError

    with suppress(ConfigError):
        load_settings()


def _patiently(pipeline: Pipeline, dataset: str) -> Facts:
    """A run under way holds a DuckDB file until it ends, which may be soon."""
    from datetime import UTC, datetime

    from connector.cli.configuration import location
    from connector.cli.exit_codes import as_problem
    from connector.cli.redaction import scrub
    from connector.errors import ConfigError
    from connector.reporting.html import gather
    from connector.warehouse import Warehouse
    from connector.warehouse.destination import duckdb_file

    file = duckdb_file(pipeline)
    if file is not None and not file.exists():
        raise ConfigError(
            f"There is no warehouse at {location(pipeline)}: name it with --to, or make it with `importer-sync run`."
        )
    warehouse = Warehouse(pipeline)
    warehouse.check_supported()
    until = time.monotonic() + WAIT_S
    while True:
        try:
            return gather(warehouse, location(pipeline), dataset, datetime.now(UTC), scrub)
        except Exception as error:
            if "only one in" not in str(as_problem(error)) or time.monotonic() > until:
                raise
            time.sleep(0.1)


def _document(path: Path, written: int, facts: Facts) -> dict[str, Any]:
    from connector.reporting.html import judge

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
