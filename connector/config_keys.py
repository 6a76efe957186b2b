"""Find where a value of the configuration was set, and refuse keys that dlt would ignore, wholly or in part.

If an unread key were accepted, the intended setting would keep its default, and nobody would notice.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from connector.dlt_config import SOURCE, above_of, levels
from connector.errors import ConfigError
from connector.nearest import suggest_known
from connector.settings import Settings

TABLES = ("hints", "privacy")  # settings that dlt takes from one place alone, whatever other places have of them
OFTEN_BARE = frozenset({"base_url", "access_token", "privacy_key"})  # by dlt's custom, named without a section
OWN = ("importer_sync",)
TELLING = frozenset({"exclude_templates", "mass_delete_limit", "privacy", "privacy_key"})  # names of no one else's keys
_OF_DLT_ALONE = frozenset(
    ("data_writer", "destination", "dlt", "extract", "load", "normalize", "pipelines", "runtime", "schema", "workspace")
)
_RIGHT_PLACE = "put it under [sources.importer]."
_OTHER_NAMES = dict.fromkeys(
    ("connector", "importer-connector", "importer_connector", "importer-sync", "importer_sync", "importer_source"),
    "importer",
)
_NEARLY = 0.88  # similarity of names: `importr` and `source` are near, `importer_eu` may be another source
OWN_KEYS = frozenset({"destination", "notify_url", "notify_on", "notify_schema", "duckdb_storage"})
# Keys that dlt itself looks for under a source: settings of its steps, sections of the source and its resources.
OF_DLT = frozenset(
    (
        "importer",
        "importer_source",
        "imports",
        "records",
        "extract",
        "normalize",
        "load",
        "data_writer",
        "schema",
        "runtime",
        "max_table_nesting",
        "root_key",
        "schema_contract",
        "parallelized",
        "incremental",
        "updated_at",
        "section",
        "name",
    )
)


def refuse_unknown_keys(pipeline: str | None) -> None:
    """Raise ConfigError that names each unknown key of ours, its place, and the nearest known one.

    `pipeline` is the pipeline whose own sections count too, as `[crm.sources.importer]` does for the pipeline crm.
    """
    known = frozenset(Settings.model_fields)
    parts = [*_unknown(OWN, OWN_KEYS, frozenset()), *_misspelt((), {SOURCE[0], *OWN})]
    for above in above_of(pipeline):
        parts += _unknown((*above, *SOURCE), known, OF_DLT)
        parts += _misspelt((*above, *SOURCE[:1]), {SOURCE[1]}, _OTHER_NAMES)
        parts += _misspelt(above, {SOURCE[0]}) if above else ()
    parts += [*_misspelt_variables(pipeline), *_divided_tables(pipeline), *_bare_variables()]
    parts += [] if parts else _misplaced(pipeline)
    if parts:
        raise ConfigError(" ".join(parts))


def refuse_other_pipeline(found_for: str | None, pipeline: str) -> None:
    """Raise ConfigError if settings found while `found_for` was active would be others for the pipeline that loads.

    What is misspelt in sections of that pipeline is refused too, because it was not looked at before.
    """
    if found_for != pipeline:
        refuse_unknown_keys(pipeline)
    for name in () if found_for == pipeline else {found_for or pipeline, pipeline}:
        for level in levels(name)[: -len(levels(None))]:
            here = [*_in_files(level).items(), *_in_environment(level).items()]
            for place in (place for key, place in sorted(here) if key in Settings.model_fields):
                raise ConfigError(
                    f"[{'.'.join(level)}] in {place} is for the pipeline {name}: call importer_source() after creating "
                    f"the pipeline {pipeline}, and before any other, because dlt looks for settings of the last one."
                )


def _unknown(sections: tuple[str, ...], known: frozenset[str], of_dlt: frozenset[str]) -> Iterator[str]:
    for name, place in sorted({**_in_files(sections), **_in_environment(sections)}.items()):
        if name not in known | of_dlt:
            what = f"{name} under [{'.'.join(sections)}] is set in {place}, but nothing reads it"
            yield f"{what}: {suggest_known(name, known)}"


def _misplaced(pipeline: str | None) -> Iterator[str]:
    """Yield a sentence for each setting of ours in a section in which dlt looks for it for no pipeline.

    Invariant: a setting that decides what is loaded or protected, wherever it is in a file, counts or is refused.
    """
    looked_at = [(*above, *SOURCE) for above in above_of(pipeline)]
    for provider in _providers():
        for sections, name in _walk(getattr(provider, "_config_doc", None)):
            if sections in looked_at or not _is_ours(sections, name, pipeline):
                continue
            if not (name in Settings.model_fields and _is_read(sections, pipeline)):
                place = _file(provider, name, sections)
                yield f"{name} under [{'.'.join(sections)}] is set in {place}, but nothing reads it: {_RIGHT_PLACE}"
    read = {"__".join([*level, each]).upper() for level in levels(pipeline) for each in Settings.model_fields}
    for variable in sorted(os.environ.keys() - read):
        *above, name = variable.lower().split("__")
        named = any(f"_{name}".endswith(f"_{each}") for each in TELLING)
        if not (above and named and "importer" in variable.lower()) or _is_of_another_source(above):
            continue
        if not (name in Settings.model_fields and _is_read(tuple(above), pipeline)):
            yield f"The environment variable {variable} is set, but nothing reads it: {_RIGHT_PLACE}"


def _walk(node: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the sections and the name of each key; what is below hints and rules are names of others."""
    for key, value in node.items() if isinstance(node, dict) else ():
        yield above, str(key)
        if str(key) not in TABLES:
            yield from _walk(value, (*above, str(key)))


def _is_ours(sections: tuple[str, ...], name: str, pipeline: str | None) -> bool:
    """Return whether a key can only be meant for us."""
    ours = {SOURCE[1], *OWN, _folded(pipeline or "")}
    if _is_of_another_source(sections):
        return False
    within = SOURCE in pairwise(sections) and name in Settings.model_fields
    near = _nearest(name, set(TELLING))
    if near == "privacy":  # which a section of another program may have
        near = near if {*sections[:1]} & _OF_DLT_ALONE or any(_folded(s) in ours for s in sections) else None
    return within or near is not None or (OWN[0] in sections[1:] and name in OWN_KEYS)


def _is_of_another_source(sections: Sequence[str]) -> bool:
    at = sections.index(SOURCE[0]) + 1 if SOURCE[0] in sections else len(sections)
    return at < len(sections) and sections[at] != SOURCE[1]


def _is_read(sections: tuple[str, ...], pipeline: str | None) -> bool:
    """Return whether dlt looks in these sections for a setting of the pipeline, or may do so for another one."""
    if sections in levels(pipeline):
        return True
    other = sections[0]
    is_variant = pipeline is not None and _folded(other) == _folded(pipeline)
    return other not in _OF_DLT_ALONE and not is_variant and sections in levels(other)


def _folded(name: str) -> str:
    return name.casefold().replace("-", "_")


def _divided_tables(pipeline: str | None) -> Iterator[str]:
    """Yield a sentence for each table of settings that several places have: dlt would ignore all but one of them.

    A variable replaces hints, like any setting, but not rules of privacy.
    """
    looked_at = levels(pipeline)
    for name in TABLES:
        places = [place for level in looked_at for found in _each_file(level) if (place := found.get(name))]
        variables = {"__".join([*level, name]).upper() for level in looked_at if name == "privacy"}
        places += [f"the environment variable {each}" for each in os.environ if each.upper() in variables]
        if len(places) > 1:
            first, second, *_ = places if places[0] != places[1] else (f"two sections of {places[0]}", "")
            both = f"{first} and in {second}" if second else first
            yield f"{name} is set in {both}, and only one of them would count: put all of it into one."


def _bare_variables() -> Iterator[str]:
    """Yield a sentence for each variable without a section that has the name of a setting.

    dlt would take its value, though another program may have set it: STATUS or RAW decide which rows are read.
    """
    for name in sorted(Settings.model_fields.keys() - OFTEN_BARE):
        if name.upper() in os.environ:
            variable = "__".join([*SOURCE, name]).upper()
            yield (
                f"The environment variable {name.upper()} would be taken for the setting {name}: unset it, or call it "
                f"{variable} if that is what it is for."
            )


def _misspelt(
    above: tuple[str, ...], known: set[str], other_names: Mapping[str, str] = MappingProxyType({})
) -> Iterator[str]:
    """Yield a sentence for each section that is a misspelling of ours; others belong to dlt or to another source."""
    for name, place in sorted(_in_files(above).items()):
        meant = other_names.get(name) or _nearest(name, known)
        if meant not in (None, name):
            section, other = ".".join([*above, name]), ".".join([*above, str(meant)])
            yield f"[{section}] is set in {place}, but nothing reads it: did you mean [{other}]?"


def _misspelt_variables(pipeline: str | None) -> Iterator[str]:
    """Yield a sentence for each variable with a misspelling of our sections, in lower case, or with single underscores.

    dlt reads only variables in upper case.
    """
    own = "" if pipeline is None else f"{pipeline}__".lower()
    for variable in sorted(os.environ):
        meant = _variable_meant(variable.lower())
        if meant is None and own and variable.lower().startswith(own):
            below = _variable_meant(variable.lower().removeprefix(own))
            only_once = below is not None and below.startswith(f"{OWN[0]}__".upper())  # dlt looks for no other place
            meant = below if below is None or only_once else own.upper() + below
        if meant not in (None, variable):
            yield f"The environment variable {variable} is set, but nothing reads it: did you mean {meant}?"


def _variable_meant(variable: str) -> str | None:
    one_each = re.sub("_+", "_", variable)
    for sections, known in ((SOURCE, frozenset(Settings.model_fields)), (OWN, OWN_KEYS)):
        key = one_each.removeprefix("_".join([*sections, ""]))
        if key in known and key != one_each:
            return "__".join([*sections, key]).upper()
        *above, last = variable.split("__", len(sections))
        nearest = [_nearest(name, {section}) for name, section in zip(above, sections, strict=False)]
        if nearest == list(sections):
            return "__".join([*sections, last]).upper()
    return None


def _nearest(name: str, known: set[str]) -> str | None:
    return name if name in known else next(iter(get_close_matches(name.lower(), known, n=1, cutoff=_NEARLY)), None)


def _in_environment(sections: tuple[str, ...]) -> dict[str, str]:
    prefix = "__".join([*sections, ""]).upper()
    found = {}
    for variable in os.environ:
        if variable.upper().startswith(prefix):
            name, _, below = variable[len(prefix) :].lower().partition("__")
            # dlt reads a list or a table from one variable, as JSON, and ignores variables for single elements of it
            key = f"{name}__{below}" if name in Settings.model_fields.keys() | OWN_KEYS else name
            found[key.removesuffix("__")] = f"the environment variable {variable}"
    return found


def _in_files(sections: tuple[str, ...]) -> dict[str, str]:
    return {name: place for found in _each_file(sections) for name, place in found.items()}


def _each_file(sections: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Yield for each kind of file the keys under these sections, with the file."""
    for provider in _providers():
        node: Any = getattr(provider, "_config_doc", None)
        for section in sections:
            node = node.get(section) if isinstance(node, dict) else None
        yield {str(name): _file(provider, str(name), sections) for name in (node if isinstance(node, dict) else ())}


def location_of(name: str, pipeline: str | None) -> str | None:
    """Return the environment variable or file in which dlt found the value of a setting; None if it found none."""
    for sections in levels(pipeline):
        variable = "__".join([*sections, name]).upper()
        if variable in os.environ:
            return f"the environment variable {variable}"
        for provider in _providers():
            value, _ = provider.get_value(name, object, "", *sections)
            if value is not None:
                return _file(provider, name, sections)
    return None


def _providers() -> list[Any]:
    from dlt.common.configuration.container import Container
    from dlt.common.configuration.specs.pluggable_run_context import PluggableRunContext

    providers: Any = Container()[PluggableRunContext].providers
    return [each for each in providers.providers if hasattr(each, "_config_doc")]


def _file(provider: Any, name: str, sections: tuple[str, ...]) -> str:
    ask = getattr(provider, "get_value_location", None)
    found = str(ask(name, None, *sections) or provider.name) if ask else str(provider.name)
    places = map(Path, getattr(provider, "present_locations", ()))
    path = next((place.absolute() for place in places if place.name == found), Path(found))
    return str(path.relative_to(Path.cwd())) if path.is_absolute() and path.is_relative_to(Path.cwd()) else found
