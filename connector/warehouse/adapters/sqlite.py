"""Adapt SQLite: a dataset is a file, and dlt stages rows in a hidden file beside it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, ClassVar

from connector.warehouse.adapters.alchemy import Alchemy
from connector.warehouse.adapters.base import Client, Traits, lower
from connector.warehouse.adapters.dialect import Sql, SqliteSql, quoted

_TYPES = {
    "BIGINT": "bigint",
    "DOUBLE": "double",
    "BOOLEAN": "bool",
    "TEXT": "text",
    "DATE": "date",
    "DATETIME": "timestamp",
}
_MADE = {kind: made for made, kind in _TYPES.items()} | {"json": "TEXT"}
DECIMAL = "DECIMAL_TEXT"  # a type whose values SQLite keeps as text, digit for digit


class Sqlite(Alchemy):
    """A SQLite file, attached under the name of the dataset; the connection's own database stays empty."""

    traits: ClassVar[Traits] = Traits(
        dialect="sqlite", ignores_case=True, finds_slugs=True, indexes=True, history=True, temporary="temp"
    )
    sql: ClassVar[Sql] = SqliteSql()

    def ordered_columns(self, client: Client) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = defaultdict(dict)
        for row in self._columns(client):
            if row["kind"] == "table":
                found[row["table_name"]][row["column_name"]] = row["data_type"].lower()
        return dict(found)

    def declared(self, client: Client, table: str) -> dict[str, str]:
        rows = self._columns(client)
        return {lower(row["column_name"]): row["data_type"] for row in rows if row["table_name"] == table}

    def _columns(self, client: Client) -> list[dict[str, Any]]:
        sql = f"{self._columns_sql(client)} ORDER BY m.name, p.cid"
        return self.fetch(client, sql, [client.dataset_name] * sql.count("%s"))

    def _columns_sql(self, client: Client) -> str:
        return (
            "SELECT m.name AS table_name, m.type AS kind, p.name AS column_name, p.type AS data_type, "
            'NULL AS numeric_precision, NULL AS numeric_scale, NOT p."notnull" AS is_nullable '
            f"FROM {self._master(client)} AS m JOIN pragma_table_xinfo(m.name, %s) AS p "  # with generated columns
            "WHERE m.type IN ('table', 'view')"
        )

    def _names_sql(self, client: Client) -> str:
        return self._select_names(
            "name", "CASE type WHEN 'table' THEN 'BASE TABLE' ELSE type END", self._master(client)
        )

    def _master(self, client: Client) -> str:
        return f"{quoted(client.dataset_name)}.sqlite_master"

    def type_of(self, declared: str, precision: int | None, scale: int | None) -> str:
        name, _, digits = declared.upper().partition("(")
        if name == DECIMAL:
            return f"decimal({digits.rstrip(')').replace(' ', '')})"
        return _TYPES.get(name, super().type_of(declared, precision, scale))

    def made_type(self, kind: str) -> str:
        return _MADE.get(kind, kind.upper().replace("DECIMAL", DECIMAL))

    def replace_table(self, client: Client, table: str, replacement: str) -> None:
        """Replace the table although views read it, which SQLite would check while the table is missing."""
        client.execute_sql("PRAGMA legacy_alter_table = ON")
        try:
            super().replace_table(client, table, replacement)
        finally:
            client.execute_sql("PRAGMA legacy_alter_table = OFF")

    def _attached_sql(self, client: Client) -> str:
        return (
            f"SELECT type AS kind, name FROM {self._master(client)} WHERE %s <> '' AND tbl_name = %s "
            "AND type IN ('index', 'trigger') AND name NOT LIKE 'importer!_%%' ESCAPE '!'"
        )

    def drop_empty(self, client: Client) -> None:
        if not client.has_dataset():
            client.drop_dataset()
            with client.with_staging_dataset():
                client.drop_dataset()

    def indexed(self, client: Client) -> dict[str, set[str]]:
        sql = (
            "SELECT m.tbl_name AS table_name, i.name AS column_name "
            f"FROM {self._master(client)} AS m "
            "JOIN pragma_index_info(m.name, %s) AS i WHERE m.type = 'index' AND i.seqno = 0"
        )
        found: dict[str, set[str]] = defaultdict(set)
        for row in self.ask(client, sql, [client.dataset_name]).to_pylist():
            found[row["table_name"]].add(row["column_name"])
        return dict(found)

    def index(self, client: Client, table: str, column: str) -> None:
        name = f"{quoted(client.dataset_name)}.{quoted(f'importer_{table}_{column}')}"
        self.run(client, f"CREATE INDEX IF NOT EXISTS {name} ON {quoted(table)} ({quoted(column)})", [])
