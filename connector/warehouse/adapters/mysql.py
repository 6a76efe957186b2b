"""Adapt MySQL and MariaDB: a dataset is a database, and a statement that changes a table ends the transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import pyarrow as pa

from connector.errors import ConfigError
from connector.warehouse.adapters.alchemy import Alchemy
from connector.warehouse.adapters.base import MICROSECONDS, Client, Traits, lower
from connector.warehouse.adapters.dialect import MySqlSql, Sql
from connector.warehouse.tables import LOAD_ID

_TYPES = {
    "tinyint": "bool",
    "longtext": "text",
    "datetime": "timestamp",
    "timestamp": "timestamp of 4 bytes",
    "json": "json in binary",
}
_MADE = {"bool": "BOOL", "text": "LONGTEXT", "json": "LONGTEXT", "timestamp": "DATETIME(6)", "double": "DOUBLE"}
COLLATIONS = {True: "utf8mb4_nopad_bin", False: "utf8mb4_0900_bin"}  # of MariaDB and of MySQL
_PREFIX = 191  # characters of a text in an index


class MySql(Alchemy):
    """A database whose texts are compared byte for byte, as `mysql_destination` declares."""

    traits: ClassVar[Traits] = Traits(dialect="mysql", knows_types=True, finds_slugs=True, indexes=True, history=True)
    sql: ClassVar[Sql] = MySqlSql()
    _precision: ClassVar[str] = "COALESCE(numeric_precision, datetime_precision)"
    slug_type = "LONGTEXT"
    slug_index = f", KEY (slug({_PREFIX}))"
    drop_temporary = "DROP TEMPORARY TABLE IF EXISTS "  # without the second word it would end the transaction

    def check(self, client: Client) -> None:
        """Raise ConfigError if a database or table does not compare byte for byte, or a table has no transactions.

        In most collations `a` and `A` are the same key, so one of two records would silently replace the other. The
        databases are those of the dataset and of its staging.
        """
        sql = (
            "SELECT schema_name AS name, default_collation_name AS collation FROM information_schema.schemata "
            "WHERE schema_name IN (%s, %s)"
        )
        for row in self.ask(client, sql, [client.dataset_name, client.staging_dataset_name]).to_pylist():
            if row["collation"] not in COLLATIONS.values():
                raise ConfigError(
                    f"The database {row['name']} has the collation {row['collation']}, under which two different keys "
                    "can be equal; drop it if it is empty, so that the run recreates it, or choose another --dataset."
                )
        exact = sorted(COLLATIONS.values())
        sql = (
            "SELECT table_name AS name, collation_name AS collation, engine AS engine, "
            "engine NOT IN (SELECT engine FROM information_schema.engines WHERE transactions = 'YES') AS unsafe "
            "FROM information_schema.columns JOIN information_schema.tables USING (table_schema, table_name) "
            "WHERE table_schema = %s AND column_name = %s "
            "HAVING collation NOT IN (%s, %s) OR unsafe LIMIT 1"
        )
        for row in self.ask(client, sql, [client.dataset_name, LOAD_ID, *exact]).to_pylist():
            if row["unsafe"]:  # null for a view
                raise ConfigError(
                    f"The table {row['name']} of {client.dataset_name} has the storage engine {row['engine']}, which "
                    "has no transactions, so a killed run may have lost rows; convert it by `ALTER TABLE … ENGINE = "
                    "InnoDB`, then run `importer-sync backfill --full`."
                )
            raise ConfigError(
                f"The table {row['name']} of {client.dataset_name} was converted to the collation {row['collation']}, "
                f"under which two different keys can be equal; convert it back to one of {', '.join(exact)}."
            )

    def type_of(self, declared: str, precision: int | None, scale: int | None) -> str:
        kind = _TYPES.get(declared.lower(), super().type_of(declared, precision, scale))
        return f"{declared}({precision})" if kind == "timestamp" and precision != MICROSECONDS else kind

    def declared(self, client: Client, table: str) -> dict[str, str]:
        sql = (
            "SELECT column_name AS name, column_type AS kind FROM information_schema.columns "
            "WHERE table_schema = %s AND table_name = %s"
        )
        return {lower(row["name"]): row["kind"] for row in self.fetch(client, sql, [client.dataset_name, table])}

    def made_type(self, kind: str) -> str:
        return _MADE.get(kind, kind)

    def set_type(self, client: Client, table: str, column: str, kind: str) -> None:
        name = f"{client.escape_column_name(column)} {self.made_type(kind)}"
        client.execute_sql(f"ALTER TABLE {client.make_qualified_table_name(table)} MODIFY COLUMN {name}")

    def replace_table(self, client: Client, table: str, replacement: str) -> None:
        """Exchange both tables in one statement, because each DDL statement is a separate transaction.

        If the process dies before the second one, the old table is left under the name of the replacement.
        """
        name, new, old = map(client.make_qualified_table_name, (table, replacement, f"{replacement}_old"))
        client.execute_sql(f"RENAME TABLE {name} TO {old}, {new} TO {name}, {old} TO {new}")
        client.execute_sql(f"DROP TABLE {new}")

    def _attached_sql(self, client: Client) -> str:  # noqa: ARG002
        schema = "information_schema"
        return (
            f"SELECT DISTINCT 'index' AS kind, index_name AS name FROM {schema}.statistics "
            "WHERE table_schema = %s AND table_name = %s AND index_name NOT LIKE 'importer!_%%' ESCAPE '!' "
            f"UNION ALL SELECT 'trigger', trigger_name FROM {schema}.triggers "
            "WHERE event_object_schema = %s AND event_object_table = %s "
            f"UNION ALL SELECT 'constraint', constraint_name FROM {schema}.table_constraints "
            "WHERE table_schema = %s AND table_name = %s AND constraint_type = 'CHECK'"
        )

    def gather(self, client: Client, name: str, selects: Sequence[str]) -> None:
        """Fill an indexed temporary table, one SELECT at a time.

        MySQL can read a temporary table only once in a statement, and reads all of one that has no index.
        """
        client.execute_sql(f"USE {client.fully_qualified_dataset_name()}")
        client.execute_sql(f"{self.drop_temporary}{name}")
        client.execute_sql(f"CREATE TEMPORARY TABLE {name} (k {self.slug_type}, KEY (k({_PREFIX})))")
        for select in selects:
            self.run(client, f"INSERT INTO {name} (k) {select}", [])

    @contextmanager
    def relations(self, client: Client, slugs: Mapping[str, pa.ChunkedArray[Any]]) -> Iterator[None]:
        client.execute_sql(f"USE {client.fully_qualified_dataset_name()}")  # the database of temporary tables
        with super().relations(client, slugs):
            yield

    def indexed(self, client: Client) -> dict[str, set[str]]:
        sql = (
            "SELECT table_name AS tbl, column_name AS col FROM information_schema.statistics "
            "WHERE table_schema = %s AND seq_in_index = 1"
        )
        found: dict[str, set[str]] = defaultdict(set)
        for row in self.ask(client, sql, [client.dataset_name]).to_pylist():
            found[row["tbl"]].add(row["col"])
        return dict(found)

    def index(self, client: Client, table: str, column: str) -> None:
        where = f"{client.make_qualified_table_name(table)} ({client.escape_column_name(column)}({_PREFIX}))"
        client.execute_sql(f"CREATE INDEX {client.escape_column_name(f'importer_{column}')} ON {where}")
