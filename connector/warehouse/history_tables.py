"""Create the history tables (docs/history.md), and keep their columns equal to those of the tables.

Invariant: no value of a version is ever altered, except that a privacy rule empties it. If a rebuild gives a column
another type, the earlier values move unchanged into a column `<column>__was_1`, and from there into the new one only if
they convert without alteration; a text never does, because the rows have it as the hint of its field reads it. Until
that is done, the column is called `<column>__was_0`, so that the next run does it if a rebuild dies.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

import pyarrow as pa

from connector.errors import ConfigError
from connector.text import composed
from connector.transform.naming import (
    CHANGED_COLUMN,
    DOUBLE_VARIANT,
    EARLIER_VARIANT,
    RULES_COLUMN,
    TEXT_VARIANT,
    VERSION_COLUMNS,
)
from connector.warehouse.adapters.dialect import all_of
from connector.warehouse.connection import Connection
from connector.warehouse.ownership import Dataset
from connector.warehouse.tables import IMPORTS, LEDGER, LOAD_ID, keys_of

VALID_FROM, VALID_TO, CHANGE, RUN_ID = OWN = VERSION_COLUMNS
# Aliases of a row and of a version. In a subquery DuckDB reads `h.x` as the member x of a column h if the inner table
# has one, and not as a column of the outer h, so no column may have the name of an alias.
R, V, _LEDGER = "importer$row", "importer$version", "importer$ledger"
_UNTRACKED = ("_created_at", "_updated_at", LOAD_ID, RULES_COLUMN)
_EARLIER = re.compile(f"{EARLIER_VARIANT}[0-9]+")
_UNRESTORED = f"{EARLIER_VARIANT}0"
_ASIDE = re.compile(f"{DOUBLE_VARIANT}|{TEXT_VARIANT}|{_EARLIER.pattern}")
_UNCHANGED = "importer_unchanged"  # a relation of keys
# Before the mark of an import in the ledger: it has rows or open versions of a table that is not recorded now, or
# versions of records that live in a table that is not recorded.
PAUSED, MOVED = "paused ", "moved "
_OWN_TYPES = {VALID_FROM: "timestamp", VALID_TO: "timestamp", CHANGE: "text", RUN_ID: "text"}


@dataclass(frozen=True, slots=True)
class Versioned:
    """A table and its history table; `untracked` are columns that change without a new version.

    `columns` are only ours: a column that somebody else added to the table is in no version.
    """

    table: str
    history: str
    key: str
    import_key: str
    untracked: frozenset[str]
    columns: tuple[str, ...]

    @property
    def content(self) -> tuple[str, ...]:
        return tuple(c for c in self.columns if c not in self.untracked and c not in (self.key, "_deleted_at"))


Choice = Callable[[str | None, Collection[str]], bool]  # a template's slug and names → whether its rows are kept


def versioned(connection: Connection, dataset: Dataset, wanted: Choice) -> list[Versioned]:
    """Return the tables whose versions are kept: `imports`, and the typed tables of the templates `wanted`.

    Raises ConfigError for a table in which an earlier version of this package gave a field the name of a version
    column.
    """
    names = names_of_templates(connection, dataset)
    slugs = {table: dataset.templates.get(table) for table in sorted(dataset.typed)}
    tables = [table for table, slug in slugs.items() if wanted(slug, names.get(slug or "", ()))]
    for table in tables:
        if taken := [name for name in (*OWN, CHANGED_COLUMN) if name in dataset.columns[table]]:
            raise ConfigError(
                f"{table} has a field in the column {taken[0]}, a name that history needs itself, so its versions "
                "cannot be kept; list the other templates under history in [sources.importer]."
            )
    return [_versioned(dataset, table) for table in (*([IMPORTS] if IMPORTS in dataset.ours else []), *tables)]


def histories(dataset: Dataset) -> dict[str, Versioned]:
    """Return table → its history table, for each table that has one, whether its versions are still kept or not."""
    tables = [*([IMPORTS] if IMPORTS in dataset.ours else []), *sorted(dataset.typed)]
    found = {table: _versioned(dataset, table) for table in tables}
    return {table: each for table, each in found.items() if each.history in dataset.columns}


def imports_with_versions(connection: Connection, histories: Mapping[str, Versioned]) -> dict[str, frozenset[str]]:
    """Return import → the typed tables that have open versions of its rows."""
    found: dict[str, frozenset[str]] = defaultdict(frozenset)
    for table, each in histories.items():
        imported = connection.column(each.import_key)
        sql = f"SELECT DISTINCT {imported} AS slug FROM {connection.name(each.history)} WHERE "
        for row in connection.query(f"{sql}{connection.column(VALID_TO)} IS NULL").to_pylist():
            found[row["slug"]] |= {table}
    return found


def _versioned(dataset: Dataset, table: str) -> Versioned:
    columns = tuple(c for c in dataset.columns[table] if c not in dataset.added.get(table, ()))
    if table == IMPORTS:
        untracked = frozenset({"_content_hash", LOAD_ID, RULES_COLUMN})
        return Versioned(table, history_of(dataset.columns, table), "slug", "slug", untracked, columns)
    return Versioned(table, history_of(dataset.columns, table), *keys_of(table), frozenset(_UNTRACKED), columns)


def history_of(columns: Mapping[str, Mapping[str, str]], table: str) -> str:
    """Return the name of the history table: a later choice if a foreign table has the first one."""
    names = (f"{table}_history" if n == 1 else f"{table}_history_{n}" for n in count(1))
    key = "slug" if table == IMPORTS else keys_of(table)[0]
    return next(name for name in names if name not in columns or {key, *OWN} <= columns[name].keys())


def names_of_templates(
    connection: Connection, dataset: Dataset, now: Iterable[tuple[str | None, str | None]] | None = None
) -> dict[str, set[str]]:
    """Return the names that each template has or had, by its slug; '' for imports without one.

    `now` are the slug and name of each template in `imports`, if the caller has read it.
    """
    found: dict[str, set[str]] = defaultdict(set)
    if IMPORTS not in dataset.ours:
        return found
    present = _templates_in(connection, dataset, IMPORTS) if now is None else now
    past = _templates_in(connection, dataset, history_of(dataset.columns, IMPORTS))
    for slug, name in (*present, *past):
        found[slug or ""].update(() if name is None else (name,))
    return found


def current_names_of_templates(connection: Connection, dataset: Dataset) -> dict[str, set[str]]:
    """Return the names that each template of an import that exists has, by its slug; '' for imports without one."""
    found: dict[str, set[str]] = defaultdict(set)
    if IMPORTS in dataset.ours:
        live = f" WHERE {connection.column('_deleted_at')} IS NULL"
        for slug, name in _templates_in(connection, dataset, IMPORTS, live):
            found[slug or ""].update(() if name is None else (name,))
    return found


def _templates_in(
    connection: Connection, dataset: Dataset, table: str, where: str = ""
) -> list[tuple[str | None, str | None]]:
    if not {"template__slug", "template__name"} <= dataset.columns.get(table, {}).keys():
        return []
    sql = f"SELECT DISTINCT template__slug AS slug, template__name AS name FROM {connection.name(table)}{where}"
    rows = connection.query(sql).to_pylist()
    return [(row["slug"], None if row["name"] is None else composed(row["name"])) for row in rows]


def set_aside_columns(column: str, history: Collection[str], table: Collection[str]) -> list[str]:
    """Return the columns of a history table with values of a field for which the table has no such column."""
    variants = (name for name in history if name.startswith(f"{column}__") and name not in table)
    return [name for name in variants if _ASIDE.fullmatch(name, len(column))]


def is_of_earlier_type(column: str, variant: str) -> bool:
    """Return whether this variant of a column has the values that versions had before a rebuild changed its type."""
    return _EARLIER.fullmatch(variant, len(column)) is not None


def align(connection: Connection, each: Versioned, there: Mapping[str, str] | None) -> bool:
    """Create the history table, and return True; or add the columns and types that the table has now.

    `there` are its columns.
    """
    if there is None:
        connection.make_like(each.history, each.table, each.columns, _OWN_TYPES)
        if connection.traits.indexes:
            for key in dict.fromkeys((each.key, each.import_key)):
                connection.adapter.index(connection.client, each.history, key)
        return True
    unrestored = _unrestored(there, each)
    retyped, lacking = retype(connection, each)
    # where the table was replaced already, a text beside a column of JSON may be JSON or not
    restore_values(connection, each, dict.fromkeys([*retyped, *unrestored]), {*unrestored} - {*retyped})
    # a new one has no value yet; rules are never copied without the values that are under them
    lost = [c for c in lacking if c != RULES_COLUMN]
    if retyped or lost:
        refresh_open(connection, each, None if retyped else lost)
    return False


def retype(connection: Connection, each: Versioned) -> tuple[list[str], list[str]]:
    """Set the values of another type than the table's aside, and add the columns that are missing; return both.

    If the process dies between two of these statements, a column is missing, and its values are set aside: it counts as
    retyped too.
    """
    history, column = connection.name(each.history), connection.column
    have, want = connection.declared(each.history), connection.declared(each.table)
    want = {c: kind for c, kind in want.items() if c in each.columns}
    lacking = [c for c in want if c not in have]
    retyped = [c for c in want if c in have and have[c] != want[c]]
    check_room(connection, each, len(lacking) + len(retyped))
    for new in lacking:
        connection.execute(f"ALTER TABLE {history} ADD COLUMN {column(new)} {want[new]}")
    for base in retyped:
        aside = next(n for n in (f"{base}{EARLIER_VARIANT}{k}" for k in count(0)) if n not in have and n not in want)
        connection.execute(f"ALTER TABLE {history} RENAME COLUMN {column(base)} TO {column(aside)}")
        connection.execute(f"ALTER TABLE {history} ADD COLUMN {column(base)} {want[base]}")
    return [*retyped, *(c for c in lacking if any(is_of_earlier_type(c, n) for n in have if n.startswith(c)))], lacking


def check_room(connection: Connection, each: Versioned, more: int) -> None:
    """Raise ConfigError if the history table cannot have so many more columns.

    Altered in part, it would stop each run from then on.
    """
    from connector.transform.row_limits import LIMITS  # which loads what commands that only ask do not need

    limits = LIMITS.get(connection.traits.dialect)
    if limits is None or not more:
        return
    count = connection.counted_columns(each.history) + more
    if count > limits.columns:
        raise ConfigError(
            f"{each.history} would have {count} columns, because it keeps what was there before a rebuild, and "
            f"{limits.destination} allows {limits.columns}. Rename it, and the next run begins another one; the "
            "versions so far were not changed."
        )


def restore_values(connection: Connection, each: Versioned, columns: Iterable[str], json: Collection[str] = ()) -> None:
    """Move values that were set aside back into these columns if they convert unaltered; `json` are columns of JSON."""
    have, want = connection.declared(each.history), connection.declared(each.table)
    history, column = connection.name(each.history), connection.column
    for base in columns:
        if asides := {c: have[c] for c in set_aside_columns(base, have, want)}:
            beside = [c for c in (f"{base}{TEXT_VARIANT}", f"{base}{DOUBLE_VARIANT}") if c in have]
            _restore_values(connection, each, base, want[base], asides, beside, is_json=base in json)
        done = f"{base}{_UNRESTORED}"
        if done in asides and done in (left := connection.declared(each.history)):
            kept = next(n for n in (f"{base}{EARLIER_VARIANT}{k}" for k in count(1)) if n not in left and n not in want)
            connection.execute(f"ALTER TABLE {history} RENAME COLUMN {column(done)} TO {column(kept)}")


def _restore_values(
    connection: Connection,
    each: Versioned,
    base: str,
    kind: str,
    asides: Mapping[str, str],
    beside: Collection[str],
    *,
    is_json: bool,
) -> None:
    """Move values that were set aside back into one column, of this type; drop columns then empty.

    What a version held in an earlier type comes before what did not fit a later one, which is the same value. A text in
    one of the columns `beside` may have been a text or the JSON of a list, an object or another value, so it goes into
    a column of texts alone, and only if it cannot be a list or an object.
    """
    history, column = connection.name(each.history), connection.column(base)
    unrestored = f"{base}{_UNRESTORED}"  # the last of the earlier types, as dropping it says that all are restored
    for name, was in sorted(asides.items(), key=lambda i: (not is_of_earlier_type(base, i[0]), i[0] == unrestored)):
        aside, is_text = connection.column(name), name == f"{base}{TEXT_VARIANT}"
        restored = None if is_text and (was != kind or is_json) else connection.sql.restored(aside, was, kind)
        if restored is not None:
            value, held = restored
            if is_text:
                held += f" AND {aside} NOT LIKE '[%' AND {aside} NOT LIKE '{{%'"
            emptied = [aside, *(map(connection.column, beside) if is_of_earlier_type(base, name) else ())]
            try:
                connection.execute(
                    f"UPDATE {history} SET {column} = {value}, {', '.join(f'{c} = NULL' for c in emptied)} "
                    f"WHERE {column} IS NULL AND {aside} IS NOT NULL AND {held}"
                )
            except Exception as error:  # PostgreSQL, MySQL: one of them cannot be cast
                from connector.warehouse.failures import may_pass  # which commands that only ask do not need

                if may_pass(error):
                    raise
        if not connection.query(f"SELECT 1 FROM {history} WHERE {aside} IS NOT NULL LIMIT 1").num_rows:
            with suppress(Exception):  # a view of the user reads it
                connection.execute(f"ALTER TABLE {history} DROP COLUMN {aside}")


def same_content(connection: Connection, each: Versioned) -> str:
    """Return SQL for a row (`R`) that equals the version (`V`); a join by its key, which is never null.

    A version with a value that is set aside differs: the row had it before a rebuild, and a rebuild empties it in the
    open versions of unchanged rows.
    """
    column, there = connection.column, connection.columns()[each.history]
    content = [connection.sql.same(f"{R}.{column(c)}", f"{V}.{column(c)}") for c in each.content]
    aside = sorted({name for c in each.content for name in set_aside_columns(c, there, each.columns)})
    empty = [f"{V}.{column(name)} IS NULL" for name in aside]
    return all_of([f"{R}.{column(each.key)} = {V}.{column(each.key)}", *content, *empty])


def recorded_mark(connection: Connection, kind: str = "") -> str:
    """Return SQL for the mark of a recorded import in the ledger: its load.

    `kind` is `PAUSED` if it is recorded only once its table is, or `MOVED`; in neither are versions of what is erased.
    """
    load = connection.column(LOAD_ID)
    return connection.sql.joined(f"'{kind}'", load) if kind else load


def is_unlike(connection: Connection, *kinds: str) -> str:
    """Return a condition on the ledger: the import has none of these kinds of marks for its load ('': recorded)."""
    unlike = (connection.sql.differs("history", recorded_mark(connection, kind)) for kind in kinds)
    return f"({' AND '.join(unlike)})"


def record_again(connection: Connection, dataset: Dataset, imports: Sequence[str]) -> None:
    """Make the imports that these SELECTs of one column return due to be recorded by the next run.

    SQLite takes no more than 500 SELECTs at once.
    """
    columns = dataset.columns[LEDGER]
    if "history" not in columns:
        return
    recorded = f"NOT {is_unlike(connection, '', MOVED)}"
    for select in imports:
        connection.execute(
            f"UPDATE {connection.name(LEDGER)} SET history = NULL WHERE {recorded} AND slug IN ({select})"
        )


def refresh_open(
    connection: Connection,
    each: Versioned,
    only: Collection[str] | None = None,
    unchanged: pa.ChunkedArray[Any] | None = None,
) -> None:
    """Update the open versions of recorded imports to the values in the table, which are the same data.

    With `only`, update only these columns; with `unchanged`, update the versions of these records too.
    """
    columns = connection.columns()
    names = [c for c in only or each.columns if c not in (each.key, each.import_key)]
    there = columns[each.history]
    emptied = [name for base in names for name in set_aside_columns(base, there, each.columns)]
    unmoved = f"{V}.{connection.column(each.import_key)} = {R}.{connection.column(each.import_key)}"
    same = f"{unmoved} AND {is_recorded(connection, each)}"
    if unchanged is None or not len(unchanged):
        copy_to_open(connection, each, names, same, emptied)
        return
    with connection.relations({_UNCHANGED: unchanged}):
        equal = f"{R}.{connection.column(each.key)} IN (SELECT slug FROM {_UNCHANGED})"
        copy_to_open(connection, each, names, f"({same} OR {unmoved} AND {equal})", emptied)


def is_recorded(connection: Connection, each: Versioned) -> str:
    """Return SQL for whether a row (`R`) is what its open version (`V`) was made of: its import is recorded.

    A row of a load that died is not, even if the load before is recorded, and neither is a row of `imports` that was
    listed since: its version names the load that it is equal to.
    """
    load = connection.column(LOAD_ID)
    of_load = f" AND {V if each.table == IMPORTS else _LEDGER}.{load} = {R}.{load}"
    return (
        f"EXISTS (SELECT 1 FROM {connection.name(LEDGER)} AS {_LEDGER} "
        f"WHERE {_LEDGER}.slug = {R}.{connection.column(each.import_key)}{of_load} "
        f"AND NOT {is_unlike(connection, '', MOVED)})"
    )


def copy_to_open(
    connection: Connection, each: Versioned, names: Sequence[str], where: str, emptied: Sequence[str]
) -> None:
    """Copy columns of the live rows (`R`) for which `where` holds to open versions (`V`), and empty others there.

    A version is paired with the row of its record, which may have moved to another import since. A deleted row that is
    kept may have values that a privacy rule covers since.
    """
    if not names:
        return
    column = connection.column
    new = {column(c): f"{R}.{column(c)}" for c in names} | {column(c): "NULL" for c in emptied}
    paired = f"{V}.{column(each.key)} = {R}.{column(each.key)}"
    connection.execute(
        connection.sql.update_from(
            connection.name(each.history),
            V,
            new,
            f"{connection.name(each.table)} AS {R}",
            f"{paired} AND {V}.{column(VALID_TO)} IS NULL AND {R}.{column('_deleted_at')} IS NULL AND {where}",
        )
    )


def is_aligned(dataset: Dataset, each: Versioned) -> bool:
    """Return whether the versions have every column of the table, with its type and with what was set aside."""
    there = dataset.columns[each.history]
    alike = all(there.get(name) == dataset.columns[each.table][name] for name in each.columns)
    return alike and not _unrestored(there, each)


def _unrestored(there: Collection[str], each: Versioned) -> list[str]:
    """Return the columns whose values were set aside by a rebuild that died before it had restored them."""
    aside = {f"{name}{_UNRESTORED}": name for name in each.columns}
    return [name for column, name in aside.items() if column in there and column not in each.columns]
