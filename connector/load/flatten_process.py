"""Flatten rows in a child process, so that this one's interpreter is free for reading.

The child runs the same function with the same arguments and keeps no state. If no child can be started, or it dies, the
rows are flattened in this process.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import socket
import struct
import subprocess
import sys
import threading
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec
import pyarrow as pa

from connector.transform.flatten import Flattened, flatten
from connector.transform.schema import TableSchema
from connector.transform.width import UNBOUNDED, Room, TooWide

log = logging.getLogger("connector.run")

FEW_ROWS: Final = 500  # fewer rows are flattened faster here than in another process
ENOUGH_ROWS: Final = 10_000  # rows from which on a child process saves time
MANY_BYTES: Final = 16 * 2**20  # so large that two processes should not hold copies

_PROGRAM = f"""
from connector.startup import Hidden, exempt_from_collection
with Hidden("numpy", "pandas"):
    with exempt_from_collection():
        from {__name__} import serve
    serve()
"""
_HEAD = struct.Struct("!QQ")
_ALIGNED = 64  # bytes, as Arrow wants its buffers
_PIECES_AT_ONCE = 512  # of a message; Linux takes twice as many
_SEND_TIMEOUT = struct.pack("ll", 10, 0)  # seconds and microseconds; longer than any batch takes


class Texts:
    """The JSON texts of some records, one by one and, once requested, as a column."""

    def __init__(self, rows: Sequence[bytes]) -> None:
        self.rows = rows

    @cached_property
    def column(self) -> pa.Array[Any]:
        return pa.array(self.rows, pa.binary())


def flatten_here(
    texts: Texts, schema: TableSchema, hints: Mapping[str, str], /, *, nul_safe: bool, room: Room = UNBOUNDED
) -> Flattened:
    """Flatten some records by `connector.transform.flatten.flatten`."""
    return flatten(texts.rows, schema, hints, nul_safe=nul_safe, room=room)


class Flattener:
    """`flatten_here` in a child process, for one caller at a time; `close` ends the process, from any thread."""

    def __init__(self) -> None:
        self._rows = 0
        self._helper: _Helper | None = None
        self._closed = False
        self._changing = threading.Lock()

    def __call__(
        self,
        texts: Texts,
        schema: TableSchema,
        hints: Mapping[str, str],
        /,
        *,
        nul_safe: bool,
        room: Room = UNBOUNDED,
    ) -> Flattened:
        rows = texts.rows
        before, self._rows = self._rows, self._rows + len(rows)
        try:
            if before <= ENOUGH_ROWS < self._rows:
                self._start()
            helper = self._helper
            if helper is not None and len(rows) > FEW_ROWS and sum(map(len, rows)) <= MANY_BYTES and helper.is_ready():
                return helper.flatten(texts.column, schema, hints, nul_safe, room)
        except TooWide:
            raise
        except BaseException as problem:
            self.close()  # a late reply must not be mistaken for the reply to the next request
            if not isinstance(problem, Exception):
                raise
            log.info("Rows are flattened in this process from now on.", extra={"event": "flattening.alone"})
        return flatten_here(texts, schema, hints, nul_safe=nul_safe, room=room)

    def _start(self) -> None:
        with self._changing:
            if not self._closed and _is_of_use():
                self._helper = _Helper()

    def close(self) -> None:
        """End the process for good; safe to call twice."""
        with self._changing:
            self._closed = True
            helper, self._helper = self._helper, None
        if helper is not None:
            helper.close()


class _Helper:
    """The child process as seen from the parent. After any exception it is unusable."""

    def __init__(self) -> None:
        self._ready = False
        self._line, theirs = socket.socketpair()
        try:
            with theirs:
                for end in (self._line, theirs):
                    end.setblocking(True)
                for way in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                    self._line.setsockopt(socket.SOL_SOCKET, way, _SEND_TIMEOUT)
                self.process = subprocess.Popen(  # noqa: S603 - nothing in it comes from outside
                    [sys.executable, "-P", "-c", _PROGRAM],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
        except BaseException:
            self._line.close()
            raise

    def is_ready(self) -> bool:
        """Return whether it has imported what it needs. Raises ImportError if its code is not what is running here."""
        if not self._ready:
            try:
                self._line.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK)
            except BlockingIOError:
                return False
            if _receive(self._line) != _code():
                raise ImportError(__name__)
            self._ready = True
        return True

    def flatten(
        self, rows: pa.Array[Any], schema: TableSchema, hints: Mapping[str, str], nul_safe: bool, room: Room = UNBOUNDED
    ) -> Flattened:
        _send(self._line, (rows, schema, hints, nul_safe, room))
        answer = _receive(self._line)
        if isinstance(answer, TooWide):
            raise answer
        if not isinstance(answer, Flattened):
            raise TypeError(type(answer))
        return answer

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._line.close()


def serve() -> None:
    """Flatten what the parent sends, until the socket to it is closed or breaks; the main function of the child."""
    with socket.socket(fileno=sys.stdin.fileno()) as line, suppress(OSError, EOFError):
        _send(line, _code())
        while True:
            rows, schema, hints, nul_safe, room = _receive(line)
            try:
                _send(line, flatten(rows.to_pylist(), schema, hints, nul_safe=nul_safe, room=room))
            except TooWide as wide:
                _send(line, wide)


def _is_of_use() -> bool:
    """Return whether a child saves time: not if Python is embedded or isolated, or has only one processor."""
    embedded = hasattr(sys, "frozen") or "python" not in Path(sys.executable or "").name
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return processors > 1 and not embedded and not sys.flags.ignore_environment


def _stamps() -> list[tuple[str, int, int]]:
    """Return time and size of each source file that affects rows.

    If one was replaced while the program is running, a child would run other code.
    """
    files = [
        Path(__file__),
        *sorted(Path(__file__).parents[1].glob("transform/*.py")),
        Path(msgspec.__file__),
        Path(pa.__file__),
    ]
    return [(str(file), found.st_mtime_ns, found.st_size) for file in files if file.exists() for found in [file.stat()]]


_STAMPS = _stamps()


def _code() -> tuple[object, ...]:
    return sys.version, sys.getrecursionlimit(), _STAMPS


def _read_only(mapping: dict[Any, Any]) -> Mapping[Any, Any]:
    return MappingProxyType(mapping)


_REDUCERS: Mapping[type, Any] = {MappingProxyType: lambda view: (_read_only, (dict(view),))}


def _send(line: socket.socket, message: object) -> None:
    """Send a message: the number of parts and bytes, the length of each part, the pickle, and its buffers uncopied."""
    buffers: list[pickle.PickleBuffer] = []
    packed = io.BytesIO()
    pickler = pickle.Pickler(packed, pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append)
    pickler.dispatch_table = _REDUCERS
    pickler.dump(message)
    parts = [packed.getbuffer(), *(buffer.raw() for buffer in buffers)]
    lengths = memoryview(array("q", [part.nbytes for part in parts])).cast("B")
    pieces = [memoryview(_HEAD.pack(len(parts), sum(_padded(part.nbytes) for part in (lengths, *parts))))]
    for part in (lengths, *parts):
        pieces += part, memoryview(bytes(-part.nbytes % _ALIGNED))
    while pieces:  # sent as separate buffers: joining them would copy them once more
        sent = line.sendmsg(pieces[:_PIECES_AT_ONCE])
        while pieces and sent >= pieces[0].nbytes:
            sent -= pieces.pop(0).nbytes
        if sent:
            pieces[0] = pieces[0][sent:]


def _receive(line: socket.socket) -> Any:
    count, size = _HEAD.unpack(_exactly(line, _HEAD.size))
    body = _exactly(line, size)
    lengths = array("q", body[: 8 * count].to_pybytes())
    at = _padded(8 * count)
    parts: list[pa.Buffer] = []
    for length in lengths:
        parts.append(body.slice(at, length))
        at += _padded(length)
    return pickle.loads(parts[0], buffers=parts[1:])  # noqa: S301 - the other end is this module too


def _padded(length: int) -> int:
    return length + -length % _ALIGNED


def _exactly(line: socket.socket, length: int) -> pa.Buffer:
    received = pa.allocate_buffer(length)
    rest = memoryview(received)
    while rest:
        # in one piece if possible, because each piece has to wait for the interpreter again
        size = line.recv_into(rest, len(rest), socket.MSG_WAITALL)
        if not size:
            raise EOFError
        rest = rest[size:]
    return received
