"""`importer-sync backfill`: re-reads and reloads exactly what was selected."""

from __future__ import annotations

import argparse

from connector.cli.options import instant
from connector.cli.output import Output
from connector.cli.run_command import run_scope
from connector.errors import ConfigError
from connector.settings import Scope, Selection, Window

EXAMPLES = (
    "importer-sync backfill --since 2020-01-01 --until 2030-01-01",
    "importer-sync backfill --template customers",
    "importer-sync backfill --full",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--since", type=instant, metavar="TIME", help="imports last updated at or after this (UTC)")
    parser.add_argument("--until", type=instant, metavar="TIME", help="imports last updated before this (UTC)")
    parser.add_argument(
        "--import",
        dest="imports",
        nargs="+",
        action="extend",
        default=[],
        metavar="SLUG",
        help="these imports; may be given several times",
    )
    parser.add_argument("--template", metavar="NAME-OR-SLUG", help="imports of this template")
    parser.add_argument("--full", action="store_true", help="every import")


def run(arguments: argparse.Namespace, output: Output) -> int:
    selected = bool(arguments.since or arguments.until or arguments.imports or arguments.template is not None)
    if not selected and not arguments.full:
        raise ConfigError(
            "A backfill needs to know what to read again: give --since, --until, --import or --template, "
            "or --full for everything."
        )
    if selected and arguments.full:
        raise ConfigError("--full means everything, so it goes with no other selection.")
    if arguments.since and arguments.until and arguments.since >= arguments.until:
        raise ConfigError("--since is not before --until, so nothing can lie between them.")

    window = Window(since=arguments.since, until=arguments.until)
    selection = Selection(slugs=frozenset(arguments.imports), template=arguments.template)
    return run_scope(arguments, output, Scope(mode="backfill", window=window, selection=selection, force=True))
