"""Read the whole contents of a warehouse, so that two moments can be compared."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import duckdb

DATASET = "importer_data"
FOREIGN = "records_mine_"  # a user's own tables
VERSIONS = re.compile(r"_history(_\d+)?$")
SYSTEM = ("imports", "records", "sync_imports", "sync_runs", "sync_fields", "sync_rejects")
Rows = list[dict[str, Any]]
_POSTGRES_NAMES = (
    "SELECT table_name FROM information_schema.tables "
    r"WHERE table_schema = %s AND table_name NOT LIKE '\_dlt%%' ESCAPE '\' ORDER BY 1"
)


@dataclass(frozen=True, slots=True)
class Holdings:
    """Rows by table; `typed` are the tables of templates, `foreign` the user's, `versions` those of `history`."""

    tables: Mapping[str, Rows] = field(default_factory=dict)
    typed: Mapping[str, Rows] = field(default_factory=dict)
    foreign: Mapping[str, Rows] = field(default_factory=dict)
    versions: Mapping[str, Rows] = field(default_factory=dict)

    @classmethod
    def of(cls, connection: duckdb.DuckDBPyConnection) -> Holdings:
        # the standard's view takes DuckDB twice as long, and a query for Arrow is planned twice
        names = connection.execute(
            "SELECT table_name FROM duckdb_tables() WHERE schema_name = ? AND NOT starts_with(table_name, '_dlt') "
            "UNION ALL SELECT view_name FROM duckdb_views() WHERE schema_name = ? ORDER BY 1",
            [DATASET, DATASET],
        ).fetchall()
        return cls.made_of({name: _rows(connection, name) for (name,) in names})

    @classmethod
    def of_postgres(cls, cursor: Any) -> Holdings:
        """Read PostgreSQL over a cursor of psycopg2 whose rows are dicts, and which leaves JSON as text."""
        cursor.execute(_POSTGRES_NAMES, [DATASET])
        rows = {}
        for name in [row["table_name"] for row in cursor.fetchall()]:
            cursor.execute(f'SELECT * FROM {DATASET}."{name}"')
            rows[name] = [dict(row) for row in cursor.fetchall()]
        return cls.made_of(rows)

    @classmethod
    def of_sqlite(cls, connection: sqlite3.Connection) -> Holdings:
        """Read the file of a dataset, values as the types of their columns say."""
        rows = {}
        names = "SELECT name FROM sqlite_master WHERE type = 'table' AND substr(name, 1, 4) <> '_dlt' ORDER BY 1"
        for (name,) in connection.execute(names).fetchall():
            columns = connection.execute("SELECT name, type FROM pragma_table_info(?)", [name]).fetchall()
            found = connection.execute(f'SELECT * FROM "{name}"').fetchall()
            rows[name] = [
                {c: _typed(value, kind) for (c, kind), value in zip(columns, row, strict=True)} for row in found
            ]
        return cls.made_of(rows)

    @classmethod
    def of_mysql(cls, cursor: Any) -> Holdings:
        """Read MySQL over a cursor of pymysql, values as the types of their columns say."""
        of_columns = "SELECT column_name, column_type FROM information_schema.columns WHERE table_schema = %s"
        cursor.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = %s ORDER BY 1", [DATASET])
        rows = {}
        for (name,) in [each for each in cursor.fetchall() if not each[0].startswith("_dlt")]:
            cursor.execute(f"{of_columns} AND table_name = %s ORDER BY ordinal_position", [DATASET, name])
            columns = cursor.fetchall()
            cursor.execute(f"SELECT * FROM {DATASET}.`{name}`")
            found = cursor.fetchall()
            rows[name] = [
                {c: _typed(value, kind) for (c, kind), value in zip(columns, row, strict=True)} for row in found
            ]
        return cls.made_of(rows)

    @classmethod
    def made_of(cls, rows: Mapping[str, Rows]) -> Holdings:
        """Sort tables by their kind."""
        versions = {name for name in rows if VERSIONS.search(name) and not name.startswith(FOREIGN)}
        typed = {name for name in rows if name.startswith("records_") and not name.startswith(FOREIGN)}
        return cls(
            {name: rows.get(name, []) for name in SYSTEM},
            {name: rows[name] for name in sorted(typed - versions)},
            {name: rows[name] for name in rows if name.startswith(FOREIGN)},
            {name: rows[name] for name in sorted(versions)},
        )

    def of_table(self, name: str) -> Rows:
        return self.tables.get(name, [])

    def live_records(self) -> dict[str, dict[str, Any]]:
        return {row["slug"]: row for row in self.of_table("records") if row["_deleted_at"] is None}

    def live_typed(self) -> dict[str, list[tuple[str, dict[str, Any]]]]:
        """Return record slug → its import."""
        found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
        for table, rows in self.typed.items():
            for row in rows:
                if row["_deleted_at"] is None:
                    found.setdefault(row["_record_slug"], []).append((table, row))
        return found

    def tombstones(self) -> frozenset[str]:
        """Return the slugs of the imports and records that are marked as deleted."""
        typed = {row["_record_slug"] for rows in self.typed.values() for row in rows if row["_deleted_at"] is not None}
        others = (row["slug"] for name in ("imports", "records") for row in self.of_table(name)
                  if row["_deleted_at"] is not None)  # fmt: skip
        return frozenset(typed.union(others))

    def by_key(self, table: str, *key: str) -> dict[Any, dict[str, Any]]:
        return {row[key[0]] if len(key) == 1 else tuple(row[k] for k in key): row for row in self.of_table(table)}

    def without_runs(self) -> dict[str, list[str]]:
        everything = {**self.tables, **self.typed, **self.versions}
        return {name: sorted(map(repr, rows)) for name, rows in everything.items() if name != "sync_runs"}

    def fingerprint(self) -> dict[str, list[str]]:
        """Return what must be equal between two runs of one seed: everything except the ids of runs and loads."""
        random = {"run_id", "_dlt_load_id", "load_ids", "reject_id", "finished_at", "error"}
        everything = {**self.tables, **self.typed}
        return {
            name: sorted(repr({k: v for k, v in sorted(row.items()) if k not in random}) for row in rows)
            for name, rows in everything.items()
        }


def _rows(connection: duckdb.DuckDBPyConnection, table: str) -> Rows:
    found: Any = connection.execute(f'SELECT * FROM {DATASET}."{table}"')
    names = [column[0] for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def _by_types(columns: Sequence[tuple[str, str]], row: Sequence[Any]) -> dict[str, Any]:
    return {name: _typed(value, declared) for (name, declared), value in zip(columns, row, strict=True)}


def _typed(value: Any, declared: str) -> Any:
    """Return a value as DuckDB would have it, from what SQLite or MySQL gives for a column of this type."""
    kind = declared.lower().partition("(")[0]
    if value is None:
        return None
    if kind == "datetime":
        return (datetime.fromisoformat(value) if isinstance(value, str) else value).replace(tzinfo=UTC)
    return bool(value) if kind in ("boolean", "tinyint") else value


def duplicates(values: Iterable[Any]) -> set[Any]:
    seen: set[Any] = set()
    return {value for value in values if value in seen or seen.add(value)}  # type: ignore[func-returns-value]
