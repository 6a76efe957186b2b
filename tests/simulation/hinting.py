"""Draw hints, and read texts by them as documented (docs/settings.md), without using the connector's code."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from random import Random
from typing import Any

Hints = Mapping[str, Mapping[str, str]]  # table → path → hint

_DATE = ("date", "date:%d.%m.%Y", "timestamp", "text")
_AMOUNT = ("decimal(12,2)", "decimal(6,1):1.234,5", "bigint", "double", "text")
_ODD: Mapping[str, tuple[str, ...]] = {
    "a": ("text", "bigint", "double", "bool", "json", "date", "decimal(5,1)"),
    "b": ("text", "bigint", "decimal(38,18)", "timestamp"),
    "nested": ("json", "text", "bigint"),
    "edge": ("text", "bigint", "double", "decimal(38,9)", "bool"),
}
_CUSTOMERS: Mapping[str, tuple[str, ...]] = {
    "Nº": ("text", "decimal(3,0)", "json"),
    "signup date": _DATE,
    "VIP?": ("bool", "bool:yes/no", "text"),
    "balance (€)": _AMOUNT,
    "address.zip": ("bigint", "double", "decimal(5,0)"),
    "tags": ("text", "bigint"),
}
_ORDERS: Mapping[str, tuple[str, ...]] = {
    "barcode": ("text", "decimal(19,0)", "double"),
    "Total": _AMOUNT,
    "ordered at": _DATE,
    "paid": ("text", "bigint", "bool:true/no"),
    "Discount %": _AMOUNT,
}
_STOCK: Mapping[str, tuple[str, ...]] = {
    "on hand": _AMOUNT,
    "counted": _DATE,
    "unit cost": ("decimal(10,7)", "text", "bigint"),
    "row": ("text", "decimal(2,0)", "bool"),
}
PATHS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "records_customers": {**_CUSTOMERS, **_ODD},
    "records_orders": {**_ORDERS, **_ODD},
    "records_stock": {**_STOCK, **_ODD},
    "records_odd_rows": {**_ODD, **_STOCK},
    "records_untemplated": {**_ODD, **_CUSTOMERS, **_ORDERS, **_STOCK},
}


def make_hints(dice: Random) -> dict[str, dict[str, str]]:
    """Draw hints for some columns of each table; often none."""
    share = dice.choice((0.0, 0.3, 0.6))
    drawn = {
        table: {path: dice.choice(hints) for path, hints in paths.items() if dice.random() < share}
        for table, paths in PATHS.items()
    }
    return {table: hints for table, hints in drawn.items() if hints}


def given_for(all_hints: Iterable[Hints], field: Mapping[str, Any]) -> frozenset[str]:
    """Return the hints for a field in any of these settings, with '' if there was none in some."""
    names = [field["column_name"], field["path"]]
    of_table = (hints.get(field["table_name"], {}) for hints in all_hints)
    return frozenset(next((hints[name] for name in names if name in hints), "") for hints in of_table)


def is_read_as(text: str, stored: Any, kind: str, hints: Collection[str]) -> bool:
    """Return whether a column of a type holds what this text means, by its type or by one of the hints ever given.

    A column whose type only a hint gives reads texts without it, too.
    """
    of_type = {hint for hint in hints if hint.partition(":")[0] == kind}
    if kind.startswith(("date", "timestamp", "decimal")):
        of_type.add(kind)
    return any(_same(_read(text, hint), stored) for hint in of_type)


def _same(read: Any, stored: Any) -> bool:
    if isinstance(read, Decimal):
        exact = (Decimal(stored), Decimal(repr(stored))) if isinstance(stored, float) else (stored,)
        return type(stored) is not bool and read in exact
    return read is not None and type(read) is type(stored) and bool(read == stored)


def _read(text: str, hint: str) -> Any:
    """Return the value of a text under a hint; None if it does not fit."""
    kind, _, form = hint.partition(":")
    try:
        if kind == "date":
            return datetime.strptime(text, form or "%Y-%m-%d").replace(tzinfo=UTC).date()
        if kind == "timestamp":
            return datetime.fromisoformat(text).replace(tzinfo=UTC)
        if kind == "bool":
            yes, no = form.split("/") if form else ("true", "false")
            return {yes: True, no: False}.get(text)
        if form:
            return Decimal(text.replace(".", "").replace(",", "."))
        return Decimal(text) if type(json.loads(text)) in (int, float) else None
    except (ValueError, InvalidOperation):
        return None
