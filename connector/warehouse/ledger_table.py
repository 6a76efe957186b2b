"""Questions about one load, before and after it, and what makes the next run read an import again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa

from connector.ledger import State
from connector.warehouse.connection import Connection, batches
from connector.warehouse.lookup import relations
from connector.warehouse.tables import LEDGER, LOAD_ID, RECORDS, Arrival, keys_of


def is_new(connection: Connection, arrival: Arrival) -> bool:
    """Tell whether the table holds no row of these records or imports (DuckDB and PostgreSQL).

    DuckDB compares hashes of the slugs, which takes a fraction of the memory: what two of them share makes rows that
    are new look as if they were not, and never the other way round.
    """
    record, import_ = map(connection.column, keys_of(arrival.table))
    imports = f"{import_} IN (SELECT slug FROM arriving_imports)"
    records = f"{record} IN (SELECT slug FROM arriving_records)"
    if not connection.is_postgres:
        records = f"hash({record}) IN (SELECT hash(slug) FROM arriving_records)"
    with relations(connection, _arriving(arrival)):
        if _any_row(connection, arrival.table, imports):
            return False
        with connection.sparing(columns=1, slugs=len(arrival.records)):
            return not _any_row(connection, arrival.table, records)


def are_elsewhere(connection: Connection, arrival: Arrival) -> bool:
    """Tell whether the table holds some of these records as another import's (DuckDB and PostgreSQL)."""
    record, import_ = map(connection.column, keys_of(arrival.table))
    with relations(connection, _arriving(arrival)):
        return _any_row(
            connection,
            arrival.table,
            f"{import_} NOT IN (SELECT slug FROM arriving_imports) AND {connection.column('_deleted_at')} IS NULL "
            f"AND {record} IN (SELECT slug FROM arriving_records)",
        )


def _arriving(arrival: Arrival) -> dict[str, pa.ChunkedArray[Any]]:
    imports = pa.chunked_array([pa.array(arrival.imports, pa.string())])
    return {"arriving_imports": imports, "arriving_records": arrival.records}


def _any_row(connection: Connection, table: str, where: str) -> bool:
    rows = connection.query(f"SELECT count(*) AS n FROM {connection.name(table)} WHERE {where}").to_pylist()
    return bool(rows[0]["n"])


def missing_rows(
    connection: Connection, load_id: str, raw: bool, typed_tables: Sequence[str]
) -> list[tuple[str, str, int, int]]:
    """After a load: (import, table, rows accepted, rows that are there) wherever the two differ."""
    ledger = {
        r["slug"]: r
        for r in connection.query(
            f"SELECT slug, table_name, records_loaded FROM {connection.name(LEDGER)} "
            f"WHERE {connection.column(LOAD_ID)} = %s AND state IN ('{State.synced}', '{State.unreconciled}')",
            load_id,
        ).to_pylist()
    }
    wrong: list[tuple[str, str, int, int]] = []
    tables = connection.columns()  # a template whose imports have no rows has no table yet
    for table in [RECORDS] * raw + sorted(typed_tables):
        key = connection.column("import_slug" if table == RECORDS else "_import_slug")
        there: dict[str, int] = {}
        if table in tables:
            rows = connection.query(
                f"SELECT {key} AS slug, count(*) AS n FROM {connection.name(table)} "
                f"WHERE {connection.column(LOAD_ID)} = %s AND {connection.column('_deleted_at')} IS NULL GROUP BY 1",
                load_id,
            ).to_pylist()
            there = {r["slug"]: int(r["n"]) for r in rows}
        for slug, row in ledger.items():
            if table in (RECORDS, row["table_name"]) and there.get(slug, 0) != row["records_loaded"]:
                wrong.append((slug, table, row["records_loaded"], there.get(slug, 0)))
    return wrong


def distrust(connection: Connection, slugs: Sequence[str], why: str) -> None:
    """Makes the next run read these imports again."""
    for some in batches(slugs):
        connection.execute(
            f"UPDATE {connection.name(LEDGER)} SET state = '{State.failed}', error = %s "
            f"WHERE slug IN ({', '.join(['%s'] * len(some))})",
            why,
            *some,
        )


def doubt(connection: Connection, slugs: Sequence[str], known: Collection[str], why: str) -> None:
    """Takes their load from the ledger rows of these imports, and gives those without a row one that has none:
    the next run then audits all rows, and reads these imports again."""
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


def errors(connection: Connection) -> list[tuple[str, str, str | None]]:
    """(import, state, error) of every import that is not as it should be."""
    rows = connection.query(
        f"SELECT slug, state, error FROM {connection.name(LEDGER)} "
        f"WHERE state IN ('{State.failed}', '{State.unreconciled}') ORDER BY slug"
    ).to_pylist()
    return [(row["slug"], row["state"], row["error"]) for row in rows]
