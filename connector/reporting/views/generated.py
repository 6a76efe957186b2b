"""Generate views and checks from the data dictionary: per template, and over the fields of all templates.

Their text is valid in both dialects and does not go through sqlglot, because two hundred templates have a megabyte of
it. A table is scanned once for a hundred of its fields; the counts in columns are then unpivoted into rows.
"""

from __future__ import annotations

from dataclasses import replace

from connector.reporting.views.changed import CHANGES, changes_view
from connector.reporting.views.layout import Layout, TypedField, TypedTable, recorded
from connector.reporting.views.statements import Ready, Statement, select, standing, tables_of
from connector.transform.schema import Kind as TypeKind
from connector.transform.schema import parse_type
from connector.warehouse.adapters.dialect import literal, quoted
from connector.warehouse.tables import IMPORTS, LEDGER, RECORDS

NULLS, DISTINCT, MISFITS = "v_field_nulls", "v_field_distinct", "v_misfits"
GENERATED = frozenset({NULLS, DISTINCT, MISFITS, CHANGES})  # names of the views here that are not of one template
UNMATCHED, TWICE = "unmatched_typed_rows", "duplicate_typed_rows"
LIVE = f"{quoted('_deleted_at')} IS NULL"
RECORD, IMPORT = quoted("_record_slug"), quoted("_import_slug")


def ready_views(layout: Layout) -> tuple[list[Ready], dict[str, str]]:
    """Return every view that the warehouse can have now, and the fixed ones that it cannot, with the reason."""
    left_out: dict[str, str] = {}
    ready: list[Ready] = []
    for statement in standing():
        if statement.kind != "view":
            continue
        missing = sorted(tables_of(statement) - set(layout.tables))
        if missing:
            left_out[statement.name] = f"there is no table {', '.join(missing)} yet"
        else:
            ready.append(_ready(statement, select(statement, layout.dialect, layout.dataset)))
    with_fields = [typed for typed in layout.typed if typed.fields]
    if with_fields:
        ready.append(_distinct(layout, with_fields))
        if IMPORTS in layout.tables:
            ready.append(_nulls(layout, with_fields))
    ready.append(_misfits(layout, [typed for typed in layout.typed if any(field.variants for field in typed.fields)]))
    ready.append(changes_view(layout, recorded(layout)))
    ready += [_clean(layout, typed) for typed in layout.typed]
    return ready, left_out


def ready_checks(layout: Layout) -> list[Ready]:
    """Return every check; a table that does not exist yet reads as an empty one."""
    ready = [
        _ready(statement, select(statement, layout.dialect, layout.dataset, layout.tables))
        for statement in standing()
        if statement.kind == "check"
    ]
    if layout.typed:
        ready.append(_duplicates(layout))
        if RECORDS in layout.tables and LEDGER in layout.tables:
            ready.append(_unmatched(layout))
    return sorted(ready, key=lambda each: each.name)


def _ready(statement: Statement, sql: str) -> Ready:
    return Ready(statement.name, statement.kind, statement.summary, statement.grain, sql)


def _clean(layout: Layout, typed: TypedTable) -> Ready:
    """Return the view of a template: columns with the original field names and the type of their base column.

    System columns come last, and only live rows are shown.
    """
    lines = ",\n    ".join(
        expression if label in typed.system else f"{expression} AS {quoted(label)}"
        for label, expression, _ in view_columns(typed)
    )
    of = "imports without a template" if typed.template is None else f"the template {typed.template}"
    return Ready(
        typed.view,
        "view",
        f"Live rows of {of}, columns as people wrote them.",
        "one row per live record.",
        f"SELECT\n    {lines}\nFROM {layout.name(typed.table)}\nWHERE {LIVE}",
    )


def view_columns(typed: TypedTable) -> list[tuple[str, str, str | None]]:
    """Return (name, expression, column of the table whose type it has or None for text) of each column of the view."""
    columns: list[tuple[str, str, str | None]] = []
    for field in typed.fields:
        columns.append((field.label, quoted(field.column), field.column))
        if field.variants:
            columns.append((field.misfit_label, field.misfit, None))
    return columns + [(column, quoted(column), column) for column in typed.system if column != "_deleted_at"]


def _misfits(layout: Layout, tables: list[TypedTable]) -> Ready:
    """Return the view of misfits; it exists without any, too, with the same columns."""
    parts = [_misfits_of(layout, some) for typed in tables for some in _misfitting(typed).sliced()]
    nothing = (
        "SELECT CAST(NULL AS TEXT) AS template, CAST(NULL AS TEXT) AS field, CAST(NULL AS TEXT) AS value, "
        "CAST(NULL AS TEXT) AS import_slug, CAST(NULL AS TEXT) AS record_slug, CAST(NULL AS BIGINT) AS sort WHERE FALSE"
    )
    return Ready(
        MISFITS,
        "view",
        "Values that do not fit the type of their column, as text, with the row that they are in.",
        "one row per live record and field whose value does not fit.",
        "\nUNION ALL\n".join(parts or [nothing]),
    )


def _misfits_of(layout: Layout, typed: TypedTable) -> str:
    misfits = _counts([field.misfit for field in typed.fields], "m")
    paths = ", ".join(literal(field.path) for field in typed.fields)
    values = ", ".join(f"d.m{n}" for n in range(len(typed.fields)))
    there = " OR ".join(f"{quoted(variant)} IS NOT NULL" for field in typed.fields for variant in field.variants)
    return (
        f"SELECT {literal(typed.template)} AS template, u.field, u.value, u.import_slug, u.record_slug, u.sort\n"
        f"FROM (\n    SELECT UNNEST(ARRAY[{paths}]) AS field, UNNEST(ARRAY[{values}]) AS value, "
        f"d.import_slug, d.record_slug, d.sort\n    FROM (\n"
        f"        SELECT {IMPORT} AS import_slug, {RECORD} AS record_slug, {quoted('_sort')} AS sort,\n"
        f"        {misfits}\n        FROM {layout.name(typed.table)}\n        WHERE {LIVE} AND ({there})\n"
        "    ) AS d\n) AS u\nWHERE u.value IS NOT NULL"
    )


def _misfitting(typed: TypedTable) -> TypedTable:
    return replace(typed, fields=tuple(field for field in typed.fields if field.variants))


def _nulls(layout: Layout, tables: list[TypedTable]) -> Ready:
    parts = "\nUNION ALL\n".join(_by_day(layout, some) for typed in tables for some in typed.sliced())
    share = "CAST(row_count - value_count AS DOUBLE PRECISION) / row_count"
    return Ready(
        NULLS,
        "view",
        "How the share of nulls of each field changed from one upload day to the next.",
        "one row per field of a typed table and day (UTC) on which an import with rows was created.",
        "SELECT\n    template, table_name, field, column_name, upload_day, row_count, value_count,\n"
        f"    row_count - value_count AS null_count,\n    {share} AS null_share,\n"
        f"    {share} - LAG({share}) OVER (PARTITION BY template, table_name, field, column_name ORDER BY upload_day)"
        f" AS null_share_change\nFROM (\n{parts}\n) AS counted",
    )


def _by_day(layout: Layout, typed: TypedTable) -> str:
    # no column of a typed table has a blank in its name, so these names never collide with one
    imports = f'SELECT slug AS "import slug", created_at AS "created at" FROM {layout.name(IMPORTS)}'
    day = "CAST(i.\"created at\" AT TIME ZONE 'UTC' AS DATE)"
    values = _counts([f"COUNT(*) FILTER (WHERE {field.is_there})" for field in typed.fields])
    return (
        f"SELECT {_named(typed)}, u.field, u.column_name, u.upload_day, u.row_count, u.value_count\nFROM (\n"
        f"    SELECT d.upload_day, d.row_count, {_names(typed)}, {_turned('v', typed)} AS value_count\n    FROM (\n"
        f"        SELECT {day} AS upload_day, COUNT(*) AS row_count,\n        {values}\n"
        f"        FROM (SELECT * FROM {layout.name(typed.table)} WHERE {LIVE}) AS r\n"
        f'        JOIN ({imports}) AS i ON i."import slug" = r.{IMPORT}\n        GROUP BY 1\n    ) AS d\n) AS u'
    )


def _distinct(layout: Layout, tables: list[TypedTable]) -> Ready:
    return Ready(
        DISTINCT,
        "view",
        "How many values of each field are distinct; counted when it is asked, over all rows.",
        "one row per field of a typed table.",
        "\nUNION ALL\n".join(_distinct_of(layout, some) for typed in tables for some in typed.sliced()),
    )


def _distinct_of(layout: Layout, typed: TypedTable) -> str:
    values = _counts([f"COUNT(*) FILTER (WHERE {field.is_there})" for field in typed.fields])
    distinct = _counts([f"COUNT(DISTINCT {_comparable(field)})" for field in typed.fields], "u")
    return (
        f"SELECT {_named(typed)}, u.field, u.column_name, u.row_count, u.value_count, u.distinct_count\nFROM (\n"
        f"    SELECT d.row_count, {_names(typed)}, {_turned('v', typed)} AS value_count, "
        f"{_turned('u', typed)} AS distinct_count\n    FROM (\n        SELECT COUNT(*) AS row_count,\n"
        f"        {values},\n        {distinct}\n        FROM {layout.name(typed.table)}\n        WHERE {LIVE}\n"
        f"    ) AS d\n) AS u"
    )


def _comparable(field: TypedField) -> str:
    """Return the value for comparisons; JSON is compared as text, since PostgreSQL's has no equality."""
    is_json = parse_type(field.type).kind is TypeKind.JSON
    return f"CAST({field.value} AS TEXT)" if is_json else field.value


def _named(typed: TypedTable) -> str:
    """Return the columns that name a table, outside the unpivot, so that a filter by template skips other tables."""
    return f"{literal(typed.template)} AS template, {literal(typed.table)} AS table_name"


def _counts(expressions: list[str], letter: str = "v") -> str:
    return ",\n        ".join(f"{what} AS {letter}{n}" for n, what in enumerate(expressions))


def _turned(letter: str, typed: TypedTable) -> str:
    return f"UNNEST(ARRAY[{', '.join(f'd.{letter}{n}' for n in range(len(typed.fields)))}])"


def _names(typed: TypedTable) -> str:
    paths = ", ".join(literal(field.path) for field in typed.fields)
    columns = ", ".join(literal(field.column) for field in typed.fields)
    return f"UNNEST(ARRAY[{paths}]) AS field, UNNEST(ARRAY[{columns}]) AS column_name"


def _unmatched(layout: Layout) -> Ready:
    """Return the check for unmatched rows, only for imports that have both kinds of rows according to the ledger.

    The settings `raw` and `typed` may have changed, and a record may have moved out of an import that is left out.
    """
    parts = [
        f"SELECT {literal(typed.table)} AS table_name, t.{RECORD} AS record_slug, t.{IMPORT} AS import_slug, "
        f"'typed row without a raw row' AS problem FROM {layout.name(typed.table)} t LEFT JOIN (SELECT slug, "
        f"import_slug FROM {layout.name(RECORDS)} WHERE {LIVE}) r ON r.slug = t.{RECORD} AND r.import_slug = "
        f"t.{IMPORT} LEFT JOIN {layout.name(LEDGER)} s ON s.slug = t.{IMPORT} WHERE t.{LIVE} AND r.slug IS NULL "
        "AND COALESCE(s.has_raw, TRUE) AND COALESCE(s.state, '') <> 'excluded'"
        for typed in layout.typed
    ]
    parts += [
        f"SELECT {literal(typed.table)}, r.slug, r.import_slug, 'raw row without a typed row' FROM "
        f"{layout.name(RECORDS)} r JOIN {layout.name(LEDGER)} s ON s.slug = r.import_slug AND s.has_raw AND "
        f"s.table_name = {literal(typed.table)} LEFT JOIN (SELECT {RECORD} AS record_slug_ FROM "
        f"{layout.name(typed.table)} WHERE {LIVE}) t ON t.record_slug_ = r.slug "
        f"WHERE r.{LIVE} AND t.record_slug_ IS NULL AND s.state NOT IN ('failed', 'excluded')"
        for typed in layout.typed
    ]
    return Ready(
        UNMATCHED,
        "check",
        "Typed rows without their raw row, and raw rows without their typed row.",
        "one row per typed table and record.",
        "\nUNION ALL\n".join(parts) + "\nORDER BY 1, 4, 2",
    )


def _duplicates(layout: Layout) -> Ready:
    parts = [
        f"SELECT {literal(typed.table)} AS table_name, {RECORD} AS record_slug, COUNT(*) AS times "
        f"FROM {layout.name(typed.table)} GROUP BY {RECORD} HAVING COUNT(*) > 1"
        for typed in layout.typed
    ]
    return Ready(
        TWICE,
        "check",
        "Records that are in a typed table more than once.",
        "one row per typed table and record.",
        "\nUNION ALL\n".join(parts) + "\nORDER BY 1, 2",
    )
