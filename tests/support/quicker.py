"""Spare the tests what dlt computes again for each setting of each run, and what the collector of garbage looks at.

The functions below say something of types and names alone, so that what they said once holds as long as the process
lives. dlt calls them some ten thousand times a run, which is a seventh of what a small run costs.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import lru_cache, wraps
from types import ModuleType
from typing import Any

OF_TYPES = ("extract_inner_type", "extract_type_if_modifier", "is_union_type", "is_optional_type", "is_literal_type")
OF_SETTINGS = ("extract_inner_hint", "get_config_if_union_hint", "is_hint_not_resolvable", "is_secret_hint")
KINDS_OF_SETTINGS = (
    "is_base_configuration_inner_hint",
    "is_context_inner_hint",
    "is_credentials_inner_hint",
)


def remember_what_types_say() -> None:
    """Let dlt ask each question about a type once in this process."""
    import dlt.pipeline.pipeline  # noqa: F401  # with all that it imports, where the functions go by their names
    from dlt.common import typing
    from dlt.common.configuration import resolve
    from dlt.common.configuration.providers import provider
    from dlt.common.configuration.specs import base_configuration

    _remember(typing, *OF_TYPES, "is_subclass")
    _remember(base_configuration, *OF_SETTINGS, *KINDS_OF_SETTINGS)
    _remember(resolve, "_build_section_lookup_paths")
    _remember(provider, "get_key_name")
    base = base_configuration.BaseConfiguration
    fields = lru_cache(maxsize=None)(base.get_resolvable_fields.__func__)  # type: ignore[attr-defined]
    base.get_resolvable_fields = classmethod(lambda cls: dict(fields(cls)))  # type: ignore


def leave_what_is_loaded_to_itself() -> None:
    """Keep modules and collected tests out of every search for garbage, and search less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 50, 50)


def _remember(module: ModuleType, *names: str) -> None:
    for name in names:
        function = getattr(module, name)
        replaced = _remembering(function)
        for each in [module for name, module in sys.modules.items() if name.partition(".")[0] == "dlt"]:
            for alias in [alias for alias, value in vars(each).items() if value is function]:
                setattr(each, alias, replaced)


def _remembering(function: Callable[..., Any]) -> Callable[..., Any]:
    known = lru_cache(maxsize=None)(function)

    @wraps(function)
    def answer(*args: Any, **kwargs: Any) -> Any:
        try:
            return known(*args, **kwargs)
        except TypeError:  # an argument without a hash
            return function(*args, **kwargs)

    return answer
