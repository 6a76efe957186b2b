"""The command on a terminal of a given width, and what shows there."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
from typing import Any

from tests.processes import start

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-ln-z]")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
HEIGHT = 24


def watched(command: Any, width: int, *arguments: str, **environment: str) -> tuple[int, str]:
    """Return the exit code of a command on a terminal of this width, and everything that ever showed there."""
    code, shown = painted(command, width, *arguments, **environment)
    return code, COLOUR.sub("", shown)


def painted(command: Any, width: int, *arguments: str, **environment: str) -> tuple[int, str]:
    """The same with its colours."""
    terminal, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, width, 0, 0))
    without = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    process = start(
        arguments,
        cwd=command.directory,
        env={**without, **command.environment, "TERM": "xterm", **environment},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        new_session=True,
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += os.read(terminal, 65536)
        except OSError:
            break
    os.close(terminal)
    text = CONTROL.sub("\n", shown.decode()).replace("\r", "\n")
    command.outputs.append(COLOUR.sub("", text))
    return process.wait(10), text
