"""Hints, privacy rules and names of templates that match nothing of what is loaded: most likely one is misspelt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from connector.nearest import instead_of
from connector.settings import Settings
from connector.warehouse import Warehouse
from connector.warehouse.history_tables import names_of_templates
from connector.warehouse.ownership import take_stock
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


def unmatched_templates(warehouse: Warehouse, settings: Settings) -> list[str]:
    """Return a sentence for each template with privacy rules, or named by `history`, that no import has or had.

    None before the first load, when nothing could match.
    """
    ruled = settings.protection.templates
    kept = settings.history if not isinstance(settings.history, bool) else ()
    if not (ruled or kept) or not warehouse.exists():
        return []
    with warehouse.connect() as connection:
        dataset = take_stock(connection)
        if not {"template__slug", "template__name"} <= dataset.columns.get(IMPORTS, {}).keys():
            return []
        known = {name for slug, names in names_of_templates(connection, dataset).items() for name in (slug, *names)}
    known.discard("")
    rules = (f"The privacy rules for {n} match no template: {instead_of(n, known)}" for n in ruled if n not in known)
    names = (f"history names {n}, which no template is called: {instead_of(n, known)}" for n in kept if n not in known)
    return [*rules, *names]
