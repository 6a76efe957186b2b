"""The dataset of a pipeline, and an open connection to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from string import ascii_lowercase, ascii_uppercase
from typing import Any, TypeVar, cast

import duckdb
import pyarrow as pa
from dlt.destinations.impl.duckdb.sql_client import DuckDbSqlClient
from dlt.destinations.sql_client import SqlClientBase
from dlt.pipeline.pipeline import Pipeline

from connector.warehouse.destination import (
    check_supported,
    check_writable,
    destination_name,
    destination_type,
    duckdb_file,
    open_client,
)
from connector.warehouse.memory_limit import Allowance
from connector.warehouse.tables import LEDGER, RECORDS, RUNS

LOADS = "_dlt_loads"
VERSIONS = "_dlt_version"
SLUGS_PER_QUERY = 500
R = TypeVar("R")


class Warehouse:
    """The dataset of one pipeline; `connect` opens it. Making one changes nothing, neither here nor there."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._held: Connection | None = None
        self._holding = ExitStack()

    @property
    def destination(self) -> str:
        return destination_name(self._pipeline)

    @property
    def destination_type(self) -> str:
        return destination_type(self._pipeline)

    @property
    def is_duckdb(self) -> bool:
        return self.destination_type == "duckdb"

    @property
    def finds_slugs(self) -> bool:
        """Tell whether arriving slugs can be looked up in a table (`connector.warehouse.lookup`)."""
        return self.destination_type in ("duckdb", "postgres")

    def check_supported(self) -> None:
        """Raise ConfigError for a destination that cannot replace the rows of an import, e.g. plain files."""
        check_supported(self._pipeline)

    def check_writable(self) -> None:
        """Raise ConfigError where loading is not possible, or not without loss, e.g. PostgreSQL without ADBC."""
        check_writable(self._pipeline)

    def exists(self) -> bool:
        """Tell whether a run has been here, without making a database file."""
        file = duckdb_file(self._pipeline)
        if file is not None and not file.exists():
            return False
        with self.connect() as connection:
            return bool({LEDGER, RUNS, RECORDS} & connection.names()[0])

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """Yield a connection for several calls: the one that is held, if there is one. PostgreSQL answers in UTC."""
        if self._held is not None:
            yield self._held
            return
        with open_client(self._pipeline) as client:
            yield Connection(client)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep one connection open: DuckDB writes its file anew whenever the last one closes, which dlt does often.

        dlt's threshold of a gigabyte of log for a checkpoint (`DuckDbSqlClient._global_config`) stays as it is: where a
        load job has just run out of memory, a checkpoint in the commit of another makes DuckDB 2.0 unusable.
        """
        with self._holding:
            self._open(sparing=self.is_duckdb)
            yield

    @property
    def allowance(self) -> Allowance | None:
        """Of the connection that is held, if it has one."""
        return None if self._held is None else self._held.allowance

    def lift(self) -> bool:
        """Opens what is held anew without an allowance, if it had one: DuckDB is not itself once its memory ran out."""
        if self.allowance is None or not self.allowance.lift():
            return False
        self._holding.close()
        self._open(sparing=False)
        return True

    def _open(self, *, sparing: bool) -> None:
        connection = self._holding.enter_context(self.connect())
        self._holding.callback(setattr, self, "_held", None)
        allowance = Allowance(connection.client.native_connection) if sparing else None
        if allowance is not None:
            self._holding.callback(allowance.end)
        self._held = replace(connection, allowance=allowance)


@dataclass(frozen=True, slots=True)
class Connection:
    """An open connection to the dataset; dlt's client of it, with what is asked of every table."""

    client: SqlClientBase[Any]
    allowance: Allowance | None = None

    @property
    def is_postgres(self) -> bool:
        return self.client.capabilities.sqlglot_dialect == "postgres"

    @property
    def knows_types(self) -> bool:
        """Whether the types that `columns` tells are those that a load made: only these have names that are known."""
        return self.client.capabilities.sqlglot_dialect in ("duckdb", "postgres")

    def name(self, table: str) -> str:
        return self.client.make_qualified_table_name(table)

    def column(self, name: str) -> str:
        return self.client.escape_column_name(name)

    def completed_loads(self, tables: Collection[str] | None = None) -> str:
        """SQL for the ids of the loads that dlt completed (`_dlt_loads.status = 0`), each once.

        `tables` are those of the dataset, where the caller knows them.
        """
        if LOADS not in (self.names()[0] if tables is None else tables):
            return "(SELECT CAST(NULL AS VARCHAR) AS load_id WHERE 1 = 0)"
        return f"(SELECT DISTINCT load_id FROM {self.name(LOADS)} WHERE status = 0)"

    def sparing(self, *, columns: int, slugs: int) -> AbstractContextManager[None]:
        """For questions that read so many columns of a whole table and look for so many slugs (`Allowance.asking`)."""
        return nullcontext() if self.allowance is None else self.allowance.asking(columns, slugs)

    def query(self, sql: str, *args: Any) -> pa.Table:
        if isinstance(self.client, DuckDbSqlClient):
            # dlt's own way to Arrow asks DuckDB for a method that DuckDB 2 no longer has
            ask = self.client.native_connection.sql
            return self._of_duckdb(lambda: cast("pa.Table", ask(_marked(sql), params=args).to_arrow_table()))
        with self.client.execute_query(sql, *args) as cursor:
            table = cursor.arrow()
        return table if table is not None else pa.table({})

    def rows(self, sql: str, *args: Any) -> list[dict[str, Any]]:
        """Ask for what is a few rows: DuckDB plans a query for Arrow twice, which takes it longer than to answer."""
        if not isinstance(self.client, DuckDbSqlClient):
            found: list[dict[str, Any]] = self.query(sql, *args).to_pylist()
            return found
        native: duckdb.DuckDBPyConnection = self.client.native_connection

        def answer() -> list[dict[str, Any]]:
            cursor: Any = native.execute(_marked(sql), args)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

        return self._of_duckdb(answer)

    def _of_duckdb(self, answer: Callable[[], R]) -> R:
        try:
            return answer()
        except duckdb.OutOfMemoryException:
            if self.allowance is None or not self.allowance.lift():
                raise
            return self._of_duckdb(answer)

    def execute(self, sql: str, *args: Any) -> None:
        self.client.execute_sql(sql, *args)

    def pack_raw_rows(self) -> None:
        """Has DuckDB keep `data` as zstd, which takes a third less of its file and less time to write.

        A column's compression is chosen when its table is made, so an empty one is made anew as dlt made it.
        """
        native: duckdb.DuckDBPyConnection = self.client.native_connection
        found: Any = native.execute(
            "SELECT sql FROM duckdb_tables() WHERE database_name = current_database() AND schema_name = ? "
            "AND table_name = ?",
            [self.client.dataset_name, RECORDS],
        ).fetchall()
        before, column, after = found[0][0].partition('"data" VARCHAR') if found else ("", "", "")
        if not column or self.query(f"SELECT 1 FROM {self.name(RECORDS)} LIMIT 1").num_rows:
            return
        native.begin()
        try:
            native.execute(f"DROP TABLE {self.name(RECORDS)}").fetchall()
            native.execute(f"{before}{column} USING COMPRESSION ZSTD{after}").fetchall()
            native.commit()
        except duckdb.BinderException:  # a file in the format of an older DuckDB, which knows no zstd
            native.rollback()
        except BaseException:
            native.rollback()
            raise

    def columns(self) -> dict[str, dict[str, str]]:
        """Table → column → type, as `connector.transform.schema.parse_type` reads it where it can.

        Names are in lower case: DuckDB, and dlt on any destination, take those that differ only in case for one. Where
        PostgreSQL has both, the one in lower case counts, as ours are.
        """
        rows = self.rows(
            "SELECT table_name, column_name, data_type, numeric_precision, numeric_scale "
            f"FROM {self._all_columns} = %s",
            self.client.dataset_name,
        )
        found: dict[str, dict[str, str]] = defaultdict(dict)
        for row in sorted(rows, key=lambda row: row["column_name"] != _lower(row["column_name"])):
            kind = _type_of(row["data_type"], row["numeric_precision"], row["numeric_scale"])
            found[row["table_name"]].setdefault(_lower(row["column_name"]), kind)
        return dict(found)

    @property
    def _all_columns(self) -> str:
        """All columns of one schema, up to its name; DuckDB takes several times as long for the standard's view."""
        if isinstance(self.client, DuckDbSqlClient):
            return "duckdb_columns() WHERE database_name = current_database() AND schema_name"
        return "information_schema.columns WHERE table_schema"

    def declared(self, table: str) -> dict[str, str]:
        """Column → its type as the destination writes it in a definition (DuckDB and PostgreSQL)."""
        if self.is_postgres:
            sql = (
                "SELECT a.attname AS name, format_type(a.atttypid, a.atttypmod) AS kind FROM pg_catalog.pg_attribute a "
                "JOIN pg_catalog.pg_class c ON c.oid = a.attrelid JOIN pg_catalog.pg_namespace n "
                "ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 "
                "AND NOT a.attisdropped"
            )
        else:
            sql = f"SELECT column_name AS name, data_type AS kind FROM {self._all_columns} = %s AND table_name = %s"
        rows = self.rows(sql, self.client.dataset_name, table)
        return {_lower(row["name"]): row["kind"] for row in rows}

    def required(self) -> dict[str, set[str]]:
        """Table → its columns that cannot be null."""
        never = "NOT is_nullable" if isinstance(self.client, DuckDbSqlClient) else "is_nullable = 'NO'"
        rows = self.rows(
            f"SELECT table_name, column_name FROM {self._all_columns} = %s AND {never}", self.client.dataset_name
        )
        found: dict[str, set[str]] = defaultdict(set)
        for row in rows:
            found[row["table_name"]].add(_lower(row["column_name"]))
        return dict(found)

    def names(self) -> tuple[set[str], set[str]]:
        """Return the names of all tables, which views are not, and all names that no new table may have.

        Those are in PostgreSQL also the names of indexes, and of what others may not see.
        """
        sql = "SELECT table_name AS name, table_type AS kind FROM information_schema.tables WHERE table_schema = %s"
        schemas = [self.client.dataset_name]
        if self.is_postgres:
            sql += (
                " UNION ALL SELECT c.relname, '' FROM pg_catalog.pg_class c "
                "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s"
            )
            schemas *= 2
        elif isinstance(self.client, DuckDbSqlClient):
            here = "WHERE database_name = current_database() AND schema_name = %s"
            sql = f"SELECT table_name AS name, 'BASE TABLE' AS kind FROM duckdb_tables() {here} "
            sql += f"UNION ALL SELECT view_name, 'VIEW' FROM duckdb_views() {here}"
            schemas *= 2
        rows = self.rows(sql, *schemas)
        return {row["name"] for row in rows if row["kind"] == "BASE TABLE"}, {row["name"] for row in rows}

    def insert(self, table: str, names: Sequence[str], row: Mapping[str, Any]) -> None:
        columns = ", ".join(self.column(name) for name in names)
        marks = ", ".join(["%s"] * len(names))
        self.execute(f"INSERT INTO {self.name(table)} ({columns}) VALUES ({marks})", *[row[name] for name in names])

    def rows_of(self, table: str, import_key: str, slugs: Sequence[str]) -> pa.Table:
        """All rows of these imports in one table, with all its columns; DuckDB's by their names in lower case."""
        parts = [
            self.query(
                f"SELECT * FROM {self.name(table)} WHERE {self.column(import_key)} IN "
                f"({', '.join(['%s'] * len(some))})",
                *some,
            )
            for some in batches(slugs)
        ]
        rows = pa.concat_tables(parts, promote_options="default") if parts else pa.table({})
        return rows if self.is_postgres else rows.rename_columns([_lower(name) for name in rows.column_names])

    def set_type(self, table: str, column: str, kind: str) -> None:
        """Give a column one of our types, and its values with it, on a destination whose types are known."""
        name, made = self.column(column), "TEXT" if self.is_postgres and kind == "json" else _MADE_TYPES.get(kind, kind)
        self.execute(f"ALTER TABLE {self.name(table)} ALTER COLUMN {name} TYPE {made} USING CAST({name} AS {made})")

    def drop_table(self, table: str) -> None:
        self.execute(f"DROP TABLE IF EXISTS {self.name(table)}")


def _marked(sql: str) -> str:
    return sql.replace("%s", "?")


def batches(slugs: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(slugs), SLUGS_PER_QUERY):
        yield slugs[start : start + SLUGS_PER_QUERY]


_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)
_STORED_TYPES = {
    "bigint": "bigint",
    "hugeint": "decimal(38,0)",
    "double": "double",
    "double precision": "double",
    "boolean": "bool",
    "varchar": "text",
    "character varying": "text",
    "text": "text",
    "json": "json",
    "jsonb": "json",
    "date": "date",
    "timestamp with time zone": "timestamp",
}


_MADE_TYPES = {"double": "DOUBLE PRECISION", "bool": "BOOLEAN", "timestamp": "TIMESTAMP WITH TIME ZONE"}


def _lower(name: str) -> str:
    """As DuckDB compares names: of letters beyond ASCII the case counts."""
    return name.translate(_LOWER)


def _type_of(declared: str, precision: int | None, scale: int | None) -> str:
    """The destination's name of a type → ours; one we never write stays as it is and its column is avoided."""
    name = declared.lower()
    if name.startswith(("decimal", "numeric")):
        return f"decimal({precision},{scale})"
    return _STORED_TYPES.get(name, name)
