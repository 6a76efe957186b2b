"""Query the ledger about one load, and note which imports the next run has to read again."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from connector.ledger import Due, State
from connector.warehouse.connection import Connection, batches
from connector.warehouse.tables import LEDGER, LOAD_ID, RECORDS

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
        key = connection.column("import_slug" if table == RECORDS else "_import_slug")
        there: dict[str, int] = {}
        if table in tables:
            rows = connection.rows(
                f"SELECT {key} AS slug, count(*) AS n FROM {connection.name(table)} "
                f"WHERE {connection.column(LOAD_ID)} = %s AND {connection.column('_deleted_at')} IS NULL GROUP BY 1",
                load_id,
            )
            there = {r["slug"]: int(r["n"]) for r in rows}
        for slug, row in ledger.items():
            if table in (RECORDS, row["table_name"]) and there.get(slug, 0) != row["records_loaded"]:
                wrong.append((slug, table, row["records_loaded"], there.get(slug, 0)))
    return wrong


def mark_failed(connection: Connection, slugs: Sequence[str], why: str) -> None:
    """Mark the rows of these imports as incomplete, so that the next run reads them again.

    An excluded import stays excluded: its rows are not guaranteed, and it is read as new once it is included. If the
    ledger lost its column `state`, no import counts as synced, and nothing is marked.
    """
    if not slugs or "state" not in connection.columns()[LEDGER]:
        return
    ensure_due_column(connection)
    error = ", error = %s" if "error" in connection.columns()[LEDGER] else ""
    for some in batches(slugs):
        connection.execute(
            f"UPDATE {connection.name(LEDGER)} SET state = '{State.failed}', {DUE} = '{Due.incomplete}'{error} "
            f"WHERE COALESCE(state, '') <> '{State.excluded}' AND slug IN ({', '.join(['%s'] * len(some))})",
            *([why] if error else []),
            *some,
        )


def invalidate(connection: Connection, slugs: Sequence[str], known: Collection[str], why: str) -> None:
    """Remove the load from the ledger rows of these imports; those without a row get one without a load.

    The next run then audits all rows, and reads these imports again.
    """
    for some in batches([slug for slug in slugs if slug in known]):
        connection.execute(
            f"UPDATE {connection.name(LEDGER)} SET {connection.column(LOAD_ID)} = '', error = %s "
            f"WHERE slug IN ({', '.join(['%s'] * len(some))})",
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
