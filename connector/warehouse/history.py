"""Keep every version of a row in history tables (docs/history.md).

Invariant: after a run that recorded versions, the open versions (`_valid_to` null) are the live rows of the table, each
once; and those that wait for their rows (`connector.warehouse.waiting_versions`). Versions of a record never overlap,
and no version is added if its data, its import and its position are the same.

Versions are recorded after the packages are loaded: the rows of the imports loaded since are compared with the open
versions, in one transaction that also stores in the ledger which load of an import is recorded. So the next run catches
up if a run died before that, and recording the same load twice adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from connector.ledger import State
from connector.transform.naming import RULES_COLUMN
from connector.warehouse.adapters.dialect import any_of
from connector.warehouse.connection import Connection, marks
from connector.warehouse.erased_versions import DUE_IMPORTS, finish_recording, gather_moving, imports_to_wait
from connector.warehouse.history_tables import (
    MOVED,
    OWN,
    PAUSED,
    VALID_FROM,
    VALID_TO,
    Choice,
    R,
    V,
    Versioned,
    align,
    histories,
    is_aligned,
    is_unlike,
    record_again,
    same_content,
    versioned,
)
from connector.warehouse.ledger_table import DUE, ensure_due_column
from connector.warehouse.ownership import Dataset, inspect_dataset
from connector.warehouse.ruled_versions import Rules
from connector.warehouse.tables import IMPORTS, LEDGER, LOAD_ID
from connector.warehouse.waiting_versions import Waiting, awaits_reading, gather_waiting, has_raw_imports

# Temporary tables: imports whose rows may differ from their open versions; keys of versions that do; keys of versions
# that ended.
_TOUCHED, _OUTDATED, _ENDED = "importer_touched", "importer_outdated", "importer_ended"
_O = "importer$other"  # one more alias, as R and V are


def record(
    connection: Connection,
    dataset: Dataset,
    wanted: Choice | None,
    rules: Rules,
    *,
    started_at: datetime,
    run_id: str,
    keeps: bool,
    whole: bool,
    knows_all: bool,
    is_undisturbed: Callable[[], bool],
) -> None:
    """Record versions of the rows loaded since the last call; without `wanted`, only erase existing versions.

    With `keeps`, a deleted row gets a version that says so. Otherwise the versions of permanently deleted rows are
    erased too, once a run was `whole`: until then a missing record may have moved to an import that is not read yet.
    One that this run found missing may have moved during the run too, to an import that was read before: its versions
    stay for a later run unless `is_undisturbed()`, which is called only if there are such versions. If the run
    `knows_all` imports, whatever their status, one without any row is gone.
    Changed privacy `rules` are applied to the versions before (`connector.warehouse.ruled_versions`).
    """
    connection.add_column(LEDGER, "history")
    ensure_due_column(connection)
    tables = [] if wanted is None else versioned(connection, dataset, wanted)
    name, column = connection.name, connection.column
    begun = [each for each in tables if each.table != IMPORTS and _is_empty(connection, dataset, each)]
    # before the tables are there: if this run dies before it has filled them, the next one has to
    record_again(connection, dataset, [f"SELECT {column(each.import_key)} FROM {name(each.table)}" for each in begun])
    new = {each.table: each for each in tables if align(connection, each, dataset.columns.get(each.history))}
    recorded = {each.table for each in tables}
    paused = [each for table, each in histories(dataset).items() if table not in recorded]
    connection.update_statistics(list(new))
    with connection.client.begin_transaction():
        unlike = is_unlike(connection, "")
        lost = [_lost_imports(connection, each) for each in tables if knows_all and each.table == IMPORTS]
        due = [f"SELECT slug AS k FROM {connection.name(LEDGER)} WHERE {unlike}", *lost]
        if IMPORTS in dataset.ours:
            due.append(_deleted_without_row(connection))
        connection.gather(DUE_IMPORTS, *due)
        outdated = {each.table: f"{_OUTDATED}_{n}" for n, each in enumerate(tables)}
        raw = has_raw_imports(connection, dataset)
        waiting: list[Waiting] = []
        for number, each in enumerate(tables):
            unread = awaits_reading(connection, each, rules.fingerprints(each.table))
            ended = outdated[each.table]
            recorder = _Recorder(connection, each, started_at, run_id, each.table in new, ended, unread)
            recorder.gather_outdated(lost)
            if each.table != IMPORTS:  # an import whose row waits is not due
                found = gather_waiting(
                    connection, dataset, each, number, run_id=run_id, outdated=ended, raw=raw, unread=unread
                )
                for keys in found.keys:
                    connection.execute(f"DELETE FROM {ended} WHERE k IN (SELECT k FROM {keys})")
                waiting.append(found)
            recorder.record(keeps=keeps)
        finish = partial(finish_recording, connection, dataset, tables, paused, waiting, keeps=keeps, whole=whole)
        if whole and not keeps:
            gather_moving(connection, [(each, outdated[each.table]) for each in tables if each.table != IMPORTS])
        waits = finish(undisturbed=False)
    if waits and is_undisturbed():
        with connection.client.begin_transaction():
            finish(undisturbed=True)
    connection.update_statistics([each.history for each in new.values()])


def _is_empty(connection: Connection, dataset: Dataset, each: Versioned) -> bool:
    """Return whether a table has no versions: they are yet to be made, or a user or a run that died lost them all."""
    if each.history not in dataset.columns:
        return True
    return not connection.query(f"SELECT 1 FROM {connection.name(each.history)} LIMIT 1").num_rows


def _imports_due(connection: Connection, each: Versioned, unread: str) -> str:
    """Return SQL for the imports whose row differs from their open version, and does not wait (`unread`).

    That is so after the row was loaded or a lost column was restored.
    """
    name, column = connection.name, connection.column
    slug, gone, open_slug = f"{R}.slug", f"{R}.{column('_deleted_at')}", f"{V}.slug"
    compared = [column(c) for c in each.columns if c not in ("slug", "_deleted_at", RULES_COLUMN)]
    unlike = [connection.sql.differs(f"{V}.{c}", f"{R}.{c}") for c in compared]
    if RULES_COLUMN in each.columns:  # a row without a mark is under the same rules as the version that it equals
        rules = column(RULES_COLUMN)
        unlike.append(f"{R}.{rules} IS NOT NULL AND {connection.sql.differs(f'{V}.{rules}', f'{R}.{rules}')}")
    differs = f"({any_of(unlike)} AND NOT {unread})"
    return (
        f"SELECT {slug} AS k FROM {name(IMPORTS)} AS {R} LEFT JOIN {name(each.history)} AS {V} "
        f"ON {open_slug} = {slug} AND {V}.{column(VALID_TO)} IS NULL WHERE ({gone} IS NULL OR {open_slug} IS NOT NULL) "
        f"AND ({open_slug} IS NULL OR {gone} IS NOT NULL OR {differs})"
    )


def _lost_imports(connection: Connection, each: Versioned) -> str:
    """Return SQL for the imports that have an open version, but no row in `imports` and none in the ledger.

    A user deleted their rows, and the service deleted the import: otherwise a run that lists all adds the rows again.
    """
    name = connection.name
    return (  # not by a join or NOT EXISTS, which reads a whole table per import where `slug` has no index
        f"SELECT g.k FROM (SELECT slug AS k, 1 AS lost FROM {name(each.history)} "
        f"WHERE {connection.column(VALID_TO)} IS NULL UNION ALL SELECT slug, 0 FROM {name(IMPORTS)} UNION ALL "
        f"SELECT slug, 0 FROM {name(LEDGER)} WHERE state <> '{State.deleted}') AS g GROUP BY g.k HAVING MIN(g.lost) = 1"
    )


def _deleted_without_row(connection: Connection) -> str:
    """Return SQL for deleted imports whose rows in the ledger are lost, so that nobody knows what is erased of them."""
    deleted = f"SELECT slug AS k FROM {connection.name(IMPORTS)} WHERE {connection.column('_deleted_at')} IS NOT NULL"
    return f"SELECT k FROM ({deleted} EXCEPT SELECT slug FROM {connection.name(LEDGER)}) AS g"


def is_due(
    connection: Connection,
    dataset: Dataset,
    wanted: Choice,
    metadata_rules: Collection[str | None],
    *,
    keeps: bool,
    knows_all: bool,
) -> bool:
    """Return whether there is something to record or, unless the run `keeps` it, to erase although nothing is loaded.

    That is so if a table has no versions yet or has changed since, or if rows were loaded without versions, by dlt
    alone or by a run that died; or in a run that `knows_all` imports, if a user deleted the rows of one that is gone.
    `metadata_rules` are what `Rules.fingerprints` returns for `imports`.
    """
    tables = versioned(connection, dataset, wanted)
    if _is_behind(connection, dataset, tables) or (not keeps and is_to_be_erased(connection, dataset)):
        return True
    imports = [each for each in tables if each.table == IMPORTS]
    due = [_imports_due(connection, each, awaits_reading(connection, each, metadata_rules)) for each in imports]
    due += [_lost_imports(connection, each) for each in imports if knows_all]
    return any(connection.query(f"{select} LIMIT 1").num_rows for select in due)


def is_to_be_erased(connection: Connection, dataset: Dataset) -> bool:
    """Return whether there may be versions of what the service erased, because no run has looked for them since."""
    if not histories(dataset) or LEDGER not in dataset.ours:
        return False
    columns = dataset.columns[LEDGER]
    if "history" not in columns:
        return True
    unfinished = is_unlike(connection, "", PAUSED, MOVED)
    return connection.query(f"SELECT 1 FROM {connection.name(LEDGER)} WHERE {unfinished} LIMIT 1").num_rows > 0


def _is_behind(connection: Connection, dataset: Dataset, tables: Sequence[Versioned]) -> bool:
    """Return whether tables lack versions, or columns of them, or imports were loaded since they were recorded."""
    if not all(each.history in dataset.columns and is_aligned(dataset, each) for each in tables):
        return True
    if not tables or LEDGER not in dataset.ours or not {"history", DUE} <= dataset.columns[LEDGER].keys():
        return bool(tables)
    recorded = {each.table for each in tables}
    paused = [each for table, each in histories(dataset).items() if table not in recorded]
    names = [each.table for each in paused]
    elsewhere = f"COALESCE(table_name, '') NOT IN ({marks(names)})" if paused else "TRUE"
    differs = is_unlike(connection, "", MOVED)
    due = f"SELECT slug FROM {connection.name(LEDGER)} WHERE {differs}"
    waiting = imports_to_wait(connection, dataset, paused, due)
    if not (found := connection.query(f"{due} AND {elsewhere} LIMIT 1", *names).num_rows) or not waiting:
        return found > 0
    left = " UNION ALL ".join(waiting)
    return connection.query(f"{due} AND {elsewhere} AND slug NOT IN ({left}) LIMIT 1", *names).num_rows > 0


@dataclass(frozen=True, slots=True)
class _Recorder:
    connection: Connection
    each: Versioned
    started_at: datetime
    run_id: str
    new: bool  # there are no versions yet, whatever the ledger says: this run begins them, or they were lost
    outdated: str  # temporary table for the keys of versions that end
    unread: str  # what `awaits_reading` returns

    def gather_outdated(self, lost: Sequence[str]) -> None:
        """Gather the keys of the versions, of imports that are due, that no live row equals.

        `lost` is SQL for the imports that have lost their row.
        """
        name, column, each = self.connection.name, self.connection.column, self.each
        table, history = name(each.table), name(each.history)
        key, imported = column(each.key), column(each.import_key)
        live = f"{R}.{column('_deleted_at')} IS NULL"
        touched = f"SELECT k FROM {_TOUCHED}"
        same = f"SELECT 1 FROM {table} AS {R} WHERE {same_content(self.connection, each)} AND {live}"
        self.connection.gather(_TOUCHED, self._touched(), *(lost if each.table == IMPORTS else ()))
        still = f"{V}.{column(VALID_TO)} IS NULL"
        self.connection.gather(
            self.outdated,
            f"SELECT {V}.{key} AS k FROM {history} AS {V} WHERE {still} AND {V}.{imported} IN ({touched}) "
            f"AND NOT EXISTS ({same})",
            f"SELECT {V}.{key} AS k FROM {table} AS {R} JOIN {history} AS {V} ON {V}.{key} = {R}.{key} "
            f"WHERE {R}.{imported} IN ({touched}) AND {still} AND {V}.{imported} <> {R}.{imported} "
            f"AND NOT EXISTS ({same})",
        )

    def record(self, *, keeps: bool) -> None:
        """End the outdated versions, and add a version for each live row without an open one."""
        name, column, each = self.connection.name, self.connection.column, self.each
        execute, sql = self.connection.execute, self.connection.sql
        table, history = name(each.table), name(each.history)
        key = column(each.key)
        live, still = f"{R}.{column('_deleted_at')} IS NULL", f"{V}.{column(VALID_TO)} IS NULL"
        read = f"{R}.{column(each.import_key)} IN (SELECT k FROM {_TOUCHED})"
        known = f"{read} AND NOT {self.unread}"
        outdated = f"{still} AND {V}.{key} IN (SELECT k FROM {self.outdated})"
        execute(sql.delete(history, V, f"{V}.{column(VALID_FROM)} = %s AND {outdated}"), self.started_at)
        ended = f"{column(VALID_TO)} = %s"
        execute(f"UPDATE {history} AS {V} SET {ended} WHERE {outdated}", self.started_at)
        names = ", ".join(column(c) for c in each.columns)
        closed_now = f"{V}.{key} = {R}.{key} AND {V}.{ended}"
        values = [f"{R}.{column(c)}" for c in each.columns]
        change = f"CASE WHEN EXISTS (SELECT 1 FROM {history} AS {V} WHERE {closed_now}) THEN 'update' ELSE 'insert' END"
        values += ["%s", "NULL", change, "%s"]
        execute(
            f"INSERT INTO {history} ({names}, {', '.join(map(column, OWN))}) SELECT {', '.join(values)} "
            f"FROM {table} AS {R} WHERE {live} AND {read} "
            f"AND NOT EXISTS (SELECT 1 FROM {history} AS {V} WHERE {V}.{key} = {R}.{key} AND {still})",
            self.started_at,
            self.started_at,
            self.run_id,
        )
        if keeps:
            self._note_deletions(names)
        # a version keeps the load that brought it; in `imports`, the load shows that a row was read
        untracked = sorted(
            (each.untracked if each.table == IMPORTS else each.untracked - {LOAD_ID}) & set(each.columns)
        )
        new = {column(c): f"{R}.{column(c)}" for c in untracked}
        if RULES_COLUMN in untracked:  # a row without a mark equals its version, and is under the same rules
            rules = column(RULES_COLUMN)
            new[rules] = f"COALESCE({R}.{rules}, {V}.{rules})"
        changed = any_of(sql.differs(f"{V}.{c}", value) for c, value in new.items())
        paired = f"{V}.{key} = {R}.{key} AND {still} AND {known} AND {changed}"
        execute(sql.update_from(history, V, new, f"{table} AS {R}", paired))

    def _touched(self) -> str:
        """Return SQL for the slugs of the imports whose rows may differ from their open versions."""
        name, column, each = self.connection.name, self.connection.column, self.each
        if each.table != IMPORTS and self.new:
            return f"SELECT DISTINCT {column(each.import_key)} AS k FROM {name(each.table)}"
        if each.table != IMPORTS:
            return f"SELECT k FROM {DUE_IMPORTS}"
        return _imports_due(self.connection, each, self.unread)

    def _note_deletions(self, names: str) -> None:
        """Add a version of zero length for each deleted record.

        It shows the deletion and is valid at no moment. Records that an earlier run with `mirror` found deleted, but
        could not erase yet, get one too.
        """
        name, column, each = self.connection.name, self.connection.column, self.each
        history, key = name(each.history), column(each.key)
        started, ended = column(VALID_FROM), column(VALID_TO)
        earlier = f"{V}.{ended} IS NOT NULL AND {V}.{column(each.import_key)} IN (SELECT k FROM {DUE_IMPORTS})"
        self.connection.gather(
            _ENDED, f"SELECT k FROM {self.outdated}", f"SELECT {V}.{key} AS k FROM {history} AS {V} WHERE {earlier}"
        )
        self.connection.execute(
            f"INSERT INTO {history} ({', '.join([names, *map(column, OWN)])}) "
            f"SELECT {', '.join(f'{V}.{column(c)}' for c in each.columns)}, {V}.{ended}, {V}.{ended}, 'delete', %s "
            f"FROM {history} AS {V} WHERE {V}.{started} < {V}.{ended} AND {V}.{key} IN (SELECT k FROM {_ENDED}) "
            f"AND NOT EXISTS (SELECT 1 FROM {history} AS {_O} WHERE {_O}.{key} = {V}.{key} "
            f"AND ({_O}.{ended} IS NULL OR {_O}.{started} >= {V}.{ended}))",
            self.run_id,
        )


def mismatched_versions(connection: Connection, wanted: Choice) -> dict[str, int]:
    """Return history table → number of rows without an equal open version, plus open versions without a row.

    Nothing is compared while loaded rows are yet to be recorded.
    """
    dataset = inspect_dataset(connection)
    if LEDGER not in dataset.ours or "history" not in dataset.columns[LEDGER]:
        return {}
    tables = versioned(connection, dataset, wanted)
    if _is_behind(connection, dataset, tables):
        return {}
    return {each.history: n for each in tables if (n := _differing(connection, each))}


def _differing(connection: Connection, each: Versioned) -> int:
    name, column = connection.name, connection.column
    same = same_content(connection, each)
    live, is_open = f"{R}.{column('_deleted_at')} IS NULL", f"{V}.{column(VALID_TO)} IS NULL"
    rows = connection.rows(
        f"SELECT (SELECT count(*) FROM {name(each.table)} AS {R} WHERE {live} AND NOT EXISTS "
        f"(SELECT 1 FROM {name(each.history)} AS {V} WHERE {is_open} AND {same})) AS missing, "
        f"(SELECT count(*) FROM {name(each.history)} AS {V} WHERE {is_open} AND NOT EXISTS "
        f"(SELECT 1 FROM {name(each.table)} AS {R} WHERE {live} AND {same})) AS surplus"
    )[0]
    return int(rows["missing"]) + int(rows["surplus"])
