"""List the statements to apply, to check and to query."""

from __future__ import annotations

from dlt.pipeline.pipeline import Pipeline

from connector.reporting.views.applying import planned
from connector.reporting.views.generated import ready_checks
from connector.reporting.views.layout import dialect_of
from connector.reporting.views.statements import Ready, Statement, standing
from connector.warehouse import Warehouse


def listed(pipeline: Pipeline) -> list[Statement | Ready]:
    """Return the fixed statements and, if there is a warehouse, those generated from the data dictionary."""
    warehouse = Warehouse(pipeline)
    warehouse.check_supported()
    dialect = dialect_of(warehouse)
    found: dict[str, Statement | Ready] = {each.name: each for each in standing()}
    if warehouse.exists():
        with warehouse.connect() as connection:
            layout, views = planned(connection, dialect)
            found.update({each.name: each for each in [*views, *ready_checks(layout)]})
    return sorted(found.values(), key=lambda each: (each.kind == "check", not each.name.startswith("v_"), each.name))
