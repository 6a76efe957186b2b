"""What a start need not take: modules that nothing here needs, and a look at every object time and again.

pyarrow loads pandas and numpy wherever they are installed, which takes longer than a sync. Modules are loaded once and
stay, yet the garbage collector walks over all of them again for every few hundred objects: a tenth of a start.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self


class Hidden:
    """While it is entered, these modules seem not to be installed, but for what is loaded already."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def find_spec(self, name: str, *_: object) -> None:
        """What Python asks first, once this stands in `sys.meta_path`."""
        if name in self._names:
            raise ModuleNotFoundError(f"{name} is hidden", name=name)

    def __enter__(self) -> Self:
        sys.meta_path.insert(0, self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        sys.meta_path.remove(self)


@contextmanager
def for_good() -> Iterator[None]:
    """What is loaded meanwhile is there to stay: no collection walks over it, now or later."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collecting:
            gc.enable()


def load_arrow() -> None:
    """pyarrow looks for pandas when it makes its first array, and for arrays never again; others may load it later."""
    with Hidden("pandas"):
        import pyarrow as pa

        pa.array([None])
