"""Count the values of the fields of a typed table, which `sync_fields` shows.

Invariant: a package adds its own values to the counts that `sync_fields` has, and subtracts those of the rows that it
replaces, which are looked up by key. So it costs in proportion to its rows, not to the table. That is exact only if the
counts were: wherever the rows are audited, they are compared with the values too (`state`), and a table whose counts
disagree with the ledger is counted anew. The conflicts in `sync_fields` are those in variant columns and those that the
ledger has.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from connector.ledger import LedgerRow
from connector.transform.naming import decode_keys
from connector.transform.schema import OVERFLOWED, Keys, TableSchema
from connector.warehouse.connection import Connection, marks
from connector.warehouse.lookup import incoming_slugs
from connector.warehouse.tables import FIELDS, IMPORTS, LOAD_ID, keys_of


@dataclass(frozen=True, slots=True)
class TableTotals:
    """The live rows of a typed table, and for each field (its values, those of them that are conflicts)."""

    rows: int = 0
    fields: Mapping[Keys, tuple[int, int]] = field(default_factory=dict)

    def without(self, some: TableTotals) -> TableTotals:
        """Return the totals less those of some of the rows."""
        left = {
            keys: (values - gone[0], conflicts - gone[1])
            for keys, (values, conflicts) in self.fields.items()
            for gone in [some.fields.get(keys, (0, 0))]
        }
        return TableTotals(self.rows - some.rows, left)


def stored_totals(fields: Iterable[Mapping[str, Any]], ledger: Iterable[LedgerRow]) -> dict[str, TableTotals]:
    """Return the totals in the rows of `sync_fields`, as `totals` counts them, of tables whose rows are consistent."""
    in_text = _conflicts_in_text(ledger)
    found: dict[str, dict[Keys, tuple[int, int]]] = defaultdict(dict)
    rows: dict[str, int] = {}
    unusable = {IMPORTS}
    for row in fields:
        table = row["table_name"]
        if row["data_type"] == OVERFLOWED or table in unusable:
            continue
        values, nulls, conflicts = row["value_count"], row["null_count"], row["conflict_count"]
        if (
            not row["trusted"]
            or None in (values, nulls, conflicts)
            or values + nulls != rows.setdefault(table, values + nulls)
        ):
            unusable.add(table)
        else:
            found[table][decode_keys(row["keys"])] = values, conflicts - in_text[table][row["column_name"]]
    return {table: TableTotals(rows[table], each) for table, each in found.items() if table not in unusable}


def _conflicts_in_text(ledger: Iterable[LedgerRow]) -> dict[str, Counter[str]]:
    """Return table → column → scalars that the text column stores as their text, which the ledger counts."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for known in ledger:
        if known.text_conflicts and known.table_name:
            found[known.table_name].update(json.loads(known.text_conflicts))
    return found


def totals(connection: Connection, schema: TableSchema, without: Sequence[str] = ()) -> TableTotals:
    """Count the rows and values of all imports but some by reading the whole table.

    A conflict is a value in a variant column.
    """
    kept = f" AND r.{connection.column('_import_slug')} NOT IN ({marks(without)})" if without else ""
    return _totals(connection, schema, f"{connection.name(schema.table)} AS r", kept, without)


def replaced_totals(
    connection: Connection, schema: TableSchema, imports: Sequence[str], records: pa.ChunkedArray[Any]
) -> TableTotals:
    """Count the rows that a package replaces, as `totals` does: those of its imports, and of its records elsewhere."""
    table = connection.name(schema.table)
    record, import_ = map(connection.column, keys_of(schema.table))
    keys = (
        f"SELECT slug FROM incoming_records UNION ALL "
        f"SELECT {record} FROM {table} WHERE {import_} IN (SELECT slug FROM incoming_imports)"
    )
    with incoming_slugs(connection, imports, records):
        rows = connection.rows_with_keys(schema.table, "r", record, keys)
        return _totals(connection, schema, rows, slugs=len(imports) + len(records))


def _totals(
    connection: Connection,
    schema: TableSchema,
    rows_of: str,
    where: str = "",
    values: Sequence[str] = (),
    slugs: int = 0,
) -> TableTotals:
    fields = list(schema.fields.values())
    counts = [f"count(r.{connection.column(c)})" for f in fields for c in f.columns() if c in schema.physical]
    selected = ", ".join(f"{what} AS c{n}" for n, what in enumerate(["count(*)", *counts]))
    with connection.limited_memory(columns=len(counts) + 2, slugs=slugs):
        row = connection.rows(
            f"SELECT {selected} FROM {rows_of} WHERE r.{connection.column('_deleted_at')} IS NULL{where}", *values
        )[0]
    numbers = iter([row[f"c{n}"] for n in range(len(counts) + 1)])
    rows = next(numbers)
    found: dict[Keys, tuple[int, int]] = {}
    for f in fields:
        by_column = {c: next(numbers) for c in f.columns() if c in schema.physical}
        total = sum(by_column.values())
        found[f.keys] = (total, total - by_column.get(f.column, 0))
    return TableTotals(rows, found)


def invalidate_counts(connection: Connection, tables: Collection[str]) -> None:
    """Make the next run count the values of these typed tables anew."""
    if tables:
        connection.execute(
            f"UPDATE {connection.name(FIELDS)} SET {connection.column(LOAD_ID)} = '' "
            f"WHERE table_name IN ({marks(tables)})",
            *sorted(tables),
        )
