"""Read `sync_fields`, and compare it with the existing columns.

Invariant: a column's values belong to the field that `sync_fields` names, or to no field.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from connector.transform import width
from connector.transform.naming import RULES_COLUMN, SYSTEM_COLUMNS, decode_keys
from connector.transform.schema import NOT_OURS, OVERFLOWED, Field, Keys, TableSchema, is_stored_as
from connector.warehouse.connection import LOADS, VERSIONS, Connection
from connector.warehouse.ownership import Dataset
from connector.warehouse.stored_imports import selected
from connector.warehouse.tables import (
    FIELDS,
    FIELDS_SCHEMA,
    IMPORTS,
    IMPORTS_SCHEMA,
    LOAD_ID,
    RECORDS,
    RECORDS_SCHEMA,
    SYSTEM_SCHEMAS,
    TYPED_SCHEMA,
    UTC_US,
)

_KINDS = {pa.string(): "text", pa.int64(): "bigint", pa.bool_(): "bool", UTC_US: "timestamp"}


class Altered(NamedTuple):
    """A column that has the type `there`, and whose values need the type `wanted`."""

    there: str
    wanted: str


def field_rows(connection: Connection, dataset: Dataset) -> list[dict[str, Any]]:
    """Return the rows of `sync_fields`, except those whose `keys` are null, by which no field can be found."""
    if FIELDS not in dataset.ours or not {"keys", "data_type"} <= set(dataset.columns[FIELDS]):
        return []
    rows = connection.query(
        f"SELECT {selected(connection, dataset, FIELDS, FIELDS_SCHEMA.names, 'f')}, "
        f"CASE WHEN l.load_id IS NULL THEN 0 ELSE 1 END AS trusted "
        f"FROM {connection.name(FIELDS)} f "
        f"LEFT JOIN {connection.completed_loads(dataset.ours)} l "
        f"ON l.load_id = f.{connection.column(LOAD_ID)}"
    ).to_pylist()
    return [row for row in rows if row["keys"] is not None]


def schemas_of(dataset: Dataset, fields: Sequence[Mapping[str, Any]]) -> dict[str, TableSchema]:
    """Return the schemas of `imports` and of the typed tables, by these rows of `sync_fields` and the columns there."""
    by_table: dict[str, dict[Keys, Field]] = defaultdict(dict)
    overflowed: dict[str, set[Keys]] = defaultdict(set)
    for row in sorted(
        fields, key=lambda row: row["data_type"] is not None
    ):  # of two columns, the one with values counts
        keys = decode_keys(row["keys"])
        if row["data_type"] is None and row["column_name"] in dataset.added.get(row["table_name"], ()):
            continue  # a field without values has no column yet, and others took the name that it was to have
        if row["data_type"] == OVERFLOWED:
            if row["table_name"] != IMPORTS:
                overflowed[row["table_name"]].add(keys)
            continue
        by_table[row["table_name"]][keys] = Field(
            keys, row["column_name"], row["data_type"], bool(row["has_text"]), bool(row["has_double"])
        )
    return {
        table: TableSchema(
            table,
            by_table.get(table, {}),
            _physical(dataset, table),
            frozenset(overflowed.get(table, ())),
            len(overflowed.get(table, ())) >= width.WIDTH.listed,
        )
        for table in {*dataset.typed, *by_table, IMPORTS}
    }


def _physical(dataset: Dataset, table: str) -> dict[str, str]:
    """Return the existing columns of a table with their types."""
    if table not in dataset.ours:
        return {}
    added = dataset.added.get(table, ())
    return {name: NOT_OURS if name in added else kind for name, kind in dataset.columns[table].items()}


def template_tables(dataset: Dataset, ledger: Any, fields: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return typed table → slug of its template ('' for imports without one)."""
    found = {table: slug for table, slug in dataset.templates.items() if table in dataset.ours}
    found.update({k.table_name: k.template_slug or "" for k in ledger if k.table_name})
    found.update({f["table_name"]: f["template_slug"] or "" for f in fields if f["table_name"] != IMPORTS})
    return found


def dropped_columns(dataset: Dataset, schemas: Mapping[str, TableSchema]) -> dict[str, frozenset[str]]:
    """Return table → its missing columns, by dlt's newest schema and `sync_fields`.

    Earlier schemas have columns that a rebuild left out.
    """
    found: dict[str, frozenset[str]] = {}
    for table in dataset.ours - {LOADS, VERSIONS}:
        known = schemas[table].fields.values() if table in schemas else ()
        wanted = {*dataset.current.get(table, ()), *(column for each in known for column in each.columns())}
        if missing := wanted - set(dataset.columns[table]):
            found[table] = frozenset(missing)
    return found


def altered_columns(dataset: Dataset, schemas: Mapping[str, TableSchema]) -> dict[str, dict[str, Altered]]:
    """Return table → columns whose type somebody changed; values loaded into them would be rounded or cut."""
    found: dict[str, dict[str, Altered]] = {}
    for table in sorted((dataset.ours & {RECORDS, *SYSTEM_SCHEMAS}) | (dataset.ours & schemas.keys())):
        system = {RECORDS: RECORDS_SCHEMA, **SYSTEM_SCHEMAS}.get(table, TYPED_SCHEMA)
        wanted = {column.name: _KINDS[column.type] for column in system}
        if table in schemas:
            for known in schemas[table].fields.values():
                wanted.update(known.columns())
        there = dataset.columns[table]
        wrong = {name: Altered(there[name], kind) for name, kind in wanted.items() if name in there}
        if wrong := {name: each for name, each in wrong.items() if not is_stored_as(*each)}:
            found[table] = wrong
    return found


def unexplained_columns(dataset: Dataset, schemas: Mapping[str, TableSchema]) -> dict[str, frozenset[str]]:
    """Return table → columns that dlt created and no field names; columns that dlt did not create are the user's."""
    found: dict[str, frozenset[str]] = {}
    for table, schema in schemas.items():
        if table in dataset.ours:
            ours = SYSTEM_COLUMNS if table != IMPORTS else (*IMPORTS_SCHEMA.names, RULES_COLUMN)
            known = {*ours, *(column for each in schema.fields.values() for column in each.columns())}
            if unknown := dataset.made.get(table, frozenset()) & set(schema.physical) - known:
                found[table] = frozenset(unknown)
    return found
