"""Erase the versions of what the service erased, and note in the ledger which imports are recorded.

Invariant: no version is deleted while its record or import exists, or may exist; and an import is not noted as recorded
while something that was erased may be left of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from connector.warehouse.adapters.dialect import all_of
from connector.warehouse.connection import Connection
from connector.warehouse.history_tables import MOVED, PAUSED, VALID_TO, R, V, Versioned, recorded_mark
from connector.warehouse.ownership import Dataset
from connector.warehouse.tables import IMPORTS, LEDGER, RECORDS, keys_of
from connector.warehouse.waiting_versions import Waiting

DUE_IMPORTS = "importer_due"  # a temporary table: the imports to record
# Temporary tables: keys that have no live row any more; imports that stay due; keys that may have moved; imports of
# paused tables, and of records that live in a table that is not recorded; keys that have not moved; keys to look for;
# keys of records that have no version any more.
_ERASED, _LEFT, _MOVING, _STILL = "importer_erased", "importer_left", "importer_moving", "importer_still"
_PAUSED, _MOVED, _CANDIDATES = "importer_paused", "importer_moved", "importer_candidates"
_ELSEWHERE = "importer_elsewhere"
_NONE = f"SELECT k FROM {DUE_IMPORTS} WHERE 1 = 0"
_KEY = "importer$key"  # one more alias, as R and V are


def finish_recording(
    connection: Connection,
    dataset: Dataset,
    tables: Sequence[Versioned],
    paused: Sequence[Versioned],
    waiting: Sequence[Waiting],
    *,
    keeps: bool,
    whole: bool,
    undisturbed: bool,
) -> bool:
    """Erase what is gone unless the run `keeps` it, and note in the ledger which imports are recorded.

    Where a table is not recorded, or versions are `waiting` for their rows, an import is noted as `PAUSED` or `MOVED`
    instead, but nothing that was erased is left of it. Return whether there is more to erase in an undisturbed run.
    """
    seeks = not keeps and len(tables) <= len(dataset.typed)
    waits, but = False, [_LEFT]
    holding = [*sorted(dataset.typed), *({RECORDS} & dataset.ours)]
    left: list[str] = []
    if not keeps:
        kept = [keys for each in waiting for keys in each.keys]
        left, waits = _erase(connection, tables, paused, holding, kept, whole=whole, undisturbed=undisturbed)
    connection.gather(_LEFT, *(left or [_NONE]))
    if left:  # what is there stays to be sought
        _note(connection, "NULL", (), among=_LEFT)
    if seeks:
        _note(connection, recorded_mark(connection, PAUSED), but)
    if tables:
        due = f"SELECT k FROM {DUE_IMPORTS}"
        rows = imports_to_wait(connection, dataset, paused, due)
        rows += [sql for each in waiting for sql in each.imports]
        connection.gather(_PAUSED, *(rows or [_NONE]))
        but.append(_PAUSED)
        if seeks:
            elsewhere = _imports_of_records_elsewhere(connection, [each for each in tables if each.table != IMPORTS])
            connection.gather(_MOVED, *(elsewhere or [_NONE]))
            _note(connection, recorded_mark(connection, MOVED), but, among=_MOVED)
            but.append(_MOVED)
        _note(connection, recorded_mark(connection), but)
    return waits


def _erase(
    connection: Connection,
    tables: Sequence[Versioned],
    paused: Sequence[Versioned],
    holding: Sequence[str],
    kept: Sequence[str],
    *,
    whole: bool,
    undisturbed: bool,
) -> tuple[list[str], bool]:
    """Delete all versions of keys that have no live row in any table of records (`holding`) or in `imports`.

    Candidates are the versions of imports loaded since, and in recorded tables the versions that ended. If the run was
    not whole, delete nothing; if it was not undisturbed, nothing with a key in `_MOVING`; and nothing with one in the
    temporary tables `kept`, whose records are read again. Return SQL for the imports to
    check again, and whether an undisturbed run would have deleted more.
    """
    left: list[str] = []
    waits = False
    name, column = connection.name, connection.column
    for of_imports in (True, False):
        over = [each for each in tables if (each.table == IMPORTS) == of_imports]
        some = [*over, *(each for each in paused if (each.table == IMPORTS) == of_imports)]
        live = [(IMPORTS, some[0].key)] if some and of_imports else [(t, keys_of(t)[0]) for t in holding]
        if not some:
            continue
        candidates = (
            f"SELECT DISTINCT {column(e.key)} AS k FROM {name(e.history)} "
            f"WHERE {column(e.import_key)} IN (SELECT k FROM {DUE_IMPORTS})"
            + (f" AND {column(VALID_TO)} IS NOT NULL" if e in over else "")
            for e in some
        )
        alive = all_of(
            f"NOT EXISTS (SELECT 1 FROM {name(t)} AS {R} WHERE {R}.{column(key)} = {_KEY}.k "
            f"AND {R}.{column('_deleted_at')} IS NULL)"
            for t, key in live
        )
        gone = _ERASED + "_imports" * of_imports
        connection.gather(_CANDIDATES, *candidates)  # first, so that each table is asked for once, not once per table
        connection.gather(gone, f"SELECT {_KEY}.k FROM {_CANDIDATES} AS {_KEY} WHERE {alive or 'TRUE'}")
        for keys in kept:
            connection.execute(f"DELETE FROM {gone} WHERE k IN (SELECT k FROM {keys})")
        if whole and not undisturbed:
            waiting = f"SELECT g.k FROM {gone} AS g JOIN {_MOVING} AS m ON m.k = g.k LIMIT 1"
            waits = waits or connection.query(waiting).num_rows > 0
            connection.gather(  # not by NOT IN or NOT EXISTS, which some databases do row by row
                _STILL,
                f"SELECT g.k FROM (SELECT k, 0 AS moving FROM {gone} UNION ALL SELECT k, 1 FROM {_MOVING}) AS g "
                "GROUP BY g.k HAVING MAX(g.moving) = 0",
            )
        for each in some:
            key = f"{V}.{column(each.key)}"
            where = f"{key} IN (SELECT k FROM {gone})"
            if whole:
                erased = where if undisturbed else f"{key} IN (SELECT k FROM {_STILL})"
                connection.execute(connection.sql.delete(name(each.history), V, erased))
            if not whole or waits:
                imported = f"{V}.{column(each.import_key)}"
                left.append(f"SELECT DISTINCT {imported} AS k FROM {name(each.history)} AS {V} WHERE {where}")
    return left, waits


def _note(connection: Connection, mark: str, but: Sequence[str], among: str = DUE_IMPORTS) -> None:
    """Set the mark of the imports that one temporary table has and the others do not have."""
    others = "".join(f" AND slug NOT IN (SELECT k FROM {name})" for name in but)
    connection.execute(
        f"UPDATE {connection.name(LEDGER)} SET history = {mark} WHERE slug IN (SELECT k FROM {among}){others}"
    )


def gather_moving(connection: Connection, outdated: Sequence[tuple[Versioned, str]]) -> None:
    """Gather the keys of records that this run found missing as far as is known.

    `outdated` has, for each recorded table of records, the temporary table of keys whose versions it ended. In another
    table nothing tells when a record went missing.
    """
    name, column = connection.name, connection.column
    selects = [
        f"SELECT DISTINCT {column(each.key)} AS k FROM {name(each.history)} WHERE {column(each.import_key)} IN "
        f"(SELECT k FROM {DUE_IMPORTS}) AND {column(each.key)} IN (SELECT k FROM {ended})"
        for each, ended in outdated
    ]
    connection.gather(_MOVING, *(selects or [_NONE]))


def imports_to_wait(connection: Connection, dataset: Dataset, paused: Sequence[Versioned], imports: str) -> list[str]:
    """Return SQL for those of some imports (SQL for their slugs) that stay due until more tables are recorded.

    They have rows or open versions of a paused table, or versions of a table that does not exist now: these are ended
    or erased once it does, even if the import is deleted by then.
    """
    imported = connection.column("_import_slug")
    return [
        *(sql for each in paused for sql in _imports_with_rows(connection, each, imports)),
        *(
            f"SELECT DISTINCT {imported} AS k FROM {connection.name(history)} WHERE {imported} IN ({imports})"
            for history in sorted(dataset.orphans)
        ),
    ]


def _imports_with_rows(connection: Connection, each: Versioned, imports: str) -> tuple[str, ...]:
    """Return SQL for those of some imports (SQL for their slugs) that have rows or open versions of a paused table.

    The versions of such a table are not kept now, and such an import stays due until they are kept again.
    """
    if each.table == IMPORTS:
        return ()
    imported, still = connection.column(each.import_key), f"{connection.column(VALID_TO)} IS NULL"
    due = f"{imported} IN ({imports})"
    return (
        f"SELECT DISTINCT {imported} AS k FROM {connection.name(each.table)} WHERE {due}",
        f"SELECT DISTINCT {imported} AS k FROM {connection.name(each.history)} WHERE {due} AND {still}",
    )


def _imports_of_records_elsewhere(connection: Connection, tables: Sequence[Versioned]) -> list[str]:
    """Return SQL for those of the due imports with versions of records that live in a table that is not recorded.

    It reads the temporary table `_ELSEWHERE`, which is made here.

    No version tells when such a record is erased, so the imports that it was in stay to be looked at.
    """
    if not tables:
        return []
    name, ended = connection.name, connection.column(VALID_TO)
    recorded = [(name(t.history), connection.column(t.key), connection.column(t.import_key)) for t in tables]
    due = f"IN (SELECT k FROM {DUE_IMPORTS}) AND {V}.{ended} IS NOT NULL"
    connection.gather(  # first, so that each table is asked for once, not once per table
        _CANDIDATES,
        *(f"SELECT DISTINCT {V}.{key} AS k FROM {table} AS {V} WHERE {V}.{i} {due}" for table, key, i in recorded),
    )
    nowhere = all_of(
        f"NOT EXISTS (SELECT 1 FROM {table} AS {V} WHERE {V}.{key} = {_KEY}.k AND {V}.{ended} IS NULL)"
        for table, key, _ in recorded
    )
    connection.gather(_ELSEWHERE, f"SELECT {_KEY}.k FROM {_CANDIDATES} AS {_KEY} WHERE {nowhere}")
    return [
        f"SELECT DISTINCT {V}.{i} AS k FROM {table} AS {V} "
        f"WHERE {V}.{i} {due} AND {V}.{key} IN (SELECT k FROM {_ELSEWHERE})"
        for table, key, i in recorded
    ]
