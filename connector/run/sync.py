"""Carry out a whole run, as the command does: lock, recovery, bounded packages, proof of the loaded rows, summary.

Invariant: a run is called `succeeded` only if every package was completed by dlt and the warehouse holds, for every
import of it, exactly as many rows as were accepted from the service.
"""

from __future__ import annotations

import logging
import signal
from collections import Counter
from collections.abc import Callable, Iterator

from dlt.pipeline.exceptions import PipelineStepFailed
from dlt.pipeline.pipeline import Pipeline

from connector import telemetry
from connector.errors import ConfigError
from connector.files import let_group_read
from connector.load.disposition import APPEND, write_dispositions
from connector.load.dlt_bridge import LoadPackage, WriteDispositions, follow_clock, load_again, load_package
from connector.load.table_rows import TableRows
from connector.load.working_directory import check_folders, rebuild_working_directory
from connector.run.crash_suspects import CrashSuspects
from connector.run.decision import listed_template_names
from connector.run.ports import Ports, Progress
from connector.run.session import RunSession
from connector.run.versions import make_versions, versions_are_due
from connector.runs import Status, Tally
from connector.settings import RunScope, Settings
from connector.standing import Standing
from connector.warehouse import Connection, Warehouse
from connector.warehouse.destination import capabilities_resolved_once, prepare_for_loading
from connector.warehouse.failures import explain_failure, is_out_of_memory
from connector.warehouse.field_counts import invalidate_counts
from connector.warehouse.ledger_table import mark_excluded, mark_failed, missing_rows
from connector.warehouse.left_copy import remove_left_copy
from connector.warehouse.lock import check_lock_held, lock_path, sole_writer
from connector.warehouse.ownership import Dataset, inspect_dataset
from connector.warehouse.standings import delete_unread, standings
from connector.warehouse.state import WarehouseState, audit, unaudited_state
from connector.warehouse.status import publish_status
from connector.warehouse.tables import RECORDS

log = logging.getLogger("connector.run")

Work = Callable[[Pipeline, RunSession, Settings, LoadPackage], None]


def sync(
    pipeline: Pipeline,
    settings: Settings,
    scope: RunScope | None = None,
    *,
    progress: Progress | None = None,
    stop: Callable[[], int | None] = lambda: None,
    ports: Ports | None = None,
    load: LoadPackage = load_package,
) -> Tally:
    """Carry out one run. `stop()` returns the number of a signal once one arrived; `load` loads a package.

    Returns the run's tally whatever its outcome; `tally.fatal` is what made it fail. Raises LockedError if another run
    is under way, and ConfigError for a destination that cannot be used: in both cases nothing was done.
    """
    check_folders()
    if settings.group_readable:
        let_group_read()
    warehouse = Warehouse(pipeline)
    warehouse.check_writable(experimental=settings.allow_experimental)
    if settings.history and not warehouse.traits.history:
        raise ConfigError(
            f"Versions of rows cannot be kept in {warehouse.destination_type}: remove history from "
            "[sources.importer], or use duckdb, postgres, sqlite, mysql or ducklake."
        )
    prepare_for_loading(pipeline)
    with sole_writer(pipeline), capabilities_resolved_once(pipeline):
        rebuild_working_directory(pipeline)
        follow_clock()
        remove_left_copy(pipeline)
        crash_suspects = CrashSuspects(lock_path(pipeline).with_suffix(".reading"))
        session = RunSession(
            settings,
            scope or RunScope(),
            warehouse,
            ports or Ports.real(),
            progress=progress,
            stop=stop,
            crash_suspects=crash_suspects,
        )
        carry_out(pipeline, session, settings, load)
        crash_suspects.close()
        return session.tally


def carry_out(
    pipeline: Pipeline, session: RunSession, settings: Settings, load: LoadPackage, work: Work | None = None
) -> None:
    """Open, load and end a run; by default `work` loads everything it reads. The caller holds the lock."""
    tally = session.tally
    with telemetry.run(tally):
        log.info("Run %s begins (%s).", tally.run_id, tally.mode, extra={"event": "run.began", "mode": tally.mode})
        _run(pipeline, session, settings, load, work or _load_all)
        _log_end(tally)


def _run(pipeline: Pipeline, session: RunSession, settings: Settings, load: LoadPackage, work: Work) -> None:
    """Do the work and close; raise nothing, because all errors go to the tally."""
    try:
        with session.warehouse.hold():
            try:
                work(pipeline, session, settings, load)
            except Exception as error:
                session.tally.fatal = session.tally.fatal or explain_failure(error, pipeline)
                log.debug("The run failed.", exc_info=True, extra={"event": "run.failed"})
            except BaseException:  # an embedding program may end the run so, e.g. with KeyboardInterrupt
                session.tally.interrupted_by = session.tally.interrupted_by or signal.SIGINT
                raise
            finally:
                _end(session, pipeline)
    except Exception as error:  # the destination could not be opened, or not closed properly
        session.tally.fatal = session.tally.fatal or explain_failure(error, pipeline)
        log.debug("The destination failed.", exc_info=True, extra={"event": "destination.failed"})


def _log_end(tally: Tally) -> None:
    fields = {**tally.as_json(), "event": "run.ended"}
    level = {Status.failed: logging.ERROR, Status.partial: logging.WARNING}.get(tally.status, logging.INFO)
    log.log(level, "Run %s ended: %s.", tally.run_id, tally.status.value, extra=fields)


def _load_all(pipeline: Pipeline, session: RunSession, settings: Settings, load: LoadPackage) -> None:
    session.open()
    state: WarehouseState | None = session.state
    if session.lacks_tables():
        session.tables_created(load(pipeline, lambda _: session.missing_tables()))
        state = None  # its state does not know these tables
    with session.warehouse.connect() as connection, publish_status(pipeline, connection, state):
        _load_packages(pipeline, session, settings, load)


def _load_packages(pipeline: Pipeline, session: RunSession, settings: Settings, load: LoadPackage) -> None:
    if session.is_idle():
        session.erase_unlisted()
        warehouse, knows_all = session.warehouse, session.knows_all
        if not session.is_shard and versions_are_due(
            warehouse, settings, session.state, session.dataset, knows_all=knows_all
        ):
            with session.warehouse.connect() as connection:
                _make_versions(pipeline, session, settings, connection, inspect_dataset(connection))
        return
    try:
        _load_each(pipeline, session, settings, load)
        check_lock_held(pipeline)
    except BaseException:
        session.tally.needs_audit = True
        raise


def _load_each(pipeline: Pipeline, session: RunSession, settings: Settings, load: LoadPackage) -> None:
    _load_package(
        pipeline, session, lambda load_id: _first_package(session, load_id, settings.batch_rows), settings, load
    )
    while not session.exhausted:
        _load_package(
            pipeline, session, lambda load_id: session.record_tables(load_id, settings.batch_rows), settings, load
        )
    with session.warehouse.connect() as connection:
        dataset = inspect_dataset(connection)
        session.erase(connection, dataset)
        if session.is_shard:  # the run after all shards checks everything that they wrote
            delete_unread(connection, session.unread)
            return
        _make_versions(pipeline, session, settings, connection, dataset)
    _check_shared_records(session, dataset)
    _count_standings(session, dataset)


def _make_versions(
    pipeline: Pipeline, session: RunSession, settings: Settings, connection: Connection, dataset: Dataset
) -> None:
    def is_undisturbed() -> bool:
        undisturbed = session.is_undisturbed()
        check_lock_held(pipeline)  # requests take time, and what follows erases
        return undisturbed

    make_versions(
        session.warehouse,
        connection,
        dataset,
        settings,
        session.catalogue,
        session.tally,
        whole=session.is_whole,
        knows_all=session.knows_all,
        is_undisturbed=is_undisturbed,
        in_order=session.future_start is None,
        names=listed_template_names(session.reader.discovered().imports),
        state=session.state,
    )
    if session.future_start is not None:
        session.tally.shortfall = True
        session.tally.problems.append(
            f"A run began at {session.future_start:%Y-%m-%d %H:%M} UTC by the clock of its machine, which is in the "
            "future by the clock of this one. Correct the wrong clock; the first run after that time records the "
            "versions of rows."
        )


def _count_standings(session: RunSession, dataset: Dataset) -> None:
    """Count failed and unreconciled imports as `status` does, so that a run never reports fewer."""
    tally = session.tally
    with session.warehouse.connect() as connection:
        delete_unread(connection, session.unread)
        if session.bounded or tally.interrupted_by is not None or tally.fatal is not None:
            return
        found = Counter(each for each, _ in standings(connection, dataset).values())
    tally.imports_failed = found[Standing.failed]
    tally.imports_unreconciled = found[Standing.unreconciled]
    if found[Standing.waiting]:
        tally.shortfall = True
        tally.problems.append(
            f"{found[Standing.waiting]} imports are listed but not loaded in their current version; the next run "
            "reads them."
        )


def _check_shared_records(session: RunSession, dataset: Dataset) -> None:
    """Mark imports whose records moved to another one, so that no incomplete import counts as synced."""
    finds = session.warehouse.traits.finds_slugs
    if not (session.losing if finds else session.merged):
        return
    before = session.state.ledger
    with session.warehouse.connect() as connection:
        state = unaudited_state(connection, dataset)
        short = [
            slug
            for slug in audit(connection, state, session.merged, session.losing if finds else None)
            if slug in state.ledger
            and state.ledger[slug].trusted
            and (slug not in before or before[slug].trusted or state.ledger[slug].load_id in session.tally.load_ids)
        ]
        left_out = session.left_out_by_status(short)
        mark_excluded(connection, left_out)
        read = [slug for slug in short if slug not in left_out]
        mark_failed(connection, read, "Some of its records came with another import as well.")
    for slug in read:
        session.tally.shortfall = True
        session.tally.problems.append(
            f"Import {slug}: some of its records came with another import as well, and a record is in the warehouse "
            "once; it is read again next run."
        )


def _first_package(session: RunSession, load_id: str, limit: int) -> Iterator[TableRows]:
    yield from session.import_tables(load_id)
    yield from session.record_tables(load_id, limit)


def _load_package(
    pipeline: Pipeline,
    session: RunSession,
    tables: Callable[[str], Iterator[TableRows]],
    settings: Settings,
    load: LoadPackage,
) -> None:
    with telemetry.package(session.tally):
        try:
            load_id = load(pipeline, tables, lambda: _write_dispositions(session))
        except PipelineStepFailed as error:
            # after a failure in an earlier step there is nothing that could be loaded again
            if not (error.step == "load" and is_out_of_memory(error) and session.warehouse.remove_memory_limit()):
                raise
            log.info("DuckDB gets more memory to load this package.", extra={"event": "memory.unlimited"})
            check_lock_held(pipeline)
            load_id = load_again(pipeline)
            if load_id is None:
                raise
        finally:
            if memory_limit := session.warehouse.memory_limit:
                memory_limit.all_threads()
        session.committed(load_id)
        session.record.note_progress()
    if load_id is None:
        return
    log.info(
        "Committed package %s: %d records so far.",
        load_id,
        session.tally.records_loaded,
        extra={"event": "package.committed", "load_id": load_id, "records_loaded": session.tally.records_loaded},
    )
    with session.warehouse.connect() as connection:
        wrong = missing_rows(connection, load_id, settings.raw, session.typed_tables)
        if wrong:
            mark_failed(
                connection, [slug for slug, *_ in wrong], "The warehouse does not hold the rows that were loaded."
            )
            miscounted = {table for _, table, *_ in wrong} - {RECORDS}
            invalidate_counts(connection, miscounted)
            session.catalogue.forget_totals(miscounted)
    if (memory_limit := session.warehouse.memory_limit) and not session.exhausted:
        memory_limit.release()
    for slug, table, accepted, there in wrong:
        session.tally.shortfall = True
        session.tally.problems.append(
            f"Import {slug}: {accepted} rows were loaded into {table} but {there} are there; it is read again next run."
        )


def _write_dispositions(session: RunSession) -> WriteDispositions:
    """Choose append or merge for each table, and size DuckDB's memory and threads for it."""
    incoming, session.incoming = session.incoming, []  # the slugs are not needed during the load
    found, losing = write_dispositions(session.warehouse, incoming)
    session.losing |= losing
    replacing = [rows for rows in incoming if found[rows.table] != APPEND]
    session.merged.update(rows.table for rows in replacing)
    if memory_limit := session.warehouse.memory_limit:
        replaced = sum(len(rows.records) for rows in replacing)
        memory_limit.fit(session.max_columns, session.largest_batch_bytes, replaced)
        if not replacing:
            memory_limit.one_thread()
    return found


def _end(session: RunSession, pipeline: Pipeline) -> None:
    """Write the run's row and close the client; a destination that fails now does not hide the first error."""
    try:
        session.record.finish()
    except Exception as error:
        session.tally.fatal = session.tally.fatal or explain_failure(error, pipeline)
        log.warning(
            "The row of this run could not be written to sync_runs: %s",
            explain_failure(error, pipeline),
            extra={"event": "run.unrecorded"},
        )
    finally:
        session.close()
