"""What the command prints: with --json one document on stdout and everything else on stderr."""

from __future__ import annotations

import argparse
import json
import os
import sys
import unicodedata
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from connector.cli.logs import json_line
from connector.cli.redaction import scrub, scrubbed
from connector.text import visible, visible_json

CELL_WIDTH = 40
STDOUT = ("-", "/dev/stdout")  # as an --out: nothing but what is asked for goes there
LOOKED_AT = 10_000  # signs of a cell, of which few are shown


class Output:
    """Where a command writes: results for people, one document for programs, notes on stderr."""

    def __init__(self, *, json: bool = False, verbose: bool = False, log_json: bool = False) -> None:
        self.json = json
        self.verbose = verbose
        self.log_json = log_json
        self.documented = False

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Output:
        """Return the output that the parsed options ask for."""
        return cls(json=arguments.json, verbose=arguments.verbose, log_json=arguments.log_format == "json")

    @classmethod
    def expected(cls, argv: Sequence[str]) -> Output:
        """Return the output for errors that occur before the options are parsed, or while they are."""
        log_json = "--log-format=json" in argv or ("--log-format", "json") in pairwise(argv)
        return cls(json="--json" in argv, verbose="-v" in argv or "--verbose" in argv, log_json=log_json)

    @property
    def live(self) -> bool:
        """True if stderr is a terminal that a person watches and that can redraw lines."""
        return not (self.json or self.log_json) and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def say(self, *lines: str) -> None:
        """Print the result for a person; each of `lines` is one, whatever is in it."""
        if self.json and self.log_json:
            return  # a program that reads both streams has the result in the document
        print(_shown(lines), file=sys.stderr if self.json else sys.stdout, flush=True)

    def note(self, *lines: str, level: str = "info", event: str = "note") -> None:
        """Print progress or a problem for a person, or with --log-format json a log entry with `level` and `event`."""
        line = json_line(level, event, "\n".join(lines).strip()) if self.log_json else _shown(lines)
        print(line, file=sys.stderr, flush=True)

    def document(self, document: Any) -> None:
        """Print the result for a program, unless a document was printed before."""
        if self.json and not self.documented:
            self.documented = True
            print(visible_json(json.dumps(scrubbed(document), ensure_ascii=False, default=str)), flush=True)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Print rows as a table, each cell cut to CELL_WIDTH."""
        cells = [[_cell(value) for value in row] for row in rows]
        names = [_cell(name) for name in columns]
        widths = [max([_width(c), *(_width(row[n]) for row in cells)]) for n, c in enumerate(names)]
        self.say(title)
        for row in (names, ["─" * w for w in widths], *cells):
            self.say("  " + "  ".join(c + " " * (w - _width(c)) for c, w in zip(row, widths, strict=True)).rstrip())
        self.say()


def _shown(lines: Sequence[str]) -> str:
    return "\n".join(visible(scrub(line)) for line in lines)


def _width(text: str) -> int:
    """Return the columns a text takes on a terminal: two for a wide character, none for a combining one."""
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    text = visible(" ".join(text[:LOOKED_AT].split()))
    return text if len(text) <= CELL_WIDTH else text[: CELL_WIDTH - 1] + "…"


def amount(number: int, singular: str, plural: str | None = None) -> str:
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172800 else f"{seconds / 86400:.0f} days"


def size(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit in ("bytes", "kB") else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
