"""Spare the tests what dlt computes again for each setting of each run, and what the collector of garbage looks at.

What is remembered here follows from types, names and the names of environment variables alone, so that it holds as
long as the process lives; what replaces a function of dlt returns what that one returns. Without it a run of a few rows
costs half as much again.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from copy import deepcopy
from functools import lru_cache, wraps
from types import ModuleType
from typing import Any

PLAIN = {str, int, float, bool, type(None)}
OF_TYPES = ("extract_inner_type", "extract_type_if_modifier", "is_union_type", "is_optional_type", "is_literal_type")
OF_SETTINGS = ("extract_inner_hint", "get_config_if_union_hint", "is_hint_not_resolvable", "is_secret_hint")
KINDS_OF_SETTINGS = (
    "is_base_configuration_inner_hint",
    "is_context_inner_hint",
    "is_credentials_inner_hint",
)


def apply_speedups() -> None:
    """Apply all that this module has for dlt to this process."""
    cache_type_lookups()
    skip_unset_variables()
    copy_schemas_plainly()


def cache_type_lookups() -> None:
    """Let dlt ask each question about a type once in this process."""
    import dlt.pipeline.pipeline  # noqa: F401  # with all that it imports, where the functions go by their names
    from dlt.common import typing, validation
    from dlt.common.configuration import resolve
    from dlt.common.configuration.providers import provider
    from dlt.common.configuration.specs import base_configuration

    _cache(typing, *OF_TYPES, "is_subclass")
    _cache(base_configuration, *OF_SETTINGS, *KINDS_OF_SETTINGS)
    _cache(resolve, "_build_section_lookup_paths")
    _cache(provider, "get_key_name")
    # of the names of its own module: that one follows from the type
    ask: Any = validation.get_type_hints  # type: ignore[attr-defined]
    hints: Any = lru_cache(maxsize=None)(lambda spec: ask(spec, vars(sys.modules[spec.__module__])))
    validation.get_type_hints = lambda spec, globalns: hints(spec)  # type: ignore
    base: Any = base_configuration.BaseConfiguration
    fields: Any = lru_cache(maxsize=None)(base.get_resolvable_fields.__func__)
    base.get_resolvable_fields = classmethod(lambda cls: dict(fields(cls)))
    names: Any = lru_cache(maxsize=None)(_names_of_fields)
    base.__iter__ = lambda self: iter(names(type(self)))
    base.__len__ = lambda self: len(names(type(self)))


def skip_unset_variables() -> None:
    """Spare the search of the environment, by one long name after the other, for a setting that it does not have."""
    from dlt.common.configuration import resolve as module
    from dlt.common.configuration.providers import EnvironProvider

    resolve: Any = module
    environment: Any = os.environ
    search = resolve.resolve_single_provider_value
    without = _cached(search)

    def found(provider: Any, key: str, *args: Any) -> Any:
        if type(provider) is not EnvironProvider:
            return search(provider, key, *args)
        if key.upper().encode() + b"\0" in b"\0".join([*environment._data, b""]):
            return search(provider, key, *args)
        value, traces = without(provider, key, *args)  # the same for every environment without it
        return value, list(traces)

    resolve.resolve_single_provider_value = found
    log = resolve.log_traces
    resolve.log_traces = lambda config, key, hint, value, default, traces: log(  # nobody reads the others
        config, key, hint, value, default, [trace for trace in traces if trace.value is not None]
    )


def copy_schemas_plainly() -> None:
    """Let dlt copy its schemas, which are dictionaries and lists of plain values, without asking for each how to."""
    from dlt.common.schema import schema, utils

    for module in (schema, utils):
        module.deepcopy = _copied  # type: ignore


def _copied(value: Any) -> Any:
    kind = type(value)
    if kind is dict:
        return {key: _copied(each) for key, each in value.items()}
    if kind is list:
        return [_copied(each) for each in value]
    return value if kind in PLAIN else deepcopy(value)


def _names_of_fields(spec: Any) -> tuple[str, ...]:
    from dlt.common.configuration.specs.base_configuration import is_valid_configspec_field

    return tuple(field.name for field in spec.__dataclass_fields__.values() if is_valid_configspec_field(field))


def exempt_loaded_objects() -> None:
    """Keep modules and collected tests out of every search for garbage, and search less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 50, 50)


def _cache(module: ModuleType, *names: str) -> None:
    for name in names:
        function = getattr(module, name)
        replaced = _cached(function)
        for each in [module for name, module in sys.modules.items() if name.partition(".")[0] == "dlt"]:
            for alias in [alias for alias, value in vars(each).items() if value is function]:
                setattr(each, alias, replaced)


def _cached(function: Callable[..., Any]) -> Callable[..., Any]:
    known = lru_cache(maxsize=None)(function)

    @wraps(function)
    def answer(*args: Any, **kwargs: Any) -> Any:
        try:
            return known(*args, **kwargs)
        except TypeError:  # an argument without a hash
            return function(*args, **kwargs)

    return answer
