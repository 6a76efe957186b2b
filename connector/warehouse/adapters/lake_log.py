"""State what a `lake.Lake` needs of the log that says which Parquet files a table has now.

`delta_log` has a log for each table, as other programs know it; `parquet_log` has one for all tables of a dataset.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

OURS = "importer-"  # how the names of our files begin
OUR_NAME = re.compile(rf"{OURS}(?:(?P<table>[0-9a-f]{{8}})-)?[0-9a-f]{{32}}\.parquet")


@dataclass(frozen=True, slots=True)
class Column:
    """A column: DuckDB's type, and whether it cannot be null."""

    kind: str
    required: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A version of a table: its id, its columns in their order, and the bytes of each of its files."""

    version: int
    id: str
    columns: Mapping[str, Column]
    files: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Change:
    """The next version of a table, or None if it is dropped; `rows` are those in each new file."""

    table: str
    old: Table | None
    new: Table | None
    rows: Mapping[str, int]


class Log(Protocol):
    """The tables of a dataset and their files. A file is never changed, only written, or removed by `clean`."""

    @property
    def filesystem(self) -> Any:
        """Return what DuckDB opens files with, an fsspec file system; None for a folder."""

    def begin(self) -> None:
        """Take what is there now for what the next commits build on: the caller has just got the lock."""

    def complete(self) -> None:
        """Complete a commit in which a run was killed. The caller holds the lock."""

    def read(self, known: Mapping[str, Table]) -> Mapping[str, Table | None] | None:
        """Return the tables as they are now; None if there is no dataset.

        A table that did not change is the known object; None stands for a table of another program with types or
        features that ours do not have. Raises ConnectorError if a table cannot be read.
        """

    def create(self) -> None:
        """Create the dataset unless it is there."""

    def remove(self, *, with_tables: bool) -> None:
        """Remove the dataset; without `with_tables`, raise OSError if there is something in it."""

    def path(self, table: str, file: str) -> str:
        """Return the path of a file for DuckDB."""

    def add(self, table: str, write: Callable[[str], None]) -> tuple[str, int]:
        """Call `write` with the path of a new file; return its name and its bytes once it is safely stored."""

    def discard(self, table: str, file: str) -> None:
        """Remove a new file that will not be committed."""

    def commit(self, changes: Sequence[Change]) -> None:
        """Commit all these changes. Raises ConnectorError if somebody else has committed meanwhile."""

    def clean(self, tables: Mapping[str, Table]) -> None:
        """Remove our files that these tables do not have, what killed runs left, and old logs."""

    def size(self) -> int:
        """Return the bytes of our files, those of earlier versions too."""


def new_name(table: str) -> str:
    """Return a name for a new file of a table; it says which table, because a user's copy of a file is not ours."""
    return f"{OURS}{_digest(table)}-{uuid4().hex}.parquet"


def is_ours(table: str, file: str) -> bool:
    """Return whether `new_name` made this name for this table."""
    found = OUR_NAME.fullmatch(file)
    return found is not None and found["table"] == _digest(table)


def _digest(table: str) -> str:
    return hashlib.blake2b(table.encode(), digest_size=4).hexdigest()
