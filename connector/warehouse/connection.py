"""Connect to the dataset of a pipeline, and query it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import duckdb
import pyarrow as pa
from dlt.destinations.sql_client import SqlClientBase
from dlt.pipeline.pipeline import Pipeline

from connector.warehouse.adapters import Adapter, Catalog, Sql, Traits, adapter_of
from connector.warehouse.destination import (
    destination_name,
    destination_type,
    duckdb_file,
    local_file,
    open_client,
)
from connector.warehouse.left_spill import remove_left_spill
from connector.warehouse.memory_limit import MemoryLimit
from connector.warehouse.suitability import check_supported, check_writable
from connector.warehouse.tables import LEDGER, RECORDS, RUNS

LOADS = "_dlt_loads"
VERSIONS = "_dlt_version"
OF_ANY_LOAD = frozenset({LEDGER, RUNS, RECORDS})  # one of these is in every dataset that a run has loaded into
SLUGS_PER_QUERY = 500
R = TypeVar("R")


class Warehouse:
    """The dataset of one pipeline; `connect` opens it. Creating an instance changes nothing."""

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
    def adapter(self) -> Adapter:
        return adapter_of(self._pipeline)

    @property
    def traits(self) -> Traits:
        """Return the abilities of the destination."""
        return self.adapter.traits

    def check_supported(self) -> None:
        """Raise ConfigError for a destination that cannot replace the rows of an import, e.g. plain files."""
        check_supported(self._pipeline)

    def check_writable(self, *, experimental: bool = False) -> None:
        """Raise ConfigError if loading is not possible, or not without loss, e.g. PostgreSQL without ADBC."""
        check_writable(self._pipeline, experimental=experimental)

    def exists(self) -> bool:
        """Return whether a run has loaded into it, without creating a database file."""
        if not self.has_file():
            return False
        with self.connect() as connection:
            return connection.adapter.has_any(connection.client, OF_ANY_LOAD)

    def has_file(self) -> bool:
        """Return False if connecting would create the database file."""
        file = local_file(self._pipeline)
        return file is None or file.exists()

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """Yield a connection for several calls: the held one, if there is one.

        Times from PostgreSQL are in UTC.
        """
        if self._held is not None:
            yield self._held
            return
        with open_client(self._pipeline) as client:
            yield Connection(client, self.adapter)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep one connection open: DuckDB rewrites its file whenever the last one closes, which dlt does often.

        dlt's threshold of a gigabyte of log for a checkpoint (`DuckDbSqlClient._global_config`) is kept: if a load job
        has just run out of memory, a checkpoint in the commit of another one makes DuckDB 2.0 unusable.
        """
        with self._holding:
            self._open(limited_memory=self.destination_type == "duckdb")
            if self._held is not None and (file := duckdb_file(self._pipeline)) is not None:
                remove_left_spill(file, self._held.client.native_connection)
            yield

    @property
    def memory_limit(self) -> MemoryLimit | None:
        """Return the memory limit of the held connection, if it has one."""
        return None if self._held is None else self._held.memory_limit

    def remove_memory_limit(self) -> bool:
        """Reopen the held connection without a memory limit; return False if it had none.

        DuckDB is not reliable after it ran out of memory.
        """
        if self.memory_limit is None or not self.memory_limit.remove():
            return False
        self._holding.close()
        self._open(limited_memory=False)
        return True

    def _open(self, *, limited_memory: bool) -> None:
        connection = self._holding.enter_context(self.connect())
        self._holding.callback(setattr, self, "_held", None)
        memory_limit = MemoryLimit(connection.client.native_connection) if limited_memory else None
        if memory_limit is not None:
            self._holding.callback(memory_limit.end)
        self._held = replace(connection, memory_limit=memory_limit)


@dataclass(frozen=True, slots=True)
class Connection:
    """An open connection to the dataset: dlt's client with the queries on its tables."""

    client: SqlClientBase[Any]
    adapter: Adapter
    memory_limit: MemoryLimit | None = None

    @property
    def traits(self) -> Traits:
        return self.adapter.traits

    @property
    def sql(self) -> Sql:
        """Return the dialect of the destination."""
        return self.adapter.sql

    def name(self, table: str) -> str:
        return self.client.make_qualified_table_name(table)

    def column(self, name: str) -> str:
        return self.client.escape_column_name(name)

    def completed_loads(self, tables: Collection[str] | None = None) -> str:
        """Return SQL for the ids of the loads that dlt completed (`_dlt_loads.status = 0`), each once.

        `tables` are those of the dataset, if the caller knows them.
        """
        if LOADS not in (self.names()[0] if tables is None else tables):
            return "(SELECT load_id FROM (SELECT '' AS load_id) AS no_load WHERE 1 = 0)"
        return f"(SELECT DISTINCT load_id FROM {self.name(LOADS)} WHERE status = 0)"

    def limited_memory(self, *, columns: int, slugs: int) -> AbstractContextManager[None]:
        """Limit memory for queries that read so many columns of a whole table and look up so many slugs.

        See `MemoryLimit.for_query`; on destinations other than DuckDB nothing changes.
        """
        return nullcontext() if self.memory_limit is None else self.memory_limit.for_query(columns, slugs)

    def query(self, sql: str, *args: Any) -> pa.Table:
        """Return the rows of a SELECT."""
        return self._ask(lambda: self.adapter.ask(self.client, sql, args))

    def rows(self, sql: str, *args: Any) -> list[dict[str, Any]]:
        """Return the rows of a SELECT that returns few.

        For an Arrow table, DuckDB would plan the query twice, which takes longer than running it.
        """
        return self._ask(lambda: self.adapter.fetch(self.client, sql, args))

    def _ask(self, ask: Callable[[], R]) -> R:
        """Return the result of `ask`, with more memory if DuckDB had too little."""
        try:
            return ask()
        except duckdb.OutOfMemoryException:
            if self.memory_limit is None or not self.memory_limit.remove():
                raise
            return self._ask(ask)

    def rows_in(self, table: str, sql: str, *args: Any) -> pa.Table:
        """Return rows of one table, with the types that its columns have."""
        return self._ask(lambda: self.adapter.ask_rows(self.client, table, sql, args))

    def execute(self, sql: str, *args: Any) -> None:
        self.adapter.run(self.client, sql, args)

    def pack_raw_rows(self) -> None:
        """Make DuckDB compress `data` with zstd, which makes its file a third smaller and writing faster.

        A column's compression is set when its table is created, so an empty table is created again as dlt created it.
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
        except duckdb.BinderException:  # a file in the format of an older DuckDB, which has no zstd
            native.rollback()
        except BaseException:
            native.rollback()
            raise

    def columns(self) -> dict[str, dict[str, str]]:
        """Return table → column → type, as `connector.transform.schema.parse_type` reads it if it can."""
        return self.adapter.columns(self.client)

    def ordered_columns(self) -> dict[str, dict[str, str]]:
        """Return table → column → type in the destination's words, in their order."""
        return self.adapter.ordered_columns(self.client)

    def may_write(self, table: str | None) -> bool:
        """Return whether the role may add rows to a table, or create tables in the dataset if that is None."""
        return self.adapter.may_write(self.client, table)

    def declared(self, table: str) -> dict[str, str]:
        """Return column → its type as the destination writes it in a definition."""
        return self.adapter.declared(self.client, table)

    def counted_columns(self, table: str) -> int:
        """Return the number of columns that count towards the destination's limit for a table."""
        return self.adapter.counted_columns(self.client, table)

    def catalog(self) -> Catalog:
        """Return all tables and views with their columns, in one query."""
        return self.adapter.catalog(self.client)

    def names(self) -> tuple[set[str], set[str]]:
        """Return the names of all tables, without views, and all names that no new table may have."""
        return self.adapter.names(self.client)

    def add_column(self, table: str, column: str, kind: str = "text") -> None:
        """Add a column of one of our types to a table, if it has none of that name."""
        self.adapter.add_column(self.client, table, column, kind)

    def make_like(self, table: str, like: str, columns: Sequence[str], more: Mapping[str, str]) -> None:
        """Create an empty table with columns of another one, and `more` of our types."""
        self.adapter.make_like(self.client, table, like, columns, more)

    def gather(self, name: str, *selects: str) -> None:
        """Create a temporary table of all rows of SELECTs of one column, `k`; none reads a temporary table twice."""
        self.adapter.gather(self.client, name, selects)
        if self.traits.counts_rows:
            self.execute(f"ANALYZE {name}")

    def update_statistics(self, tables: Sequence[str]) -> None:
        """Make PostgreSQL update its row counts of these tables now, because it plans queries by them."""
        for table in tables if self.traits.counts_rows else ():
            self.execute(f"ANALYZE {self.name(table)}")

    def empty(self, tables: Sequence[str]) -> None:
        """Delete all rows of these tables."""
        if tables:
            self.adapter.empty(self.client, tables)

    def rows_with_keys(self, table: str, alias: str, key: str, keys: str) -> str:
        """Return a FROM clause: rows, called `alias`, whose `key` is in the column `slug` of the SELECT `keys`."""
        return self.adapter.rows_with_keys(self.client, table, alias, key, keys)

    @contextmanager
    def relations(self, slugs: Mapping[str, pa.ChunkedArray[Any]]) -> Iterator[None]:
        """Make each array a relation of that name with one column, `slug`, for the queries within."""
        with self.adapter.relations(self.client, slugs):
            yield

    def insert(self, table: str, names: Sequence[str], row: Mapping[str, Any]) -> None:
        columns = ", ".join(self.column(name) for name in names)
        sql = f"INSERT INTO {self.name(table)} ({columns}) VALUES ({marks(names)})"
        self.execute(sql, *[row[name] for name in names])

    def rows_of(self, table: str, import_key: str, slugs: Sequence[str], *, without: Collection[str] = ()) -> pa.Table:
        """Return all rows of these imports in one table; in DuckDB under names in lower case.

        They have all columns but those `without`.
        """
        columns = "*"
        if without:
            columns = ", ".join(self.column(each) for each in self.columns()[table] if each not in without)
        parts = [self._rows_of(table, columns, import_key, some) for some in batches(slugs)]
        return pa.concat_tables(parts, promote_options="default") if parts else pa.table({})

    def _rows_of(self, table: str, columns: str, import_key: str, slugs: Sequence[str]) -> pa.Table:
        sql = f"SELECT {columns} FROM {self.name(table)} WHERE {self.column(import_key)} IN ({marks(slugs)})"
        return self.rows_in(table, sql, *slugs)

    def set_type(self, table: str, column: str, kind: str) -> None:
        """Change a column, with its values, to one of our types, on a destination whose catalog shows types."""
        self.adapter.set_type(self.client, table, column, kind)

    def attached(self, table: str) -> list[str]:
        """Return, in words, what others attached to a table and lose if it is replaced, such as triggers."""
        return self.adapter.attached(self.client, table)

    def drop_table(self, table: str) -> None:
        self.execute(f"DROP TABLE IF EXISTS {self.name(table)}")


def marks(values: Collection[object]) -> str:
    """Return the parameters of a statement for these values, with commas between them."""
    return ", ".join(["%s"] * len(values))


def batches(slugs: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(slugs), SLUGS_PER_QUERY):
        yield slugs[start : start + SLUGS_PER_QUERY]
