"""Format numbers, times and advice for people; each function is a filter of the template."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime

from markupsafe import Markup, escape

from connector.reporting.html.facts import OpenImport
from connector.standing import Standing
from connector.text import visible as text_visible

LONGEST_NAME = 36
STANDING_WORDS = {
    Standing.reconciled: "reconciled",
    Standing.accepted: "accepted as they are",
    Standing.unfinished: "still being uploaded",
    Standing.waiting: "not loaded yet",
    Standing.damaged: "lost or gained rows here",
    Standing.unreconciled: "not reconciled",
    Standing.excluded: "left out by the settings",
    Standing.failed: "failed",
}


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def amount(count: int, singular: str, plural: str = "") -> str:
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def share(value: float | None) -> str:
    """Return a percentage that shows no small share as 0 % and no large one as 100 %."""
    if value is None:
        return "–"
    if 0 < value < 0.001:
        return "<0.1 %"
    if 0.999 < value < 1:
        return ">99.9 %"
    return f"{value * 100:.1f} %".replace(".0 %", " %")


def moment(value: datetime | None) -> str:
    return "never" if value is None else f"{value.astimezone(UTC):%Y-%m-%d %H:%M}"


def age(value: datetime | None, now: datetime) -> str:
    if value is None:
        return "never"
    seconds = (now - value).total_seconds()
    return "just now" if seconds < 60 else f"{duration(seconds)} ago"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172800 else f"{seconds / 86400:.0f} days"


def commands(text: str) -> Markup:
    """Return our own sentence as markup, with its `commands` as code."""
    parts = [escape(part) for part in text.split("`")]
    return Markup("").join(Markup("<code>{}</code>").format(p) if n % 2 else p for n, p in enumerate(parts))


def visible(text: str) -> str:
    """Make a text visible on a page, on which blanks of any kind look alike."""
    return text_visible(text, keep="\n\t")


def distinct_labels(names: Sequence[str], taken: str) -> dict[str, str]:
    """Return name → label short enough for a chart; labels are distinct, and none equals `taken`."""
    labels: dict[str, str] = {}
    for name in names:
        text = visible(" ".join(name.split())) or "(blank)"
        label = base = text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 1] + "…"
        twin = 1
        while label in (taken, *labels.values()):
            twin += 1
            label = f"{base} ({twin})"
        labels[name] = label
    return labels


def advice(found: OpenImport) -> tuple[str, str]:
    """Return advice on an import: a sentence, and a command to follow it now."""
    again = shlex.join(["importer-sync", "backfill", "--import", found.slug])
    match found.standing:
        case Standing.failed:
            return "The next run tries it again; to do so now:", again
        case Standing.unreconciled:
            return "The next run reads it again; to see what differs from the service:", "importer-sync verify"
        case Standing.damaged:
            return "The rows here differ from those that were loaded; for details:", "importer-sync doctor"
        case _:
            return "The next run loads it; to do so now:", "importer-sync run"
