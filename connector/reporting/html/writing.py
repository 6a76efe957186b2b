"""Puts the page where it is wanted, whole or not at all."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from connector.errors import ConnectorError


def write(path: Path, text: str) -> int:
    """Replaces the file in one step, so that whoever reads it meanwhile sees the last one; returns its bytes."""
    content = text.encode("utf-8", "replace")
    if path.is_relative_to("/dev") or path.is_relative_to("/proc") or (path.exists() and not path.is_file()):
        return _write_into(path, content)
    path = path.resolve()  # what a link names is written, and the link stays
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=".part")
    except OSError as error:
        raise _refused(path, error) from None
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.chmod(_mode(path))
        part.replace(path)
    except OSError as error:
        raise _refused(path, error) from None
    finally:
        with suppress(OSError):
            part.unlink()
    return len(content)


def _write_into(path: Path, content: bytes) -> int:
    """Write to a device or pipe, which must not be replaced by a file."""
    try:
        with path.open("ab" if path.is_file() else "wb") as device:
            device.write(content)
    except OSError as error:
        raise _refused(path, error) from None
    return len(content)


def _mode(path: Path) -> int:
    """As the file had it, else as any file that this user makes."""
    with suppress(OSError):
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _refused(path: Path, error: OSError) -> ConnectorError:
    return ConnectorError(f"The report cannot be written to {path} ({error.strerror}); name another file with --out.")
