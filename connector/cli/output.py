"""What a person sees and what a program reads: with --json one document on stdout, all else on stderr."""

from __future__ import annotations

import argparse
import json
import os
import sys
import unicodedata
from collections.abc import Sequence
from typing import Any

from connector.cli.logs import json_line
from connector.cli.redaction import scrub, scrubbed

CELL_WIDTH = 40


class Output:
    """Where the command writes; one for a process."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.json: bool = arguments.json
        self.verbose: bool = arguments.verbose
        self.log_json: bool = getattr(arguments, "log_format", "text") == "json"
        self._arguments = arguments

    @property
    def live(self) -> bool:
        """Whether somebody watches."""
        return not (self.json or self.log_json) and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    @property
    def documented(self) -> bool:
        """Whether the one document of --json is out."""
        return bool(getattr(self._arguments, "documented", False))

    def say(self, text: str = "") -> None:
        """The result, for a person."""
        if self.json and self.log_json:
            return  # whoever reads both streams with a program has it in the document
        print(scrub(text), file=sys.stderr if self.json else sys.stdout, flush=True)

    def note(self, text: str, *, level: str = "info", event: str = "note") -> None:
        """Something on the way or gone wrong, for a person; `level` and `event` where the log is for programs."""
        line = json_line(level, event, text.strip()) if self.log_json else scrub(text)
        print(line, file=sys.stderr, flush=True)

    def document(self, document: Any) -> None:
        """The result, for a program."""
        if self.json and not self.documented:
            self._arguments.documented = True
            print(json.dumps(scrubbed(document), ensure_ascii=False, default=str), flush=True)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Rows side by side, cut to the width of a cell."""
        cells = [[_cell(value) for value in row] for row in rows]
        widths = [max([_width(c), *(_width(row[n]) for row in cells)]) for n, c in enumerate(columns)]
        self.say(title)
        for row in ([*columns], ["─" * w for w in widths], *cells):
            self.say("  " + "  ".join(c + " " * (w - _width(c)) for c, w in zip(row, widths, strict=True)).rstrip())
        self.say()


def _width(text: str) -> int:
    """Places a text takes on a terminal: two for each wide character, none for what only modifies another."""
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    text = " ".join(text.split())
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
