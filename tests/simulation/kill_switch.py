"""Kill a run at a chosen moment: every I/O step of it passes the kill switch, and one of them never returns.

A killed process runs no `finally`. Once it is killed, every further step raises too, so that nothing that unwinds can
still change the disk or the warehouse, until the next run is started.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field


class Killed(BaseException):
    """The process is gone; no `except Exception` may survive it."""


@dataclass(slots=True)
class KillSwitch:
    """`arm(kind, n)` lets the n-th step of that kind be the last one; `on_kill` is called at that moment."""

    on_kill: Callable[[str], None]
    killed: bool = False
    armed: tuple[str, int] | None = None
    steps: Counter[str] = field(default_factory=Counter)

    def arm(self, kill: tuple[str, int] | None) -> None:
        self.killed = False
        self.armed = kill
        self.steps.clear()

    def step(self, kind: str, label: str = "") -> None:
        if self.killed:
            raise Killed
        self.steps[kind] += 1
        if self.armed == (kind, self.steps[kind]):
            self.killed = True
            self.on_kill(f"{kind} {self.steps[kind]} {label}".strip())
            raise Killed
