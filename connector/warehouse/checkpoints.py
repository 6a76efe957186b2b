"""When DuckDB moves what was committed from its log into its file during a run.

dlt has it wait for a gigabyte (`DuckDbSqlClient._global_config`): most rows are then written twice, the second time by
one thread, while the command waits to end. Here a commit does it as soon as the log holds something.

By itself DuckDB also joins row groups that are not full each time, and rewrites all their rows for it. During a run
every package leaves some behind that the next one adds to, so that waits for the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType

import duckdb

_DURING_A_RUN: Mapping[str, tuple[str, int]] = MappingProxyType(
    {  # setting → what DuckDB has by itself, what it gets here
        "wal_autocheckpoint_entries": ("0", 10),  # of up to 2,048 rows; dlt leaves this one alone
        "max_vacuum_tasks": ("100", 0),
    }
)


@contextmanager
def timely_checkpoints(native: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """For the DuckDB instance of this connection. What somebody else has set stays as it is."""
    changed = [name for name, (by_itself, here) in _DURING_A_RUN.items() if _changes(native, name, by_itself, here)]
    try:
        yield
    finally:
        for name in changed:
            with suppress(duckdb.Error):  # it is gone by now
                native.execute(f"RESET {name}").fetchall()


def _changes(native: duckdb.DuckDBPyConnection, name: str, by_itself: str, here: int) -> bool:
    with suppress(duckdb.Error):  # it only saves time, and a later DuckDB may not know it
        found = native.execute(f"SELECT current_setting('{name}')").fetchall()
        if str(found[0][0]) == by_itself:
            native.execute(f"SET {name} = {here}").fetchall()
            return True
    return False
