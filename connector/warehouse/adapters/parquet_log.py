"""Store the tables of a dataset as plain Parquet files, with one log of which files are current.

A commit is a new file in the log, `_importer/<version>.json`, which has all tables of the dataset with their columns
and files. Whoever creates the next version has committed; creating is refused if there is such a file. So a commit to
several tables is one step, and of two writers who began with the same version one fails.

Invariants:

- A run builds on the version that it began with, or on its own last one. If somebody else has committed meanwhile, it
  commits nothing more. This needs no lock, no clock and no lease, so it holds between machines.
- A file is removed only by `clean`, only if its name says that it was written for its table (`lake_log`), and only if
  it was listed before a version was committed that does not have it. A writer who had written it by then began before
  that version, and so cannot commit it any more.
- The newest version is never removed, except with the whole dataset.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any
from uuid import uuid4

from connector.errors import ConnectorError, LockedError, NewerFormatError
from connector.warehouse.adapters.dialect import exactly, literal, quoted
from connector.warehouse.adapters.file_store import Entry, FileStore
from connector.warehouse.adapters.lake_log import Change, Column, Log, Table, is_ours

LOG = "_importer"
VIEWS = f"{LOG}/current.sql"
PROBE = f"{LOG}/probe"  # what `s3_store` tries the service with
FORMAT = 1
_VERSION = re.compile(rf"{LOG}/(\d{{20}})\.json")


class ParquetLog(Log):
    """The log of a dataset."""

    def __init__(self, store: FileStore) -> None:
        self.store = store
        self._writer = uuid4().hex
        self._tables: dict[str, Table] = {}
        self._version = -1  # the one that was read last; -1: there is no dataset
        self._mark: object = None
        self._base: int | None = None  # the version that the next commit has to build on; None: what is read next

    @property
    def filesystem(self) -> Any:
        return self.store.filesystem

    def begin(self) -> None:
        self._base = None

    def complete(self) -> None:
        pass

    def path(self, table: str, file: str) -> str:
        return self.store.path(f"{table}/{file}")

    def add(self, table: str, write: Callable[[str], None]) -> tuple[str, int]:
        return self.store.add(table, write)

    def discard(self, table: str, file: str) -> None:
        self.store.delete([f"{table}/{file}"])

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(self, known: Mapping[str, Table]) -> Mapping[str, Table | None] | None:  # noqa: ARG002
        newest = self._newest()
        if newest is None:
            self._take(-1, None, {})
        elif newest.mark != self._mark or _version_of(newest) != self._version:
            self._read(newest)
        if self._base is None:
            self._base = self._version
        return None if newest is None else {**self._tables}

    def _newest(self) -> Entry | None:
        """Return the newest version; a dataset that was made anew begins with the first."""
        after = f"{LOG}/{self._version - 1:020d}.json" if self._version > 0 else ""
        versions = [each for each in self.store.list(LOG, after) if _VERSION.fullmatch(each.name)]
        if not versions and after:
            versions = [each for each in self.store.list(LOG) if _VERSION.fullmatch(each.name)]
        return versions[-1] if versions else None

    def _read(self, entry: Entry) -> None:
        try:
            found = json.loads(self.store.read(entry.name))
            if found["format"] > FORMAT:
                raise NewerFormatError(
                    f"The files at {self.store} were written by a newer version of the connector; install that one."
                )
            tables = {name: _table(each) for name, each in found["tables"].items()}
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConnectorError(
                f"{self.store.path(entry.name)} cannot be read ({error}): another program has changed it. Restore it "
                "from a backup."
            ) from error
        version = _version_of(entry)
        if found["writer"] == self._writer and self._base is not None and version == self._base + 1:
            self._base = version  # our commit, of which the answer was lost
        self._take(version, entry.mark, tables)

    def _take(self, version: int, mark: object, tables: Mapping[str, Table]) -> None:
        """Note what a version has; a table that did not change stays the same object."""
        self._tables = {name: old if (old := self._tables.get(name)) == each else each for name, each in tables.items()}
        self._version, self._mark = version, mark
        self.store.expect(
            {f"{name}/{file}": size for name, each in tables.items() for file, size in each.files.items()}
        )

    # -- writing ------------------------------------------------------------------------------------------------------

    def create(self) -> None:
        if self.read({}) is None:
            self._commit({})

    def commit(self, changes: Sequence[Change]) -> None:
        tables = {**self._tables, **{each.table: each.new for each in changes}}
        self._commit({name: table for name, table in tables.items() if table is not None})

    def _commit(self, tables: Mapping[str, Table]) -> None:
        if self._version != self._base:
            raise self._overtaken()
        name = _name(self._version + 1)
        told = {"format": FORMAT, "writer": self._writer, "at": datetime.now(UTC).isoformat(timespec="seconds")}
        text = json.dumps({**told, "tables": {name: _json(table) for name, table in tables.items()}}, indent=0)
        try:
            mark = self.store.create(name, text)
        except FileExistsError:
            mark = None
            if self._text(name) != text:  # else the first answer was lost, and the store was asked again
                raise self._overtaken() from None
        if not self._is_newest(name):
            with suppress(Exception):
                self.store.delete([name])  # it is either superseded, or of a dataset that is no longer there
            raise self._overtaken()
        self._take(self._version + 1, mark, tables)
        self._base = self._version
        with suppress(Exception):  # it is for readers, who see the version before until the next commit
            self._write_views()

    def _text(self, name: str) -> str | None:
        try:
            return self.store.read(name)
        except FileNotFoundError:
            return None

    def _is_newest(self, name: str) -> bool:
        """Return whether the version just created follows the one that it builds on, and is the newest.

        A dataset may have been removed since, and old versions are removed, so that creating one again is not refused.
        """
        expected = [name] if self._version < 0 else [_name(self._version), name]
        after = f"{LOG}/{self._version - 1:020d}.json" if self._version > 0 else ""
        return [each.name for each in self.store.list(LOG, after) if _VERSION.fullmatch(each.name)] == expected

    def _overtaken(self) -> LockedError:
        return LockedError(
            f"Another run, on another machine or as another user, has committed to {self.store} since this one began, "
            "so this one stopped before it committed more. What was committed stays; run again when the other has "
            "ended."
        )

    def _write_views(self) -> None:
        self.store.replace(VIEWS, "".join(_view(self.store, name, each) for name, each in self._tables.items()))

    # -- removing -----------------------------------------------------------------------------------------------------

    def clean(self, tables: Mapping[str, Table]) -> None:  # noqa: ARG002
        listed = self._files()
        self._commit(self._tables)  # see the invariants above
        self._write_views()
        current = {f"{name}/{file}" for name, each in self._tables.items() for file in each.files}
        self.store.delete([each.name for each in listed if each.name not in current])
        versions = [each.name for each in self.store.list(LOG) if _VERSION.fullmatch(each.name)]
        self.store.delete([name for name in versions if name < _name(self._version)])

    def remove(self, *, with_tables: bool) -> None:
        """Remove the dataset, but no file of a user; without `with_tables`, raise OSError if there is a table."""
        if self.read({}) and not with_tables:
            raise OSError(f"There are tables in {self.store}.")
        versions = [each.name for each in self.store.list(LOG) if _VERSION.fullmatch(each.name)]
        self.store.delete(versions[:-1])  # so that no earlier version is ever the newest
        self.store.delete([*versions[-1:], VIEWS, PROBE])
        self.store.delete([each.name for each in self._files()])
        self._take(-1, None, {})
        self._base = -1

    def size(self) -> int:
        return sum(each.size for each in self._files())

    def _files(self) -> list[Entry]:
        """Return the files that we wrote, current or not."""
        return [each for each in self.store.list() if is_ours(*each.name.split("/", 1))]


def _name(version: int) -> str:
    return f"{LOG}/{version:020d}.json"


def _version_of(entry: Entry) -> int:
    return int(PurePosixPath(entry.name).stem)


def _json(table: Table) -> dict[str, Any]:
    columns = [[name, each.kind, each.required] for name, each in table.columns.items()]
    return {"id": table.id, "version": table.version, "columns": columns, "files": dict(table.files)}


def _table(found: Mapping[str, Any]) -> Table:
    columns = {name: Column(kind, required) for name, kind, required in found["columns"]}
    return Table(found["version"], found["id"], columns, found["files"])


def _view(store: FileStore, name: str, table: Table) -> str:
    """Return SQL for DuckDB that creates a view of the current rows."""
    rows = ", ".join(f"CAST(NULL AS {each.kind}) AS {quoted(c)}" for c, each in table.columns.items())
    rows = f"SELECT {rows} WHERE false"  # for columns that are in no file yet
    if table.files:
        paths = ", ".join(literal(exactly(store.path(f"{name}/{file}"))) for file in table.files)
        plain = "union_by_name = true, hive_partitioning = false"
        rows = f"{rows} UNION ALL BY NAME SELECT * FROM read_parquet([{paths}], {plain})"
    values = ", ".join(f"CAST({quoted(c)} AS {each.kind}) AS {quoted(c)}" for c, each in table.columns.items())
    return f"CREATE OR REPLACE VIEW {quoted(name)} AS SELECT {values} FROM ({rows});\n"
