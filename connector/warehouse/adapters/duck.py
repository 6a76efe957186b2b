"""Adapt DuckDB."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, cast

import pyarrow as pa

from connector.errors import ConfigError
from connector.warehouse.adapters.base import Adapter, Client, Traits, lower
from connector.warehouse.adapters.dialect import DuckSql, Sql

_POSITION = "rowid"  # DuckDB's name of the position of a row


class Duck(Adapter):
    """A DuckDB file. One process at a time can open it, and DuckDB reads Arrow tables in memory without a copy."""

    traits: ClassVar[Traits] = Traits(
        dialect="duckdb",
        ignores_case=True,
        keeps_nul=True,
        keeps_json=True,
        knows_types=True,
        finds_slugs=True,
        hashes_slugs=True,
        positions=True,
        views=True,
        functions=True,
        history=True,
        temporary="temp.main",
    )
    sql: ClassVar[Sql] = DuckSql()

    def check(self, client: Client) -> None:
        """Raise ConfigError if the connection compares texts by a collation, under which `a` and `A` may be equal."""
        [row] = self.fetch(client, "SELECT current_setting('default_collation') AS name", [])
        if row["name"]:
            raise ConfigError(
                f"The connection to DuckDB has the default_collation {row['name']}, under which two different keys can "
                "be equal; remove it from the settings of the connection (global_config, local_config or pragmas)."
            )

    def ask(self, client: Client, sql: str, args: Sequence[Any]) -> pa.Table:
        # dlt's own conversion to Arrow calls a method that DuckDB 2 no longer has
        native: Any = client.native_connection
        relation = native.sql(sql.replace("%s", "?"), params=args)
        return cast("pa.Table", relation.to_arrow_table())

    def fetch(self, client: Client, sql: str, args: Sequence[Any]) -> list[dict[str, Any]]:
        native: Any = client.native_connection
        cursor = native.execute(sql.replace("%s", "?"), args)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    # The catalog behind the standard's views, which take several times as long to query.

    def _columns_catalog(self) -> str:
        return "duckdb_columns() WHERE database_name = current_database() AND schema_name = %s"

    def type_of(self, declared: str, precision: int | None, scale: int | None) -> str:
        kind = super().type_of(declared, precision, scale)
        return "timestamp without time zone" if declared == "TIMESTAMP" else kind

    def declared(self, client: Client, table: str) -> dict[str, str]:
        sql = f"SELECT column_name AS name, data_type AS kind FROM {self._columns_catalog()} AND table_name = %s"
        rows = self.fetch(client, sql, [client.dataset_name, table])
        return {lower(row["name"]): row["kind"] for row in rows}

    def _names_sql(self, client: Client) -> str:  # noqa: ARG002
        here = "WHERE database_name = current_database() AND schema_name = %s"
        tables = self._select_names("table_name", "'BASE TABLE'", f"duckdb_tables() {here}")
        views = self._select_names("view_name", "'VIEW'", f"duckdb_views() {here}")
        return f"{tables} UNION ALL {views}"

    def rows_with_keys(self, client: Client, table: str, alias: str, key: str, keys: str) -> str:
        """Find the positions first, because DuckDB then reads the other columns only there.

        A column of the name of the positions hides them.
        """
        if not self.traits.positions or _POSITION in self.declared(client, table):
            return super().rows_with_keys(client, table, alias, key, keys)
        name = client.make_qualified_table_name(table)
        positions = f"SELECT {_POSITION} FROM {name} WHERE {key} IN ({keys})"
        return f"(SELECT * FROM {name} WHERE {_POSITION} IN ({positions})) AS {alias}"

    def _attached_sql(self, client: Client) -> str:  # noqa: ARG002
        here = "WHERE database_name = current_database() AND schema_name = %s AND table_name = %s"
        return f"SELECT 'index' AS kind, index_name AS name FROM duckdb_indexes() {here}"

    @contextmanager
    def relations(self, client: Client, slugs: Mapping[str, pa.ChunkedArray[Any]]) -> Iterator[None]:
        native: Any = client.native_connection
        for name, values in slugs.items():
            native.register(name, pa.table({"slug": values}))
        try:
            yield
        finally:
            for name in slugs:
                native.unregister(name)
