"""Mark imports in the ledger as due (`sync_imports.due`): the next run reads them although they look unchanged.

Invariant: the marks of a backfill are in the warehouse before its first request, and an import loses its mark only with
the load that brings its records. So however a backfill ends, the next run reads the imports that it did not read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from connector.ledger import Due, State
from connector.settings import RunScope
from connector.text import composed
from connector.warehouse.connection import Connection, batches, marks
from connector.warehouse.ledger_table import DUE, ensure_due_column
from connector.warehouse.tables import IMPORTS, LEDGER

_NEEDED = frozenset({"slug", "state", "status", "updated_at", "template_slug"})  # by these a backfill selects


def can_mark_due(columns: Collection[str]) -> bool:
    """Return whether a ledger with these columns can be marked.

    If one of them is lost, every import differs from its row, and is read without a mark.
    """
    return set(columns) >= _NEEDED


def mark_backfill_due(connection: Connection, scope: RunScope, status: str | None) -> None:
    """Mark the known imports that a backfill selects; it reads all others as new or changed."""
    window, selection = scope.window, scope.selection
    bounds: dict[str, Any] = {
        "status = %s": status,
        "updated_at >= %s": window.since,
        "updated_at < %s": window.until,
    }
    conditions: dict[str, list[Any]] = {condition: [value] for condition, value in bounds.items() if value is not None}
    if selection.template is not None:
        slugs = sorted(_templates_called(connection, selection.template))
        conditions[f"template_slug IN ({marks(slugs)})"] = list(slugs)
    if not selection.slugs:
        _mark_due(connection, Due.backfill, conditions)
    for some in batches(sorted(selection.slugs)):
        _mark_due(connection, Due.backfill, {**conditions, f"slug IN ({marks(some)})": list(some)})


def _templates_called(connection: Connection, name: str) -> set[str]:
    """Return a slug, which `name` may be, and the slugs of the templates that an import shows with this name."""
    sql = f"SELECT DISTINCT template__slug AS slug, template__name AS name FROM {connection.name(IMPORTS)}"
    shown = [row for row in connection.query(sql).to_pylist() if row["slug"] and row["name"]]
    return {name, *(row["slug"] for row in shown if composed(row["name"]) == name)}


def mark_all_due(connection: Connection, why: Due) -> None:
    """Mark every import as due for the next run."""
    _mark_due(connection, why, {})


def mark_due(connection: Connection, slugs: Sequence[str], why: Due) -> None:
    """Mark these imports as due for the next run, which reads imports that are not in the ledger anyway."""
    for some in batches(slugs):
        _mark_due(connection, why, {f"slug IN ({marks(some)})": list(some)})


def _mark_due(connection: Connection, why: Due, conditions: Mapping[str, list[Any]]) -> None:
    ensure_due_column(connection)
    # versions wait for what is torn or lost, so these marks stay
    stronger = f"'{Due.torn}', '{Due.lost}'" if why is Due.backfill else f"'{Due.torn}'"
    kept = [f"COALESCE(state, '') NOT IN ('{State.deleted}', '{State.excluded}')"]  # the column may have been lost
    kept.append(f"COALESCE({DUE}, '') NOT IN ({stronger})")
    where = " AND ".join([*kept, *conditions])
    values = [value for some in conditions.values() for value in some]
    connection.execute(f"UPDATE {connection.name(LEDGER)} SET {DUE} = '{why}' WHERE {where}", *values)
