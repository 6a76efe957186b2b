"""What a start need not take: modules that nothing here needs, and a look at every object time and again.

pyarrow loads pandas and numpy wherever they are installed, which takes longer than a sync. `import dlt` loads each of
its destinations and an HTTP client for its own sources, a quarter of a start; a command executes them on first use.
Modules are loaded once and stay, yet the garbage collector walks over all of them again for every few hundred objects:
a fifth of a start.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from threading import RLock
from types import MappingProxyType, ModuleType, TracebackType
from typing import Any, Self

_THRESHOLD = gc.get_threshold()
_STARTING = 50_000
# Module → those of its names that are had without executing it, each with the module it is from.
_DEFERRED: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "dlt.destinations": {
            "duckdb": "dlt.destinations.impl.duckdb.factory",
            "postgres": "dlt.destinations.impl.postgres.factory",
        },
        "dlt.sources.helpers.requests": {},
    }
)
_loading = RLock()


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
    """What is loaded meanwhile is there to stay: no collection walks over it, now or later.

    Ends `few_collections`.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(*_THRESHOLD)
        if collecting:
            gc.enable()


def few_collections() -> None:
    """Collect garbage seldom from now on: a command that only asks is over before it has made any."""
    gc.set_threshold(_STARTING)


def defer_parts_of_dlt() -> None:
    """Have `import dlt` leave out what no command uses; a part that is used after all is executed then.

    Does nothing once dlt is loaded. For a process of our own only: it changes what importing means.
    """
    if "dlt" not in sys.modules and not any(isinstance(finder, _Deferring) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Deferring())


class _Deferring:
    """Finds the modules of `_DEFERRED`, to be executed when a name of theirs is first asked for."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, *_: object) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name in _DEFERRED else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Later(spec.loader)
        return spec


class _Later(Loader):
    """Loads a module by giving it to whoever imports it as it is: empty."""

    def __init__(self, real: Loader) -> None:
        self.real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Unexecuted(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave it to `_Unexecuted`."""


class _Unexecuted(ModuleType):
    """A module that executes itself when it is asked for a name that it does not have yet."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__") and name != "__all__":
            raise AttributeError(name)
        if name in _DEFERRED[self.__name__]:
            return getattr(import_module(_DEFERRED[self.__name__][name]), name)
        if (self.__name__, name) == ("dlt.sources.helpers.requests", "init") and not self.__dict__.get("_began"):
            return self._init_later
        with _loading:
            if not self.__dict__.get("_began"):
                self._execute()
            if name in self.__dict__:
                return self.__dict__[name]
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def _init_later(self, configuration: Any) -> None:
        """Keep what dlt configures its HTTP client with, for when there is one."""
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


def load_arrow(*, numpy: bool = True) -> None:
    """Load pyarrow without pandas, which it looks for when it makes its first array and for later ones never again.

    Others may load pandas later. Without `numpy`, pyarrow does without it for as long as the process lives.
    """
    with Hidden("pandas") if numpy else Hidden("pandas", "numpy"):
        import pyarrow as pa

        pa.array([None])
