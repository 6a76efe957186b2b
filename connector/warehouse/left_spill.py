"""Remove rows that exceeded memory and were left on disk beside a DuckDB file, by a process that was killed.

DuckDB keeps them in the clear, and removes them only once it spills to the same folder again.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any


def remove_left_spill(file: Path, native: Any) -> None:
    """Remove them. `native` has the file open for writing, so no other process has it open.

    If another connection of this process spills right now, everything stays.
    """
    folder = file.with_name(f"{file.name}.tmp")
    left = [each for each in folder.glob("duckdb_temp_*") if not each.name.endswith("_owner")]
    if not left or folder.is_symlink():
        return
    # files of single blocks are listed whoever wrote them
    spilled = [path for (path,) in native.execute("SELECT path FROM duckdb_temporary_files()").fetchall()]
    if any(path.endswith(".tmp") for path in spilled):
        return
    for each in left:
        with suppress(OSError):
            each.unlink()
