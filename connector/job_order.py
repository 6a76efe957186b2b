"""Which of a package's load jobs begins first: dlt takes them as a directory lists them, which is no order at all.

`records` holds every row whole and takes longer than the typed tables together; begun last it is loaded alone, while
another processor has nothing to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from threading import Lock
from typing import Any

from dlt.common.storages.load_package import ParsedLoadJobFileName

from connector.tables import RECORDS

_CHOOSING = "filter_new_jobs"
_lock = Lock()
_runs = 0  # that go on in this process


@contextmanager
def records_first() -> Iterator[None]:
    """For what dlt loads meanwhile, in this process: its `dlt.load.utils.filter_new_jobs` has no setting for it."""
    global _runs
    load: Any = import_module("dlt.load.load")
    with _lock:
        _runs += 1
        if _runs == 1 and hasattr(load, _CHOOSING):  # a later dlt may not have it
            setattr(load, _CHOOSING, _Choice(getattr(load, _CHOOSING)))
    try:
        yield
    finally:
        with _lock:
            _runs -= 1
            changed = getattr(load, _CHOOSING, None)
            if not _runs and isinstance(changed, _Choice):
                setattr(load, _CHOOSING, changed.as_dlt_does)


class _Choice:
    """dlt's own, of files in another order."""

    def __init__(self, as_dlt_does: Any) -> None:
        self.as_dlt_does = as_dlt_does

    def __call__(self, files: Sequence[str], *others: Any, **named: Any) -> Any:
        return self.as_dlt_does(sorted(files, key=_is_of_another_table), *others, **named)


def _is_of_another_table(file: str) -> bool:
    return ParsedLoadJobFileName.parse(file).table_name != RECORDS
