"""Define dlt's destinations of tables in files: its `duckdb`, with a `lake.Lake` as the database."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import duckdb
from dlt.common.configuration import configspec
from dlt.common.destination import DestinationCapabilitiesContext
from dlt.common.destination.dataset import DBApiCursor
from dlt.destinations.impl.duckdb.configuration import DuckDbClientConfiguration, DuckDbCredentials
from dlt.destinations.impl.duckdb.duck import DuckDbClient
from dlt.destinations.impl.duckdb.factory import duckdb as dlts_duckdb
from dlt.destinations.impl.duckdb.sql_client import DuckDbSqlClient
from dlt.destinations.sql_client import raise_database_error, raise_open_connection_error
from dlt.destinations.typing import DBTransaction

from connector.warehouse.adapters.lake import Lake, Transaction
from connector.warehouse.adapters.lake_log import Log

_READS = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN, duckdb.StatementType.SET)


@configspec(init=False)
class _Configuration(DuckDbClientConfiguration):
    def make_location(self, configured_location: str, default_location_pat: str) -> str:
        """Return the place unchanged if it is not on this machine; dlt would take it for a relative path."""
        if "://" in configured_location:
            return configured_location
        return str(super().make_location(configured_location, default_location_pat))


class LakeDestination(dlts_duckdb):
    """A destination; `place` is the folder above its datasets, or an address."""

    spec = _Configuration

    def __init__(self, place: str | None = None, **kwargs: Any) -> None:
        if place is not None:
            credentials = DuckDbCredentials()
            credentials.database = place
            kwargs["credentials"] = credentials
        self.lakes: dict[tuple[str, str], Lake] = {}
        super().__init__(**kwargs)

    @abstractmethod
    def log_at(self, place: str, dataset: str) -> Log:
        """Return the log of a dataset."""

    @property
    def client_class(self) -> type[DuckDbClient]:
        return _JobClient

    def client(self, schema: Any, initial_config: Any = None) -> Any:
        """Return a client; all clients of this destination share the state of a dataset."""
        client: Any = super().client(schema, initial_config)
        client.sql_client.lake = self.lake_at(str(client.config.credentials.database), client.sql_client.dataset_name)
        return client

    def lake_at(self, place: str, dataset: str) -> Lake:
        """Return the lake that all clients of a dataset share."""
        if (place, dataset) not in self.lakes:
            self.lakes[place, dataset] = Lake(self.log_at(place, dataset), dataset)
        return self.lakes[place, dataset]

    @classmethod
    def adjust_capabilities(cls, caps: Any, config: Any, naming: Any) -> DestinationCapabilitiesContext:
        able: DestinationCapabilitiesContext = super().adjust_capabilities(caps, config, naming)
        able.supports_multiple_statements = False
        return able


class _JobClient(DuckDbClient):
    def __init__(self, schema: Any, config: Any, capabilities: Any) -> None:
        super().__init__(schema, config, capabilities)
        told = self.sql_client
        self.sql_client = LakeClient(told.dataset_name, told.staging_dataset_name, config.credentials, capabilities)


class LakeClient(DuckDbSqlClient):
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
