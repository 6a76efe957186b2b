"""Run one query on the warehouse, read-only: a file or a lake is opened read-only, PostgreSQL's transaction is.

Names without a schema are looked for in the dataset, then among its views.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import duckdb
import sqlglot
from dlt.pipeline.pipeline import Pipeline
from sqlglot import exp
from sqlglot.errors import SqlglotError

from connector.errors import ConfigError, ConnectorError
from connector.reporting.views.lake_queries import lake_session
from connector.reporting.views.layout import VIEWS_SUFFIX
from connector.warehouse import Warehouse
from connector.warehouse.adapters.dialect import quoted
from connector.warehouse.busy import WAIT_S, when_free
from connector.warehouse.destination import (
    dataset_name,
    duckdb_file,
    lake_place,
    local_file,
    no_warehouse,
    open_client,
)
from connector.warehouse.failures import ours_within

ROWS_AT_ONCE = 2_000
# A query may come from others: it reads the warehouse, but no file, address, extension or variable of this process.
_NOTHING_ELSE: dict[str, Any] = {
    "enable_external_access": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
}
_SUPERUSER = (
    "The role of this session is a PostgreSQL superuser, whose queries can read files of the server; use a role that "
    "can only read the dataset."
)
_READS = "only one SELECT (or WITH … SELECT) is run here"
# MySQL runs such a comment, even one that creates a table in a read-only transaction; it reads `--1` as a number.
_RUN_BY_MYSQL = re.compile(r"/\*M?!|--(?!\s|\Z)", re.IGNORECASE)
_WRITES = (exp.Insert, exp.Update, exp.Delete, exp.Merge, exp.Into, exp.Create, exp.Drop, exp.Copy)


@dataclass(frozen=True, slots=True)
class Answer:
    """The names of the columns, made distinct, and the rows, which can be read once."""

    columns: tuple[str, ...]
    rows: Iterator[tuple[Any, ...]]
    warning: str | None = None


@contextmanager
def ask(pipeline: Pipeline, sql: str) -> Iterator[Answer]:
    """Run one SELECT. Raises ConfigError for anything else, and ConnectorError with the database's message."""
    warehouse = Warehouse(pipeline)
    warehouse.check_supported()
    kind = warehouse.destination_type
    if kind not in _ASKED:
        raise ConfigError(f"`query` does not work with {kind}; use another tool.")
    check_reads(sql, warehouse.traits.dialect)
    with ExitStack() as opened:
        try:
            answer = opened.enter_context(_ASKED[kind](pipeline, sql))
        except ConnectorError:
            raise
        except Exception as error:
            raise _refused(error) from None
        yield answer


def check_reads(sql: str, dialect: str) -> None:
    """Raise ConfigError unless it is one statement that only reads."""
    if dialect == "duckdb":
        try:
            statements = duckdb.extract_statements(sql)
        except duckdb.Error as error:
            raise _refused(error) from None
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise ConfigError(f"This is not a query: {_READS}.")
        return
    if dialect == "mysql" and (found := _RUN_BY_MYSQL.search(sql)):
        raise ConfigError(
            f"This has {found[0]!r}, behind which MySQL runs what others take for a comment: write it without, "
            f"and a comment as -- with a blank; {_READS}."
        )
    try:
        trees = [tree for tree in sqlglot.parse(sql, read=dialect) if tree is not None]
    except SqlglotError as error:
        raise ConfigError(
            f"This cannot be read as SQL ({str(error).splitlines()[0].rstrip('. ')}); {_READS}."
        ) from None
    if len(trees) != 1 or not isinstance(trees[0], exp.Query | exp.Values) or trees[0].find(*_WRITES):
        raise ConfigError(f"This is not a query: {_READS}.")


@contextmanager
def _duckdb(pipeline: Pipeline, sql: str) -> Iterator[Answer]:
    file = duckdb_file(pipeline)
    if file is None or not file.exists():
        raise no_warehouse(pipeline)
    with when_free(lambda: duckdb.connect(str(file), read_only=True, config=_NOTHING_ELSE)) as connection:
        yield _answer_of_duckdb(connection, pipeline.dataset_name, sql)


@contextmanager
def _ducklake(pipeline: Pipeline, sql: str) -> Iterator[Answer]:
    file = local_file(pipeline)
    if file is not None and not file.exists():
        raise no_warehouse(pipeline)
    with lake_session(pipeline, sql) as connection:
        for name, value in _NOTHING_ELSE.items():
            connection.execute(f"SET {name} = {value}")
        yield _answer_of_duckdb(connection, dataset_name(pipeline), sql)


def _answer_of_duckdb(connection: duckdb.DuckDBPyConnection, dataset: str, sql: str) -> Answer:
    connection.execute("SET TimeZone = 'UTC'")
    found = connection.execute(
        "SELECT schema_name, current_database() FROM duckdb_schemas() WHERE database_name = current_database()"
    ).fetchall()
    there = {name for name, _ in found}
    path = _search_path(dataset, there, *{database for _, database in found})
    connection.execute("SET search_path = $path", {"path": path})
    connection.execute("SET lock_configuration = true")
    with _explained(dataset, there):
        cursor = connection.execute(sql)
    return Answer(_distinct([column[0] for column in cursor.description or ()]), _rows(cursor))


@contextmanager
def _postgres(pipeline: Pipeline, sql: str) -> Iterator[Answer]:
    with open_client(pipeline) as client:
        connection: Any = client.native_connection
        connection.set_session(readonly=True, autocommit=False)
        with connection.cursor() as cursor:
            # the transaction is read-only; this is for a query that would end it and begin another
            cursor.execute("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
            cursor.execute("SELECT current_setting('is_superuser')")
            warning = _SUPERUSER if cursor.fetchone() == ("on",) else None
            cursor.execute("SELECT nspname FROM pg_namespace")
            there = {name for (name,) in cursor.fetchall()}
            cursor.execute(f"SET search_path = {_search_path(client.dataset_name, there)}")
        # on the server: a result of any size is read piece by piece
        with connection.cursor(name="importer_sync_query") as cursor:
            cursor.itersize = ROWS_AT_ONCE
            with _explained(client.dataset_name, there):
                cursor.execute(sql)
            first = cursor.fetchmany(ROWS_AT_ONCE)
            yield Answer(_distinct([column[0] for column in cursor.description or ()]), _rows(cursor, first), warning)
        connection.rollback()


@contextmanager
def _sqlite(pipeline: Pipeline, sql: str) -> Iterator[Answer]:
    file = local_file(pipeline)
    if file is None or not file.exists():
        raise no_warehouse(pipeline)
    with closing(sqlite3.connect("file::memory:", uri=True, timeout=WAIT_S)) as connection:
        path = f"file:{quote(str(file.resolve()))}?mode=ro"
        connection.execute(f"ATTACH DATABASE ? AS {quoted(dataset_name(pipeline))}", [path])
        connection.set_authorizer(_only_reads)
        try:
            cursor = connection.execute(sql)
        except sqlite3.Error as error:
            raise _refused(error) from None
        yield Answer(_distinct([column[0] for column in cursor.description or ()]), _rows(cursor))


def _only_reads(action: int, *_: str | None) -> int:
    allowed = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
    return sqlite3.SQLITE_OK if action in allowed else sqlite3.SQLITE_DENY


@contextmanager
def _mysql(pipeline: Pipeline, sql: str) -> Iterator[Answer]:
    with open_client(pipeline) as client:
        native: Any = client.native_connection.connection.driver_connection
        with closing(native.cursor()) as cursor:
            cursor.execute(f"USE {client.fully_qualified_dataset_name()}")
            cursor.execute("START TRANSACTION READ ONLY")
            cursor.execute(sql)
            yield Answer(_distinct([column[0] for column in cursor.description or ()]), _rows(cursor))
        native.rollback()


@contextmanager
def _lake(pipeline: Pipeline, sql: str) -> Iterator[Answer]:
    from connector.warehouse.adapters.lake import Lake

    untyped: Any = pipeline.destination
    dataset = dataset_name(pipeline)
    lake = Lake(untyped.log_at(lake_place(pipeline), dataset), dataset)
    with lake.only_reading() as connection:
        if not lake.exists:
            raise no_warehouse(pipeline)
        for name, value in _NOTHING_ELSE.items():
            connection.execute(f"SET {name} = {value}")
        yield _answer_of_duckdb(connection, dataset, sql)


_ASKED = {
    "duckdb": _duckdb,
    "postgres": _postgres,
    "sqlite": _sqlite,
    "mysql": _mysql,
    "ducklake": _ducklake,
    "delta": _lake,
    "parquet": _lake,
}


def _search_path(dataset: str, there: set[str], *database: str) -> str:
    """Return the schemas in which names are looked up, those of DuckDB with their database."""
    path = [name for name in (dataset, dataset + VIEWS_SUFFIX) if name in there]
    if dataset not in there:
        raise ConfigError(f"There is no dataset {dataset} in this warehouse; --dataset names another.")
    return ",".join(".".join(map(quoted, (*database, name))) for name in path)


@contextmanager
def _explained(dataset: str, there: set[str]) -> Iterator[None]:
    """Raise the database's own message; if there are no views yet, add how to create them."""
    try:
        yield
    except Exception as error:
        refused = _refused(error)
        if "does not exist" in str(refused) and dataset + VIEWS_SUFFIX not in there:
            refused = ConnectorError(f"{refused}. There are no views yet: `importer-sync sql apply` creates them.")
        raise refused from None


def _rows(cursor: Any, rows: Sequence[tuple[Any, ...]] = ()) -> Iterator[tuple[Any, ...]]:
    try:
        rows = rows or cursor.fetchmany(ROWS_AT_ONCE)
        while rows:
            yield from rows
            rows = cursor.fetchmany(ROWS_AT_ONCE)
    except Exception as error:
        raise _refused(error) from None


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names made distinct, because a JSON object has each name once."""
    made: list[str] = []
    for name in names:
        plain, n = name, 2
        while name in made:
            name, n = f"{plain}_{n}", n + 1
        made.append(name)
    return tuple(made)


def _refused(error: Exception) -> Exception:
    if type(error).__module__.split(".")[0] not in ("duckdb", "_duckdb", "psycopg2", "sqlite3", "pymysql"):
        return error
    return ours_within(error) or ConnectorError(f"The database refused the query: {' '.join(str(error).split())}")
