"""Decide what a user may change on the source before dlt runs it, and refuse what would lose rows.

No table is nested and every column keeps its type, so any `max_table_nesting` is accepted, and so is a schema contract
that lets tables and columns evolve. Every other hint would change how rows reach the warehouse, on which the guarantees
depend.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dlt.extract import DltResource, DltSource

from connector.errors import ConfigError
from connector.warehouse.tables import SOURCE

_FIX = {
    "columns": "types of columns are set under [sources.importer.hints.<table>]",
    "incremental": "a window is the argument updated_at of importer_source()",
    "schema_contract": "only contracts that let tables and columns evolve fit a sync that loses nothing",
    "table_name": "tables have their names from the templates",
    "write_disposition": "rows are merged by the sync, import by import",
}
_IGNORED = {"name", "x-normalizer", "original_columns", "validator", "resource"}


def refuse_changes(source: DltSource, package_state: Mapping[str, Any]) -> None:
    """Raise ConfigError that names every change to the source which would break the sync."""
    found = list(_of_source(source, package_state))
    for resource in source.selected_resources.values():
        found += [f"{resource.name}: {each}" for each in _of_resource(resource)]
    if found:
        raise ConfigError(f"The source cannot be run with these changes: {'; '.join(found)}.")


def _of_source(source: DltSource, package_state: Mapping[str, Any]) -> Iterator[str]:
    if source.schema.name != SOURCE:  # by which this package finds what dlt stores about tables and loads
        yield (
            f"schema {source.schema.name} (give `pipeline.run` the source itself, or `source.with_resources(…)`; dlt "
            "puts resources without their source, and a renamed source, into another schema)"
        )
    ours = {name for name, each in source.selected_resources.items() if hasattr(each._pipe.gen, "shared")}
    if renamed := sorted(ours - {"imports", "records"}):
        yield f"resources called {', '.join(renamed)} (keep their names, imports and records)"
    if not _lets_evolve(source.schema_contract):
        yield f"schema_contract ({_FIX['schema_contract']})"
    if package_state.get("dropped_tables") or package_state.get("truncated_tables"):
        yield (
            "refresh (it empties tables whose imports the ledger calls complete; `importer-sync backfill --full` "
            "reads everything again)"
        )


def _of_resource(resource: DltResource) -> Iterator[str]:
    hints: Mapping[str, Any] = resource._hints  # type: ignore[assignment]
    for name, value in hints.items():
        if not _is_harmless(name, value):
            yield f"{name} ({_FIX[name]})" if name in _FIX else name
    if hasattr(resource._pipe.gen, "__wrapped__"):
        yield "parallelize (both resources share one run, which is not thread-safe; max_concurrency makes it faster)"
    if any(type(step).__name__ != "Incremental" for step in list(resource._pipe.steps)[1:]):
        yield "a step such as add_map, add_filter or add_limit (the loaded rows could no longer be proven complete)"


def _is_harmless(name: str, value: Any) -> bool:
    if value is None or value in ({}, []) or name in _IGNORED:
        return True
    if name == "write_disposition":
        return bool(value == "merge")
    if name == "schema_contract":
        return _lets_evolve(value)
    if name == "file_format":
        return bool(value == "parquet")
    return False


def _lets_evolve(contract: Any) -> bool:
    if not isinstance(contract, Mapping):
        return contract in (None, "evolve")
    return all(mode == "evolve" or (of, mode) == ("data_type", "freeze") for of, mode in contract.items())
