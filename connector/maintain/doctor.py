"""Diagnose a warehouse and its working directory, in sentences, and make the repairs that lose nothing.

A sync repairs all of this by itself. The doctor is for a person who wants to see the problems or repair them now. It
holds the lock, so nothing changes meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from dlt.pipeline.pipeline import Pipeline

from connector.errors import ConnectorError, DatabaseBusyError
from connector.ledger import COMPLETED, State
from connector.load.working_directory import rebuild_working_directory, unfinished
from connector.transform.naming import MORE
from connector.transform.privacy import Privacy
from connector.transform.schema import OVERFLOW_KEYS, TableSchema
from connector.warehouse import Connection, Warehouse
from connector.warehouse.connection import LOADS
from connector.warehouse.destination import local_file
from connector.warehouse.failures import explain_failure
from connector.warehouse.ledger_table import errors, invalidate
from connector.warehouse.lock import Holder, holder_of, sole_writer
from connector.warehouse.ownership import REBUILD_TABLE
from connector.warehouse.repair import imports_with
from connector.warehouse.runs_table import crashed_runs, fail_crashed_runs
from connector.warehouse.state import WarehouseState, audit, unaudited_state
from connector.warehouse.tables import IMPORTS, LEDGER, RECORDS, RUNS, SYSTEM_SCHEMAS
from connector.warehouse.typed_tables import discard_rebuild

INVALIDATED = "doctor: its rows in the warehouse differ from those that were loaded; the next run reads it again."
REREAD = "the next run reads it again"
RECREATED = "the next run recreates it and reads the affected imports again"
RECREATED_AND_REREAD = "the next run recreates it and reads again the imports whose rows it held"


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem, and what to do about it."""

    kind: str
    sentence: str
    fix: str
    import_slug: str | None = None

    def as_json(self) -> dict[str, str | None]:
        return {"kind": self.kind, "sentence": self.sentence, "cure": self.fix, "import_slug": self.import_slug}


@dataclass(slots=True)
class DoctorReport:
    """`findings` are unrepaired problems, `repaired` describes the repairs, `notes` require no action."""

    findings: list[Finding] = field(default_factory=list)
    repaired: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        return 3 if self.findings else 0

    def as_json(self) -> dict[str, Any]:
        return {
            "status": "findings" if self.findings else "healthy",
            "findings": [finding.as_json() for finding in self.findings],
            "repaired": list(self.repaired),
            "notes": list(self.notes),
        }


def doctor(pipeline: Pipeline, *, repair: bool = False, privacy: Privacy | None = None) -> DoctorReport:
    """Examine everything, and with `repair` make the repairs that lose nothing.

    Raises LockedError, which names the holder, while a run is under way. Rows are compared with the rules of `privacy`
    if it is given.
    """
    report = DoctorReport()
    warehouse = Warehouse(pipeline)
    warehouse.check_supported()
    stale, file = holder_of(pipeline), local_file(pipeline)
    absent = file is not None and not file.exists()
    try:
        # a lock beside a file that does not exist would create its folder
        with nullcontext() if absent and not repair else sole_writer(pipeline):
            if stale is not None:
                report.notes.append(_stale_lock_note(stale))
            _Examination(pipeline, warehouse, report, repair, privacy).run()
    except Exception as error:
        raise explain_failure(error, pipeline) from None
    return report


def _stale_lock_note(holder: Holder) -> str:
    return (
        f"Process {holder.process} of {holder.user} on {holder.host}, started at {holder.since}, ended without "
        "releasing its lock; the operating system has released it."
    )


@dataclass(frozen=True, slots=True)
class _Examination:
    pipeline: Pipeline
    warehouse: Warehouse
    report: DoctorReport
    repair: bool
    privacy: Privacy | None = None

    def run(self) -> None:
        self._working_directory()
        try:
            there = self.warehouse.exists()
        except Exception as error:
            self._find(_unreadable(error))
            return
        if not there:
            self.report.notes.append("There is no warehouse yet; `importer-sync run` creates it.")
            return
        with self.warehouse.connect() as connection:
            state = unaudited_state(connection)
            self._tables(connection, state)
            self._crashed_runs(connection, state)
            invalidated = self._rows(connection, state)
            self._imports(connection, state, invalidated)
            self._older_rules(connection, state)

    def _find(self, finding: Finding) -> None:
        self.report.findings.append(finding)

    def _working_directory(self) -> None:
        if not unfinished(self.pipeline):
            return
        sentence = "dlt's working directory contains a load package that an earlier run left unfinished."
        if self.repair:
            rebuild_working_directory(self.pipeline)
            self.report.repaired.append(f"{sentence} It was dropped; the ledger does not count it.")
        else:
            fix = "the next run drops it and reads its imports again, or --repair drops it now"
            self._find(Finding("pending_package", sentence, fix))

    def _tables(self, connection: Connection, state: WarehouseState) -> None:
        if REBUILD_TABLE in state.tables:
            sentence = "An interrupted rebuild left a half-written table behind."
            if self.repair:
                discard_rebuild(connection, state.tables)
                self.report.repaired.append(f"{sentence} It was dropped.")
            else:
                self._find(Finding("half_rebuilt", sentence, "the next run drops it, or --repair does now"))
        for table in sorted({*SYSTEM_SCHEMAS, LOADS} - state.tables):
            self._find(Finding("table_missing", f"The table {table} is missing.", RECREATED))
        for finding in (*_missing_columns(state), *_unexplained_columns(connection, state)):
            self._find(finding)
        for table, schema in sorted(state.schemas.items()):
            if schema.is_bounded:
                self.report.notes.append(_overflowed(table, schema))

    def _crashed_runs(self, connection: Connection, state: WarehouseState) -> None:
        if RUNS not in state.tables:
            return
        for run_id in crashed_runs(connection):
            sentence = f"Run {run_id} died before it ended."
            if self.repair:
                self.report.repaired.append(f"{sentence} It is recorded as failed.")
            else:
                fix = (
                    "the next run records the failure and reads its unfinished imports again; --repair records the "
                    "failure now"
                )
                self._find(Finding("dead_run", sentence, fix))
        if self.repair:
            fail_crashed_runs(connection, datetime.now(UTC))

    def _rows(self, connection: Connection, state: WarehouseState) -> set[str]:
        """Compare rows with the ledger; mark imports that disagree, so that the next run audits and rereads them."""
        wrong = audit(connection, state)
        for slug, where in wrong.items():
            tables = ", ".join(sorted(where)) or "no table"
            if slug in state.ledger:
                sentence = f"Import {slug}: its rows ({tables}) do not match its ledger row."
            else:
                sentence = f"Import {slug} has rows ({tables}), but the ledger does not know it."
            if self.repair:
                self.report.repaired.append(f"{sentence} Its ledger row is now marked as untrusted, and {REREAD}.")
            else:
                fix = "--repair marks its ledger row as untrusted, so that the next run reads it again"
                kind = "rows_disagree" if slug in state.ledger else "orphan_rows"
                self._find(Finding(kind, sentence, fix, slug))
        if self.repair and wrong:
            invalidate(connection, list(wrong), set(state.ledger), INVALIDATED)
        return set(wrong)

    def _imports(self, connection: Connection, state: WarehouseState, invalidated: set[str]) -> None:
        if LEDGER not in state.tables:
            return
        for slug, left, error in errors(connection):
            if slug in invalidated:
                continue
            if left == State.failed:
                fix = f"{REREAD}; `importer-sync backfill --import {slug}` reads it now"
                sentence = f"Import {slug} failed: {error or 'no reason recorded'}"
                self._find(Finding("import_failed", sentence, fix, slug))
            else:
                fix = f'{REREAD}; if this persists, the service counts wrongly: reconcile = "warn" accepts that'
                sentence = f"Import {slug} does not reconcile: {error or 'no reason recorded'}"
                if slug in state.ledger and state.ledger[slug].is_refused and state.ledger[slug].adds_up:
                    fix = f"{REREAD}, and loads them if it has fewer columns or shorter values"
                    sentence = f"The rows of import {slug} are in records alone: {error or 'no reason recorded'}"
                self._find(Finding("import_unreconciled", sentence, fix, slug))
        live = [k for k in state.ledger.values() if k.state is State.synced]
        unfinished = sum(known.status != COMPLETED for known in live)
        if unfinished:
            self.report.notes.append(f"{unfinished} imports are not completed upstream, so every run reads them again.")

    def _older_rules(self, connection: Connection, state: WarehouseState) -> None:
        if self.privacy is None or not {IMPORTS, LEDGER} <= state.tables:
            return
        rows = connection.query(f"SELECT slug, template__slug FROM {connection.name(IMPORTS)}").to_pylist()
        listed = {row["slug"]: row["template__slug"] for row in rows}
        older = []
        for slug, known in state.ledger.items():
            if known.live and slug in listed:
                # rows are under the rules of the template that the import had when it was read
                template = known.template_slug if known.records_loaded else listed[slug]
                names, sections = state.current_names, known.rule_sections
                if known.rules != self.privacy.fingerprint_of_loaded(template, names, known.table_name, sections):
                    older.append(known)
        if older:
            count = sum(known.records_loaded for known in older)
            sentence = f"{count} rows of {len(older)} imports were loaded under older privacy rules."
            fix = "the next run reads them again; rows that the service no longer has stay as they are"
            self._find(Finding("older_privacy_rules", sentence, fix))


def _unreadable(error: Exception) -> Finding:
    problem: ConnectorError = explain_failure(error)
    if isinstance(problem, DatabaseBusyError):
        return Finding("file_in_use", f"The database is in use. {problem}", "wait for it, or end it")
    fix = (
        "restore it from a backup, or move it away and run again: the service still has everything except rows "
        "kept by deletes = 'keep'"
    )
    return Finding("unreadable", f"The warehouse cannot be read. {problem}", fix)


def _missing_columns(state: WarehouseState) -> Iterator[Finding]:
    """Yield tables and columns missing by the data dictionary or dlt's schema, and columns of another type."""
    # a typed table that no import has rows of is not missing: the run that has rows for it makes it anew
    lost = ({IMPORTS} - state.tables) | state.missing_tables
    for table, schema in sorted(state.schemas.items()):
        if table in lost and any(known.columns() for known in schema.fields.values()):
            yield Finding("table_missing", f"The table {table} of sync_fields is missing.", RECREATED_AND_REREAD)
    for table, columns in sorted(state.altered.items()):
        for name, (there, wanted) in sorted(columns.items()):
            sentence = f"The column {table}.{name} is {there} where its values need {wanted}."
            fix = f"the next run changes it back to {wanted} and reads its values again; {_fix_for(table)}"
            yield Finding("column_type", sentence, fix)
    for table, missing in sorted(state.dropped.items()):
        for name in sorted(missing):
            fix = f"the next run restores it by reading the affected imports again; {_fix_for(table)}"
            yield Finding("column_missing", f"The column {table}.{name} is missing.", fix)


def _unexplained_columns(connection: Connection, state: WarehouseState) -> Iterator[Finding]:
    """Yield columns with values that belong to no field in `sync_fields`."""
    for table, columns in sorted(state.unexplained.items()):
        if imports_with(connection, table, columns):
            sentence = f"sync_fields does not list {', '.join(sorted(columns))} of {table}, which contain values."
            fix = "the next run empties them and reads again the imports whose values they hold"
            yield Finding("columns_unexplained", sentence, fix)


def _overflowed(table: str, schema: TableSchema) -> str:
    rest, more = schema.fields.get(OVERFLOW_KEYS), " or more" if schema.closed else ""
    return (
        f"{len(schema.overflowed)}{more} fields of {table} have no column, because the table has reached its limit; "
        f"their values are in its column {rest.column if rest is not None else MORE}. `importer-sync rebuild --table "
        f"{table}` gives columns that are left to the fields that most rows have."
    )


def _fix_for(table: str) -> str:
    if table.startswith(f"{RECORDS}_"):
        return f"`importer-sync rebuild --table {table}` rebuilds it from the raw rows"
    return "`importer-sync backfill --full` loads everything again"
