"""Write the page to its file, complete or not at all."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from connector.errors import ConfigError, ConnectorError
from connector.files import write_out


def write(path: Path, text: str) -> int:
    """Replace the file in one step, so that readers meanwhile see the previous page; return its bytes.

    Raises ConfigError for a file that is no page, such as the warehouse.
    """
    if not _may_be_replaced(path):
        raise ConfigError(f"{path} is not an HTML page, and the report would replace it: name another file with --out.")
    content = text.encode("utf-8", "replace")
    try:
        write_out(path, content)
    except OSError as error:
        raise ConnectorError(
            f"The report cannot be written to {path} ({error.strerror}); name another file with --out."
        ) from None
    return len(content)


def _may_be_replaced(path: Path) -> bool:
    start = b""
    with suppress(OSError):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                start = file.read(200)
    return not start.strip() or start.lstrip().lower().startswith((b"<!doctype html", b"<html"))
