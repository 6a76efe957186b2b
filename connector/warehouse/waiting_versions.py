"""Find the versions that wait for their rows, because what differs between them is not what was edited.

A row that was read while `typed` was false is not in its table; one that was read under other privacy rules than those
of now is there with other values. A later run reads both again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from connector.warehouse.adapters.dialect import literal
from connector.warehouse.connection import Connection
from connector.warehouse.history_tables import VALID_TO, R, Versioned
from connector.warehouse.ownership import Dataset
from connector.warehouse.ruled_versions import Rules, awaits_reading
from connector.warehouse.tables import IMPORTS, LEDGER, RECORDS

# Temporary tables: keys of records that are only in `records`; keys of rows under other rules than those of now.
_RAW, _UNREAD = "importer_raw", "importer_unread"


@dataclass(frozen=True, slots=True)
class Waiting:
    """The versions of a table that wait for their rows, which a later run will read; what differs is told then.

    `keys` are temporary tables of records, `imports` SQL for the imports that stay due. `unread` is a condition: the
    row (`R`) is of such a record.
    """

    keys: Sequence[str] = ()
    imports: Sequence[str] = ()
    unread: str | None = None


def gather_waiting(
    connection: Connection,
    dataset: Dataset,
    each: Versioned,
    number: int,
    *,
    due: str,
    raw: bool,
    rules: Rules | None,
) -> Waiting:
    """Gather the keys of the versions of a table that wait, in temporary tables with this `number`.

    `due` is the temporary table of imports to record, `raw` what `has_raw_imports` returns. Without `rules`, rows under
    other rules than those of now do not wait.
    """
    if each.table == IMPORTS:
        return Waiting()
    keys, imports = [], []
    name, column = connection.name, connection.column
    if raw:
        keys.append(f"{_RAW}_{number}")
        connection.gather(keys[-1], _raw_records(connection, dataset, each))
        still = f"{column(VALID_TO)} IS NULL AND {column(each.key)} IN (SELECT k FROM {keys[-1]})"
        imports.append(f"SELECT DISTINCT {column(each.import_key)} AS k FROM {name(each.history)} WHERE {still}")
    unread = None if rules is None else awaits_reading(connection, each, rules)
    if unread is not None:
        keys.append(f"{_UNREAD}_{number}")
        key, imported = (f"{R}.{column(c)}" for c in (each.key, each.import_key))
        rows = f"FROM {name(each.table)} AS {R} WHERE {imported} IN (SELECT k FROM {due}) AND {unread}"
        connection.gather(keys[-1], f"SELECT {key} AS k {rows}")
        imports.append(f"SELECT DISTINCT {imported} AS k {rows}")
    return Waiting(keys, imports, unread)


def has_raw_imports(connection: Connection, dataset: Dataset) -> bool:
    """Return whether imports have their records only in `records`."""
    raw = f"SELECT 1 {_raw_imports(connection)} LIMIT 1"
    return RECORDS in dataset.ours and connection.query(raw).num_rows > 0


def _raw_imports(connection: Connection) -> str:
    """Return FROM and WHERE for the imports that were read last while `typed` was false."""
    return f"FROM {connection.name(LEDGER)} WHERE table_name IS NULL AND records_loaded > 0"


def _raw_records(connection: Connection, dataset: Dataset, each: Versioned) -> str:
    """Return SQL for the records that should be in a table, but are only in `records`."""
    name, column, gone = connection.name, connection.column, connection.column("_deleted_at")
    template = literal(dataset.templates.get(each.table, ""))
    return (
        f"SELECT g.k FROM (SELECT slug AS k, 1 AS is_raw FROM {name(RECORDS)} "
        f"WHERE import_slug IN (SELECT slug {_raw_imports(connection)}) AND {gone} IS NULL "
        f"AND COALESCE(template_slug, '') = {template} "
        f"UNION ALL SELECT {column(each.key)}, 0 FROM {name(each.table)} WHERE {gone} IS NULL) AS g "
        "GROUP BY g.k HAVING MIN(g.is_raw) = 1"
    )
