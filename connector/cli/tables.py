"""Fit tables to a terminal: no word is broken, numbers are right-aligned, and rows that do not fit become blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

LONGEST_WORD = 24  # a column stays wide enough for such a word; a longer word is cut if there is no room
LONGEST = 400  # characters of a cell
GAP = 2
INDENT = 2

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_INSTANT = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d)(:\d\d)?(?:\.\d+)?(?:\+00:00|Z)?")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")

Cells = Sequence[Sequence[str]]


def fitted(names: Sequence[str], cells: Cells, numeric: Sequence[bool], width: int) -> Iterator[Table | Text]:
    """Yield the renderables of rich for a table that is `width` characters wide."""
    room = max(width - INDENT, 1)
    cells = [[_cut(text) for text in row] for row in cells]
    if sum(_wanted(names, cells)) + GAP * (len(names) - 1) > room:
        cells = [[_shorter(text) for text in row] for row in cells]
    widths = _widths(names, cells, numeric, room)
    if widths is None:
        yield from _blocks(names, cells, room)
    else:
        yield _table(names, cells, numeric, widths)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _shorter(text: str) -> str:
    """Return an id as its first eight characters, which `--import` takes as well, and a time to the minute."""
    if _UUID.fullmatch(text):
        return text[:8]
    return f"{instant[1]} {instant[2]}" if (instant := _INSTANT.fullmatch(text)) else text


def _wanted(names: Sequence[str], cells: Cells) -> list[int]:
    return [max([cell_len(name), *(cell_len(row[n]) for row in cells)]) for n, name in enumerate(names)]


def _widths(names: Sequence[str], cells: Cells, numeric: Sequence[bool], room: int) -> list[int] | None:
    """Return the width of each column, or None if they fit side by side only with words broken."""
    wanted = _wanted(names, cells)
    widths = [
        wanted[n] if numeric[n] else max(cell_len(name), _longest_word([row[n] for row in cells]))
        for n, name in enumerate(names)
    ]
    free = room - GAP * (len(names) - 1) - sum(widths)
    if free < 0:
        return None
    while free and (hungry := [n for n in range(len(names)) if widths[n] < wanted[n]]):
        share = max(free // len(hungry), 1)
        for n in hungry:
            more = min(share, wanted[n] - widths[n], free)
            widths[n] += more
            free -= more
    return widths


def _longest_word(texts: Sequence[str]) -> int:
    longest = 0
    for text in texts:
        together = bool(_INSTANT.fullmatch(text) or _DAY.fullmatch(text))
        longest = max([longest, *map(cell_len, [text] if together else text.split())])
    return min(longest, LONGEST_WORD)


def _table(names: Sequence[str], cells: Cells, numeric: Sequence[bool], widths: Sequence[int]) -> Table:
    table = Table(box=None, show_edge=False, pad_edge=False, padding=0, header_style="bold")
    for n, name in enumerate(names):
        table.add_column("", width=GAP if n else INDENT, no_wrap=True)
        justify = "right" if numeric[n] else "left"
        table.add_column(Text(name), width=widths[n], justify=justify, overflow="ellipsis")  # type: ignore[arg-type]
    rule = [Text("─" * width, style="dim") for width in widths]
    for row in (rule, *([_text(cell) for cell in row] for row in cells)):
        table.add_row(*(part for cell in row for part in ("", cell)))
    return table


def _blocks(names: Sequence[str], cells: Cells, room: int) -> Iterator[Table | Text]:
    """Yield a block for each row, with a line for each of its columns, for tables too wide for one line."""
    label = min(max(map(cell_len, names), default=0), room // 2)
    for number, row in enumerate(cells, 1):
        yield Text(f"{' ' * INDENT}── {number} ──", style="dim")
        block = Table(box=None, show_header=False, show_edge=False, pad_edge=False, padding=0)
        block.add_column(width=INDENT)
        block.add_column(width=label, no_wrap=True, overflow="ellipsis", style="bold")
        block.add_column(width=GAP)
        block.add_column(width=max(room - label - GAP, 1), overflow="fold")
        for name, text in zip(names, row, strict=True):
            if text:
                block.add_row("", Text(name), "", _text(text))
        yield block


def _text(cell: str) -> Text:
    from connector.cli.output import STYLES

    return Text(cell, style=STYLES.get(cell, ""))
