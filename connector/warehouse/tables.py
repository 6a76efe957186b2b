"""Define the tables that this package writes: names, keys and Arrow schemas; docs/tables.md is generated from them.

Every row has the `_dlt_load_id` of its package, which connects records, typed rows and the ledger row of an import. It
is written by this package and not by dlt's normalizer, so that it does not depend on dlt's configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from connector.ledger import LEDGER_COLUMNS, LedgerRow, State

LOAD_ID = "_dlt_load_id"
LOADS_SEEN = "loads_seen"
NOTED = {"delete_limit_base": "bigint", "left_out_by_name": "text"}  # of `sync_runs`, for later runs
UTC_US = pa.timestamp("us", tz="UTC")
NO_SLUG = ""  # placeholder for an import without rows: it clears the scope and is itself not inserted

SOURCE = "importer"  # the name of the dlt source, and therefore of its schema
RECORDS = "records"
IMPORTS = "imports"
LEDGER = "sync_imports"
RUNS = "sync_runs"
REJECTS = "sync_rejects"
OF_IMPORT = "import: "  # beginning of the reason if an element of the listing could not be read
FIELDS = "sync_fields"
FORMAT = 2  # of a warehouse; raise it if stored rows have to change, and add the step to `warehouse.upgrades`
FORMAT_HINT = "x-importer-format"  # of the ledger in dlt's schema, which is stored in one transaction with the tables
TEMPLATE_HINT = "x-importer-template"  # of a typed table in dlt's schema, which keeps it while the table has no rows


def _schema(required: str, /, **columns: pa.DataType) -> pa.Schema:
    key_columns = required.split()
    return pa.schema([pa.field(name, kind, nullable=name not in key_columns) for name, kind in columns.items()])


_LOAD = {LOAD_ID: pa.string()}

RECORDS_SCHEMA = _schema(
    f"slug import_slug {LOAD_ID}",
    slug=pa.string(),
    import_slug=pa.string(),
    template_slug=pa.string(),
    sort=pa.int64(),
    created_at=UTC_US,
    updated_at=UTC_US,
    data=pa.string(),
    extra=pa.string(),
    _deleted_at=UTC_US,
    **_LOAD,
)
TYPED_SCHEMA = _schema(
    f"_record_slug _import_slug {LOAD_ID}",
    _record_slug=pa.string(),
    _import_slug=pa.string(),
    _sort=pa.int64(),
    _created_at=UTC_US,
    _updated_at=UTC_US,
    _deleted_at=UTC_US,
    **_LOAD,
)
IMPORTS_SCHEMA = _schema(
    f"slug {LOAD_ID}",
    slug=pa.string(),
    row_count=pa.int64(),
    created_at=UTC_US,
    updated_at=UTC_US,
    status=pa.string(),
    template__slug=pa.string(),
    template__name=pa.string(),
    metadata=pa.string(),
    extra=pa.string(),
    records_metadata=pa.string(),
    _deleted_at=UTC_US,
    _content_hash=pa.string(),
    **_LOAD,
)
_ARROW: Mapping[type, pa.DataType] = {
    str: pa.string(),
    State: pa.string(),
    int: pa.int64(),
    bool: pa.bool_(),
    datetime: UTC_US,
}
LEDGER_SCHEMA = _schema(f"slug {LOAD_ID}", **{column.name: _ARROW[column.kind] for column in LEDGER_COLUMNS})
RUNS_SCHEMA = _schema(
    "run_id",
    run_id=pa.string(),
    status=pa.string(),
    mode=pa.string(),
    started_at=UTC_US,
    finished_at=UTC_US,
    imports_listed=pa.int64(),
    imports_changed=pa.int64(),
    imports_deleted=pa.int64(),
    imports_failed=pa.int64(),
    imports_unreconciled=pa.int64(),
    records_loaded=pa.int64(),
    records_rejected=pa.int64(),
    requests=pa.int64(),
    retries=pa.int64(),
    bytes_received=pa.int64(),
    load_ids=pa.string(),
    error=pa.string(),
    error_kind=pa.string(),
    connector_version=pa.string(),
    destination=pa.string(),
    window_since=UTC_US,
    window_until=UTC_US,
    loads_seen=pa.int64(),
    delete_limit_base=pa.int64(),
    left_out_by_name=pa.string(),
    **_LOAD,
)
REJECTS_SCHEMA = _schema(
    f"reject_id {LOAD_ID}",
    reject_id=pa.string(),
    run_id=pa.string(),
    import_slug=pa.string(),
    record_slug=pa.string(),
    reason=pa.string(),
    payload=pa.string(),
    seen_at=UTC_US,
    **_LOAD,
)
FIELDS_SCHEMA = _schema(
    f"table_name column_name {LOAD_ID}",
    table_name=pa.string(),
    column_name=pa.string(),
    template_slug=pa.string(),
    path=pa.string(),
    keys=pa.string(),
    data_type=pa.string(),  # `overflowed`: no column, its values are in `_more`
    has_text=pa.bool_(),
    has_double=pa.bool_(),
    first_seen_at=UTC_US,
    last_seen_at=UTC_US,
    value_count=pa.int64(),
    null_count=pa.int64(),
    conflict_count=pa.int64(),
    **_LOAD,
)

PRIMARY_KEYS: Mapping[str, Sequence[str]] = {
    IMPORTS: ["slug"],
    LEDGER: ["slug"],
    RUNS: ["run_id"],
    REJECTS: ["reject_id"],
    FIELDS: ["table_name", "column_name"],
    RECORDS: ["slug"],
}
# Columns that are kept for an import that the service erased: its identity and what connects it to the ledger.
TOMBSTONE = (
    *("slug", "row_count", "created_at", "updated_at", "status", "template__slug", "template__name", "_deleted_at"),
    LOAD_ID,
)
SYSTEM_SCHEMAS: Mapping[str, pa.Schema] = {
    IMPORTS: IMPORTS_SCHEMA,
    LEDGER: LEDGER_SCHEMA,
    RUNS: RUNS_SCHEMA,
    REJECTS: REJECTS_SCHEMA,
    FIELDS: FIELDS_SCHEMA,
}


def keys_of(table: str) -> tuple[str, str]:
    """Return the columns with the slug of the record and of the import, in `records` or a typed table."""
    return ("slug", "import_slug") if table == RECORDS else ("_record_slug", "_import_slug")


def table_of(schema: pa.Schema, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return an Arrow table of rows given as dicts; a missing key is null."""
    return pa.Table.from_pylist([dict(row) for row in rows], schema=schema)


def ledger_table(rows: Sequence[LedgerRow]) -> pa.Table:
    """Return an Arrow table of ledger rows, built column by column."""
    columns = [pa.array([getattr(row, column.field) for row in rows], _ARROW[column.kind]) for column in LEDGER_COLUMNS]
    return pa.Table.from_arrays(columns, schema=LEDGER_SCHEMA)


def mark_deleted(rows: pa.Table, now: datetime, load_id: str) -> pa.Table:
    """Return the rows with `_deleted_at` set if it was not, and with the load that writes them again."""
    deleted_at = [value or now for value in rows.column("_deleted_at").to_pylist()]
    loads = pa.repeat(pa.scalar(load_id), rows.num_rows)
    for name, column in (("_deleted_at", pa.array(deleted_at, UTC_US)), (LOAD_ID, loads)):
        rows = rows.set_column(rows.column_names.index(name), name, column)
    return rows
