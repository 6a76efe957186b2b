"""Note in each version which columns changed with it, before a rebuild and before values are emptied.

Invariant: neither changes anything about what differs between two versions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from connector.transform.naming import CHANGED_COLUMN
from connector.warehouse.adapters.dialect import any_of, literal
from connector.warehouse.connection import Connection
from connector.warehouse.history_tables import (
    CHANGE,
    VALID_FROM,
    VALID_TO,
    R,
    V,
    Versioned,
    check_room,
    set_aside_columns,
)


def noted(column: str) -> str:
    """Return what a version's `_changed_columns` contains if this column changed with it."""
    return f"|{column}|"


def note_changes(connection: Connection, each: Versioned) -> None:
    """Note in each version that changed a record which columns differ from the version before, if that is not noted.

    Raises ConfigError if the history table cannot have one more column.
    """
    there = connection.columns()[each.history]
    updates = f"SELECT 1 FROM {connection.name(each.history)} WHERE {connection.column(CHANGE)} = 'update' LIMIT 1"
    if not connection.query(updates).num_rows:
        return
    check_room(connection, each, CHANGED_COLUMN not in there)
    connection.add_column(each.history, CHANGED_COLUMN)
    columns = {c: [c, *set_aside_columns(c, there, each.columns)] for c in sorted({*each.content} & there.keys())}
    changed = connection.column(CHANGED_COLUMN)
    differ = {c: [_differ(connection, name) for name in names] for c, names in columns.items()}
    _note(connection, each, _noting(connection, differ), f"{V}.{changed} IS NULL")


def note_fields_with_own_columns(
    connection: Connection, each: Versioned, added: Collection[str], rest: str, keys: Mapping[str, str]
) -> None:
    """Note the columns of fields that had none before a rebuild, in open versions that were the first with such values.

    Before, the note of such a version says only that `rest` changed, the column of all fields without one. `added` are
    the columns that the table did not have. `keys` has for each column of a field its key as `rest` has it: an earlier
    version with that key had a value there.
    """
    changed, more = connection.column(CHANGED_COLUMN), connection.column(rest)
    own = [column for column in added if column in keys]
    if not own or not {CHANGED_COLUMN, rest} <= connection.columns()[each.history].keys():
        return
    differ = {c: [f"({_differ(connection, c)} AND {_lacks(f'{R}.{more}', keys[c])})"] for c in own}
    same = connection.sql.same(f"{R}.{more}", f"{V}.{more}")
    note = f"CASE WHEN {same} THEN REPLACE({V}.{changed}, {literal(noted(rest))}, '') ELSE {V}.{changed} END"
    where = f"{V}.{connection.column(VALID_TO)} IS NULL AND {V}.{changed} LIKE '%{noted(rest)}%'"
    _note(connection, each, connection.sql.joined(note, f"({_noting(connection, differ)})"), where)


def _lacks(column: str, text: str) -> str:
    """Return a condition: the column is null, or its text does not contain this one."""
    pattern = "".join(f"!{each}" if each in "%_!" else each for each in text)
    return f"({column} IS NULL OR {column} NOT LIKE {literal(f'%{pattern}%')} ESCAPE '!')"


def _noting(connection: Connection, differ: Mapping[str, Sequence[str]]) -> str:
    """Return SQL for the note on these columns: those for which any of the conditions holds."""
    parts = [f"CASE WHEN {any_of(either)} THEN {literal(noted(c))} ELSE '' END" for c, either in differ.items()]
    joined = connection.sql.joined  # by pairs of parts, because DuckDB and SQLite limit the depth of an expression
    while len(parts) > 1:
        parts = [f"({joined(*parts[n : n + 2])})" if n + 1 < len(parts) else parts[n] for n in range(0, len(parts), 2)]
    return parts[0]


def _note(connection: Connection, each: Versioned, note: str, where: str) -> None:
    """Store a note in the versions that changed a record and for which `where` holds, each (`V`) after one (`R`)."""
    history, key, changed = (
        connection.name(each.history),
        connection.column(each.key),
        connection.column(CHANGED_COLUMN),
    )
    start, end = connection.column(VALID_FROM), connection.column(VALID_TO)
    connection.execute(
        connection.sql.update_from(
            history,
            V,
            {changed: note},
            f"{history} AS {R}",
            f"{R}.{key} = {V}.{key} AND {R}.{end} = {V}.{start} AND {R}.{start} < {R}.{end} "
            f"AND {V}.{connection.column(CHANGE)} = 'update' AND {where}",
        )
    )


def _differ(connection: Connection, column: str) -> str:
    name = connection.column(column)
    return connection.sql.differs(f"{R}.{name}", f"{V}.{name}")
