"""The tables this package writes (CONTRACT §3): their Arrow schemas, and how dlt merges each into the warehouse.

Every row carries the `_dlt_load_id` of its package, written here rather than by dlt's normalizer: it ties records,
typed rows and the ledger row of an import together, and whoever runs the source without our configuration gets it too.

All merges are delete-insert by a scope with a primary key: the one strategy of dlt that neither doubles rows when a
process dies between the destination's commit and dlt's own bookkeeping, nor leaves rows behind that an import lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

LOAD_ID = "_dlt_load_id"
UTC_US = pa.timestamp("us", tz="UTC")
NO_SLUG = ""  # stands for an import that has no rows left: it clears the scope and is itself kept out

SOURCE = "importer"  # the name of the dlt source, and so of its schema
RECORDS = "records"
IMPORTS = "imports"
LEDGER = "sync_imports"
RUNS = "sync_runs"
REJECTS = "sync_rejects"
FIELDS = "sync_fields"
TEMPLATE_HINT = "x-importer-template"  # of a typed table in dlt's schema, which keeps it while no row speaks of it


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
LEDGER_SCHEMA = _schema(
    f"slug {LOAD_ID}",
    slug=pa.string(),
    state=pa.string(),
    updated_at=UTC_US,
    row_count=pa.int64(),
    status=pa.string(),
    template_slug=pa.string(),
    table_name=pa.string(),
    has_raw=pa.bool_(),
    records_loaded=pa.int64(),
    records_rejected=pa.int64(),
    text_conflicts=pa.string(),  # JSON: column → scalars that it took as their text, which its values don't show
    killed_runs=pa.int64(),  # that died of reading it, at this version
    attempts=pa.int64(),
    error=pa.string(),
    last_synced_at=UTC_US,
    run_id=pa.string(),
    due=pa.string(),
    **_LOAD,
)
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

_PRIMARY_KEYS: Mapping[str, Sequence[str]] = {
    IMPORTS: ["slug"],
    LEDGER: ["slug"],
    RUNS: ["run_id"],
    REJECTS: ["reject_id"],
    FIELDS: ["table_name", "column_name"],
    RECORDS: ["slug"],
}
SYSTEM_SCHEMAS: Mapping[str, pa.Schema] = {
    IMPORTS: IMPORTS_SCHEMA,
    LEDGER: LEDGER_SCHEMA,
    RUNS: RUNS_SCHEMA,
    REJECTS: REJECTS_SCHEMA,
    FIELDS: FIELDS_SCHEMA,
}


@dataclass(frozen=True, slots=True)
class Emission:
    """Rows for one table; `json_columns` are text columns whose type in the warehouse is JSON where it has one.

    `template` is that of a typed table, '' where an import has none.
    """

    table: str
    rows: pa.Table
    json_columns: frozenset[str] = frozenset()
    template: str | None = None


def _replacing(record_key: str, import_key: str) -> dict[str, Any]:
    """All rows of the imports in the package are replaced, and a record that moved between imports moves.

    Rows are deleted by one set of keys: PostgreSQL can look those up in an index or in a hash table, while for each row
    of the table it would go through both parts of an OR of two sets.
    """
    scope = (
        f"{record_key} IN (SELECT {record_key} FROM {{staging_table}} UNION ALL "
        f"SELECT {record_key} FROM {{table}} WHERE {import_key} IN (SELECT {import_key} FROM {{staging_table}}))"
    )
    return {
        "disposition": "merge",
        "strategy": "delete-insert",
        "deduplicated": False,
        "destination_scope": scope,
        "source_filter": f"{record_key} <> '{NO_SLUG}'",
    }


def _upserting(key: str) -> dict[str, Any]:
    return {"disposition": "merge", "strategy": "delete-insert", "source_filter": f"{key} <> '{NO_SLUG}'"}


@dataclass(frozen=True, slots=True)
class Arrival:
    """What a package brings for one table of records: the slugs of its records, one by one, and of its imports.

    `distinct` if no slug comes twice, `replacing` if it has rows that only mean something to a merge (placeholders,
    rows carried over).
    """

    table: str
    records: pa.ChunkedArray[Any]
    imports: Sequence[str]
    distinct: bool
    replacing: bool


def keys_of(table: str) -> tuple[str, str]:
    """The columns with the slug of the record and of the import, in `records` or a typed table."""
    return ("slug", "import_slug") if table == RECORDS else ("_record_slug", "_import_slug")


def nothing(table: str) -> Emission:
    """A row that the merge keeps out: it makes the table exist, where an empty file would not load everywhere."""
    schema = RECORDS_SCHEMA if table == RECORDS else SYSTEM_SCHEMAS[table]
    row = {column.name: NO_SLUG for column in schema if not column.nullable}
    return Emission(table, table_of(schema, [row]))


def hints(emission: Emission) -> dict[str, Any]:
    """Arguments for `dlt.mark.make_hints`: key, merge, and the guard that no column ever changes its type."""
    table = emission.table
    if table == RECORDS:
        disposition, key = _replacing("slug", "import_slug"), _PRIMARY_KEYS[RECORDS]
    elif table in _PRIMARY_KEYS:
        disposition, key = _upserting(_PRIMARY_KEYS[table][0]), _PRIMARY_KEYS[table]
    else:
        disposition, key = _replacing("_record_slug", "_import_slug"), ["_record_slug"]
    return {
        "table_name": table,
        "write_disposition": disposition,
        "primary_key": list(key),
        "schema_contract": {"data_type": "freeze"},
        "file_format": "parquet",
        # also where no row of this package has a value: dlt keeps what it is told first and takes any change, even of
        # nullability, for another type
        "columns": [{"name": n, "data_type": "json", "nullable": True} for n in sorted(emission.json_columns)],
        "additional_table_hints": {} if emission.template is None else {TEMPLATE_HINT: emission.template},
    }


def table_of(schema: pa.Schema, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Rows as dicts → Arrow; a key that is missing is null."""
    return pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
