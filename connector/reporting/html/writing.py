"""Write the page to its file, complete or not at all."""

from __future__ import annotations

from pathlib import Path

from connector.errors import ConfigError, ConnectorError
from connector.files import may_be_replaced, write_out


def write(path: Path, text: str) -> int:
    """Replace the file in one step, so that readers meanwhile see the previous page; return its bytes.

    Raises ConfigError for a file that is no page, such as the warehouse.
    """
    if not may_be_replaced(path, b"<!doctype html", b"<html"):
        raise ConfigError(f"{path} is not an HTML page, and the report would replace it: name another file with --out.")
    content = text.encode("utf-8", "replace")
    try:
        write_out(path, content)
    except OSError as error:
        raise ConnectorError(
            f"The report cannot be written to {path} ({error.strerror}); name another file with --out."
        ) from None
    return len(content)
