"""Describe the dataset as a dbt source: every table with its columns, what they mean, and tests that hold after a run.

Freshness is read from `sync_runs` only: unchanged rows are not loaded again, so the age of a row does not show how
fresh it is. The start of the last full run that succeeded does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml
from dlt.pipeline.pipeline import Pipeline

from connector.ledger import LEDGER_COLUMNS, State
from connector.reporting.views.applying import opened
from connector.reporting.views.layout import Layout, TypedField, TypedTable, read_layout
from connector.runs import Status
from connector.text import for_dbt
from connector.transform.naming import DOUBLE_VARIANT
from connector.warehouse import Connection
from connector.warehouse.runs_table import full_run_sql
from connector.warehouse.tables import FIELDS, IMPORTS, LEDGER, RECORDS, REJECTS, RUNS

SOURCE_NAME = "importer"
WRITTEN_BY = "# Written by `importer-sync dbt sources`"
_HEADER = f"{WRITTEN_BY}, for dbt 1.10.6 or later; run that again when fields were added.\n"
_TABLES: Mapping[str, str] = {
    IMPORTS: "Imports, one row each; the key that a column metadata__… or extra__… holds is in sync_fields.",
    RECORDS: "Records as received, one row each; data is the row as JSON, digit for digit.",
    RUNS: "Runs of the sync, one row each, failed and interrupted ones too.",
    LEDGER: "The ledger, one row per import: its state, and the version it was last synced at.",
    REJECTS: "What could not be loaded, as received, with the reason.",
    FIELDS: "The data dictionary: each field's original key, column and type, and how many values do not fit it.",
}
_COLUMNS: Mapping[str, Mapping[str, str]] = {
    IMPORTS: {
        "slug": "Key of the import.",
        "row_count": "Rows it has, as the service says.",
        "created_at": "When it was created (UTC).",
        "updated_at": "When it last changed (UTC).",
        "status": "created, submitting, submitted or completed.",
        "template__slug": "Key of its template; null where it has none.",
        "template__name": "Name of its template.",
        "metadata": "Its metadata as received, JSON.",
        "extra": "The fields that the interface does not name, JSON, values as received; null without any.",
        "records_metadata": "What the service sent beside its records when they were last read, JSON as received.",
        "_deleted_at": "When it was found to be gone from the service; null while it is listed.",
    },
    RECORDS: {
        "slug": "Key of the record.",
        "import_slug": "The import it belongs to.",
        "template_slug": "The template of that import.",
        "sort": "Its position in the import.",
        "data": "The row exactly as received, JSON.",
        "extra": "The record's fields that the interface does not name, JSON, values as received; null without any.",
        "_deleted_at": "When it was found to be gone; null while it exists.",
    },
    LEDGER: {column.name: column.meaning for column in LEDGER_COLUMNS},
    RUNS: {"run_id": "Key of the run.", "status": "succeeded, partial, failed, interrupted or running."},
    REJECTS: {"reject_id": "Key of the reject.", "reason": "Why it could not be loaded.", "payload": "As received."},
    FIELDS: {"path": "The original key, levels with dots between them.", "keys": "The same, exactly, as JSON."},
}
_TYPED_COLUMNS: Mapping[str, str] = {
    "_record_slug": "Key of the record.",
    "_import_slug": "The import it belongs to.",
    "_sort": "Its position in the import.",
    "_created_at": "When the record was created (UTC).",
    "_updated_at": "When it last changed (UTC).",
    "_deleted_at": "When it was found to be gone; null while it exists.",
    "_dlt_load_id": "The load that brought it.",
}
_UNIQUE = {IMPORTS: "slug", RECORDS: "slug", LEDGER: "slug", RUNS: "run_id", REJECTS: "reject_id"}
_OF_IMPORT = {RECORDS: "import_slug"}
_ACCEPTED = {
    (LEDGER, "state"): [state.value for state in State],
    (RUNS, "status"): [status.value for status in Status],
}
_WARN_AFTER, _ERROR_AFTER = {"count": 24, "period": "hour"}, {"count": 48, "period": "hour"}


def sources(pipeline: Pipeline) -> dict[str, Any]:
    """Return the contents of sources.yml, as plain values. Raises ConfigError if there is no warehouse yet."""
    warehouse, dialect = opened(pipeline)
    with warehouse.connect() as connection:
        layout = read_layout(connection, dialect)
        metadata = _metadata_paths(connection) if FIELDS in layout.tables else {}
    tables = [_system_table(layout, name, metadata) for name in _TABLES if name in layout.tables]
    tables += [_typed_table(layout, typed) for typed in layout.typed]
    source = {
        "name": SOURCE_NAME,
        "schema": layout.dataset,
        "description": "Imports and records of the Importer Service, as importer-sync loads them.",
        "tables": tables,
    }
    return {"version": 2, "sources": [source]}


def as_yaml(document: Mapping[str, Any]) -> str:
    return _HEADER + str(yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, width=120))


def _metadata_paths(connection: Connection) -> dict[str, str]:
    rows = connection.query(
        f"SELECT column_name, path FROM {connection.name(FIELDS)} WHERE table_name = %s", IMPORTS
    ).to_pylist()
    return {row["column_name"]: row["path"] for row in rows}


def _system_table(layout: Layout, name: str, metadata: Mapping[str, str]) -> dict[str, Any]:
    described = dict(_COLUMNS.get(name, {}))
    if name == IMPORTS:
        described = {**{column: f"`{path}` of the import." for column, path in metadata.items()}, **described}
    columns = [
        _column(column, kind, described.get(column), _tests(layout, name, column))
        for column, kind in layout.tables[name].items()
    ]
    freshness = {"warn_after": _WARN_AFTER, "error_after": _ERROR_AFTER, "filter": full_run_sql()}
    extra = {"config": {"loaded_at_field": "started_at", "freshness": freshness}} if name == RUNS else {}
    return {"name": name, "description": _TABLES[name], **extra, "columns": columns}


def _typed_table(layout: Layout, typed: TypedTable) -> dict[str, Any]:
    described = dict(_TYPED_COLUMNS)
    for field in typed.fields:
        described[field.column] = f"`{field.path}`"
        described.update({variant: _variant(field, variant) for variant in field.variants})
    of = "imports without a template" if typed.template is None else f"the template {typed.template}"
    columns = [
        _column(column, kind, described.get(column), _typed_tests(layout, column))
        for column, kind in layout.tables[typed.table].items()
    ]
    return {"name": typed.table, "description": for_dbt(f"Records of {of}, a column per field."), "columns": columns}


def _variant(field: TypedField, variant: str) -> str:
    what = "fractions" if variant.endswith(DOUBLE_VARIANT) else "values"
    return f"`{field.path}` where it has {what} that are not {field.type}."


def _column(name: str, kind: str, description: str | None, tests: list[Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"name": name}
    if description:
        made["description"] = for_dbt(description)
    made["data_type"] = kind
    if tests:
        made["data_tests"] = tests
    return made


def _tests(layout: Layout, table: str, column: str) -> list[Any]:
    tests: list[Any] = []
    if _UNIQUE.get(table) == column:
        tests += ["unique", "not_null"]
    if _OF_IMPORT.get(table) == column and IMPORTS in layout.tables:
        tests += ["not_null", _names_an_import()]
    if (table, column) in _ACCEPTED:
        tests.append({"accepted_values": {"arguments": {"values": _ACCEPTED[table, column]}}})
    return tests


def _typed_tests(layout: Layout, column: str) -> list[Any]:
    if column == "_record_slug":
        return ["unique", "not_null"]
    if column == "_import_slug" and IMPORTS in layout.tables:
        return ["not_null", _names_an_import()]
    return []


def _names_an_import() -> dict[str, Any]:
    """Return a new object each time, because PyYAML writes one that occurs twice as an anchor and an alias."""
    return {"relationships": {"arguments": {"to": f"source('{SOURCE_NAME}', '{IMPORTS}')", "field": "slug"}}}
