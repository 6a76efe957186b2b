"""Change the warehouse between two runs: drop tables, columns and rows, add tables of a user, or convert it to the
format of an earlier version."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from random import Random

import duckdb

from connector.warehouse.tables import FORMAT_HINT
from tests.simulation.holdings import DATASET, FOREIGN

ManualChange = Callable[[duckdb.DuckDBPyConnection, Random], str]


def change_manually(connection: duckdb.DuckDBPyConnection, dice: Random) -> str:
    """Make one change; return a description."""
    return dice.choice(MANUAL_CHANGES)(connection, dice)


def _columns(connection: duckdb.DuckDBPyConnection, like: str) -> list[tuple[str, str]]:
    return connection.execute(
        "SELECT table_name, column_name FROM duckdb_columns() WHERE schema_name = ? AND starts_with(table_name, ?) "
        "AND NOT starts_with(table_name, ?) ORDER BY ALL",
        [DATASET, like, FOREIGN],
    ).fetchall()


def _drop(table: str) -> ManualChange:
    def act(connection: duckdb.DuckDBPyConnection, dice: Random) -> str:
        connection.execute(f"DROP TABLE IF EXISTS {DATASET}.{table}")
        return f"a hand dropped {table}"

    return act


def _drop_column(like: str, names: Callable[[str], bool]) -> ManualChange:
    def act(connection: duckdb.DuckDBPyConnection, dice: Random) -> str:
        found = [(table, column) for table, column in _columns(connection, like) if names(column)]
        if not found:
            return "a hand found no column"
        table, column = dice.choice(found)
        connection.execute(f'ALTER TABLE {DATASET}.{table} DROP COLUMN "{column}"')
        return f"a hand dropped {table}.{column}"

    return act


def _forget_fields(connection: duckdb.DuckDBPyConnection, dice: Random) -> str:
    if not _columns(connection, "sync_fields"):
        return "a hand found no fields"
    share = dice.choice((0.3, 1.0))
    fields = connection.execute(
        f"SELECT table_name, column_name FROM {DATASET}.sync_fields WHERE data_type IS NOT NULL ORDER BY ALL"
    ).fetchall()
    gone = [field for field in fields if dice.random() < share]
    for table, column in gone:
        connection.execute(
            f"DELETE FROM {DATASET}.sync_fields WHERE table_name = ? AND column_name = ?", [table, column]
        )
    return f"a hand deleted {len(gone)} of {len(fields)} fields"


def _forget_imports(connection: duckdb.DuckDBPyConnection, dice: Random) -> str:
    if not _columns(connection, "sync_imports"):
        return "a hand found no ledger"
    slugs = connection.execute(f"SELECT slug FROM {DATASET}.sync_imports ORDER BY slug").fetchall()
    share, tables = dice.choice((0.3, 1.0)), dice.choice((["sync_imports"], ["imports"], ["sync_imports", "imports"]))
    gone = [slug for (slug,) in slugs if dice.random() < share]
    there = {table for table, _ in _columns(connection, "")}
    for table in tables:
        if table in there:
            connection.executemany(f"DELETE FROM {DATASET}.{table} WHERE slug = ?", [[slug] for slug in gone or [""]])
    return f"a hand deleted {len(gone)} of {len(slugs)} imports from {' and '.join(tables)}"


def _back_up(connection: duckdb.DuckDBPyConnection, dice: Random) -> str:
    tables = sorted({table for table, _ in _columns(connection, "records_")})
    if not tables:
        return "a hand found nothing to back up"
    table = dice.choice(tables)
    connection.execute(f"CREATE OR REPLACE TABLE {DATASET}.{FOREIGN}{table} AS SELECT * FROM {DATASET}.{table}")
    return f"a hand made a copy of {table}"


# Columns that the first version did not write; its warehouses are in tests/upgrades/frozen.
_LATER = {
    "imports": ("extra", "records_metadata"),
    "records": ("extra",),
    "sync_imports": ("text_conflicts", "killed_runs", "due", "fewer_found", "fewer_since", "privacy", "history"),
    "sync_runs": ("loads_seen",),
}


def go_back_to_the_first_version(connection: duckdb.DuckDBPyConnection) -> str:
    """Change the tables, and the schema that the model of dlt stored for them, to those of the first version."""
    found = [(table, column) for table, column in _columns(connection, "") if _is_later(table, column)]
    if not found or ("_dlt_version", "n") not in _columns(connection, "_dlt_version"):
        return "there is nothing of a later version"
    hashed = _columns(connection, "imports")
    for table, column in found:
        if ("imports", "_content_hash") in hashed and table == "imports":  # its hash covered the columns that it had
            connection.execute(f"UPDATE {DATASET}.imports SET _content_hash = 'of less' WHERE \"{column}\" IS NOT NULL")
        connection.execute(f'ALTER TABLE {DATASET}.{table} DROP COLUMN "{column}"')
    versions = f"{DATASET}._dlt_version"
    [(stored,)] = connection.execute(f'SELECT "schema" FROM {versions} ORDER BY n DESC LIMIT 1').fetchall()
    schema = json.loads(stored)
    for name, table in schema["tables"].items():
        table.pop(FORMAT_HINT, None)
        table["columns"] = {c: kind for c, kind in table["columns"].items() if not _is_later(name, c)}
    content = json.dumps(schema, sort_keys=True)
    connection.execute(f"DELETE FROM {versions}")
    connection.execute(
        f"INSERT INTO {versions} VALUES (0, 'importer', ?, TIMESTAMPTZ '2026-01-01 00:00:00+00', ?)",
        [sha256(content.encode()).hexdigest(), content],
    )
    return f"the warehouse has the format of the first version, without {len(found)} columns"


def _is_later(table: str, column: str) -> bool:
    return column in _LATER.get(table, ()) or (table == "imports" and column.startswith("extra__"))


LEDGER_COLUMNS = ("records_loaded", "state", "has_raw", "updated_at", "table_name")
MANUAL_CHANGES: tuple[ManualChange, ...] = (
    _drop("sync_imports"),
    _drop("sync_fields"),
    _drop("sync_rejects"),
    _drop("imports"),
    _drop("_dlt_loads"),
    _drop_column("records_", lambda column: not column.startswith("_")),
    _drop_column("records", lambda column: column in ("sort", "created_at", "_sort", "_updated_at")),
    _drop_column("imports", lambda column: column in ("status", "row_count", "_content_hash")),
    _drop_column("imports", lambda column: column == "records_metadata"),
    _drop_column("sync_imports", lambda column: column in LEDGER_COLUMNS),
    _forget_fields,
    _forget_fields,
    _forget_imports,
    _forget_imports,
    _back_up,
    _back_up,
)
