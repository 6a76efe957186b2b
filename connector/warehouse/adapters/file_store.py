"""State what `parquet_log` needs of the place where a dataset has its files: a folder, or a prefix of a bucket.

Names are relative to the dataset and have two parts, such as `records/importer-….parquet`. What is created or replaced
is there with its whole content, or not at all, and is listed at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Entry:
    """A file; `mark` is another one for a file of the same name that was written anew."""

    name: str
    size: int
    mark: object


class FileStore(Protocol):
    """The files of a dataset, ours and others."""

    @property
    def filesystem(self) -> Any:
        """Return what DuckDB opens files with, an fsspec file system; None for a folder."""

    def __str__(self) -> str:
        """Return where the dataset is."""

    def path(self, name: str) -> str:
        """Return the path of a file for DuckDB."""

    def expect(self, sizes: Mapping[str, int]) -> None:
        """Remember the bytes of files that will be read."""

    def list(self, folder: str = "", after: str = "") -> Sequence[Entry]:
        """Return the files in a folder, or in all of them, whose names come after a name, in order."""

    def read(self, name: str) -> str:
        """Return the text of a file. Raises FileNotFoundError."""

    def create(self, name: str, text: str) -> object:
        """Create a file; return its mark. Raises FileExistsError if there is one."""

    def replace(self, name: str, text: str) -> None:
        """Create or replace a file."""

    def add(self, table: str, write: Callable[[str], None]) -> tuple[str, int]:
        """Call `write` with the path of a new file of a table; return its last name and its bytes."""

    def delete(self, names: Collection[str]) -> None:
        """Delete these files, in any order; one may be gone."""
