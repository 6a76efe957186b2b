"""Read the ledger and the table `imports`, slug by slug."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from connector.ledger import LEDGER_COLUMNS, LedgerColumn, LedgerRow, State
from connector.standing import Shown
from connector.text import composed
from connector.transform.naming import RULES_COLUMN
from connector.warehouse.connection import LOADS, Connection
from connector.warehouse.ownership import Dataset
from connector.warehouse.tables import IMPORTS, LEDGER, LEDGER_SCHEMA, LOAD_ID
from connector.warehouse.values import values_of


class ImportSeen(msgspec.Struct, frozen=True, gc=False):
    """An import in the table `imports`; a row of a load that was not completed counts only for `shown`."""

    content_hash: str | None
    deleted: bool
    shown: Shown | None = None  # None once it is marked as deleted
    status: str | None = None
    rules: str | None = None  # the fingerprint of the privacy rules that all of its metadata is under
    template_slug: str | None = None  # of the template that it was listed with last


def ledger_rows(connection: Connection, dataset: Dataset) -> dict[str, LedgerRow]:
    """Return the ledger by slug; a missing column, as in a ledger of an earlier version, is null."""
    if LEDGER not in dataset.ours:
        return {}
    chosen = selected(connection, dataset, LEDGER, LEDGER_SCHEMA.names, "s")
    known = "l.load_id IS NOT NULL"
    if LOADS not in dataset.ours:
        known = f"s.state = '{State.deleted}'" if "state" in dataset.columns[LEDGER] else "1 = 0"
    rows = connection.query(
        # without the table of loads, loads are unknown; deleted imports stay deleted, because their rows are audited
        f"SELECT {chosen}, CASE WHEN {known} THEN 1 ELSE 0 END AS trusted FROM {connection.name(LEDGER)} s "
        f"LEFT JOIN {connection.completed_loads(dataset.ours)} l "
        f"ON l.load_id = s.{connection.column(LOAD_ID)}"
    )
    return {row.slug: row for row in _parsed(rows, dataset.foreign)}


def _parsed(rows: pa.Table, foreign: Collection[str]) -> Iterator[LedgerRow]:
    """Yield the ledger rows; a lost column is null, which equals no listed version and no count."""
    read: list[list[Any]] = [_values(rows, column) for column in LEDGER_COLUMNS]
    counted = rows.column("records_loaded").is_valid().to_pylist()
    loaded: list[Any] = rows.column("trusted").to_pylist()
    names = [column.field for column in LEDGER_COLUMNS]
    states, tables = read[names.index("state")], read[names.index("table_name")]
    trusted = [
        bool(is_loaded) and (state is State.failed or bool(is_counted))
        for state, is_counted, is_loaded in zip(states, counted, loaded, strict=True)
    ]
    taken = {table for table in set(tables) if table is not None and table.casefold() in foreign}
    read[names.index("table_name")] = [None if table in taken else table for table in tables]
    yield from map(LedgerRow, *read, trusted)  # `trusted` is the field after the columns


def _values(rows: pa.Table, column: LedgerColumn) -> list[Any]:
    """Return the values of a column, with one object for equal values, because most occur in many rows."""
    if column.name == "slug":  # all values are distinct
        return rows.column(column.name).to_pylist()
    read: Mapping[Any, Any] = {None: column.absent}
    if column.kind is State:
        read = {None: column.absent, **{state.value: state for state in State}}
    if column.kind is bool:
        read = {None: column.absent, 0: False, 1: True}
    return values_of(rows.column(column.name), read)


def imports_seen(connection: Connection, dataset: Dataset) -> dict[str, ImportSeen]:
    """Return the table `imports` by slug; a missing column is null."""
    return imports_and_templates(connection, dataset).seen


class StoredImports(NamedTuple):
    """The table `imports` by slug, and the slug and name of each template in it, and in rows not marked as deleted."""

    seen: dict[str, ImportSeen]
    templates: Set[tuple[str | None, str | None]]
    current: Set[tuple[str | None, str | None]]


def imports_and_templates(connection: Connection, dataset: Dataset) -> StoredImports:
    """Return what is known of imports and templates from `imports`, by one query."""
    if IMPORTS not in dataset.ours:
        return StoredImports({}, set(), set())
    there = dataset.columns[IMPORTS]
    names = ("_content_hash", "_deleted_at", "updated_at", "row_count", "status", "template__slug", "template__name")
    content_hash, deleted_at, updated_at, row_count, status, template, title, rules = (
        f"i.{connection.column(name)}" if name in there else "NULL" for name in (*names, RULES_COLUMN)
    )
    lost = "l.load_id IS NULL" if LOADS in dataset.ours else "1 = 0"
    # a row of a load that was never completed counts as neither written nor deleted, but its import is known:
    # it may have been deleted since, and no other row may mention it
    rows = connection.query(
        f"SELECT i.slug, CASE WHEN l.load_id IS NULL THEN NULL ELSE {content_hash} END AS content_hash, "
        f"CASE WHEN {lost} OR {deleted_at} IS NULL THEN 0 ELSE 1 END AS deleted, "
        f"CASE WHEN {deleted_at} IS NULL THEN 1 ELSE 0 END AS live, {updated_at} AS updated_at, "
        f"{row_count} AS row_count, {status} AS status, {template} AS template_slug, {title} AS template_name, "
        f"{rules} AS rules "
        f"FROM {connection.name(IMPORTS)} i LEFT JOIN {connection.completed_loads(dataset.ours)} l "
        f"ON l.load_id = i.{connection.column(LOAD_ID)}"
    )
    times, counts = values_of(rows.column("updated_at")), values_of(rows.column("row_count"))
    shown = [
        Shown(*version) if live else None
        for live, *version in zip(values_of(rows.column("live")), times, counts, strict=True)
    ]
    deleted = map(bool, values_of(rows.column("deleted")))
    slugs: list[Any] = rows.column("slug").to_pylist()
    hashes = rows.column("content_hash").to_pylist()
    named = {"template__slug", "template__name"} <= there.keys()  # a name without its slug is of no template
    titles = [None if name is None else composed(name) for name in values_of(rows.column("template_name"))]
    templates = list(zip(values_of(rows.column("template_slug")), titles, strict=True))
    current = {pair for pair, version in zip(templates, shown, strict=True) if version is not None}
    others = [values_of(rows.column(name)) for name in ("status", "rules", "template_slug")]
    seen = map(ImportSeen, hashes, deleted, shown, *others)
    by_slug = dict(zip(slugs, seen, strict=True))
    return StoredImports(by_slug, set(templates), current) if named else StoredImports(by_slug, set(), set())


def selected(connection: Connection, dataset: Dataset, table: str, names: Sequence[str], alias: str) -> str:
    """Return the SQL of the columns of a table by name, null for missing ones."""
    there = dataset.columns[table]
    return ", ".join(
        f"{alias}.{connection.column(name)} AS {connection.column(name)}"
        if name in there
        else f"NULL AS {connection.column(name)}"
        for name in names
    )
