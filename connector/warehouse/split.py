"""Divide a full backfill among several processes, with the temporary table `sync_shards`.

Invariants:

1. Every import belongs to one shard: to that of its template in the table or, if all shards share the template, to the
   one given by its slug (`connector.scope.Part`). No two shards write a row of the same import.
2. Tables that several shards write (`imports`, and the typed tables of shared templates) get no new column meanwhile,
   and no row of `sync_fields`. An import that would need a new column is left to the run after the shards.
3. The run after the shards checks every row, finds imports that no shard or two shards loaded, and counts the fields of
   shared tables again.

The table is created in one statement, once all tables exist and all imports are marked as due. It is dropped when a run
that excludes all others has marked in the ledger which imports it has to read again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from connector.errors import ConfigError
from connector.scope import Part
from connector.warehouse.connection import VERSIONS, Connection
from connector.warehouse.ledger_table import mark_failed
from connector.warehouse.ownership import Dataset, staged
from connector.warehouse.state import WarehouseState
from connector.warehouse.tables import IMPORTS, LEDGER, keys_of

log = logging.getLogger("connector.run")

SHARDS = "sync_shards"
SHARED = 0  # instead of a shard's number
_COLUMNS = frozenset({"template_slug", "table_name", "shard", "shards"})


@dataclass(frozen=True, slots=True)
class Split:
    """The number of shards, and for each template its shard and its typed tables ('' for imports without a template).

    The shard is SHARED if all shards share the template.
    """

    shards: int
    assigned: Mapping[str, int]
    tables: Mapping[str, str]

    def part(self, shard: int) -> Part:
        return Part(shard, self.shards, self._of(shard), self._of(SHARED))

    @property
    def shared_tables(self) -> frozenset[str]:
        """Return the typed tables that all shards write."""
        return self.tables_of(self._of(SHARED))

    def tables_of(self, templates: Collection[str]) -> frozenset[str]:
        """Return the typed tables of these templates."""
        return frozenset(table for table, template in self.tables.items() if template in templates)

    def _of(self, shard: int) -> frozenset[str]:
        return frozenset(template for template, owner in self.assigned.items() if owner == shard)


def split_of(connection: Connection, dataset: Dataset) -> Split | None:
    """Return how the work is divided; None if it is not. A table of that name with other columns belongs to others."""
    if set(dataset.columns.get(SHARDS, ())) != _COLUMNS:
        return None
    rows = connection.query(f"SELECT * FROM {connection.name(SHARDS)}").to_pylist()
    assigned = {row["template_slug"]: int(row["shard"]) for row in rows if row["template_slug"] is not None}
    tables = {row["table_name"]: row["template_slug"] for row in rows if row["table_name"]}
    return Split(max((int(row["shards"]) for row in rows), default=0), assigned, tables)


def write_split(connection: Connection, split: Split) -> None:
    """Store how the work is divided, in one statement; raise ConfigError if others have a table of that name."""
    if SHARDS in connection.columns():
        raise ConfigError(
            f"The dataset has a table {SHARDS!r} that is not the connector's; rename it, or leave out --shard."
        )
    rows: list[tuple[str | None, str | None, int]] = [(None, None, 0)]
    tables: dict[str, list[str | None]] = {}
    for table, template in split.tables.items():
        tables.setdefault(template, []).append(table)
    for template, shard in split.assigned.items():
        rows += [(template, table, shard) for table in tables.get(template) or [None]]
    row = f"(CAST(%s AS varchar), CAST(%s AS varchar), CAST(%s AS integer), {split.shards})"
    connection.execute(
        f"CREATE TABLE {connection.name(SHARDS)} AS SELECT * FROM (VALUES {', '.join([row] * len(rows))}) "
        "AS s (template_slug, table_name, shard, shards)",
        *(value for each in rows for value in each),
    )


def intact_tables(state: WarehouseState) -> frozenset[str]:
    """Return the typed tables that have columns of fields, all of which exist unchanged and are in `sync_fields`."""
    filled = {table for table, schema in state.schemas.items() if any(each.type for each in schema.fields.values())}
    return frozenset(filled & state.intact - {IMPORTS})


def mark_duplicates_failed(connection: Connection, dataset: Dataset) -> None:
    """Mark imports that share a record with another one, because two shards may have loaded it at the same time."""
    if LEDGER not in dataset.ours:
        return
    for table in sorted(dataset.tables_of_records):
        record, import_ = map(connection.column, keys_of(table))
        name = connection.name(table)
        rows = connection.query(
            f"SELECT DISTINCT {import_} AS slug FROM {name} "
            f"WHERE {record} IN (SELECT {record} FROM {name} GROUP BY 1 HAVING count(*) > 1)"
        ).to_pylist()
        mark_failed(connection, [row["slug"] for row in rows], "Some of its records came with another import as well.")


def end_of_split(connection: Connection, split: Split) -> None:
    """Drop the staging schemas of the shards and the table `sync_shards`."""
    for shard in range(1, split.shards + 1):
        schema = f"{connection.client.staging_dataset_name}_{staging_suffix(shard)}"
        with connection.client.with_alternative_dataset_name(schema):
            tables, taken = connection.names()
        indexes = {name for name in taken - tables if name.endswith(("_pkey", "_key", "_idx"))}
        if VERSIONS in tables and taken - indexes - {VERSIONS} <= staged(connection, schema):
            connection.execute(f"DROP SCHEMA {connection.column(schema)} CASCADE")
    connection.execute(f"DROP TABLE {connection.name(SHARDS)}")


def staging_suffix(shard: int) -> str:
    """Return the suffix of the name of a shard's staging schema."""
    return f"shard_{shard}"
