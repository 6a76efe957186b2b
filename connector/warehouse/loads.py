"""Query dlt's tables of loads and schemas for how earlier runs ended, and correct the stored schema."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from connector.runs import UNSETTLED, Status
from connector.warehouse.connection import LOADS, VERSIONS, Connection
from connector.warehouse.tables import LOAD_ID, RUNS


def all_runs_completed(connection: Connection, tables: frozenset[str]) -> bool:
    """Return whether there was a run, all ended properly and settled, and no package was completed late."""
    if not {RUNS, LOADS} <= tables:
        return False
    ends = _ends(connection)
    return bool(ends[0]["runs"]) and not ends[0]["dead"] and not _is_late(ends)


def _is_late(ends: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a package was completed after a later run had begun or ended.

    dlt by itself finishes packages of a crashed run, which may be outdated by then. The package with the row of its own
    run is always completed after that run ended. It may still belong to an earlier run: then it was created before the
    latest run began.
    """
    loads = [each for each in ends if each["load_id"] is not None]
    return any(
        each["behind_all"]
        or (each["load_id"] != each["own_load_id"] and _made_at(each["load_id"]) < each["latest_at"].timestamp())
        for each in loads
    )


def _ends(connection: Connection) -> list[dict[str, Any]]:
    """Return how runs ended, with each load completed since the latest one began; a row without a load if none was."""
    runs, load_id = connection.name(RUNS), connection.column(LOAD_ID)
    dead = (
        f"status = '{Status.running}' OR error_kind = '{UNSETTLED}' OR "
        f"({load_id} IS NOT NULL AND {load_id} <> '' AND {load_id} NOT IN {connection.completed_loads({LOADS})})"
    )
    return connection.query(
        "SELECT r.runs, r.dead, r.latest_at, l.load_id, CASE WHEN l.inserted_at > r.ended_at AND "
        f"l.load_id NOT IN (SELECT COALESCE({load_id}, '') FROM {runs}) THEN 1 ELSE 0 END AS behind_all, "
        f"(SELECT {load_id} FROM {runs} ORDER BY started_at DESC LIMIT 1) AS own_load_id "
        f"FROM (SELECT count(*) AS runs, sum(CASE WHEN {dead} THEN 1 ELSE 0 END) AS dead, "
        f"max(started_at) AS latest_at, max(finished_at) AS ended_at FROM {runs}) r "
        f"LEFT JOIN {connection.name(LOADS)} l ON l.status = 0 AND l.inserted_at > r.latest_at"
    ).to_pylist()


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
