"""The command as a process of its own, forked from one that has loaded the package: loading is most of what it costs.

A forked process has everything that matters of a process: its own memory, signals, directory, environment, standard
streams and exit code. Tests of what loading costs, or of the entry point, start an interpreter instead.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, NoReturn

REQUEST_BYTES = 2**20
_SERVER = """
import gc, sys
sys.path[:0] = sys.argv[2:]
from tests.processes import serve
serve(int(sys.argv[1]))
"""


class Process:
    """A process of the command: as much of `subprocess.Popen` as tests need, with text streams."""

    def __init__(self, pid: int, ended: int, stdout: IO[str] | None, stderr: IO[str] | None) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdout = stdout
        self.stderr = stderr
        self._ended = ended  # a pipe that the exit code comes through

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, negative for a signal. Raise TimeoutExpired like `Popen.wait`."""
        if self.returncode is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("importer-sync", timeout or 0)
            self.returncode = int(os.read(self._ended, 64) or b"-9")
            os.close(self._ended)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Read both streams to their end, wait, and return what was printed."""
        until = None if timeout is None else time.monotonic() + timeout
        streams = {stream.fileno(): stream for stream in (self.stdout, self.stderr) if stream is not None}
        found: dict[int, bytes] = dict.fromkeys(streams, b"")
        open_ = set(streams)
        while open_:
            left = None if until is None else max(until - time.monotonic(), 0)
            ready = select.select(list(open_), [], [], left)[0]
            if not ready:
                raise subprocess.TimeoutExpired("importer-sync", timeout or 0)
            for fd in ready:
                part = os.read(fd, 2**16)
                found[fd] += part
                if not part:
                    open_.discard(fd)
        self.wait(None if until is None else max(until - time.monotonic(), 0))
        for stream in streams.values():
            stream.close()
        texts = [found[fd].decode() for fd in streams]
        return (texts[0] if self.stdout else "", texts[-1] if self.stderr else "")

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    arguments: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    script: Path | None = None,
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    new_session: bool = False,
) -> Process:
    """Start `importer-sync` with these arguments, or a script; streams that are not given are pipes, stdin is empty."""
    ours: list[IO[str] | None] = []
    given = [os.open(os.devnull, os.O_RDONLY) if stdin is None else os.dup(stdin)]
    for stream in (stdout, stderr):
        if stream is None:
            read, write = os.pipe()
            ours.append(io.TextIOWrapper(io.FileIO(read), write_through=True))
            given.append(write)
        else:
            ours.append(None)
            given.append(os.dup(stream))
    ended, tell = os.pipe()
    pipes = [*given, tell]
    request = {
        "arguments": list(arguments),
        "script": None if script is None else str(script),
        "cwd": str(cwd),
        "env": dict(env),
        "new_session": new_session,
    }
    server = _server()
    socket.send_fds(server, [json.dumps(request).encode()], pipes)
    pid = int(server.recv(64))
    for fd in pipes:
        os.close(fd)
    return Process(pid, ended, *ours)


@cache
def _server() -> socket.socket:
    """Start the process that others are forked from; it ends with the one that asked for it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    root = str(Path(__file__).parents[1])
    program = [sys.executable, "-P", "-c", _SERVER, str(theirs.fileno())]
    # behind the installed package, which is what is tested
    server = subprocess.Popen([*program, *sys.path, root], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    theirs.close()
    atexit.register(server.wait)
    atexit.register(ours.close)  # before it is waited for
    return ours


def serve(fd: int) -> None:
    """Load the package, then fork a process for each request until the other end is closed."""
    os.environ.update(ARROW_DEFAULT_MEMORY_POOL="system", OPENBLAS_NUM_THREADS="1", RUNTIME__DLTHUB_TELEMETRY="false")
    import gc

    import connector.cli.main
    import connector.maintain.verify
    import connector.run.sync  # noqa: F401
    from tests.support.speedups import apply_speedups

    apply_speedups()
    gc.freeze()
    requests = socket.socket(fileno=fd)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tells: dict[int, int] = {}
    while True:
        ready = select.select([fd, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            _report(tells)
        if fd not in ready:
            continue
        message, fds, *_ = socket.recv_fds(requests, REQUEST_BYTES, 4)
        if not message:
            return
        pid = os.fork()
        if not pid:
            for other in (*tells.values(), woken, wake, fds[3], requests.detach()):
                os.close(other)
            _become(json.loads(message), fds[:3])
        tells[pid] = fds.pop()
        for each in fds:
            os.close(each)
        requests.send(str(pid).encode())


def _report(tells: dict[int, int]) -> None:
    """Tell the exit code of each process that has ended."""
    for pid in list(tells):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with suppress(BrokenPipeError):
                os.write(tells[pid], str(os.waitstatus_to_exitcode(status)).encode())
            os.close(tells.pop(pid))


def _become(request: Any, streams: Sequence[int]) -> NoReturn:
    """Turn this fork into the process that was asked for, and never return."""
    code = 70
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
            os.close(fd)
        if request["new_session"]:
            os.setsid()
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        time.tzset()
        sys.stdin, sys.stdout, sys.stderr = (
            io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8"),
            *(io.TextIOWrapper(io.BufferedWriter(io.FileIO(n, "w", closefd=False)), encoding="utf-8") for n in (1, 2)),
        )
        sys.stderr.reconfigure(line_buffering=True, errors="backslashreplace")
        if request["script"] is None:
            sys.argv = ["importer-sync", *request["arguments"]]
            from connector.cli.main import main

            main()
        sys.argv = [request["script"], *request["arguments"]]
        runpy.run_path(request["script"], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(code)
