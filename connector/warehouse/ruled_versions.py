"""Empty the values of versions that changed privacy rules cover (docs/history.md).

Invariant: `_ruled_by` names the rules that the values of a row or version are under. A row gets it with its values, in
one load, and a version takes both from its row. A version that names other rules than those of now keeps no value that
these cover, unless the row of its record does too, because it was not read again yet.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from connector.transform.naming import RULES_COLUMN
from connector.warehouse.adapters.dialect import all_of
from connector.warehouse.connection import Connection
from connector.warehouse.history_tables import (
    VALID_TO,
    R,
    V,
    Versioned,
    align,
    check_room,
    copy_to_open,
    is_aligned,
)
from connector.warehouse.noted_changes import note_changes
from connector.warehouse.ownership import Dataset
from connector.warehouse.tables import IMPORTS

_READY = "importer_ready"  # a temporary table: the keys of last versions that do not wait for their rows
_READ, _UNREAD = 1, 2  # what a row is under the rules of now


class Rules(Protocol):
    """The privacy rules of now."""

    def columns(self, table: str, columns: Collection[str]) -> list[str]:
        """Return those columns of a table's versions that a rule for its rows may be about."""
        ...

    def fingerprints(self, table: str) -> Collection[str | None]:
        """Return those of the rules that rows of the table are read under: several if its template has several names.

        None is among them if no rule is about rows under one of the names.
        """
        ...


def apply_changed_rules(
    connection: Connection, dataset: Dataset, tables: Sequence[Versioned], rules: Rules, *, all_read: bool
) -> None:
    """Empty the versions in these tables that are not under the rules of now, and note in them that they are.

    A last version gets the values that its row was read with. One without a row is emptied only once `all_read`: until
    then the row may be away because a run died, or `typed` was false. Raises ConfigError if a history table cannot have
    the columns it takes.
    """
    columns = connection.columns()
    for each in tables:
        if now := _named(rules.fingerprints(each.table)):
            _apply(connection, dataset, each, rules, now, columns[each.history], all_read=all_read)


def _apply(
    connection: Connection,
    dataset: Dataset,
    each: Versioned,
    rules: Rules,
    now: Sequence[str],
    there: Collection[str],
    *,
    all_read: bool,
) -> None:
    name, column = connection.name, connection.column
    key, ended = column(each.key), column(VALID_TO)
    stale = _is_stale(connection, V, now) if RULES_COLUMN in there else "1 = 1"
    versions = f"FROM {name(each.history)} AS {V} WHERE {stale}"
    if not connection.query(f"SELECT 1 {versions} LIMIT 1").num_rows:
        return
    if not is_aligned(dataset, each):  # a rebuild died, or the versions of the table are not kept any more
        align(connection, each, dataset.columns[each.history])
    marked = RULES_COLUMN in each.columns
    was_read = f"NOT {_is_stale(connection, R, now)}" if marked else "1 = 0"
    connection.gather(  # by one GROUP BY: a join, IN or EXISTS takes some databases a row at a time
        _READY,
        f"SELECT g.k FROM (SELECT {V}.{key} AS k, 0 AS row_is {versions} AND {V}.{ended} IS NULL UNION ALL "
        f"SELECT {R}.{key}, CASE WHEN {was_read} THEN {_READ} ELSE {_UNREAD} END FROM {name(each.table)} AS {R} "
        f"WHERE {R}.{column('_deleted_at')} IS NULL) AS g GROUP BY g.k "
        f"HAVING MIN(g.row_is) = 0 AND MAX(g.row_is) {'<=' if all_read else '='} {_READ}",
    )
    closed = f"SELECT 1 {versions} AND {V}.{ended} IS NOT NULL LIMIT 1"
    if not (connection.query(f"SELECT k FROM {_READY} LIMIT 1").num_rows or connection.query(closed).num_rows):
        return
    note_changes(connection, each)
    check_room(connection, each, RULES_COLUMN not in there)
    connection.add_column(each.history, RULES_COLUMN)
    stale = _is_stale(connection, V, now)
    covered = rules.columns(each.table, connection.columns()[each.history])
    with connection.client.begin_transaction():
        if marked:
            copied = [*(c for c in covered if c in each.columns), RULES_COLUMN]
            copy_to_open(connection, each, copied, f"{was_read} AND {stale}", [c for c in covered if c not in copied])
        emptied = ", ".join([*(f"{column(c)} = NULL" for c in covered), f"{column(RULES_COLUMN)} = '{now[0]}'"])
        connection.execute(
            f"UPDATE {name(each.history)} AS {V} SET {emptied} WHERE {stale} "
            f"AND ({V}.{ended} IS NOT NULL OR {V}.{key} IN (SELECT k FROM {_READY}))"
        )


def is_under_others(connection: Connection, each: Versioned, now: Collection[str | None]) -> str | None:
    """Return a condition: the row (`R`) is under other rules than those of `now`, so that it will be read again.

    None if no row of the table was ever under a rule.
    """
    if RULES_COLUMN not in each.columns:
        return None
    conditions = []
    if None in now or each.table == IMPORTS:  # there, a row without a mark is under the rules of its version
        conditions.append(f"{R}.{connection.column(RULES_COLUMN)} IS NOT NULL")
    if named := _named(now):
        conditions.append(_is_stale(connection, R, named))
    return all_of(conditions)


def _named(fingerprints: Collection[str | None]) -> list[str]:
    return sorted(each for each in fingerprints if each is not None)


def _is_stale(connection: Connection, alias: str, now: Sequence[str]) -> str:
    """Return a condition: the row or version is not known to be under one of these rules."""
    known = ", ".join(f"'{each}'" for each in now)
    return f"(COALESCE({alias}.{connection.column(RULES_COLUMN)}, '') NOT IN ({known}))"
