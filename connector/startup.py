"""Avoid imports that a process does not need; docs/performance.md has what each part saves.

pyarrow loads pandas if it is installed, and dlt loads an HTTP client for its own sources. A command uses neither.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from threading import RLock
from types import ModuleType, TracebackType
from typing import Any, Self

_DEFERRED = "dlt.sources.helpers.requests"
_loading = RLock()


def open_standard_streams() -> None:
    """Open /dev/null in place of standard streams that are closed. Call it first, in our own process.

    Otherwise the next file to be opened, which may be the database, gets the number of standard error, and what a
    library prints there is written into it.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False, encoding="utf-8"))  # noqa: SIM115


def prepare_imports() -> None:
    """Defer unnecessary imports of dlt and pyarrow. Call it only in our own process, which it changes permanently.

    pyarrow looks for pandas only when it creates its first array; other code can import pandas later.
    """
    if "dlt" not in sys.modules and not any(isinstance(finder, _Deferring) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Deferring())
    with Hidden("pandas"):
        import pyarrow as pa

        pa.array([None])


class Hidden:
    """A context in which modules seem not to be installed, except for those that are already loaded."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def find_spec(self, name: str, *_: object) -> None:
        """Raise ModuleNotFoundError for a hidden module; Python asks this first, before any other finder."""
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
def exempt_from_collection() -> Iterator[None]:
    """Disable the garbage collector, then exempt everything loaded meanwhile from collection."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collecting:
            gc.enable()


class _Deferring:
    """A finder of dlt's HTTP client, which is executed when one of its names is first used."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, *_: object) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == _DEFERRED else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Later(spec.loader)
        return spec


class _Later(Loader):
    """A loader of a module as an empty one, which executes itself on first use."""

    def __init__(self, real: Loader) -> None:
        self.real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Unexecuted(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave the execution to `_Unexecuted`."""


class _Unexecuted(ModuleType):
    """A module that executes itself when a missing name is used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__") and name != "__all__":
            raise AttributeError(name)
        if name == "init" and not self.__dict__.get("_began"):
            return self._init_later
        with _loading:
            if not self.__dict__.get("_began"):
                self._execute()
            if name in self.__dict__:
                return self.__dict__[name]
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def _init_later(self, configuration: Any) -> None:
        """Store the configuration that dlt sets when it starts, until there is a client to configure."""
        self.__dict__["_configuration"] = configuration

    def _execute(self) -> None:
        self.__dict__["_began"] = True
        spec = self.__spec__
        if spec is None or not isinstance(spec.loader, _Later):
            raise ImportError(f"{self.__name__} cannot be executed", name=self.__name__)
        spec.loader = spec.loader.real
        spec.loader.exec_module(self)
        if "_configuration" in self.__dict__:
            self.__dict__["init"](self.__dict__.pop("_configuration"))
        self.__class__ = ModuleType  # type: ignore[assignment]
