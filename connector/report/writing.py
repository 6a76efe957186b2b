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


def _mode(path: Path) -> int:
    """As the file had it, else as any file that this user makes."""
    with suppress(OSError):
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _refused(path: Path, error: OSError) -> ConnectorError:
    return ConnectorError(f"The report cannot be written to {path} ({error.strerror}); name another file with --out.")
