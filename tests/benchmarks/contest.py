"""Us and our peers side by side, each in a process of its own; the results go into docs/performance.md.

Peers take turns in going first; what is shown is the median of the repeats. Each reads everything into an empty
directory and then once more with nothing changed.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tests.benchmarks.fixture import Served, served
from tests.benchmarks.measuring import (
    AFTERNOON,
    DOCUMENTED,
    IDEAL,
    TUNED,
    US,
    Measured,
    Peer,
    complaint,
    measure,
    middle,
)
from tests.benchmarks.workload import Shape

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
ROWS_EACH = 2_000
SLOW, FAST = (US, AFTERNOON, TUNED, DOCUMENTED), (US, IDEAL, AFTERNOON)
HEAD = (
    "",
    "full sync, s",
    "rows/s",
    "time, ours = 1",
    "CPU s per 1 M rows",
    "peak MB",
    "requests",
    "unchanged, s",
    "requests",
)


@dataclass(frozen=True, slots=True)
class Standing:
    """One peer's medians: everything, and once more with nothing changed."""

    peer: Peer
    full: Measured
    again: Measured


def contest(peers: Sequence[Peer], shape: Shape, repeats: int) -> list[Standing]:
    full: dict[Peer, list[Measured]] = defaultdict(list)
    again: dict[Peer, list[Measured]] = defaultdict(list)
    with served(Shape(imports=3, rows=100)) as small:
        for peer in peers:  # nobody is charged for compiling, and what does not run at all is known at once
            _run(peer, small)
    with served(shape) as service:
        for repeat in range(repeats):
            turn = repeat % len(peers)
            for peer in (*peers[turn:], *peers[:turn]):
                first, second = _run(peer, service)
                full[peer].append(first)
                again[peer].append(second)
                print(
                    f"{peer.name}, {shape.total_rows:,} rows: {first.wall_s:.2f} s, {first.cpu_s:.2f} s of CPU, "
                    f"{first.peak_mb:.0f} MB; again {second.wall_s:.2f} s",
                    flush=True,
                )
    return [Standing(peer, middle(full[peer]), middle(again[peer])) for peer in peers]


def _run(peer: Peer, service: Served) -> tuple[Measured, Measured]:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        runs = []
        for _ in range(2):
            runs.append(measure(peer, service, directory))
            if runs[-1].code:
                raise SystemExit(f"{peer.name} ended with exit code {runs[-1].code}: {complaint(directory)}")
    return runs[0], runs[1]


def table(standings: Sequence[Standing], shape: Shape) -> str:
    ours = next(standing.full for standing in standings if standing.peer is US)
    lines = [_line((f"{shape.total_rows:,} rows", *HEAD[1:])), _line(["---", *["---:"] * (len(HEAD) - 1)])]
    for standing in standings:
        full, again, name = standing.full, standing.again, standing.peer.name
        lost = shape.total_rows - min(full.rows, again.rows)
        if lost:
            name += f" (**{abs(lost):,} rows {'lost' if lost > 0 else 'too many'}**)"
        lines.append(
            _line(
                (
                    f"**{name}**" if standing.peer is US else name,
                    f"{full.wall_s:.1f}",
                    f"{_round(shape.total_rows / full.wall_s):,}",
                    f"{full.wall_s / ours.wall_s:.1f}",
                    f"{full.cpu_s / shape.total_rows * 1e6:.0f}",
                    f"{full.peak_mb:,.0f}",
                    f"{full.requests:,}",
                    f"{again.wall_s:.1f}",
                    f"{again.requests:,}",
                )
            )
        )
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _round(rate: float) -> int:
    return int(round(rate, -2 if rate < 10_000 else -3))


def setting(shape: Shape, repeats: int) -> str:
    """What the figures depend on, in a sentence."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("dlt", "duckdb", "httpx", "pyarrow"))
    return (
        f"Medians of {repeats} on {os.cpu_count()} cores, Python {platform.python_version()}, {versions}; imports of "
        f"{shape.rows:,} rows of 12 fields over loopback, into a DuckDB file; the server's CPU is not counted."
    )


def write_between_markers(file: Path, text: str) -> None:
    before, begin, rest = file.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{file.name} has no lines {BEGIN} and {END} to write between.")
    file.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.contest", description=__doc__)
    parser.add_argument(
        "--slow-rows", type=int, default=50_000, help="rows for the contest with dlt's rest_api (0: no)"
    )
    parser.add_argument(
        "--fast-rows", type=int, default=200_000, help="rows for the contest with the fast ones (0: no)"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--page", type=Path, help="write the tables there, between the markers")
    given = parser.parse_args()
    tables = []
    for peers, rows in ((SLOW, given.slow_rows), (FAST, given.fast_rows)):
        if rows:
            shape = Shape(imports=max(1, rows // ROWS_EACH), rows=min(rows, ROWS_EACH))
            tables.append(table(contest(peers, shape, given.repeats), shape))
    text = "\n\n".join([setting(Shape(rows=ROWS_EACH), given.repeats), *tables])
    print(text)
    if given.page:
        write_between_markers(given.page, text)


if __name__ == "__main__":
    main()
