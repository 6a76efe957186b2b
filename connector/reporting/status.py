"""The state of a warehouse as a value: last runs, freshness, and the imports that are open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import msgspec
from dlt.pipeline.pipeline import Pipeline

from connector.warehouse import Warehouse
from connector.warehouse import status as overview
from connector.warehouse.busy import when_free

RUNS = 5


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
    """An import that failed, does not reconcile or is not loaded yet."""

    slug: str
    state: str
    attempts: int | None
    error: str | None
    last_synced_at: datetime | None


@dataclass(frozen=True, slots=True)
class WarehouseStatus:
    """What the warehouse holds, and what the next run has to read.

    Attributes:
        fresh_as_of: When the last full run that succeeded began; None if there was none.
        runs: The last runs, the latest first.
        imports: Ledger state → number of imports.
        standings: State now, compared with what the service showed last → number of live imports.
        due: Reason → number of imports that the next run reads again though they look unchanged.
        records: Number of live records.
        rejects: Number of rejected records.
        open: The imports that need attention, at most 20.
        under_way: A run has the DuckDB file open; all of this is how the warehouse was when that run began.
    """

    fresh_as_of: datetime | None
    runs: tuple[PastRun, ...]
    imports: Mapping[str, int]
    standings: Mapping[str, int]
    due: Mapping[str, int]
    records: int
    rejects: int
    open: tuple[OpenImport, ...]
    under_way: bool = False


def status(pipeline: Pipeline, *, runs: int = RUNS) -> WarehouseStatus:
    """Return the state of the warehouse of a pipeline, without a request to the service.

    While a run has a DuckDB file open, the state is the one that the run noted when it began.

    Args:
        pipeline: The pipeline that loads the warehouse.
        runs: The number of past runs to return.

    Raises:
        ConfigError: The destination is not one that a sync can use.
        DatabaseBusyError: Another program has the DuckDB file open.
    """
    warehouse = Warehouse(pipeline)
    warehouse.check_supported()

    def look() -> WarehouseStatus:
        if not warehouse.exists():
            return _status(overview.nothing_yet(), runs, under_way=False)
        with warehouse.connect() as connection:
            return _status(overview.look(connection, runs), runs, under_way=False)

    def noted() -> WarehouseStatus | None:
        left = overview.left_by_a_run(pipeline)
        return None if left is None else _status(left, runs, under_way=True)

    return when_free(look, noted)


def _status(found: overview.Overview, runs: int, *, under_way: bool) -> WarehouseStatus:
    values = {**found, "runs": found["runs"][:runs], "under_way": under_way}
    return msgspec.convert(values, WarehouseStatus)
