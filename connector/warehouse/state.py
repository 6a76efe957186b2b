"""What earlier runs left: ledger, imports, field names; and whether the rows are those that the ledger speaks of.

The ledger (docs/guarantees.md, "Incremental") decides what is read. A row of it is trusted only if

1. dlt completed the load it came with (`_dlt_loads.status = 0`), and
2. after a run that did not end properly, the rows of that import are really there: as many live ones as the ledger
   says, each from the ledger row's own load, in its own table and nowhere else. Every run looks again until one finds
   all in order, for the run after a dead one may be bounded, stopped or refused, and not repair what it found.

Everything else is read again; rows of imports the ledger does not know become suspects like vanished imports do.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa

from connector.ledger import LEDGER_COLUMNS, LedgerColumn, LedgerRow, State
from connector.runs import UNSETTLED, Status
from connector.standing import Shown
from connector.transform import width
from connector.transform.naming import SYSTEM_COLUMNS, decode_keys
from connector.transform.schema import NOT_OURS, OVERFLOWED, Field, Keys, TableSchema, is_stored_as
from connector.warehouse.connection import LOADS, VERSIONS, Connection
from connector.warehouse.history_tables import names_of_templates
from connector.warehouse.ownership import Dataset, take_stock
from connector.warehouse.tables import (
    FIELDS,
    FIELDS_SCHEMA,
    IMPORTS,
    IMPORTS_SCHEMA,
    LEDGER,
    LEDGER_SCHEMA,
    LOAD_ID,
    RECORDS,
    RUNS,
    SYSTEM_SCHEMAS,
)
from connector.warehouse.values import values_of


class ImportSeen(msgspec.Struct, frozen=True, gc=False):
    """An import as the table `imports` has it; what a load brought that was not completed counts as `shown` alone."""

    content_hash: str | None
    deleted: bool
    shown: Shown | None = None  # None once it is marked as deleted


@dataclass(frozen=True, slots=True)
class WarehouseState:
    """Everything a run needs to know of earlier ones.

    `tables` are those that are ours, `foreign` the names that others have taken (see `ownership`). `homes` are the
    typed tables that hold rows of an import; `miscounted` those whose counts in `sync_fields` came with a load that was
    never completed, or are not of the rows that are there; `counted` is of how many rows `sync_fields` speaks for each
    typed table; `template_names` are the names that each template has or had, by its slug; `sound` is false while rows
    contradict the ledger; `audited` tells that the rows themselves were looked at, as an earlier run did not end
    properly. By table, `dropped` are columns that we once made and that are not there, `altered` those that have
    another type than their field, with the one it has, `unexplained` those that dlt made for a field that `sync_fields`
    does not know.

    A shard knows the ledger rows of its templates alone, and which imports the ledger has `elsewhere`.
    """

    tables: frozenset[str] = frozenset()
    foreign: frozenset[str] = frozenset()
    dropped: Mapping[str, frozenset[str]] = field(default_factory=dict)
    altered: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    unexplained: Mapping[str, frozenset[str]] = field(default_factory=dict)
    ledger: Mapping[str, LedgerRow] = field(default_factory=dict)
    imports: Mapping[str, ImportSeen] = field(default_factory=dict)
    schemas: Mapping[str, TableSchema] = field(default_factory=dict)
    first_seen: Mapping[tuple[str, str], datetime] = field(default_factory=dict)
    template_tables: Mapping[str, str] = field(default_factory=dict)
    template_names: Mapping[str, Set[str]] = field(default_factory=dict)
    homes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    miscounted: frozenset[str] = frozenset()
    counted: Mapping[str, frozenset[int | None]] = field(default_factory=dict)
    repaired: int = 0
    sound: bool = True
    audited: bool = False
    elsewhere: frozenset[str] = frozenset()

    @property
    def lost(self) -> frozenset[str]:
        """Tables that hold rows by the word of the ledger, and are not there."""
        filled = [k for k in self.ledger.values() if k.records_loaded and k.live and k.state is not State.excluded]
        wanted = {RECORDS} if any(known.has_raw for known in filled) else set()
        return frozenset(wanted | {known.table_name for known in filled if known.table_name}) - self.tables

    @property
    def lacking(self) -> frozenset[str]:
        """Tables of a warehouse that dlt has to make or to complete, though it may take them for whole."""
        wanted = frozenset({*SYSTEM_SCHEMAS, LOADS})
        return (wanted - self.tables | self.lost | frozenset(self.dropped)) if self.tables else frozenset()


def recall(connection: Connection, dataset: Dataset | None = None, *, in_doubt: bool = False) -> WarehouseState:
    """Reads everything; audits the rows themselves unless nothing speaks against them, or if they are `in_doubt`.

    That is: all runs ended properly, all loads completed, and no table is missing.
    """
    state = remembered(connection, dataset)
    clean = not in_doubt and all(known.trusted for known in state.ledger.values()) and not state.lost
    there = {LEDGER, LOADS} <= state.tables or not state.tables
    return state if clean and there and _ended_properly(connection, state.tables) else _recovered(connection, state)


def remembered(
    connection: Connection, dataset: Dataset | None = None, part: frozenset[str] | None = None
) -> WarehouseState:
    """What the tables of this package say, taken at their word, whichever of them are there; or of those of a `part`.

    That has slugs of templates, '' for none. A shard, whose part it is, audits no rows: the run after all shards does.
    """
    dataset = dataset or take_stock(connection)
    tables = dataset.ours
    fields = [f for f in _fields(connection, dataset) if f["table_name"].casefold() not in dataset.foreign]
    everything = ledger_rows(connection, dataset)
    ledger = everything
    if part is not None:
        ledger = {s: k for s, k in everything.items() if (k.template_slug or "") in part}
    homes = {table: frozenset({table} if table else ()) for table in {k.table_name for k in ledger.values()}}
    schemas = _schemas(dataset, fields)
    return WarehouseState(
        tables=tables,
        foreign=dataset.foreign,
        dropped=_dropped(dataset, schemas),
        altered=_altered(schemas),
        unexplained=_unexplained(dataset, schemas),
        ledger=ledger,
        imports=imports_seen(connection, dataset),
        schemas=schemas,
        first_seen={(f["table_name"], f["column_name"]): f["first_seen_at"] for f in fields},
        template_tables=_template_tables(dataset, ledger.values(), fields),
        template_names=names_of_templates(connection, dataset),
        homes={slug: homes[known.table_name] for slug, known in ledger.items()},
        miscounted=frozenset(f["table_name"] for f in fields if not f["trusted"]) - {IMPORTS},
        elsewhere=frozenset(everything.keys() - ledger.keys()),
        counted=_counted(fields),
    )


def ledger_rows(connection: Connection, dataset: Dataset) -> dict[str, LedgerRow]:
    """The ledger, slug by slug; a column that is not there, as in a ledger of an earlier version, is null."""
    if LEDGER not in dataset.ours:
        return {}
    chosen = selected(connection, dataset, LEDGER, LEDGER_SCHEMA.names, "s")
    known = "l.load_id IS NOT NULL" if LOADS in dataset.ours else f"s.state = '{State.deleted}'"
    rows = connection.query(
        # without the table of loads nothing is known of them, and what was deleted stays so: its rows are audited
        f"SELECT {chosen}, CASE WHEN {known} THEN 1 ELSE 0 END AS trusted FROM {connection.name(LEDGER)} s "
        f"LEFT JOIN {connection.completed_loads(dataset.ours)} l "
        f"ON l.load_id = s.{connection.column(LOAD_ID)}"
    )
    return {row.slug: row for row in _parsed(rows, dataset.foreign)}


def _parsed(rows: pa.Table, foreign: Collection[str]) -> Iterator[LedgerRow]:
    """A column that was lost is null, which is not what any import listed says, or its count."""
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
    yield from map(LedgerRow, *read, trusted)  # `trusted` is the field behind the columns


def _values(rows: pa.Table, column: LedgerColumn) -> list[Any]:
    """The values of a column, equal ones as one object: most are the same in many rows."""
    if column.name == "slug":  # no two are equal
        return rows.column(column.name).to_pylist()
    read: Mapping[Any, Any] = {None: column.absent}
    if column.kind is State:
        read = {None: column.absent, **{state.value: state for state in State}}
    if column.kind is bool:
        read = {None: column.absent, 0: False, 1: True}
    return values_of(rows.column(column.name), read)


def selected(connection: Connection, dataset: Dataset, table: str, names: Sequence[str], alias: str) -> str:
    """The columns of a table by name, null for those that are not there."""
    there = dataset.columns[table]
    return ", ".join(
        f"{alias}.{connection.column(name)} AS {connection.column(name)}"
        if name in there
        else f"NULL AS {connection.column(name)}"
        for name in names
    )


def imports_seen(connection: Connection, dataset: Dataset) -> dict[str, ImportSeen]:
    """The table `imports`, slug by slug; a column that is not there is null."""
    if IMPORTS not in dataset.ours:
        return {}
    there = dataset.columns[IMPORTS]
    content_hash, deleted_at, updated_at, row_count = (
        f"i.{connection.column(name)}" if name in there else "NULL"
        for name in ("_content_hash", "_deleted_at", "updated_at", "row_count")
    )
    lost = "l.load_id IS NULL" if LOADS in dataset.ours else "1 = 0"
    # a row of a load that was never completed counts as neither written nor deleted, but its import is known:
    # it may have been deleted since, and nothing else may speak of it
    rows = connection.query(
        f"SELECT i.slug, CASE WHEN l.load_id IS NULL THEN NULL ELSE {content_hash} END AS content_hash, "
        f"CASE WHEN {lost} OR {deleted_at} IS NULL THEN 0 ELSE 1 END AS deleted, "
        f"CASE WHEN {deleted_at} IS NULL THEN 1 ELSE 0 END AS live, {updated_at} AS updated_at, "
        f"{row_count} AS row_count FROM {connection.name(IMPORTS)} i "
        f"LEFT JOIN {connection.completed_loads(dataset.ours)} l "
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
    return dict(zip(slugs, map(ImportSeen, hashes, deleted, shown), strict=True))


def _fields(connection: Connection, dataset: Dataset) -> list[dict[str, Any]]:
    """The rows of `sync_fields`; one that does not say which field it is about counts as lost."""
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


def _counted(fields: Sequence[Mapping[str, Any]]) -> dict[str, frozenset[int | None]]:
    found: dict[str, set[int | None]] = defaultdict(set)
    for row in fields:
        if row["table_name"] != IMPORTS and row["data_type"] != OVERFLOWED:
            both = row["value_count"], row["null_count"]
            found[row["table_name"]].add(None if None in both else sum(both))
    return {table: frozenset(counts) for table, counts in found.items()}


def _ended_properly(connection: Connection, tables: frozenset[str]) -> bool:
    if not {RUNS, LOADS} <= tables:
        return False
    load_id = connection.column(LOAD_ID)
    rows = connection.rows(
        f"SELECT count(*) AS n, sum(CASE WHEN status = '{Status.running}' OR error_kind = '{UNSETTLED}' OR "
        f"({load_id} IS NOT NULL AND {load_id} <> '' AND {load_id} NOT IN {connection.completed_loads(tables)}) "
        f"THEN 1 ELSE 0 END) AS dead FROM {connection.name(RUNS)}"
    )
    return bool(rows[0]["n"]) and not rows[0]["dead"] and not loaded_late(connection)


def loaded_late(connection: Connection) -> bool:
    """Whether a package was completed after a later run had begun or ended: dlt alone finishes what a dead run left.

    That package may have been superseded since. The one that brings the row of its run is always completed later than
    that run ended. It may be the package of an earlier run all the same: then it was made before the latest one began.
    """
    runs, load_id = connection.name(RUNS), connection.column(LOAD_ID)
    loads = connection.rows(
        f"SELECT load_id, CASE WHEN inserted_at > (SELECT max(finished_at) FROM {runs}) AND "
        f"load_id NOT IN (SELECT COALESCE({load_id}, '') FROM {runs}) THEN 1 ELSE 0 END AS behind_all "
        f"FROM {connection.name(LOADS)} WHERE status = 0 AND inserted_at > (SELECT max(started_at) FROM {runs})"
    )
    if not loads or any(each["behind_all"] for each in loads):
        return bool(loads)
    [latest] = connection.query(
        f"SELECT started_at, {load_id} AS load_id FROM {runs} ORDER BY started_at DESC LIMIT 1"
    ).to_pylist()
    others = (each["load_id"] for each in loads if each["load_id"] != latest["load_id"])
    return any(_made_at(other) < latest["started_at"].timestamp() for other in others)


def _made_at(load_id: str) -> float:
    """Return when dlt made a package, in seconds since 1970, as its id says."""
    try:
        return float(load_id)
    except ValueError:
        return math.inf


def rows_by_import(
    connection: Connection, state: WarehouseState, only: Collection[str] | None = None
) -> dict[str, dict[str, tuple[int, set[str]]]]:
    """Table → import → (live rows, loads its rows came with), by one scan of each table."""
    found: dict[str, dict[str, tuple[int, set[str]]]] = {}
    tables = ({RECORDS, *state.schemas} & state.tables - {IMPORTS}) | state.lost
    for table in sorted(tables if only is None else tables & set(only)):
        if table in state.lost:
            found[table] = {}
            continue
        key = "import_slug" if table == RECORDS else "_import_slug"
        rows = connection.query(
            f"SELECT {connection.column(key)} AS slug, {connection.column(LOAD_ID)} AS load_id, "
            f"sum(CASE WHEN {connection.column('_deleted_at')} IS NULL THEN 1 ELSE 0 END) AS live "
            f"FROM {connection.name(table)} GROUP BY 1, 2"
        ).to_pylist()
        counts: dict[str, tuple[int, set[str]]] = {}
        for row in rows:
            live, loads = counts.get(row["slug"], (0, set()))
            counts[row["slug"]] = (live + int(row["live"]), loads | {row["load_id"]})
        found[table] = counts
    return found


def audit(
    connection: Connection, state: WarehouseState, only: Collection[str] | None = None
) -> dict[str, frozenset[str]]:
    """Imports whose rows are not exactly those their ledger row speaks of → the tables that hold rows of them.

    `only` some tables may be looked at.
    """
    return _contradicted(state, rows_by_import(connection, state, only))


def _contradicted(
    state: WarehouseState, present: Mapping[str, Mapping[str, tuple[int, set[str]]]]
) -> dict[str, frozenset[str]]:
    where: dict[str, set[str]] = defaultdict(set)
    for table, counts in present.items():
        for slug in counts:
            where[slug].add(table)
    return {
        slug: frozenset(where[slug])
        for slug in sorted({*state.ledger, *where})
        if slug not in state.ledger or not _agrees(state.ledger[slug], slug, present)
    }


def _recovered(connection: Connection, state: WarehouseState) -> WarehouseState:
    """Distrusts every import whose rows are not exactly those its ledger row speaks of.

    A dead run may have taken rows out of a table, and noted in the ledger where they are now, but not in `sync_fields`
    that they are gone: no import that is read again leads to that table, so its counts are compared with its rows.
    """
    ledger, homes = dict(state.ledger), dict(state.homes)
    repaired = 0
    present = rows_by_import(connection, state)
    wrong = _contradicted(state, present)
    live = {table: sum(n for n, _ in counts.values()) for table, counts in present.items() if table in state.tables}
    miscounted = {table for table, counted in state.counted.items() if table in live and counted != {live[table]}}
    for slug, where in wrong.items():
        known = ledger.get(slug)
        repaired += known is None or known.trusted
        ledger[slug] = _distrusted(slug, known)
        homes[slug] = homes.get(slug, frozenset()) | (where - {RECORDS})
    miscounted |= state.miscounted
    return replace(
        state,
        ledger=ledger,
        homes=homes,
        miscounted=frozenset(miscounted),
        repaired=repaired,
        sound=not wrong,
        audited=True,
    )


def forget_schemas(connection: Connection, schema_name: str) -> None:
    """Has dlt compare its schema with the tables again: it takes them as made once a schema of its hash was stored.

    See `SqlJobClientBase.update_stored_schema`. The schemas stay, for they say which tables are ours.
    """
    connection.execute(f"UPDATE {connection.name(VERSIONS)} SET version_hash = '' WHERE schema_name = %s", schema_name)


def make_newest(connection: Connection, schema_name: str, version_hash: str) -> None:
    """Has the stored schema of this hash be the newest one, by which dlt and `ownership` go.

    Else one that a run stored whose clock was ahead would bring back what a rebuild took away.
    """
    versions = connection.name(VERSIONS)
    [found] = connection.query(
        f"SELECT max(inserted_at) AS inserted_at FROM {versions} WHERE schema_name = %s AND version_hash = %s",
        schema_name,
        version_hash,
    ).to_pylist()
    if (stored := found["inserted_at"]) is not None:
        connection.execute(
            f"UPDATE {versions} SET inserted_at = %s WHERE schema_name = %s AND version_hash <> %s "
            "AND inserted_at >= %s",
            stored - timedelta(seconds=1),
            schema_name,
            version_hash,
            stored,
        )


def _distrusted(slug: str, known: LedgerRow | None) -> LedgerRow:
    if known is None:
        return LedgerRow(slug, State.failed, has_raw=True)
    return msgspec.structs.replace(known, trusted=False)


def _agrees(known: LedgerRow, slug: str, present: Mapping[str, Mapping[str, tuple[int, set[str]]]]) -> bool:
    for table, counts in present.items():
        live, loads = counts.get(slug, (0, set()))
        here = known.has_raw if table == RECORDS else table == known.table_name
        if known.state in (State.failed, State.excluded):  # read before it counts; only where its rows are matters
            if live and not here:
                return False
            continue
        wanted = known.records_loaded if here and known.state is not State.deleted else 0
        # rows elsewhere that are marked deleted stay where `deletes = keep` left them
        if live != wanted or (here and loads - {known.load_id}):
            return False
    return known.trusted


def _template_tables(dataset: Dataset, ledger: Any, fields: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Typed table → slug of its template ('' for imports without one)."""
    found = {table: slug for table, slug in dataset.templates.items() if table in dataset.ours}
    found.update({k.table_name: k.template_slug or "" for k in ledger if k.table_name})
    found.update({f["table_name"]: f["template_slug"] or "" for f in fields if f["table_name"] != IMPORTS})
    return found


def _schemas(dataset: Dataset, fields: Sequence[Mapping[str, Any]]) -> dict[str, TableSchema]:
    by_table: dict[str, dict[Keys, Field]] = defaultdict(dict)
    overflowed: dict[str, set[Keys]] = defaultdict(set)
    for row in fields:
        keys = decode_keys(row["keys"])
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
            _physical(dataset, table, by_table.get(table, {}).values()),
            frozenset(overflowed.get(table, ())),
            len(overflowed.get(table, ())) >= width.WIDTH.listed,
        )
        for table in {*dataset.typed, *by_table, IMPORTS}
    }


def _physical(dataset: Dataset, table: str, fields: Collection[Field]) -> dict[str, str]:
    """The columns that are there; what neither dlt made nor a field knows is the user's own."""
    if table not in dataset.ours:
        return {}
    ours = {*SYSTEM_COLUMNS, *dataset.made.get(table, ()), *(column for each in fields for column in each.columns())}
    return {name: kind if name in ours else NOT_OURS for name, kind in dataset.columns[table].items()}


def _dropped(dataset: Dataset, schemas: Mapping[str, TableSchema]) -> dict[str, frozenset[str]]:
    """By dlt's newest schema and `sync_fields`: an earlier schema has columns that a rebuild left out."""
    found: dict[str, frozenset[str]] = {}
    for table in dataset.ours - {LOADS, VERSIONS}:
        known = schemas[table].fields.values() if table in schemas else ()
        wanted = {*dataset.current.get(table, ()), *(column for each in known for column in each.columns())}
        if missing := wanted - set(dataset.columns[table]):
            found[table] = frozenset(missing)
    return found


def _altered(schemas: Mapping[str, TableSchema]) -> dict[str, dict[str, str]]:
    """A hand changed the type of a column: what is loaded into it would be rounded or cut."""
    found: dict[str, dict[str, str]] = {}
    for table, schema in schemas.items():
        columns = {name: kind for known in schema.fields.values() for name, kind in known.columns().items()}
        there = {name: schema.physical[name] for name in columns if name in schema.physical}
        if wrong := {name: columns[name] for name, kind in there.items() if not is_stored_as(kind, columns[name])}:
            found[table] = wrong
    return found


def _unexplained(dataset: Dataset, schemas: Mapping[str, TableSchema]) -> dict[str, frozenset[str]]:
    """A column that dlt did not make is the user's own, and no business of ours."""
    found: dict[str, frozenset[str]] = {}
    for table, schema in schemas.items():
        if table in dataset.ours:
            ours = SYSTEM_COLUMNS if table != IMPORTS else IMPORTS_SCHEMA.names
            known = {*ours, *(column for each in schema.fields.values() for column in each.columns())}
            if unknown := dataset.made.get(table, frozenset()) & set(schema.physical) - known:
                found[table] = frozenset(unknown)
    return found
