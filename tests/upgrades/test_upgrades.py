"""A warehouse of an earlier version is taken over by the next run: equal to the service, and idle after that.

`frozen/<commit>` has warehouses as that version wrote them (`freeze.py`), each as a DuckDB file and as a dump of
PostgreSQL, with the working directory: at rest, killed in the first package, killed while it replaced what had been
loaded (`torn`: the ledger has an import whose rows are partly those of before), with `deletes = "keep"`, with views.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import tarfile
from collections.abc import Callable, Mapping
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import dlt
import psycopg2
import pytest

from connector.warehouse.destination import destination_config
from tests.processes import start
from tests.types.conftest import postgres_uri
from tests.upgrades.service import TOKEN, Service, after, served

__all__ = ["postgres_uri"]

FROZEN = sorted((Path(__file__).parent / "frozen").iterdir())
LONG = pytest.mark.long
NAMES = (
    pytest.param("rest", marks=LONG),
    "killed",
    "torn",
    pytest.param("keep", marks=LONG),
    pytest.param("views", marks=LONG),
)
ALL = {"steady", "edited", "odd", "untemplated", "unfinished", "empty", "new"}

# Die behind a commit of the run that takes the warehouse over.
KILLED = """
import os, signal
from dlt.destinations.impl.duckdb.sql_client import DuckDbSqlClient
from dlt.destinations.impl.postgres.sql_client import Psycopg2SqlClient
seen = []
for client in (DuckDbSqlClient, Psycopg2SqlClient):
    def commit(self, original=client.commit_transaction):
        original(self)
        seen.append(1)
        if len(seen) == int(os.environ["KILLED_AT"]):
            os.kill(os.getpid(), signal.SIGKILL)
    client.commit_transaction = commit
from connector.cli.main import main
main()
"""


class Place:
    """A folder with a warehouse in it, and the command in that folder."""

    def __init__(self, folder: Path, url: str, *words: str, **settings: str) -> None:
        self.folder = folder
        self.log = ""
        self._words = words
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "DLT_DATA_DIR": str(folder / "dlt"),
            "SOURCES__IMPORTER__BASE_URL": url,
            "SOURCES__IMPORTER__ACCESS_TOKEN": TOKEN,
            **settings,
        }

    def __call__(self, *words: str, code: int = 0, killed_at: int | None = None) -> Mapping[str, Any]:
        """Run the command, which has to end with this exit code, and return its document."""
        script, env = None, self._environment
        if killed_at is not None:
            script = self.folder / "killed.py"
            script.write_text(KILLED)
            env = env | {"KILLED_AT": str(killed_at)}
        process = start(
            [*words, "--json", "--log-format", "json", *self._words], script=script, cwd=self.folder, env=env
        )
        out, self.log = process.communicate(120)
        assert process.returncode == code, self.log
        return dict(json.loads(out)) if out.strip() else {}


Thaw = Callable[..., Place]


@pytest.fixture(params=["duckdb", "postgres"])
def thaw(request: pytest.FixtureRequest, tmp_path: Path) -> Thaw:
    """Return what lays a frozen warehouse out, with the directory in which its version worked where it would be."""

    def laid_out(version: Path, name: str, url: str) -> Place:
        settings = {"SOURCES__IMPORTER__DELETES": "keep"} if name == "keep" else {}
        prefix = "" if request.param == "duckdb" else "postgres-"
        with tarfile.open(version / f"{prefix}{name}.tar.xz") as archive:
            archive.extractall(tmp_path, filter="data")
        if request.param == "duckdb":
            words, identity = [], [str(tmp_path / "importer.duckdb")]
        else:
            uri = restored(request.getfixturevalue("postgres_uri"), f"frozen_{tmp_path.name}", tmp_path / "dump.sql")
            words, identity = ["--to", uri], first_identity(uri)
        digest = hashlib.blake2b(repr(identity).encode(), digest_size=6).hexdigest()
        for left in (tmp_path / "dlt" / "pipelines").glob("warehouse-*"):
            left.rename(left.with_name(f"warehouse-{digest}"))
        return Place(tmp_path, url, *words, **settings)

    return laid_out


def restored(uri: str, name: str, dump: Path) -> str:
    """Return the address of a new database with what was dumped."""
    with closing(psycopg2.connect(uri)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(f'CREATE DATABASE "{name}"')
    made = f"{uri.rpartition('/')[0]}/{name}"
    lines = dump.read_text(encoding="utf-8").splitlines()
    with closing(psycopg2.connect(made)) as connection, connection.cursor() as cursor:
        cursor.execute("\n".join(line for line in lines if not line.startswith("\\")))  # commands of psql
        connection.commit()
    return made


def first_identity(uri: str) -> list[Any]:
    """What the first version named its working directory by."""
    config = destination_config(dlt.pipeline("any", destination=dlt.destinations.postgres(uri), dataset_name="any"))
    return [config.fingerprint(), *(getattr(config.credentials, name) for name in ("host", "port", "database"))]


def taken_over(place: Place, service: Service, *, left: bool) -> None:
    """The next run drops the package that was `left`, all is equal, and the one after reads only what is unfinished."""
    assert place("run")["status"] == "succeeded"
    assert "warehouse.taken_over" in place.log
    assert ("package.dropped" in place.log) == left
    assert set(service.read) == ALL, "what the first version did not keep of an import is known by the service alone"
    equal_and_idle(place, service)


def equal_and_idle(place: Place, service: Service) -> None:
    assert place("verify", "--deep")["differences"] == []
    service.read.clear()
    again = place("run")
    assert (again["status"], again["imports_changed"], set(service.read)) == ("succeeded", 1, {"unfinished"})


def goes_on(place: Place) -> None:
    """Everything else works on it as well."""
    assert place("query", "SELECT * FROM v_misfits")["columns"][-1] == "sort", "the run made the views of today"
    place("rebuild")
    place("sql", "apply")
    place("sql", "check", code=3)  # the service has an import that nobody finished, and columns of mixed values
    place("report")
    place("doctor")
    assert place("verify", "--deep")["differences"] == []
    found = place("query", 'SELECT "Name", count(*) AS n FROM customers GROUP BY 1 HAVING "Name" LIKE \'Edited%\'')
    assert found["rows"] == [{"Name": "Edited", "n": 1}]


@pytest.mark.parametrize("version", FROZEN, ids=lambda folder: folder.name)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.dialect
def test_a_warehouse_of_an_earlier_version_is_taken_over(thaw: Thaw, version: Path, name: str) -> None:
    service = Service(after())
    with served(service) as url:
        place = thaw(version, name, url)
        taken_over(place, service, left=name in {"killed", "torn"})
        goes_on(place)
        kept = place("query", "SELECT count(*) AS n FROM importer_data.records WHERE _deleted_at IS NOT NULL")
        assert kept["rows"] == [{"n": 10 if name == "keep" else 0}], "the rows of the import that is gone now"


@pytest.mark.long
@LONG
@pytest.mark.parametrize("version", FROZEN, ids=lambda folder: folder.name)
def test_a_take_over_that_dies_again_and_again_goes_on(thaw: Thaw, version: Path) -> None:
    service = Service(after())
    with served(service) as url:
        place = thaw(version, "torn", url)
        for commit in count(1):
            assert commit < 40
            try:
                place("run", code=-signal.SIGKILL, killed_at=commit)
            except AssertionError:
                break  # it had fewer commits than that, and ended
        assert commit > 3
        equal_and_idle(place, service)
