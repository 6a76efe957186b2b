"""Our command under conditions: `python -m tests.benchmarks.conditions latency`, and the others named here.

latency: 50 ms a request, sixteen at once, against the least time those requests can take.
limits:  a ceiling of our own and a service that answers 429: what was refused, and how much of the rate was used.
memory:  the peak for ever more rows, in many imports and in a single one.
postgres: a first load and a full backfill of PostgreSQL, the time of each package against that of the first.
history: time and size with `history = true` against those without, on DuckDB and PostgreSQL.
privacy: the throughput with three rules against that with none, of processor time, in turns.
scale: what one changed import costs where much is stored, against where little is: DuckDB, PostgreSQL, and three peers.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.benchmarks.fixture import Served, served
from tests.benchmarks.measuring import (
    AFTERNOON,
    FILE,
    IDEAL,
    INCREMENTAL,
    US,
    US_POSTGRES,
    Measured,
    Peer,
    complaint,
    document,
    measure,
    middle,
)
from tests.benchmarks.postgres import postgres_server
from tests.benchmarks.workload import Shape

LATENCY_MS, AT_ONCE = 50, 16
TURNS = 5
MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Ran:
    """A full run, a run with nothing to do, and what the server saw of the full one."""

    full: Measured
    idle: Measured
    asked: dict[str, Any]


def run(shape: Shape, settings: Mapping[str, object], **manners: float) -> Ran:
    """The second run tells what starting and listing alone take."""
    environment = {f"SOURCES__IMPORTER__{name.upper()}": str(value) for name, value in settings.items()}
    with served(shape, **manners) as service, tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        full = measure(US, service, directory, environment)
        asked = service.stats()
        if full.code or full.rows != shape.total_rows:
            raise SystemExit(f"{full.rows:,} of {shape.total_rows:,} rows, code {full.code}: {complaint(directory)}")
        assert document(directory)["status"] == "succeeded"
        return Ran(full, measure(US, service, directory, environment, count=False), asked)


def latency() -> None:
    """The ideal is the requests that were made, sixteen at a time and one after another where one needs the other."""
    for name, shape in (
        ("1 import of 1,000 pages", Shape(imports=1, rows=100_000)),
        ("1,000 imports of a page", Shape(imports=1_000, rows=99)),
        ("100 imports of 10 pages", Shape(imports=100, rows=950)),
    ):
        ran = run(shape, {"max_concurrency": AT_ONCE}, latency_ms=LATENCY_MS)
        still = run(shape, {"max_concurrency": AT_ONCE})
        least = ran.asked["requests"] * LATENCY_MS / 1_000 / AT_ONCE
        print(
            f"{name}: {ran.asked['requests']:,} requests, {ran.asked['took_s']:.2f} s from the first to the last, "
            f"at least {least:.2f} s ({least / ran.asked['took_s']:.0%}); {ran.asked['max_in_flight']} in flight; "
            f"whole run {ran.full.wall_s:.2f} s, without latency {still.full.wall_s:.2f} s, "
            f"nothing to do {ran.idle.wall_s:.2f} s",
            flush=True,
        )


def limits() -> None:
    shape = Shape(imports=60, rows=1_950)
    for ceiling in (20, 100):
        asked = run(Shape(imports=20, rows=950), {"requests_per_second": ceiling, "max_concurrency": AT_ONCE}).asked
        rate = (asked["requests"] - 1) / asked["took_s"]
        print(
            f"requests_per_second = {ceiling}: {asked['requests']} requests at {rate:.1f} a second, "
            f"{asked['busiest_second']} in the busiest second",
            flush=True,
        )
    for rate, retry_after_s, latency_ms in ((50, 1, 50), (200, 1, 50), (200, 0, 50), (200, 1, 0)):
        manners = {"rate": rate, "burst": rate / 5, "retry_after": retry_after_s, "latency_ms": latency_ms}
        ran = run(shape, {"max_concurrency": AT_ONCE}, **manners)
        asked = ran.asked
        refused = asked["refused"] / asked["requests"]
        per_second = (asked["requests"] - asked["refused"]) / asked["took_s"]
        print(
            f"429 above {rate} a second, Retry-After: {retry_after_s}, {latency_ms} ms: "
            f"{refused:.1%} of {asked['requests']} requests refused, {per_second:.0f} a second let through "
            f"({per_second / rate:.0%}), run {ran.full.wall_s:.1f} s",
            flush=True,
        )


def memory(millions: float) -> None:
    shapes = [Shape(imports=n * 500, rows=2_000) for n in (1, 3, 10) if n <= millions]
    for shape in (Shape(imports=1, rows=100_000), Shape(imports=1, rows=MILLION), *shapes):
        full = run(shape, {}).full
        print(
            f"{shape.total_rows:,} rows in {shape.imports:,} imports: peak {full.peak_mb:,.0f} MB, "
            f"{full.wall_s:.1f} s, {shape.total_rows / full.wall_s:,.0f} rows/s, "
            f"{full.cpu_s / shape.total_rows * MILLION:.1f} CPU s a million rows",
            flush=True,
        )


def postgres(millions: float) -> None:
    """Fail where a later package takes twice as long as the first: then a package's cost follows the table's size."""
    shape = Shape(imports=int(millions * 500), rows=2_000)
    with served(shape) as service, tempfile.TemporaryDirectory() as folder, postgres_server(Path(folder)) as server:
        directory = Path(folder)
        for words in (("run",), ("backfill", "--full")):
            program = (*words, "--to", server.uri, "--json", "--log-format", "json", "-v")
            full = measure(Peer(" ".join(words), program, ours=True), service, directory, count=False)
            told = document(directory)
            if full.code or told["records_loaded"] != shape.total_rows:
                raise SystemExit(f"{told['records_loaded']} rows, code {full.code}: {complaint(directory)}")
            packages = _packages(directory, datetime.fromisoformat(str(told["started_at"])))
            print(
                f"{' '.join(words)}: {shape.total_rows:,} rows, {full.wall_s:.1f} s, "
                f"{shape.total_rows / full.wall_s:,.0f} rows/s, peak {full.peak_mb:,.0f} MB, packages "
                + ", ".join(f"{rows:,} rows in {seconds:.1f} s" for rows, seconds in packages),
                flush=True,
            )
            pace = [seconds / rows for rows, seconds in packages if rows > MILLION / 10]
            if max(pace) > 2 * pace[0]:
                raise SystemExit("A later package took more than twice the time of the first, by its rows.")


def history(millions: float) -> None:
    """Without and with history in turn, each in a dataset of its own: all rows, all of them read again, nothing new."""
    shape = Shape(imports=int(millions * 500), rows=2_000)
    with served(shape) as service, tempfile.TemporaryDirectory() as folder, postgres_server(Path(folder)) as server:
        for kind in ("duckdb", "postgres"):
            rounds = {"run": ("run",), "backfill --full": ("backfill", "--full"), "unchanged run": ("run",)}
            found: dict[str, list[Measured]] = {}
            sizes: list[int] = []
            places = {kept: Path(folder, f"{kind}_{kept}") for kept in ("false", "true")}
            for kept, directory in places.items():
                directory.mkdir()
                to = server.uri if kind == "postgres" else f"duckdb:{FILE}"
                for name, words in rounds.items():
                    program = (*words, "--to", to, "--dataset", f"history_{kept}", "--json")
                    settings = {"SOURCES__IMPORTER__HISTORY": kept}
                    ran = measure(Peer(name, program, ours=True), service, directory, settings, count=False)
                    if ran.code:
                        raise SystemExit(f"{name}: code {ran.code}: {complaint(directory)}")
                    found.setdefault(name, []).append(ran)
                sizes.append(
                    _size(server.uri, f"history_{kept}") if kind == "postgres" else (directory / FILE).stat().st_size
                )
            told = (
                f"{name} {was.wall_s:.1f} and {now.wall_s:.1f} s ({now.wall_s / was.wall_s:.2f}), "
                f"peak {was.peak_mb:,.0f} and {now.peak_mb:,.0f} MB"
                for name, (was, now) in found.items()
            )
            print(
                f"{kind}, {shape.total_rows:,} rows, without and with history: {'; '.join(told)}; "
                f"{sizes[0] / 2**20:,.0f} and {sizes[1] / 2**20:,.0f} MB ({sizes[1] / sizes[0]:.2f})",
                flush=True,
            )


RULES: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "no rule": {},
    "three rules": {"*": {"email": "hash", "full_name": "mask:4", "company": "drop"}},
    "three rules, one within an object, one a pattern": {
        "*": {"email": "hash", "address.street": "null", "re:(?i)phone|company": "drop"}
    },
}


def privacy(millions: float) -> None:
    """In turns, so that whatever else goes on befalls all alike; the least of each is nearest to what it takes."""
    shape = Shape(imports=max(1, round(millions * 20)), rows=10_000, templates=1)
    taken: dict[str, list[float]] = {name: [] for name in RULES}
    with served(shape) as service, tempfile.TemporaryDirectory() as folder:
        for turn in range(TURNS):
            for name, rules in RULES.items():
                directory = Path(folder, f"{name} {turn}")
                directory.mkdir()
                settings = {"SOURCES__IMPORTER__PRIVACY": json.dumps(rules), "SOURCES__IMPORTER__PRIVACY_KEY": "k" * 32}
                ran = measure(US, service, directory, settings)
                if ran.code or ran.rows != shape.total_rows:
                    raise SystemExit(f"{name}: {ran.rows:,} rows, code {ran.code}: {complaint(directory)}")
                taken[name].append(ran.cpu_s)
    without = min(taken["no rule"])
    for name, seconds in taken.items():
        shown = ", ".join(f"{each:.2f}" for each in seconds)
        rate = shape.total_rows / min(seconds)
        print(f"{name}: {rate:,.0f} rows a second of CPU, {without / min(seconds):.0%} ({shown} s)")


SCALE_ROWS = 200_000  # of the small warehouse
SCALE_REPEATS = 5


def scale(millions: float) -> None:
    """One import of 2,000 rows is changed and read again, in turn in a small warehouse and in one of many rows.

    Fail where it costs us more than 1.3 times as much: then the cost of a run follows what is stored, not what changed.
    Peers whose first load takes long get a fifth of the rows. Singer is left out, because it reads everything again.
    """
    slower = False
    for peers, rows in (((US, US_POSTGRES, IDEAL), millions), ((INCREMENTAL, AFTERNOON), millions / 5)):
        slower = _compare_sizes(peers, [SCALE_ROWS, int(rows * MILLION)]) or slower
    if slower:
        raise SystemExit("The cost of a run follows what is stored.")


def _compare_sizes(peers: Sequence[Peer], sizes: Sequence[int]) -> bool:
    """Print what a run costs each peer with so many rows stored; tell whether one of ours costs more with more."""
    each = 2_000
    shapes = [Shape(imports=rows // each, rows=each) for rows in sizes]
    slower = False
    with ExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory()))
        services = [exits.enter_context(served(shape)) for shape in shapes]
        uri = exits.enter_context(postgres_server(folder)).uri
        for number, measured in enumerate(peers):
            places = [folder / f"scale_{number}_{shape.total_rows}" for shape in shapes]
            commands = [_into(uri, place.name) if measured is US_POSTGRES else measured for place in places]
            found: list[dict[str, list[Measured]]] = [{"changed": [], "idle": []} for _ in shapes]
            for service, shape, place, peer in zip(services, shapes, places, commands, strict=True):
                place.mkdir()
                _scaled(service, place, peer, shape.total_rows)
                _scaled(service, place, peer, 0)
            for _ in range(SCALE_REPEATS):
                for service, place, peer, ran in zip(services, places, commands, found, strict=True):
                    service.touch(1)
                    ran["changed"].append(_scaled(service, place, peer, each))
                    ran["idle"].append(_scaled(service, place, peer, 0))
            for what in ("changed", "idle"):
                small, large = (middle(ran[what]) for ran in found)
                print(
                    f"{measured.name}, {what}, {shapes[0].total_rows:,} and {shapes[1].total_rows:,} rows stored: "
                    f"{small.wall_s:.2f} and {large.wall_s:.2f} s ({large.wall_s / small.wall_s:.2f}), of CPU "
                    f"{small.cpu_s:.2f} and {large.cpu_s:.2f} s ({large.cpu_s / small.cpu_s:.2f}), "
                    f"peak {small.peak_mb:,.0f} and {large.peak_mb:,.0f} MB",
                    flush=True,
                )
                slower = slower or (measured.ours and large.wall_s > 1.3 * small.wall_s)
    return slower


def _into(uri: str, dataset: str) -> Peer:
    return Peer(US_POSTGRES.name, ("run", "--to", uri, "--dataset", dataset, "--json"), ours=True)


def _scaled(service: Served, place: Path, peer: Peer, rows: int) -> Measured:
    """Measure one run, of which ours has to load so many rows."""
    ran = measure(peer, service, place, count=False)
    if ran.code or (peer.ours and document(place)["records_loaded"] != rows):
        raise SystemExit(f"{peer.name} did not load {rows} rows, code {ran.code}: {complaint(place)}")
    return ran


def _size(uri: str, dataset: str) -> int:
    import psycopg2

    with closing(psycopg2.connect(uri)) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relkind = 'r'",
            (dataset,),
        )
        [size] = cursor.fetchone() or (0,)
        return int(size)


def _packages(directory: Path, began: datetime) -> list[tuple[int, float]]:
    """Return (rows, seconds) of each package of the last run, from its log."""
    found: list[tuple[int, float]] = []
    loaded, last = 0, began
    for line in (directory / "err").read_text().splitlines():
        entry = json.loads(line) if line.startswith("{") else {}
        if entry.get("event") == "package.committed":
            at = datetime.fromisoformat(entry["time"])
            found.append((entry["records_loaded"] - loaded, (at - last).total_seconds()))
            loaded, last = entry["records_loaded"], at
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.conditions", description=__doc__)
    by_size = {"memory": memory, "postgres": postgres, "history": history, "privacy": privacy, "scale": scale}
    parser.add_argument("condition", choices=("latency", "limits", *by_size))
    parser.add_argument("--millions", type=float, default=1, help="rows at most, for the last five (1)")
    given = parser.parse_args()
    if given.condition in by_size:
        by_size[given.condition](given.millions)
    else:
        {"latency": latency, "limits": limits}[given.condition]()


if __name__ == "__main__":
    main()
