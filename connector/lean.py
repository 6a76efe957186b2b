"""Modules that pyarrow loads wherever they are installed, and that nothing here needs: they take longer than a sync."""

from __future__ import annotations

import sys
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


def load_arrow() -> None:
    """pyarrow looks for pandas when it makes its first array, and for arrays never again; others may load it later."""
    with Hidden("pandas"):
        import pyarrow as pa

        pa.array([None])
