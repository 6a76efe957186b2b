"""Show the progress of a run on a terminal with bars, which vanish when it ends."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from connector.cli.logs import start_logging
from connector.cli.output import Output, amount, size

NARROW = 60
CLIENT = "connector.service.client"


class Bars:
    """The `connector.run.ports.Progress` of a terminal; may be called from any thread."""

    def __init__(self, display: Progress, verb: str, loads: bool) -> None:
        self._display = display
        self._verb = verb
        self._loads = loads
        self._listing = display.add_task("pages listed", total=None, unit="pages")
        self._imports: TaskID | None = None
        self._records: TaskID | None = None
        self._committed: TaskID | None = None

    def listed(self, imports: int) -> None:  # noqa: ARG002  pages overlap: their imports add up to more than there are
        self._display.advance(self._listing, 1)

    def planned(self, imports: int, rows: int) -> None:
        self._display.update(self._listing, total=1, completed=1, visible=False)
        if imports:  # otherwise there is nothing to wait for
            self._imports = self._display.add_task(f"imports {self._verb}", total=imports, unit="imports")
            self._records = self._display.add_task(f"rows {self._verb}", total=rows, unit="rows")
        if imports and self._loads:
            self._committed = self._display.add_task("rows loaded", total=rows, unit="rows")

    def read(self, slug: str, rows: int, verdict: str) -> None:  # noqa: ARG002
        if self._imports is not None and self._records is not None:
            self._display.advance(self._imports, 1)
            self._display.advance(self._records, rows)

    def committed(self, rows: int) -> None:
        if self._committed is not None:
            self._display.advance(self._committed, rows)


class Traffic:
    """The traffic with the service, in one line, which changes even while no import is complete yet."""

    def __init__(self) -> None:
        self.requests = 0
        self.retries = 0
        self.received = 0

    def count(self, record: logging.LogRecord) -> None:
        fields = vars(record)
        event = fields.get("event")
        self.requests += event in ("request.answered", "request.retried")
        self.retries += event == "request.retried"
        self.received += fields.get("bytes", 0) if event == "request.answered" else 0

    def __rich__(self) -> Text:
        retried = f", {amount(self.retries, 'retry', 'retries')}" if self.retries else ""
        words = f"service {amount(self.requests, 'request')}{retried}, {size(self.received)}"
        return Text(words, no_wrap=True, overflow="ellipsis")


class _LogAboveBars(logging.Handler):
    """A log above the bars. Retries are counted below the bars instead, because they would fill the screen."""

    def __init__(self, console: Console, traffic: Traffic, level: int) -> None:
        super().__init__()
        self._console = console
        self._traffic = traffic
        self._from = level

    def emit(self, record: logging.LogRecord) -> None:
        self._traffic.count(record)
        retry = vars(record).get("event") == "request.retried"
        if record.levelno >= self._from and (not retry or self._from <= logging.DEBUG):
            self._console.print(self.format(record), markup=False, highlight=False, soft_wrap=True)


@contextmanager
def bars(output: Output, verb: str = "read", loads: bool = True) -> Iterator[Bars]:
    """Show bars on stderr, with the log above them."""
    console = Console(stderr=True)
    traffic = Traffic()
    display = _display(console)
    client = logging.getLogger(CLIENT)
    with Live(Group(display, traffic), console=console, transient=True, refresh_per_second=8):
        start_logging(output, _LogAboveBars(console, traffic, logging.DEBUG if output.verbose else logging.WARNING))
        client.setLevel(logging.DEBUG)  # each request is counted
        try:
            yield Bars(display, verb, loads)
        finally:
            client.setLevel(logging.NOTSET)
            start_logging(output)


class _Count(ProgressColumn):
    def render(self, task: Task) -> Text:
        done = f"{task.completed:,.0f}"
        return Text(done if task.total is None else f"{done}/{task.total:,.0f}", style="progress.download")


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        rate = per_second(task.completed, task.elapsed)
        return Text(f"{rate:,.0f} {task.fields['unit']}/s" if rate else "", style="progress.data.speed")


class _Left(ProgressColumn):
    def render(self, task: Task) -> Text:
        rate = per_second(task.completed, task.elapsed)
        if not rate or task.remaining is None:
            return Text("")
        return Text(clock(task.remaining / rate), style="progress.remaining")


def _display(console: Console) -> Progress:
    kept_whole = Column(no_wrap=True)
    columns: list[ProgressColumn] = [TextColumn("{task.description:<12}"), BarColumn(None), _Count(kept_whole)]
    if console.width >= NARROW:
        columns.append(_Rate(Column(no_wrap=True, justify="right")))
    return Progress(*columns, _Left(kept_whole.copy()), console=console, expand=True)


def per_second(done: float, elapsed_s: float | None) -> float:
    """Return the average rate since the start: imports are read concurrently, so their rows are counted in bursts."""
    return done / elapsed_s if elapsed_s else 0.0


def clock(seconds: float) -> str:
    """Format seconds as 0:42, 17:05 or 3:20:00."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
