"""`importer-sync run`: run one incremental sync."""

from __future__ import annotations

import argparse

from connector.cli.options import whole
from connector.cli.output import Output
from connector.cli.run_command import run_scope
from connector.settings import RunScope

EXAMPLES = ("importer-sync run", "importer-sync run --recheck-days 7 --json")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--recheck-days",
        type=whole(1),
        metavar="N",
        help="also read what was completed in the last N days, even if it looks unchanged",
    )
    parser.add_argument(
        "--allow-mass-delete",
        action="store_true",
        help="this once, delete more imports than mass_delete_limit allows",
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    scope = RunScope(recheck_days=arguments.recheck_days, allow_mass_delete=arguments.allow_mass_delete)
    return run_scope(arguments, output, scope)
