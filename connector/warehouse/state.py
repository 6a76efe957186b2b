"""Load the state that earlier runs left: ledger, imports, field names, and whether the rows match the ledger.

The ledger (docs/guarantees.md, "Incremental") decides which imports are read. A row of it is trusted only if

1. dlt completed its load (`_dlt_loads.status = 0`), and
2. after a run that did not end properly, the rows of that import really exist: as many live rows as the ledger says,
   all from the load of the ledger row, in the right table and in no other. Every run checks again until one finds
   everything in order, because the run after a crashed one may be bounded, stopped or refused before it repairs all.

All other imports are read again. Imports that have rows but are not in the ledger are handled like vanished imports.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field, replace
from datetime import datetime

from msgspec import structs

from connector.ledger import Due, LedgerRow, State
from connector.runs import Noted
from connector.scope import Part
from connector.transform.schema import TableSchema
from connector.warehouse.connection import LOADS, Connection, batches, marks
from connector.warehouse.field_counts import TableTotals, stored_totals, totals
from connector.warehouse.history_tables import Versioned, histories, imports_with_versions, names_of_templates
from connector.warehouse.loads import count_loads, earlier_runs
from connector.warehouse.ownership import Dataset, inspect_dataset
from connector.warehouse.stored_fields import (
    Altered,
    altered_columns,
    dropped_columns,
    field_rows,
    schemas_of,
    template_tables,
    unexplained_columns,
)
from connector.warehouse.stored_imports import ImportSeen, imports_and_templates, ledger_rows
from connector.warehouse.tables import IMPORTS, LEDGER, LOAD_ID, RECORDS, SYSTEM_SCHEMAS, keys_of


@dataclass(frozen=True, slots=True)
class WarehouseState:
    """Everything that a run needs to know about earlier ones.

    `tables` are our tables, `foreign` the names that others use (see `ownership`). `tables_by_import` are the typed
    tables that have rows of an import. `stored` are the counts of values in `sync_fields`, `miscounted` the tables for
    which they are wrong, and `totals` the counts of those that need not be counted. `template_names` are the present
    and past names of each template, by its slug, and `current_names` those of imports that exist. `consistent` is
    false while rows contradict the ledger. `audited` tells that the rows themselves were checked, because an earlier
    run did not end properly. By table, `dropped` are columns of ours that are missing, `altered` those of another type
    than their values need, if the catalog tells, and `unexplained` those that dlt created for a field that is not in
    `sync_fields`; `added` are columns that others added to our tables. `histories` are the history tables of typed
    tables.

    A shard has only the ledger rows of its part, and the names of `imports_of_other_shards`. All shards write the typed
    tables in `shared`; no shard changes their columns or their counts in `sync_fields`.
    """

    tables: frozenset[str] = frozenset()
    foreign: frozenset[str] = frozenset()
    dropped: Mapping[str, frozenset[str]] = field(default_factory=dict)
    altered: Mapping[str, Mapping[str, Altered]] = field(default_factory=dict)
    unexplained: Mapping[str, frozenset[str]] = field(default_factory=dict)
    added: Mapping[str, frozenset[str]] = field(default_factory=dict)
    ledger: Mapping[str, LedgerRow] = field(default_factory=dict)
    imports: Mapping[str, ImportSeen] = field(default_factory=dict)
    schemas: Mapping[str, TableSchema] = field(default_factory=dict)
    first_seen: Mapping[tuple[str, str], datetime] = field(default_factory=dict)
    last_seen: Mapping[tuple[str, str], datetime] = field(default_factory=dict)
    template_tables: Mapping[str, str] = field(default_factory=dict)
    template_names: Mapping[str, Set[str]] = field(default_factory=dict)
    current_names: Mapping[str, Set[str]] = field(default_factory=dict)
    tables_by_import: Mapping[str, frozenset[str]] = field(default_factory=dict)
    histories: Mapping[str, Versioned] = field(default_factory=dict)
    stored: Mapping[str, TableTotals] = field(default_factory=dict)
    miscounted: frozenset[str] = frozenset()
    totals: Mapping[str, TableTotals] = field(default_factory=dict)
    overfull: frozenset[str] = frozenset()  # tables with more rows by `sync_fields` than by the ledger
    loads_seen: int = 0  # packages that dlt had completed before anything else was read
    last_load: str = ""  # the last of their ids
    noted: Noted = field(default_factory=Noted)
    unread_rejects: bool = False  # there are rejects of imports that a run could not read in the listing
    repaired: int = 0
    consistent: bool = True
    audited: bool = False
    imports_of_other_shards: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()

    @property
    def intact(self) -> frozenset[str]:
        """Return the tables whose columns all exist, unchanged, and belong to a field that is known."""
        return self.tables - {*self.dropped, *self.altered, *self.unexplained}

    @property
    def missing_tables(self) -> frozenset[str]:
        """Return the tables that have rows according to the ledger, but do not exist."""
        filled = [k for k in self.ledger.values() if k.records_loaded and k.live and k.state is not State.excluded]
        wanted = {RECORDS} if any(known.has_raw for known in filled) else set()
        return frozenset(wanted | {known.table_name for known in filled if known.table_name}) - self.tables

    @property
    def tables_to_create(self) -> frozenset[str]:
        """Return the tables that dlt has to create or complete, although it may assume that they are complete."""
        wanted = frozenset({*SYSTEM_SCHEMAS, LOADS})
        return (wanted - self.tables | self.missing_tables | frozenset(self.dropped)) if self.tables else frozenset()

    @property
    def templates_without_table(self) -> frozenset[str]:
        """Return the templates whose typed table does not exist any more, though dlt may assume so; '' is for none."""
        absent = (self.template_tables.get(table) for table in self.schemas.keys() - self.tables)
        return frozenset(slug for slug in absent if slug is not None)

    @property
    def known(self) -> set[str]:
        """Return the imports that are not known to be deleted."""
        read = {slug for slug, known in self.ledger.items() if known.live}
        return read | {slug for slug, seen in self.imports.items() if not seen.deleted}

    @property
    def half_deleted(self) -> set[str]:
        """Return the imports that an earlier run has deleted by a load of which dlt has no record (any more).

        Their rows may still be there, so they are deleted again; that it may be done has been decided already.
        """
        return {slug for slug, known in self.ledger.items() if known.state is State.deleted and known.live}

    def known_at(self, status: str) -> set[str]:
        """Return the live imports that had this status when they were read or listed last, which can be later."""
        live = {slug: known.status for slug, known in self.ledger.items() if known.live}
        shown = {slug: seen.status for slug, seen in self.imports.items() if not seen.deleted}
        # an earlier version stored a status as it was written
        return {slug for known in (live, shown) for slug, was in known.items() if (was or "").casefold() == status}


def load_state(connection: Connection, dataset: Dataset | None = None, *, force_audit: bool = False) -> WarehouseState:
    """Read everything; audit the rows themselves if there is any sign of a problem, or with `force_audit`.

    There is none if all runs ended properly, all loads completed, no table is missing, the ledger has all its columns,
    and no import with rows lost its ledger row: no table has more rows than the ledger says.
    """
    dataset = dataset or inspect_dataset(connection)
    state = unaudited_state(connection, dataset)
    clean = not force_audit and all(known.trusted for known in state.ledger.values()) and not state.missing_tables
    there = ({LEDGER, LOADS} <= state.tables and LEDGER not in state.dropped) or not state.tables
    clean = clean and there and not state.overfull
    earlier = earlier_runs(connection, dataset.columns_of_ours, state.loads_seen)
    state = replace(state, noted=earlier.noted, unread_rejects=earlier.unread)
    clean = clean and earlier.settled
    return state if clean and not _lost_ledger_rows(connection, state) else _audited_state(connection, state)


def _lost_ledger_rows(connection: Connection, state: WarehouseState) -> bool:
    """Return whether an import that is not in the ledger has rows. Only imports in the table `imports` are looked up.

    A run that read nothing leaves imports without a ledger row and without rows. If both tables are empty, any raw row
    is of such an import; more typed rows than in the ledger are found by their number.
    """
    if not state.ledger and RECORDS in state.tables:
        return connection.query(f"SELECT 1 FROM {connection.name(RECORDS)} LIMIT 1").num_rows > 0
    unknown = {slug for slug, seen in state.imports.items() if not seen.deleted} - state.ledger.keys()
    return bool(unknown) and any(rows_by_import(connection, state, imports=unknown).values())


def unaudited_state(connection: Connection, dataset: Dataset | None = None, part: Part | None = None) -> WarehouseState:
    """Return the state from the existing tables of this package, without an audit; or only for a `part`.

    A part is a set of slugs of templates, '' for none. The shard with this part audits no rows; the run after all
    shards does.
    """
    dataset = dataset or inspect_dataset(connection)
    tables = dataset.ours
    loads, last_load = count_loads(
        connection, tables
    )  # first, so that a package completed meanwhile is not taken for seen
    fields = [f for f in field_rows(connection, dataset) if f["table_name"].casefold() not in dataset.foreign]
    everything = ledger_rows(connection, dataset)
    ledger = everything
    if part is not None:
        ledger = {s: k for s, k in everything.items() if part.contains(k.template_slug, s)}
    alone = {table: frozenset({table} if table else ()) for table in {k.table_name for k in ledger.values()}}
    imports, templates, current = imports_and_templates(connection, dataset)
    current_names: dict[str, set[str]] = defaultdict(set)
    for slug, name in current:
        current_names[slug or ""].update(() if name is None else (name,))
    schemas = schemas_of(dataset, fields)
    dropped, unexplained = dropped_columns(dataset, schemas), unexplained_columns(dataset, schemas)
    counted = "text_conflicts" in dataset.columns.get(LEDGER, ())  # an earlier version did not count all conflicts
    stored = stored_totals(fields, ledger.values()) if counted else {}
    loaded: Counter[str | None] = Counter()
    for known in ledger.values():
        loaded[known.table_name] += known.records_loaded
    state = WarehouseState(
        tables=tables,
        foreign=dataset.foreign,
        dropped=dropped,
        altered=altered_columns(dataset, schemas) if connection.traits.knows_types else {},
        unexplained=unexplained,
        added=dataset.added,
        ledger=ledger,
        imports=imports,
        schemas=schemas,
        first_seen={(f["table_name"], f["column_name"]): f["first_seen_at"] for f in fields},
        last_seen={(f["table_name"], f["column_name"]): f["last_seen_at"] for f in fields},
        template_tables=template_tables(dataset, ledger.values(), fields),
        template_names=names_of_templates(connection, dataset, templates),
        current_names=current_names,
        tables_by_import={slug: alone[known.table_name] for slug, known in ledger.items()},
        miscounted=frozenset(f["table_name"] for f in fields if not f["trusted"]) - {IMPORTS},
        imports_of_other_shards=frozenset(everything.keys() - ledger.keys()),
        histories={t: each for t, each in histories(dataset).items() if t != IMPORTS},
        stored=stored,
        loads_seen=loads,
        last_load=last_load,
    )
    usable = {t: each for t, each in stored.items() if part is None and t in state.intact}
    return replace(
        state,
        totals={table: each for table, each in usable.items() if each.rows == loaded[table]},
        overfull=frozenset(table for table, each in usable.items() if each.rows > loaded[table]),
    )


def rows_by_import(
    connection: Connection,
    state: WarehouseState,
    tables: Collection[str] | None = None,
    imports: Collection[str] | None = None,
) -> dict[str, dict[str, tuple[int, set[str]]]]:
    """Return table → import → (live rows, their loads): by one scan of each table, or by looking some `imports` up."""
    found: dict[str, dict[str, tuple[int, set[str]]]] = {}
    known = ({RECORDS, *state.schemas} & state.tables - {IMPORTS}) | state.missing_tables
    for table in sorted(known if tables is None else known & set(tables)):
        if table in state.missing_tables:
            found[table] = {}
            continue
        key = connection.column(keys_of(table)[1])
        counts: dict[str, tuple[int, set[str]]] = {}
        for some in [()] if imports is None else batches(sorted(imports)):
            chosen = f"WHERE {key} IN ({marks(some)}) " if some else ""
            rows = connection.query(
                f"SELECT {key} AS slug, {connection.column(LOAD_ID)} AS load_id, "
                f"sum(CASE WHEN {connection.column('_deleted_at')} IS NULL THEN 1 ELSE 0 END) AS live "
                f"FROM {connection.name(table)} {chosen}GROUP BY 1, 2",
                *some,
            ).to_pylist()
            for row in rows:
                live, loads = counts.get(row["slug"], (0, set()))
                counts[row["slug"]] = (live + int(row["live"]), loads | {row["load_id"]})
        found[table] = counts
    return found


def audit(
    connection: Connection,
    state: WarehouseState,
    tables: Collection[str] | None = None,
    imports: Collection[str] | None = None,
) -> dict[str, frozenset[str]]:
    """Return imports whose rows do not match their ledger row exactly → the tables that have rows of them.

    If `tables` or `imports` are given, others are not checked.
    """
    present = rows_by_import(connection, state, tables, imports)
    wrong = _mismatched(state, present, _half_loaded(connection, state, present))
    return wrong if imports is None else {slug: where for slug, where in wrong.items() if slug in imports}


def _half_loaded(
    connection: Connection, state: WarehouseState, present: Mapping[str, Mapping[str, tuple[int, set[str]]]]
) -> set[str]:
    """Return the imports that have rows of a load that never completed."""
    if LOADS not in state.tables:
        return set()
    completed = set(
        connection.query(f"SELECT load_id FROM {connection.completed_loads(state.tables)} l")["load_id"].to_pylist()
    )
    return {slug for counts in present.values() for slug, (_, loads) in counts.items() if loads - completed}


def _mismatched(
    state: WarehouseState,
    present: Mapping[str, Mapping[str, tuple[int, set[str]]]],
    half_loaded: Set[str],
) -> dict[str, frozenset[str]]:
    where: dict[str, set[str]] = defaultdict(set)
    for table, counts in present.items():
        for slug in counts:
            where[slug].add(table)
    return {
        slug: frozenset(where[slug])
        for slug in sorted({*state.ledger, *where})
        if slug not in state.ledger or slug in half_loaded or not _matches_ledger(state.ledger[slug], slug, present)
    }


def _audited_state(connection: Connection, state: WarehouseState) -> WarehouseState:
    """Mark every import as untrusted whose rows do not match its ledger row exactly.

    The values are counted too, because a crashed run, or a package that was completed late, may have replaced rows
    without counting them in `sync_fields`, in a way that no number of rows shows.
    """
    ledger, tables_by_import = dict(state.ledger), dict(state.tables_by_import)
    repaired = 0
    present = rows_by_import(connection, state)
    half_loaded = _half_loaded(connection, state, present)
    wrong = _mismatched(state, present, half_loaded)
    for slug, where in imports_with_versions(connection, state.histories).items():
        if slug not in ledger:  # it was lost, and the rows went before the versions did
            wrong.setdefault(slug, where)
    for slug, where in wrong.items():
        known = ledger.get(slug)
        repaired += known is None or known.trusted
        ledger[slug] = _untrusted(slug, known, half_loaded=slug in half_loaded)
        tables_by_import[slug] = tables_by_import.get(slug, frozenset()) | (where - {RECORDS})
    counted = _counted(connection, state)
    return replace(
        state,
        ledger=ledger,
        tables_by_import=tables_by_import,
        miscounted=frozenset(t for t, each in counted.items() if t not in state.stored or state.stored[t] != each),
        totals={table: each for table, each in counted.items() if table in state.intact},
        repaired=repaired,
        consistent=not wrong,
        audited=True,
    )


def _counted(connection: Connection, state: WarehouseState) -> dict[str, TableTotals]:
    """Count the values of all typed tables that have columns of fields."""
    typed = {table: schema for table, schema in state.schemas.items() if table != IMPORTS and schema.fields}
    nothing = {table: TableTotals(0, dict.fromkeys(schema.fields, (0, 0))) for table, schema in typed.items()}
    return nothing | {t: totals(connection, schema) for t, schema in typed.items() if t in state.tables}


def _untrusted(slug: str, known: LedgerRow | None, *, half_loaded: bool) -> LedgerRow:
    if known is None:
        return LedgerRow(slug, State.failed, has_raw=True, due=Due.torn)
    return structs.replace(known, trusted=False, due=Due.torn if half_loaded else known.due)


def _matches_ledger(known: LedgerRow, slug: str, present: Mapping[str, Mapping[str, tuple[int, set[str]]]]) -> bool:
    for table, counts in present.items():
        live, loads = counts.get(slug, (0, set()))
        here = known.has_raw if table == RECORDS else table == known.table_name
        if known.state in (State.failed, State.excluded):  # it will be read anyway; only the place of its rows matters
            if live and not here:
                return False
            continue
        wanted = known.records_loaded if here and known.state is not State.deleted else 0
        # rows elsewhere that are marked deleted stay where `deletes = keep` left them
        if live != wanted or (here and loads - {known.load_id}):
            return False
    return known.trusted
