"""Define what a package hands to dlt: rows for one table, and the hints by which dlt merges them.

All merges are delete-insert by a merge key (the scope) with a primary key. It is the only strategy of dlt that neither
duplicates rows if a process dies between the destination's commit and dlt's bookkeeping, nor leaves rows that an import
lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from connector.warehouse.adapters.dialect import Sql
from connector.warehouse.tables import (
    FORMAT,
    FORMAT_HINT,
    LEDGER,
    LOAD_ID,
    NO_SLUG,
    PRIMARY_KEYS,
    RECORDS,
    RECORDS_SCHEMA,
    SYSTEM_SCHEMAS,
    TEMPLATE_HINT,
    keys_of,
    table_of,
)


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows for one table; `json_columns` are text columns whose type in the warehouse is JSON if it has that type.

    `template` is the template of a typed table, '' for imports without one.
    """

    table: str
    rows: pa.Table
    json_columns: frozenset[str] = frozenset()
    template: str | None = None


def rows_that_create(table: str) -> TableRows:
    """Return a row that the merge drops; it makes dlt create the table, which an empty file would not."""
    schema = RECORDS_SCHEMA if table == RECORDS else SYSTEM_SCHEMAS[table]
    row = {column.name: NO_SLUG for column in schema if not column.nullable}
    return TableRows(table, table_of(schema, [row]))


def hints(table_rows: TableRows) -> dict[str, Any]:
    """Return the arguments of `dlt.mark.make_hints`: key, merge, and the contract that no column changes its type."""
    table = table_rows.table
    if table != RECORDS and table in PRIMARY_KEYS:
        key = PRIMARY_KEYS[table]
        disposition = {"disposition": "merge", "strategy": "delete-insert", "source_filter": f"{key[0]} <> '{NO_SLUG}'"}
    else:
        disposition, key = _replacing(*keys_of(table)), keys_of(table)[:1]
    return {
        "table_name": table,
        "write_disposition": disposition,
        "primary_key": list(key),
        "schema_contract": {"data_type": "freeze"},
        "file_format": "parquet",
        # even if no row of this package has a value: dlt keeps the first type it gets and takes any change, even of
        # nullability, for another type
        "columns": [{"name": n, "data_type": "json", "nullable": True} for n in sorted(table_rows.json_columns)],
        "additional_table_hints": _own_hints(table_rows),
    }


def _own_hints(table_rows: TableRows) -> dict[str, Any]:
    if table_rows.table == LEDGER:
        return {FORMAT_HINT: FORMAT}
    if table_rows.table in PRIMARY_KEYS and table_rows.table != RECORDS:
        return {}
    template = {} if table_rows.template is None else {TEMPLATE_HINT: table_rows.template}
    # as `deduplicated` of a disposition dlt would drop it, and the schema would keep that of an earlier package
    return {"x-stage-data-deduplicated": False, **template}


def replaced_rows(record_key: str, import_key: str, sql: Sql, *, moves: bool = True) -> str:
    """Return which rows a merge deletes, as dlt's `destination_scope`: those of its imports, and of its records.

    Without `moves`, no other import has one of the records, and a search for them would read every row.

    Rows are deleted by a single set of keys: PostgreSQL can look those up in an index or in a hash table, while it
    would evaluate both parts of an OR of two sets for each row of the table.
    """
    of_imports = sql.equals_one_of(import_key, f"SELECT {import_key} FROM {{staging_table}}")
    if not moves:
        return of_imports
    return (
        f"{record_key} IN (SELECT {record_key} FROM {{staging_table}} UNION ALL "
        f"SELECT {record_key} FROM {{table}} WHERE {of_imports})"
    )


def _replacing(record_key: str, import_key: str) -> dict[str, Any]:
    """Return the merge that replaces all rows of the imports in the package and moves records between imports."""
    return {
        "disposition": "merge",
        "strategy": "delete-insert",
        "destination_scope": replaced_rows(record_key, import_key, Sql()),
        "source_filter": f"{record_key} <> '{NO_SLUG}'",
    }


def placeholders(schema: pa.Schema, table: str, slugs: Sequence[str], load_id: str) -> pa.Table:
    """Return a placeholder for each of these imports, which makes the merge delete its rows and is dropped itself."""
    record_key, import_key = keys_of(table)
    constant = {record_key: NO_SLUG, LOAD_ID: load_id}
    columns = [
        pa.array(slugs, pa.string())
        if column.name == import_key
        else pa.repeat(pa.scalar(constant.get(column.name), column.type), len(slugs))
        for column in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
