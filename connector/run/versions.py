"""Record the versions of rows that a run changed (docs/history.md), if any are due."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass
from functools import cached_property

from connector.load.data_dictionary import Catalogue
from connector.load.imports_table import EXTRA, METADATA
from connector.run.choice import Choice
from connector.runs import Tally
from connector.settings import RunScope, Settings
from connector.warehouse import Connection, Warehouse
from connector.warehouse.history import is_due, is_to_be_erased, record
from connector.warehouse.history_tables import current_names_of_templates, histories, names_of_templates
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
    keeps = settings.deletes == "keep"
    if state.audited or (settings.history and IMPORTS not in state.tables):
        return True
    if not (settings.history or settings.protection) and keeps:
        return False
    with warehouse.connect() as connection:
        there = dataset or inspect_dataset(connection)
        if settings.history:
            rules = [settings.protection.fingerprint_of_metadata]
            return is_due(connection, there, settings.keeps_history_of, rules, keeps=keeps, knows_all=knows_all)
        if not keeps:
            return is_to_be_erased(connection, there)
        # dlt alone may have read rows under other privacy rules
        return bool(histories(there)) and RUNS in state.tables and loaded_by_dlt_alone(connection)


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
    names: Mapping[str, Collection[str]],
    state: WarehouseState,
) -> None:
    """Record the versions of the loaded rows, if `history` is on (`connector.warehouse.history`).

    `names` are those that each listed template has, by its slug; `state` is what earlier runs left. If history is off,
    or the versions would not be `in_order` of time, only remove from existing versions what was erased and what a
    privacy rule now covers.
    """
    wanted = settings.keeps_history_of if settings.history and in_order else None
    if LEDGER not in dataset.ours or (wanted is None and not histories(dataset)):
        return
    if (memory_limit := warehouse.memory_limit) is not None:
        memory_limit.remove()  # the first run compares whole tables, which takes more memory than a package
    rules = _Rules(connection, dataset, settings, catalogue, names, state)
    _apply_rules(rules, all_read=False)
    record(
        connection,
        dataset,
        wanted,
        rules,
        started_at=tally.started_at,
        run_id=tally.run_id,
        keeps=settings.deletes == "keep",
        whole=whole,
        knows_all=knows_all,
        is_undisturbed=is_undisturbed,
    )
    _apply_rules(rules, all_read=whole)  # to what ended in this run, too


def apply_rules(connection: Connection, dataset: Dataset, settings: Settings, state: WarehouseState) -> None:
    """Empty in the versions what the privacy rules cover, by the names of templates in `imports`."""
    _apply_rules(_Rules(connection, dataset, settings, Catalogue.of(state), {}, state), all_read=False)


def _apply_rules(rules: _Rules, *, all_read: bool) -> None:
    if rules.settings.protection:
        of = rules.dataset.templates
        tables = [
            each
            for table, each in histories(rules.dataset).items()
            if table == IMPORTS or (table in of and of[table] not in rules.suspect)  # else nobody knows its rules
        ]
        apply_changed_rules(rules.connection, rules.dataset, tables, rules, all_read=all_read)


@dataclass(frozen=True)
class _Rules:
    """The settings' privacy rules as `connector.warehouse.ruled_versions` uses them."""

    connection: Connection
    dataset: Dataset
    settings: Settings
    catalogue: Catalogue
    names: Mapping[str, Collection[str]]  # of listed templates
    state: WarehouseState

    @cached_property
    def suspect(self) -> Set[str]:
        """Return the templates whose versions no rule is applied to, because the rules may not be the intended ones.

        Only those of imports that exist can be: a run reports them, and does not read them either.
        """
        ruled = self.settings.protection.templates
        present = {**current_names_of_templates(self.connection, self.dataset), **self.names}
        names = {slug: max(found, key=lambda name: (name in ruled, name)) for slug, found in present.items() if found}
        names.pop("", None)
        return Choice(self.settings, RunScope()).suspect_rules(names, names, self.state).templates

    def columns(self, table: str, columns: Collection[str]) -> list[str]:
        rules = self.settings.protection
        if table != IMPORTS:
            found = [of for pair in self._pairs(table) if (of := rules.of_template(*pair)) is not None]
            return ruled_columns(found, self.catalogue.schema(table).fields.items(), columns, set(TYPED_SCHEMA.names))
        # the rules apply inside `metadata` and `extra`
        whole, of_metadata = {METADATA, EXTRA, "records_metadata"}, [rules.of_metadata] if rules.of_metadata else []
        inside = [(keys[1:], known) for keys, known in self.catalogue.schema(table).fields.items()]
        return ruled_columns(of_metadata, inside, columns, set(IMPORTS_SCHEMA.names) - whole)

    def fingerprints(self, table: str) -> Collection[str | None]:
        if table == IMPORTS:
            return [self.settings.protection.fingerprint_of_metadata]
        return {self.settings.protection.fingerprint_of_records(*pair) for pair in self._pairs(table)}

    def _pairs(self, table: str) -> list[tuple[str | None, str | None]]:
        """Return the slug of the table's template with each name that it has now, or had last, or without any.

        Imports that were not listed, or are yet to be read, still have an earlier name in `imports`.
        """
        template = self.dataset.templates.get(table) or ""
        names: Collection[str | None] = self.names.get(template) or self._stored_names.get(template) or [None]
        return [(template or None, name) for name in names]

    @cached_property
    def _stored_names(self) -> dict[str, set[str]]:
        names = names_of_templates(self.connection, self.dataset)
        return {**names, **current_names_of_templates(self.connection, self.dataset)}
