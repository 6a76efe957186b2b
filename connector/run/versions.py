"""Record the versions of rows that a run changed (docs/history.md), if any are due."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from connector.load.data_dictionary import Catalogue
from connector.load.imports_table import EXTRA, METADATA
from connector.runs import Tally
from connector.settings import Settings
from connector.warehouse import Connection, Warehouse
from connector.warehouse.history import is_due, record
from connector.warehouse.history_tables import histories, names_of_templates
from connector.warehouse.ownership import Dataset, inspect_dataset
from connector.warehouse.ruled_columns import ruled_columns
from connector.warehouse.ruled_versions import apply_changed_rules
from connector.warehouse.runs_table import loaded_by_dlt_alone
from connector.warehouse.state import WarehouseState
from connector.warehouse.tables import IMPORTS, IMPORTS_SCHEMA, LEDGER, RUNS, TYPED_SCHEMA


def versions_are_due(
    warehouse: Warehouse, settings: Settings, state: WarehouseState, dataset: Dataset | None, *, knows_all: bool
) -> bool:
    """Return whether there may be something to record or erase although nothing is loaded.

    That is so if an earlier run died, or did not do it. `dataset` is what is there, if the caller knows it.
    """
    if not settings.history:
        changes_versions = settings.deletes == "mirror" or bool(settings.protection)
        return state.audited or (changes_versions and _may_be_left(warehouse, state, dataset))
    if state.audited or IMPORTS not in state.tables:
        return True
    with warehouse.connect() as connection:
        there = dataset or inspect_dataset(connection)
        return is_due(connection, there, settings.keeps_history_of, knows_all=knows_all)


def _may_be_left(warehouse: Warehouse, state: WarehouseState, dataset: Dataset | None) -> bool:
    """Return whether there may be versions of rows that dlt alone has erased, or read under other privacy rules."""
    if RUNS not in state.tables:
        return False
    with warehouse.connect() as connection:
        return bool(histories(dataset or inspect_dataset(connection))) and loaded_by_dlt_alone(connection)


def make_versions(
    warehouse: Warehouse,
    connection: Connection,
    dataset: Dataset,
    settings: Settings,
    catalogue: Catalogue,
    tally: Tally,
    *,
    whole: bool,
    knows_all: bool,
    is_undisturbed: Callable[[], bool],
    in_order: bool,
) -> None:
    """Record the versions of the loaded rows, if `history` is on (`connector.warehouse.history`).

    If it is off, or the versions would not be `in_order` of time, only remove from existing versions what was erased
    and what a privacy rule now covers.
    """
    wanted = settings.keeps_history_of if settings.history and in_order else None
    if LEDGER not in dataset.ours or (wanted is None and not histories(dataset)):
        return
    if (memory_limit := warehouse.memory_limit) is not None:
        memory_limit.remove()  # the first run compares whole tables, which takes more memory than a package
    apply_rules(connection, dataset, settings, catalogue)
    record(
        connection,
        dataset,
        wanted,
        started_at=tally.started_at,
        run_id=tally.run_id,
        keeps=settings.deletes == "keep",
        whole=whole,
        knows_all=knows_all,
        is_undisturbed=is_undisturbed,
    )


def apply_rules(connection: Connection, dataset: Dataset, settings: Settings, catalogue: Catalogue) -> None:
    """Empty in the versions what the privacy rules cover under which their imports were read last."""
    ruled = partial(_ruled, connection, dataset, settings, catalogue) if settings.protection else None
    apply_changed_rules(connection, dataset, [*histories(dataset).values()], ruled)


def _ruled(
    connection: Connection,
    dataset: Dataset,
    settings: Settings,
    catalogue: Catalogue,
    table: str,
    columns: Collection[str],
    template: str | None,
) -> list[str]:
    """Return which columns of a table's versions may have a value that a privacy rule of a template covers.

    If `template` is None, it is the one of the table; '' stands for an unknown template.
    """
    rules, fields = settings.protection, catalogue.schema(table).fields.items()
    if table == IMPORTS:  # the rules apply inside `metadata` and `extra`
        whole = {METADATA, EXTRA, "records_metadata"}
        inside = [(keys[1:], known) for keys, known in fields]
        found, system = [rules.of_metadata], set(IMPORTS_SCHEMA.names) - whole
    else:
        slug = (dataset.templates.get(table) if template is None else template) or None
        names = names_of_templates(connection, dataset).get(slug or "", set())
        inside, system = list(fields), set(TYPED_SCHEMA.names)
        found = [rules.of_template(slug, name) for name in (*names, None)]
    return ruled_columns([each for each in found if each is not None], inside, columns, system)
