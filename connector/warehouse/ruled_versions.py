"""Empty the values of versions that changed privacy rules cover (docs/history.md).

Invariant: once the ledger says that an import is under its rules (`sync_imports.history` ends with them), no version of
it has a value from a reading under other rules that these cover, and what differs between two versions is what it was.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from connector.warehouse.adapters.dialect import any_of
from connector.warehouse.connection import Connection
from connector.warehouse.history_tables import (
    V,
    Versioned,
    align,
    copy_to_open,
    is_aligned,
    note_changes,
    recorded_mark,
)
from connector.warehouse.ownership import Dataset
from connector.warehouse.tables import IMPORTS, LEDGER, RECORDS, keys_of

# Temporary tables: imports read under other rules than before, and the keys of their rows.
_RULED, _RULED_KEYS = "importer_ruled", "importer_ruled_keys"
_OF_RULED = f"SELECT k FROM {_RULED}"


class Rules(Protocol):
    """The privacy rules of now."""

    def columns(self, table: str, columns: Collection[str]) -> list[str]:
        """Return those columns of a table's versions that a rule for its template may be about."""
        ...

    def other_columns(self, table: str, columns: Collection[str], template: str) -> list[str]:
        """Return those that a rule for another template ('': unknown) is about, and none of the table's is equal."""
        ...

    def fingerprints(self, table: str) -> Collection[str]:
        """Return the fingerprints of the rules that are certainly those for the template of a table.

        For `imports`, return those of all rules of now, because only the rules for metadata matter.
        """
        ...


def apply_changed_rules(
    connection: Connection, dataset: Dataset, tables: Sequence[Versioned], ruled: Rules | None
) -> None:
    """Empty the versions in these tables of imports that were read under other rules than their versions.

    Such an import stays due to be recorded. One that was read without rules counts as changed once they apply again.
    Without `ruled` there are no rules now. Raises ConfigError if a history table cannot have the columns it takes.
    """
    if not tables or "privacy" not in dataset.columns[LEDGER]:
        return
    ledger = connection.name(LEDGER)
    connection.add_column(LEDGER, "history")
    by_these = connection.sql.ends_with("COALESCE(history, '')", "privacy")
    others = f"SELECT slug AS k FROM {ledger} WHERE privacy IS NOT NULL AND NOT {by_these}"
    if ruled is not None and connection.query(f"{others} LIMIT 1").num_rows:
        _apply(connection, dataset, tables, ruled, others)
    unlike = connection.sql.differs("history", recorded_mark(connection, dataset.columns[LEDGER]))
    connection.execute(f"UPDATE {ledger} SET history = NULL WHERE privacy IS NULL AND history IS NOT NULL AND {unlike}")


def _apply(connection: Connection, dataset: Dataset, tables: Sequence[Versioned], ruled: Rules, imports: str) -> None:
    """Empty the versions of these imports, given as SQL for their slugs."""
    held = [each for each in tables if _has_versions(connection, each, imports)]
    for each in held:  # before the transaction, because it may add columns
        if not is_aligned(dataset, each):  # a rebuild died, or the versions of the table are not kept any more
            align(connection, each, dataset.columns[each.history])
        note_changes(connection, each)
    there = connection.columns()
    with connection.client.begin_transaction():
        connection.gather(_RULED, imports)
        holding = [*sorted(dataset.typed), *({RECORDS} & dataset.ours)]
        may_be_gone = bool(holding) and IMPORTS in dataset.ours
        if may_be_gone:
            _gather_keys(connection, holding)
        for each in tables:
            columns = ruled.columns(each.table, there[each.history])
            same = _read_by("history", ruled.fingerprints(each.table))
            if each in held:
                changed = f"SELECT slug FROM {connection.name(LEDGER)} WHERE slug IN ({_OF_RULED}) AND NOT {same}"
                _empty(connection, each, columns, f"{V}.{connection.column(each.import_key)} IN ({changed})")
                copy_to_open(connection, each, [c for c in columns if c in each.columns], changed)
                _empty_moved(connection, dataset, each, there[each.history], ruled)
            if may_be_gone and each.table != IMPORTS:
                _empty_gone(connection, each, columns, _read_by("privacy", ruled.fingerprints(each.table)))
        rules = connection.sql.joined("' '", "privacy")
        connection.execute(f"UPDATE {connection.name(LEDGER)} SET history = {rules} WHERE slug IN ({_OF_RULED})")


def _read_by(column: str, fingerprints: Collection[str]) -> str:
    """Return a condition on the ledger: an import was read under the rules that one of these stands for."""
    mark = f"COALESCE({column}, '')"  # with names behind the fingerprint
    found = (f"REPLACE({mark}, '{each}', '') <> {mark}" for each in sorted(fingerprints))
    return f"({any_of(found)})" if fingerprints else "(1 = 0)"


def _has_versions(connection: Connection, each: Versioned, imports: str) -> bool:
    versions = f"SELECT 1 FROM {connection.name(each.history)} WHERE {connection.column(each.import_key)}"
    return connection.query(f"{versions} IN ({imports}) LIMIT 1").num_rows > 0


def _empty(connection: Connection, each: Versioned, columns: Collection[str], where: str, *values: str) -> None:
    if not columns:
        return
    names = [connection.column(c) for c in columns]
    connection.execute(
        f"UPDATE {connection.name(each.history)} AS {V} SET {', '.join(f'{c} = NULL' for c in names)} "
        f"WHERE {where} AND {any_of(f'{V}.{c} IS NOT NULL' for c in names)}",
        *values,
    )


def _gather_keys(connection: Connection, tables: Sequence[str]) -> None:
    """Gather the keys of the rows of the imports, in whichever of these tables they are now."""
    keys = [(connection.name(table), *map(connection.column, keys_of(table))) for table in tables]
    rows = (f"SELECT {key} AS k FROM {table} WHERE {imported} IN ({_OF_RULED})" for table, key, imported in keys)
    connection.gather(_RULED_KEYS, *rows)


def _empty_gone(connection: Connection, each: Versioned, columns: Collection[str], same: str) -> None:
    """Empty a record's versions from a deleted import, which is not read under any rules, with those of its own import.

    That is not needed if the deleted import was read under the `same` rules, a condition on the ledger.
    """
    name, column = connection.name, connection.column
    listed = f"SELECT i.slug FROM {name(IMPORTS)} AS i WHERE i.{column('_deleted_at')} IS NULL"
    ruled = f"SELECT slug FROM {name(LEDGER)} WHERE {same}"
    imported = f"{V}.{column(each.import_key)}"
    gone = f"{imported} NOT IN ({listed}) AND {imported} NOT IN ({ruled})"
    _empty(connection, each, columns, f"{gone} AND {V}.{column(each.key)} IN (SELECT k FROM {_RULED_KEYS})")


def _empty_moved(
    connection: Connection, dataset: Dataset, each: Versioned, there: Collection[str], ruled: Rules
) -> None:
    """Empty in versions of a typed table what only the rules cover of a template that their import has moved to."""
    if each.table == IMPORTS:
        return
    ledger, imported = connection.name(LEDGER), connection.column(each.import_key)
    versions = f"SELECT {imported} FROM {connection.name(each.history)}"
    moved = (
        f"SELECT DISTINCT COALESCE(template_slug, '') AS slug FROM {ledger} "
        f"WHERE slug IN ({_OF_RULED}) AND slug IN ({versions})"
    )
    for row in connection.rows(moved):
        template = row["slug"]
        if template != (dataset.templates.get(each.table) or ""):
            columns = ruled.other_columns(each.table, there, template)
            of = f"SELECT slug FROM {ledger} WHERE COALESCE(template_slug, '') = %s AND slug IN ({_OF_RULED})"
            _empty(connection, each, columns, f"{V}.{imported} IN ({of})", template)
