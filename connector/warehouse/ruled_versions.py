"""Empty the values of versions that changed privacy rules cover (docs/history.md).

Invariant: `_ruled_by` of a version names rules under which its values are: those of its table, and those of the
template that its import has moved to since. Once a run applied the rules of now, that are these, but for versions of
imports that were not read under them yet; and what differs between two versions is what it was.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from typing import Protocol

from connector.ledger import State
from connector.transform.naming import RULES_COLUMN
from connector.transform.privacy import FINGERPRINT
from connector.warehouse.adapters.dialect import any_of, literal
from connector.warehouse.connection import Connection
from connector.warehouse.history_tables import (
    MOVED,
    PAUSED,
    VALID_TO,
    R,
    V,
    Versioned,
    align,
    check_room,
    copy_to_open,
    is_aligned,
    is_unlike,
    note_changes,
)
from connector.warehouse.ownership import Dataset
from connector.warehouse.tables import IMPORTS, LEDGER, LOAD_ID

# Temporary tables: imports read under other rules than before; those with versions in a table whose template is not
# theirs any more, or that are deleted.
_RULED, _ELSEWHERE = "importer_ruled", "importer_elsewhere"
_OF_RULED = f"SELECT k FROM {_RULED}"
_READ_BY = f"SUBSTR(COALESCE(privacy, ''), 1, {FINGERPRINT})"  # in the ledger; names may follow
_NO_RULES = "-" * FINGERPRINT


class Rules(Protocol):
    """The privacy rules of now."""

    def columns(self, table: str, columns: Collection[str]) -> list[str]:
        """Return those columns of a table's versions that a rule for its template may be about."""
        ...

    def other_columns(self, table: str, columns: Collection[str], template: str) -> list[str]:
        """Return those that a rule for another template ('': unknown) is about, and none of the table's is equal."""
        ...

    def readings(self, table: str) -> Mapping[str, str]:
        """Return fingerprint in the ledger → fingerprint of those of its rules that are about the rows of the table.

        There may be several, if the template has or had several names, and for `imports`. None is about the rows if
        there are none.
        """
        ...


def apply_changed_rules(
    connection: Connection, dataset: Dataset, tables: Sequence[Versioned], ruled: Rules | None
) -> None:
    """Empty the versions in these tables that are not under the rules of now, if the import was read under them.

    Versions in a table whose template is not that of their import any more, and those of deleted imports, do not wait
    for a reading. Such an import stays due to be recorded. Without `ruled` there are no rules now. Raises ConfigError
    if a history table cannot have the columns it takes.
    """
    if not tables or "privacy" not in dataset.columns[LEDGER]:
        return
    ledger = connection.name(LEDGER)
    connection.add_column(LEDGER, "history")
    by_these = connection.sql.ends_with("COALESCE(history, '')", "privacy")
    others = f"SELECT slug AS k FROM {ledger} WHERE privacy IS NOT NULL AND NOT {by_these}"
    unfinished = is_unlike(connection, dataset.columns[LEDGER], "", PAUSED, MOVED)
    if ruled is not None:
        _apply(connection, dataset, tables, ruled, others, unfinished)
    connection.execute(
        f"UPDATE {ledger} SET history = NULL WHERE privacy IS NULL AND history IS NOT NULL AND {unfinished}"
    )


def add_rules_column(
    connection: Connection, dataset: Dataset, each: Versioned, ruled: Rules, there: Collection[str]
) -> str | None:
    """Add the column for the rules of a version, if any are about the table; return SQL for that of a new version.

    `there` are the columns of the history table. The SQL is about the ledger. Versions from before are under the rules
    that the ledger says.
    """
    readings = ruled.readings(each.table)
    if not readings:
        return None
    whens = " ".join(f"WHEN '{reading}' THEN '{rules}'" for reading, rules in sorted(readings.items()))
    mark = f"CASE WHEN {_was_read(connection, dataset, each)} THEN CASE {_READ_BY} {whens} END END"
    if RULES_COLUMN not in there:
        check_room(connection, each, 1)
        by_these = connection.sql.ends_with("COALESCE(history, '')", "privacy")
        own = "" if each.table == IMPORTS else f" AND {_is_own(dataset, each)}"
        source = (
            f"(SELECT slug, {mark} AS mark FROM {connection.name(LEDGER)} "
            f"WHERE privacy IS NOT NULL AND {by_these}{own}) AS {R}"
        )
        imported = f"{V}.{connection.column(each.import_key)}"
        new = {connection.column(RULES_COLUMN): f"{R}.mark"}
        same = connection.sql.update_from(connection.name(each.history), V, new, source, f"{R}.slug = {imported}")
        with connection.client.begin_transaction():
            connection.add_column(each.history, RULES_COLUMN)
            connection.execute(same)
    return mark


def _apply(
    connection: Connection,
    dataset: Dataset,
    tables: Sequence[Versioned],
    ruled: Rules,
    others: str,
    unfinished: str,
) -> None:
    """Empty the versions; `others` is SQL for imports read under other rules, `unfinished` for those to be recorded."""
    ledger = connection.name(LEDGER)
    there = connection.columns()
    for each in tables:
        add_rules_column(connection, dataset, each, ruled, there[each.history])
    if not connection.query(f"SELECT 1 FROM {ledger} WHERE {unfinished} LIMIT 1").num_rows:
        return
    outdated = [each for each in tables if _is_outdated(connection, dataset, each, ruled, others)]
    for each in outdated:  # before the transaction, because it may add columns
        if not is_aligned(dataset, each):  # a rebuild died, or the versions of the table are not kept any more
            align(connection, each, dataset.columns[each.history])
        note_changes(connection, each)
        check_room(connection, each, RULES_COLUMN not in there[each.history])
        connection.add_column(each.history, RULES_COLUMN)  # not there if only the rules of another template apply
    there = connection.columns()
    with connection.client.begin_transaction():
        connection.gather(_RULED, others)
        for each in outdated:
            columns = ruled.columns(each.table, there[each.history])
            _empty_own(connection, dataset, each, columns, ruled.readings(each.table))
            _empty_others(connection, dataset, each, columns, ruled.readings(each.table))
            if each.table != IMPORTS:
                _empty_moved(connection, dataset, each, there[each.history], ruled)
        rules = connection.sql.joined("' '", "privacy")
        connection.execute(f"UPDATE {ledger} SET history = {rules} WHERE slug IN ({_OF_RULED})")


def _now(readings: Mapping[str, str]) -> str:
    """Return the mark of versions under all rules that a template of several names may be under."""
    found = sorted(set(readings.values()))
    return found[0] if len(found) == 1 else sha256(" ".join(found).encode()).hexdigest()[:FINGERPRINT]


def _ruled_by(connection: Connection) -> str:
    return f"SUBSTR(COALESCE({V}.{connection.column(RULES_COLUMN)}, ''), 1, {FINGERPRINT})"


def _is_own(dataset: Dataset, each: Versioned) -> str:
    """Return a condition on the ledger: the import exists, and its records belong into the table."""
    template = dataset.templates.get(each.table) or ""
    of = "" if each.table == IMPORTS else f" AND COALESCE(template_slug, '') = {literal(template)}"
    return f"(state <> '{State.deleted}'{of})"


def _was_read(connection: Connection, dataset: Dataset, each: Versioned) -> str:
    """Return a condition on the ledger: what the table has of the import is under the rules of its last reading.

    The rows of a load that died may not have followed the import's row in the ledger. The settings may leave an import
    out that was read before; its row in `imports` is then written under the rules of each run that lists it.
    """
    loaded = f"{connection.column(LOAD_ID)} IN {connection.completed_loads(dataset.ours)}"
    return f"{loaded} AND (state <> '{State.excluded}' OR last_synced_at IS NULL)" if each.table == IMPORTS else loaded


def _is_outdated(connection: Connection, dataset: Dataset, each: Versioned, ruled: Rules, others: str) -> bool:
    """Return whether a version may not be under the rules of now."""
    history, readings = connection.name(each.history), ruled.readings(each.table)
    if readings:
        unlike = f"SELECT 1 FROM {history} AS {V} WHERE {_ruled_by(connection)} <> '{_now(readings)}' LIMIT 1"
        if connection.query(unlike).num_rows:
            return True
    if each.table == IMPORTS:
        return False
    moved = f"SELECT slug FROM {connection.name(LEDGER)} WHERE NOT {_is_own(dataset, each)} AND slug IN ({others})"
    imported = connection.column(each.import_key)
    return connection.query(f"SELECT 1 FROM {history} WHERE {imported} IN ({moved}) LIMIT 1").num_rows > 0


def _empty_own(
    connection: Connection, dataset: Dataset, each: Versioned, columns: Collection[str], readings: Mapping[str, str]
) -> None:
    """Empty the versions of the table's own imports that were read under the rules of now."""
    imported = connection.column(each.import_key)
    for reading, rules in sorted(readings.items()):
        read = f"{_is_own(dataset, each)} AND {_was_read(connection, dataset, each)} AND {_READ_BY} = '{reading}'"
        own = f"SELECT slug FROM {connection.name(LEDGER)} WHERE {read}"
        unlike = f"{_ruled_by(connection)} <> '{rules}'"
        _empty(connection, each, columns, f"{V}.{imported} IN ({own}) AND {unlike}")
        copied = [c for c in columns if c in each.columns]
        copy_to_open(connection, each, copied, f"{R}.{imported} IN ({own}) AND {unlike}")
        _mark(connection, each, f"'{rules}'", f"{V}.{imported} IN ({own}) AND {unlike}")


def _empty_others(
    connection: Connection, dataset: Dataset, each: Versioned, columns: Collection[str], readings: Mapping[str, str]
) -> None:
    """Empty versions for which no reading is waited for: of other imports, or in `imports` those that ended."""
    if not readings:
        return
    now, imported = _now(readings), connection.column(each.import_key)
    unlike = f"{_ruled_by(connection)} <> '{now}'"
    deleted = f"SELECT slug FROM {connection.name(LEDGER)} WHERE state = '{State.deleted}'"
    where = f"{unlike} AND ({V}.{connection.column(VALID_TO)} IS NOT NULL OR {V}.{imported} IN ({deleted}))"
    if each.table != IMPORTS:
        connection.gather(  # not by NOT IN or NOT EXISTS, which some databases do row by row
            _ELSEWHERE,
            f"SELECT g.k FROM (SELECT DISTINCT {V}.{imported} AS k, 1 AS other FROM {connection.name(each.history)} "
            f"AS {V} WHERE {unlike} UNION ALL SELECT slug, 0 FROM {connection.name(LEDGER)} "
            f"WHERE {_is_own(dataset, each)}) AS g GROUP BY g.k HAVING MIN(g.other) = 1",
        )
        where = f"{unlike} AND {V}.{imported} IN (SELECT k FROM {_ELSEWHERE})"
    _empty(connection, each, columns, where)
    _mark(connection, each, f"'{now}'", where)


def _empty_moved(
    connection: Connection, dataset: Dataset, each: Versioned, there: Collection[str], ruled: Rules
) -> None:
    """Empty in versions of a typed table what only the rules cover of a template that their import has moved to."""
    ledger, imported = connection.name(LEDGER), connection.column(each.import_key)
    versions = f"SELECT {imported} FROM {connection.name(each.history)}"
    moved = (
        f"SELECT DISTINCT COALESCE(template_slug, '') AS slug, {_READ_BY} AS rules FROM {ledger} "
        f"WHERE NOT {_is_own(dataset, each)} AND state <> '{State.deleted}' "
        f"AND slug IN ({_OF_RULED}) AND slug IN ({versions})"
    )
    mark = f"{V}.{connection.column(RULES_COLUMN)}"
    for row in connection.rows(moved):
        template, rules = row["slug"], row["rules"]
        columns = ruled.other_columns(each.table, there, template)
        if not columns:
            continue
        of = (
            f"SELECT slug FROM {ledger} WHERE COALESCE(template_slug, '') = %s AND {_READ_BY} = '{rules}' "
            f"AND slug IN ({_OF_RULED})"
        )
        where = f"{V}.{imported} IN ({of}) AND SUBSTR(COALESCE({mark}, ''), {FINGERPRINT + 2}) <> '{rules}'"
        first = f"SUBSTR(COALESCE({mark}, '{_NO_RULES}'), 1, {FINGERPRINT})"
        _empty(connection, each, columns, where, template)
        _mark(connection, each, connection.sql.joined(first, f"' {rules}'"), where, template)


def _empty(connection: Connection, each: Versioned, columns: Collection[str], where: str, *values: str) -> None:
    if not columns:
        return
    names = [connection.column(c) for c in columns]
    connection.execute(
        f"UPDATE {connection.name(each.history)} AS {V} SET {', '.join(f'{c} = NULL' for c in names)} "
        f"WHERE {where} AND {any_of(f'{V}.{c} IS NOT NULL' for c in names)}",
        *values,
    )


def _mark(connection: Connection, each: Versioned, mark: str, where: str, *values: str) -> None:
    """Note under which rules these versions are."""
    column = connection.column(RULES_COLUMN)
    connection.execute(f"UPDATE {connection.name(each.history)} AS {V} SET {column} = {mark} WHERE {where}", *values)
