"""Hints and privacy rules that matched nothing of what is loaded: most likely a name was misspelt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from connector.nearest import instead_of
from connector.settings import Settings
from connector.warehouse import Warehouse
from connector.warehouse.tables import FIELDS, IMPORTS


def unmatched_hints(warehouse: Warehouse, settings: Settings) -> list[str]:
    """Return a sentence for each; none before the first load, when nothing could match."""
    if not settings.hints or not settings.typed or not warehouse.exists():
        return []
    with warehouse.connect() as connection:
        if FIELDS not in connection.columns():
            return []
        rows = connection.query(f"SELECT table_name, column_name, path FROM {connection.name(FIELDS)}").to_pylist()
    known: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        known[row["table_name"]] |= {row["column_name"], row["path"]}
    return [*_unmatched(settings, known)] if known else []


def _unmatched(settings: Settings, known: dict[str, set[str]]) -> Iterator[str]:
    for table, hints in settings.hints.items():
        if table == IMPORTS:
            continue
        if table not in known:
            yield f"The hints for {table} match no table: {instead_of(table, known)}"
            continue
        for column in hints:
            if column not in known[table]:
                yield f"The hint for {table}.{column} matches no column: {instead_of(column, known[table])}"


def unmatched_rules(warehouse: Warehouse, settings: Settings) -> list[str]:
    """Return a sentence for each template with privacy rules that no import has; none before the first load."""
    ruled = settings.protection.templates
    if not ruled or not warehouse.exists():
        return []
    with warehouse.connect() as connection:
        if not {"template__slug", "template__name"} <= connection.columns().get(IMPORTS, {}).keys():
            return []
        rows = connection.query(
            f"SELECT DISTINCT template__slug, template__name FROM {connection.name(IMPORTS)}"
        ).to_pylist()
    known = {name for row in rows for name in row.values() if name}
    return [
        f"The privacy rules for {name} match no template: {instead_of(name, known)}"
        for name in ruled
        if name not in known
    ]
