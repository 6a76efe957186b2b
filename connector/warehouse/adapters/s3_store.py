"""Store the files of a dataset under a prefix of a bucket in S3 (`file_store`).

`obstore` speaks to S3, with keys from the environment, and DuckDB reads through it, only the parts of a file that a
query needs. No extension of DuckDB is downloaded. An object in S3 appears with its whole content, and is listed at
once; to create one only if it is not there is a request with `If-None-Match: *`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import S3Store as Bucket

from connector.errors import ConfigError, TransientError
from connector.warehouse.adapters.file_store import Entry, FileStore
from connector.warehouse.adapters.lake_log import new_name
from connector.warehouse.adapters.parquet_log import PROBE
from connector.warehouse.left_spill import spill_folder
from connector.warehouse.s3_address import S3Address

_METADATA = "169.254.169.254"  # of a machine in AWS


class S3Store(FileStore):
    """A prefix of a bucket."""

    def __init__(self, place: S3Address, dataset: str) -> None:
        self.place, self.dataset = place, dataset
        self.sizes: dict[str, int] = {}  # of files that will be read; a file is never changed
        given: Any = {key: value for key in ("endpoint", "region") if (value := getattr(place, key)) is not None}
        plain: Any = {"allow_http": place.is_plain_http}
        self.bucket = Bucket(place.bucket, prefix=f"{place.prefix}/{dataset}", client_options=plain, **given)
        self._is_proven = False

    def __str__(self) -> str:
        return f"{self.place}/{self.dataset}"

    @cached_property
    def filesystem(self) -> Any:
        return _Files(self)

    def path(self, name: str) -> str:
        return f"{self}/{name}"

    def expect(self, sizes: Mapping[str, int]) -> None:
        self.sizes.update(sizes)

    def list(self, folder: str = "", after: str = "") -> list[Entry]:
        with self.explained():
            listed = obstore.list(self.bucket, folder or None, offset=after or None)
            found = [Entry(each["path"], each["size"], each["e_tag"]) for part in listed for each in part]
        return sorted((entry for entry in found if entry.name.count("/") == 1), key=lambda entry: entry.name)

    def read(self, name: str) -> str:
        with self.explained():
            return bytes(obstore.get(self.bucket, name).bytes()).decode()

    def create(self, name: str, text: str) -> object:
        self._prove()
        with self.explained():
            return obstore.put(self.bucket, name, text.encode(), mode="create")["e_tag"]

    def _prove(self) -> None:
        """Raise ConfigError if this service overwrites what is to be created only if it is not there.

        Some services ignore the condition, and two runs could then overwrite each other's commits.
        """
        if self._is_proven:
            return
        with self.explained():
            obstore.put(self.bucket, PROBE, b"")
            try:
                obstore.put(self.bucket, PROBE, b"", mode="create")
            except (AlreadyExistsError, PreconditionError):
                self._is_proven = True
                return
        raise ConfigError(
            f"The service of {self.place} overwrites an object that is there although it was told not to "
            "(If-None-Match), so two runs could overwrite each other's commits; use another service, or a newer "
            "version of it."
        )

    def replace(self, name: str, text: str) -> None:
        with self.explained():
            obstore.put(self.bucket, name, text.encode())

    def add(self, table: str, write: Callable[[str], None]) -> tuple[str, int]:
        path, name = self._scratch / uuid4().hex, new_name(table)
        try:
            write(str(path))
            size = path.stat().st_size
            with self.explained():
                obstore.put(self.bucket, f"{table}/{name}", path)
        finally:
            path.unlink(missing_ok=True)
        self.sizes[f"{table}/{name}"] = size
        return name, size

    @cached_property
    def _scratch(self) -> Path:
        return Path(spill_folder())

    def delete(self, names: Collection[str]) -> None:
        if names:
            with self.explained():
                obstore.delete(self.bucket, [*names])

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise the errors of obstore as ours, in one sentence; they have no keys in them."""
        try:
            yield
        except (AlreadyExistsError, PreconditionError) as error:
            raise FileExistsError(str(self)) from error
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise self._refused(error) from error
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise self._no_bucket() from error
            raise
        except (BaseError, NotSupportedError) as error:
            if "NoSuchBucket" in str(error):
                raise self._no_bucket() from error
            if _METADATA in str(error):  # where obstore asks for keys last
                raise ConfigError(
                    f"There are no keys for {self.place}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run on a "
                    "machine of AWS that has a role."
                ) from error
            if re.search("status code: 40[13]", str(error)):  # of a listing
                raise self._refused(error) from error
            raise TransientError(f"S3 did not answer for {self.place}: {_short(error)}. Run again.") from error

    def _refused(self, error: Exception) -> ConfigError:
        return ConfigError(
            f"S3 refused access to {self.place}: {_short(error)}. Check the keys (AWS_ACCESS_KEY_ID and so on) and "
            "their rights: list, get, put, delete."
        )

    def _no_bucket(self) -> ConfigError:
        return ConfigError(f"There is no bucket {self.place.bucket}: create it, or name another one with --to.")


def _short(error: Exception) -> str:
    """Return what happened, without the details that obstore prints for its developers."""
    return " ".join(str(error).partition("Debug source:")[0].split())[:300]


class _Files(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """What DuckDB opens the files of a dataset with: for reading, and no others."""

    protocol = "s3"
    cachable = False

    def __init__(self, store: S3Store) -> None:
        super().__init__()
        self._store = store

    def open(self, path: str, mode: str = "rb", **_: Any) -> _File:
        name = path.removeprefix(f"{self._store}/")
        size = self._store.sizes.get(name)
        if size is None or mode != "rb":
            raise FileNotFoundError(path)
        return _File(self._store, name, size)

    def glob(self, path: str, **_: Any) -> list[str]:
        return [path]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "type": "file", "size": self.open(path).size}

    def exists(self, path: str, **_: Any) -> bool:
        return path.removeprefix(f"{self._store}/") in self._store.sizes

    def modified(self, path: str) -> Any:
        del path
        return datetime(2020, 1, 1, tzinfo=UTC)  # DuckDB keeps what it has read; a file is never changed


class _File:
    """An open file, of which each read is a request."""

    closed = False

    def __init__(self, store: S3Store, name: str, size: int) -> None:
        self._store, self._name, self.size, self._at = store, name, size, 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self.size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, length: int = -1) -> bytes:
        end = self.size if length < 0 else min(self.size, self._at + length)
        if end <= self._at:
            return b""
        try:
            with self._store.explained():
                found = bytes(obstore.get_range(self._store.bucket, self._name, start=self._at, end=end))
        except FileNotFoundError:
            raise TransientError(
                f"{self._store.path(self._name)} is gone: `compact` removed earlier versions meanwhile. Run again."
            ) from None
        self._at = end
        return found

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True
