"""List the templates in the warehouse from the ledger alone, without a request and without reading records."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dlt.pipeline.pipeline import Pipeline

from connector.ledger import State
from connector.warehouse import Connection, Warehouse
from connector.warehouse.busy import when_free
from connector.warehouse.ownership import inspect_dataset
from connector.warehouse.standings import OPEN, standings
from connector.warehouse.tables import IMPORTS, LEDGER


@dataclass(frozen=True, slots=True)
class TemplateSummary:
    """A template, with its table and counts in the warehouse.

    Attributes:
        slug: Key of the template; None for the imports that have none.
        name: Its name in the import that was updated last; None if no import shows it any more.
        table: The typed table with its records; None if none of its imports has been loaded into one.
        imports: Number of live imports.
        records: Number of live records.
        open: Number of imports that failed, do not reconcile or are not loaded in their present version.
    """

    slug: str | None
    name: str | None
    table: str | None
    imports: int
    records: int
    open: int = 0


def templates(pipeline: Pipeline) -> tuple[TemplateSummary, ...]:
    """Return the templates in the warehouse of a pipeline, by name, without a request to the service.

    Args:
        pipeline: The pipeline that loads the warehouse.

    Raises:
        ConfigError: A sync cannot use the destination.
        DatabaseBusyError: Another program has the DuckDB file open.
    """
    warehouse = Warehouse(pipeline)
    warehouse.check_supported()

    def ask() -> tuple[TemplateSummary, ...]:
        if not warehouse.exists():
            return ()
        with warehouse.connect() as connection:
            return _asked(connection)

    return when_free(ask)


def _asked(connection: Connection) -> tuple[TemplateSummary, ...]:
    dataset = inspect_dataset(connection)
    if not {IMPORTS, LEDGER} <= dataset.ours:
        return ()
    loaded_as = "COALESCE(s.template_slug, i.template__slug)"  # not always what an excluded import shows
    rows = connection.query(
        f"SELECT {loaded_as} AS slug, CASE WHEN i.template__slug = {loaded_as} THEN i.template__name END AS name, "
        "s.table_name AS table_name, count(*) AS imports, "
        "sum(s.records_loaded) AS records, max(i.updated_at) AS latest "
        f"FROM {connection.name(LEDGER)} s LEFT JOIN {connection.name(IMPORTS)} i ON i.slug = s.slug "
        f"WHERE s.state <> '{State.deleted}' GROUP BY 1, 2, 3 ORDER BY latest"
    ).to_pylist()
    found: dict[str | None, TemplateSummary] = {}
    for row in rows:  # the latest last
        before = found.get(row["slug"], TemplateSummary(row["slug"], None, None, 0, 0))
        found[row["slug"]] = TemplateSummary(
            row["slug"],
            row["name"] or before.name,
            row["table_name"] or before.table,
            before.imports + int(row["imports"]),
            before.records + int(row["records"] or 0),
        )
    live = f"{connection.column('_deleted_at')} IS NULL"
    shown = {
        row["slug"]: row
        for row in connection.query(
            f"SELECT slug, template__slug, template__name FROM {connection.name(IMPORTS)} WHERE {live}"
        ).to_pylist()
    }
    for slug, (standing, known) in standings(connection, dataset).items():
        if standing not in OPEN:
            continue
        now = shown.get(slug, {"template__slug": None, "template__name": None})
        template = now["template__slug"] if known is None else known.template_slug or now["template__slug"]
        before = found.get(template, TemplateSummary(template, now["template__name"], None, 0, 0))
        found[template] = replace(before, open=before.open + 1, imports=before.imports + (known is None))
    return tuple(sorted(found.values(), key=lambda each: (each.name is None, each.name or "", each.slug or "")))
