"""Create functions that return the rows of a template at a moment, `SELECT * FROM customers_as_of('2026-03-01')`.

There is one beside each template's view. It returns the columns of the view, from the history table
(`connector.warehouse.history`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from connector.reporting.views.generated import view_columns
from connector.reporting.views.layout import Layout, TypedTable, recorded
from connector.reporting.views.readers import OURS, OUTDATED, blocked
from connector.warehouse.adapters.dialect import literal, quoted
from connector.warehouse.connection import Connection
from connector.warehouse.history_tables import VALID_FROM, VALID_TO

SUFFIX = "_as_of"
_DECLARED = "TIMESTAMP WITH TIME ZONE"
_CURRENT = f"{OURS}function "
_PARAMETER = "_instant_"  # DuckDB would substitute it for a column of that name


def make_functions(connection: Connection, layout: Layout) -> Mapping[str, str]:
    """Create the function of each template that has versions; return those that failed, with the reason.

    A comment says that a function is ours and has a digest of its text: one with another text is replaced.
    """
    kept = list(recorded(layout)) if connection.traits.functions else []
    if not kept:
        return {}
    there = _functions(connection, layout)
    wanted = [_function(connection, layout, typed, history) for typed, history in kept]
    due = [each for each in wanted if there.get(each.name) != each.comment]
    theirs = {each.name for each in due if not there.get(each.name, OURS).startswith(OURS)}
    ours = [each.name for each in due if each.name in there and each.name not in theirs]
    cannot = blocked(connection, layout, theirs, ours)
    for each in due:
        named = _named(layout, each.name)
        if each.name not in cannot:
            grants = _grants(connection, layout, each.name) if each.name in ours else []
            if each.name in ours:
                connection.client.execute_sql(f"DROP {named}")
            connection.client.execute_sql(each.sql)
            for grant in grants:
                connection.client.execute_sql(grant)
        if each.name not in theirs:
            comment = OUTDATED if each.name in cannot else each.comment
            connection.client.execute_sql(f"COMMENT ON {named} IS {literal(comment)}")
    return cannot


def functions_of_ours(connection: Connection, layout: Layout) -> list[str]:
    """Return the names of our functions, including outdated ones."""
    return sorted(name for name, comment in _functions(connection, layout).items() if comment.startswith(OURS))


def drop_function(connection: Connection, layout: Layout, name: str) -> None:
    """Drop one of our functions. Raises what the destination does if something depends on it."""
    connection.client.execute_sql(f"DROP {_named(layout, name)}")


def lacks_functions(connection: Connection, layout: Layout) -> bool:
    """Return whether a template with versions has no function of ours yet, or an outdated one."""
    wanted = {typed.view + SUFFIX for typed, _ in recorded(layout)}
    if not wanted or not connection.traits.functions:
        return False
    current = {name for name, comment in _functions(connection, layout).items() if comment.startswith(_CURRENT)}
    return not wanted <= current


@dataclass(frozen=True, slots=True)
class _Function:
    """A function to create."""

    name: str
    sql: str

    @property
    def comment(self) -> str:
        return _CURRENT + sha256(self.sql.encode()).hexdigest()


def _function(connection: Connection, layout: Layout, typed: TypedTable, history: str) -> _Function:
    called = typed.view + SUFFIX
    name = f"{quoted(layout.views_schema)}.{quoted(called)}"
    columns = view_columns(typed)
    shown = ",\n    ".join(f"{expression} AS {quoted(label)}" for label, expression, _ in columns)
    if layout.dialect == "duckdb":
        body = _body(layout, history, shown, f"CAST({_PARAMETER} AS {_DECLARED})")
        return _Function(called, f"CREATE MACRO {name}({_PARAMETER}) AS TABLE\n{body}")
    kinds = connection.declared(history)
    returned = ", ".join(f"{quoted(label)} {kinds.get(column or '', 'text')}" for label, _, column in columns)
    sql = (
        f"CREATE FUNCTION {name}({_DECLARED}) RETURNS TABLE ({returned}) LANGUAGE sql STABLE "
        f"AS {literal(_body(layout, history, shown, '$1'))}"
    )
    return _Function(called, sql)


def _named(layout: Layout, name: str) -> str:
    """Return how a statement names a function: by its kind and its name, in PostgreSQL with its parameters."""
    called = f"{quoted(layout.views_schema)}.{quoted(name)}"
    return f"MACRO TABLE {called}" if layout.dialect == "duckdb" else f"FUNCTION {called}({_DECLARED})"


def _functions(connection: Connection, layout: Layout) -> dict[str, str]:
    """Return the as-of functions in the views' schema, each with its comment."""
    sql = (
        "SELECT function_name AS name, comment FROM duckdb_functions() "
        "WHERE database_name = current_database() AND schema_name = %s"
        if layout.dialect == "duckdb"
        else "SELECT p.proname AS name, obj_description(p.oid, 'pg_proc') AS comment "
        "FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = %s "
        "AND p.proargtypes = ARRAY['timestamptz'::regtype::oid]::oidvector"
    )
    return {row["name"]: row["comment"] or "" for row in connection.query(sql, layout.views_schema).to_pylist()}


def _grants(connection: Connection, layout: Layout, name: str) -> list[str]:
    """Return the statements that give a function that is made anew the rights that it has now."""
    if layout.dialect != "postgres":
        return []
    rights = connection.query(
        "SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END AS role, "
        "a.is_grantable FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace, "
        "aclexplode(COALESCE(p.proacl, acldefault('f', p.proowner))) a WHERE n.nspname = %s AND p.proname = %s "
        "AND p.proargtypes = ARRAY['timestamptz'::regtype::oid]::oidvector AND a.grantee <> p.proowner",
        layout.views_schema,
        name,
    ).to_pylist()
    named = _named(layout, name)
    given = [f"GRANT EXECUTE ON {named} TO {r['role']}{' WITH GRANT OPTION' * r['is_grantable']}" for r in rights]
    return [f"REVOKE ALL ON {named} FROM PUBLIC", *given]


def _body(layout: Layout, history: str, shown: str, moment: str) -> str:
    return (
        f"SELECT\n    {shown}\nFROM {layout.name(history)}\n"
        f"WHERE {quoted(VALID_FROM)} <= {moment} AND ({quoted(VALID_TO)} IS NULL OR {moment} < {quoted(VALID_TO)})"
    )
