"""Adapt the common parts of SQLite and MySQL, which dlt accesses through SQLAlchemy.

Result rows have too little type information: instants are identified by the names of our columns, and values of typed
rows by the types in the catalog.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from connector.transform.naming import VERSION_COLUMNS
from connector.transform.schema import arrow_type
from connector.warehouse.adapters.base import Adapter, Client, lower
from connector.warehouse.tables import RECORDS_SCHEMA, SYSTEM_SCHEMAS, TYPED_SCHEMA, UTC_US

_SCHEMAS = (*SYSTEM_SCHEMAS.values(), RECORDS_SCHEMA, TYPED_SCHEMA)
_OURS = {column.name for schema in _SCHEMAS for column in schema if column.type == UTC_US}
_INSTANTS = {*_OURS, *VERSION_COLUMNS[:2], "at", "latest"}
_STORED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}")


class Alchemy(Adapter):
    """A database accessed through SQLAlchemy."""

    slug_type = "TEXT"
    slug_index = ""
    drop_temporary = "DROP TABLE IF EXISTS temp."

    def ask(self, client: Client, sql: str, args: Sequence[Any]) -> pa.Table:
        names, rows = _fetched(client, sql, args)
        return pa.table([_found(name, [row[n] for row in rows]) for n, name in enumerate(names)], names=names)

    def ask_rows(self, client: Client, table: str, sql: str, args: Sequence[Any]) -> pa.Table:
        kinds = self.columns(client).get(table, {})
        names, rows = _fetched(client, sql, args)
        values = ([row[n] for row in rows] for n in range(len(names)))
        columns = [_typed(column, kinds.get(name, "text")) for name, column in zip(names, values, strict=True)]
        return pa.table(columns, names=names)

    def run(self, client: Client, sql: str, args: Sequence[Any]) -> None:
        client.execute_sql(_text(sql), *map(_bound, args))

    def add_column(self, client: Client, table: str, column: str, kind: str) -> None:
        if column not in self.declared(client, table):
            name = f"{client.escape_column_name(column)} {self.made_type(kind)}"
            self.run(client, f"ALTER TABLE {client.make_qualified_table_name(table)} ADD COLUMN {name}", [])

    def empty(self, client: Client, tables: Sequence[str]) -> None:
        for table in tables:
            client.execute_sql(f"DELETE FROM {client.make_qualified_table_name(table)}")

    def make_like(self, client: Client, table: str, like: str, columns: Sequence[str], more: Mapping[str, str]) -> None:
        """Create the table with named types, because a table created by a SELECT would have other types."""
        declared = self.declared(client, like)
        kinds = {c: declared[c] for c in columns} | {c: self.made_type(kind) for c, kind in more.items()}
        made = ", ".join(f"{client.escape_column_name(column)} {kind}" for column, kind in kinds.items())
        self.run(client, f"CREATE TABLE {client.make_qualified_table_name(table)} ({made})", [])

    @contextmanager
    def relations(self, client: Client, slugs: Mapping[str, pa.ChunkedArray[Any]]) -> Iterator[None]:
        try:
            for name, values in slugs.items():
                client.execute_sql(f"CREATE TEMPORARY TABLE {name} (slug {self.slug_type} NOT NULL{self.slug_index})")
                rows = [{"slug": slug} for slug in values.to_pylist()]
                if rows:
                    _insert(client, f"INSERT INTO {name} (slug) VALUES (:slug)", rows)
            yield
        finally:
            for name in slugs:
                client.execute_sql(f"{self.drop_temporary}{name}")


def _fetched(client: Client, sql: str, args: Sequence[Any]) -> tuple[list[str], Sequence[Sequence[Any]]]:
    with client.execute_query(_text(sql), *map(_bound, args)) as cursor:
        native: Any = cursor.native_cursor
        return [lower(name) for name in native.keys()], native.fetchall()  # noqa: SIM118


def _insert(client: Client, sql: str, rows: list[dict[str, Any]]) -> None:
    from sqlalchemy import text

    untyped: Any = client
    untyped.execute_sql(text(sql), rows)


def _text(sql: str) -> str:
    """Return the statement as SQLAlchemy parses it: a colon begins a parameter, so others are escaped."""
    return sql.replace(":", r"\:")


def _bound(value: Any) -> Any:
    """Return a parameter as it is stored: an instant in UTC, and as text that sorts as instants do."""
    if isinstance(value, datetime):
        in_utc = value.astimezone(UTC) if value.tzinfo else value
        return in_utc.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
    return value


def _may_be_instant(value: Any) -> bool:
    return isinstance(value, datetime) or (isinstance(value, str) and bool(_STORED.fullmatch(value)))


def _is_instant(name: str) -> bool:
    return name in _INSTANTS or name.endswith("_at")


def _found(name: str, values: list[Any]) -> pa.Array[Any]:
    if all(value is None for value in values):
        return pa.nulls(len(values), UTC_US if _is_instant(name) else pa.string())
    if _is_instant(name) and all(v is None or _may_be_instant(v) for v in values):
        return _typed(values, "timestamp")
    found: pa.Array[Any] = pa.array(values)
    return found


def _typed(values: list[Any], kind: str) -> pa.Array[Any]:
    """Return the values as the type they were written with."""
    read = _READ.get(kind.partition("(")[0], str)
    wanted = pa.string() if kind == "json" else arrow_type(kind) if kind.partition("(")[0] in _READ else pa.string()
    return pa.array([None if value is None else read(value) for value in values], wanted)


def _instant(value: str | datetime) -> datetime:
    return (datetime.fromisoformat(value) if isinstance(value, str) else value).replace(tzinfo=UTC)


def _date(value: str | date) -> date:
    return date.fromisoformat(value) if isinstance(value, str) else value


_READ: Mapping[str, Any] = {
    "bigint": int,
    "double": float,
    "bool": bool,
    "text": str,
    "json": str,
    "date": _date,
    "timestamp": _instant,
    "decimal": Decimal,
}
