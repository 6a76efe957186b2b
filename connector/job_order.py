"""Which of a package's load jobs begins first: dlt takes them as a directory lists them, which is no order at all.

`records` holds every row whole and takes longer than the typed tables together; begun last it is loaded alone, while
another processor has nothing to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from dlt.common.storages.load_package import ParsedLoadJobFileName

from connector.tables import RECORDS

_CHOOSING = "filter_new_jobs"


@contextmanager
def records_first() -> Iterator[None]:
    """For what dlt loads meanwhile, in this process: its `dlt.load.utils.filter_new_jobs` has no setting for it."""
    load: Any = import_module("dlt.load.load")
    as_dlt_does = getattr(load, _CHOOSING, None)
    if as_dlt_does is None:  # a later dlt
        yield
        return

    def choose(files: Sequence[str], *others: Any, **named: Any) -> Any:
        return as_dlt_does(sorted(files, key=_is_of_another_table), *others, **named)

    setattr(load, _CHOOSING, choose)
    try:
        yield
    finally:
        setattr(load, _CHOOSING, as_dlt_does)


def _is_of_another_table(file: str) -> bool:
    return ParsedLoadJobFileName.parse(file).table_name != RECORDS
