"""Query the ledger about one load, and note which imports the next run has to read again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext

import pyarrow as pa

from connector.ledger import Due, State
from connector.warehouse.connection import Connection, batches, marks
from connector.warehouse.tables import LEDGER, LOAD_ID, RECORDS, keys_of

DUE = "due"


def missing_rows(
    connection: Connection, load_id: str, raw: bool, typed_tables: Sequence[str]
) -> list[tuple[str, str, int, int]]:
    """Return (import, table, rows accepted, rows found) after a load, wherever the two differ."""
    ledger = {
        r["slug"]: r
        for r in connection.rows(
            f"SELECT slug, table_name, records_loaded FROM {connection.name(LEDGER)} "
            f"WHERE {connection.column(LOAD_ID)} = %s AND state IN ('{State.synced}', '{State.unreconciled}')",
            load_id,
        )
    }
    wrong: list[tuple[str, str, int, int]] = []
    tables, _ = connection.names()  # a template whose imports have no rows has no table yet
    for table in [RECORDS] * raw + sorted(typed_tables):
        there = _rows_of_load(connection, table, load_id, list(ledger)) if table in tables and ledger else {}
        for slug, row in ledger.items():
            if table in (RECORDS, row["table_name"]) and there.get(slug, 0) != row["records_loaded"]:
                wrong.append((slug, table, row["records_loaded"], there.get(slug, 0)))
    return wrong


def _rows_of_load(connection: Connection, table: str, load_id: str, imports: Sequence[str]) -> dict[str, int]:
    """Return import → live rows of the load: by the load, or by the keys of the imports where keys have an index."""
    key, load = connection.column(keys_of(table)[1]), f"r.{connection.column(LOAD_ID)} = %s"
    source, where, args = f"{connection.name(table)} AS r", f"WHERE {load} ", [load_id, load_id]
    listed: AbstractContextManager[None] = nullcontext()
    if connection.traits.indexes:
        source = connection.rows_with_keys(table, "r", key, "SELECT slug FROM loaded_imports")
        where, args = "", [load_id]
        listed = connection.relations({"loaded_imports": pa.chunked_array([pa.array(imports, pa.string())])})
    live = f"CASE WHEN {load} AND r.{connection.column('_deleted_at')} IS NULL THEN 1 ELSE 0 END"
    with listed:
        rows = connection.rows(f"SELECT r.{key} AS slug, sum({live}) AS n FROM {source} {where}GROUP BY 1", *args)
    return {row["slug"]: int(row["n"]) for row in rows}


def mark_failed(connection: Connection, slugs: Sequence[str], why: str) -> None:
    """Mark the rows of these imports as incomplete, so that the next run reads them again.

    An excluded import stays excluded: its rows are not guaranteed, and it is read as new once it is included. If the
    ledger lost its column `state`, no import counts as synced, and nothing is marked.
    """
    _set_state(connection, slugs, State.failed, Due.torn, why)


def mark_excluded(connection: Connection, slugs: Sequence[str]) -> None:
    """Mark these imports as left out by their status: their rows are not guaranteed, and are read once included."""
    _set_state(connection, slugs, State.excluded, Due.status, None)


def _set_state(connection: Connection, slugs: Sequence[str], state: State, due: Due, error: str | None) -> None:
    """Set the state of these imports, but for those that are excluded already."""
    if not slugs or "state" not in connection.columns()[LEDGER]:
        return
    ensure_due_column(connection)
    noted = ", error = %s" if "error" in connection.columns()[LEDGER] else ""
    for some in batches(slugs):
        connection.execute(
            f"UPDATE {connection.name(LEDGER)} SET state = '{state}', {DUE} = '{due}'{noted} "
            f"WHERE COALESCE(state, '') <> '{State.excluded}' AND slug IN ({marks(some)})",
            *([error] if noted else []),
            *some,
        )


def invalidate(connection: Connection, slugs: Sequence[str], known: Collection[str], why: str) -> None:
    """Remove the load from the ledger rows of these imports; those without a row get one without a load.

    The next run then audits all rows, and reads these imports again.
    """
    for some in batches([slug for slug in slugs if slug in known]):
        connection.execute(
            f"UPDATE {connection.name(LEDGER)} SET {connection.column(LOAD_ID)} = '', error = %s "
            f"WHERE slug IN ({marks(some)})",
            why,
            *some,
        )
    for slug in slugs:
        if slug not in known:
            row = {"slug": slug, "state": State.failed.value, "error": why, LOAD_ID: ""}
            connection.insert(LEDGER, list(row), row)


def ensure_due_column(connection: Connection) -> None:
    """Add the column `due` to a ledger of an earlier version; dlt adopts existing columns."""
    if DUE not in connection.columns()[LEDGER]:
        connection.add_column(LEDGER, DUE)


def errors(connection: Connection) -> list[tuple[str, str, str | None]]:
    """Return (import, state, error) of every import that needs attention."""
    rows = connection.rows(
        f"SELECT slug, state, error FROM {connection.name(LEDGER)} "
        f"WHERE state IN ('{State.failed}', '{State.unreconciled}') ORDER BY slug"
    )
    return [(row["slug"], row["state"], row["error"]) for row in rows]
