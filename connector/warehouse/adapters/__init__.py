"""Choose the adapter of a pipeline's destination, by its family.

base       the common parts of all families, and `Traits`: the abilities of each, as data
dialect    pieces of SQL that families write differently
duck       DuckDB
ducklake   DuckLake
lakes      tables in files: Delta tables and plain Parquet; `lake` executes SQL on them, `delta_log` or `parquet_log`
           has the log of them
postgres   PostgreSQL
alchemy    the common parts of SQLite and MySQL
sqlite     SQLite
mysql      MySQL, MariaDB

`ducklake_destination`, `delta_destination`, `parquet_destination`, `sqlite_destination` and `mysql_destination` are
dlt's destinations for these, imported only when they are used.
"""

from __future__ import annotations

from collections.abc import Mapping

from dlt.pipeline.pipeline import Pipeline

from connector.warehouse.adapters.base import Adapter, Catalog, Traits
from connector.warehouse.adapters.dialect import Sql
from connector.warehouse.adapters.duck import Duck
from connector.warehouse.adapters.ducklake import DuckLake
from connector.warehouse.adapters.lakes import TablesInFiles
from connector.warehouse.adapters.mysql import MySql
from connector.warehouse.adapters.postgres import Postgres
from connector.warehouse.adapters.sqlite import Sqlite
from connector.warehouse.destination import destination_type

__all__ = ["Adapter", "Catalog", "Sql", "Traits", "adapter_of"]

_FAMILIES: Mapping[str, type[Adapter]] = {
    "duckdb": Duck,
    "ducklake": DuckLake,
    "delta": TablesInFiles,
    "parquet": TablesInFiles,
    "postgres": Postgres,
    "sqlite": Sqlite,
    "mysql": MySql,
}


def adapter_of(pipeline: Pipeline) -> Adapter:
    """Return the adapter of the pipeline's destination; for an unsupported one, the adapter of standard SQL."""
    return _FAMILIES.get(destination_type(pipeline), Adapter)()
