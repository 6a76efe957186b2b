"""The progress of a run on a terminal: bars on stderr, gone when it ends."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from connector.cli.output import Output, start_logging

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Bars:
    """Implements `connector.extraction.Progress`; may be called from any thread."""

    def __init__(self, display: Progress) -> None:
        self._display = display
        self._listing = display.add_task("listing imports", total=None, unit="imports")
        self._imports: TaskID | None = None
        self._records: TaskID | None = None
        self._committed: TaskID | None = None

    def listed(self, imports: int) -> None:
        self._display.advance(self._listing, imports)

    def planned(self, imports: int, rows: int) -> None:
        self._display.update(self._listing, total=1, completed=1, visible=False)
        self._imports = self._display.add_task("imports read", total=imports, unit="imports")
        self._records = self._display.add_task("records read", total=rows, unit="rows")
        self._committed = self._display.add_task("in the warehouse", total=rows, unit="rows")

    def read(self, slug: str, rows: int, verdict: str) -> None:  # noqa: ARG002
        if self._imports is not None and self._records is not None:
            self._display.advance(self._imports, 1)
            self._display.advance(self._records, rows)

    def committed(self, rows: int) -> None:
        if self._committed is not None:
            self._display.advance(self._committed, rows)


class _AboveTheBars(logging.Handler):
    def __init__(self, display: Progress) -> None:
        super().__init__()
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        self._display.console.print(self.format(record), markup=False, highlight=False, soft_wrap=True)


@contextmanager
def progress_of(output: Output, *, steps: bool = True) -> Iterator[Bars | None]:
    """Bars where somebody watches, one log line a step where nobody does."""
    if not output.live:
        start_logging(output, steps=steps)
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text(f"{speed:,.0f} {task.fields['unit']}/s" if speed else "", style="progress.data.speed")

    columns = (TextColumn("{task.description:<16}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn())
    display = Progress(*columns, console=Console(stderr=True), transient=True)
    with display:
        start_logging(output, _AboveTheBars(display))
        yield Bars(display)
