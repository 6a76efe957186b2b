"""Store the files of a dataset in a folder of this machine (`file_store`), safely on disk before they count."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from connector.warehouse.adapters.file_store import Entry, FileStore
from connector.warehouse.adapters.lake_log import new_name


class FolderStore(FileStore):
    """The folder of a dataset."""

    filesystem = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __str__(self) -> str:
        return str(self.folder)

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def expect(self, sizes: Mapping[str, int]) -> None:
        pass

    def list(self, folder: str = "", after: str = "") -> list[Entry]:
        found = []
        for path in self.folder.glob(f"{folder or '*'}/*"):
            name = path.relative_to(self.folder).as_posix()
            if name > after and not path.name.startswith("."):
                with suppress(FileNotFoundError):
                    status = path.stat()
                    found.append(Entry(name, status.st_size, (status.st_ino, status.st_mtime_ns)))
        return sorted(found, key=lambda entry: entry.name)

    def read(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8")

    def create(self, name: str, text: str) -> object:
        path = self.folder / name
        if not path.parent.exists():
            path.parent.mkdir(parents=True)
            for folder in (self.folder.parent, self.folder):  # a power cut would remove new folders with the file
                sync(folder)
        write_once(path, text)
        status = path.stat()
        return status.st_ino, status.st_mtime_ns

    def replace(self, name: str, text: str) -> None:
        path = self.folder / name
        new = path.with_name(f".{uuid4().hex}.new")
        try:
            write_once(new, text)
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)
        sync(path.parent)

    def add(self, table: str, write: Callable[[str], None]) -> tuple[str, int]:
        is_new = not (self.folder / table).exists()
        path = write_file(self.folder, table, write)
        if is_new:
            sync(self.folder)
        return path.name, path.stat().st_size

    def delete(self, names: Collection[str]) -> None:
        for name in names:
            (self.folder / name).unlink(missing_ok=True)
        for folder in {(self.folder / name).parent for name in names}:
            for left in folder.glob(".*.new"):
                left.unlink(missing_ok=True)
            with suppress(OSError):  # it is not empty
                folder.rmdir()
        with suppress(OSError):
            self.folder.rmdir()


def write_file(folder: Path, table: str, write: Callable[[str], None]) -> Path:
    """Have a new file of a table written, and on disk."""
    path = folder / table / new_name(table)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        write(str(path))
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    sync(path)
    sync(path.parent)
    return path


def write_once(path: Path, text: str) -> None:
    """Create a file with its whole content in one step, on disk; raise FileExistsError if there is one."""
    new = path.with_name(f".{uuid4().hex}.new")
    try:
        with new.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.link(new, path)
    finally:
        new.unlink(missing_ok=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file or a folder is on disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
