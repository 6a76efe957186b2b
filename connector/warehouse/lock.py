"""Lock a dataset for one writer, whatever the name of its pipeline (docs/guarantees.md, "One writer").

If the dataset, or the catalog of its lake, is in a file (DuckDB, SQLite), the lock is a file beside it, which works for
any working directory of dlt. PostgreSQL and MySQL hold the lock themselves, for a session, so that it works across
machines. For other destinations the lock is in dlt's data directory and works on this machine. The operating system
releases a lock when its process ends, a database when its session ends; a run whose session ended is no longer the only
writer and commits nothing more.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from dlt.common.pipeline import get_dlt_pipelines_dir
from dlt.pipeline.pipeline import Pipeline
from filelock import FileLock, Timeout

from connector.errors import ConfigError, ConnectorError, LockedError
from connector.files import check_owners, make_lock_file, write_note
from connector.warehouse.destination import (
    DATASET,
    KEEPALIVES,
    dataset_name,
    destination_config,
    destination_fingerprint,
    destination_type,
    is_writable,
    lake_catalog,
    lake_folder,
    lake_place,
    local_file,
    location,
    postgres_credentials,
)

# A package may take longer than the server's limit on idle sessions, which servers before 14 do not have.
_NO_TIMEOUT = "(SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'idle_session_timeout')"

POLL_S = 0.2
_sessions: WeakKeyDictionary[Pipeline, Any] = WeakKeyDictionary()
_writers: WeakSet[Pipeline] = WeakSet()
# Held locks → the thread that holds them, and their files.
_acquired: WeakKeyDictionary[ExitStack, tuple[int, Path, Path]] = WeakKeyDictionary()


@contextmanager
def sole_writer(pipeline: Pipeline) -> Iterator[None]:
    """Hold the lock of the dataset, and the one of dlt's working directory, which two datasets may share.

    Raises LockedError at once if another process has either lock, and names the process. Raises ConfigError if the file
    of the dataset cannot be written, or if another user owns it or a file beside it. If `acquire_sole_writer` acquired
    one of the two earlier in this thread, that lock is released, because a thread that begins again has given up the
    earlier run.
    """
    _check_owners(pipeline)
    path, working = lock_path(pipeline), _working_path(pipeline)
    for before, (thread, *locks) in list(_acquired.items()):
        if thread == threading.get_ident() and (path in locks or working in locks):
            before.close()
    with ExitStack() as held:
        whole = _is_of_whole_lake(pipeline)
        held.enter_context(_file_lock(path, "into this lake" if whole else f"into dataset {dataset_name(pipeline)!r}"))
        _check_writable(pipeline)
        path.with_suffix(".status").unlink(missing_ok=True)  # of a crashed run; see `connector.warehouse.status`
        held.enter_context(_working_lock(pipeline))
        if postgres_credentials(pipeline) is not None:
            held.enter_context(_advisory_lock(pipeline))
        if destination_type(pipeline) == "mysql":
            held.enter_context(_named_lock(pipeline))
        if (place := lake_place(pipeline)) is not None:
            untyped: Any = pipeline.destination
            untyped.log_at(place, dataset_name(pipeline)).complete()
            for lake in untyped.lakes.values():
                lake.begin()
        held.enter_context(_writing(pipeline))
        yield


@contextmanager
def _writing(pipeline: Pipeline) -> Iterator[None]:
    _writers.add(pipeline)
    try:
        yield
    finally:
        _writers.discard(pipeline)


def is_writer(pipeline: Pipeline) -> bool:
    """Return whether this process holds the lock for a run by this pipeline."""
    return pipeline in _writers


def acquire_sole_writer(pipeline: Pipeline) -> ExitStack:
    """Enter `sole_writer`; return the stack that leaves it when it is closed or collected.

    It is also left when this thread enters `sole_writer` again.
    """
    held = ExitStack()
    held.enter_context(sole_writer(pipeline))
    _acquired[held] = (threading.get_ident(), lock_path(pipeline), _working_path(pipeline))
    return held


@contextmanager
def sole_rewriter(file: Path) -> Iterator[None]:
    """Hold the lock of a file, with all its datasets, while it is replaced.

    Raises LockedError at once if another process holds it.
    """
    with _file_lock(file.with_name(f".{file.name}.rewrite.lock"), f"to rewrite the file {file}"):
        yield


def _working_lock(pipeline: Pipeline) -> AbstractContextManager[None]:
    return _file_lock(_working_path(pipeline), f"in dlt's working directory {pipeline.working_dir}")


def _working_path(pipeline: Pipeline) -> Path:
    return Path(pipeline.pipelines_dir) / f".{pipeline.pipeline_name}.lock"


@contextmanager
def _file_lock(path: Path, which: str) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    make_lock_file(path)
    lock = FileLock(path, timeout=0, thread_local=False)  # it may be released by another thread
    try:
        lock.acquire()
    except Timeout:
        holder = Holder.read_at(path) or "its process has not identified itself yet"
        raise LockedError(
            f"Another run {which} is under way ({holder}); this one did nothing. Wait for it to end, or stop it."
        ) from None
    note = _note_path(path)
    try:
        write_note(note, json.dumps(asdict(Holder.of_this_process())).encode())
        yield
    finally:
        note.unlink(missing_ok=True)
        lock.release()


def check_lock_held(pipeline: Pipeline) -> None:
    """Raise ConnectorError if the session with the database lock is gone: another run may have begun since."""
    session = _sessions.get(pipeline)
    if session is None:
        return
    try:
        with session.cursor() as cursor:
            cursor.execute("SELECT 1")
    except Exception as error:  # psycopg2 is imported only where PostgreSQL is the destination
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConnectorError(
            f"The connection that holds the lock on dataset {dataset_name(pipeline)!r} was lost ({reason}), so another "
            "run may have begun: this one loads no further package. What was committed stays; run again."
        ) from None


def check_lockable(pipeline: Pipeline) -> None:
    """Raise ConfigError if others have access to the file at the lock's path, or if it is a link; create no file.

    Also raise it if the file of the dataset cannot be written, or if another user owns it or a file beside it.
    """
    _check_owners(pipeline)
    path = lock_path(pipeline)
    if os.path.lexists(path):
        make_lock_file(path)
    _check_writable(pipeline)


def _check_owners(pipeline: Pipeline) -> None:
    if (file := local_file(pipeline)) is not None:
        check_owners(file)


def _check_writable(pipeline: Pipeline) -> None:
    if not is_writable(pipeline):
        raise ConfigError(
            f"{location(pipeline)} can be read but not written by this user; check its mode and its file system, or "
            "name another place with --to."
        )
    file = local_file(pipeline)
    if file is not None and file.exists() and file.stat().st_nlink > 1:  # the log and the lock beside it have one name
        raise ConfigError(
            f"The file {file} has a second name (a hard link), and a run under that name would not notice this one; "
            "remove one of the names, or replace it by a symbolic link or a copy."
        )


def lock_path(pipeline: Pipeline) -> Path:
    # a SQLite file is one dataset, whatever name is used for it
    dataset = DATASET if destination_type(pipeline) == "sqlite" else dataset_name(pipeline)
    name = "lake.lock" if _is_of_whole_lake(pipeline) else f"{dataset}.lock"
    file = local_file(pipeline)
    if file is not None:
        file = file.resolve()  # whatever link is used for it
        return file.with_name(f".{file.name}.{name}")
    folder = lake_folder(pipeline)
    if folder is not None:
        return folder.resolve() / f".{name}"
    return Path(get_dlt_pipelines_dir(), f".{destination_fingerprint(pipeline)}.{name}")


def _is_of_whole_lake(pipeline: Pipeline) -> bool:
    """Return whether all datasets of a lake share one lock, because its catalog is in SQLite, which has one writer."""
    return lake_catalog(pipeline) is not None and local_file(pipeline) is not None


@contextmanager
def shard_writer(pipeline: Pipeline, shard: int, shards: int, prepare: Callable[[bool], None]) -> Iterator[None]:
    """Hold the dataset together with the other shards (PostgreSQL); a run and the shards exclude each other.

    First call `prepare` while no other shard begins, and tell it whether this shard is the only one. Raises LockedError
    if a run or the same shard is under way.
    """
    with ExitStack() as held:
        own = shard_path(pipeline, shard, shards)
        held.enter_context(_file_lock(own, f"of shard {shard}/{shards} into dataset {dataset_name(pipeline)!r}"))
        held.enter_context(_working_lock(pipeline))
        session = held.enter_context(_session(pipeline))
        beginning = f"{_lock_name(pipeline)} shards"
        while not _take(session, beginning):
            time.sleep(POLL_S)
        alone = _take(session, _lock_name(pipeline))
        if not (alone or _take(session, _lock_name(pipeline), "_shared")):
            raise _locked(pipeline, "Another run")
        if not _take(session, f"{_lock_name(pipeline)} shard {shard}/{shards}"):
            raise _locked(pipeline, f"Shard {shard}/{shards}")
        held.enter_context(_writing(pipeline))
        prepare(alone)
        if alone:
            _take(session, _lock_name(pipeline), "_shared")
            _release(session, _lock_name(pipeline))
        _release(session, beginning)
        yield


def shard_path(pipeline: Pipeline, shard: int, shards: int) -> Path:
    """Return the path of the lock of a shard on this machine."""
    path = lock_path(pipeline)
    return path.with_name(f"{path.stem}.shard-{shard}-of-{shards}.lock")


@contextmanager
def _advisory_lock(pipeline: Pipeline) -> Iterator[None]:
    with _session(pipeline) as session:
        if not _take(session, _lock_name(pipeline)):
            raise _locked(pipeline, "Another run")
        yield


@contextmanager
def _session(pipeline: Pipeline) -> Iterator[Any]:
    """Yield a separate connection for locks, because dlt's would reconnect after an error and lose them."""
    import psycopg2

    address = postgres_credentials(pipeline).to_native_representation()
    session = psycopg2.connect(address, application_name="importer-connector lock", **KEEPALIVES)
    try:
        session.autocommit = True
        with closing(psycopg2.connect(address)) as other:
            _refuse_shared(session, other)
        _sessions[pipeline] = session
        yield session
    finally:
        _sessions.pop(pipeline, None)
        with suppress(Exception), session.cursor() as cursor:
            # the server detects a closed connection with a delay, and the next command may begin at once
            cursor.execute("SELECT pg_advisory_unlock_all()")
        session.close()


def _refuse_shared(session: Any, other: Any) -> None:
    """Raise ConfigError if a pooler gives the server's session to other clients between two statements.

    The lock would then belong to the next client. Such a pooler gives `other`, which is in a transaction, the server
    session that was used last, and gives `session` another one until that transaction ends.
    """
    before, beside, after = _server_session(session, _NO_TIMEOUT), _server_session(other), _server_session(session)
    if beside == before or after != before:
        raise ConfigError(
            "The address of PostgreSQL leads to a pooler that shares sessions between statements (pgbouncer's "
            "pool_mode = transaction, for one), so no lock keeps a second run out: name the server itself, or a pool "
            "with pool_mode = session."
        )


def _server_session(connection: Any, more: str = "NULL") -> int:
    """Return the server's number of the session, from a query that evaluates `more` as well."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT pg_backend_pid(), {more}")
        return int(cursor.fetchone()[0])


def _lock_name(pipeline: Pipeline) -> str:
    """Return the name of the lock in its database, in which several lakes may have their catalogs."""
    name = f"importer-connector {dataset_name(pipeline)}"
    if lake_catalog(pipeline) is None:
        return name
    lake = destination_config(pipeline).credentials
    return f"{name} of lake {lake.metadata_schema or lake.ducklake_name}"


def _locked(pipeline: Pipeline, who: str) -> LockedError:
    return LockedError(
        f"{who} into dataset {dataset_name(pipeline)!r} of this database is under way (on another "
        "machine or as another user); this one did nothing. Wait for it to end, or stop it."
    )


def _take(session: Any, name: str, how: str = "") -> bool:
    with session.cursor() as cursor:
        cursor.execute(f"SELECT pg_try_advisory_lock{how}(%s)", (_key(name),))
        return bool(cursor.fetchone() == (True,))


def _release(session: Any, name: str) -> None:
    with session.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_unlock(%s)", (_key(name),))


def _key(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)


@contextmanager
def _named_lock(pipeline: Pipeline) -> Iterator[None]:
    """Hold a lock of the MySQL server in a separate session, as `_advisory_lock` does."""
    name = f"importer {hashlib.blake2b(dataset_name(pipeline).encode(), digest_size=16).hexdigest()}"
    connection = destination_config(pipeline).credentials.engine.raw_connection()
    session = connection.driver_connection
    try:
        with session.cursor() as cursor:
            cursor.execute("SELECT GET_LOCK(%s, 0)", (name,))
            if cursor.fetchone() != (1,):
                raise _locked(pipeline, "Another run")
        _sessions[pipeline] = session
        yield
    finally:
        _sessions.pop(pipeline, None)
        connection.close()


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lock, by the note beside the lock."""

    process: int
    host: str
    user: str
    since: str

    @classmethod
    def of_this_process(cls) -> Holder:
        return cls(os.getpid(), socket.gethostname(), _user(), datetime.now(UTC).isoformat(timespec="seconds"))

    @classmethod
    def read_at(cls, lock: Path) -> Holder | None:
        """Return the holder of this lock; None without a readable note. A run that ends removes its note."""
        with suppress(OSError, ValueError, TypeError):
            return cls(**json.loads(_note_path(lock).read_text()))
        return None

    @property
    def is_alive(self) -> bool:
        """Return whether the process still exists; a process of another host is assumed to exist."""
        try:
            if self.host == socket.gethostname() and os.name == "posix":
                os.kill(self.process, 0)
        except PermissionError:
            return True
        except (OSError, TypeError):
            return False
        return True

    def __str__(self) -> str:
        return f"process {self.process} of {self.user} on {self.host}, since {self.since}"


def holder_of(pipeline: Pipeline) -> Holder | None:
    """Return the holder of the dataset's lock by the note beside it; the process may have ended."""
    return Holder.read_at(lock_path(pipeline))


def _note_path(lock: Path) -> Path:
    return lock.with_suffix(".holder")


def _user() -> str:
    """Return the user's name, or the number of a user without one, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return f"uid {os.getuid()}" if os.name == "posix" else "unknown"
