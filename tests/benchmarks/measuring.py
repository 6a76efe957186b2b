"""One process from start to end: what it took, what it asked of the service, and how many rows it kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.benchmarks.fixture import TOKEN, Served

PEERS = Path(__file__).parent / "peers"
FILE = "warehouse.duckdb"
TIMEOUT_S = 1_800
# In a process of its own: what this one has loaded would count as the peers' memory.
COUNT_ROWS = """
import duckdb, sys
with duckdb.connect(sys.argv[1], read_only=True) as db:
    tables = db.execute("SELECT table_schema, table_name FROM information_schema.tables "
        "WHERE table_schema NOT LIKE '%_staging' AND (table_name = 'records' OR table_name LIKE 'records_template_%')")
    counts = {True: 0, False: 0}
    for schema, table in tables.fetchall():
        raw = table == "records"
        key = "slug" if raw else "COALESCE(*COLUMNS('^_(record_)?slug$'))"
        counts[raw] += db.execute(f'SELECT count(DISTINCT {key}) FROM "{schema}"."{table}"').fetchone()[0]
print(min(filter(None, counts.values()), default=0))
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """`cpu_s` is user and system of the process and its children, `peak_mb` what they held together; the server's is
    not in it. `database_cpu_s` is what a database in processes of its own took. `rows` is what is in the warehouse
    afterwards: distinct ones, in the table that has fewest."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    requests: int
    code: int
    rows: int = 0
    database_cpu_s: float = 0.0

    @property
    def all_cpu_s(self) -> float:
        return self.cpu_s + self.database_cpu_s


@dataclass(frozen=True, slots=True)
class Peer:
    """A program that syncs the service, into a DuckDB file if not told otherwise. `ours` is configured by the
    environment."""

    name: str
    program: tuple[str, ...]
    ours: bool = False

    def command(self, served: Served) -> list[str]:
        if self.ours:
            return [str(Path(sysconfig.get_path("scripts"), "importer-sync")), *self.program]
        script, *variant = self.program
        return [sys.executable, str(PEERS / script), served.url, TOKEN, FILE, *variant]


US = Peer("importer-sync", ("run", "--to", f"duckdb:{FILE}", "--json"), ours=True)
US_POSTGRES = Peer("importer-sync, PostgreSQL", ("run", "--json"), ours=True)  # and then where to
IDEAL = Peer("prototype without any guarantee", ("ideal.py",))
AFTERNOON = Peer("httpx script of an afternoon", ("afternoon.py",))
TUNED = Peer("dlt `rest_api`, tuned", ("rest_api.py", "tuned"))
INCREMENTAL = Peer("dlt `rest_api`, tuned, incremental", ("rest_api.py", "incremental"))
DOCUMENTED = Peer("dlt `rest_api`, as documented", ("rest_api.py", "documented"))


def measure(
    peer: Peer, served: Served, directory: Path, environment: Mapping[str, str] | None = None, *, count: bool = True
) -> Measured:
    """Runs it once in `directory`, which holds what earlier runs left."""
    served.reset()
    with (directory / "out").open("w") as out, (directory / "err").open("w") as err:
        started = time.perf_counter()
        process = subprocess.Popen(
            peer.command(served),
            cwd=directory,
            env={**_environment(served, directory), **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )
        together = _Together(process.pid)
        together.start()
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - started
        together.join()
    process.returncode = os.waitstatus_to_exitcode(status)
    rows = count_rows(directory / FILE) if count else 0
    cpu_s = usage.ru_utime + usage.ru_stime
    asked = served.stats()["requests"]
    peak_mb = max(usage.ru_maxrss / 1_024, together.peak_mb)
    return Measured(wall_s, cpu_s, peak_mb, asked, process.returncode, rows)


class _Together(threading.Thread):
    """Looks at the memory of a process and its children until it ends; the kernel keeps the peak of each alone."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self.peak_mb = 0.0

    def run(self) -> None:
        while resident := _resident_mb(self._pid):
            self.peak_mb = max(self.peak_mb, resident)
            time.sleep(0.1)


def _resident_mb(pid: int) -> float:
    process = Path("/proc", str(pid))
    try:
        pages = int((process / "statm").read_text().split()[1])
        children = [child for listed in process.glob("task/*/children") for child in listed.read_text().split()]
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20 + sum(_resident_mb(int(child)) for child in children)


def count_rows(file: Path) -> int:
    if not file.exists():
        return 0
    program = [sys.executable, "-c", COUNT_ROWS, str(file)]
    return int(subprocess.run(program, check=True, capture_output=True, text=True).stdout)


def document(directory: Path) -> dict[str, object]:
    """What our last run in `directory` printed."""
    found: dict[str, object] = json.loads((directory / "out").read_text())
    return found


def complaint(directory: Path) -> str:
    """The last words of the last run in `directory`, for one that failed."""
    lines = [line for line in (directory / "err").read_text().splitlines() if line.strip() and "leaked" not in line]
    return lines[-1].strip() if lines else "without a word"


def middle(runs: Sequence[Measured]) -> Measured:
    """The median of each figure; the fewest rows and the worst exit code, so that one bad run shows."""
    return Measured(
        wall_s=median(run.wall_s for run in runs),
        cpu_s=median(run.cpu_s for run in runs),
        peak_mb=median(run.peak_mb for run in runs),
        requests=int(median(run.requests for run in runs)),
        code=max((run.code for run in runs), key=abs),
        rows=min(run.rows for run in runs),
        database_cpu_s=median(run.database_cpu_s for run in runs),
    )


def _environment(served: Served, directory: Path) -> dict[str, str]:
    """Nothing of the caller's configuration; nobody calls home."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "TMPDIR")}
    return {
        **kept,
        "HOME": str(directory),
        "DLT_DATA_DIR": str(directory / "dlt"),
        "RUNTIME__DLTHUB_TELEMETRY": "false",
        "SOURCES__IMPORTER__BASE_URL": served.url,
        "SOURCES__IMPORTER__ACCESS_TOKEN": TOKEN,
    }
