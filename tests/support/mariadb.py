"""A MariaDB of the tests' own on loopback, one a session."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

WAIT_S = 60
USER, PASSWORD = "importer", "p:w@d"


@dataclass(frozen=True, slots=True)
class MariaDB:
    """A server that a test may have databases in."""

    port: int

    @property
    def address(self) -> str:
        """What `--to` takes."""
        return f"mysql://{USER}:p%3Aw%40d@127.0.0.1:{self.port}/"

    def session(self, database: str | None = None) -> Any:
        """Return a connection whose statements take effect at once."""
        import pymysql  # which needs an extra

        return pymysql.connect(
            host="127.0.0.1", port=self.port, user=USER, password=PASSWORD, database=database, autocommit=True
        )

    def drop(self, *databases: str) -> None:
        with closing(self.session()) as session, session.cursor() as cursor:
            for database in databases:
                cursor.execute(f"DROP DATABASE IF EXISTS {database}")


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDB]:
    path = f"{os.environ['PATH']}:/usr/sbin"
    programs = [shutil.which(name, path=path) for name in ("mariadb-install-db", "mariadbd")]
    if None in programs:
        pytest.skip("MariaDB is not installed (apt-get install mariadb-server)")
    install, serving = map(str, programs)
    folder = tempfile.mkdtemp(prefix="maria-")
    user = ["--user=root"] if os.geteuid() == 0 else []
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    common = ["--no-defaults", *user, f"--datadir={folder}/data"]
    made = [install, *common, "--auth-root-authentication-method=normal", "--skip-test-db"]
    subprocess.run(made, check=True, capture_output=True)
    with Path(folder, "log").open("wb") as log:
        where = ["--bind-address=127.0.0.1", f"--port={port}", f"--socket={folder}/s", f"--pid-file={folder}/pid"]
        # a server that starts removes the temporary tables of others in its folder
        own = [f"--tmpdir={folder}"]
        process = subprocess.Popen([serving, *common, *where, *own], stdout=log, stderr=log)
    try:
        root = _root(f"{folder}/s")
        with closing(root), root.cursor() as cursor:
            cursor.execute(f"CREATE USER {USER}@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'")
            cursor.execute(f"GRANT ALL ON *.* TO {USER}@'127.0.0.1'")
        yield MariaDB(port)
    finally:
        process.terminate()
        process.wait(WAIT_S)
        shutil.rmtree(folder, ignore_errors=True)


def _root(path: str) -> Any:
    """Connect once the server listens: a connection that is refused is one that pymysql does not close."""
    until = time.monotonic() + WAIT_S
    while not Path(path).exists():
        if time.monotonic() > until:
            raise TimeoutError("MariaDB did not start")
        time.sleep(0.1)
    import pymysql

    return pymysql.connect(unix_socket=path, user="root")
