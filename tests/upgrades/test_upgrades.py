"""A warehouse of an earlier version is taken over by the next run: equal to the service, and idle after that.

`frozen/<commit>` has warehouses as that version wrote them (`freeze.py`): at rest, killed in the middle of a load, with
`deletes = "keep"`, with views, and a PostgreSQL.
"""

from __future__ import annotations

import gzip
import json
import os
import tarfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from tests.processes import start
from tests.types.conftest import postgres_uri
from tests.upgrades.service import TOKEN, Service, after, served

__all__ = ["postgres_uri"]

pytestmark = pytest.mark.thorough
FROZEN = sorted((Path(__file__).parent / "frozen").iterdir())
FILES = ("rest", "killed", "keep", "views")


class Place:
    """A folder with a warehouse in it, and the command in that folder."""

    def __init__(self, folder: Path, url: str, *words: str, **settings: str) -> None:
        self._folder = folder
        self._words = words
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "DLT_DATA_DIR": str(folder / "dlt"),
            "SOURCES__IMPORTER__BASE_URL": url,
            "SOURCES__IMPORTER__ACCESS_TOKEN": TOKEN,
            **settings,
        }

    def __call__(self, *words: str, code: int = 0) -> Mapping[str, Any]:
        """Run the command, which has to end with this exit code, and return its document."""
        process = start([*words, "--json", *self._words], cwd=self._folder, env=self._environment)
        out, err = process.communicate(120)
        assert process.returncode == code, err
        return dict(json.loads(out)) if out.strip() else {}


def taken_over(place: Place, service: Service) -> None:
    """The next run reads what changed, all is equal, and the run after it reads only what is unfinished."""
    ran = place("run")
    assert ran["status"] == "succeeded"
    assert {"edited", "new"} <= set(service.read)
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
    found = place("query", 'SELECT "Name", count(*) AS n FROM customers GROUP BY 1 HAVING "Name" = \'Edited\'')
    assert [row["n"] for row in found["rows"]] == [1]


@pytest.mark.parametrize("version", FROZEN, ids=lambda folder: folder.name)
@pytest.mark.parametrize("name", FILES)
def test_a_duckdb_file_of_an_earlier_version_is_taken_over(version: Path, name: str, tmp_path: Path) -> None:
    with tarfile.open(version / f"{name}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    settings = {"SOURCES__IMPORTER__DELETES": "keep"} if name == "keep" else {}
    service = Service(after())
    with served(service) as url:
        place = Place(tmp_path, url, **settings)
        taken_over(place, service)
        if name == "views":
            goes_on(place)
        if name == "keep":
            kept = place("query", "SELECT count(*) AS n FROM importer_data.records WHERE _deleted_at IS NOT NULL")
            assert kept["rows"] == [{"n": 10}], "the rows of the import that is gone now"


@pytest.mark.parametrize("version", FROZEN, ids=lambda folder: folder.name)
def test_a_postgresql_of_an_earlier_version_is_taken_over(version: Path, postgres_uri: str, tmp_path: Path) -> None:
    name = f"frozen_{version.name}"
    with closing(psycopg2.connect(postgres_uri)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(f"CREATE DATABASE {name}")
    uri = f"{postgres_uri.rpartition('/')[0]}/{name}"
    dump = gzip.decompress((version / "postgres.sql.gz").read_bytes()).decode()
    sql = "\n".join(line for line in dump.splitlines() if not line.startswith("\\"))  # commands of psql
    with closing(psycopg2.connect(uri)) as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        connection.commit()
    service = Service(after())
    with served(service) as url:
        place = Place(tmp_path, url, "--to", uri)
        taken_over(place, service)
        goes_on(place)
