"""One suite over every destination: addresses for `--to`, each with what it needs to be there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from connector.sandbox import Service, serve
from tests.support.mariadb import MariaDB, mariadb_server
from tests.support.s3_server import s3, s3_endpoint
from tests.types.conftest import postgres_uri

__all__ = ["mariadb_server", "postgres_uri", "s3", "s3_endpoint"]


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


@pytest.fixture(
    params=["duckdb", "postgres", "sqlite", "mysql", "ducklake", "ducklake-postgres", "delta", "parquet", "s3"]
)
def address(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What `--to` says of an empty place."""
    monkeypatch.chdir(tmp_path)
    addresses: dict[str, Callable[[], str]] = {
        "duckdb": lambda: f"duckdb:///{tmp_path}/lies/w.duckdb",
        "sqlite": lambda: f"sqlite:///{tmp_path}/lies/w.db",
        "postgres": lambda: str(request.getfixturevalue("postgres")),
        "mysql": lambda: str(request.getfixturevalue("mariadb")),
        "delta": lambda: f"delta:///{tmp_path}/lies",
        "parquet": lambda: f"filesystem:///{tmp_path}/lies",
        "s3": lambda: str(request.getfixturevalue("s3")),
        "ducklake": lambda: str(request.getfixturevalue("sqlite_lake")),
        "ducklake-postgres": lambda: str(request.getfixturevalue("postgres_lake")),
    }
    return addresses[request.param]()


@pytest.fixture
def postgres(postgres_uri: str) -> Iterator[str]:
    yield postgres_uri
    with closing(psycopg2.connect(postgres_uri)) as session, session, session.cursor() as cursor:
        for schema in ("importer_data", "importer_data_staging", "importer_data_views"):
            cursor.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


@pytest.fixture
def sqlite_lake(tmp_path: Path) -> str:
    """A lake; its extensions are where `make ducklake` has them."""
    pytest.importorskip("duckdb_extension_ducklake")
    return f"ducklake:sqlite:///{tmp_path}/lies/w.sqlite"


@pytest.fixture
def postgres_lake(tmp_path: Path, postgres_uri: str) -> Iterator[str]:
    pytest.importorskip("duckdb_extension_ducklake")
    yield f"ducklake:{postgres_uri}?data={tmp_path}/lies&schema=lake"
    with closing(psycopg2.connect(postgres_uri)) as session, session, session.cursor() as cursor:
        cursor.execute("DROP SCHEMA IF EXISTS lake CASCADE")


@pytest.fixture(params=["sqlite_lake", "postgres_lake"])
def lake(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What `--to` says of an empty lake, with either kind of catalog."""
    monkeypatch.chdir(tmp_path)
    return str(request.getfixturevalue(request.param))


@pytest.fixture
def mariadb(mariadb_server: MariaDB) -> Iterator[str]:
    yield mariadb_server.address
    mariadb_server.drop("importer_data", "importer_data_staging")
