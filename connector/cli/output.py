"""Print the output of the command: with --json one document on stdout and everything else on stderr."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any, TextIO

from connector.cli.logs import json_line
from connector.cli.redaction import scrub, scrub_data, scrubbed
from connector.text import visible, visible_json

CELL_WIDTH = 80
STDOUT = ("-", "/dev/stdout")  # as an --out: only the requested result goes there
LOOKED_AT = 10_000  # characters of a cell, of which few are shown
# Colour repeats the meaning of a word, for people who skim.
STYLES = {
    **dict.fromkeys(("ok", "proven", "succeeded", "completed", "synced", "equal"), "green"),
    **dict.fromkeys(("FAILED", "FAIL", "NOT SO", "failed"), "bold red"),
    **dict.fromkeys(("partial", "unreconciled", "interrupted", "waiting", "STALE", "warning", "warning:"), "yellow"),
    "running": "cyan",
}
_WORDS = "|".join(sorted(map(re.escape, STYLES), key=len, reverse=True))
# Words of STYLES at the beginning of a line or after "run", and counts that should be zero.
_WORD = re.compile(rf"(?:^\s*|(?<=\brun ))({_WORDS})(?![\w.-])", re.MULTILINE)
_COUNTED = re.compile(r"\b[1-9][\d,]* (?:failed|not reconciled|rejected)\b")


class Output:
    """Where a command writes: results for people, one document for programs, notes on stderr."""

    def __init__(self, *, json: bool = False, verbose: bool = False, log_json: bool = False) -> None:
        self.json = json
        self.verbose = verbose
        self.log_json = log_json
        self.documented = False

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Output:
        """Return the output that the parsed options select."""
        return cls(json=arguments.json, verbose=arguments.verbose, log_json=arguments.log_format == "json")

    @classmethod
    def expected(cls, argv: Sequence[str]) -> Output:
        """Return the output for errors that occur before the options are parsed, or while they are."""
        log_json = "--log-format=json" in argv or ("--log-format", "json") in pairwise(argv)
        return cls(json="--json" in argv, verbose="-v" in argv or "--verbose" in argv, log_json=log_json)

    @property
    def live(self) -> bool:
        """Return whether stderr is a terminal that a person watches and that can redraw lines."""
        return not (self.json or self.log_json) and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def say(self, *lines: str, whole: bool = False) -> None:
        """Print the result for a person: each of `lines` as one line, whatever it contains, unwrapped if `whole`."""
        if self.json and self.log_json:
            return  # a program that reads both streams finds the result in the document
        _print(_shown(lines), self._results, whole=whole)

    def note(self, *lines: str, level: str = "info", event: str = "note") -> None:
        """Print progress or a problem for a person, or with --log-format json a log entry with `level` and `event`."""
        if self.log_json:
            print(json_line(level, event, "\n".join(lines).strip()), file=sys.stderr, flush=True)
        else:
            _print(_shown(lines), sys.stderr, style="red" if level == "error" else "")

    def document(self, document: Any, *, of_data: bool = False) -> None:
        """Print the result for a program, unless a document was printed before; `of_data`: it has rows in it."""
        if self.json and not self.documented:
            self.documented = True
            shown = scrubbed(document, scrub_data if of_data else None)
            print(visible_json(json.dumps(shown, ensure_ascii=False, default=str)), flush=True)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Print rows as a table: fitted to the terminal, elsewhere a line a row with each cell cut to CELL_WIDTH."""
        if self.json and self.log_json:
            return
        numeric = [_is_numeric([row[n] for row in rows]) for n in range(len(columns))]
        if title:
            self.say(title)
        if self._results.isatty():
            from rich.console import Console  # takes 0.1 s to import, and a pipe never needs it

            from connector.cli.tables import fitted

            console = Console(file=self._results, width=shutil.get_terminal_size().columns, highlight=False)
            cells = [[_line(value) for value in row] for row in rows]
            console.print(*fitted([_cell(name) for name in columns], cells, numeric, console.width), sep="\n")
        else:
            for line in _lines([_cell(name) for name in columns], [[_cell(v) for v in row] for row in rows], numeric):
                self.say(f"  {line}")
        self.say()

    @property
    def _results(self) -> TextIO:
        return sys.stderr if self.json else sys.stdout


def _is_numeric(values: Sequence[Any]) -> bool:
    known = [value for value in values if value is not None]
    return bool(known) and all(isinstance(v, int | float | Decimal) and not isinstance(v, bool) for v in known)


def _lines(names: Sequence[str], cells: Sequence[Sequence[str]], numeric: Sequence[bool]) -> list[str]:
    widths = [max([_width(name), *(_width(row[n]) for row in cells)]) for n, name in enumerate(names)]
    found = []
    for row in (names, ["─" * width for width in widths], *cells):
        padded = []
        for text, width, right in zip(row, widths, numeric, strict=True):
            blanks = " " * (width - _width(text))
            padded.append(blanks + text if right else text + blanks)
        found.append("  ".join(padded).rstrip())
    return found


def _print(text: str, stream: TextIO, style: str = "", *, whole: bool = False) -> None:
    """Print text, wrapped between words on a terminal unless `whole`.

    Words for a state are coloured, unless NO_COLOR or TERM forbid it.
    """
    if not stream.isatty():
        print(text, file=stream, flush=True)
        return
    width = shutil.get_terminal_size().columns
    plain = not (style or _WORD.search(text) or _COUNTED.search(text))
    if plain and (whole or all(_width(line) <= width for line in text.splitlines())):
        print(text, file=stream, flush=True)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, width=width, highlight=False)
    for line in text.split("\n"):
        shown = Text(line, style=style)
        for found in _WORD.finditer(line):
            shown.stylize(STYLES[found[1]], *found.span(1))
        for found in _COUNTED.finditer(line):
            shown.stylize("red", *found.span())
        indent = len(line) - len(line.lstrip())
        if whole or _width(line) <= width or indent * 2 > width:
            console.print(shown, soft_wrap=True)
            continue
        for part in shown[indent:].wrap(console, width - indent):
            console.print(Text(" " * indent).append_text(part), soft_wrap=True)
    stream.flush()


def _shown(lines: Sequence[str]) -> str:
    return "\n".join(visible(scrub(line)) for line in lines)


def _width(text: str) -> int:
    """Return the columns a text takes on a terminal: two for a wide character, none for a combining one."""
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def _line(value: Any) -> str:
    text = "" if value is None else str(value)
    return visible(scrub(" ".join(text[:LOOKED_AT].split())))


def _cell(value: Any) -> str:
    text = _line(value)
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
