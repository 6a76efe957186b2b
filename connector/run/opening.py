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
from connector.warehouse.due_imports import can_mark_due, mark_backfill_due
from connector.warehouse.erasing import empty_staging, erase_deleted, has_rejects_of_deleted
from connector.warehouse.field_counts import invalidate_counts
from connector.warehouse.loads import earlier_runs
from connector.warehouse.lookup import index_keys
from connector.warehouse.ownership import Dataset, inspect_dataset, prepare_staging
from connector.warehouse.repair import schedule_repairs
from connector.warehouse.runs_table import fail_crashed_runs, latest_start, mark_runs_repaired
from connector.warehouse.split import end_of_split, intact_tables, mark_duplicates_failed, split_of
from connector.warehouse.state import WarehouseState, load_state, unaudited_state
from connector.warehouse.tables import FIELDS, IMPORTS, LEDGER, RUNS
from connector.warehouse.typed_tables import discard_rebuild
from connector.warehouse.upgrades import upgrade_dataset

log = logging.getLogger("connector.run")


@dataclass(frozen=True, slots=True)
class InitialState:
    """The state in which a run begins.

    `dataset` is what was there, and `taken` the names that others use where rows are staged. `latest` is when the
    latest run began, if that matters. `needs_audit` tells that rows contradict the ledger. The next run checks them
    again, until one finds nothing, because this run may be bounded, stopped or unable to read some imports.
    """

    state: WarehouseState
    dataset: Dataset
    taken: frozenset[str]
    latest: datetime | None = None
    needs_audit: bool = False


def prepare_dataset(
    connection: Connection, settings: Settings, scope: RunScope, tally: Tally, now: datetime
) -> InitialState:
    """Prepare the dataset, and return the state that earlier runs left. The caller holds the lock, a shard its own."""
    dataset = inspect_dataset(connection)
    dataset.check(ignores_case=connection.traits.ignores_case)
    if scope.selection.part is not None:
        return _prepare_shard(connection, dataset, scope.selection.part, settings, tally.mode, now)
    if discard_rebuild(connection, dataset.ours):
        dataset = inspect_dataset(connection)
    taken = prepare_staging(connection, dataset.ours, dataset.columns)
    if upgrade_dataset(connection, dataset):
        dataset = inspect_dataset(connection)
    if scope.force and {IMPORTS, LEDGER} <= dataset.ours and can_mark_due(dataset.columns[LEDGER]):
        mark_backfill_due(connection, scope, settings.status)
        dataset = inspect_dataset(connection)
    split = split_of(connection, dataset)
    ledger = dataset.columns[LEDGER] if {LEDGER, FIELDS} <= dataset.ours else None
    if ledger is not None and (index_keys(connection, dataset.tables_of_records) or "text_conflicts" not in ledger):
        invalidate_counts(connection, dataset.typed)  # they include rows that are gone, or conflicts that are lost
    if split is not None:
        mark_duplicates_failed(connection, dataset)
        if FIELDS in dataset.ours:
            invalidate_counts(connection, split.shared_tables)  # no shard counts them
    state = schedule_repairs(connection, load_state(connection, dataset, force_audit=split is not None))
    if scope.force:
        state = replace(state, totals={})  # count whole tables, as the counts may be what the backfill is to correct
    latest = None
    if RUNS in state.tables:
        if (settings.history or state.histories) and "started_at" in dataset.columns[RUNS]:
            latest = latest_start(connection)
        # if a run had died or left problems, the rows would have been audited
        crashed = fail_crashed_runs(connection, now, state.tables) if state.audited else []
        mirrors = settings.deletes == "mirror"
        deleted = any(seen.shown is None for seen in state.imports.values())
        if mirrors and (state.audited or (deleted and has_rejects_of_deleted(connection, dataset))):
            erase_deleted(connection, dataset)
        elif state.audited:
            empty_staging(connection)  # a run that died may have read what it staged under other privacy rules
        _log_crashed_runs(crashed)
        if state.consistent and state.audited:
            mark_runs_repaired(connection, dataset.columns[RUNS])
    if split is not None:
        end_of_split(connection, split)
    return InitialState(state, dataset, taken, latest, needs_audit=not state.consistent)


def _prepare_shard(
    connection: Connection, dataset: Dataset, part: Part, settings: Settings, mode: str, now: datetime
) -> InitialState:
    split = split_of(connection, dataset)
    shared = split.shared_tables if split is not None else frozenset()
    columns = dataset.columns
    dataset = dataset.only(() if split is None else split.tables_of(part.templates) | shared)
    taken = prepare_staging(connection, dataset.ours, columns)
    found = unaudited_state(connection, dataset, part)
    earlier = earlier_runs(connection, dataset.columns_of_ours, found.loads_seen)
    found = replace(found, shared=shared, noted=earlier.noted)
    if settings.typed and (damaged := sorted(shared - intact_tables(found))):
        raise ConfigError(
            f"Columns of {damaged[0]} were changed after the work was divided, and no shard may repair a table that "
            "all shards write; `importer-sync run` repairs it and ends the division."
        )
    state = schedule_repairs(connection, found)
    _log_crashed_runs(fail_crashed_runs(connection, now, state.tables, mode))
    return InitialState(state, dataset, taken)


def _log_crashed_runs(crashed: list[str]) -> None:
    for run_id in crashed:
        log.warning(
            "Run %s died before it ended; its unfinished imports are read again.",
            run_id,
            extra={"event": "run.died", "dead_run_id": run_id},
        )
