"""Read and write `sync_runs`: the row of this run, and those of runs that died before they wrote their end."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from connector.dlt_config import configured
from connector.ledger import STATUSES
from connector.runs import INCREMENTAL, REPAIRED, UNSETTLED, Noted, Status, Tally, mode_of
from connector.warehouse.connection import Connection
from connector.warehouse.tables import LOAD_ID, LOADS_SEEN, NOTED, RUNS, RUNS_SCHEMA

CRASHED = (
    "The process ended without recording a result (killed, or the machine stopped); what it had not committed is "
    "read again."
)


def crashed_runs(connection: Connection, tables: Collection[str] | None = None, mode: str | None = None) -> list[str]:
    """Return the runs that never ended, or whose load never completed; those of one mode, or all."""
    load_id = connection.column(LOAD_ID)
    rows = connection.rows(
        f"SELECT run_id FROM {connection.name(RUNS)} WHERE (status = '{Status.running}' OR "
        f"({load_id} <> '' AND {load_id} NOT IN {connection.completed_loads(tables)}))"
        f"{'' if mode is None else ' AND mode = %s'} ORDER BY 1",
        *([] if mode is None else [mode]),
    )
    return [row["run_id"] for row in rows]


def fail_crashed_runs(
    connection: Connection, now: datetime, tables: Collection[str] | None = None, mode: str | None = None
) -> list[str]:
    """Mark runs that never ended as failed; return their ids.

    The caller holds the lock, a shard the lock of its mode.
    """
    found = crashed_runs(connection, tables, mode)
    for run_id in found:
        connection.execute(
            f"UPDATE {connection.name(RUNS)} SET status = '{Status.failed}', error = %s, error_kind = '{UNSETTLED}', "
            f"{connection.column(LOAD_ID)} = '', finished_at = COALESCE(finished_at, %s) WHERE run_id = %s",
            CRASHED,
            now,
            run_id,
        )
    return found


def latest_start(connection: Connection) -> datetime | None:
    """Return when the latest run began, by the clock of the machine that it ran on."""
    [row] = connection.query(f"SELECT max(started_at) AS latest FROM {connection.name(RUNS)}").to_pylist()
    latest: datetime | None = row["latest"]
    return latest


def full_modes() -> tuple[str, ...]:
    """Return the modes of runs that read everything, or everything of the `status` in the configuration, if any."""
    status = configured("sources.importer.status", str)
    return (INCREMENTAL, *([mode_of(INCREMENTAL, status)] if status in STATUSES else []))


def full_run_sql() -> str:
    """Return the SQL condition for runs of these modes that succeeded and no window bounded."""
    modes = ", ".join(f"'{mode}'" for mode in full_modes())
    return f"status = '{Status.succeeded}' AND mode IN ({modes}) AND window_since IS NULL AND window_until IS NULL"


def loaded_by_dlt_alone(connection: Connection) -> bool:
    """Return whether a run by dlt alone, which erases no versions, has loaded since the last run that erased all."""
    runs, load_id = connection.name(RUNS), f"COALESCE({connection.column(LOAD_ID)}, '')"
    last = f"SELECT max(started_at) FROM {runs} WHERE {load_id} = '' AND status = '{Status.succeeded}' AND mode LIKE %s"
    sql = f"SELECT 1 FROM {runs} WHERE {load_id} <> '' AND (started_at > ({last}) OR ({last}) IS NULL) LIMIT 1"
    return connection.query(sql, *[f"{INCREMENTAL}%"] * 2).num_rows > 0


def unsettle_latest_run(connection: Connection, columns: Collection[str]) -> None:
    """Make the next run check all rows; `columns` are those of the table."""
    if {"started_at", "error_kind"} <= set(columns):
        latest = f"SELECT max(started_at) FROM {connection.name(RUNS)}"
        connection.execute(
            f"UPDATE {connection.name(RUNS)} SET error_kind = '{UNSETTLED}' WHERE started_at = ({latest})"
        )


def mark_runs_repaired(connection: Connection, columns: Collection[str]) -> None:
    """Record that everything left by crashed runs is repaired, so that the next run need not check again.

    `columns` are those of the table. What runs have seen is emptied, because it may be more than dlt knows of now.
    """
    connection.execute(
        f"UPDATE {connection.name(RUNS)} SET error_kind = '{REPAIRED}' WHERE error_kind = '{UNSETTLED}'",
    )
    forget_loads_seen(connection, columns)


def forget_loads_seen(connection: Connection, columns: Collection[str]) -> None:
    """Empty how many packages runs have seen, so that the next run checks all rows if no run writes a number before.

    `columns` are those of the table.
    """
    if LOADS_SEEN in columns:
        connection.execute(f"UPDATE {connection.name(RUNS)} SET {LOADS_SEEN} = NULL WHERE {LOADS_SEEN} IS NOT NULL")


def note_for_later_runs(connection: Connection, noted: Noted) -> None:
    """Store in every row what later runs have to know.

    The clocks of two machines may differ, so no order of the rows is relied on.
    """
    row, there = noted.as_row(), connection.columns()[RUNS]
    for name in NOTED.keys() - there:  # of an earlier version; dlt adopts existing columns
        connection.add_column(RUNS, name, NOTED[name])
    connection.execute(f"UPDATE {connection.name(RUNS)} SET {', '.join(f'{name} = %s' for name in row)}", *row.values())


def note_progress(connection: Connection, tally: Tally) -> None:
    """Write the progress of a running run to its row."""
    row = tally.as_row(Status.running)
    _update(connection, [n for n in RUNS_SCHEMA.names if n in row and n not in ("run_id", "status")], row)


def begin_run(connection: Connection, tally: Tally, columns: Collection[str]) -> None:
    """Write that this run is in progress; `columns` are those of the table."""
    _insert(connection, tally.as_row(Status.running), columns)


def end_run(connection: Connection, tally: Tally, columns: Collection[str] | None, *, begun: bool) -> None:
    """Write how this run ended, in the columns that exist; a backfill that was refused leaves no row.

    If `columns` is None, they are queried; if there is no table yet, nothing is written.
    """
    there = connection.declared(RUNS) if columns is None else columns
    if not there:
        return
    if tally.refused:
        connection.execute(f"DELETE FROM {connection.name(RUNS)} WHERE run_id = %s", tally.run_id)
    elif begun:
        row = {**tally.as_row(), LOAD_ID: ""}
        _update(connection, [n for n in RUNS_SCHEMA.names if n in there and n != "run_id"], row)
    else:
        _insert(connection, tally.as_row(), there)


def _insert(connection: Connection, row: Mapping[str, Any], columns: Collection[str]) -> None:
    connection.insert(RUNS, [name for name in RUNS_SCHEMA.names if name in columns], {**row, LOAD_ID: ""})


def _update(connection: Connection, names: Collection[str], row: Mapping[str, Any]) -> None:
    """Write these columns in one statement, because the run may die at any moment."""
    values = ", ".join(f"{connection.column(name)} = %s" for name in names)
    connection.execute(
        f"UPDATE {connection.name(RUNS)} SET {values} WHERE run_id = %s", *(row[name] for name in names), row["run_id"]
    )
