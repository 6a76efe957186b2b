"""Record losses of the warehouse that a run has to restore, in the warehouse, before anything is loaded.

Invariant: no column ever has values of two fields or only a part of the values of one, and no import counts as synced
while a value of its rows is missing. Imports with incomplete rows are marked in the ledger first. So if a run dies or
reads only some imports, the next one reads the rest, although the column may look intact by then.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from connector.errors import ConnectorError
from connector.ledger import Due, LedgerRow, State
from connector.transform.schema import NOT_OURS
from connector.warehouse.adapters.dialect import any_of
from connector.warehouse.connection import LOADS, VERSIONS, Connection, batches, marks
from connector.warehouse.due_imports import mark_due
from connector.warehouse.field_counts import invalidate_counts
from connector.warehouse.ledger_table import mark_failed
from connector.warehouse.loads import forget_schemas
from connector.warehouse.ownership import TYPED_PREFIX
from connector.warehouse.state import WarehouseState
from connector.warehouse.stored_fields import Altered
from connector.warehouse.tables import FIELDS, IMPORTS, LEDGER, LOAD_ID, RECORDS, REJECTS, RUNS, SOURCE

log = logging.getLogger("connector.run")

_READ = (State.synced, State.unreconciled)
_WITH_RECORDS = "records_metadata"  # the column of `imports` that comes with the records


def schedule_repairs(connection: Connection, state: WarehouseState) -> WarehouseState:
    """Make dlt recreate missing tables and columns, and mark the imports whose values were lost with them.

    Return the updated state. The only writes are marks of losses, and updates of our columns that no longer belong to
    a field.
    """
    if state.tables_to_create and VERSIONS in state.tables:
        forget_schemas(connection, SOURCE)
    if state.tables and LOADS not in state.tables and RUNS in state.tables:
        # they had ended; the loss of the table of loads does not mean that they crashed
        connection.execute(
            f"UPDATE {connection.name(RUNS)} SET {connection.column(LOAD_ID)} = '' WHERE status <> 'running'"
        )
    if "table_name" in state.dropped.get(LEDGER, ()):
        _distrust_ledger(connection, [slug for slug, known in state.ledger.items() if known.live])
    read = {slug: known for slug, known in state.ledger.items() if known.state in _READ and known.trusted}
    if lacking := read.keys() - state.imports.keys():
        state = _mark_lost(connection, state, lacking, f"{IMPORTS} lost rows")
    # a run of imports alone marked their rows as deleted: if they are back, what came with their records is lost
    if back := {slug for slug in read.keys() & state.imports.keys() if state.imports[slug].shown is None}:
        state = _mark_lost(connection, state, back, None)
    if lacking := {slug for slug, known in read.items() if known.records_rejected} - _with_rejects(connection, state):
        state = _mark_lost(connection, state, lacking, f"{REJECTS} lost rows")
    for table, columns in sorted(state.dropped.items()):
        state = _repair_dropped_columns(connection, state, table, columns)
    for table, altered in sorted(state.altered.items()):
        state = _restore_types(connection, state, table, altered)
    for table, columns in sorted(state.unexplained.items()):
        state = _empty_unexplained_columns(connection, state, table, columns)
    return state


def _with_rejects(connection: Connection, state: WarehouseState) -> set[str]:
    """Return the imports with rejected records, if there are any by the ledger."""
    if REJECTS not in state.intact or not any(known.records_rejected for known in state.ledger.values()):
        return set()
    rows = connection.query(f"SELECT DISTINCT import_slug AS slug FROM {connection.name(REJECTS)}")
    return {row["slug"] for row in rows.to_pylist()}


def _distrust_ledger(connection: Connection, slugs: Sequence[str]) -> None:
    """Remove the load from the ledger rows of these imports: every run audits their rows until it has read them all.

    Without `table_name` only an audit finds the typed table that an import has to leave.
    """
    for some in batches(slugs):
        connection.execute(
            f"UPDATE {connection.name(LEDGER)} SET {connection.column(LOAD_ID)} = '' WHERE slug IN ({marks(some)})",
            *some,
        )


def confirm_tombstones(connection: Connection, load_id: str, tables: Collection[str]) -> None:
    """Move rows marked as deleted to this load, if the table of loads that confirmed them was lost."""
    conditions = {LEDGER: f"state = '{State.deleted}'", IMPORTS: f"{connection.column('_deleted_at')} IS NOT NULL"}
    for table, condition in conditions.items():
        if table in tables:
            connection.execute(
                f"UPDATE {connection.name(table)} SET {connection.column(LOAD_ID)} = %s WHERE {condition}", load_id
            )


def _repair_dropped_columns(
    connection: Connection, state: WarehouseState, table: str, columns: Collection[str]
) -> WarehouseState:
    what = f"{table} lost {'its column' if len(columns) == 1 else 'the columns'} {', '.join(sorted(columns))}"
    return _reread_table(connection, state, table, columns, what)


def _restore_types(
    connection: Connection, state: WarehouseState, table: str, columns: Mapping[str, Altered]
) -> WarehouseState:
    """Restore the type of changed columns, and mark the imports with values in them to be read again."""
    found = ", ".join(f"{name} from {wanted} to {there}" for name, (there, wanted) in sorted(columns.items()))
    state = _reread_table(connection, state, table, columns, f"The type of columns in {table} was changed: {found}")
    for name, (there, wanted) in sorted(columns.items()):
        try:
            connection.set_type(table, name, wanted)
        except Exception as error:
            rebuilt = f", or run `importer-sync rebuild --table {table}`" if table.startswith(TYPED_PREFIX) else ""
            raise ConnectorError(
                f"The column {table}.{name} was changed to {there}, which rounds or truncates what is loaded into it, "
                f"and cannot be changed back to {wanted} ({' '.join(str(error).split())[:300]}); drop the column"
                f"{rebuilt}, then run again."
            ) from error
    if table not in state.schemas:
        return state
    schema = state.schemas[table]
    physical = {**schema.physical, **{name: wanted for name, (_, wanted) in columns.items()}}
    return replace(state, schemas={**state.schemas, table: replace(schema, physical=physical)})


def _reread_table(
    connection: Connection, state: WarehouseState, table: str, columns: Collection[str], what: str
) -> WarehouseState:
    """Mark the imports to be read again of which these columns say something that is not listed.

    What else is in `imports`, and all of `sync_fields`, is marked to be written again, which takes no request.
    """
    if table == FIELDS:
        typed = {each for each, schema in state.schemas.items() if schema.fields and each != IMPORTS}
        invalidate_counts(connection, typed)
        state = replace(state, miscounted=state.miscounted | typed)
        return _rewrite_imports(connection, state, what) if state.schemas[IMPORTS].fields else state
    if table == IMPORTS:
        state = _rewrite_imports(connection, state, what)
        lost = [slug for slug, known in state.ledger.items() if known.live] if _WITH_RECORDS in columns else []
        return _mark_lost(connection, state, lost, what)
    slugs = [known.slug for known in state.ledger.values() if known.live and _tells_of(table, known)]
    return _reread_imports(connection, state, slugs, what)


def _tells_of(table: str, known: LedgerRow) -> bool:
    if table == LEDGER:
        return True
    return bool(known.records_loaded) and (known.has_raw if table == RECORDS else known.table_name == table)


def imports_with(connection: Connection, table: str, columns: Collection[str]) -> list[str]:
    """Return the imports whose live rows have a value in one of these columns."""
    key = "slug" if table == IMPORTS else "_import_slug"
    rows = connection.query(
        f"SELECT DISTINCT {connection.column(key)} AS slug FROM {connection.name(table)} "
        f"WHERE {_filled(connection, table, columns)}"
    )
    return [row["slug"] for row in rows.to_pylist()]


def _filled(connection: Connection, table: str, columns: Collection[str]) -> str:
    filled = any_of(f"{connection.column(column)} IS NOT NULL" for column in sorted(columns))
    # in `imports` nothing is lost, because it has the metadata as received
    return filled if table == IMPORTS else f"{filled} AND {connection.column('_deleted_at')} IS NULL"


def _empty_unexplained_columns(
    connection: Connection, state: WarehouseState, table: str, columns: Collection[str]
) -> WarehouseState:
    """Empty the columns of fields that are not in `sync_fields`, except in rows that are kept.

    A table is scanned only if it has a column without a field.
    """
    slugs = imports_with(connection, table, columns)
    if slugs:
        what = f"sync_fields does not list {', '.join(f'{table}.{column}' for column in sorted(columns))}"
        if table == IMPORTS:
            state = _rewrite_imports(connection, state, what)
        else:
            state = _reread_imports(connection, state, _imports_to_reread(state, table, slugs), what)
        nothing = ", ".join(f"{connection.column(column)} = NULL" for column in sorted(columns))
        where = _filled(connection, table, columns)
        connection.execute(f"UPDATE {connection.name(table)} SET {nothing} WHERE {where}")
    counts = ", ".join(f"count({connection.column(c)}) AS c{n}" for n, c in enumerate(sorted(columns)))
    kept = connection.rows(f"SELECT {counts} FROM {connection.name(table)}")[0]
    return _with_foreign_columns(state, table, {c for n, c in enumerate(sorted(columns)) if kept[f"c{n}"]})


def _imports_to_reread(state: WarehouseState, table: str, slugs: Collection[str]) -> list[str]:
    """Return the imports to read again: those of a load that died, else all of the table.

    In the second case the dictionary is incomplete, and fields without a value are lost too.
    """
    known = [state.ledger[slug] for slug in slugs if slug in state.ledger]
    if any(each.trusted and each.state is not State.failed for each in known):
        known = [each for each in state.ledger.values() if each.live and each.table_name == table]
    return [each.slug for each in known]


def _with_foreign_columns(state: WarehouseState, table: str, columns: Collection[str]) -> WarehouseState:
    if not columns:
        return state
    schema = state.schemas[table]
    physical = {name: NOT_OURS if name in columns else kind for name, kind in schema.physical.items()}
    return replace(state, schemas={**state.schemas, table: replace(schema, physical=physical)})


def _reread_imports(connection: Connection, state: WarehouseState, slugs: Collection[str], what: str) -> WarehouseState:
    slugs = sorted(slug for slug in slugs if state.ledger[slug].state is not State.excluded)
    if not slugs:
        return state
    log.warning("%s; %d imports are read again.", what, len(slugs), extra={"event": "warehouse.repaired"})
    if LEDGER in state.tables:  # otherwise no import counts as synced
        mark_failed(connection, slugs, f"{what}: it is read again.")
    untrusted = {slug: structs.replace(state.ledger[slug], state=State.failed, due=Due.torn) for slug in slugs}
    return replace(state, ledger={**state.ledger, **untrusted})


def _mark_lost(
    connection: Connection, state: WarehouseState, slugs: Collection[str], what: str | None
) -> WarehouseState:
    """Mark the imports to be read again of which what came beside their rows is lost; the rows are whole.

    `what` is the warning, if that is not only possible.
    """
    known = {slug: state.ledger[slug] for slug in sorted(slugs)}
    lost = {s: each for s, each in known.items() if each.state is not State.excluded and each.due != Due.torn}
    if not lost:
        return state
    if what is not None:
        log.warning("%s; %d imports are read again.", what, len(lost), extra={"event": "warehouse.repaired"})
    if LEDGER in state.intact:  # otherwise all imports are read
        mark_due(connection, list(lost), Due.lost)
    return replace(
        state, ledger={**state.ledger, **{s: structs.replace(each, due=Due.lost) for s, each in lost.items()}}
    )


def _rewrite_imports(connection: Connection, state: WarehouseState, what: str) -> WarehouseState:
    """Mark the row of each listed import to be written again, which takes no request."""
    log.warning("%s; all rows of imports are written again.", what, extra={"event": "warehouse.repaired"})
    if "_content_hash" not in state.dropped.get(IMPORTS, ()):
        connection.execute(f"UPDATE {connection.name(IMPORTS)} SET {connection.column('_content_hash')} = NULL")
    return replace(
        state, imports={slug: structs.replace(seen, content_hash=None) for slug, seen in state.imports.items()}
    )
