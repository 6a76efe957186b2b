"""Remove rows that exceeded memory and were left on disk by a process that was killed.

DuckDB keeps them in the clear: beside the database file, where it removes them only once it spills there again, and
without a file in `.tmp` of the working directory, where it never does.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

_SPILLED = "importer-spill-"


def spill_folder() -> str:
    """Create a folder for a DuckDB instance without a file; remove those of processes that were killed."""
    for left in Path(tempfile.gettempdir()).glob(f"{_SPILLED}*") if os.name == "posix" else ():
        try:
            os.kill(int(left.name.split("-")[2]), 0)
        except ProcessLookupError:
            shutil.rmtree(left, ignore_errors=True)
        except (OSError, ValueError, OverflowError):  # a process of another user, or not one of our folders
            continue
    folder = tempfile.mkdtemp(prefix=f"{_SPILLED}{os.getpid()}-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


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
