"""Run continuous edits, faults, a sync every few seconds and kills for a given time: `make soak`.

A long-lived process runs `connector.sync` repeatedly, as an orchestrator does, and between its runs the command is
started and killed. After each run nothing may be lost or duplicated. At the end the warehouse has to equal the service,
and the process and its folders must not take more in the last third than in the second.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from connector.sandbox import Faults, serve
from tests.processes import Process, start
from tests.simulation import edits
from tests.simulation.holdings import Holdings
from tests.simulation.oracle import Ran, check_equal, check_run, require
from tests.simulation.test_sigkill import File, Rounds

MOST_ROWS = 3_000  # of the service, so that growth is not caused by it
FAULTS = Faults(
    rate_limited=0.03, retry_after="zero", server_error=0.03, reset=0.02, cut=0.02, max_consecutive=3
)  # a tenth of all requests
EDITS = [each for each in edits.EDITS if each[0] not in edits.UNSTEADY]
WORKER = """
import gc, json, os, sys
import dlt
import connector

pipeline = dlt.pipeline("importer", destination=dlt.destinations.duckdb(sys.argv[1]), dataset_name="importer_data")
for line in sys.stdin:
    try:
        status = connector.sync(pipeline).status
    except connector.ConnectorError as error:
        status = type(error).__name__
    gc.collect()
    told = dict(line.split(":", 1) for line in open("/proc/self/status"))
    rss, threads = int(told["VmRSS"].split()[0]), int(told["Threads"])
    print(json.dumps([status, rss, len(os.listdir("/proc/self/fd")), threads]), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Taken:
    """The state after a round: memory, handles and threads of the long-lived process, bytes of the folders."""

    memory_kb: int
    handles: int
    threads: int
    working_directory: int
    warehouse: int
    temporary: int


SLACK = Taken(30_000, 2, 2, 300_000, 3_000_000, 100_000)  # beside a tenth of it


class Soak(Rounds):
    """The rounds of the test of kills, without history, which grows by design."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        super().__init__(folder, File(folder), seed)
        self.kills = 0
        self.statuses: dict[str, int] = {}
        self.taken: list[Taken] = []

    def _between_requests(self, request: Any) -> None:
        self.requests.append(request)
        if self.restless and self.dice.random() < 0.05:
            self.edit()

    def edit(self) -> None:
        [(change, _)] = self.dice.choices(EDITS, [weight for _, weight in EDITS])
        self.watch.edit(lambda: change(self.service, self.dice))

    def environment(self, url: str) -> Mapping[str, str]:
        return {
            **{name: text for name, text in os.environ.items() if not name.startswith(("SOURCES__", "DLT_"))},
            "SOURCES__IMPORTER__BASE_URL": url,
            "SOURCES__IMPORTER__ACCESS_TOKEN": self.service.token,
            "SOURCES__IMPORTER__BATCH_ROWS": "500",
            "DLT_DATA_DIR": str(self.folder / "dlt"),
            "TMPDIR": str(self.temporary),
            "RUNTIME__DLTHUB_TELEMETRY": "false",
        }

    def start(self, url: str, *more: str) -> Process:
        self.requests.clear()
        command = ["--to", self.warehouse.address, "--json", "run", *more]
        return start(command, cwd=self.folder, env=self.environment(url))

    def live(self, url: str, minutes: float, every_s: float) -> None:
        program = [sys.executable, "-P", "-c", WORKER, str(self.folder / "warehouse.duckdb")]
        with subprocess.Popen(
            program,
            env=self.environment(url),
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as worker:
            assert worker.stdin is not None
            assert worker.stdout is not None
            ends = time.monotonic() + 60 * minutes
            while time.monotonic() < ends:
                began = time.monotonic()
                self._keep_small()
                for _ in range(self.dice.choice((0, 2, 6))):
                    self.edit()
                self.checked(lambda: self._run_of(worker))
                if self.dice.random() < 0.4:
                    self.checked(lambda: self._kill(url))
                time.sleep(max(0.0, min(began + every_s, ends) - time.monotonic()))
            worker.stdin.close()

    def checked(self, run: Any) -> None:
        before = self.warehouse.holdings()
        self.watch.begin()
        run()
        check_run(self._ran(before), self.watch)

    def _run_of(self, worker: subprocess.Popen[str]) -> None:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write("run\n")
        worker.stdin.flush()
        line = worker.stdout.readline()
        require(line, "the process lives on", worker.poll())
        status, *process = json.loads(line)
        self.statuses[status] = self.statuses.get(status, 0) + 1
        folders = (self.folder / "dlt", self.folder / "warehouse.duckdb", self.temporary)
        self.taken.append(Taken(*process, *map(_bytes_in, folders)))

    def _kill(self, url: str) -> None:
        self.kills += self.kill_one(url)

    def _keep_small(self) -> None:
        """Delete the largest imports of a service that has grown too large."""
        while sum(map(self._rows_of, self.service.slugs())) > MOST_ROWS:
            self.watch.edit(self._delete_the_largest)

    def _delete_the_largest(self) -> str:
        largest = max(self.service.slugs(), key=self._rows_of)
        self.service.delete_import(largest)
        return f"deleted import {largest}"

    def _rows_of(self, slug: str) -> int:
        return len(list(self.service.record_slugs(slug)))

    def end(self, url: str) -> tuple[dict[str, Any], Ran]:
        self.restless = False
        self.service.faults = Faults()
        for slug in self.service.slugs():
            self.service.set_row_count(slug, None)
            self.service.set_status(slug, "completed")
        return self.in_peace(url, "--allow-mass-delete", timeout_s=600)

    def tell(self) -> None:
        print(f"{len(self.taken)} runs {self.statuses}, {self.kills} kills", flush=True)
        for at in range(0, len(self.taken), max(1, len(self.taken) // 10)):
            print(f"run {at}: {asdict(self.taken[at])}", flush=True)

    def grown(self) -> list[str]:
        """Return what took clearly more in the last third than in the second."""
        third = len(self.taken) // 3
        found = []
        for name in (each.name for each in fields(Taken)):
            middle, last = (
                statistics.median(getattr(taken, name) for taken in part)
                for part in (self.taken[third : 2 * third], self.taken[2 * third :])
            )
            if last > 1.1 * middle + getattr(SLACK, name):
                found.append(f"{name}: {middle:,.0f}, then {last:,.0f}")
        return found


def _bytes_in(path: Path) -> int:
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return sum(each.stat().st_size for each in files)


def soak(folder: Path, seed: int, minutes: float, every_s: float) -> Soak:
    world = Soak(folder, seed)
    world.service.faults = FAULTS
    with serve(world.service) as url:
        world.live(url, minutes, every_s)
        world.tell()
        told, ran = world.end(url)
    spoiled = any(truth.spoiled for truth in world.watch.truth.values())
    require(told["status"] == ("partial" if spoiled else "succeeded"), "the last run is right", told)
    check_equal(ran, world.watch)
    return world


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--minutes", type=float, default=30)
    options.add_argument("--every", type=float, default=3, help="seconds from the start of a run to the next")
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        world = soak(Path(folder), given.seed, given.minutes, given.every)
        rows = Holdings.of_table(world.warehouse.holdings(), "records")
    print(f"{len(rows)} records in the end, equal")
    if grown := world.grown():
        sys.exit("\n".join(["Not flat:", *grown]))


if __name__ == "__main__":
    main()
