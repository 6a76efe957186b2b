"""List what changed in the records, field by field, from the tables with their versions (docs/history.md).

The view `v_changes` shows the same in SQL, with values as text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dlt.pipeline.pipeline import Pipeline

from connector.errors import ConfigError
from connector.nearest import suggest_known
from connector.reporting.views.changed import PLACE
from connector.reporting.views.layout import TypedField, TypedTable, read_layout, recorded
from connector.text import composed
from connector.transform.naming import CHANGED_COLUMN
from connector.warehouse import Connection, Warehouse
from connector.warehouse.destination import no_warehouse
from connector.warehouse.history_tables import CHANGE, VALID_FROM, VALID_TO
from connector.warehouse.noted_changes import noted
from connector.warehouse.tables import FIELDS, keys_of


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one field of one record; `field` is None if the record was inserted or deleted as a whole.

    `change` is insert, update or delete; `at` is when the run that saw it began (UTC).
    """

    record: str
    import_slug: str
    template: str | None
    field: str | None
    old: Any
    new: Any
    change: str
    at: datetime

    def as_json(self) -> dict[str, Any]:
        return {
            "record": self.record,
            "import": self.import_slug,
            "template": self.template,
            "field": self.field,
            "old": self.old,
            "new": self.new,
            "change": self.change,
            "at": self.at.isoformat(),
        }


def changes(pipeline: Pipeline, since: datetime, template: str | None = None, field: str | None = None) -> list[Change]:
    """Return the changes at or after `since`, in order; with `field`, only of that field.

    Raises ConfigError if no version is kept, or no template or field has that name.
    """
    warehouse = Warehouse(pipeline)
    warehouse.check_supported()
    if not warehouse.exists():
        raise no_warehouse(pipeline)
    with warehouse.connect() as connection:
        layout = read_layout(connection, warehouse.traits.dialect)
        kept = list(recorded(layout))
        if not kept:
            raise ConfigError("No version of a row is kept yet; set history = true under [sources.importer] and run.")
        if template is not None:
            slugs = _slugs(connection)
            names = {t.table: {t.template, t.table, slugs.get(t.table)} - {None} for t, _ in kept}
            known = {str(name) for of in names.values() for name in of}
            if composed(template) not in map(composed, known):
                raise ConfigError(f"--template {template!r} has no versions; {suggest_known(template, known)}")
            kept = [e for e in kept if composed(template) in {composed(str(name)) for name in names[e[0].table]}]
        if field is not None:
            known = {each.path for typed, _ in kept for each in typed.fields}
            if field not in known:
                raise ConfigError(f"--field {field!r} is no field of what is kept; {suggest_known(field, known)}")
        found = [each for typed, history in kept for each in _of(connection, typed, history, since, field)]
    return sorted(
        found, key=lambda each: (each.at, each.template or "", each.import_slug, each.record, each.field or "")
    )


def _slugs(connection: Connection) -> dict[str, str]:
    rows = connection.query(
        f"SELECT DISTINCT table_name, template_slug FROM {connection.name(FIELDS)} WHERE template_slug IS NOT NULL"
    ).to_pylist()
    return {row["table_name"]: row["template_slug"] for row in rows}


def _of(
    connection: Connection, typed: TypedTable, history: str, since: datetime, field: str | None
) -> Iterator[Change]:
    """Yield the changes of one table: pair each version that began since then with the one that ended when it began."""
    wanted = [each for each in typed.fields if field is None or each.path == field]
    key, _ = keys_of(typed.table)
    notes = {CHANGED_COLUMN} & connection.columns()[history].keys()
    columns = dict.fromkeys(
        [key, *PLACE, VALID_FROM, VALID_TO, CHANGE, *notes, *(c for f in wanted for c in f.columns)]
    )
    names, starts, ends = ", ".join(map(connection.column, columns)), *map(connection.column, (VALID_FROM, VALID_TO))
    sql = f"SELECT {names} FROM {connection.name(history)} WHERE "
    began = connection.rows_in(history, f"{sql}{starts} >= %s", since).to_pylist()
    ended = connection.rows_in(history, f"{sql}{ends} >= %s AND {starts} < {ends}", since)
    before = {(row[key], row[VALID_TO]): row for row in ended.to_pylist()}
    for row in began:
        old = before.get((row[key], row[VALID_FROM]))
        for name, was, now in _differences(row, old, wanted, whole=field is None):
            at = row[VALID_FROM].astimezone(UTC)
            yield Change(row[key], row["_import_slug"], typed.template, name, was, now, row[CHANGE], at)


def _differences(
    row: Mapping[str, Any], old: Mapping[str, Any] | None, fields: list[TypedField], *, whole: bool
) -> Iterator[tuple[str | None, Any, Any]]:
    if row[CHANGE] != "update" or old is None:
        if whole:
            yield None, None, None
            return
        for each in fields:
            value = _value(row, each)
            if value is not None:
                yield (each.path, None, value) if row[CHANGE] == "insert" else (each.path, value, None)
        return
    for each in fields:
        if _differs(each, old, row):
            yield each.path, _value(old, each), _value(row, each)
    for column, name in PLACE.items():
        if whole and old[column] != row[column]:
            yield name, old[column], row[column]


def _differs(field: TypedField, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Decide as `connector.reporting.views.changed._differs` does, with values of the columns' types."""
    note = new.get(CHANGED_COLUMN)
    if note is None:
        return any(old[column] != new[column] for column in field.columns)
    there = any(row[column] is not None for row in (old, new) for column in field.columns)
    return there and any(noted(column) in note for column in field.notable)


def _value(row: Mapping[str, Any], field: TypedField) -> Any:
    columns = (*field.present, *field.earlier)
    return next((row[column] for column in columns if row[column] is not None), None)
