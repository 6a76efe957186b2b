"""Find the dependents of a table, a view or a function in PostgreSQL, which must be dropped before it.

DuckDB tracks no such dependencies: a view on a dropped table fails when it is queried.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from connector.reporting.views.layout import VIEWS_SUFFIX, Layout
from connector.warehouse import Connection
from connector.warehouse.connection import marks

OURS = "importer-sync "  # the comment on each view and function of ours begins with this
OUTDATED = f"{OURS}outdated: "  # the same for one that cannot be replaced


@dataclass(frozen=True, slots=True)
class Reader:
    """A view that reads an object, also through other views; `read` is the object's name without its schema."""

    read: str
    schema: str
    view: str
    ours: bool

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.view}"


def readers_of(connection: Connection, schema: str, names: Sequence[str]) -> list[Reader]:
    """Return the views that read one of these tables, views and functions of a schema of PostgreSQL."""
    if not names:
        return []
    rows = connection.query(
        "WITH RECURSIVE uses AS (SELECT DISTINCT w.ev_class AS reader, d.refclassid AS kind, d.refobjid AS used "
        "FROM pg_depend d JOIN pg_rewrite w ON w.oid = d.objid AND d.classid = 'pg_rewrite'::regclass "
        "WHERE d.refclassid IN ('pg_class'::regclass, 'pg_proc'::regclass) AND d.refobjid <> w.ev_class), "
        "roots AS (SELECT 'pg_class'::regclass::oid AS kind, oid, relname AS name, relnamespace AS home FROM pg_class "
        "UNION ALL SELECT 'pg_proc'::regclass::oid, oid, proname, pronamespace FROM pg_proc), "
        "found AS (SELECT u.reader, r.name FROM uses u JOIN roots r ON r.oid = u.used AND r.kind = u.kind "
        f"JOIN pg_namespace n ON n.oid = r.home WHERE n.nspname = %s AND r.name IN ({marks(names)}) "
        "UNION SELECT u.reader, f.name FROM uses u JOIN found f ON f.reader = u.used AND u.kind = 'pg_class'::regclass)"
        " SELECT f.name AS read, n.nspname AS schema_name, v.relname AS view_name, v.relkind = 'v' AND n.nspname = %s "
        "AND COALESCE(obj_description(v.oid, 'pg_class'), '') LIKE %s AS ours "
        "FROM found f JOIN pg_class v ON v.oid = reader JOIN pg_namespace n ON n.oid = v.relnamespace ORDER BY 1, 2, 3",
        schema,
        *names,
        connection.client.dataset_name + VIEWS_SUFFIX,
        OURS + "%",
    ).to_pylist()
    return [Reader(row["read"], row["schema_name"], row["view_name"], bool(row["ours"])) for row in rows]


def blocked(connection: Connection, layout: Layout, theirs: Iterable[str], due: Sequence[str]) -> Mapping[str, str]:
    """Return the names of the views' schema that cannot be created, replaced or dropped, each with the reason.

    `theirs` are names of foreign views, tables or functions; `due` are ours, which would have to be dropped first.
    """
    found = {
        name: f"{layout.views_schema}.{name} already exists and was not made by this command: rename or drop it"
        for name in theirs
    }
    if layout.dialect == "postgres":
        readers: dict[str, list[str]] = {}
        for reader in readers_of(connection, layout.views_schema, due):
            readers.setdefault(reader.read, []).append(reader.name)
        for name, of in readers.items():
            found[name] = (
                f"{layout.views_schema}.{name} was left as it was, because {', '.join(of)} depends on it: drop that, "
                "run `importer-sync sql apply` and create it again"
            )
    return found
