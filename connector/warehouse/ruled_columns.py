"""Find the columns of a table of versions that may hold a value under a privacy rule. Pure, by names alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from connector.transform.protection import Protection
from connector.transform.schema import Field, Keys, Kind, parse_type
from connector.warehouse.history_tables import OWN, columns_aside


def ruled_columns(
    rules: Sequence[Protection], fields: Iterable[tuple[Keys, Field]], columns: Collection[str], system: Collection[str]
) -> list[str]:
    """Return those of `columns` that one of the rules may concern; none if there are no rules.

    `fields` are the fields of the table with their paths as the rules see them, `system` columns that no rule concerns.
    A column in neither belongs to a field that no longer has one, and may hold anything.
    """
    if not rules:
        return []
    untouched = {*system, *OWN}
    for keys, known in fields:
        nested = known.type is not None and parse_type(known.type).kind is Kind.JSON
        if not any(each.concerns(keys, nested=nested) for each in rules):
            untouched.add(known.column)
        if not any(each.concerns(keys, nested=True) for each in rules):
            untouched.update(columns_aside(known.column, columns, ()))
    return [column for column in columns if column not in untouched]
