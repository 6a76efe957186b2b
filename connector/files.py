"""Write files whole or not at all, without following a link that somebody put in the way."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

NO_LINK = getattr(os, "O_NOFOLLOW", 0)
PRIVATE = 0o600


def put(path: Path, content: bytes, mode: int = 0o666, *, durable: bool = True) -> None:
    """Replace the file in one step, so that whoever reads it meanwhile sees the last one; a link is replaced as well.

    The new file has `mode`, less what the process's umask takes away; if `durable` it outlives a power cut. Raises
    OSError.
    """
    part = path.with_name(f".{path.name[:100]}.{secrets.token_hex(6)}.part")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
    finally:
        with suppress(OSError):
            part.unlink()


def put_where_wanted(path: Path, content: bytes) -> None:
    """Write what a user named: into a device or pipe, else as `put`; what a link of theirs names is written.

    A file that is there keeps its mode. Raises OSError.
    """
    if path.is_relative_to("/dev") or path.is_relative_to("/proc") or (path.exists() and not path.is_file()):
        with path.open("ab" if path.is_file() else "wb") as device:
            device.write(content)
        return
    path = path.resolve()
    before = path.stat().st_mode & 0o777 if path.exists() else None
    put(path, content, 0o666 if before is None else before)
    if before is not None:
        path.chmod(before)
