"""Read the statements in `sql/` from their files, and translate them into the destination's dialect.

A file has one SELECT in DuckDB's dialect, with table names without schema. It may read another fixed view by name,
which becomes a CTE, so that a statement runs anywhere on its own and no view depends on another. The first line of the
header says what the statement answers, and the line that begins with `Grain:` what one row of it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import pyarrow as pa
import sqlglot
from sqlglot import exp

from connector.warehouse.tables import RECORDS, RECORDS_SCHEMA, SYSTEM_SCHEMAS

READ = "duckdb"
Kind = Literal["view", "check"]
_FOLDERS: tuple[tuple[str, Kind], ...] = (("views", "view"), ("checks", "check"))
_GRAIN = "Grain:"
_EMPTY_SCHEMAS = {**SYSTEM_SCHEMAS, RECORDS: RECORDS_SCHEMA}


@dataclass(frozen=True, slots=True)
class Statement:
    """One file: its name, what it answers, what one row of it is, and its SELECT as written there."""

    name: str
    kind: Kind
    summary: str
    grain: str
    text: str


@dataclass(frozen=True, slots=True)
class Ready:
    """A statement for one warehouse, in its dialect, every table with its schema."""

    name: str
    kind: Kind
    summary: str
    grain: str
    sql: str


def standing() -> tuple[Statement, ...]:
    """Return every statement of `sql/`, views first, by name."""
    return _standing()


def select(statement: Statement, dialect: str, dataset: str, present: Collection[str] | None = None) -> str:
    """Return the statement for a destination ("duckdb", "postgres"), its tables in the schema `dataset`.

    With `present`, the existing tables, a missing table of this package reads as an empty one.
    """
    tree = _with_views_inside(statement)
    defined = {cte.alias for cte in tree.find_all(exp.CTE)}
    for table in list(tree.find_all(exp.Table)):
        if table.name in defined or table.db:
            continue
        if present is not None and table.name not in present and table.name in _EMPTY_SCHEMAS:
            table.replace(_empty(table))
        else:
            table.set("db", exp.to_identifier(dataset, quoted=True))
    return tree.sql(dialect=dialect, pretty=True)


def tables_of(statement: Statement) -> frozenset[str]:
    """Return the tables that it reads, also through the fixed views it reads."""
    tree = _with_views_inside(statement)
    defined = {cte.alias for cte in tree.find_all(exp.CTE)}
    return frozenset(table.name for table in tree.find_all(exp.Table)) - defined


@cache
def _standing() -> tuple[Statement, ...]:
    root = _folder()
    return tuple(
        _read(file, kind) for folder, kind in _FOLDERS for file in sorted((root / folder).glob("*.sql"), key=str)
    )


def _folder() -> Path:
    """Return the folder `sql`: in an installed package beside its modules, in a checkout beside the package."""
    package = Path(__file__).parents[2]
    installed = package / "sql"
    return installed if installed.is_dir() else package.parent / "sql"


def _read(file: Path, kind: Kind) -> Statement:
    text = file.read_text(encoding="utf-8")
    header = [line.removeprefix("--").strip() for line in text.splitlines() if line.startswith("--")]
    grain = next((line.removeprefix(_GRAIN).strip() for line in header if line.startswith(_GRAIN)), "")
    return Statement(file.stem, kind, header[0] if header else "", grain, text)


@cache
def _parsed(text: str) -> exp.Query:
    [tree] = sqlglot.parse(text, read=READ)
    if not isinstance(tree, exp.Query):
        raise TypeError("a file in sql/ holds one SELECT")
    for node in tree.walk():
        node.comments = None
    return tree


def _views_in(tree: exp.Query) -> Iterator[Statement]:
    """Yield the fixed views that it reads, each after the views that it reads itself."""
    views = {each.name: each for each in standing() if each.kind == "view"}
    for name in sorted({table.name for table in tree.find_all(exp.Table)} & set(views)):
        yield from _views_in(_parsed(views[name].text))
        yield views[name]


def _with_views_inside(statement: Statement) -> exp.Query:
    tree = _parsed(statement.text).copy()
    views = {view.name: view for view in _views_in(tree)}
    own = tree.args.get("with_") or tree.args.get("with")
    kept = list(own.expressions) if own is not None else []
    if own is not None:
        own.set("expressions", [])
    for view in views.values():
        tree = tree.with_(view.name, as_=_parsed(view.text).copy(), copy=False)
    for cte in kept:
        tree = tree.with_(cte.alias, as_=cte.this, copy=False)
    return tree


_SQL_TYPES = ((pa.types.is_boolean, "BOOLEAN"), (pa.types.is_integer, "BIGINT"), (pa.types.is_timestamp, "TIMESTAMPTZ"))


def _empty(table: exp.Table) -> exp.Subquery:
    columns = [
        exp.alias_(exp.cast(exp.null(), next((sql for fits, sql in _SQL_TYPES if fits(each.type)), "TEXT")), each.name)
        for each in _EMPTY_SCHEMAS[table.name]
    ]
    return exp.select(*columns).where(exp.false()).subquery(table.alias_or_name)
