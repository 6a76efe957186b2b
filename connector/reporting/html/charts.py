"""Prepare the data of the charts, limited in size, and a sentence on each for readers who cannot see it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import pairwise
from typing import Any

from connector.reporting.html.facts import Run, Upload
from connector.reporting.html.wording import amount, distinct_labels, duration, number
from connector.warehouse.runs_table import full_modes

NAMED_TEMPLATES = 7
REST = "all others"
MOST_BARS = 120
UNITS = ("day", "week", "month", "year")


@dataclass(frozen=True, slots=True)
class Bar:
    """All uploads of one template in one period, which begins at `start`."""

    start: date
    template: str
    imports: int
    rows: int


@dataclass(frozen=True, slots=True)
class UploadChart:
    """`templates` are the labels in the order of their colours; `periods` sum the bars of one start."""

    unit: str
    bars: tuple[Bar, ...] = ()
    templates: tuple[str, ...] = ()
    merged: int = 0

    @property
    def periods(self) -> list[tuple[date, int, int]]:
        sums: dict[date, tuple[int, int]] = {}
        for bar in self.bars:
            imports, rows = sums.get(bar.start, (0, 0))
            sums[bar.start] = (imports + bar.imports, rows + bar.rows)
        return [(start, *sums[start]) for start in sorted(sums)]

    def summary(self, what: str) -> str:
        periods = self.periods
        if not periods:
            return "No uploads."
        counts = {start: imports if what == "imports" else rows for start, imports, rows in periods}
        most = max(counts, key=lambda start: counts[start])
        return (
            f"{what.capitalize()} per {self.unit} of upload and template from {periods[0][0]} to {periods[-1][0]}: "
            f"{number(sum(counts.values()))} in all; the most, {number(counts[most])}, "
            f"{'on' if self.unit == 'day' else f'in the {self.unit} of'} {most}."
        )


def upload_chart(uploads: Sequence[Upload]) -> UploadChart:
    """Return the chart of uploads: the templates with most rows have a colour each, and the bars are bounded in number.

    Days become weeks, months or years if there are too many.
    """
    if not uploads:
        return UploadChart("day")
    weight: Counter[str] = Counter()
    for upload in uploads:
        weight[upload.template] += upload.rows + upload.imports
    named = [name for name, _ in weight.most_common(NAMED_TEMPLATES if len(weight) > NAMED_TEMPLATES + 1 else None)]
    labels = distinct_labels(named, REST)
    unit = _unit([upload.day for upload in uploads])
    sums: dict[tuple[date, str], list[int]] = defaultdict(lambda: [0, 0])
    for upload in uploads:
        held = sums[_start(upload.day, unit), labels.get(upload.template, REST)]
        held[0] += upload.imports
        held[1] += upload.rows
    bars = tuple(Bar(start, name, *sums[start, name]) for start, name in sorted(sums))
    merged = len(weight) - len(named)
    return UploadChart(unit, bars, (*labels.values(), *([REST] if merged else [])), merged)


def _unit(days: Sequence[date]) -> str:
    span = (max(days) - min(days)).days + 1
    for unit, length in zip(UNITS, (1, 7, 30, 365), strict=True):
        if span / length <= MOST_BARS:
            return unit
    return UNITS[-1]


def _start(day: date, unit: str) -> date:
    if unit == "week":
        return day - timedelta(days=day.weekday())
    if unit == "month":
        return day.replace(day=1)
    return day.replace(month=1, day=1) if unit == "year" else day


def run_summary(runs: Sequence[Run]) -> str:
    if not runs:
        return "No runs."
    outcomes = Counter(run.status for run in runs)
    told = ", ".join(f"{count:,} {status}" for status, count in outcomes.most_common())
    timed = [run for run in runs if run.seconds is not None]
    longest = max(timed, key=lambda run: run.seconds or 0, default=None)
    length = f"; the longest took {duration(longest.seconds)}" if longest else ""
    return f"{amount(len(runs), 'run')}: {told}{length}."


def fresh_runs(runs: Iterable[Run]) -> list[Run]:
    """Return the full runs that succeeded, in the order of time; each resets the age of the data."""
    modes = full_modes()
    return [run for run in runs if run.started_at and run.status == "succeeded" and run.mode in modes]


def fresh_summary(runs: Sequence[Run]) -> str:
    """Return the longest time between two runs that succeeded, as a sentence."""
    times = [run.started_at for run in fresh_runs(runs) if run.started_at is not None]
    longest = max((later - earlier for earlier, later in pairwise(times)), default=None)
    if longest is None:
        return "No two runs succeeded so far."
    between = duration(longest.total_seconds())
    return f"{amount(len(times), 'full run')} succeeded; the longest time between two was {between}."


def payload(runs: Iterable[Run], uploads: UploadChart) -> dict[str, Any] | None:
    """Return the data for the script of the page; None if there is nothing to draw."""
    all_runs = list(runs)
    drawn_runs = [
        [run.started_at.isoformat(), run.seconds, run.status, run.records_loaded, run.mode]
        for run in all_runs
        if run.started_at is not None
    ]
    if not (drawn_runs or uploads.bars):
        return None
    return {
        "unit": uploads.unit,
        "templates": uploads.templates,
        "uploads": [[bar.start.isoformat(), bar.template, bar.imports, bar.rows] for bar in uploads.bars],
        "runs": drawn_runs,
        "fresh": [run.started_at.isoformat() for run in fresh_runs(all_runs) if run.started_at],
    }
