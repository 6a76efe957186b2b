"""Every version of a row (docs/history.md): what each run changes in the tables is kept beside them.

Invariant: after a run that recorded, the open versions (`_valid_to` null) are the live rows of the table, each once;
versions of a record never overlap, and none is made where its data, its import and its place are the same.

Versions are made after the packages are loaded, by comparing the rows of the imports that were loaded since with the
open versions, in one transaction that notes in the ledger which load of an import is recorded. So a run that died
before is caught up with by the next one, and what is recorded twice adds nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import count

from connector.warehouse.connection import Connection
from connector.warehouse.ownership import Dataset, take_stock
from connector.warehouse.tables import IMPORTS, LEDGER, LOAD_ID, keys_of

VALID_FROM, VALID_TO, CHANGE, RUN_ID = "_valid_from", "_valid_to", "_change", "_run_id"
OWN = (VALID_FROM, VALID_TO, CHANGE, RUN_ID)
_TOLD = ("_created_at", "_updated_at", LOAD_ID)
# Temporary tables: keys that are alive nowhere any more, and imports whose rows may differ from their open versions.
_ERASED, _TOUCHED = "importer_erased", "importer_touched"


@dataclass(frozen=True, slots=True)
class Versioned:
    """A table and the one with its versions; `told` are columns that change without a new version."""

    table: str
    history: str
    key: str
    import_key: str
    told: frozenset[str]
    columns: tuple[str, ...]

    @property
    def content(self) -> tuple[str, ...]:
        return tuple(c for c in self.columns if c not in self.told and c not in (self.key, "_deleted_at"))


Choice = Callable[[str | None, Collection[str]], bool]  # a template's slug and names → whether its rows are kept


def versioned(connection: Connection, dataset: Dataset, wanted: Choice) -> list[Versioned]:
    """Return the tables whose versions are to be kept: `imports`, and the typed ones of the templates `wanted`."""
    names = _names_of_templates(connection, dataset)
    slugs = {table: dataset.templates.get(table) for table in sorted(dataset.typed)}
    tables = [table for table, slug in slugs.items() if wanted(slug, names.get(slug or "", ()))]
    found = [_versioned(dataset, table, keys_of(table), set(_TOLD)) for table in tables]
    if IMPORTS in dataset.ours:
        found.insert(0, _versioned(dataset, IMPORTS, ("slug", "slug"), {"_content_hash", LOAD_ID}))
    return found


def _versioned(dataset: Dataset, table: str, keys: tuple[str, str], told: set[str]) -> Versioned:
    columns = tuple(dataset.columns[table])
    return Versioned(table, history_of(dataset.columns, table), *keys, frozenset(told), columns)


def history_of(columns: Mapping[str, Mapping[str, str]], table: str) -> str:
    """Return the name of the table with the versions: another one where somebody else's has the first."""
    names = (f"{table}_history" if n == 1 else f"{table}_history_{n}" for n in count(1))
    key = "slug" if table == IMPORTS else keys_of(table)[0]
    return next(name for name in names if name not in columns or {key, *OWN} <= columns[name].keys())


def histories(dataset: Dataset) -> dict[str, str]:
    """Return table → its versions, for each that has some."""
    tables = [*sorted(dataset.typed), *([IMPORTS] if IMPORTS in dataset.ours else [])]
    named = {table: history_of(dataset.columns, table) for table in tables}
    return {table: history for table, history in named.items() if history in dataset.columns}


def _names_of_templates(connection: Connection, dataset: Dataset) -> dict[str, set[str]]:
    """Return the names that each template has or had, by its slug; '' for imports without one."""
    found: dict[str, set[str]] = defaultdict(set)
    if IMPORTS in dataset.ours:
        sql = f"SELECT DISTINCT template__slug AS slug, template__name AS name FROM {connection.name(IMPORTS)}"
        for row in connection.query(sql).to_pylist():
            found[row["slug"] or ""] |= {row["name"]} - {None}
    return found


def record(
    connection: Connection,
    dataset: Dataset,
    wanted: Choice,
    *,
    started_at: datetime,
    run_id: str,
    keeps: bool,
) -> None:
    """Make the versions of what was loaded since this was done last.

    With `keeps`, a version says that a row was deleted; without, the versions of what is gone for good go as well.
    """
    connection.execute(f"ALTER TABLE {connection.name(LEDGER)} ADD COLUMN IF NOT EXISTS history TEXT")
    tables = versioned(connection, dataset, wanted)
    new = {each.table: each for each in tables if _align(connection, each, dataset.columns.get(each.history))}
    _analyze(connection, list(new))
    with connection.client.begin_transaction():
        for each in tables:
            _Recorder(connection, each, started_at, run_id, each.table in new).record(keeps=keeps)
        if not keeps:
            _erase(connection, tables, sorted(dataset.typed), started_at)
        ledger = connection.name(LEDGER)
        connection.execute(f"UPDATE {ledger} SET history = {_load(connection)} WHERE {_due(connection)}")
    _analyze(connection, [each.history for each in new.values()])


def _analyze(connection: Connection, tables: Sequence[str], *, temporary: bool = False) -> None:
    """Have PostgreSQL count rows now that it would count some time later: it plans by what it knows of them."""
    for table in tables if connection.is_postgres else ():
        connection.execute(f"ANALYZE {table if temporary else connection.name(table)}")


def _load(connection: Connection) -> str:
    return connection.column(LOAD_ID)


def _same(connection: Connection, each: Versioned) -> str:
    """SQL for a row t that is the version h; a join by its key, which is never null."""
    column = connection.column
    content = (f"t.{column(c)} IS NOT DISTINCT FROM h.{column(c)}" for c in each.content)
    return " AND ".join([f"t.{column(each.key)} = h.{column(each.key)}", *content])


def _due(connection: Connection) -> str:
    return f"history IS DISTINCT FROM {_load(connection)}"


def _imports_due(connection: Connection, history: str, columns: Iterable[str]) -> str:
    """SQL for the imports whose row is not their open version: a load brought it, or a lost column was made whole."""
    name, column = connection.name, connection.column
    gone = column("_deleted_at")
    unlike = (f"o.{column(c)} IS DISTINCT FROM i.{column(c)}" for c in columns if c not in ("slug", "_deleted_at"))
    return (
        f"SELECT i.slug FROM {name(IMPORTS)} AS i LEFT JOIN {name(history)} AS o "
        f"ON o.slug = i.slug AND o.{column(VALID_TO)} IS NULL WHERE (i.{gone} IS NULL OR o.slug IS NOT NULL) "
        f"AND (o.slug IS NULL OR i.{gone} IS NOT NULL OR {' OR '.join(unlike)})"
    )


def is_due(connection: Connection, taken: Container[str], typed: Iterable[str]) -> bool:
    """Whether a table has no versions yet, or `imports` has rows that came with a run which died before it recorded.

    `taken` are the names that are not those of our tables, `typed` the tables whose versions are kept.
    """
    names = [f"{table}_history" for table in (IMPORTS, *typed)]
    if not all(name in taken for name in names):
        return True
    columns = connection.columns()
    there, wanted = columns.get(names[0], {}).keys(), columns.get(IMPORTS, {}).keys()
    if not {*OWN, *wanted} <= there:
        return True
    return connection.query(f"{_imports_due(connection, names[0], wanted)} LIMIT 1").num_rows > 0


@dataclass(frozen=True, slots=True)
class _Recorder:
    connection: Connection
    each: Versioned
    started_at: datetime
    run_id: str
    new: bool  # there are no versions yet, whatever the ledger says: begun with this run, or lost

    def record(self, *, keeps: bool) -> None:
        name, column, each = self.connection.name, self.connection.column, self.each
        table, history = name(each.table), name(each.history)
        key, imported = column(each.key), column(each.import_key)
        same = _same(self.connection, each)
        alive = f"SELECT 1 FROM {table} AS t WHERE {same} AND t.{column('_deleted_at')} IS NULL"
        touched = f"SELECT slug FROM {_TOUCHED}"
        self.connection.execute(f"DROP TABLE IF EXISTS {_TOUCHED}")
        self.connection.execute(f"CREATE TEMPORARY TABLE {_TOUCHED} AS {self._touched()}")
        _analyze(self.connection, [_TOUCHED], temporary=True)
        # one set of keys, which PostgreSQL can hash or look up; of an OR of two it would go through both for each row
        keys = (
            f"SELECT {key} FROM {table} WHERE {imported} IN ({touched}) UNION ALL "
            f"SELECT {key} FROM {history} WHERE {column(VALID_TO)} IS NULL AND {imported} IN ({touched})"
        )
        outdated = f"h.{column(VALID_TO)} IS NULL AND h.{key} IN ({keys}) AND NOT EXISTS ({alive})"
        opened = column(VALID_FROM)
        self.connection.execute(f"DELETE FROM {history} AS h WHERE h.{opened} = %s AND {outdated}", self.started_at)
        self.connection.execute(f"UPDATE {history} AS h SET {column(VALID_TO)} = %s WHERE {outdated}", self.started_at)
        names = ", ".join(column(c) for c in each.columns)
        closed_now = f"h.{key} = t.{key} AND h.{column(VALID_TO)} = %s"
        self.connection.execute(
            f"INSERT INTO {history} ({names}, {', '.join(map(column, OWN))}) "
            f"SELECT {', '.join(f't.{column(c)}' for c in each.columns)}, %s, NULL, "
            f"CASE WHEN EXISTS (SELECT 1 FROM {history} AS h WHERE {closed_now}) THEN 'update' ELSE 'insert' END, %s "
            f"FROM {table} AS t WHERE t.{column('_deleted_at')} IS NULL AND t.{imported} IN ({touched}) "
            f"AND NOT EXISTS (SELECT 1 FROM {history} AS h WHERE h.{key} = t.{key} AND h.{column(VALID_TO)} IS NULL)",
            self.started_at,
            self.started_at,
            self.run_id,
        )
        if keeps:
            self._note_deletions(names)
        # the load of a version is the one that brought it; of `imports` it is by that that a row is known to be read
        told = sorted((each.told if each.table == IMPORTS else each.told - {LOAD_ID}) & set(each.columns))
        new = ", ".join(f"{column(c)} = t.{column(c)}" for c in told)
        changed = " OR ".join(f"h.{column(c)} IS DISTINCT FROM t.{column(c)}" for c in told)
        self.connection.execute(
            f"UPDATE {history} AS h SET {new} FROM {table} AS t WHERE h.{key} = t.{key} "
            f"AND h.{column(VALID_TO)} IS NULL AND t.{imported} IN ({touched}) AND ({changed})"
        )

    def _touched(self) -> str:
        """SQL for the slugs of the imports whose rows may differ from their open versions."""
        name, column, each = self.connection.name, self.connection.column, self.each
        if each.table != IMPORTS and self.new:
            return f"SELECT DISTINCT {column(each.import_key)} AS slug FROM {name(each.table)}"
        if each.table != IMPORTS:
            return f"SELECT slug FROM {name(LEDGER)} WHERE {_due(self.connection)}"
        return _imports_due(self.connection, each.history, each.columns)

    def _note_deletions(self, names: str) -> None:
        """A version of no length for each record that is gone, so that its deletion is seen and no moment shows it."""
        name, column, each = self.connection.name, self.connection.column, self.each
        history, key = name(each.history), column(each.key)
        started, ended = column(VALID_FROM), column(VALID_TO)
        self.connection.execute(
            f"INSERT INTO {history} ({names}, {', '.join(map(column, OWN))}) "
            f"SELECT {', '.join(f'h.{column(c)}' for c in each.columns)}, h.{ended}, h.{ended}, 'delete', %s "
            f"FROM {history} AS h WHERE h.{ended} = %s AND h.{started} < h.{ended} AND NOT EXISTS (SELECT 1 "
            f"FROM {history} AS o WHERE o.{key} = h.{key} AND (o.{ended} IS NULL OR o.{started} = h.{ended}))",
            self.run_id,
            self.started_at,
        )


def _erase(connection: Connection, tables: Sequence[Versioned], typed: Sequence[str], started_at: datetime) -> None:
    """Delete all versions of what was closed now and is alive in none of the tables that hold records, or imports."""
    name, column = connection.name, connection.column
    for of_imports in (True, False):
        some = [each for each in tables if (each.table == IMPORTS) == of_imports]
        live = [IMPORTS] if of_imports else typed
        if not some:
            continue
        closed = " UNION ".join(
            f"SELECT {column(e.key)} AS k FROM {name(e.history)} WHERE {column(VALID_TO)} = %s" for e in some
        )
        alive = " AND ".join(
            f"NOT EXISTS (SELECT 1 FROM {name(t)} AS t WHERE t.{column(some[0].key)} = c.k "
            f"AND t.{column('_deleted_at')} IS NULL)"
            for t in live
        )
        connection.execute(f"DROP TABLE IF EXISTS {_ERASED}")
        connection.execute(
            f"CREATE TEMPORARY TABLE {_ERASED} AS SELECT c.k FROM ({closed}) AS c WHERE {alive}",
            *[started_at] * len(some),
        )
        for each in some:
            connection.execute(
                f"DELETE FROM {name(each.history)} WHERE {column(each.key)} IN (SELECT k FROM {_ERASED})"
            )
        connection.execute(f"DROP TABLE {_ERASED}")


# -- the tables themselves ---------------------------------------------------------------------------------------------


def _align(connection: Connection, each: Versioned, there: Mapping[str, str] | None) -> bool:
    """Make the table with the versions, and return True, or give it the columns and types that its table has by now."""
    name, column = connection.name, connection.column
    history = name(each.history)
    if there is None:
        times = f"CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS {column(VALID_FROM)}"
        times += f", CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS {column(VALID_TO)}"
        texts = f"CAST(NULL AS TEXT) AS {column(CHANGE)}, CAST(NULL AS TEXT) AS {column(RUN_ID)}"
        connection.execute(
            f"CREATE TABLE {history} AS SELECT t.*, {times}, {texts} FROM {name(each.table)} AS t WHERE 1 = 0"
        )
        if connection.is_postgres:
            for key in dict.fromkeys((each.key, each.import_key)):
                connection.execute(f"CREATE INDEX ON {history} ({column(key)})")
        return True
    have, want = connection.declared(each.history), connection.declared(each.table)
    for lacking in [c for c in each.columns if c not in have]:
        connection.execute(f"ALTER TABLE {history} ADD COLUMN {column(lacking)} {want[lacking]}")
    changed = [c for c in each.columns if c in have and have[c] != want[c]]
    for retyped in changed:
        _retype(connection, each, retyped, want[retyped])
    if changed:
        refresh_open(connection, each)
    return False


def _retype(connection: Connection, each: Versioned, name: str, kind: str) -> None:
    """Give a column the type that a rebuild gave it; values of old versions that do not fit it stay beside it."""
    history, column = connection.name(each.history), connection.column(name)
    try:
        connection.execute(f"ALTER TABLE {history} ALTER COLUMN {column} TYPE {kind} USING CAST({column} AS {kind})")
    except Exception:
        columns = connection.columns()[each.history]
        aside = next(n for n in (f"{name}__was_{k}" for k in count(1)) if n not in columns)
        connection.execute(f"ALTER TABLE {history} RENAME COLUMN {column} TO {connection.column(aside)}")
        connection.execute(f"ALTER TABLE {history} ADD COLUMN {column} {kind}")


def refresh_open(connection: Connection, each: Versioned) -> None:
    """Write the values of the open versions as the table has them now: a rebuild writes the same data otherwise."""
    column = connection.column
    new = ", ".join(f"{column(c)} = t.{column(c)}" for c in each.columns if c not in (each.key, each.import_key))
    recorded = f"SELECT slug FROM {connection.name(LEDGER)} WHERE history IS NOT DISTINCT FROM {_load(connection)}"
    connection.execute(
        f"UPDATE {connection.name(each.history)} AS h SET {new} FROM {connection.name(each.table)} AS t "
        f"WHERE h.{column(each.key)} = t.{column(each.key)} AND h.{column(each.import_key)} = "
        f"t.{column(each.import_key)} AND h.{column(VALID_TO)} IS NULL AND t.{column(each.import_key)} IN ({recorded})"
    )


def follow_rebuild(connection: Connection, table: str) -> None:
    """Give the versions of a table that was rebuilt its types, and the open ones its values: no data changed."""
    dataset = take_stock(connection)
    history = histories(dataset).get(table)
    if history is not None:
        each = _versioned(dataset, table, keys_of(table), set(_TOLD))
        _align(connection, each, dataset.columns[history])
        refresh_open(connection, each)


def disagreeing(connection: Connection, wanted: Choice) -> dict[str, int]:
    """Return table of versions → rows without an open version equal to them, and open versions without a row.

    Nothing is compared while a run has yet to record what another one loaded.
    """
    dataset = take_stock(connection)
    if LEDGER not in dataset.ours or "history" not in dataset.columns[LEDGER]:
        return {}
    due = connection.query(f"SELECT 1 FROM {connection.name(LEDGER)} WHERE {_due(connection)} LIMIT 1").num_rows
    tables = [each for each in versioned(connection, dataset, wanted) if each.history in dataset.columns]
    return {} if due else {each.history: n for each in tables if (n := _differing(connection, each))}


def _differing(connection: Connection, each: Versioned) -> int:
    name, column = connection.name, connection.column
    same = _same(connection, each)
    live, is_open = f"t.{column('_deleted_at')} IS NULL", f"h.{column(VALID_TO)} IS NULL"
    rows = connection.query(
        f"SELECT (SELECT count(*) FROM {name(each.table)} AS t WHERE {live} AND NOT EXISTS "
        f"(SELECT 1 FROM {name(each.history)} AS h WHERE {is_open} AND {same})) AS missing, "
        f"(SELECT count(*) FROM {name(each.history)} AS h WHERE {is_open} AND NOT EXISTS "
        f"(SELECT 1 FROM {name(each.table)} AS t WHERE {live} AND {same})) AS surplus"
    ).to_pylist()[0]
    return int(rows["missing"]) + int(rows["surplus"])
