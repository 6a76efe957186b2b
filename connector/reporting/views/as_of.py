"""The rows of a template at a moment, `SELECT * FROM customers_as_of('2026-03-01')`: one function beside each view.

It shows the columns of the template's view, from the table with the versions (`connector.warehouse.history`).
"""

from __future__ import annotations

from collections.abc import Iterator

from connector.reporting.views.generated import view_columns
from connector.reporting.views.layout import Layout, TypedTable, quoted
from connector.warehouse.connection import Connection
from connector.warehouse.history import VALID_FROM, VALID_TO, history_of

SUFFIX = "_as_of"
_DECLARED = "TIMESTAMP WITH TIME ZONE"
_PARAMETER = "_instant_"  # DuckDB would put it in place of a column of that name


def make_functions(connection: Connection, layout: Layout) -> None:
    """Make the function of each template of which there are versions; in PostgreSQL after dropping those there are."""
    for typed, history in _recorded(layout):
        name = f"{quoted(layout.views_schema)}.{quoted(typed.view + SUFFIX)}"
        columns = view_columns(typed)
        shown = ",\n    ".join(f"{expression} AS {quoted(label)}" for label, expression, _ in columns)
        if layout.dialect == "duckdb":
            body = _body(layout, history, shown, f"CAST({_PARAMETER} AS {_DECLARED})")
            connection.client.execute_sql(f"CREATE OR REPLACE MACRO {name}({_PARAMETER}) AS TABLE\n{body}")
            continue
        kinds = connection.declared(history)
        returned = ", ".join(f"{quoted(label)} {kinds.get(column or '', 'text')}" for label, _, column in columns)
        body = _body(layout, history, shown, "$1")
        connection.client.execute_sql(f"DROP FUNCTION IF EXISTS {name}({_DECLARED})")
        connection.client.execute_sql(
            f"CREATE FUNCTION {name}({_DECLARED}) RETURNS TABLE ({returned}) LANGUAGE sql STABLE "
            f"AS $as_of$\n{body}\n$as_of$"
        )


def lacks_functions(connection: Connection, layout: Layout) -> bool:
    """Tell whether a template with versions has no function yet."""
    wanted = {typed.view + SUFFIX for typed, _ in _recorded(layout)}
    if not wanted:
        return False
    sql = (
        "SELECT DISTINCT function_name AS name FROM duckdb_functions() WHERE schema_name = %s"
        if layout.dialect == "duckdb"
        else "SELECT p.proname AS name FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n "
        "ON n.oid = p.pronamespace WHERE n.nspname = %s"
    )
    return not wanted <= {row["name"] for row in connection.query(sql, layout.views_schema).to_pylist()}


def _recorded(layout: Layout) -> Iterator[tuple[TypedTable, str]]:
    for typed in layout.typed:
        history = history_of(layout.tables, typed.table)
        if history in layout.tables:
            yield typed, history


def _body(layout: Layout, history: str, shown: str, moment: str) -> str:
    return (
        f"SELECT\n    {shown}\nFROM {layout.name(history)}\n"
        f"WHERE {quoted(VALID_FROM)} <= {moment} AND ({quoted(VALID_TO)} IS NULL OR {moment} < {quoted(VALID_TO)})"
    )
