"""Choose dlt's write disposition for each table of records in a package: append if all rows are new, else merge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from connector.load.dlt_bridge import WriteDispositions
from connector.load.table_rows import replaced_rows
from connector.warehouse import Connection, Warehouse
from connector.warehouse.lookup import incoming_slugs, index_keys
from connector.warehouse.tables import keys_of

APPEND: dict[str, Any] = {"write_disposition": "append"}


@dataclass(frozen=True, slots=True)
class IncomingRows:
    """The rows of a package for one table of records: the slugs of its records and of its imports.

    `distinct` if no slug occurs twice, `replacing` if it has rows that only a merge can handle (placeholders, rows
    carried over).
    """

    table: str
    records: pa.ChunkedArray[Any]
    imports: Sequence[str]
    distinct: bool
    replacing: bool


def write_dispositions(warehouse: Warehouse, incoming: Sequence[IncomingRows]) -> WriteDispositions:
    """Choose append or merge for each table of the package just built.

    Rows are appended if the destination has none of these records and imports; this process is its only writer and has
    just checked. Otherwise a merge skips the search for duplicates if there are none. Both are safe because the package
    is loaded at once or never (`rebuild_working_directory`), and its rows are counted afterwards in any case.
    """
    found: dict[str, dict[str, Any]] = {}
    with warehouse.connect() as connection:
        able = warehouse.traits.finds_slugs
        there = connection.names()[0] if able and incoming else set()
        index_keys(connection, {rows.table for rows in incoming} & there)
        for rows in incoming:
            may_append = able and rows.distinct and not rows.replacing
            appends = may_append and (rows.table not in there or is_new(connection, rows))
            found[rows.table] = APPEND if appends else _merge(connection, rows)
    return found


def _merge(connection: Connection, rows: IncomingRows) -> dict[str, Any]:
    """Return what dlt's schema says of a merge: whether rows are distinct, and which ones it replaces."""
    scope = replaced_rows(*keys_of(rows.table), connection.sql)
    return {"x-stage-data-deduplicated": rows.distinct, "x-merge-destination-scope": scope}


def is_new(connection: Connection, incoming: IncomingRows) -> bool:
    """Return whether the table holds no row of these records or imports (DuckDB and PostgreSQL).

    DuckDB compares hashes of the slugs, which takes a fraction of the memory. A collision can make new rows look like
    existing ones, but not the reverse.
    """
    record, import_ = map(connection.column, keys_of(incoming.table))
    imports = f"{import_} IN (SELECT slug FROM incoming_imports)"
    records = f"{record} IN (SELECT slug FROM incoming_records)"
    if connection.traits.hashes_slugs:
        records = f"hash({record}) IN (SELECT hash(slug) FROM incoming_records)"
    with incoming_slugs(connection, incoming.imports, incoming.records):
        if _any_row(connection, incoming.table, imports):
            return False
        with connection.limited_memory(columns=1, slugs=len(incoming.records)):
            return not _any_row(connection, incoming.table, records)


def other_imports(connection: Connection, incoming: IncomingRows) -> set[str]:
    """Return the other imports of which the table has some of these records."""
    record, import_ = map(connection.column, keys_of(incoming.table))
    table = connection.name(incoming.table)
    with incoming_slugs(connection, incoming.imports, incoming.records):
        found = connection.rows(
            f"SELECT DISTINCT r.{import_} AS slug "
            f"FROM {connection.sql.rows_with_keys(table, 'r', record, 'SELECT slug FROM incoming_records')} "
            f"WHERE r.{connection.column('_deleted_at')} IS NULL "
            f"AND r.{import_} NOT IN (SELECT slug FROM incoming_imports)"
        )
    return {row["slug"] for row in found}


def _any_row(connection: Connection, table: str, where: str) -> bool:
    rows = connection.rows(f"SELECT count(*) AS n FROM {connection.name(table)} WHERE {where}")
    return bool(rows[0]["n"])
