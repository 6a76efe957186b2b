"""Prepare the dataset when a run begins, and load what earlier runs left in it.

A shard prepares only its part of the dataset, because other shards write the rest; it repairs that part and audits
nothing. The run after the shards checks every row once (`connector.warehouse.split`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import datetime

from connector.errors import ConfigError
from connector.runs import Tally
from connector.scope import Part
from connector.settings import RunScope, Settings
from connector.warehouse import Connection
from connector.warehouse.connection import LOADS
from connector.warehouse.erasing import erase_deleted, has_rejects_of_deleted
from connector.warehouse.loads import loaded_late
from connector.warehouse.mending import mend
from connector.warehouse.ownership import Dataset, prepare_staging, take_stock
from connector.warehouse.promises import PROMISED, promise
from connector.warehouse.runs_table import bury_dead_runs, latest_start, settle_dead_runs
from connector.warehouse.split import distrust_counts, distrust_doubles, end_of_split, settled_tables, split_of
from connector.warehouse.state import WarehouseState, recall, remembered
from connector.warehouse.tables import IMPORTS, LEDGER, RUNS
from connector.warehouse.upgrades import take_over

log = logging.getLogger("connector.run")


@dataclass(frozen=True, slots=True)
class Beginning:
    """The state in which a run begins.

    `taken` are names that others use where rows are staged. `latest` is when the latest run began, if that matters.
    `unsettled` tells that earlier runs left problems, which this run may not all repair if it is bounded.
    """

    state: WarehouseState
    taken: frozenset[str]
    latest: datetime | None = None
    unsettled: bool = False


def begin_with(connection: Connection, settings: Settings, scope: RunScope, tally: Tally, now: datetime) -> Beginning:
    """Prepare the dataset, and return the state that earlier runs left. The caller holds the lock, a shard its own."""
    stock = take_stock(connection)
    stock.check()
    if scope.selection.part is not None:
        return _begin_part(connection, stock, scope.selection.part, settings, tally.mode, now)
    taken = prepare_staging(connection, stock.ours)
    if take_over(connection, stock):
        stock = take_stock(connection)
    # if a column of the ledger is lost, every import differs from its row and is read anyway
    if scope.force and {IMPORTS, LEDGER} <= stock.ours and stock.columns[LEDGER].keys() >= PROMISED:
        promise(connection, scope, settings.status)
        stock = take_stock(connection)
    split = split_of(connection, stock)
    if split is not None:
        distrust_doubles(connection, stock)
        distrust_counts(connection, stock, split)
    state = mend(connection, recall(connection, stock, in_doubt=split is not None))
    latest, unsettled = None, split is not None and not state.sound
    if RUNS in state.tables:
        if settings.history and "started_at" in stock.columns[RUNS]:
            latest = latest_start(connection)
        # if a run had died or left problems, the rows would have been audited
        dead = bury_dead_runs(connection, now, state.tables) if state.audited else []
        mirrors = settings.deletes == "mirror"
        if mirrors and (state.audited or has_rejects_of_deleted(connection, stock)):
            erase_deleted(connection, stock)
        _tell_of(dead)
        if state.sound:
            if state.audited:
                settle_dead_runs(connection)
        elif not {LEDGER, LOADS} <= state.tables or loaded_late(connection):
            unsettled = True
    if split is not None:
        end_of_split(connection, split)
    return Beginning(state, taken, latest, unsettled)


def _begin_part(
    connection: Connection, stock: Dataset, part: Part, settings: Settings, mode: str, now: datetime
) -> Beginning:
    split = split_of(connection, stock)
    shared = split.shared_tables if split is not None else frozenset()
    stock = stock.only(() if split is None else split.tables_of(part.templates) | shared)
    taken = prepare_staging(connection, stock.ours)
    found = replace(remembered(connection, stock, part), shared=shared)
    if settings.typed and (damaged := sorted(shared - settled_tables(found))):
        raise ConfigError(
            f"Columns of {damaged[0]} were changed after the work was divided, and no shard may repair a table that "
            "all shards write; `importer-sync run` repairs it and ends the division."
        )
    state = mend(connection, found)
    _tell_of(bury_dead_runs(connection, now, state.tables, mode))
    return Beginning(state, taken)


def _tell_of(dead: list[str]) -> None:
    for run_id in dead:
        log.warning(
            "Run %s died before it ended; its unfinished imports are read again.",
            run_id,
            extra={"event": "run.died", "dead_run_id": run_id},
        )
