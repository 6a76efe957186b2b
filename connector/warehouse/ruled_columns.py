"""Find the columns of a history table that may have a value under a privacy rule. Pure; uses only names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from connector.transform.naming import CHANGED_COLUMN, RULES_COLUMN
from connector.transform.protection import Protection
from connector.transform.schema import Field, Keys, Kind, parse_type
from connector.warehouse.history_tables import OWN, set_aside_columns


def ruled_columns(
    rules: Sequence[Protection], fields: Iterable[tuple[Keys, Field]], columns: Collection[str], system: Collection[str]
) -> list[str]:
    """Return those of `columns` to which a rule may apply; none if there are no rules.

    `fields` are the fields of the table with their paths as in the rules, `system` columns to which no rule applies. A
    column in neither belongs to a field that no longer has a column, and may have any value.
    """
    if not rules:
        return []
    untouched = {*system, *OWN, CHANGED_COLUMN, RULES_COLUMN}
    for keys, known in fields:
        nested = known.type is not None and parse_type(known.type).kind is Kind.JSON
        if not any(each.concerns(keys, nested=nested) for each in rules):
            untouched.add(known.column)
        if not any(each.concerns(keys, nested=True) for each in rules):
            untouched.update(set_aside_columns(known.column, columns, ()))
    return [column for column in columns if column not in untouched]
