"""Use dlt's destination `ducklake` with one DuckDB instance per process and extensions from Python packages.

dlt opens an instance for each connection, loads the extensions into it and attaches the lake, which takes a quarter of
a second each time. Here connections to one lake share an instance, like those to a DuckDB file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb
from dlt.destinations.impl.ducklake.configuration import DuckLakeCredentials
from dlt.destinations.impl.ducklake.ducklake import DuckLakeClient
from dlt.destinations.impl.ducklake.factory import ducklake as dlts_ducklake
from dlt.destinations.impl.ducklake.sql_client import DuckLakeSqlClient
from dlt.destinations.sql_client import raise_open_connection_error

from connector.warehouse.adapters.dialect import literal
from connector.warehouse.left_spill import spill_folder
from connector.warehouse.tables import LEDGER, RUNS

LAKE = "lake"  # the name of the lake in our sessions
SCHEMA = "ducklake"  # dlt's schema for a catalog in a database
# A catalog in PostgreSQL cannot store rows of 8 kB or more; a file for each change of the small tables is too many.
_NOT_INLINED = ", DATA_INLINING_ROW_LIMIT 0"
_INLINED = frozenset({LEDGER, RUNS, "_dlt_loads", "_dlt_pipeline_state"})
_NO_DOWNLOAD = "SET GLOBAL autoinstall_known_extensions = false"
_SCANNERS = {"sqlite": "sqlite_scanner", "postgres": "postgres_scanner", "postgresql": "postgres_scanner"}


class ducklake(dlts_ducklake):
    """The destination, with the name of dlt's."""

    def __init__(self, catalog: str | None = None, data: str = "", schema: str = SCHEMA, **kwargs: Any) -> None:
        if catalog is not None:
            kwargs["credentials"] = DuckLakeCredentials(LAKE, metadata_schema=schema, catalog=catalog, storage=data)
        super().__init__(**kwargs)

    @property
    def client_class(self) -> type[DuckLakeClient]:
        return _JobClient


class _JobClient(DuckLakeClient):
    def __init__(self, schema: Any, config: Any, capabilities: Any) -> None:
        super().__init__(schema, config, capabilities)
        told = self.sql_client
        self.sql_client = _Client(
            told.dataset_name,
            told.staging_dataset_name,
            config.credentials,
            capabilities,
            override_data_path=config.override_data_path,
            automatic_migration=config.automatic_migration,
        )

    def update_stored_schema(self, *args: Any, **kwargs: Any) -> Any:
        """Update the tables, and write small numbers of rows of the small tables into the catalog."""
        updated = super().update_stored_schema(*args, **kwargs)
        lake, dataset = self.config.credentials.ducklake_name, self.sql_client.dataset_name
        for table in sorted(_INLINED & {*(updated or ())}):
            option = f"CALL {lake}.set_option('data_inlining_row_limit', 10, schema => %s, table_name => %s)"
            self.sql_client.execute_sql(option, dataset, table)
        return updated


class _Client(DuckLakeSqlClient):
    @raise_open_connection_error
    def open_connection(self) -> duckdb.DuckDBPyConnection:
        attach, storage = f"{self.attach_statement.removesuffix(')')}{_NOT_INLINED})", self.credentials.storage
        shared = hashlib.blake2b(attach.encode(), digest_size=8).hexdigest()
        self._conn = duckdb.connect(f":memory:lake {shared}", config={"temp_directory": _spill_folder(shared)})
        self._conn.execute("SET TimeZone = 'UTC'")
        for statement in extensions(self.credentials):
            self._conn.execute(statement)
        if not storage.is_local_filesystem:
            self.create_secret(storage.bucket_url, storage.credentials)
        _attach(self._conn, attach, self.credentials)
        self._conn.execute(f"USE {self.capabilities.escape_identifier(self.credentials.ducklake_name)}")
        with suppress(duckdb.Error):  # there is no dataset yet
            self._conn.execute(f"SET search_path = '{self.fully_qualified_dataset_name()}'")
        return self._conn

    def close_connection(self) -> None:
        """Close the connection, and leave the lake attached for others; it is detached with the last one."""
        untyped: Any = self  # dlt has no type for a client without a connection
        connection, untyped._conn = self._conn, None
        if connection is not None:
            connection.close()


@cache
def _spill_folder(_lake: str) -> str:
    """Return the folder of the instance for this lake, which all connections to it have to name."""
    return spill_folder()


def extensions(credentials: DuckLakeCredentials) -> list[str]:
    """Return the statements that load the extensions: those from packages, else those that DuckDB installed."""
    wanted = ["ducklake", *(_SCANNERS[name] for name in [credentials.catalog.drivername] if name in _SCANNERS)]
    return [_NO_DOWNLOAD, *(f"LOAD {_packaged(name) or name}" for name in wanted)]


def _packaged(name: str) -> str | None:
    found = find_spec(f"duckdb_extension_{name}")
    for place in (found.submodule_search_locations or ()) if found else ():
        file = Path(place, "extensions", f"v{duckdb.__version__}", f"{name}.duckdb_extension")
        if file.is_file():
            return literal(str(file))
    return None


@contextmanager
def read_only(credentials: DuckLakeCredentials) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a separate session that can only read the lake, which is its default database."""
    attach = DuckLakeSqlClient.build_attach_statement(
        ducklake_name=LAKE,
        metadata_schema=credentials.metadata_schema or credentials.ducklake_name,
        catalog=credentials.catalog,
        storage_url=credentials.storage_url,
    )
    with duckdb.connect(config={"temp_directory": spill_folder()}) as connection:
        for statement in extensions(credentials):
            connection.execute(statement)
        _attach(connection, f"{attach.removesuffix(')')}, READ_ONLY)", credentials)
        connection.execute(f"USE {LAKE}")
        yield connection


def _attach(connection: duckdb.DuckDBPyConnection, statement: str, credentials: DuckLakeCredentials) -> None:
    """Attach the lake. Errors do not quote the password of its catalog, unlike DuckDB's."""
    refused: duckdb.Error | None = None
    try:
        connection.execute(statement)
    except duckdb.Error as error:
        password = str(credentials.catalog.password or "")
        refused = type(error)(str(error).replace(password, "***")) if password else error
    if refused is not None:
        raise refused
