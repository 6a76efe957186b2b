"""Query dlt's tables of loads and schemas for how earlier runs ended, and correct the stored schema."""

from __future__ import annotations

import math
from datetime import timedelta

from connector.runs import UNSETTLED, Status
from connector.warehouse.connection import LOADS, VERSIONS, Connection
from connector.warehouse.tables import LOAD_ID, RUNS


def all_runs_completed(connection: Connection, tables: frozenset[str]) -> bool:
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
    """Return whether a package was completed after a later run had begun or ended.

    dlt by itself finishes packages of a crashed run, which may be outdated by then. The package with the row of its own
    run is always completed after that run ended. It may still belong to an earlier run: then it was created before the
    latest run began.
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
    """Return when dlt created a package, in seconds since 1970, from its id."""
    try:
        return float(load_id)
    except ValueError:
        return math.inf


def forget_schemas(connection: Connection, schema_name: str) -> None:
    """Make dlt compare its schema with the tables again.

    dlt assumes that tables exist once a schema with its hash was stored, see `SqlJobClientBase.update_stored_schema`.
    The schemas stay, because they show which tables are ours.
    """
    connection.execute(f"UPDATE {connection.name(VERSIONS)} SET version_hash = '' WHERE schema_name = %s", schema_name)


def make_newest(connection: Connection, schema_name: str, version_hash: str) -> None:
    """Make the stored schema of this hash the newest one, which dlt and `ownership` use.

    Otherwise a schema stored by a run whose clock was ahead would restore what a rebuild removed.
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
