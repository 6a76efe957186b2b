"""Define the options that every command takes, and the types of arguments that argparse lacks."""

from __future__ import annotations

import argparse
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from connector.durations import parse_duration
from connector.errors import ConfigError
from connector.scope import MOST_SHARDS, Scope

PIPELINE_NAME = "importer"
DATASET = "importer_data"


def add_global(parser: argparse.ArgumentParser, *, again: bool = False) -> None:
    """Add the options of every command.

    They are added `again` after the command's name: an option that is missing there must not reset one given before.
    """
    group = parser.add_argument_group("options of every command")

    def default(value: object) -> object:
        return argparse.SUPPRESS if again else value

    group.add_argument(
        "--pipeline-name", metavar="NAME", default=default(PIPELINE_NAME), help=f"dlt's pipeline ({PIPELINE_NAME})"
    )
    group.add_argument("--dataset", metavar="NAME", default=default(DATASET), help=f"schema to load into ({DATASET})")
    where = group.add_mutually_exclusive_group()
    where.add_argument(
        "--destination",
        metavar="NAME",
        default=default(None),
        help="a destination of dlt, configured as in dlt (duckdb, file importer.duckdb)",
    )
    where.add_argument(
        "--to",
        metavar="URI",
        default=default(None),
        help="duckdb:///dir/file.duckdb, duckdb:file.duckdb (in the working directory), postgresql://user@host/db, "
        "sqlite:///dir/file.db, mysql://user@host/, ducklake:sqlite:///dir/catalog.sqlite, "
        "ducklake:postgresql://user@host/db?data=/dir, delta:///dir, filesystem:///dir, s3://bucket/prefix",
    )
    group.add_argument("--json", action="store_true", default=default(False), help="one JSON document on stdout")
    group.add_argument(
        "--log-format",
        choices=("text", "json"),
        default=default("text"),
        help="json: the log on stderr is one JSON object a line, and there are no bars (text)",
    )
    group.add_argument("-v", "--verbose", action="store_true", default=default(False), help="log more on stderr")


def moment(text: str) -> datetime:
    """Parse a moment in UTC: an ISO 8601 date or time, `7d` before now, or the beginning of `today` or `yesterday`."""
    now = datetime.now(UTC)
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    named = {"now": now, "today": today, "yesterday": today - timedelta(days=1)}
    if (found := named.get(text.strip().lower())) is not None:
        return found
    with suppress(ValueError, OverflowError):
        return now - parse_duration(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a date or time (2026-01-31, 2026-01-31T06:00Z), "
            "nor a length of time before now (7d, 6h), nor today or yesterday"
        ) from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def age(text: str) -> timedelta:
    """Parse a length of time: 90s, 15m, 6h, 2d, 1w."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def pair(text: str) -> tuple[str, str]:
    """Parse NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form name=value")
    return name, value


def shard(text: str) -> tuple[int, int]:
    """Parse 2/4: which of how many shards."""
    number, _, shards = text.partition("/")
    try:
        found = int(number), int(shards)
        Scope(shard=found)
    except (ValueError, ConfigError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a shard; give its number and how many there are, e.g. 1/4 to 4/4, up to {MOST_SHARDS}"
        ) from None
    return found


def whole(least: int) -> type[int]:
    """Return a type for argparse: whole numbers from `least` on."""

    def convert(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if number < least:
            raise argparse.ArgumentTypeError(f"{number} is too small; {least} is the least")
        return number

    return convert  # type: ignore[return-value]
