"""Limit DuckDB's memory and threads during a run; by default it keeps what it wrote or read in most of the memory.

The limit grows with the number of threads, with the widest table (DuckDB needs blocks per column and thread to write
one), with the longest rows (DuckDB holds some thousands at each step), and with the rows that replace others (a merge
keeps data for each). The limit affects no result: a step that exceeds it is repeated without the limit, and the rows
are counted afterwards as usual.

dlt loads several tables at once, each on a separate thread. If rows are only appended, DuckDB's own threads do not
help: they divide one table's rows and restore the order afterwards, which takes nearly twice the processor time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache, cached_property
from typing import Any

import duckdb

BASE_MB = 40
THREAD_MB = 32
REPLACED_BYTES = 96  # for each row that a merge brings; measured: 80 are enough
COLUMN_MB = 0.5  # for each thread; measured: half of that is enough for a thousand columns, a quarter is not
RELEASED_MB = 32
QUERY_MB = 16
QUERY_SLUG_BYTES = 32  # for each slug that is looked up; measured: 24 are enough, with a MiB for each thread
COPIES = 4  # of a few thousand rows, for each thread
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SETTING = "SELECT current_setting('memory_limit')"


class MemoryLimit:
    """The memory limit of one open DuckDB instance. A limit set by somebody else stays as it is."""

    def __init__(self, native: duckdb.DuckDBPyConnection) -> None:
        self._native = native
        self._limit_bytes = math.inf  # bytes
        self._removed = False
        self._in_query = False
        self._is_alone = False  # whether DuckDB has one thread for now

    @cached_property
    def _threads(self) -> int:
        """Return the number of threads before this run changed it."""
        return _threads(self._native)

    def fit(self, columns: int, slice_bytes: int, replaced: int) -> None:
        """Set a limit that suffices for tables of so many columns and a merge of so many rows.

        About 2,000 of the rows have `slice_bytes`. An earlier, larger limit stays.
        """
        each_thread = (THREAD_MB + COLUMN_MB * columns) * 2**20 + COPIES * slice_bytes
        wanted = int(BASE_MB * 2**20 + self._threads * each_thread + REPLACED_BYTES * replaced)
        wanted = min(wanted, int(_bytes(_default())))
        if self._may_set_limit() and (math.isinf(self._limit_bytes) or wanted > self._limit_bytes):
            try:
                self._limit(wanted)
                self._limit_bytes = wanted
            except duckdb.OutOfMemoryException:  # it already uses more than that
                self._limit(self._limit_bytes)  # before DuckDB 2, the refused one would be shown

    @contextmanager
    def for_query(self, columns: int, slugs: int) -> Iterator[None]:
        """Limit memory for a query that reads so many columns of a whole table and looks up so many slugs in it.

        DuckDB keeps everything it reads until the limit is reached, without any benefit. A query that needs more memory
        gets the earlier limit, once (`remove`).
        """
        if not self._may_set_limit():
            yield
            return
        wanted = (QUERY_MB + self._threads * (1 + COLUMN_MB * columns)) * 2**20 + QUERY_SLUG_BYTES * slugs
        with suppress(duckdb.OutOfMemoryException):
            self._limit(min(self._limit_bytes, wanted))
        self._in_query = True
        try:
            yield
        finally:
            self._in_query = False
            self._limit(self._limit_bytes)

    def release(self) -> None:
        """Release the blocks that DuckDB keeps between packages, because they are not worth their memory."""
        if math.isinf(self._limit_bytes):
            return
        with suppress(duckdb.Error):  # some blocks cannot be released
            self._limit(RELEASED_MB * 2**20)
        self._limit(self._limit_bytes)

    def remove(self) -> bool:
        """Remove the limit, or that of a query; return whether there was one."""
        if self._in_query:
            self._in_query = False
            self._limit(self._limit_bytes)
            return True
        if math.isinf(self._limit_bytes):
            return False
        self._limit_bytes, self._removed = math.inf, True
        with suppress(duckdb.Error):  # after some failures only reopening the file helps
            self._limit(math.inf)
        self.all_threads()
        return True

    def end(self) -> None:
        """Restore the settings from before this run, because a connection of the user outlives it."""
        if math.isfinite(self._limit_bytes):
            self._limit_bytes = math.inf
            with suppress(duckdb.Error):
                self._limit(math.inf)
        self.all_threads()

    def one_thread(self) -> None:
        """Use one DuckDB thread for each table that is loaded, until `all_threads`."""
        if self._threads > 1:
            self._set_threads(1)
            self._is_alone = True

    def all_threads(self) -> None:
        """Restore the previous number of threads, which somebody may have set."""
        if self._is_alone:
            self._set_threads(self._threads)
            self._is_alone = False

    def _may_set_limit(self) -> bool:
        """Return whether the limit is ours, or nobody has set one."""
        return math.isfinite(self._limit_bytes) or (not self._removed and _ask(self._native) == _default())

    def _limit(self, size: float) -> None:
        """Set `memory_limit` to `size` bytes; infinity restores DuckDB's default."""
        restores = math.isinf(size)
        self._native.execute(f"SET memory_limit = '{_default() if restores else f'{int(size)} bytes'}'").fetchall()
        if restores:  # exactly; before DuckDB 2, RESET alone changes only what is shown
            self._native.execute("RESET memory_limit").fetchall()

    def _set_threads(self, count: int) -> None:
        with suppress(duckdb.Error):  # it only saves time, and some settings of users do not allow it
            self._native.execute(f"SET threads = {count}").fetchall()


def _ask(native: duckdb.DuckDBPyConnection) -> str:
    found: Any = native.execute(_SETTING).fetchall()
    return str(found[0][0])


def _threads(native: duckdb.DuckDBPyConnection) -> int:
    found: Any = native.execute("SELECT current_setting('threads')").fetchall()
    return int(found[0][0])


@cache
def _default() -> str:
    with duckdb.connect(":memory:") as fresh:
        return _ask(fresh)


def _bytes(text: str) -> float:
    number, unit = text.split()
    return float(number) * _UNITS[unit]
