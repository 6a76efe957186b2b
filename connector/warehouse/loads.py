"""Query dlt's tables of loads and schemas for how earlier runs ended, and correct the stored schema."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from connector.runs import UNSETTLED, Noted, Status
from connector.warehouse.connection import LOADS, VERSIONS, Connection
from connector.warehouse.tables import LOAD_ID, LOADS_SEEN, NOTED, OF_IMPORT, REJECTS, RUNS, SOURCE


def count_loads(connection: Connection, tables: Collection[str]) -> tuple[int, str]:
    """Return how many packages of this source dlt has completed, and the last of their ids; '' if there is none.

    `tables` are those of the dataset. A package that was completed twice counts twice: the second time may have been
    late.
    """
    if LOADS not in tables:
        return 0, ""
    where = "WHERE status = 0 AND schema_name = %s"
    sql = f"SELECT count(*) AS n, max(load_id) AS last FROM {connection.name(LOADS)} {where}"
    [row] = connection.query(sql, SOURCE).to_pylist()
    return int(row["n"]), row["last"] or ""


@dataclass(frozen=True, slots=True)
class EarlierRuns:
    """What the runs before this one left to it.

    `settled`: whether there was a run, all ended properly and settled, and no package was completed late. `unread`:
    whether there are rejects of imports that a run could not read in the listing.
    """

    settled: bool = False
    noted: Noted = field(default_factory=Noted)
    unread: bool = False


def earlier_runs(connection: Connection, tables: Mapping[str, Collection[str]], loads: int) -> EarlierRuns:
    """Return what the runs before this one left to it.

    `tables` are ours, with their columns, and `loads` is the number of packages that dlt has completed. dlt by itself
    finishes the package of a killed process, which may be outdated by then. Times do not tell, because the clocks
    of two machines may differ, but numbers do: a run stores how many packages were complete when it began, with its
    own. There are more only if another one was completed since. If the column is missing or empty, none is known.
    """
    columns = tables.get(RUNS, ())
    asked = {name: f"min({name})" for name in NOTED if name in columns}
    tells = LOADS_SEEN in columns and LOADS in tables
    if tells:
        load_id = connection.column(LOAD_ID)
        dead = (
            f"status = '{Status.running}' OR error_kind = '{UNSETTLED}' OR "
            f"({load_id} IS NOT NULL AND {load_id} <> '' AND {load_id} NOT IN {connection.completed_loads({LOADS})})"
        )
        ends = {"runs": "count(*)", "dead": f"sum(CASE WHEN {dead} THEN 1 ELSE 0 END)", "seen": f"max({LOADS_SEEN})"}
        asked = {**asked, **ends}
    if not asked:
        return EarlierRuns()
    if {"record_slug", "reason"} <= set(tables.get(REJECTS, ())):
        of_listing = f"record_slug IS NULL AND substr(reason, 1, {len(OF_IMPORT)}) = '{OF_IMPORT}'"
        asked["unread"] = f"(SELECT count(*) FROM {connection.name(REJECTS)} WHERE {of_listing})"
    columns_asked = ", ".join(f"{each} AS {name}" for name, each in asked.items())
    [row] = connection.query(f"SELECT {columns_asked} FROM {connection.name(RUNS)}").to_pylist()
    settled = tells and bool(row["runs"]) and not row["dead"] and row["seen"] == loads
    return EarlierRuns(settled, Noted.of_row(row), bool(row.get("unread")))


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
