"""What earlier runs left: ledger, imports, field names; and whether the rows are those that the ledger speaks of.

The ledger decides (CONTRACT §4.2), so what it says has to be earned. A ledger row is trusted only if

1. dlt completed the load it came with (`_dlt_loads.status = 0`), and
2. after a run that did not end properly, the rows of that import are really there: as many live ones as the ledger
   says, each from the ledger row's own load, in its own table and nowhere else. Every run looks again until one finds
   all in order, for the run after a dead one may be bounded, stopped or refused, and not repair what it found.

Everything else is read again; rows of imports the ledger does not know become suspects like vanished imports do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from connector.core.names import decode_keys
from connector.core.planning import Known, State
from connector.core.schema import OVERFLOWED, Field, Keys, TableSchema
from connector.runs import UNSETTLED, Status
from connector.tables import FIELDS, IMPORTS, LEDGER, LOAD_ID, RECORDS, RUNS
from connector.warehouse.connection import LOADS, VERSIONS, Connection


@dataclass(frozen=True, slots=True)
class ImportSeen:
    """An import as the table `imports` has it."""

    content_hash: str | None
    deleted: bool


@dataclass(frozen=True, slots=True)
class Memory:
    """Everything a run needs to know of earlier ones.

    `homes` are the typed tables that hold rows of an import; `miscounted` those whose counts in `sync_fields` came with
    a load that was never completed; `sound` is false while rows contradict the ledger.
    """

    tables: frozenset[str] = frozenset()
    ledger: Mapping[str, Known] = field(default_factory=dict)
    imports: Mapping[str, ImportSeen] = field(default_factory=dict)
    schemas: Mapping[str, TableSchema] = field(default_factory=dict)
    first_seen: Mapping[tuple[str, str], datetime] = field(default_factory=dict)
    template_tables: Mapping[str, str] = field(default_factory=dict)
    homes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    miscounted: frozenset[str] = frozenset()
    repaired: int = 0
    sound: bool = True

    @property
    def lost(self) -> frozenset[str]:
        """Tables that hold rows by the word of the ledger, and are not there."""
        filled = [known for known in self.ledger.values() if known.records_loaded and known.live]
        wanted = {RECORDS} if any(known.has_raw for known in filled) else set()
        return frozenset(wanted | {known.table_name for known in filled if known.table_name}) - self.tables


def recall(connection: Connection) -> Memory:
    """Reads everything; audits the rows themselves unless nothing speaks against them.

    That is: all runs ended properly, all loads completed, and no table is missing.
    """
    memory = remembered(connection)
    clean = all(known.trusted for known in memory.ledger.values()) and not memory.lost
    return memory if clean and _ended_properly(connection, memory.tables) else _recovered(connection, memory)


def remembered(connection: Connection) -> Memory:
    """What the tables of this package say, taken at their word."""
    physical = connection.columns()
    tables = frozenset(physical)
    if LEDGER not in tables or LOADS not in tables:
        return Memory(tables, schemas=_schemas(physical, []))
    fields = _fields(connection, tables)
    ledger = _ledger(connection)
    homes = {k.slug: frozenset({k.table_name} if k.table_name else ()) for k in ledger.values()}
    return Memory(
        tables=tables,
        ledger=ledger,
        imports=_imports(connection, tables),
        schemas=_schemas(physical, fields),
        first_seen={(f["table_name"], f["column_name"]): f["first_seen_at"] for f in fields},
        template_tables=_template_tables(ledger.values(), fields),
        homes=homes,
        miscounted=frozenset(f["table_name"] for f in fields if not f["trusted"]) - {IMPORTS},
    )


def _ledger(connection: Connection) -> dict[str, Known]:
    rows = connection.query(
        "SELECT s.slug, s.state, s.updated_at, s.row_count, s.status, s.template_slug, s.table_name, s.has_raw, "
        "s.records_loaded, s.records_rejected, s.attempts, s.last_synced_at, "
        f"CASE WHEN l.load_id IS NULL THEN 0 ELSE 1 END AS trusted FROM {connection.name(LEDGER)} s "
        f"LEFT JOIN {connection.completed_loads()} l "
        f"ON l.load_id = s.{connection.column(LOAD_ID)}"
    )
    return {row["slug"]: _known(row) for row in rows.to_pylist()}


def _imports(connection: Connection, tables: frozenset[str]) -> dict[str, ImportSeen]:
    if IMPORTS not in tables:
        return {}
    # a row of a load that was never completed counts as neither written nor deleted, but its import is known:
    # it may have been deleted since, and nothing else may speak of it
    rows = connection.query(
        f"SELECT i.slug, CASE WHEN l.load_id IS NULL THEN NULL ELSE i.{connection.column('_content_hash')} END "
        f"AS content_hash, CASE WHEN l.load_id IS NULL OR i.{connection.column('_deleted_at')} IS NULL "
        f"THEN 0 ELSE 1 END AS deleted FROM {connection.name(IMPORTS)} i "
        f"LEFT JOIN {connection.completed_loads()} l "
        f"ON l.load_id = i.{connection.column(LOAD_ID)}"
    )
    return {r["slug"]: ImportSeen(r["content_hash"], bool(r["deleted"])) for r in rows.to_pylist()}


def _fields(connection: Connection, tables: frozenset[str]) -> list[dict[str, Any]]:
    if FIELDS not in tables:
        return []
    return list(
        connection.query(
            "SELECT f.table_name, f.column_name, f.template_slug, f.keys, f.data_type, f.has_text, f.has_double, "
            "f.first_seen_at, CASE WHEN l.load_id IS NULL THEN 0 ELSE 1 END AS trusted "
            f"FROM {connection.name(FIELDS)} f "
            f"LEFT JOIN {connection.completed_loads()} l "
            f"ON l.load_id = f.{connection.column(LOAD_ID)}"
        ).to_pylist()
    )


def _ended_properly(connection: Connection, tables: frozenset[str]) -> bool:
    if RUNS not in tables:
        return False
    load_id = connection.column(LOAD_ID)
    rows = connection.query(
        f"SELECT count(*) AS n, sum(CASE WHEN status = '{Status.running}' OR error_kind = '{UNSETTLED}' OR "
        f"({load_id} IS NOT NULL AND {load_id} <> '' AND {load_id} NOT IN {connection.completed_loads()}) "
        f"THEN 1 ELSE 0 END) AS dead FROM {connection.name(RUNS)}"
    ).to_pylist()
    return bool(rows[0]["n"]) and not rows[0]["dead"] and not loaded_late(connection)


def loaded_late(connection: Connection) -> bool:
    """Whether a package was completed after the last run had ended: dlt alone finishes what a dead run left.

    That package may have been superseded since. The one that brings the row of its run is always completed later.
    """
    rows = connection.query(
        f"SELECT count(*) AS n FROM {connection.name(LOADS)} WHERE status = 0 AND "
        f"inserted_at > (SELECT max(finished_at) FROM {connection.name(RUNS)}) AND "
        f"load_id NOT IN (SELECT COALESCE({connection.column(LOAD_ID)}, '') FROM {connection.name(RUNS)})"
    ).to_pylist()
    return bool(rows[0]["n"])


def rows_by_import(
    connection: Connection, memory: Memory, only: Collection[str] | None = None
) -> dict[str, dict[str, tuple[int, set[str]]]]:
    """Table → import → (live rows, loads its rows came with), by one scan of each table."""
    found: dict[str, dict[str, tuple[int, set[str]]]] = {}
    tables = ({RECORDS, *memory.schemas} & memory.tables - {IMPORTS}) | memory.lost
    for table in sorted(tables if only is None else tables & set(only)):
        if table in memory.lost:
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


def audit(connection: Connection, memory: Memory, only: Collection[str] | None = None) -> dict[str, frozenset[str]]:
    """Imports whose rows are not exactly those their ledger row speaks of → the tables that hold rows of them.

    `only` some tables may be looked at.
    """
    present = rows_by_import(connection, memory, only)
    loads = ledger_loads(connection) if memory.ledger else {}
    where: dict[str, set[str]] = defaultdict(set)
    for table, counts in present.items():
        for slug in counts:
            where[slug].add(table)
    return {
        slug: frozenset(where[slug])
        for slug in sorted({*memory.ledger, *where})
        if slug not in memory.ledger or not _agrees(memory.ledger[slug], loads.get(slug), slug, present)
    }


def _recovered(connection: Connection, memory: Memory) -> Memory:
    """Distrusts every import whose rows are not exactly those its ledger row speaks of."""
    ledger, homes = dict(memory.ledger), dict(memory.homes)
    repaired = 0
    wrong = audit(connection, memory)
    for slug, where in wrong.items():
        known = ledger.get(slug)
        repaired += known is None or known.trusted
        ledger[slug] = _distrusted(slug, known)
        homes[slug] = homes.get(slug, frozenset()) | (where - {RECORDS})
    return replace(memory, ledger=ledger, homes=homes, repaired=repaired, sound=not wrong)


def forget_schemas(connection: Connection, schema_name: str) -> None:
    """Has dlt compare its schema with the tables again: it takes them as made once the schema was stored.

    See `SqlJobClientBase.update_stored_schema`.
    """
    connection.execute(f"DELETE FROM {connection.name(VERSIONS)} WHERE schema_name = %s", schema_name)


def ledger_loads(connection: Connection) -> dict[str, str]:
    rows = connection.query(
        f"SELECT slug, {connection.column(LOAD_ID)} AS load_id FROM {connection.name(LEDGER)}"
    ).to_pylist()
    return {row["slug"]: row["load_id"] for row in rows}


def _known(row: Mapping[str, Any]) -> Known:
    return Known(
        slug=row["slug"],
        state=State(row["state"]),
        updated_at=row["updated_at"],
        row_count=row["row_count"],
        status=row["status"],
        template_slug=row["template_slug"],
        table_name=row["table_name"],
        records_loaded=row["records_loaded"] or 0,
        records_rejected=row["records_rejected"] or 0,
        attempts=row["attempts"] or 0,
        last_synced_at=row["last_synced_at"],
        trusted=bool(row["trusted"]),
        has_raw=bool(row["has_raw"]),
    )


def _distrusted(slug: str, known: Known | None) -> Known:
    if known is None:
        return Known(slug, State.failed, None, None, None, None, None, 0, 0, 0, None, trusted=False)
    return replace(known, trusted=False)


def _agrees(
    known: Known, load_id: str | None, slug: str, present: Mapping[str, Mapping[str, tuple[int, set[str]]]]
) -> bool:
    for table, counts in present.items():
        live, loads = counts.get(slug, (0, set()))
        here = known.has_raw if table == RECORDS else table == known.table_name
        if known.state is State.failed:  # read again in any case; only where its rows are has to be known
            if live and not here:
                return False
            continue
        wanted = known.records_loaded if here and known.state is not State.deleted else 0
        # rows elsewhere that are marked deleted stay where `deletes = keep` left them
        if live != wanted or (here and loads - {load_id}):
            return False
    return known.trusted


def _template_tables(ledger: Any, fields: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Typed table → slug of its template ('' for imports without one)."""
    found = {k.table_name: k.template_slug or "" for k in ledger if k.table_name}
    found.update({f["table_name"]: f["template_slug"] or "" for f in fields if f["table_name"] != IMPORTS})
    return found


def _schemas(physical: Mapping[str, Mapping[str, str]], fields: Sequence[Mapping[str, Any]]) -> dict[str, TableSchema]:
    by_table: dict[str, dict[Keys, Field]] = defaultdict(dict)
    for row in fields:
        keys = decode_keys(row["keys"])
        if row["data_type"] == OVERFLOWED:
            continue
        by_table[row["table_name"]][keys] = Field(
            keys, row["column_name"], row["data_type"], bool(row["has_text"]), bool(row["has_double"])
        )
    typed = {t for t in physical if t.startswith("records_")}
    return {
        table: TableSchema(table, by_table.get(table, {}), physical.get(table, {}))
        for table in {*typed, *by_table, IMPORTS}
    }
