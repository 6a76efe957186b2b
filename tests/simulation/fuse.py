"""Death at a chosen moment: every I/O step of a run passes the fuse, and one of them never returns.

A killed process runs no `finally`. Once the fuse has blown, every further step raises too, so that nothing that
unwinds can still change the disk or the warehouse, until the world is started anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field


class Killed(BaseException):
    """The process is gone; no `except Exception` may survive it."""


@dataclass(slots=True)
class Fuse:
    """`arm(kind, n)` lets the n-th step of that kind be the last one; `blown` is called at that moment."""

    blown: Callable[[str], None]
    dead: bool = False
    armed: tuple[str, int] | None = None
    steps: Counter[str] = field(default_factory=Counter)

    def arm(self, kill: tuple[str, int] | None) -> None:
        self.dead = False
        self.armed = kill
        self.steps.clear()

    def step(self, kind: str, label: str = "") -> None:
        if self.dead:
            raise Killed
        self.steps[kind] += 1
        if self.armed == (kind, self.steps[kind]):
            self.dead = True
            self.blown(f"{kind} {self.steps[kind]} {label}".strip())
            raise Killed
