"""One writer per dataset (CONTRACT §4.12): the lock is that of data location × dataset, whatever the pipeline's name.

For DuckDB the lock lies beside the database file, so that it holds whatever working directory dlt uses; PostgreSQL
keeps it itself, as an advisory lock of a session, so that it holds across machines; for other destinations it lies
in dlt's data directory and holds on this machine. The operating system drops a lock with its process, PostgreSQL with
its session; a run whose session ended meanwhile is no longer the only writer and commits nothing more.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from dlt.common.configuration.exceptions import ConfigurationException
from dlt.common.pipeline import get_dlt_pipelines_dir
from dlt.pipeline.pipeline import Pipeline
from filelock import FileLock, Timeout

from connector.errors import ConnectorError, LockedError

# So that a firewall keeps the connection of a run that takes hours, and the run learns within two minutes that it went.
_KEEPALIVES = {"keepalives": 1, "keepalives_idle": 30, "keepalives_interval": 15, "keepalives_count": 5}


@dataclass(frozen=True, slots=True)
class _Resolved:
    """What dlt makes of a destination: its configuration, and the dataset by the name that it has there."""

    destination: Any
    asked: str
    config: Any
    dataset: str


_resolved: WeakKeyDictionary[Pipeline, _Resolved] = WeakKeyDictionary()
_sessions: WeakKeyDictionary[Pipeline, Any] = WeakKeyDictionary()


@contextmanager
def sole_writer(pipeline: Pipeline) -> Iterator[None]:
    """Holds the lock of the dataset, and the one of dlt's working directory, which two datasets may share.

    Raises LockedError at once if another process has one of them, and names that process.
    """
    with ExitStack() as held:
        path = lock_path(pipeline)
        held.enter_context(_file_lock(path, f"into dataset {_dataset(pipeline)!r}"))
        path.with_suffix(".status").unlink(missing_ok=True)  # of a dead run; see `connector.warehouse.status`
        directory = Path(pipeline.pipelines_dir)
        directory.mkdir(parents=True, exist_ok=True)
        working = directory / f".{pipeline.pipeline_name}.lock"
        held.enter_context(_file_lock(working, f"in dlt's working directory {pipeline.working_dir}"))
        if _speaks_postgres(pipeline):
            held.enter_context(_advisory_lock(pipeline))
        yield


@contextmanager
def _file_lock(path: Path, which: str) -> Iterator[None]:
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise LockedError(
            f"Another run {which} is under way ({_holder(path)}); this one did nothing. Wait for it to end, or stop it."
        ) from None
    note = path.with_suffix(".holder")
    try:
        note.write_text(json.dumps(_self()))
        yield
    finally:
        note.unlink(missing_ok=True)
        lock.release()


def prove_held(pipeline: Pipeline) -> None:
    """Raise ConnectorError if the session with the lock of a database is gone: another run may have begun since."""
    session = _sessions.get(pipeline)
    if session is None:
        return
    try:
        with session.cursor() as cursor:
            cursor.execute("SELECT 1")
    except Exception as error:  # psycopg2 is imported only where PostgreSQL is the destination
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConnectorError(
            f"The connection that holds the lock on dataset {_dataset(pipeline)!r} was lost ({reason}), so another run "
            "may have begun: this one stopped before it committed more. What was committed stays; run again."
        ) from None


def lock_path(pipeline: Pipeline) -> Path:
    name = f"{_dataset(pipeline)}.lock"
    file = duckdb_file(pipeline)
    if file is not None:
        file = file.resolve()  # by whatever link it is reached
        file.parent.mkdir(parents=True, exist_ok=True)
        return file.with_name(f".{file.name}.{name}")
    place = Path(get_dlt_pipelines_dir())
    place.mkdir(parents=True, exist_ok=True)
    return place / f".{destination_fingerprint(pipeline)}.{name}"


def destination_config(pipeline: Pipeline) -> Any:
    """The configuration of the pipeline's destination, which dlt resolves anew each time it is asked."""
    return _of(pipeline).config


def _dataset(pipeline: Pipeline) -> str:
    return _of(pipeline).dataset


def _of(pipeline: Pipeline) -> _Resolved:
    known = _resolved.get(pipeline)
    if known is None or known.destination is not pipeline.destination or known.asked != pipeline.dataset_name:
        client = pipeline.destination_client()  # not `with`: that would connect, and another run may hold the file
        dataset = getattr(getattr(client, "sql_client", None), "dataset_name", None) or pipeline.dataset_name or ""
        known = _Resolved(pipeline.destination, pipeline.dataset_name, client.config, dataset)
        _resolved[pipeline] = known
    return known


def duckdb_file(pipeline: Pipeline) -> Path | None:
    if not _client_is(pipeline, "duckdb"):
        return None
    database = str(getattr(destination_config(pipeline).credentials, "database", ":memory:"))
    return None if database.startswith((":", "md:")) else Path(database)


def destination_fingerprint(pipeline: Pipeline) -> str:
    """Tells one warehouse from another without saying where it is; no password or user is part of it."""
    kind = pipeline.destination.destination_type if pipeline.destination else ""
    return _digest(kind.rsplit(".", 1)[-1], _data_location(pipeline))


def dataset_fingerprint(pipeline: Pipeline) -> str:
    """Tells one dataset from all others, of whatever warehouse."""
    return _digest(destination_fingerprint(pipeline), _dataset(pipeline))


def _data_location(pipeline: Pipeline) -> str:
    """Where the data is, in dlt's words: a file, or `host:port/database`."""
    file, config = duckdb_file(pipeline), destination_config(pipeline)
    if file is not None:
        return str(file.resolve())
    with suppress(ConfigurationException):  # it can't be told, e.g. of a database in memory
        location = config.data_location()
        if location is not None:
            return str(location)
    return f"{config.fingerprint()} {getattr(config.credentials, 'database', '')}"


def _digest(*parts: str) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=6).hexdigest()


def _client_is(pipeline: Pipeline, kind: str) -> bool:
    destination = pipeline.destination
    return destination is not None and destination.destination_type.rsplit(".", 1)[-1] == kind


def _speaks_postgres(pipeline: Pipeline) -> bool:
    return _client_is(pipeline, "postgres")


@contextmanager
def _advisory_lock(pipeline: Pipeline) -> Iterator[None]:
    """Holds it with a connection of its own: dlt's would connect once more after an error, without the lock."""
    import psycopg2

    name = f"importer-connector {_dataset(pipeline)}"  # an advisory lock is one of the database that it is taken in
    key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)
    address = destination_config(pipeline).credentials.to_native_representation()
    session = psycopg2.connect(address, application_name="importer-connector lock", **_KEEPALIVES)
    try:
        session.autocommit = True
        with session.cursor() as cursor:
            # a package may take longer than a server lets sessions idle; servers before 14 know no such limit
            cursor.execute("SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'idle_session_timeout'")
            cursor.execute("SELECT pg_try_advisory_lock(%s)", (key,))
            if cursor.fetchone() != (True,):
                raise LockedError(
                    f"Another run into dataset {_dataset(pipeline)!r} of this database is under way (on another "
                    "machine or as another user); this one did nothing. Wait for it to end, or stop it."
                )
        _sessions[pipeline] = session
        yield
    finally:
        _sessions.pop(pipeline, None)
        session.close()


def holder_lives(pipeline: Pipeline) -> bool:
    """Whether the process that said it holds the lock is still there; one of another host is taken to be."""
    try:
        noted = json.loads(lock_path(pipeline).with_suffix(".holder").read_text())
        if noted["host"] == socket.gethostname() and os.name == "posix":
            os.kill(noted["process"], 0)
    except PermissionError:
        return True
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return True


def _self() -> dict[str, object]:
    return {
        "process": os.getpid(),
        "host": socket.gethostname(),
        "user": _user(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _user() -> str:
    """Return the user's name, or the number of one who has none here, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return f"uid {os.getuid()}" if os.name == "posix" else "unknown"


def _holder(path: Path) -> str:
    try:
        noted = json.loads(path.with_suffix(".holder").read_text())
        return f"process {noted['process']} of {noted['user']} on {noted['host']}, since {noted['since']}"
    except (OSError, ValueError, KeyError):
        return "its process has not said who it is yet"
