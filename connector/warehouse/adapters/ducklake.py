"""Adapt DuckLake: DuckDB's SQL over Parquet files and a catalog in SQLite or PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from connector.warehouse.adapters.base import Client, Traits
from connector.warehouse.adapters.duck import Duck


class DuckLake(Duck):
    """Like DuckDB, except that a function cannot have the comment that marks ours."""

    traits: ClassVar[Traits] = replace(Duck.traits, positions=False, functions=False)

    def set_type(self, client: Client, table: str, column: str, kind: str) -> None:
        """Move the values into a new column, because a lake can only widen the type of a column."""
        name, replacement = client.escape_column_name(column), client.escape_column_name(f"{column}$importer")
        altered = f"ALTER TABLE {client.make_qualified_table_name(table)}"
        required = column in self.catalog(client).required.get(table, ())
        with client.begin_transaction():
            self.run(client, f"{altered} ADD COLUMN {replacement} {self.made_type(kind)}", [])
            values = f"SET {replacement} = CAST({name} AS {self.made_type(kind)})"
            self.run(client, f"UPDATE {client.make_qualified_table_name(table)} {values}", [])
            self.run(client, f"{altered} DROP COLUMN {name}", [])
            self.run(client, f"{altered} RENAME COLUMN {replacement} TO {name}", [])
            if required:
                self.run(client, f"{altered} ALTER COLUMN {name} SET NOT NULL", [])
