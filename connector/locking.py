"""One writer per pipeline and destination (CONTRACT §4.7): a lock that the operating system drops with its process.

For DuckDB the lock lies beside the database file, so that it holds whatever working directory dlt uses; PostgreSQL
keeps it itself, as an advisory lock of the session, so that it holds across machines; for other destinations it lies
in dlt's pipelines directory and holds on this machine.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from dlt.pipeline.pipeline import Pipeline
from filelock import FileLock, Timeout

from connector.errors import LockedError

_configs: WeakKeyDictionary[Pipeline, tuple[Any, Any]] = WeakKeyDictionary()


@contextmanager
def sole_writer(pipeline: Pipeline) -> Iterator[None]:
    """Holds the lock; raises LockedError at once if another process has it, and names that process."""
    with ExitStack() as held:
        path = lock_path(pipeline)
        lock = FileLock(path, timeout=0)
        try:
            held.enter_context(lock)
        except Timeout:
            raise LockedError(
                f"Another run of pipeline {pipeline.pipeline_name!r} is under way ({_holder(path)}); "
                "this one did nothing. Wait for it to end, or stop it."
            ) from None
        path.with_suffix(".status").unlink(missing_ok=True)  # of a dead run; see `connector.overview`
        note = path.with_suffix(".holder")
        note.write_text(json.dumps(_self()))
        held.callback(note.unlink, missing_ok=True)
        if _speaks_postgres(pipeline):
            held.enter_context(_advisory_lock(pipeline))
        yield


def lock_path(pipeline: Pipeline) -> Path:
    name = f"{pipeline.pipeline_name}-{pipeline.dataset_name}"
    with_file = duckdb_file(pipeline)
    if with_file is not None:
        with_file.parent.mkdir(parents=True, exist_ok=True)
        return with_file.with_name(f".{with_file.name}.{name}.lock")
    place = Path(pipeline.pipelines_dir)
    place.mkdir(parents=True, exist_ok=True)
    return place / f".{name}-{destination_fingerprint(pipeline)}.lock"


def destination_config(pipeline: Pipeline) -> Any:
    """The configuration of the pipeline's destination, which dlt resolves anew each time it is asked."""
    known = _configs.get(pipeline)
    if known is None or known[0] is not pipeline.destination:
        # not `with`: that would connect, and another run may hold the file
        known = _configs[pipeline] = pipeline.destination, pipeline.destination_client().config
    return known[1]


def duckdb_file(pipeline: Pipeline) -> Path | None:
    if not _client_is(pipeline, "duckdb"):
        return None
    database = str(getattr(destination_config(pipeline).credentials, "database", ":memory:"))
    return None if database.startswith((":", "md:")) else Path(database)


def destination_fingerprint(pipeline: Pipeline) -> str:
    """Tells one warehouse from another without saying where it is or with which password."""
    file = duckdb_file(pipeline)
    config = destination_config(pipeline)
    # dlt's own fingerprint is of the host at most: two databases of one server are two warehouses
    place = [getattr(config.credentials, name, None) for name in ("host", "port", "database")]
    identity = [config.fingerprint(), *place] if file is None else [str(file.absolute())]
    return hashlib.blake2b(repr(identity).encode(), digest_size=6).hexdigest()


def _client_is(pipeline: Pipeline, kind: str) -> bool:
    destination = pipeline.destination
    return destination is not None and destination.destination_type.rsplit(".", 1)[-1] == kind


def _speaks_postgres(pipeline: Pipeline) -> bool:
    return _client_is(pipeline, "postgres")


@contextmanager
def _advisory_lock(pipeline: Pipeline) -> Iterator[None]:
    name = f"importer-connector {pipeline.pipeline_name} {pipeline.dataset_name}"
    key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)
    with pipeline.sql_client() as client:
        rows = client.execute_sql("SELECT pg_try_advisory_lock(%s)", key)
        if not rows or not rows[0][0]:
            raise LockedError(
                f"Another run of pipeline {pipeline.pipeline_name!r} into this database is under way on another "
                "machine; this one did nothing. Wait for it to end, or stop it."
            )
        yield


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
        "user": getpass.getuser(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _holder(path: Path) -> str:
    try:
        noted = json.loads(path.with_suffix(".holder").read_text())
        return f"process {noted['process']} of {noted['user']} on {noted['host']}, since {noted['since']}"
    except (OSError, ValueError, KeyError):
        return "its process has not said who it is yet"
