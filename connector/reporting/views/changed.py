"""Generate the view `v_changes`: changes of records, field by field, from the history tables.

`importer-sync changes` (`connector.reporting.changes`) shows the same, with values of the columns' types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from connector.reporting.views.layout import Layout, TypedField, TypedTable
from connector.reporting.views.statements import Ready, select, standing
from connector.transform.naming import CHANGED_COLUMN
from connector.warehouse.adapters.dialect import literal, quoted
from connector.warehouse.history_tables import CHANGE, RUN_ID, VALID_FROM, VALID_TO
from connector.warehouse.noted_changes import noted

CHANGES = "v_changes"
PLACE = {"_import_slug": "import", "_sort": "sort"}  # system columns whose change counts → their name in the view
_TOLD = {
    "changed_at": VALID_FROM,
    "import_slug": "_import_slug",
    "record_slug": "_record_slug",
    "change": CHANGE,
    "updated_at": "_updated_at",
    "run_id": RUN_ID,
}
_TEXTS = ("template", "import_slug", "record_slug", "field", "old_value", "new_value", "change", "run_id")
_NOTHING = (
    f"SELECT {', '.join(f'CAST(NULL AS TEXT) AS {name}' for name in _TEXTS)}, "
    "CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS changed_at, CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS updated_at "
    "WHERE FALSE"
)


def changes_view(layout: Layout, versions: Iterable[tuple[TypedTable, str]]) -> Ready:
    """Return the view over these typed tables, each given with the name of its history table.

    It exists without any versions too, with the same columns.
    """
    parts = [part for typed, history in versions for part in _selects(layout, typed, history)]
    changes = "\nUNION ALL\n".join(parts or [_NOTHING])
    [uploads] = [each for each in standing() if each.name == "v_imports"]
    return Ready(
        CHANGES,
        "view",
        "What changed in the records, with the values before and after as text.",
        "one row per field of a record that a run saw changed; one without a field per record that came or went.",
        "SELECT\n    c.changed_at, c.template, c.import_slug, i.uploader, c.record_slug, c.field, c.old_value, "
        f"c.new_value, c.change, c.updated_at, c.run_id\nFROM (\n{changes}\n) AS c\nLEFT JOIN (\n"
        f"{select(uploads, layout.dialect, layout.dataset, layout.tables)}\n) AS i ON i.import_slug = c.import_slug",
    )


def _selects(layout: Layout, typed: TypedTable, history: str) -> Iterator[str]:
    """Yield SELECTs that pair each version with the one that ended when it began."""
    template, versions, key = literal(typed.template), layout.name(history), quoted("_record_slug")
    told = ", ".join(f"n.{quoted(column)} AS {name}" for name, column in _TOLD.items())
    before = (
        f"{versions} AS o ON o.{key} = n.{key} AND o.{quoted(VALID_TO)} = n.{quoted(VALID_FROM)} "
        f"AND o.{quoted(VALID_FROM)} < o.{quoted(VALID_TO)}"
    )
    yield (
        f"SELECT {template} AS template, {told}, CAST(NULL AS TEXT) AS field, CAST(NULL AS TEXT) AS old_value, "
        f"CAST(NULL AS TEXT) AS new_value\nFROM {versions} AS n LEFT JOIN {before}\n"
        f"WHERE n.{quoted(CHANGE)} <> 'update' OR o.{key} IS NULL"
    )
    place = tuple(TypedField(name, "", name, column, "text", ()) for column, name in PLACE.items())
    has_notes = CHANGED_COLUMN in layout.tables[history]
    for some in replace(typed, fields=(*typed.fields, *place)).sliced():
        by_text = not has_notes and not any(field.variants for field in some.fields)
        arrays = {
            "field": [literal(field.path) for field in some.fields],
            "old_value": [field.text("o") for field in some.fields],
            "new_value": [field.text("n") for field in some.fields],
            **({} if by_text else {"differs": [_differs(field, has_notes=has_notes) for field in some.fields]}),
        }
        turned = ",\n        ".join(f"UNNEST(ARRAY[{', '.join(each)}]) AS {name}" for name, each in arrays.items())
        yield (
            f"SELECT {template} AS template, {', '.join(f'u.{name}' for name in _TOLD)}, u.field, u.old_value, "
            f"u.new_value\nFROM (\n    SELECT {told},\n        {turned}\n    FROM {versions} AS n JOIN {before}\n"
            f"    WHERE n.{quoted(CHANGE)} = 'update'\n) AS u\n"
            f"WHERE {'u.old_value IS DISTINCT FROM u.new_value' if by_text else 'u.differs'}"
        )


def _differs(field: TypedField, *, has_notes: bool) -> str:
    """Return SQL for whether a field differs, compared as text: PostgreSQL's JSON has no equality.

    Two versions from before a rebuild differ in what the later one has noted, unless its values were emptied since.
    """
    differ = " OR ".join(map(_column_differs, field.columns))
    if not has_notes:
        return differ
    note = f"n.{quoted(CHANGED_COLUMN)}"
    noted_of = " OR ".join(f"strpos({note}, {literal(noted(column))}) > 0" for column in field.notable)
    return f"CASE WHEN {note} IS NULL THEN {differ} ELSE ({noted_of}) AND ({_is_there(field)}) END"


def _is_there(field: TypedField) -> str:
    return " OR ".join(f"{row}.{quoted(column)} IS NOT NULL" for column in field.columns for row in "on")


def _column_differs(column: str) -> str:
    return f"CAST(o.{quoted(column)} AS TEXT) IS DISTINCT FROM CAST(n.{quoted(column)} AS TEXT)"
