"""Puts the page where it is wanted, whole or not at all."""

from __future__ import annotations

from pathlib import Path

from connector.errors import ConnectorError
from connector.files import write_out


def write(path: Path, text: str) -> int:
    """Replaces the file in one step, so that whoever reads it meanwhile sees the last one; returns its bytes."""
    content = text.encode("utf-8", "replace")
    try:
        write_out(path, content)
    except OSError as error:
        raise ConnectorError(
            f"The report cannot be written to {path} ({error.strerror}); name another file with --out."
        ) from None
    return len(content)
