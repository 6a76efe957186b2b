"""Us and our peers side by side, each in a process of its own; the results go into docs/performance.md.

Each reads everything into an empty warehouse, then again after 2 % of the imports changed, then with nothing changed.
Peers take turns in going first; what is shown is the median of the repeats. Processor time is what is compared, since
the clock also tells what else the machine does.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from tests.benchmarks.fixture import Served, served
from tests.benchmarks.measuring import (
    AFTERNOON,
    DOCUMENTED,
    IDEAL,
    TUNED,
    US,
    US_POSTGRES,
    Measured,
    Peer,
    complaint,
    measure,
    middle,
)
from tests.benchmarks.postgres import Postgres, postgres_server
from tests.benchmarks.workload import Shape

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
CHANGED = 0.02  # of the imports
HEAD = (
    "CPU s",
    "a row, ours = 1",
    "ms an import",
    "rows/s",
    "peak MB",
    "requests",
    "2 % changed, CPU s",
    "unchanged, CPU s",
    "requests",
)


@dataclass(frozen=True, slots=True)
class Event:
    """A shape and who reads it; a peer that the whole would take too long reads that many times fewer imports."""

    title: str
    shape: Shape
    peers: Mapping[Peer, int]


EVENTS = (
    Event("10,000 imports of 20 rows", Shape(10_000, 20), {US: 1, US_POSTGRES: 1, IDEAL: 1, TUNED: 4, AFTERNOON: 10}),
    Event(
        "100 imports of 2,000 rows",
        Shape(100, 2_000),
        {US: 1, US_POSTGRES: 1, IDEAL: 1, AFTERNOON: 1, TUNED: 2, DOCUMENTED: 20},
    ),
    Event(
        "3 imports of 100,000 rows among 3,000 of 10",
        Shape(3_000, 10, large=3),
        {US: 1, US_POSTGRES: 1, IDEAL: 1, AFTERNOON: 3, TUNED: 3},
    ),
    Event("60,000 imports of 3 rows", Shape(60_000, 3), {US: 1, US_POSTGRES: 1, IDEAL: 1, TUNED: 15, AFTERNOON: 40}),
)


@dataclass(frozen=True, slots=True)
class Standing:
    """One peer's medians on `shape`: everything, what changed, nothing changed; None where it reads everything anew."""

    peer: Peer
    shape: Shape
    full: Measured
    changed: Measured | None
    again: Measured | None
    part: int = 1

    @property
    def cpu_s_a_row(self) -> float:
        return self.full.all_cpu_s / self.shape.total_rows


def contest(event: Event, repeats: int) -> list[Standing]:
    shapes = {peer: event.shape.divided(part) for peer, part in event.peers.items()}
    found: dict[Peer, list[tuple[Measured, ...]]] = defaultdict(list)
    with ExitStack() as exits:
        services = {shape: exits.enter_context(served(shape)) for shape in set(shapes.values())}
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory()))
        database = exits.enter_context(postgres_server(folder)) if US_POSTGRES in shapes else None
        for repeat in range(repeats):
            turn = repeat % len(shapes)
            for peer in (*list(shapes)[turn:], *list(shapes)[:turn]):
                ran = _run(peer, services[shapes[peer]], database, f"repeat_{repeat}")
                found[peer].append(ran)
                words = ", ".join(f"{each.all_cpu_s:.2f} s of CPU, {each.peak_mb:.0f} MB" for each in ran)
                print(f"{event.title}: {peer.name} ({shapes[peer].total_rows:,} rows): {words}", flush=True)
    standings = []
    for peer, runs in found.items():
        full, *later = (middle(each) for each in zip(*runs, strict=True))
        changed, again = later or (None, None)
        standings.append(Standing(peer, shapes[peer], full, changed, again, event.peers[peer]))
    return standings


def warm_up(peers: Iterable[Peer]) -> None:
    """Run each once: nobody is charged for compiling, and what does not run at all is known at once."""
    with served(Shape(imports=3, rows=100)) as small:
        for peer in peers:
            with tempfile.TemporaryDirectory() as folder:
                _once(peer, small, Path(folder), None)


def _run(peer: Peer, service: Served, database: Postgres | None, dataset: str) -> tuple[Measured, ...]:
    if peer is not US_POSTGRES:
        database = None
    elif database is not None:
        peer = replace(peer, program=(*peer.program, "--to", database.uri, "--dataset", dataset))
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        full = _once(peer, service, directory, database, dataset)
        if peer in (TUNED, DOCUMENTED):
            return (full,)
        service.touch(max(1, round(CHANGED * service.shape.all_imports)))
        changed = _once(peer, service, directory, database, dataset)
        return full, changed, _once(peer, service, directory, database, dataset)


def _once(
    peer: Peer, service: Served, directory: Path, database: Postgres | None, dataset: str | None = None
) -> Measured:
    before_s = database.cpu_s() if database else 0.0
    ran = measure(peer, service, directory, count=database is None)
    if ran.code:
        raise SystemExit(f"{peer.name} ended with exit code {ran.code}: {complaint(directory)}")
    if database is None or dataset is None:
        return ran
    return replace(ran, database_cpu_s=database.cpu_s() - before_s, rows=database.count_rows(dataset))


def table(title: str, standings: Sequence[Standing]) -> str:
    ours = next(standing for standing in standings if standing.peer is US)
    lines = [_line((title, *HEAD)), _line(["---", *["---:"] * len(HEAD)])]
    return "\n".join([*lines, *(_line(_cells(standing, ours)) for standing in standings)])


def _cells(standing: Standing, ours: Standing) -> list[str]:
    full, changed, again, shape = standing.full, standing.changed, standing.again, standing.shape
    name = f"**{standing.peer.name}**" if standing.peer.ours else standing.peer.name
    if standing.part > 1:
        name += f", 1/{standing.part} of the imports"
    lost = shape.total_rows - min(ran.rows for ran in (full, changed, again) if ran is not None)
    if lost:
        name += f" (**{abs(lost):,} rows {'lost' if lost > 0 else 'too many'}**)"
    return [
        name,
        _cpu(full),
        f"{standing.cpu_s_a_row / ours.cpu_s_a_row:.1f}",
        f"{full.all_cpu_s / shape.all_imports * 1e3:.2f}",
        f"{_round(shape.total_rows / full.wall_s):,}",
        f"{full.peak_mb:,.0f}",
        f"{full.requests:,}",
        "all again" if changed is None else _cpu(changed),
        "all again" if again is None else _cpu(again),
        "" if again is None else f"{again.requests:,}",
    ]


def _cpu(ran: Measured) -> str:
    return f"{ran.cpu_s:.1f}" + (f" + {ran.database_cpu_s:.1f}" if ran.database_cpu_s else "")


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _round(rate: float) -> int:
    return int(round(rate, -2 if rate < 10_000 else -3))


def setting(repeats: int, load: float) -> str:
    """What the figures depend on, in a few sentences."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("dlt", "duckdb", "httpx", "pyarrow"))
    return (
        f"{f'Medians of {repeats}' if repeats > 1 else 'One run of each'} on {os.cpu_count()} cores, at a load of "
        f"{load:.1f} before it began; Python {platform.python_version()}, {versions}; rows of 12 fields over loopback, "
        "into a DuckDB file where it does not say PostgreSQL. CPU is user and system time of the whole process and its "
        "children, behind a plus that of PostgreSQL's own processes, and not that of the service. Rows a second are by "
        "the clock. Where it says so, a peer read fewer imports, and its start weighs more."
    )


def write_between_markers(file: Path, text: str) -> None:
    before, begin, rest = file.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{file.name} has no lines {BEGIN} and {END} to write between.")
    file.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.contest", description=__doc__)
    parser.add_argument("--part", type=int, default=1, help="that many times fewer imports, for a quick look (1)")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--page", type=Path, help="write the tables there, between the markers")
    given = parser.parse_args()
    load, _, _ = os.getloadavg()
    warm_up(dict.fromkeys(peer for event in EVENTS for peer in event.peers if peer is not US_POSTGRES))
    tables = []
    for event in EVENTS:
        smaller = replace(event, peers={peer: part * given.part for peer, part in event.peers.items()})
        tables.append(table(event.title, contest(smaller, given.repeats)))
    text = "\n\n".join([setting(given.repeats, load), *tables])
    print(text)
    if given.page:
        write_between_markers(given.page, text)


if __name__ == "__main__":
    main()
