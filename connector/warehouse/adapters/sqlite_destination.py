"""Use dlt's destination `sqlalchemy` for SQLite, with the file of each dataset where `destination.file_of` says.

dlt attaches the file of a dataset after it created it. Here each connection has the files of the dataset and of its
staging from the beginning, in the mode in which others can read while a run writes (WAL).
"""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from dlt.common.destination import DestinationCapabilitiesContext
from dlt.common.destination.typing import PreparedTableSchema
from dlt.common.schema.typing import TColumnSchema
from dlt.destinations.impl.sqlalchemy.db_api_client import SqlalchemyClient
from dlt.destinations.impl.sqlalchemy.factory import sqlalchemy
from dlt.destinations.impl.sqlalchemy.sqlalchemy_job_client import SqlalchemyJobClient
from dlt.destinations.impl.sqlalchemy.type_mapper import SqlalchemyTypeMapper
from dlt.destinations.sql_client import SqlClientBase
from sqlalchemy.pool import NullPool
from sqlalchemy.types import UserDefinedType

from connector.warehouse.adapters.dialect import quoted
from connector.warehouse.adapters.sqlite import DECIMAL
from connector.warehouse.destination import file_of

BUSY_S = 60.0


class _Decimal(UserDefinedType[Any]):
    """A decimal stored as text, because SQLite would store a double."""

    cache_ok = True

    def __init__(self, precision: int, scale: int) -> None:
        self.precision, self.scale = precision, scale

    def get_col_spec(self, **_: Any) -> str:
        return f"{DECIMAL}({self.precision},{self.scale})"

    def bind_processor(self, dialect: sa.Dialect) -> Any:  # noqa: ARG002
        return lambda value: None if value is None else format(value, "f")


class _Types(SqlalchemyTypeMapper):
    def db_type_from_json_type(self, column: TColumnSchema, table: PreparedTableSchema) -> Any:  # noqa: ARG002
        return sa.Text()  # a column declared as JSON would convert texts that look like numbers

    def db_type_from_decimal_type(self, column: TColumnSchema, table: PreparedTableSchema) -> Any:  # noqa: ARG002
        precision, default = self.capabilities.decimal_precision
        scale = column.get("scale")  # a scale of 0 is one, too
        return _Decimal(column.get("precision") or precision, default if scale is None else scale)


class sqlite(sqlalchemy):
    """The destination; its name is in lower case, like dlt's."""

    def __init__(self, path: str | None = None, **kwargs: Any) -> None:
        if path is not None:
            kwargs["credentials"] = _engine(path)
        super().__init__(**{"engine_kwargs": {}, "engine_args": {}, **kwargs})

    @property
    def client_class(self) -> type[SqlalchemyJobClient]:
        return _JobClient

    @classmethod
    def adjust_capabilities(cls, caps: Any, config: Any, naming: Any) -> DestinationCapabilitiesContext:
        able: DestinationCapabilitiesContext = super().adjust_capabilities(caps, config, naming)
        able.type_mapper = _Types
        able.max_parallel_load_jobs = 1  # SQLite has one writer
        return able


class _JobClient(SqlalchemyJobClient):
    def __init__(self, schema: Any, config: Any, capabilities: Any) -> None:
        super().__init__(schema, config, capabilities)
        told = self.sql_client
        self.sql_client = _Client(told.dataset_name, told.staging_dataset_name, config.credentials, capabilities)

    def _create_merge_followup_jobs(self, table_chain: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sa.exc.SAWarning)  # of how dlt writes the order of doubles
            return super()._create_merge_followup_jobs(table_chain)


class _Client(SqlalchemyClient):
    def open_connection(self) -> Any:
        if self._current_connection is None:
            managed: Any = self.credentials.managed_engine
            self._current_connection = managed.borrow_conn()
            for dataset in dict.fromkeys((self._main_dataset_name, self.staging_dataset_name, self.dataset_name)):
                self._attach(dataset)
        return self._current_connection

    def close_connection(self) -> None:
        connection, self._current_connection = self._current_connection, None
        self._current_transaction = None
        if connection is not None:
            managed: Any = self.credentials.managed_engine
            managed.return_conn(connection)

    @property
    def _native(self) -> sqlite3.Connection:
        untyped: Any = self._current_connection
        native: sqlite3.Connection = untyped.connection.driver_connection
        return native

    def _attach(self, dataset: str) -> None:
        native = self._native
        name = quoted(dataset)
        if dataset not in {row[1] for row in native.execute("PRAGMA database_list")}:
            native.execute(f"ATTACH DATABASE ? AS {name}", [str(self._file(dataset))])
            native.execute(f"PRAGMA {name}.journal_mode = WAL")
            native.execute(f"PRAGMA {name}.synchronous = NORMAL")
            native.execute(f"PRAGMA {name}.secure_delete = ON")

    def _file(self, dataset: str) -> Path:
        file = file_of(str(self.database_name), self._main_dataset_name)
        return file if dataset == self._main_dataset_name else file.with_name(f".{file.name}.{dataset}")

    @contextmanager
    def with_alternative_dataset_name(self, dataset_name: str) -> Iterator[SqlClientBase[Any]]:
        with SqlClientBase.with_alternative_dataset_name(self, dataset_name):
            if self._current_connection is not None:
                self._attach(dataset_name)
            yield self

    def has_dataset(self) -> bool:
        name = self.dialect.identifier_preparer.quote_identifier(self.dataset_name)
        return bool(self.execute_sql(f"SELECT 1 FROM {name}.sqlite_master LIMIT 1"))

    def create_dataset(self) -> None:
        """Do nothing, because the file exists as soon as a client connects."""

    def drop_dataset(self) -> None:
        name = self.dialect.identifier_preparer.quote_identifier(self.dataset_name)
        self._native.execute(f"DETACH DATABASE {name}")
        file = self._file(self.dataset_name)
        for ending in ("", "-wal", "-shm"):
            file.with_name(file.name + ending).unlink(missing_ok=True)


def _engine(path: str) -> sa.Engine:
    """Return an engine whose connections have an in-memory database of their own, beside the attached ones."""

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(":memory:", timeout=BUSY_S, isolation_level=None, check_same_thread=False)

    engine = sa.create_engine(sa.URL.create("sqlite", database=path), creator=connect, poolclass=NullPool)

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN")  # the driver begins a transaction only before some statements

    return engine
