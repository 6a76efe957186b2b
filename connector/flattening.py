"""Flattening in a process of its own, which leaves this one's interpreter to reading.

It is the same function with the same arguments, and nothing is kept there: where no such process can be had, or it
dies, the rows are flattened here.
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
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa

from connector.core.flatten import Flattened, flatten
from connector.core.schema import TableSchema

if TYPE_CHECKING:
    from typing_extensions import Buffer

log = logging.getLogger("connector.run")

FEW_ROWS: Final = 500  # flattened sooner than sent to another process and back
ENOUGH_ROWS: Final = 10_000  # from which on it is worth starting one

_HEAD = struct.Struct("!QQ")
_ALIGNED = 64  # bytes, as Arrow wants its buffers


class Flattener:
    """`connector.core.flatten.flatten`, for one caller at a time; `close` ends the process if there is one."""

    def __init__(self) -> None:
        self._rows = 0
        self._helper: _Helper | None = None

    def __call__(
        self, rows: Sequence[bytes], schema: TableSchema, hints: Mapping[str, str], /, *, nul_safe: bool
    ) -> Flattened:
        before, self._rows = self._rows, self._rows + len(rows)
        if before <= ENOUGH_ROWS < self._rows:
            self._helper = _Helper.start()
        if self._helper is not None and len(rows) > FEW_ROWS:
            try:
                if self._helper.is_ready():
                    return self._helper.flatten(rows, schema, hints, nul_safe)
            except Exception:  # whatever happened there, the rows are still here
                log.info("Rows are flattened in this process from now on.", extra={"event": "flattening.alone"})
                self.close()
        return flatten(rows, schema, hints, nul_safe=nul_safe)

    def close(self) -> None:
        """Safe to call twice."""
        helper, self._helper = self._helper, None
        if helper is not None:
            helper.close()


class _Helper:
    """The other process as it is seen from here. Any exception means that it is of no more use."""

    def __init__(self, process: subprocess.Popen[bytes], line: socket.socket) -> None:
        self.process = process
        self._line = line
        self._ready = False

    @classmethod
    def start(cls) -> Self | None:
        """None where it would gain nothing or cannot be had."""
        if _processors() < 2 or "python" not in Path(sys.executable or "").name:
            return None
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = subprocess.Popen(  # noqa: S603 - nothing in it comes from outside
                    [sys.executable, "-P", "-c", f"from {__name__} import serve; serve()"],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            except OSError:
                ours.close()
                return None
        return cls(process, ours)

    def is_ready(self) -> bool:
        """Whether it has imported what it needs, and the same code as is running here."""
        if not self._ready:
            with suppress(BlockingIOError):
                self._line.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK)
                if _receive(self._line) != __file__:
                    raise ImportError(__name__)
                self._ready = True
        return self._ready

    def flatten(
        self, rows: Sequence[bytes], schema: TableSchema, hints: Mapping[str, str], nul_safe: bool
    ) -> Flattened:
        _send(self._line, (rows, schema, hints, nul_safe))
        answer = _receive(self._line)
        if not isinstance(answer, Flattened):
            raise TypeError(type(answer))
        return answer

    def close(self) -> None:
        self._line.close()
        self.process.kill()
        self.process.wait()


def serve() -> None:
    """The other process, until the line to it is closed or breaks."""
    with socket.socket(fileno=sys.stdin.fileno()) as line, suppress(OSError, EOFError):
        _send(line, __file__)
        while True:
            rows, schema, hints, nul_safe = _receive(line)
            _send(line, flatten(rows, schema, hints, nul_safe=nul_safe))


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _read_only(mapping: dict[Any, Any]) -> Mapping[Any, Any]:
    return MappingProxyType(mapping)


_REDUCERS: Mapping[type, Any] = {MappingProxyType: lambda view: (_read_only, (dict(view),))}


def _send(line: socket.socket, message: object) -> None:
    """How many parts and bytes; the length of each part; the message; columns and the like as they lie in memory."""
    buffers: list[pickle.PickleBuffer] = []
    packed = io.BytesIO()
    pickler = pickle.Pickler(packed, pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append)
    pickler.dispatch_table = _REDUCERS
    pickler.dump(message)
    parts = [packed.getbuffer(), *(buffer.raw() for buffer in buffers)]
    lengths = memoryview(array("q", [part.nbytes for part in parts])).cast("B")
    pieces: list[Buffer] = [_HEAD.pack(len(parts), sum(_padded(part.nbytes) for part in (lengths, *parts)))]
    for part in (lengths, *parts):
        pieces += part, bytes(-part.nbytes % _ALIGNED)
    line.sendall(b"".join(pieces))


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
        # whole if possible, as the interpreter is waited for again after every piece
        size = line.recv_into(rest, len(rest), socket.MSG_WAITALL)
        if not size:
            raise EOFError
        rest = rest[size:]
    return received
