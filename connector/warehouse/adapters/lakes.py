"""Adapt tables in files, Delta tables and plain Parquet, which DuckDB reads and writes here (`lake`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from connector.warehouse.adapters.base import Client, Traits
from connector.warehouse.adapters.duck import Duck

_OWN = (
    "database_name = current_database() AND regexp_replace(schema_name, '[$]importer$', '') = %s "
    "AND (schema_name, table_name) IN (SELECT (schema_name, table_name) FROM duckdb_tables())"
)


class TablesInFiles(Duck):
    """Like DuckDB, without views and functions, because files have no place for them."""

    traits: ClassVar[Traits] = replace(Duck.traits, positions=False, views=False, functions=False)

    # In the schema of the dataset all tables are views; the schema with their rows has their types. Staging tables are
    # in their own schema, as in DuckDB.

    def _columns_catalog(self) -> str:
        return f"duckdb_columns() WHERE {_OWN}"

    def ordered_columns(self, client: Client) -> dict[str, dict[str, str]]:
        sql = f"SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE {_OWN} "
        found: dict[str, dict[str, str]] = defaultdict(dict)
        for row in self.fetch(client, f"{sql} ORDER BY table_name, column_index", [client.dataset_name]):
            found[row["table_name"]][row["column_name"]] = str(row["data_type"]).lower()
        return dict(found)

    def _names_sql(self, client: Client) -> str:
        tables = self._select_names("table_name", "'BASE TABLE'", f"duckdb_tables() WHERE {_OWN}")
        return f"{tables} UNION ALL {super()._names_sql(client)}"

    def empty(self, client: Client, tables: Sequence[str]) -> None:
        for table in tables:
            client.execute_sql(f"TRUNCATE TABLE {client.make_qualified_table_name(table)}")
