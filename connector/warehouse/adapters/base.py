"""Adapt to the differences of a family of destinations, so that callers need not know the family.

A destination has to support `ask`, `put` (rows of the small tables, by key) and `replace` (all rows of some imports at
once). `replace` is dlt's merge, and dlt's load jobs bring the rows; the rest is SQL that an adapter runs. Differences
in ability are data (`Traits`), so that no code checks for a name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from string import ascii_lowercase, ascii_uppercase
from typing import Any, ClassVar

import pyarrow as pa
from dlt.destinations.sql_client import SqlClientBase

from connector.warehouse.adapters.dialect import Sql

Client = SqlClientBase[Any]
_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)
_STORED_TYPES = {
    "bigint": "bigint",
    "hugeint": "decimal(38,0)",
    "double": "double",
    "double precision": "double",
    "boolean": "bool",
    "varchar": "text",
    "character varying": "text",
    "text": "text",
    "json": "json",
    "jsonb": "json",
    "date": "date",
    "timestamp with time zone": "timestamp",
}
MICROSECONDS = 6  # digits of a second
ANY_TABLE = "TABLE"  # the kind of a table in a list that also has those on which the role has no right
_SELECTS = 100  # in one statement; SQLite takes at most 500
_MADE_TYPES = {"double": "DOUBLE PRECISION", "bool": "BOOLEAN", "timestamp": "TIMESTAMP WITH TIME ZONE"}


@dataclass(frozen=True, slots=True)
class Traits:
    """The abilities of a family of destinations.

    `dialect` is sqlglot's name for its SQL. `ignores_case`: names of tables that differ only in case are the same.
    `keeps_nul`: a text may hold U+0000. `keeps_json`: a column of type JSON returns what was written. `knows_types`:
    its catalog shows the types that a load creates. `finds_slugs`: arriving slugs can be looked up in a table, by their
    hashes with `hashes_slugs`. `positions`: rows can be read by their positions. `indexes`: a look-up by key needs an
    index. `counts_rows`: the planner is told to count rows, and no index takes long keys. `views`: analysts' views can
    be made, and with `functions` those of a moment. `binds_views`: a table that a view reads cannot be dropped.
    `history`: versions of rows can be kept. `temporary` is the schema of temporary tables.
    """

    dialect: str
    ignores_case: bool = False
    keeps_nul: bool = False
    keeps_json: bool = False
    knows_types: bool = False
    finds_slugs: bool = False
    hashes_slugs: bool = False
    positions: bool = False
    indexes: bool = False
    counts_rows: bool = False
    views: bool = False
    functions: bool = False
    binds_views: bool = False
    history: bool = False
    temporary: str = ""


@dataclass(frozen=True, slots=True)
class Catalog:
    """The tables and views of a schema.

    `columns`: table or view → column → type, as `connector.transform.schema.parse_type` reads it if it can; `required`:
    table → columns that cannot be null; `tables`: the names of tables, without views; `taken`: all names that no new
    table may have; `hidden`: tables on which the role has no right. Columns are in lower case: DuckDB, and dlt on any
    destination, treat names that differ only in case as the same. If PostgreSQL has both, the one in lower case counts,
    because our names are in lower case.
    """

    columns: dict[str, dict[str, str]]
    required: dict[str, set[str]]
    tables: set[str]
    taken: set[str]
    hidden: set[str] = field(default_factory=set)


class Adapter:
    """The behaviour of a destination with a standard catalog; a family overrides what differs."""

    traits: ClassVar[Traits] = Traits(dialect="")
    sql: ClassVar[Sql] = Sql()
    _precision: ClassVar[str] = "numeric_precision"  # digits of a number; may include those of the seconds of a time

    def check(self, client: Client) -> None:
        """Raise ConfigError if the dataset would take two different keys for the same."""

    def ask(self, client: Client, sql: str, args: Sequence[Any]) -> pa.Table:
        """Return the rows of a SELECT as Arrow, instants in UTC."""
        with client.execute_query(sql, *args) as cursor:
            table = cursor.arrow()
        return table if table is not None else pa.table({})

    def fetch(self, client: Client, sql: str, args: Sequence[Any]) -> list[dict[str, Any]]:
        """Return a few rows like `ask`, but as quickly as the destination can."""
        found: list[dict[str, Any]] = self.ask(client, sql, args).to_pylist()
        return found

    def run(self, client: Client, sql: str, args: Sequence[Any]) -> None:
        """Execute a statement that returns nothing."""
        client.execute_sql(sql, *args)

    def catalog(self, client: Client) -> Catalog:
        """Return all tables and views with their columns, in one query."""
        return self._catalog(client, self._columns_sql(client), self._names_sql(client))

    def columns(self, client: Client) -> dict[str, dict[str, str]]:
        """Return only the columns."""
        return self._catalog(client, self._columns_sql(client)).columns

    def names(self, client: Client) -> tuple[set[str], set[str]]:
        """Return only the names: of all tables, without views, and all names that no new table may have."""
        found = self._catalog(client, self._names_sql(client))
        return found.tables, found.taken

    def has_any(self, client: Client, tables: Set[str]) -> bool:
        """Return whether any of these tables is there, even if the role has no right on it."""
        found = self._catalog(client, self._names_sql(client))
        return not tables.isdisjoint(found.tables | found.hidden)

    def _catalog(self, client: Client, *selects: str) -> Catalog:
        sql = " UNION ALL ".join(selects)
        rows = self.fetch(client, sql, [client.dataset_name] * sql.count("%s"))
        found = Catalog({}, {}, set(), set())
        there: set[str] = set()
        for row in sorted(rows, key=lambda row: row["column_name"] != lower(row["column_name"] or "")):
            table = row["table_name"]
            if row["column_name"] is None:
                found.taken.add(table)
                if row["kind"] == "BASE TABLE":
                    found.tables.add(table)
                elif row["kind"] == ANY_TABLE:
                    there.add(table)
                continue
            name = lower(row["column_name"])
            kind = self.type_of(row["data_type"], row["numeric_precision"], row["numeric_scale"])
            found.columns.setdefault(table, {}).setdefault(name, kind)
            if row["is_nullable"] in ("NO", False, 0):
                found.required.setdefault(table, set()).add(name)
        found.hidden.update(there - found.tables)
        return found

    def _columns_sql(self, client: Client) -> str:  # noqa: ARG002
        """Return a SELECT of columns; it comes first in a union, because its columns have types."""
        return (
            f"SELECT table_name, NULL AS kind, column_name, data_type, {self._precision} AS numeric_precision, "
            f"numeric_scale, is_nullable FROM {self._columns_catalog()}"
        )

    def _columns_catalog(self) -> str:
        return "information_schema.columns WHERE table_schema = %s"

    def _names_sql(self, client: Client) -> str:  # noqa: ARG002
        """Return a SELECT of names, with the kind `BASE TABLE` for tables."""
        return self._select_names("table_name", "table_type", "information_schema.tables WHERE table_schema = %s")

    def _select_names(self, name: str, kind: str, source: str) -> str:
        nothing = "NULL AS column_name, NULL AS data_type, NULL AS numeric_precision, NULL AS numeric_scale"
        return f"SELECT {name} AS table_name, {kind} AS kind, {nothing}, NULL AS is_nullable FROM {source}"

    def ordered_columns(self, client: Client) -> dict[str, dict[str, str]]:
        """Return table → column → type in the destination's words, in their order; tables only, no views."""
        rows = self.fetch(
            client,
            "SELECT c.table_name, c.column_name, c.data_type FROM information_schema.columns c "
            "JOIN information_schema.tables t "
            "ON t.table_catalog = c.table_catalog AND t.table_schema = c.table_schema AND t.table_name = c.table_name "
            "WHERE c.table_schema = %s AND t.table_type = 'BASE TABLE' ORDER BY c.table_name, c.ordinal_position",
            [client.dataset_name],
        )
        found: dict[str, dict[str, str]] = defaultdict(dict)
        for row in rows:
            found[row["table_name"]][row["column_name"]] = str(row["data_type"]).lower()
        return dict(found)

    def may_write(self, client: Client, table: str | None) -> bool:  # noqa: ARG002
        """Return whether the role may add rows to a table, or create tables in the dataset if that is None.

        True if the destination does not tell.
        """
        return True

    def declared(self, client: Client, table: str) -> dict[str, str]:
        """Return column → its type as the destination writes it in a definition."""
        rows = self.fetch(
            client,
            "SELECT column_name AS name, data_type AS kind FROM information_schema.columns "
            "WHERE table_schema = %s AND table_name = %s",
            [client.dataset_name, table],
        )
        return {lower(row["name"]): row["kind"] for row in rows}

    def counted_columns(self, client: Client, table: str) -> int:
        """Return the number of columns that count towards the destination's limit for a table."""
        return len(self.declared(client, table))

    def type_of(self, declared: str, precision: int | None, scale: int | None) -> str:
        """Return our name of a type; return an unknown one unchanged, and its column is avoided."""
        name = declared.lower()
        if name.startswith(("decimal", "numeric")):
            return f"decimal({precision},{scale})"
        return _STORED_TYPES.get(name, name)

    def made_type(self, kind: str) -> str:
        """Return the destination's name of one of our types, as in a definition."""
        return _MADE_TYPES.get(kind, kind)

    def ask_rows(self, client: Client, table: str, sql: str, args: Sequence[Any]) -> pa.Table:  # noqa: ARG002
        """Return rows of all columns of one table, with the names and types that `columns` returns."""
        rows = self.ask(client, sql, args)
        return rows.rename_columns([lower(name) for name in rows.column_names])

    def add_column(self, client: Client, table: str, column: str, kind: str) -> None:
        """Add a column of one of our types to a table, if it does not exist."""
        name = f"{client.escape_column_name(column)} {self.made_type(kind)}"
        self.run(client, f"ALTER TABLE {client.make_qualified_table_name(table)} ADD COLUMN IF NOT EXISTS {name}", [])

    def set_type(self, client: Client, table: str, column: str, kind: str) -> None:
        """Change a column, with its values, to one of our types."""
        name, made = client.escape_column_name(column), self.made_type(kind)
        to = f"ALTER COLUMN {name} TYPE {made} USING CAST({name} AS {made})"
        self.run(client, f"ALTER TABLE {client.make_qualified_table_name(table)} {to}", [])

    def replace_table(self, client: Client, table: str, replacement: str) -> None:
        """Drop a table and rename `replacement` to its name, in the caller's transaction."""
        self.run(client, f"DROP TABLE IF EXISTS {client.make_qualified_table_name(table)}", [])
        old, new = client.make_qualified_table_name(replacement), client.escape_column_name(table)
        self.run(client, f"ALTER TABLE {old} RENAME TO {new}", [])

    def attached(self, client: Client, table: str) -> list[str]:
        """Return, in words, what others attached to the table and `replace_table` would drop with it."""
        sql = self._attached_sql(client)
        rows = self.fetch(client, sql, [client.dataset_name, table] * (sql.count("%s") // 2)) if sql else []
        return sorted(f"{row['kind']} {row['name']}" for row in rows)

    def _attached_sql(self, client: Client) -> str:  # noqa: ARG002
        """Return a SELECT of a `kind` and a `name`; each pair of its parameters are a dataset and a table."""
        return ""

    def empty(self, client: Client, tables: Sequence[str]) -> None:
        """Delete all rows of these tables."""
        client.execute_sql("; ".join(f"TRUNCATE TABLE {client.make_qualified_table_name(t)}" for t in tables))

    def drop_empty(self, client: Client) -> None:
        """Drop the dataset if it has no table; raise if it has one."""
        client.execute_sql(f"DROP SCHEMA {client.fully_qualified_dataset_name()}")

    def indexed(self, client: Client) -> dict[str, set[str]]:
        """Return table → the leading columns of its complete indexes."""
        raise NotImplementedError

    def index(self, client: Client, table: str, column: str) -> None:
        """Create an index."""
        raise NotImplementedError

    def make_like(self, client: Client, table: str, like: str, columns: Sequence[str], more: Mapping[str, str]) -> None:
        """Create an empty table with columns of another one and `more` of our types, all nullable."""
        named = client.escape_column_name
        made = [f"CAST(NULL AS {self.made_type(kind)}) AS {named(column)}" for column, kind in more.items()]
        self.run(
            client,
            f"CREATE TABLE {client.make_qualified_table_name(table)} AS SELECT "
            f"{', '.join([*(f'importer$row.{named(column)}' for column in columns), *made])} "
            f"FROM {client.make_qualified_table_name(like)} AS importer$row WHERE 1 = 0",
            [],
        )

    def gather(self, client: Client, name: str, selects: Sequence[str]) -> None:
        """Create a temporary table of all rows of SELECTs of one column, `k`; a user's table of that name stays."""
        self.run(client, f"DROP TABLE IF EXISTS {self.traits.temporary}.{name}", [])
        for start in range(0, len(selects), _SELECTS):
            into = f"INSERT INTO {self.traits.temporary}.{name}" if start else f"CREATE TEMPORARY TABLE {name} AS"
            self.run(client, f"{into} {' UNION ALL '.join(selects[start : start + _SELECTS])}", [])

    def rows_with_keys(self, client: Client, table: str, alias: str, key: str, keys: str) -> str:
        """Return a FROM clause: the rows of a table whose `key` is among the column `slug` that the SELECT `keys` has.

        Both `alias` and `key` are escaped names, and the clause calls the rows `alias`.
        """
        return self.sql.rows_with_keys(client.make_qualified_table_name(table), alias, key, keys)

    def relations(self, client: Client, slugs: Mapping[str, pa.ChunkedArray[Any]]) -> AbstractContextManager[None]:
        """Make each array a relation of that name with one column, `slug`, for the queries within."""
        raise NotImplementedError


def lower(name: str) -> str:
    """Return a name as DuckDB compares names, which ignores case only in ASCII letters."""
    return name.translate(_LOWER)
