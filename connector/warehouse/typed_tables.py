"""Rebuild a typed table beside the existing one: read its raw rows, count, and swap the two."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pyarrow as pa

from connector.transform.naming import RULES_COLUMN
from connector.warehouse.connection import LOADS, VERSIONS, Connection
from connector.warehouse.ownership import REBUILD_SCHEMA, REBUILD_TABLE
from connector.warehouse.tables import FIELDS, FIELDS_SCHEMA, LEDGER, LOAD_ID, RECORDS

_OLD, _NEW = "importer$old", "importer$new"  # aliases that no column has as its name


def raw_counts(connection: Connection, template_slug: str) -> dict[str, int]:
    """Return import → raw rows of this template, deleted ones too; '' stands for rows without a template."""
    rows = connection.rows(
        f"SELECT import_slug, count(*) AS n FROM {connection.name(RECORDS)} "
        f"WHERE COALESCE(template_slug, '') = %s GROUP BY 1 ORDER BY 1",
        template_slug,
    )
    return {row["import_slug"]: int(row["n"]) for row in rows}


def raw_rows(connection: Connection, template_slug: str, slugs: Sequence[str]) -> pa.Table:
    """Return the raw rows of these imports that belong to this template."""
    rows = connection.rows_of(RECORDS, "import_slug", slugs)
    if not rows.num_rows:
        return rows
    templates: Any = rows.column("template_slug").to_pylist()
    return rows.filter(pa.array([(value or "") == template_slug for value in templates]))


def without_raw_row(connection: Connection, table: str, template_slug: str) -> tuple[int, int]:
    """Return the number of rows of a typed table that have no raw row of its template, and of those that moved.

    A record has one raw row. If it moved to an import of another template, its row here is marked as deleted, and
    `raw_rows` does not return it.
    """
    deleted = f"t.{connection.column('_deleted_at')} IS NOT NULL AND r.slug IS NOT NULL"
    rows = connection.rows(
        f"SELECT count(*) AS n, count(CASE WHEN {deleted} THEN 1 END) AS moved FROM {connection.name(table)} t "
        f"LEFT JOIN {connection.name(RECORDS)} r ON r.slug = t.{connection.column('_record_slug')} "
        "WHERE r.slug IS NULL OR COALESCE(r.template_slug, '') <> %s",
        template_slug,
    )
    return int(rows[0]["n"]), int(rows[0]["moved"])


def count_rows(connection: Connection, table: str, key: str) -> tuple[int, int]:
    """Return (rows, distinct keys)."""
    row = connection.rows(
        f"SELECT count(*) AS n, count(DISTINCT {connection.column(key)}) AS d FROM {connection.name(table)}"
    )[0]
    return int(row["n"]), int(row["d"])


def copy_rules(connection: Connection, table: str, replacement: str) -> None:
    """Copy from a table to its replacement under which privacy rules the rows of a load are, if the table notes it."""
    if RULES_COLUMN not in connection.columns()[table]:
        return
    column = connection.column
    kind = connection.declared(table)[RULES_COLUMN]  # of another type, it would be another column for the versions
    connection.execute(f"ALTER TABLE {connection.name(replacement)} ADD COLUMN {column(RULES_COLUMN)} {kind}")
    same = " AND ".join(f"{_NEW}.{column(c)} = {_OLD}.{column(c)}" for c in ("_record_slug", "_import_slug", LOAD_ID))
    new = {column(RULES_COLUMN): f"{_OLD}.{column(RULES_COLUMN)}"}
    source = f"{connection.name(table)} AS {_OLD}"
    connection.execute(connection.sql.update_from(connection.name(replacement), _NEW, new, source, same))


def discard_rebuild(connection: Connection, ours: Collection[str]) -> bool:
    """Drop the table of a rebuild that was killed, and dlt's record of it; return whether there was one.

    Its rows would keep what a privacy rule or a deletion removes from the table itself.
    """
    if REBUILD_TABLE not in ours:
        return False
    _forget_rebuild(connection)  # first: if this dies between them, the next run finds the table and repeats both
    connection.drop_table(REBUILD_TABLE)
    return True


def _forget_rebuild(connection: Connection) -> None:
    """Delete dlt's record of the table of a rebuild, by which dlt would assume that it exists."""
    for table in (LOADS, VERSIONS):
        connection.execute(f"DELETE FROM {connection.name(table)} WHERE schema_name = %s", REBUILD_SCHEMA)


@contextmanager
def swapped(
    connection: Connection,
    table: str,
    fields: Sequence[Mapping[str, Any]],
    text_conflicts: Mapping[str, str | None],
    views: AbstractContextManager[None],
) -> Iterator[None]:
    """Rename the rebuilt table to `table`, in one transaction with the statements within, which still see both.

    `fields` become its rows of `sync_fields`, and `text_conflicts` become the ledger's for these imports. dlt's staging
    copy of the table is dropped, because its columns have the earlier types, and so is the dlt schema that created
    the rebuilt table. `views` drops and restores the views that read the table. The table is replaced last: on MySQL
    that commits all before it, so that a kill never leaves a table whose fields are those of the other one.
    """
    if text_conflicts:  # an earlier version had no such column
        connection.add_column(LEDGER, "text_conflicts")
    with connection.client.begin_transaction(), views:
        with connection.client.with_staging_dataset():  # first: on MySQL it ends the transaction
            if connection.client.has_dataset():
                connection.drop_table(table)
        connection.execute(f"DELETE FROM {connection.name(FIELDS)} WHERE table_name = %s", table)
        for row in fields:
            connection.insert(FIELDS, FIELDS_SCHEMA.names, row)
        for slug, counts in text_conflicts.items():
            sql = f"UPDATE {connection.name(LEDGER)} SET text_conflicts = %s WHERE slug = %s"
            connection.execute(sql, counts, slug)
        _forget_rebuild(connection)
        yield
        connection.adapter.replace_table(connection.client, table, REBUILD_TABLE)
