"""Find the versions that wait for their rows, because what differs between them is not what was edited.

Invariant: a version ends only if its import was read, into its table, under the privacy rules of now, and nothing of
that was lost since. A row that was read while `typed` was false is not in its table; one that was read under other
rules is there with other values; and of rows that a user removed, or columns, the ledger or the row says that they are
to be read again. A later run does.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from connector.ledger import Due, State
from connector.warehouse.adapters.dialect import any_of, literal
from connector.warehouse.connection import Connection
from connector.warehouse.history_tables import VALID_TO, R, V, Versioned
from connector.warehouse.ledger_table import DUE
from connector.warehouse.ownership import Dataset
from connector.warehouse.ruled_versions import is_under_others
from connector.warehouse.tables import IMPORTS, LEDGER, RECORDS

# Temporary tables: keys of versions that wait; the imports of versions that would end; those with too few rows.
_WAITING, _ENDING, _COUNTED, _LACKING = "importer_waiting", "importer_ending", "importer_counted", "importer_lacking"


@dataclass(frozen=True, slots=True)
class Waiting:
    """The versions of a table of records that wait for their rows; what differs is told once these are read again.

    `keys` are temporary tables of records, `imports` SQL for the imports that stay due.
    """

    keys: Sequence[str] = ()
    imports: Sequence[str] = ()


def gather_waiting(
    connection: Connection,
    dataset: Dataset,
    each: Versioned,
    number: int,
    *,
    run_id: str,
    outdated: str,
    raw: bool,
    unread: str,
) -> Waiting:
    """Gather, in temporary tables with this `number`, the keys of those versions that wait among the `outdated` ones.

    `run_id` is the run that records, `raw` what `has_raw_imports` returns, and `unread` what `awaits_reading` does.
    """
    if not connection.query(f"SELECT 1 FROM {outdated} LIMIT 1").num_rows:
        return Waiting()
    name, column = connection.name, connection.column
    key, imported, still = column(each.key), column(each.import_key), f"{V}.{column(VALID_TO)} IS NULL"
    versions = f"FROM {name(each.history)} AS {V} WHERE {still} AND {V}.{key} IN (SELECT k FROM"
    keys, imports = [], []

    def gather(of: str, select: str) -> str:
        keys.append(f"{_WAITING}_{of}_{number}")
        connection.gather(keys[-1], select)
        imports.append(f"SELECT DISTINCT {V}.{imported} AS k {versions} {keys[-1]})")
        return keys[-1]

    if raw:
        gather("raw", _raw_records(connection, each))
    live = f"{R}.{column('_deleted_at')} IS NULL"
    rows = f"FROM {name(each.table)} AS {R} WHERE {live} AND {unread} AND {R}.{key} IN (SELECT k FROM"
    found = gather("unread", f"SELECT {R}.{key} AS k {rows} {outdated})")
    imports.append(f"SELECT DISTINCT {R}.{imported} AS k {rows} {found})")
    connection.gather(_ENDING, f"SELECT DISTINCT {V}.{imported} AS k {versions} {outdated})")
    if _gather_lacking(connection, dataset, each, run_id):
        none = f"NOT EXISTS (SELECT 1 FROM {name(each.table)} AS {R} WHERE {R}.{key} = {V}.{key} AND {live})"
        lacking = f"{V}.{imported} IN (SELECT k FROM {_LACKING})"
        gather("lost", f"SELECT DISTINCT {V}.{key} AS k {versions} {outdated}) AND {lacking} AND {none}")
    return Waiting(keys, imports)


def _gather_lacking(connection: Connection, dataset: Dataset, each: Versioned, run_id: str) -> bool:
    """Gather those of the imports in `_ENDING` that may lack rows; return whether there are any.

    That is so if an import could not be read, or has fewer rows than the ledger says: in the table `each`, or only in
    `records` if it was read while `typed` was false. An import that this run read lacks none; it has fewer if a record
    of it came with another import, too.
    """
    name, column, gone = connection.name, connection.column, f"{connection.column('_deleted_at')} IS NULL"
    read = f"COALESCE(run_id, '') = {literal(run_id)} AND state IN ('{State.synced}', '{State.unreconciled}')"
    ledger = (
        f"FROM {name(LEDGER)} WHERE slug IN (SELECT k FROM {_ENDING}) AND state <> '{State.deleted}' AND NOT ({read})"
    )
    connection.gather(_COUNTED, f"SELECT k FROM {_ENDING}")  # MySQL reads a temporary table once in a statement
    # what the ledger says of one that is yet to be read may be lost, too
    lacking = [f"SELECT slug AS k {ledger} AND (state = '{State.failed}' OR {DUE} = '{Due.torn}')"]
    for table, imported, of in (
        (each.table, column(each.import_key), f"table_name = {literal(each.table)}"),
        (RECORDS, "import_slug", "table_name IS NULL"),
    ):
        wanted = f"SELECT slug AS k, records_loaded AS n {ledger} AND {of}"
        rows = f"FROM {name(table)} WHERE {gone} AND {imported} IN (SELECT k FROM {_COUNTED}) GROUP BY {imported}"
        counted = f" UNION ALL SELECT {imported}, -count(*) {rows}" if table in dataset.ours else ""
        lacking.append(f"SELECT g.k FROM ({wanted}{counted}) AS g GROUP BY g.k HAVING sum(g.n) > 0")
    connection.gather(_LACKING, *lacking)
    return connection.query(f"SELECT 1 FROM {_LACKING} LIMIT 1").num_rows > 0


def awaits_reading(connection: Connection, each: Versioned, rules: Collection[str | None]) -> str:
    """Return a condition: the row (`R`) was read under other rules, or lost values; it is to be read or written again.

    It differs from its version (`V`) by more than what was edited. `rules` are the fingerprints of those of now.
    """
    column, conditions = connection.column, []
    imports = f"SELECT slug FROM {connection.name(LEDGER)} WHERE"
    if each.table != IMPORTS:
        conditions.append(f"{R}.{column(each.import_key)} IN ({imports} {DUE} = '{Due.torn}')")
    if each.table == IMPORTS and "_content_hash" in each.columns:
        conditions.append(f"{R}.{column('_content_hash')} IS NULL")
    if each.table == IMPORTS and "records_metadata" in each.columns:  # which comes with the records
        lost, kept = (f"{alias}.{column('records_metadata')} IS" for alias in (R, V))
        unread = f"{imports} {DUE} IN ('{Due.torn}', '{Due.lost}') OR state = '{State.excluded}'"
        conditions.append(f"({lost} NULL AND {kept} NOT NULL AND {R}.slug IN ({unread}))")
    if (others := is_under_others(connection, each, rules)) is not None:
        conditions.append(others)
    return any_of(conditions) if conditions else "(1 = 0)"


def has_raw_imports(connection: Connection, dataset: Dataset) -> bool:
    """Return whether imports have their records only in `records`."""
    raw = f"SELECT 1 {_raw_imports(connection)} LIMIT 1"
    return RECORDS in dataset.ours and connection.query(raw).num_rows > 0


def _raw_imports(connection: Connection) -> str:
    """Return FROM and WHERE for the imports that were read last while `typed` was false."""
    return f"FROM {connection.name(LEDGER)} WHERE table_name IS NULL AND records_loaded > 0"


def _raw_records(connection: Connection, each: Versioned) -> str:
    """Return SQL for the records that are not in a table, and in `records` came with one of these imports."""
    name, column, gone = connection.name, connection.column, connection.column("_deleted_at")
    return (
        f"SELECT g.k FROM (SELECT slug AS k, 1 AS is_raw FROM {name(RECORDS)} "
        f"WHERE import_slug IN (SELECT slug {_raw_imports(connection)}) AND {gone} IS NULL "
        f"UNION ALL SELECT {column(each.key)}, 0 FROM {name(each.table)} WHERE {gone} IS NULL) AS g "
        "GROUP BY g.k HAVING MIN(g.is_raw) = 1"
    )
