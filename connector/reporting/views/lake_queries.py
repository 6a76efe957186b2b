"""Open a session for a query on a DuckLake, which can read the lake and nothing else.

DuckDB can block file access of a session, but not the functions of the lake's extensions: one reads any SQLite file,
another connects to any PostgreSQL. A query that calls one of them, or a function that runs a text as SQL, is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import duckdb
from dlt.pipeline.pipeline import Pipeline

from connector.errors import ConfigError
from connector.warehouse.adapters.ducklake_destination import read_only
from connector.warehouse.destination import destination_config, lake_files

_RUN_A_TEXT = frozenset({"query", "query_table", "json_execute_serialized_sql"})


@contextmanager
def lake_session(pipeline: Pipeline, sql: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a session for this query alone. Raises ConfigError for a query that may read more than the lake."""
    with read_only(destination_config(pipeline).credentials) as connection:
        _check_functions(connection, sql)
        files = lake_files(pipeline)
        if files is not None:
            connection.execute("SET allowed_directories = $folders", {"folders": [f"{files}/"]})
        yield connection


def _check_functions(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    answer: Any = connection.execute("SELECT json_serialize_sql($sql)", {"sql": sql}).fetchone()
    tree = json.loads(answer[0])
    if tree.get("error"):
        raise ConfigError(f"Such a query is not run on a DuckLake ({tree.get('error_message')}); write it as a SELECT.")
    refused = sorted({*_named(tree)} & ({*_of_extensions(connection)} | _RUN_A_TEXT))
    if refused:
        raise ConfigError(f"A query on a DuckLake may not call {', '.join(refused)}: it reads more than the lake.")


def _of_extensions(connection: duckdb.DuckDBPyConnection) -> Iterator[str]:
    """Yield the functions that are not DuckDB's own."""
    with duckdb.connect() as plain:
        names = "SELECT DISTINCT lower(function_name) FROM duckdb_functions()"
        own = {name for (name,) in plain.execute(names).fetchall()}
    there: Any = connection.execute(f"{names} WHERE database_name = 'system'").fetchall()
    yield from (name for (name,) in there if name not in own)


def _named(node: Any) -> Iterator[str]:
    """Yield the functions that a query calls."""
    if isinstance(node, dict):
        if isinstance(node.get("function_name"), str):
            yield node["function_name"].lower()
        for each in node.values():
            yield from _named(each)
    elif isinstance(node, list):
        for each in node:
            yield from _named(each)
