"""DuckDB joins row groups that are not full whenever it writes its file, and rewrites all their rows for it.

During a run each package leaves some behind that the next one adds to, so here that waits for the end of the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import duckdb

_SETTING = "max_vacuum_tasks"
_BY_ITSELF = "100"


@contextmanager
def compacted_at_the_end(native: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """For the DuckDB instance of this connection. A number that somebody else has set stays as it is."""
    waits = False
    with suppress(duckdb.Error):  # it only saves time, and a later DuckDB may not know it
        found = native.execute(f"SELECT current_setting('{_SETTING}')").fetchall()
        if str(found[0][0]) == _BY_ITSELF:
            native.execute(f"SET {_SETTING} = 0").fetchall()
            waits = True
    try:
        yield
    finally:
        if waits:
            with suppress(duckdb.Error):  # it is gone by now
                native.execute(f"RESET {_SETTING}").fetchall()
