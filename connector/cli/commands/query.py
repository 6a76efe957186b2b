"""`importer-sync query`: run one SELECT, read-only, and print a table, JSON or CSV."""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import partial
from itertools import islice
from typing import Any

from connector.cli.configuration import open_pipeline
from connector.cli.options import whole
from connector.cli.output import Output, amount
from connector.cli.redaction import scrub_data
from connector.errors import ConfigError
from connector.reporting.views.query import ask
from connector.text import for_spreadsheet, visible

EXAMPLES = (
    'importer-sync query "SELECT template, count(*) FROM v_imports GROUP BY 1"',
    'importer-sync query --csv "SELECT path, conflict_count FROM sync_fields"',
    'importer-sync query --csv-for-excel "SELECT * FROM v_imports" > imports.csv',
)
SHOWN = 50


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("query", metavar="SQL", help="the SELECT; - reads it from standard input")
    parser.add_argument(
        "--csv", action="store_true", help="CSV on stdout for programs: a header line, and texts exactly as they are"
    )
    parser.add_argument(
        "--csv-for-excel", action="store_true", help="CSV to open in a spreadsheet program: no text becomes a formula"
    )
    parser.add_argument(
        "--limit", type=whole(0), metavar="N", help=f"rows at most ({SHOWN} in a table; all with --json and --csv)"
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    csv_wanted = arguments.csv or arguments.csv_for_excel
    if csv_wanted + output.json + (arguments.csv and arguments.csv_for_excel) > 1:
        raise ConfigError("--csv, --csv-for-excel and --json are forms of the same rows; give one of them.")
    limit = arguments.limit
    if limit is None and not (csv_wanted or output.json):
        limit = SHOWN
    sql = sys.stdin.read() if arguments.query == "-" else arguments.query
    with ask(open_pipeline(arguments), sql) as answer:
        if answer.warning is not None:
            output.note(answer.warning, level="warning", event="query.superuser")
        rows = islice(answer.rows, limit)
        if csv_wanted:
            _write_csv(answer.columns, rows, for_spreadsheet if arguments.csv_for_excel else _exact())
            return 0
        found = [tuple(row) for row in rows]
        more = next(answer.rows, None) is not None
    named = [dict(zip(answer.columns, map(_plain, row), strict=True)) for row in found]
    output.document({"columns": list(answer.columns), "rows": named, "more": more}, of_data=True)
    if not output.json:
        title = amount(len(found), "row") + (", and there are more: see --limit" if more else "")
        output.table(title, answer.columns, found)
    return 0


def _exact() -> Callable[[str], str]:
    """Return what --csv does to a text: nothing, but on a terminal it must not act."""
    return partial(visible, keep="\t\n") if sys.stdout.isatty() else str


def _write_csv(columns: tuple[str, ...], rows: Iterable[tuple[Any, ...]], shown: Callable[[str], str]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")

    def cell(value: Any) -> str:
        text = "" if value is None else scrub_data(str(_plain(value)))
        return text if isinstance(value, int | float | Decimal) else shown(text)

    writer.writerow(map(cell, columns))
    for row in rows:
        writer.writerow(map(cell, row))


def _plain(value: Any) -> Any:
    """Return the value as JSON can hold it; other types become texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
