"""Report the status of a warehouse: last runs, freshness, open imports. A run publishes it in a file.

DuckDB lets nobody read a file while a run has it open, which may take hours, but a monitor still needs the status.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from dlt.pipeline.pipeline import Pipeline

from connector.files import write_note
from connector.ledger import LedgerRow
from connector.standing import Standing
from connector.warehouse import Connection, Warehouse
from connector.warehouse.busy import when_free
from connector.warehouse.destination import duckdb_file
from connector.warehouse.lock import holder_of, lock_path
from connector.warehouse.ownership import inspect_dataset
from connector.warehouse.runs_table import full_run_sql
from connector.warehouse.standings import OPEN, UNREAD, standings_of, unread_sql
from connector.warehouse.state import WarehouseState
from connector.warehouse.stored_imports import imports_seen, ledger_rows
from connector.warehouse.tables import LEDGER, RECORDS, REJECTS, RUNS

OPEN_SHOWN = 20
RUNS_SHOWN = 5
RUNS_PUBLISHED = 50


@dataclass(frozen=True, slots=True)
class PastRun:
    """A row of `sync_runs`."""

    run_id: str
    status: str
    mode: str
    started_at: datetime
    finished_at: datetime | None
    imports_listed: int | None
    imports_changed: int | None
    imports_deleted: int | None
    imports_failed: int | None
    imports_unreconciled: int | None
    records_loaded: int | None
    records_rejected: int | None
    requests: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class OpenImport:
    """An import that failed, does not reconcile or is not loaded yet: its `Standing`, and its row of `sync_imports`."""

    slug: str
    state: str
    attempts: int | None
    error: str | None
    last_synced_at: datetime | None


@dataclass(frozen=True, slots=True)
class WarehouseStatus:
    """The contents of the warehouse, and what the next run has to read.

    Attributes:
        fresh_as_of: When the last full run that succeeded began; None if there was none. If `status` is set under
            [sources.importer], runs that read only imports of that status count too.
        runs: The last runs, the latest first.
        imports: State → number of imports: the ledger's state, or `waiting` if the listed version is not loaded.
        standings: Standing, by the latest listing → number of live imports.
        due: Reason → number of imports that the next run reads again although they look unchanged.
        records: Number of live records.
        rejects: Number of records that were rejected when their import was read last, and of elements of the listing
            that the latest run could not read as imports.
        open: The imports that need attention, at most 20.
        under_way: A run has the DuckDB file open; all other values are from when that run began.
    """

    fresh_as_of: datetime | None = None
    runs: tuple[PastRun, ...] = ()
    imports: Mapping[str, int] = field(default_factory=dict)
    standings: Mapping[str, int] = field(default_factory=dict)
    due: Mapping[str, int] = field(default_factory=dict)
    records: int = 0
    rejects: int = 0
    open: tuple[OpenImport, ...] = ()
    under_way: bool = False


def read_status(connection: Connection, runs: int, state: WarehouseState | None = None) -> WarehouseStatus:
    """Return the status of the warehouse, with its last `runs` runs.

    If `state` is given, which was just read, records are counted from the ledger, unless that was in doubt, because no
    run scans a table of records.
    """
    if state is None:
        dataset = inspect_dataset(connection)
        tables = dataset.ours
        ledger: Mapping[str, LedgerRow] = ledger_rows(connection, dataset)
        found = standings_of(ledger, imports_seen(connection, dataset))
    else:
        tables, ledger = state.tables, state.ledger
        found = standings_of(ledger, state.imports)

    latest = _latest_runs(connection, tables, runs)
    if state is not None and not state.audited:
        records = sum(known.records_loaded for known in ledger.values() if known.has_raw)
    elif RECORDS in tables:
        live = f"{connection.column('_deleted_at')} IS NULL"
        [counted] = connection.rows(f"SELECT count(*) AS n FROM {connection.name(RECORDS)} WHERE {live}")
        records = int(counted["n"])
    else:
        records = 0
    records += sum(known.records_loaded for known in ledger.values() if known.live and not known.has_raw)  # only typed
    open_imports = sorted((OPEN.index(each), slug) for slug, (each, _) in found.items() if each in OPEN)[:OPEN_SHOWN]
    kept = {row["slug"]: row for row in connection.rows_of(LEDGER, "slug", [s for _, s in open_imports]).to_pylist()}
    return WarehouseStatus(
        fresh_as_of=latest[0]["fresh_at"] if latest else None,
        runs=msgspec.convert(latest, tuple[PastRun, ...]),
        imports=_counted(ledger, found),
        records=records,
        rejects=_rejected(found) + (latest[0]["unread"] if latest else 0),
        standings=dict(Counter(each.value for each, _ in found.values())),
        due=dict(Counter(known.due.partition(":")[0] for _, known in found.values() if known and known.due)),
        open=tuple(_open(slug, OPEN[place], kept.get(slug, {})) for place, slug in open_imports),
    )


def _latest_runs(connection: Connection, tables: Collection[str], count: int) -> list[dict[str, Any]]:
    """Return the last runs, each with when the last full run that succeeded began, and what is `unread` in the listing.

    All three come from one query, because each run asks for them.
    """
    if RUNS not in tables:
        return []
    runs, columns = connection.name(RUNS), ", ".join(each.name for each in fields(PastRun))
    unread, args = (unread_sql(connection), [UNREAD]) if REJECTS in tables else ("0", [])
    fresh_at = f"(SELECT max(started_at) FROM {runs} WHERE {full_run_sql()})"
    return connection.query(
        f"SELECT {columns}, {fresh_at} AS fresh_at, {unread} AS unread "
        f"FROM {runs} ORDER BY started_at DESC LIMIT {count}",
        *args,
    ).to_pylist()


def _counted(ledger: Mapping[str, LedgerRow], found: Mapping[str, tuple[Standing, LedgerRow | None]]) -> dict[str, int]:
    """Return state → number of imports; one whose listed version is not loaded counts as waiting in any state."""
    states = [standing.value if standing in OPEN else row.state for standing, row in found.values() if row is not None]
    states += [Standing.waiting.value for _, row in found.values() if row is None]
    # deleted, or about to be: the table `imports` has no live row of these
    states += [row.state if row.trusted else Standing.waiting.value for s, row in ledger.items() if s not in found]
    return dict(sorted(Counter(map(str, states)).items()))


def _rejected(found: Mapping[str, tuple[Standing, LedgerRow | None]]) -> int:
    return sum(row.records_rejected for at, row in found.values() if row is not None and at is not Standing.excluded)


def _open(slug: str, standing: Standing, row: Mapping[str, Any]) -> OpenImport:
    return OpenImport(
        slug=slug,
        state=standing.value,
        attempts=row.get("attempts"),
        error=row.get("error"),
        last_synced_at=row.get("last_synced_at"),
    )


def status(pipeline: Pipeline, *, runs: int = RUNS_SHOWN) -> WarehouseStatus:
    """Return the state of the warehouse of a pipeline, without a request to the service.

    While a run has a DuckDB file open, the state is the one that the run published when it began.

    Args:
        pipeline: The pipeline that loads the warehouse.
        runs: The number of past runs to return.

    Raises:
        ConfigError: A sync cannot use the destination.
        DatabaseBusyError: Another program has the DuckDB file open.
    """
    warehouse = Warehouse(pipeline)
    warehouse.check_supported()

    def ask() -> WarehouseStatus:
        if not warehouse.exists():
            return WarehouseStatus()
        with warehouse.connect() as connection:
            return read_status(connection, runs)

    def published() -> WarehouseStatus | None:
        found = read_published_status(pipeline)
        return None if found is None else replace(found, runs=found.runs[:runs])

    return when_free(ask, published)


@contextmanager
def publish_status(pipeline: Pipeline, connection: Connection, state: WarehouseState | None = None) -> Iterator[None]:
    """Write the status to a file while the warehouse is in use, for processes that cannot open the warehouse.

    `read_published_status` reads it.
    """
    file = _status_file(pipeline)
    if file is None:
        yield
        return
    write_note(file, msgspec.json.encode(read_status(connection, RUNS_PUBLISHED, state)))
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def read_published_status(pipeline: Pipeline) -> WarehouseStatus | None:
    """Return the status that the run under way published, or None.

    Call it only if the file is in use: a crashed run leaves its file too.
    """
    holder = holder_of(pipeline)
    file = _status_file(pipeline) if holder is not None and holder.is_alive else None
    with suppress(OSError, msgspec.MsgspecError):
        if file is not None:
            return replace(msgspec.json.decode(file.read_bytes(), type=WarehouseStatus), under_way=True)
    return None


def _status_file(pipeline: Pipeline) -> Path | None:
    return lock_path(pipeline).with_suffix(".status") if duckdb_file(pipeline) is not None else None
