"""Describe the warehouse for the generated views: typed tables with their fields and the columns of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from connector.errors import ConfigError
from connector.reporting.views.labels import label, misfit_label
from connector.transform.naming import DOUBLE_VARIANT, RULES_COLUMN, SYSTEM_COLUMNS, TEXT_VARIANT, VARIANTS
from connector.warehouse import Connection, Warehouse
from connector.warehouse.adapters.dialect import quoted
from connector.warehouse.history_tables import history_of, is_of_earlier_type, set_aside_columns
from connector.warehouse.ownership import inspect_dataset
from connector.warehouse.tables import FIELDS, IMPORTS, LEDGER

DIALECTS = ("duckdb", "postgres")
TABLE_PREFIX = "records_"
VIEWS_SUFFIX = "_views"
Columns = Mapping[str, str]  # name → type as the destination calls it, in their order
_FIELDS_AT_ONCE = 100  # PostgreSQL allows 1,664 columns in a subquery; DuckDB gets slower with more distinct counts


@dataclass(frozen=True, slots=True)
class TypedField:
    """A field of a template: `label` in its view, `path` as in `sync_fields`, and its columns, variants last.

    The field's own column in the view is the base column, so that its type does not depend on what any cell holds;
    `misfit_label` is the view's column for the values in the variants, as text.
    """

    label: str
    misfit_label: str
    path: str
    column: str
    type: str
    variants: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column, *self.variants)

    @property
    def earlier(self) -> tuple[str, ...]:
        """Return those of a history table with values of earlier types."""
        return tuple(each for each in self.variants if is_of_earlier_type(self.column, each))

    @property
    def present(self) -> tuple[str, ...]:
        return tuple(each for each in self.columns if each not in self.earlier)

    @property
    def notable(self) -> tuple[str, ...]:
        """Return the columns that the field has, or had before a rebuild, whose changes a version may have noted."""
        return (self.column, *(self.column + variant for variant in VARIANTS))

    @property
    def value(self) -> str:
        """Return an expression for the value, whichever column it is in, that differs for different values.

        With variants it is a text, because a double rounds a whole number beyond 2^53; equal numbers have one text if
        all columns are numbers.
        """
        texts = [f"CAST({quoted(c)} AS TEXT)" for c in self.columns]
        if not self.variants:
            return quoted(self.column)
        if all(v.endswith(DOUBLE_VARIANT) for v in self.variants):  # beside whole numbers; PostgreSQL omits the .0
            texts = [texts[0], *(f"regexp_replace({text}, '\\.0$', '')" for text in texts[1:])]
        return _first_text(texts)

    @property
    def misfit(self) -> str:
        """Return an expression for a value that does not fit the column, as text, if there are variants.

        A double that is whole keeps its `.0`, by which it differs from the values that fit; PostgreSQL omits it.
        """
        texts = [_misfit(variant, quoted(variant)) for variant in self.present[1:]]
        fits = f"{quoted(self.column)} IS NULL"
        texts += [f"CASE WHEN {fits} THEN CAST({quoted(earlier)} AS TEXT) END" for earlier in self.earlier]
        return _first_text(texts)

    def text(self, row: str) -> str:
        """Return an expression for the value in the row of this alias, as text."""
        base = f"CAST({row}.{quoted(self.column)} AS TEXT)"
        variants = (*self.present[1:], *self.earlier)
        return _first_text([base, *(_misfit(variant, f"{row}.{quoted(variant)}") for variant in variants)])

    @property
    def is_there(self) -> str:
        """Return a condition: the field has a value, in whichever column."""
        return " OR ".join(f"{quoted(column)} IS NOT NULL" for column in self.columns)


@dataclass(frozen=True, slots=True)
class TypedTable:
    """`view` is the name of its view; `system` are the columns that every typed table has."""

    table: str
    view: str
    template: str | None
    fields: tuple[TypedField, ...]
    system: tuple[str, ...]

    def sliced(self) -> Iterator[TypedTable]:
        """Yield the table with as many of its fields at a time as fit into one SELECT."""
        for start in range(0, len(self.fields), _FIELDS_AT_ONCE):
            yield replace(self, fields=self.fields[start : start + _FIELDS_AT_ONCE])


@dataclass(frozen=True, slots=True)
class Layout:
    dataset: str
    dialect: str
    tables: Mapping[str, Columns] = field(default_factory=lambda: MappingProxyType({}))
    typed: tuple[TypedTable, ...] = ()

    @property
    def views_schema(self) -> str:
        return self.dataset + VIEWS_SUFFIX

    def name(self, table: str) -> str:
        return f"{quoted(self.dataset)}.{quoted(table)}"

    def view_name(self, view: str) -> str:
        return f"{quoted(self.views_schema)}.{quoted(view)}"


def dialect_of(warehouse: Warehouse) -> str:
    """Return the dialect. Raises ConfigError for a destination whose dialect is untested."""
    if not warehouse.traits.views:
        raise ConfigError(
            f"{warehouse.destination_type} does not have what the views and the report need; query the tables "
            "themselves, with `importer-sync query` or another tool."
        )
    return warehouse.traits.dialect


def read_layout(connection: Connection, dialect: str, avoid: Collection[str] = ()) -> Layout:
    """Read the layout; `avoid` are names that no template's view may have."""
    dataset = connection.client.dataset_name
    tables, ours = connection.ordered_columns(), inspect_dataset(connection).ours
    fields = _fields(connection) if FIELDS in ours else {}
    owned = {*fields, *_ledger_tables(connection, tables)} & ours - {IMPORTS}
    templates = _templates(connection, tables)
    taken = {name.casefold() for name in (*tables, *avoid)}
    typed: list[TypedTable] = []
    for table in sorted(owned):
        view = _view_name(table, taken)
        taken.add(view)
        rows = fields.get(table, [])
        slug = next((row["template_slug"] for row in rows if row["template_slug"]), None)
        typed.append(_typed(table, view, templates.get(slug or ""), rows, tables[table]))
    return Layout(dataset, dialect, MappingProxyType(tables), tuple(typed))


def recorded(layout: Layout) -> Iterator[tuple[TypedTable, str]]:
    """Yield each typed table that has a history table, with the columns of its fields there, and that table.

    Columns of earlier types are included; a column that was added while history was off is missing.
    """
    for typed in layout.typed:
        name = history_of(layout.tables, typed.table)
        if name not in layout.tables:
            continue
        there, own = layout.tables[name], layout.tables[typed.table]
        fields = tuple(
            replace(f, variants=(*(v for v in f.variants if v in there), *set_aside_columns(f.column, there, own)))
            for f in typed.fields
            if f.column in there
        )
        yield replace(typed, fields=fields), name


def _misfit(variant: str, value: str) -> str:
    if variant.endswith(DOUBLE_VARIANT):
        return f"regexp_replace(CAST({value} AS TEXT), '^(-?[0-9]+)$', '\\1.0')"
    return value if variant.endswith(TEXT_VARIANT) else f"CAST({value} AS TEXT)"


def _first_text(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else f"COALESCE({', '.join(texts)})"


def _fields(connection: Connection) -> dict[str, list[dict[str, Any]]]:
    rows = connection.query(
        "SELECT table_name, column_name, template_slug, path, data_type, first_seen_at "
        f"FROM {connection.name(FIELDS)} ORDER BY table_name, first_seen_at, column_name"
    ).to_pylist()
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        found[row["table_name"]].append(row)
    return found


def _ledger_tables(connection: Connection, tables: Mapping[str, Columns]) -> set[str]:
    if LEDGER not in tables:
        return set()
    rows = connection.query(f"SELECT DISTINCT table_name FROM {connection.name(LEDGER)} WHERE table_name IS NOT NULL")
    return {row["table_name"] for row in rows.to_pylist()}


def _templates(connection: Connection, tables: Mapping[str, Columns]) -> dict[str, str | None]:
    """Return slug of a template → its latest name."""
    if IMPORTS not in tables:
        return {}
    rows = connection.query(
        f"SELECT template__slug AS slug, template__name AS name FROM {connection.name(IMPORTS)} "
        "WHERE template__slug IS NOT NULL "
        f"ORDER BY CASE WHEN {connection.column('_deleted_at')} IS NULL THEN 1 ELSE 0 END, updated_at, slug DESC"
    )
    return {row["slug"]: row["name"] for row in rows.to_pylist()}


def _view_name(table: str, taken: set[str]) -> str:
    """Return the table's name without its prefix, which is as stable as the table's name."""
    short = table.removeprefix(TABLE_PREFIX)
    names = [short, f"{short}_rows", *(f"{short}_rows_{n}" for n in range(2, len(taken) + 3))]
    return next(name for name in names if name not in taken)


def _typed(
    table: str, view: str, template: str | None, rows: Sequence[Mapping[str, Any]], columns: Columns
) -> TypedTable:
    system = tuple(column for column in columns if column in SYSTEM_COLUMNS - {RULES_COLUMN})
    taken = {column.casefold() for column in system}
    fields: list[TypedField] = []
    for row in rows:
        column = row["column_name"]
        if column not in columns or row["data_type"] is None:
            continue
        named = label(row["path"], column, taken)
        taken.add(named.casefold())
        beside = misfit_label(named, column, taken)
        taken.add(beside.casefold())
        variants = tuple(v for v in (column + DOUBLE_VARIANT, column + TEXT_VARIANT) if v in columns)
        fields.append(TypedField(named, beside, row["path"], column, row["data_type"], variants))
    place = {column: n for n, column in enumerate(columns)}
    return TypedTable(table, view, template, tuple(sorted(fields, key=lambda f: place[f.column])), system)
