"""Execute SQL on tables whose rows are in Parquet files, in a DuckDB without a file.

In the schema of the dataset each table is a view: the files of its current version, and the rows of a DuckDB table with
the same columns in a second schema, which is empty except in a transaction. A statement that changes rows first moves
the rows of the files that it affects into that table. The commit writes the table to a new file, which replaces the
moved ones, in one commit of all tables of the transaction to the log (`lake_log`).

Invariant: what a transaction reads is what it has written, other connections read the last commit, and after an error
the state is read from the log again.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import uuid4

import duckdb

from connector.warehouse.adapters.dialect import exactly, literal, quoted
from connector.warehouse.adapters.lake_log import Change, Column, Log, Table
from connector.warehouse.adapters.lake_statements import ALTERED, SCHEMA, STATEMENT, clauses_of, unquoted
from connector.warehouse.left_spill import spill_folder

ROWS = "$importer"  # behind the name of the dataset: the schema of the rows that are not in files yet
_FILE = "importer$file"
_SMALL_BYTES, _SMALL_FILES = 2**20, 16  # so many files of less than that are merged by the next commit
_COMPACT_BYTES = 2**27


@dataclass(slots=True)
class _Change:
    """The state of a table within a transaction: its columns (None: it is dropped), and the files that it keeps."""

    columns: dict[str, Column] | None
    files: dict[str, int] = field(default_factory=dict)


class Lake:
    """The dataset, with connections that share its state."""

    def __init__(self, log: Log, dataset: str) -> None:
        self.log = log
        self.dataset = dataset
        self._lock = threading.RLock()
        self._tables: dict[str, Table] = {}
        self.exists = False  # when the log was read
        self._stale, self._opened = True, 0
        self._root = duckdb.connect(":memory:", config={"temp_directory": spill_folder()})
        self._root.execute("SET GLOBAL TimeZone = 'UTC'")
        if log.filesystem is not None:
            self._root.register_filesystem(log.filesystem)

    def connect(self) -> duckdb.DuckDBPyConnection:
        """Return a connection, to the current state of the log if it is the only one."""
        with self._lock:
            if not self._opened or self._stale:
                self.refresh()
            self._opened += 1
            connection = self._root.cursor()
            with suppress(duckdb.CatalogException):  # there is no dataset yet
                connection.execute(f"SET search_path = {literal(quoted(self.dataset))}")
            return connection

    def close(self, connection: duckdb.DuckDBPyConnection) -> None:
        with self._lock:
            self._opened -= 1
            connection.close()

    def begin(self) -> None:
        """Make the next connection read the log although another one is open: another process may have written.

        The caller has just got the lock.
        """
        with self._lock:
            self.log.begin()
            self._stale = True

    def refresh(self) -> None:
        """Read the versions that the log has now."""
        if self._stale:
            self._drop_schemas()
        found = self.log.read(self._tables)
        self.exists = found is not None
        if found is None:
            self._drop_schemas()
            return
        for schema in (self.dataset, self.dataset + ROWS):
            self._root.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}")
        for name in self._tables.keys() - found.keys():
            self._undefine(self._root, name)
            del self._tables[name]
        for name, table in found.items():
            if table is None:  # somebody else's, which only has its name here
                why = f"The Delta table {name} has types or features that cannot be read here."
                sql = f"SELECT CAST(error({literal(why)}) AS INTEGER) AS unknown"
                self._root.execute(f"CREATE OR REPLACE VIEW {self.view(name)} AS {sql}")
            elif table is not self._tables.get(name):
                self.define(self._root, name, table.columns, table.files)
                self._tables[name] = table
        self._stale = False

    def _drop_schemas(self) -> None:
        for schema in (self.dataset, self.dataset + ROWS):
            self._root.execute(f"DROP SCHEMA IF EXISTS {quoted(schema)} CASCADE")
        self._tables.clear()

    def create(self) -> None:
        self.log.create()
        self.refresh()

    def drop(self, *, with_tables: bool) -> None:
        with self._lock:
            self._stale = True
            self.log.remove(with_tables=with_tables)
            self.refresh()

    @contextmanager
    def transaction(self, connection: duckdb.DuckDBPyConnection) -> Iterator[Transaction]:
        """Commit the changes within to all their tables, or to none after an error. One transaction runs at a time."""
        with self._lock:
            if self._stale:
                self.refresh()
            connection.begin()
            done = Transaction(self, connection, self._tables)
            try:
                yield done
                self._stale = True  # unless all of what follows succeeds
                tables = done.commit()
                connection.commit()
            except BaseException:
                with suppress(duckdb.Error):  # it may have been rolled back
                    connection.rollback()
                raise
            self._tables, self._stale = tables, False

    def execute(self, sql: str) -> bool:
        """Create or drop the dataset, if that is what the statement says; return whether it was."""
        found = SCHEMA.fullmatch(sql)
        if found is None or unquoted(found["schema"]) != self.dataset:
            return False
        if found["verb"].upper() == "CREATE":
            self.create()
        else:
            self.drop(with_tables=found["all"] is not None)
        return True

    def compact(self, tables: Collection[str]) -> None:
        """Write small files of each of these tables into one, and remove the files of earlier versions."""
        connection = self.connect()
        tables = self._tables.keys() & set(tables)
        try:
            for name in sorted(tables):
                with self.transaction(connection) as done:
                    done.merge(name, _COMPACT_BYTES, 2)
            self.log.clean({name: self._tables[name] for name in tables})
        finally:
            self.close(connection)

    def only_reading(self) -> duckdb.DuckDBPyConnection:
        """Return a connection that can read the current files of this dataset, and no others."""
        connection = self.connect()
        files = {self.log.path(name, file) for name, table in self._tables.items() for file in table.files}
        # DuckDB compares the pattern that it is given, and then each file that it finds
        connection.execute("SET GLOBAL allowed_paths = $files", {"files": sorted({*files, *map(exactly, files)})})
        return connection

    # -- how a table is made in DuckDB ------------------------------------------------------------------------------

    def view(self, name: str) -> str:
        return f"{quoted(self.dataset)}.{quoted(name)}"

    def rows(self, name: str) -> str:
        return f"{quoted(self.dataset + ROWS)}.{quoted(name)}"

    def define(
        self,
        connection: duckdb.DuckDBPyConnection,
        name: str,
        columns: Mapping[str, Column],
        files: Collection[str],
    ) -> None:
        """Create the view of a table, and its empty table of rows."""
        made = ", ".join(f"{quoted(c)} {each.kind}{' NOT NULL' * each.required}" for c, each in columns.items())
        connection.execute(f"CREATE OR REPLACE TABLE {self.rows(name)} ({made})")
        self.define_view(connection, name, columns, files)

    def define_view(
        self,
        connection: duckdb.DuckDBPyConnection,
        name: str,
        columns: Mapping[str, Column],
        files: Collection[str],
    ) -> None:
        named = ", ".join(f"CAST({quoted(c)} AS {each.kind}) AS {quoted(c)}" for c, each in columns.items())
        sql = f"SELECT {named} FROM ({self.union(name, files)})"
        connection.execute(f"CREATE OR REPLACE VIEW {self.view(name)} AS {sql}")

    def union(self, name: str, files: Collection[str], more: str = "") -> str:
        """Return SQL for the rows of a table that are not in files yet, and those of these files.

        A file that was written before a column existed has null there.
        """
        sql = f"SELECT * FROM {self.rows(name)}"
        return f"{sql} UNION ALL BY NAME {self.reading(name, files, more)}" if files else sql

    def reading(self, name: str, files: Collection[str], more: str = "") -> str:
        """Return SQL for the rows of these files of a table."""
        listed = ", ".join(literal(exactly(self.log.path(name, file))) for file in files)
        plain = "union_by_name = true, hive_partitioning = false"  # no columns from folders with names like a=b
        return f"SELECT * FROM read_parquet([{listed}], {plain}{more})"

    def _undefine(self, connection: duckdb.DuckDBPyConnection, name: str) -> None:
        connection.execute(f"DROP VIEW IF EXISTS {self.view(name)}")
        connection.execute(f"DROP TABLE IF EXISTS {self.rows(name)}")


class Transaction:
    """The changes of one connection to tables of the dataset, up to one commit."""

    def __init__(self, lake: Lake, connection: duckdb.DuckDBPyConnection, tables: Mapping[str, Table]) -> None:
        self._lake, self._connection, self._before = lake, connection, tables
        self._changes: dict[str, _Change] = {}

    def execute(self, sql: str, args: Sequence[Any]) -> None:
        """Execute a statement that changes something; one about another schema is DuckDB's alone."""
        found = STATEMENT.match(sql)
        if found is None or unquoted(found["schema"]) != self._lake.dataset:
            self._connection.execute(sql, args or None).fetchall()
            return
        name, verb, rest = unquoted(found["table"]), found["verb"].upper().split(), sql[found.end() :]
        if verb[0] == "CREATE":
            self._create(name, rest, args, anyway="IF" not in verb)
        elif verb[0] == "DROP":
            self._drop(name, anyway="IF" in verb)
        elif verb[0] == "ALTER":
            self._alter(name, rest.strip().rstrip(";"))
        else:
            change = self._change(name)
            if verb[0] != "INSERT":
                self._take(name, change, self._affected(name, change, rest, args))
            target = f"{found['verb']} {self._lake.rows(name)}"
            self._connection.execute(f"{target} {rest}", args or None).fetchall()

    def _change(self, name: str) -> _Change:
        change = self._changes.get(name)
        if change is None:
            table = self._before.get(name)
            if table is None:
                raise duckdb.CatalogException(f"Catalog Error: Table with name {name} does not exist!")
            change = self._changes[name] = _Change(dict(table.columns), dict(table.files))
        if change.columns is None:
            raise duckdb.CatalogException(f"Catalog Error: Table with name {name} does not exist!")
        return change

    def _exists(self, name: str) -> bool:
        change = self._changes.get(name)
        return name in self._before if change is None else change.columns is not None

    def _affected(self, name: str, change: _Change, rest: str, args: Sequence[Any]) -> list[str]:
        """Return the files with rows that an UPDATE or DELETE may change; `rest` is what follows its table."""
        if not change.files:
            return []
        alias, source, where, before = clauses_of(rest)
        if not where:
            return list(change.files)
        rows = self._lake.union(name, change.files, f", filename = '{_FILE}'")
        sql = f"SELECT DISTINCT {quoted(_FILE)} FROM ({rows}) AS {alias or quoted(name)}{source and f', {source}'} "
        found: Any = self._connection.execute(f"{sql} WHERE {where}", list(args)[before:] or None).fetchall()
        paths = {self._lake.log.path(name, file): file for file in change.files}
        return [paths[path] for (path,) in found if path is not None]

    def _take(self, name: str, change: _Change, files: Collection[str]) -> None:
        """Move the rows of these files into the table of rows."""
        if not files or change.columns is None:
            return
        moved = f"INSERT INTO {self._lake.rows(name)} BY NAME {self._lake.reading(name, files)}"
        self._connection.execute(moved).fetchall()
        for file in files:
            del change.files[file]
        self._lake.define_view(self._connection, name, change.columns, change.files)

    def merge(self, name: str, size: int, least: int) -> None:
        """Move the rows of files smaller than this into the table of rows, if there are at least so many files."""
        change = self._change(name)
        small = [file for file, each in change.files.items() if each < size]
        if len(small) >= least:
            self._take(name, change, small)

    def _create(self, name: str, rest: str, args: Sequence[Any], *, anyway: bool) -> None:
        if self._exists(name):
            if anyway:
                raise duckdb.CatalogException(f"Catalog Error: Table with name {name} already exists!")
            return
        self._connection.execute(f"CREATE TABLE {self._lake.rows(name)} {rest}", args or None).fetchall()
        found: Any = self._connection.execute(
            "SELECT column_name, data_type, is_nullable FROM duckdb_columns() "
            "WHERE database_name = current_database() AND schema_name = ? AND table_name = ? ORDER BY column_index",
            [self._lake.dataset + ROWS, name],
        ).fetchall()
        columns = {column: Column(kind, not nullable) for column, kind, nullable in found}
        self._changes[name] = _Change(columns)
        self._lake.define_view(self._connection, name, columns, ())

    def _drop(self, name: str, *, anyway: bool) -> None:
        if not self._exists(name) and anyway:
            return
        change = self._change(name)
        self._lake._undefine(self._connection, name)
        change.columns, change.files = None, {}

    def _alter(self, name: str, how: str) -> None:
        what, found = next(
            ((what, match) for what, form in ALTERED.items() if (match := re.fullmatch(form, how, re.I | re.S))),
            (None, None),
        )
        if found is None:
            raise duckdb.NotImplementedException(f"Not implemented on tables in files: ALTER TABLE {how}")
        change = self._change(name)
        columns = dict(change.columns or {})
        values = {column: quoted(column) for column in columns}
        column = unquoted(found["column"]) if "column" in found.groupdict() else ""
        if what == "add":
            if column in columns:
                if found["if"]:
                    return
                raise duckdb.CatalogException(f"Catalog Error: Column with name {column} already exists!")
            columns[column], values[column] = Column(self._kind(found["kind"])), "NULL"
            self._recreate(name, change, columns, values)
            return
        self._take(name, change, list(change.files))
        if what == "table":
            new = unquoted(found["new"])
            self._move(name, new)
            return
        if what == "drop":
            del columns[column]
        elif what == "type":
            columns[column] = Column(self._kind(found["kind"]), columns[column].required)
            values[column] = found["value"]
        else:
            new = unquoted(found["new"])
            columns = {new if c == column else c: each for c, each in columns.items()}
            values[new] = quoted(column)
        self._recreate(name, change, columns, values)

    def _kind(self, kind: str) -> str:
        """Return a type as DuckDB's catalog names it."""
        found: Any = self._connection.execute(f"SELECT typeof(CAST(NULL AS {kind}))").fetchall()
        return str(found[0][0])

    def _recreate(self, name: str, change: _Change, columns: dict[str, Column], values: Mapping[str, str]) -> None:
        """Give a table other columns, with these values of its rows that are not in files."""
        kept = f"temp.main.{quoted(f'{name}{ROWS}')}"
        selected = ", ".join(f"{values[column]} AS {quoted(column)}" for column in columns)
        self._connection.execute(f"CREATE TEMPORARY TABLE {kept} AS SELECT {selected} FROM {self._lake.rows(name)}")
        self._lake.define(self._connection, name, columns, change.files)
        self._connection.execute(f"INSERT INTO {self._lake.rows(name)} BY NAME SELECT * FROM {kept}").fetchall()
        self._connection.execute(f"DROP TABLE {kept}")
        change.columns = columns

    def _move(self, name: str, new: str) -> None:
        """Rename a table whose rows are all in its table of rows."""
        if self._exists(new):
            raise duckdb.CatalogException(f"Catalog Error: Table with name {new} already exists!")
        columns = dict(self._change(name).columns or {})
        self._lake.define(self._connection, new, columns, ())
        moved = f"SELECT * FROM {self._lake.rows(name)}"
        self._connection.execute(f"INSERT INTO {self._lake.rows(new)} BY NAME {moved}").fetchall()
        self._changes[new] = _Change(columns)
        self._drop(name, anyway=False)

    # -- committing -------------------------------------------------------------------------------------------------

    def commit(self) -> dict[str, Table]:
        """Write the files and commit them to the log; return all tables as they are then."""
        after, changes, written = dict(self._before), [], []
        try:
            for name, change in self._changes.items():
                old = self._before.get(name)
                if change.columns is None:
                    after.pop(name, None)
                    if old is not None:
                        changes.append(Change(name, old, None, {}))
                    continue
                columns, added = change.columns, {}
                if self._count(name):
                    self.merge(name, _SMALL_BYTES, _SMALL_FILES)
                    file, size = self._lake.log.add(name, partial(self._write, name, columns))
                    written.append((name, file))
                    change.files[file] = size
                    added = {file: self._count(name)}
                if old is not None and dict(old.files) == change.files and dict(old.columns) == columns:
                    continue
                version, unique = (0, str(uuid4())) if old is None else (old.version + 1, old.id)
                after[name] = Table(version, unique, columns, change.files)
                changes.append(Change(name, old, after[name], added))
                self._lake.define(self._connection, name, columns, change.files)
        except BaseException:
            for name, file in written:
                with suppress(Exception):
                    self._lake.log.discard(name, file)
            raise
        if changes:
            self._lake.log.commit(changes)
        return after

    def _count(self, name: str) -> int:
        found: Any = self._connection.execute(f"SELECT count(*) FROM {self._lake.rows(name)}").fetchall()
        return int(found[0][0])

    def _write(self, name: str, columns: Mapping[str, Column], path: str) -> None:
        plain = {column: "VARCHAR" if each.kind == "JSON" else each.kind for column, each in columns.items()}
        values = ", ".join(f"CAST({quoted(column)} AS {kind}) AS {quoted(column)}" for column, kind in plain.items())
        copied = f"COPY (SELECT {values} FROM {self._lake.rows(name)}) TO {literal(path)}"
        self._connection.execute(f"{copied} (FORMAT parquet, COMPRESSION zstd)").fetchall()
