"""Choose dlt's write disposition for each table of records in a package: append if all rows are new, else merge."""

from __future__ import annotations

from collections.abc import Sequence, Set
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
    carried over). `cleared` are the imports for which it has placeholders.
    """

    table: str
    records: pa.ChunkedArray[Any]
    imports: Sequence[str]
    distinct: bool
    replacing: bool
    cleared: Set[str] = frozenset()


def write_dispositions(warehouse: Warehouse, incoming: Sequence[IncomingRows]) -> tuple[WriteDispositions, set[str]]:
    """Choose append or merge for each table of the package just built; return the imports that lose records, too.

    Rows are appended if the destination has none of these records and imports; this process is its only writer and has
    just checked. Otherwise a merge skips the search for duplicates if there are none. It skips the search for rows of
    other imports if there have just been none, and no index makes it cheap; rows carried over are of the table and the
    import that they return to. All are safe because the package is loaded at once or never
    (`rebuild_working_directory`), and its rows are counted afterwards in any case.
    """
    found: dict[str, dict[str, Any]] = {}
    losing: set[str] = set()
    with warehouse.connect() as connection:
        able, indexed = warehouse.traits.finds_slugs, warehouse.traits.indexes
        there = connection.names()[0] if able and incoming else set()
        index_keys(connection, {rows.table for rows in incoming} & there)
        for rows in incoming:
            exists = rows.table in there
            if able and rows.distinct and not rows.replacing and not (exists and not is_new(connection, rows)):
                found[rows.table] = APPEND
                continue
            others = other_imports(connection, rows) if exists else {}
            losing |= {slug for slug, live in others.items() if live}
            found[rows.table] = _merge(connection, rows, moves=not exists or indexed or bool(others))
    return found, losing


def _merge(connection: Connection, rows: IncomingRows, *, moves: bool) -> dict[str, Any]:
    """Return what dlt's schema says of a merge: whether rows are distinct, and which ones it replaces.

    Without `moves`, no other import has one of these records.
    """
    scope = replaced_rows(*keys_of(rows.table), connection.sql, moves=moves)
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


def other_imports(connection: Connection, incoming: IncomingRows) -> dict[str, bool]:
    """Return the other imports of which the table has some of these records, and whether such a row is live."""
    record, import_ = map(connection.column, keys_of(incoming.table))
    with incoming_slugs(connection, incoming.imports, incoming.records):
        found = connection.rows(
            f"SELECT r.{import_} AS slug, "
            f"max(CASE WHEN r.{connection.column('_deleted_at')} IS NULL THEN 1 ELSE 0 END) AS live "
            f"FROM {connection.rows_with_keys(incoming.table, 'r', record, 'SELECT slug FROM incoming_records')} "
            f"WHERE r.{import_} NOT IN (SELECT slug FROM incoming_imports) GROUP BY 1"
        )
    return {row["slug"]: bool(row["live"]) for row in found}


def _any_row(connection: Connection, table: str, where: str) -> bool:
    rows = connection.rows(f"SELECT count(*) AS n FROM {connection.name(table)} WHERE {where}")
    return bool(rows[0]["n"])
