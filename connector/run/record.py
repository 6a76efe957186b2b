"""Keep the record of a run: its tally, the counts of the current package, and its row in `sync_runs`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from connector.errors import NewerFormatError
from connector.load.table_rows import TableRows
from connector.runs import Noted, Tally
from connector.warehouse import Warehouse
from connector.warehouse.runs_table import begin_run, end_run, note_for_later_runs, note_progress
from connector.warehouse.tables import LOAD_ID, LOADS_SEEN, RUNS, RUNS_SCHEMA, table_of


@dataclass(slots=True)
class Pending:
    """Counts of the current package, which are added to the tally once it is in the warehouse."""

    records: int = 0
    tables: Counter[str] = field(default_factory=Counter)  # rows, by table
    templates: Counter[str] = field(default_factory=Counter)  # records, by template
    imports: list[str] = field(default_factory=list)
    noted: Noted | None = None  # what later runs have to know once it is


class RunRecord:
    """The tally of a run and its row; `count_requests` brings the tally's requests up to date."""

    def __init__(
        self, warehouse: Warehouse, tally: Tally, now: Callable[[], datetime], count_requests: Callable[[], None]
    ) -> None:
        self.tally = tally
        self.pending = Pending()
        self._warehouse = warehouse
        self._now = now
        self._count_requests = count_requests
        self.begun = False  # whether the run has its row
        self._columns: frozenset[str] | None = None  # of its table, once it has all; a run removes none

    def begin(self, columns: Collection[str] | None = None) -> None:
        """Write that this run is in progress; the next run finds this row if this one dies.

        `columns` are those of the table; by default it has all.
        """
        there = frozenset(RUNS_SCHEMA.names if columns is None else columns)
        with self._warehouse.connect() as connection:
            begin_run(connection, self.tally, there)
        self.begun = True
        if there >= set(RUNS_SCHEMA.names):
            self._columns = there

    def count_load(self, load_id: str | None) -> None:
        """Count a package of this run, if there is one, among those that dlt has completed."""
        if load_id is not None and self.tally.loads_seen is not None:
            self.tally.loads_seen += 1

    def committed(self, load_id: str | None, schema_changes: Iterable[str]) -> Pending:
        """Count the last package, which is in the warehouse now, and return its counts.

        Without `load_id` it is that of a run by dlt alone, which is yet to be loaded: what later runs have to know
        until it is stays noted.
        """
        done, self.pending = self.pending, Pending()
        tally = self.tally
        tally.records_loaded += done.records
        if load_id is not None and done.noted is not None and done.noted != tally.noted:
            tally.noted = done.noted
            self.note_for_later_runs()
        self.count_load(load_id)
        if load_id is not None:
            tally.load_ids.append(load_id)
        tally.tables.update(done.tables)
        tally.templates.update(done.templates)
        tally.schema_changes = list(schema_changes)
        return done

    def note_for_later_runs(self) -> None:
        """Store what later runs have to know, if there is a row yet."""
        if self.begun:
            with self._warehouse.connect() as connection:
                note_for_later_runs(connection, self.tally.noted)

    def note_progress(self) -> None:
        """Write the counts committed so far to the row of the running run."""
        self._count_requests()
        with self._warehouse.connect() as connection:
            note_progress(connection, self.tally)

    def abort(self, error: BaseException) -> None:
        """Write that the run failed before its package could be loaded: nothing of the package counts."""
        self.tally.fatal = self.tally.fatal or error
        self.pending = Pending()
        self.finish()

    def finish(self) -> None:
        """Write the row with its present values, but not into a warehouse of a newer format."""
        self._note_end()
        if isinstance(self.tally.fatal, NewerFormatError):
            return
        with self._warehouse.connect() as connection:
            end_run(connection, self.tally, self._columns, begun=self.begun)

    def row(self, load_id: str) -> TableRows:
        """Return the row of a run by dlt alone. It is loaded with the records, because no step follows the load."""
        self.tally.load_ids.append(load_id)
        self._note_end()
        # not in the tally: if the package is not loaded, the row that tells so must not count it
        row = {**self.tally.as_row(), LOADS_SEEN: (self.tally.loads_seen or 0) + 1, LOAD_ID: load_id}
        return TableRows(RUNS, table_of(RUNS_SCHEMA, [row]))

    def _note_end(self) -> None:
        self._count_requests()
        # a run whose start follows the clock of an earlier run may end before it
        self.tally.finished_at = max(self._now(), self.tally.started_at)
