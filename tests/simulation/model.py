"""Model a dlt pipeline for the connector on a real DuckDB in memory, in a twentieth of dlt's time.

The model keeps everything that matters for losing rows: a package is extracted as a whole; then its tables are
migrated, staged and merged one by one in arbitrary order, each merge in a separate transaction; only then is it marked
as complete in `_dlt_loads`. Between any two of these steps the process may die. Its SQL is dlt's (delete-insert with a
primary key and, if given, a scope and a filter; or arriving rows are appended, batch by batch). test_model.py tests the
model against dlt.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import dlt
import duckdb
import pyarrow as pa
from dlt.destinations.impl.duckdb.sql_client import DuckDbSqlClient
from dlt.pipeline.pipeline import Pipeline

from connector.load.table_rows import TableRows, hints
from tests.simulation.kill_switch import KillSwitch

Ways = Mapping[str, Mapping[str, Any]]
PIPELINE, DATASET = "importer", "importer_data"
LOADS, VERSIONS = "_dlt_loads", "_dlt_version"
LAYOUT = "%s_staging"  # set by dlt itself
_FIXED_TYPES = {
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.string(): "VARCHAR",
    pa.date32(): "DATE",
    pa.timestamp("us", tz="UTC"): "TIMESTAMP WITH TIME ZONE",
}


def real_pipeline(connection: duckdb.DuckDBPyConnection, folder: Path) -> Pipeline:
    return dlt.pipeline(
        PIPELINE,
        destination=dlt.destinations.duckdb(connection),
        dataset_name=DATASET,
        pipelines_dir=str(folder / "pipelines"),
    )


class ModelSqlClient(DuckDbSqlClient):
    """dlt's client on one connection that stays open; every statement is a step of the kill switch."""

    kill_switch: KillSwitch

    def execute_query(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        self.kill_switch.step("sql", " ".join(str(query).split()[:2]))
        return super().execute_query(query, *args, **kwargs)


_DUCKDB = dlt.destinations.duckdb()


class _Destination:
    """The parts of a pipeline's destination that the connector uses."""

    destination_name = "duckdb"
    destination_type = "dlt.destinations.duckdb"
    client_class = _DUCKDB.client_class
    capabilities = staticmethod(cache(_DUCKDB.capabilities))
    caps_params = _DUCKDB.caps_params

    def __init__(self) -> None:
        self.config_params: dict[str, Any] = {}


class ModelPipeline:
    """The pipeline of one process: created for each run, on the state that the last one left."""

    pipeline_name, dataset_name, staging = PIPELINE, DATASET, None
    config = SimpleNamespace(restore_from_destination=True, use_single_dataset=True)

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        folder: Path,
        kill_switch: KillSwitch,
        dice: Random,
        packages: dict[str, list[TableRows]],
        clock: Callable[[], datetime],
    ) -> None:
        self.pipelines_dir = str(folder / "pipelines")
        self.working_dir = str(folder / "pipelines" / PIPELINE)
        self._pending = Path(self.working_dir) / "load" / "normalized" / "pending"
        self._connection = connection
        self._kill_switch = kill_switch
        self._dice = dice
        self._packages = packages
        self._clock = clock
        self.destination = _Destination()
        self._client = ModelSqlClient(DATASET, self._staging, *_credentials_and_capabilities())
        self._client._conn = connection
        self._client.kill_switch = kill_switch

    @property
    def _staging(self) -> str:
        layout: str = self.destination.config_params.get("staging_dataset_name_layout", LAYOUT)
        return layout % DATASET

    @property
    def has_pending_data(self) -> bool:
        return self._pending.exists()

    def drop(self) -> Any:
        if self.has_pending_data:
            self._kill_switch.step("file", "drop the working directory")
        shutil.rmtree(self.working_dir, ignore_errors=True)
        Path(self.working_dir).mkdir(parents=True)
        return self

    @contextmanager
    def managed_state(self) -> Iterator[None]:
        yield

    @contextmanager
    def sql_client(self) -> Iterator[ModelSqlClient]:
        self._kill_switch.step("sql", "connect")
        self._client.staging_dataset_name = self._staging
        yield self._client

    def destination_client(self) -> type[_Client]:
        return _Client

    def load(self, tables: Callable[[str], Iterator[TableRows]], dispositions: Callable[[], Ways]) -> str | None:
        """Act like `pipeline.run()`: if there is a pending package, finish it and do nothing else, as dlt does."""
        if self.has_pending_data:
            load_id = self._pending.read_text()
            found: Ways = {}
        else:
            load_id = f"{self._clock().timestamp() + len(self._packages) / 1e6:.6f}"
            self._packages[load_id] = []
            self._packages[load_id] = list(tables(load_id))
            found = dispositions()
            if not self._packages[load_id]:
                return None
            self._kill_switch.step("file", "extract")
            self._pending.parent.mkdir(parents=True, exist_ok=True)
            self._pending.write_text(load_id)
        self._kill_switch.step("file", "normalize")
        try:
            self._load_package(load_id, self._packages[load_id], found)
        except Exception:
            with suppress(duckdb.Error):
                self._connection.execute("ROLLBACK")
            raise
        self._pending.unlink(missing_ok=True)
        self._kill_switch.step("file", "package done")
        return load_id

    def _load_package(self, load_id: str, parts: list[TableRows], dispositions: Ways) -> None:
        names = list(dict.fromkeys(part.table for part in parts))
        self._migrate({name: [e for e in parts if e.table == name] for name in names})
        self._dice.shuffle(names)
        for name in names:
            some, way = [e for e in parts if e.table == name], dispositions.get(name, {})
            if way.get("write_disposition") == "append":
                self._append(name, some)
            else:
                distinct = bool(way.get("x-stage-data-deduplicated")) or _are_distinct(some)
                self._merge(name, some, distinct=distinct)
        self._complete(load_id)

    def _sql(self, sql: str, *args: Any) -> None:
        self._kill_switch.step("sql", " ".join(sql.split()[:2]))
        self._connection.execute(sql, args)

    def _migrate(self, parts: dict[str, list[TableRows]]) -> None:
        """Migrate all tables in one transaction, as dlt does with transactional DDL; then those of the staging dataset.

        The schema is stored with them, and tables are not compared with a schema that is already stored.
        """
        self._sql(f"CREATE SCHEMA IF NOT EXISTS {DATASET}")
        known, schema = self._stored_schemas()
        required: dict[str, set[str]] = {}
        for name, some in parts.items():
            required[name] = {f.name for e in some for f in e.rows.schema if not f.nullable}
            table = schema.setdefault(name, {"columns": {}})
            for column, kind in _columns(some).items():
                known = table["columns"].setdefault(column, {"data_type": kind})["data_type"]
                if known != kind:
                    raise TypeError(f"{name}.{column} is {known} and would become {kind}")
            table.update(hints(some[-1]).get("additional_table_hints") or {})
        content = json.dumps({"tables": schema}, sort_keys=True)
        version = sha256(content.encode()).hexdigest()
        if version not in known:
            there = self._stored()
            self._sql("BEGIN")
            self._sql(
                f"CREATE TABLE IF NOT EXISTS {DATASET}.{LOADS} (load_id VARCHAR, schema_name VARCHAR, status BIGINT, "
                "inserted_at TIMESTAMP WITH TIME ZONE, schema_version_hash VARCHAR)"
            )
            self._sql(
                f"CREATE TABLE IF NOT EXISTS {DATASET}.{VERSIONS} (n BIGINT, schema_name VARCHAR, version_hash VARCHAR,"
                ' inserted_at TIMESTAMP WITH TIME ZONE, "schema" VARCHAR)'
            )
            for name in parts:
                wanted = {column: made["data_type"] for column, made in schema[name]["columns"].items()}
                self._migrate_table(name, there.get(name, {}), wanted, required[name])
            self._sql(
                f"INSERT INTO {DATASET}.{VERSIONS} SELECT count(*), 'importer', ?, "
                f"TIMESTAMPTZ '2026-01-01 00:00:00+00' + INTERVAL (count(*)) SECOND, ? FROM {DATASET}.{VERSIONS}",
                version,
                content,
            )
            self._commit("the migration")
        self._sql(f"CREATE SCHEMA IF NOT EXISTS {self._staging}")
        self._connection.execute(
            f"CREATE TABLE IF NOT EXISTS {self._staging}.{VERSIONS} AS FROM {DATASET}.{VERSIONS} WITH NO DATA"
        )
        for name, some in parts.items():
            columns = (
                f'"{column}" {kind}{" NOT NULL" if column in required[name] else ""}'
                for column, kind in _columns(some).items()
            )
            self._sql(f"CREATE OR REPLACE TABLE {self._staging}.{name} ({', '.join(columns)})")

    def _stored_schemas(self) -> tuple[set[str], dict[str, Any]]:
        """Return the hashes of all stored schemas, and the tables of the newest one.

        A process without a working directory starts with the newest schema.
        """
        try:
            [(versions, newest)] = self._connection.execute(
                f'SELECT list(version_hash), arg_max("schema", n) FROM {DATASET}.{VERSIONS}'
            ).fetchall()
        except duckdb.CatalogException:
            return set(), {}
        return set(versions or ()), dict(json.loads(newest)["tables"]) if newest else {}

    def _migrate_table(self, name: str, there: dict[str, str], wanted: dict[str, str], required: set[str]) -> None:
        if not there:
            columns = (f'"{c}" {kind}{" NOT NULL" if c in required else ""}' for c, kind in wanted.items())
            self._sql(f"CREATE TABLE {DATASET}.{name} ({', '.join(columns)})")
        for column, kind in wanted.items():
            if there and column not in there:
                self._sql(f'ALTER TABLE {DATASET}.{name} ADD COLUMN "{column}" {kind}')

    def _commit(self, what: str) -> None:
        self._kill_switch.step("commit", f"before {what}")
        self._connection.execute("COMMIT")
        self._kill_switch.step("commit", f"after {what}")

    def _stored(self) -> dict[str, dict[str, str]]:
        stored: dict[str, dict[str, str]] = {}
        columns = self._connection.execute(
            "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE schema_name = ?", [DATASET]
        )
        for table, column, kind in columns.fetchall():
            stored.setdefault(table, {})[column] = kind
        return stored

    def _append(self, name: str, parts: list[TableRows]) -> None:
        for part in parts:
            self._connection.register("arriving", part.rows)
            self._sql("BEGIN")
            self._sql(f"INSERT INTO {DATASET}.{name} BY NAME SELECT * FROM arriving")
            self._commit(f"appending to {name}")
            self._connection.unregister("arriving")

    def _merge(self, name: str, parts: list[TableRows], *, distinct: bool) -> None:
        table, staging = f"{DATASET}.{name}", f"{self._staging}.{name}"
        for part in parts:
            self._connection.register("arriving", part.rows)
            self._sql(f"INSERT INTO {staging} BY NAME SELECT * FROM arriving")
            self._connection.unregister("arriving")
        how = hints(parts[0])
        keys = ", ".join(f'"{key}"' for key in how["primary_key"])
        scope = how["write_disposition"].get("destination_scope")
        kept = how["write_disposition"].get("source_filter", "TRUE")
        gone = (
            scope.format(table=table, staging_table=staging)
            if scope
            else f"({keys}) IN (SELECT ({keys}) FROM {staging})"
        )
        self._sql("BEGIN")
        self._sql(f"DELETE FROM {table} WHERE {gone}")
        one_of_each = "" if distinct else f"QUALIFY row_number() OVER (PARTITION BY {keys}) = 1"
        self._sql(f"INSERT INTO {table} BY NAME SELECT * FROM (SELECT * FROM {staging} WHERE {kept}) {one_of_each}")
        self._commit(f"the merge of {name}")

    def _complete(self, load_id: str) -> None:
        self._kill_switch.step("commit", "before the load is named complete")
        self._connection.execute(
            f"INSERT INTO {DATASET}.{LOADS} VALUES (?, 'importer', 0, ?, '')", [load_id, self._clock()]
        )
        self._kill_switch.step("commit", "after the load is named complete")


class _Client:
    """The configuration from which the lock and the fingerprint of the destination are derived."""

    class config:
        staging_dataset_name_layout = LAYOUT

        class credentials:
            database = ":memory:"

        @staticmethod
        def data_location() -> str:
            return "model"


def _columns(parts: list[TableRows]) -> dict[str, str]:
    columns: dict[str, str] = {}
    for part in parts:
        for column in part.rows.schema:
            kind = "JSON" if column.name in part.json_columns else _sql_type(column.type)
            if columns.setdefault(column.name, kind) != kind:
                raise TypeError(f"{part.table}.{column.name} is both {columns[column.name]} and {kind}")
    return columns


def _are_distinct(parts: list[TableRows]) -> bool:
    """Return whether no key occurs twice; dropping duplicates makes a merge take a third longer."""
    keys = hints(parts[0])["primary_key"]
    arrived = [key for e in parts for key in zip(*(e.rows.column(name).to_pylist() for name in keys), strict=True)]
    return len(set(arrived)) == len(arrived)


def _sql_type(kind: Any) -> str:
    return f"DECIMAL({kind.precision},{kind.scale})" if pa.types.is_decimal(kind) else _FIXED_TYPES[kind]


@cache
def _credentials_and_capabilities() -> tuple[Any, Any]:
    """Return the object that dlt gives its client; it is only used to build names."""
    connection = duckdb.connect(":memory:")
    factory = dlt.destinations.duckdb(connection)
    config = factory.spec()._bind_dataset_name(DATASET)
    resolved = factory.configuration(config)
    return resolved.credentials, factory.capabilities(resolved)
