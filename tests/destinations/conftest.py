"""One suite over every destination: addresses for `--to`, each with what it needs to be there."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pymysql
import pytest

from connector.sandbox import Service, serve

WAIT_S = 60


@pytest.fixture
def service() -> Service:
    """Imports of two templates, with a field that is null, one that is nested and values that fit no one type."""
    service = Service(seed=7)
    service.add_generated("orders", imports=2, rows=60)
    service.add_import("values", [{"a": 1, "b": 1.5, "c": True, "d": "x", "e": {"f": [1]}, "g": None}, {"a": "no"}])
    service.add_import(None, [{"untemplated": 2**53 + 1}])
    return service


@pytest.fixture
def served(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    with serve(service) as url:
        monkeypatch.setenv("SOURCES__IMPORTER__BASE_URL", url)
        monkeypatch.setenv("SOURCES__IMPORTER__ACCESS_TOKEN", service.token)
        yield service


@pytest.fixture(params=["duckdb", "sqlite", "mysql"])
def address(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What `--to` says of an empty place."""
    monkeypatch.chdir(tmp_path)
    addresses: dict[str, Callable[[], str]] = {
        "duckdb": lambda: f"duckdb:///{tmp_path}/lies/w.duckdb",
        "sqlite": lambda: f"sqlite:///{tmp_path}/lies/w.db",
        "mysql": lambda: str(request.getfixturevalue("mariadb")),
    }
    return addresses[request.param]()


@pytest.fixture(scope="session")
def server() -> Iterator[int]:
    """Start a MariaDB of our own on loopback, and return its port."""
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
        process = subprocess.Popen([serving, *common, *where], stdout=log, stderr=log)
    try:
        root = _root(f"{folder}/s")
        with closing(root), root.cursor() as cursor:
            cursor.execute("CREATE USER importer@'127.0.0.1' IDENTIFIED BY 'p:w@d'")
            cursor.execute("GRANT ALL ON *.* TO importer@'127.0.0.1'")
        yield port
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
    return pymysql.connect(unix_socket=path, user="root")


@pytest.fixture
def mariadb(server: int) -> Iterator[str]:
    yield f"mysql://importer:p%3Aw%40d@127.0.0.1:{server}/"
    session = pymysql.connect(host="127.0.0.1", port=server, user="importer", password="p:w@d")
    with closing(session), session.cursor() as cursor:
        cursor.execute("DROP DATABASE IF EXISTS importer_data")
        cursor.execute("DROP DATABASE IF EXISTS importer_data_staging")
