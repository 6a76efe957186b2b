"""Store the tables of a dataset as Delta tables in a folder: Parquet files, and a log of which of them are current.

A commit to one table is a new file in its log. A commit to several tables is first written to a journal as a whole, and
the next run completes the commit of a killed one. So what a run reads was committed to all tables or to none.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa

from connector.errors import ConnectorError
from connector.warehouse.adapters.base import lower
from connector.warehouse.adapters.folder_store import sync, write_file, write_once
from connector.warehouse.adapters.lake_log import (
    OUR_NAME,
    OURS,
    Change,
    Column,
    Log,
    Table,
    is_ours,
)

LOG = "_delta_log"  # the folder of a table's log
_JOURNAL, _DROPPED = ".journal-", ".dropped-"
_CHECKPOINT_EVERY = 20  # commits: readers begin at the last checkpoint
_TYPE = "importer.type"  # in the metadata of a field: DuckDB's type, where Delta has only texts
_PRIMITIVE = {
    "BIGINT": "long",
    "INTEGER": "integer",
    "DOUBLE": "double",
    "BOOLEAN": "boolean",
    "VARCHAR": "string",
    "JSON": "string",
    "DATE": "date",
    "TIMESTAMP WITH TIME ZONE": "timestamp",
}
_KINDS = {delta: kind for kind, delta in _PRIMITIVE.items() if kind != "JSON"}


@dataclass(frozen=True, slots=True)
class Commit:
    """The next version of a table, as its log stores it; None drops the table."""

    table: str
    version: int
    actions: str | None


class OvertakenError(ConnectorError):
    """Another program has written the version that a commit was to be; `path` is that version in the log."""

    def __init__(self, message: str, path: Path = Path()) -> None:
        super().__init__(message)
        self.path = path


class DeltaLog(Log):
    """The folder of a dataset."""

    filesystem = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._committing = False
        self._marks: dict[str, object] = {}  # of the versions that were read

    def begin(self) -> None:
        pass

    def tables(self) -> list[str]:
        """Return the tables; a folder in which a killed run has not committed yet is none."""
        logs = self.folder.glob(f"[!.]*/{LOG}")
        return sorted(log.parent.name for log in logs if any(log.glob("*.json")) or any(log.glob("*.parquet")))

    def path(self, table: str, file: str) -> str:
        return str(self.folder / table / unquote(file))

    def create(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def read(self, known: Mapping[str, Table]) -> Mapping[str, Table | None] | None:
        self._complete_own()
        if not self.folder.is_dir():
            return None
        # DuckDB ignores case in names: of tables that differ only in case, the last one counts; ours are in lower case
        there = list({lower(name): name for name in self.tables()}.values())
        return {name: self._read_unless_known(name, known.get(name)) for name in there}

    def _read_unless_known(self, name: str, known: Table | None) -> Table | None:
        mark = None if known is None else self._mark(name, known.version)
        if mark is not None and self._marks.get(name) == mark:
            return known
        table = self._read(name)
        if table is not None:
            self._marks[name] = self._mark(name, table.version)
        return table

    def _read(self, table: str) -> Table | None:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            found = DeltaTable(self.folder / table)
        except DeltaError as error:
            why = " ".join(str(error).split())[:300]
            raise ConnectorError(
                f"The Delta table {self.folder / table} cannot be read ({why}). If it is not the connector's, move it "
                "into another folder."
            ) from error
        columns = {field["name"]: _column(field) for field in json.loads(found.schema().to_json())["fields"]}
        if None in columns.values() or found.metadata().partition_columns or found.protocol().min_reader_version > 1:
            return None
        added: Any = pa.table(found.get_add_actions(flatten=True)).to_pylist()
        files = {each["path"]: each["size_bytes"] for each in added}
        known = {name: each for name, each in columns.items() if each is not None}
        return Table(found.version(), str(found.metadata().id), known, files)

    def _mark(self, table: str, version: int) -> object:
        """Return an object that is equal while this is the current version, and the table is not made anew."""
        try:
            found = self._version(table, version).stat()
        except FileNotFoundError:
            return None
        return None if self._version(table, version + 1).exists() else (version, found.st_ino, found.st_mtime_ns)

    def complete(self) -> None:
        """Complete a commit to several tables in which a run was killed. The caller holds the lock."""
        for journal in self.folder.glob(f"{_JOURNAL}*.json"):
            self._apply(journal)

    def _complete_own(self) -> None:
        """Complete a commit to several tables that failed here after a part of it, e.g. because the disk was full."""
        if self._committing:
            self.complete()
            self._committing = False

    def add(self, table: str, write: Callable[[str], None]) -> tuple[str, int]:
        path = write_file(self.folder, table, write)
        return path.name, path.stat().st_size

    def discard(self, table: str, file: str) -> None:
        (self.folder / table / file).unlink(missing_ok=True)

    def commit(self, changes: Sequence[Change]) -> None:
        commits = [_commit_of(each) for each in changes]
        for each in commits:
            if self._version(each.table, each.version).exists():
                raise self._conflict(each)
        if len(commits) == 1:
            self._publish(commits[0])
        elif commits:
            journal = self.folder / f"{_JOURNAL}{uuid4().hex}.json"
            ordered = sorted(commits, key=lambda each: each.actions is None)  # a table that is dropped is gone
            write_once(journal, json.dumps([asdict(each) for each in ordered]))
            self._committing = True
            self._apply(journal)
            self._committing = False
        for each in commits:
            if each.actions is not None and each.version % _CHECKPOINT_EVERY == 0 and each.version:
                with suppress(Exception):  # it only saves readers time, and the commit is done
                    self._checkpoint(each.table)

    def _apply(self, journal: Path) -> None:
        """Publish what is not published yet.

        Raises ConnectorError if another program has written one of the tables. A part that was published is not taken
        back, because readers may have seen it: then the journal stays, and no run goes on without the other part.
        """
        commits = [Commit(**each) for each in json.loads(journal.read_text())]
        try:
            for each in [each for each in commits if not self._is_published(each)]:
                self._publish(each)
        except OvertakenError as error:
            if any(self._is_there(each) for each in commits):
                raise OvertakenError(
                    f"Another program has written the Delta table {error.path.parents[1]} before a change to several "
                    f"tables was complete there. Remove {error.path} and all later files beside it, which undoes what "
                    "that program wrote, and run again: the run completes the change."
                ) from None
            journal.unlink(missing_ok=True)
            raise
        journal.unlink(missing_ok=True)

    def _is_there(self, commit: Commit) -> bool:
        try:
            return self._is_published(commit)
        except OvertakenError:
            return False

    def _is_published(self, commit: Commit) -> bool:
        """Return whether a commit is in its log. Raises OvertakenError if another program's is in its place."""
        path = self._version(commit.table, commit.version)
        try:
            written = path.read_text()
        except FileNotFoundError:
            return commit.actions is None and not (self.folder / commit.table).exists()
        if written != commit.actions:
            raise self._conflict(commit)
        return True

    def _conflict(self, commit: Commit) -> OvertakenError:
        return OvertakenError(
            f"Another program has written the Delta table {self.folder / commit.table} at the same time, so nothing of "
            "this was committed there; only the connector may write its tables. Run again.",
            self._version(commit.table, commit.version),
        )

    def _publish(self, commit: Commit) -> None:
        """Write the commit into the log, unless that has been done."""
        if commit.actions is None:
            _remove(self.folder / commit.table, self.folder)
            return
        path = self._version(commit.table, commit.version)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not commit.version:  # new folders, which a power cut would remove with the table
            for folder in (self.folder.parent, self.folder, path.parent.parent):
                sync(folder)
        try:
            write_once(path, commit.actions)
        except FileExistsError:
            self._is_published(commit)

    def remove(self, *, with_tables: bool) -> None:
        if with_tables:
            _remove(self.folder, self.folder.parent)
        else:
            self.folder.rmdir()

    def _version(self, table: str, version: int) -> Path:
        return self.folder / table / LOG / f"{version:020d}.json"

    def _checkpoint(self, table: str) -> None:
        from deltalake import DeltaTable

        DeltaTable(self.folder / table).create_checkpoint()

    def clean(self, tables: Mapping[str, Table]) -> None:
        from deltalake import DeltaTable

        for left in self.folder.glob(f"{_DROPPED}*"):
            shutil.rmtree(left, ignore_errors=True)
        there = self.tables()
        for left in self.folder.glob(f"*/{OURS}*.parquet"):
            if left.parent.name not in there and is_ours(left.parent.name, left.name):  # it was never committed
                left.unlink(missing_ok=True)
        for name, table in tables.items():
            for file in self.files(name):
                if file.name not in table.files:
                    file.unlink(missing_ok=True)
            for left in (self.folder / name / LOG).glob(".*.new"):
                left.unlink(missing_ok=True)
            self._checkpoint(name)
            DeltaTable(self.folder / name).cleanup_metadata()

    def files(self, table: str) -> Iterator[Path]:
        """Yield the data files that we wrote for a table, current or not."""
        return (each for each in (self.folder / table).glob(f"{OURS}*.parquet") if OUR_NAME.fullmatch(each.name))

    def size(self) -> int:
        return sum(file.stat().st_size for name in self.tables() for file in self.files(name))


def _commit_of(change: Change) -> Commit:
    version = 0 if change.old is None else change.old.version + 1
    return Commit(
        change.table, version, None if change.new is None else _actions_of(change.old, change.new, change.rows)
    )


def _actions_of(old: Table | None, new: Table, rows: Mapping[str, int]) -> str:
    """Return the actions of the log that lead from one version to the next; `rows` are those in each new file."""
    now = int(time.time() * 1000)
    made: list[dict[str, Any]] = [
        {"commitInfo": {"timestamp": now, "operation": "WRITE", "engineInfo": "importer-connector"}}
    ]
    if old is None:
        made.append({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}})
    if old is None or list(old.columns.items()) != list(new.columns.items()):
        fields = [_field(name, column) for name, column in new.columns.items()]
        made.append(
            {
                "metaData": {
                    "id": new.id,
                    "format": {"provider": "parquet", "options": {}},
                    "schemaString": json.dumps({"type": "struct", "fields": fields}),
                    "partitionColumns": [],
                    "configuration": {},
                    "createdTime": now,
                }
            }
        )
    before: Mapping[str, int] = {} if old is None else old.files
    each = {"dataChange": True, "partitionValues": {}}
    made += [{"remove": {**each, "path": p, "deletionTimestamp": now}} for p in before.keys() - new.files.keys()]
    for path in new.files.keys() - before.keys():
        told = {"size": new.files[path], "modificationTime": now, "stats": json.dumps({"numRecords": rows[path]})}
        made.append({"add": {**each, **told, "path": path}})
    return "\n".join(map(json.dumps, made))


def _column(field: Mapping[str, Any]) -> Column | None:
    told, kind = field["metadata"].get(_TYPE), field["type"]
    if not isinstance(kind, str):
        return None
    known = told or (kind.upper() if kind.startswith("decimal") else _KINDS.get(kind))
    return None if known is None else Column(known, not field["nullable"])


def _field(name: str, column: Column) -> dict[str, Any]:
    kind = column.kind.lower() if column.kind.startswith("DECIMAL") else _PRIMITIVE.get(column.kind)
    if kind is None:
        raise ConnectorError(f"The column {name!r} has the type {column.kind}, which a Delta table cannot have.")
    metadata = {_TYPE: column.kind} if column.kind == "JSON" else {}
    return {"name": name, "type": kind, "nullable": not column.required, "metadata": metadata}


def _remove(folder: Path, beside: Path) -> None:
    """Remove a folder, in one step under its name."""
    gone = beside / f"{_DROPPED}{uuid4().hex}"
    with suppress(FileNotFoundError):
        folder.rename(gone)
        shutil.rmtree(gone)
