"""Define dlt's destination of Delta tables: its `duckdb`, with a `delta_lake.Lake` as the database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
from dlt.common.destination import DestinationCapabilitiesContext
from dlt.common.destination.dataset import DBApiCursor
from dlt.destinations.impl.duckdb.duck import DuckDbClient
from dlt.destinations.impl.duckdb.factory import duckdb as dlts_duckdb
from dlt.destinations.impl.duckdb.sql_client import DuckDbSqlClient
from dlt.destinations.sql_client import raise_database_error, raise_open_connection_error
from dlt.destinations.typing import DBTransaction

from connector.warehouse.adapters.delta_lake import Lake, Transaction

_READS = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN, duckdb.StatementType.SET)


class delta(dlts_duckdb):
    """The destination; its name is in lower case, like dlt's."""

    def __init__(self, folder: str | None = None, **kwargs: Any) -> None:
        if folder is not None:
            kwargs["credentials"] = folder
        self.lakes: dict[tuple[str, str], Lake] = {}
        super().__init__(**kwargs)

    @property
    def client_class(self) -> type[DuckDbClient]:
        return _JobClient

    def client(self, schema: Any, initial_config: Any = None) -> Any:
        """Return a client; all clients of this destination share the state of a dataset."""
        client: Any = super().client(schema, initial_config)
        name, folder = client.sql_client.dataset_name, str(client.config.credentials.database)
        if (folder, name) not in self.lakes:
            self.lakes[folder, name] = Lake(Path(folder), name)
        client.sql_client.lake = self.lakes[folder, name]
        return client

    @classmethod
    def adjust_capabilities(cls, caps: Any, config: Any, naming: Any) -> DestinationCapabilitiesContext:
        able: DestinationCapabilitiesContext = super().adjust_capabilities(caps, config, naming)
        able.supports_multiple_statements = False
        return able


class _JobClient(DuckDbClient):
    def __init__(self, schema: Any, config: Any, capabilities: Any) -> None:
        super().__init__(schema, config, capabilities)
        told = self.sql_client
        self.sql_client = DeltaClient(told.dataset_name, told.staging_dataset_name, config.credentials, capabilities)


class DeltaClient(DuckDbSqlClient):
    """A client whose statements on the tables of its dataset are executed by the lake."""

    lake: Lake
    _transaction: Transaction | None = None

    @raise_open_connection_error
    def open_connection(self) -> duckdb.DuckDBPyConnection:
        self._conn = self.lake.connect()
        return self._conn

    def close_connection(self) -> None:
        untyped: Any = self  # dlt has no type for a client without a connection
        connection, untyped._conn = self._conn, None
        if connection is not None:
            self.lake.close(connection)

    @contextmanager
    @raise_database_error
    def begin_transaction(self) -> Iterator[DBTransaction]:
        with self.lake.transaction(self._conn) as self._transaction:
            try:
                yield self
            finally:
                self._transaction = None

    @contextmanager
    @raise_database_error
    def execute_query(self, query: Any, *args: Any, **_: Any) -> Iterator[DBApiCursor]:
        sql = query.replace("%s", "?") if args else query
        for statement in duckdb.extract_statements(sql):
            if statement.type in _READS:
                yield self._cursor(sql, args)
                return
            self._change(statement.query, args)
        yield self._cursor("SELECT 1 WHERE 1 = 0")

    def _cursor(self, sql: str, args: Sequence[Any] = ()) -> DBApiCursor:
        native: Any = self._conn.execute(sql, args or None)
        return self.cursor_impl(native)

    def _change(self, sql: str, args: Sequence[Any]) -> None:
        if self.lake.execute(sql):
            return
        if self._transaction is not None:
            self._transaction.execute(sql, args)
            return
        with self.lake.transaction(self._conn) as transaction:
            transaction.execute(sql, args)
