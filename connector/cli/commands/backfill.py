"""`importer-sync backfill`: re-read and reload exactly what was selected."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from connector.cli.configuration import open_pipeline
from connector.cli.options import moment, shard
from connector.cli.output import Output
from connector.cli.run_command import run_scope
from connector.errors import ConfigError
from connector.settings import RunScope, Selection, Window
from connector.warehouse import Warehouse
from connector.warehouse.ownership import inspect_dataset
from connector.warehouse.tables import IMPORTS

SHORTENED = re.compile(r"[0-9a-f]{8}")  # the length in which tables on a terminal show a slug

EXAMPLES = (
    "importer-sync backfill --since 2020-01-01 --until 2030-01-01",
    "importer-sync backfill --since 7d",
    "importer-sync backfill --template customers",
    "importer-sync backfill --full",
    "importer-sync backfill --shard 2/4",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--since", type=moment, metavar="TIME", help="imports last updated at or after this")
    parser.add_argument("--until", type=moment, metavar="TIME", help="imports last updated before this")
    parser.add_argument(
        "--import",
        dest="imports",
        nargs="+",
        action="extend",
        default=[],
        metavar="SLUG",
        help="these imports, or the first eight characters of their slugs, as tables show them",
    )
    parser.add_argument("--template", metavar="NAME-OR-SLUG", help="imports of this template")
    parser.add_argument("--full", action="store_true", help="every import")
    parser.add_argument(
        "--shard",
        type=shard,
        metavar="I/N",
        help="this part of all imports, while other processes read the other parts; only on PostgreSQL",
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    selected = bool(arguments.since or arguments.until or arguments.imports or arguments.template is not None)
    if arguments.shard is not None:
        if selected:
            raise ConfigError(
                "Shards divide all imports among them, so --shard cannot be combined with another selection."
            )
        number, shards = arguments.shard
        return run_scope(arguments, output, RunScope(mode=f"shard {number}/{shards}", shard=arguments.shard))
    if not selected and not arguments.full:
        raise ConfigError(
            "A backfill needs to know what to read again: give --since, --until, --import or --template, "
            "or --full for everything."
        )
    if selected and arguments.full:
        raise ConfigError("--full selects everything, so it cannot be combined with another selection.")
    if arguments.since and arguments.until and arguments.since >= arguments.until:
        raise ConfigError("--since has to be before --until.")

    window = Window(since=arguments.since, until=arguments.until)
    selection = Selection(slugs=frozenset(_whole(arguments)), template=arguments.template)
    return run_scope(arguments, output, RunScope(mode="backfill", window=window, selection=selection, force=True))


def _whole(arguments: argparse.Namespace) -> Sequence[str]:
    """Return the slugs given, in full. Raises ConfigError if a short one matches several."""
    if not any(map(SHORTENED.fullmatch, arguments.imports)):
        return arguments.imports  # type: ignore[no-any-return]
    known = _known(arguments)
    found = []
    for slug in arguments.imports:
        meant = [slug] if slug in known else sorted(each for each in known if each.startswith(slug))
        if SHORTENED.fullmatch(slug) and len(meant) > 1:
            raise ConfigError(
                f"--import {slug} is the beginning of {len(meant)} imports: {', '.join(meant[:5])}; give the "
                "whole slug of the one you mean."
            )
        found.append(meant[0] if SHORTENED.fullmatch(slug) and meant else slug)
    return found


def _known(arguments: argparse.Namespace) -> frozenset[str]:
    warehouse = Warehouse(open_pipeline(arguments))
    if not warehouse.exists():
        return frozenset()
    with warehouse.connect() as connection:
        if IMPORTS not in inspect_dataset(connection).ours:
            return frozenset()
        return frozenset(
            row["slug"] for row in connection.query(f"SELECT slug FROM {connection.name(IMPORTS)}").to_pylist()
        )
