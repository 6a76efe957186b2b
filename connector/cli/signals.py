"""Handle signals during work: the first asks for an orderly end, the second ends the process at once.

The work runs in a separate thread, because dlt installs its own signal handlers if it runs in the main thread.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Generic, NoReturn, TypeVar

GRACE_S = 9.0
POLL_S = 0.1
SIGNALS = (signal.SIGINT, signal.SIGTERM)
T = TypeVar("T")


class Stop:
    """A callable that returns the number of the signal that arrived, or None."""

    def __init__(self) -> None:
        self._number: int | None = None
        self._arrived = threading.Event()
        self.since = 0.0

    def __call__(self) -> int | None:
        return self._number

    def set(self, number: int) -> None:
        self._number = number
        self.since = time.monotonic()
        self._arrived.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for a signal; return True as soon as one has arrived."""
        return self._arrived.wait(timeout_s)


class _Thread(threading.Thread, Generic[T]):
    def __init__(self, work: Callable[[], T]) -> None:
        super().__init__(name="command", daemon=True)
        self._work = work
        self.result: T
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self._work()
        except BaseException as error:
            self.error = error


def supervised(work: Callable[[Stop], T], *, on_first: Callable[[int], None], on_forced: Callable[[int], None]) -> T:
    """Return or raise what `work` does.

    If it has not ended some seconds after a signal, or when a second one arrives, the process calls `on_forced` and
    ends. Uncommitted work is lost, as after a power cut.
    """
    stop = Stop()
    thread = _Thread(lambda: work(stop))

    def receive(number: int, _: FrameType | None) -> None:
        if stop() is not None:
            exit_at_once(number, on_forced)
        stop.set(number)
        on_first(number)

    before = {number: signal.signal(number, receive) for number in SIGNALS}
    try:
        thread.start()
        while thread.is_alive():
            thread.join(POLL_S)
            number = stop()
            if number is not None and thread.is_alive() and time.monotonic() - stop.since > GRACE_S:
                exit_at_once(number, on_forced)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if thread.error is not None:
        raise thread.error
    return thread.result


def exit_at_once(number: int, on_exit: Callable[[int], None]) -> NoReturn:
    """End the process at once."""
    with contextlib.suppress(Exception):
        on_exit(number)
    exit_without_finalizing(128 + number)


def exit_in_order(code: int) -> NoReturn:
    """End the process in order, after the registered exit functions."""
    atexit._run_exitfuncs()
    exit_without_finalizing(code)


def exit_without_finalizing(code: int) -> NoReturn:
    """End the process without finalizing the interpreter, in which threads may hang and extension modules may fail."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)
