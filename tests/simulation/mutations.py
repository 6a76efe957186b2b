"""Break each guarantee once on purpose: a simulation that does not detect it would prove nothing.

Every mutation is a plausible mistake in the connector. `test_mutations.py` runs seeds with each until one fails.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any
from unittest import mock

import pyarrow as pa
from msgspec import structs

from connector.extract import listing, records
from connector.extract.convention import PageConvention
from connector.extract.listing import Lister, Listing
from connector.extract.overlap import Positions, Segment
from connector.extract.page_sizes import MAX_PER_PAGE
from connector.extract.records import ImportRead, Verdict
from connector.ledger import LedgerRow, State
from connector.load import package, table_rows
from connector.load.batches import Builder, BuiltImports
from connector.load.kept_deletes import KeptDeletes
from connector.models import Import
from connector.run import choice, decision, delete_limit, discover, opening, plan, reader, session, sync, versions
from connector.run.crash_suspects import CrashSuspects
from connector.run.plan import Plan
from connector.sandbox import Switches
from connector.service.outage import Outage
from connector.settings import Settings
from connector.transform.overflow import Overflow
from connector.transform.schema import TableSchema
from connector.transform.width import UNBOUNDED, Width
from connector.warehouse import (
    Connection,
    erased_versions,
    history,
    history_tables,
    ruled_versions,
    state,
    stored_fields,
    stored_imports,
    upgrades,
    waiting_versions,
)
from connector.warehouse.field_counts import TableTotals
from connector.warehouse.ownership import Dataset
from tests.simulation.scenario import Episode, Scenario, make_scenario, quiet

Patch = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Mutation:
    """`seeds` is the number of seeds before it counts as undetected; `first` is a seed that detected it lately.

    `likely` makes what the mutation needs happen in every scenario, if seeds have it too rarely. `varied` tells whether
    settings change in all of them, or in none.
    """

    name: str
    patch: Patch
    seeds: int
    first: int
    likely: Callable[[Scenario], Scenario]
    varied: bool = False

    def scenario(self, seed: int) -> Scenario:
        return self.likely(make_scenario(seed, varied=self.varied))


MUTATIONS: list[Mutation] = []


def mutation(
    seeds: int = 2_000,
    *,
    first: int = 0,
    likely: Callable[[Scenario], Scenario] = lambda scenario: scenario,
    varied: bool = False,
) -> Callable[[Patch], Patch]:
    def register(patch: Patch) -> Patch:
        MUTATIONS.append(Mutation(patch.__name__, patch, seeds, first, likely, varied))
        return patch

    return register


def _with_deaths_while_loading(scenario: Scenario) -> Scenario:
    """Runs die between two commits, and imports are edited before the next one."""
    dice = Random(scenario.seed)
    episodes = [
        replace(each, kill=("commit", dice.randint(1, 12)), edits_before=8, scope="incremental")
        for each in (*scenario.episodes, *scenario.episodes)
    ]
    return replace(scenario, episodes=(*episodes, replace(scenario.episodes[-1], edits_before=8, kill=None)))


def _with_stops_after_deaths(scenario: Scenario) -> Scenario:
    """After each run that died between two commits, one is stopped before it has read anything."""
    *deaths, last = _with_deaths_while_loading(scenario).episodes
    episodes = []
    for each in deaths:
        then = replace(each, kill=None, edits_before=0)
        episodes += [replace(each, outage=None), replace(then, outage=None, stop_at=1), then]
    return replace(scenario, episodes=(*episodes, last))


def _with_packages_left_pending(scenario: Scenario) -> Scenario:
    """Runs die once a package is extracted or while it is loaded, and its imports are edited before the next one."""
    dice = Random(scenario.seed)
    episodes = []
    for each in (*scenario.episodes, *scenario.episodes):
        edited = replace(each, edits_before=8, lose_directory=False, scope="incremental", kill=None)
        episodes += [replace(edited, kill=(dice.choice(("file", "commit")), dice.randint(1, 8))), edited]
    return replace(scenario, episodes=tuple(episodes))


def _with_edits_within_a_second(scenario: Scenario) -> Scenario:
    """The service counts whole seconds, and edits imports while they are read and just after."""
    episodes = [
        replace(quiet(each.settings), edits_before=2, edit_probability=0.3, edits_at_most=3)
        for each in scenario.episodes
    ]
    switches = replace(_orderly(scenario.switches), time_fraction=0, edit_moves_import=True)
    return replace(scenario, episodes=tuple(episodes), switches=switches, coarse=True)


def _with_pages_of_imports_that_shift(scenario: Scenario) -> Scenario:
    """A first run requests many pages of imports in turn, while an import is replaced now and then."""
    shifting = replace(quiet({**scenario.settings, "max_concurrency": 1}), shifts=0.05)
    switches = replace(_orderly(scenario.switches), import_order="insertion")
    return replace(scenario, episodes=(shifting,), switches=switches, per_page=25, tiny=120)


def _with_pages_of_records_that_shift(scenario: Scenario) -> Scenario:
    """Pages of records are requested in turn, while a row of their import is replaced now and then."""
    shifting = replace(quiet({**scenario.settings, "max_concurrency": 1}), shifts=0.1)
    switches = replace(_orderly(scenario.switches), max_per_page=25, record_order="insertion")
    return replace(scenario, episodes=(shifting, shifting), switches=switches)


def _orderly(switches: Switches) -> Switches:
    return replace(switches, max_per_page=100, short_pages=0, empty_middle_page=0)


def _with_imports_that_answer_for_unlisted_ones(scenario: Scenario) -> Scenario:
    """Runs read completed imports only, a few of which are edited, not listed, and answer with another import."""
    settings = {**scenario.settings, "status": "completed"}
    disturbed = Episode(settings, edits_before=4, hide=0.2, mistaken=1.0)
    return replace(scenario, episodes=(quiet(scenario.settings), *[disturbed] * 6), tiny=6)


def _with_imports_that_answer_for_read_ones(scenario: Scenario) -> Scenario:
    """Imports that are read answer with another one when they are asked whether they changed."""
    return replace(scenario, episodes=tuple(replace(each, mistaken=0.4) for each in scenario.episodes))


def _with_moved_records(scenario: Scenario) -> Scenario:
    """Records move between a few imports before runs that keep what vanished, and load many imports at once."""
    settings = {**scenario.settings, "deletes": "keep", "batch_rows": 500_000}
    moving = replace(quiet(settings), moves_before=6)
    return replace(scenario, settings=settings, episodes=(quiet(settings), *[moving] * 3), tiny=4, honest=True)


def _with_records_of_failing_imports_that_moved(scenario: Scenario) -> Scenario:
    """Records move before runs in which some imports cannot be read."""
    moving = replace(quiet({**scenario.settings, "batch_rows": 1}), moves_before=6, failing=0.3)
    return replace(scenario, episodes=(quiet(scenario.settings), *[moving] * 3), tiny=6)


def _with_history_of_records_that_moved(scenario: Scenario) -> Scenario:
    """Records move between a few imports before runs that record versions and do not see all imports or read all."""
    settings = {**scenario.settings, "history": True, "deletes": "mirror", "typed": True}
    moving = replace(quiet(settings), moves_before=6)
    episodes = (quiet(settings), *[replace(moving, failing=0.3), moving, replace(moving, hide=0.3), moving] * 2)
    return replace(scenario, settings=settings, episodes=episodes, tiny=6)


def _with_history_after_changes_by_hand(scenario: Scenario) -> Scenario:
    """Somebody changes the warehouse before runs that record versions, and that read only a part of the imports."""
    settings = {**scenario.settings, "history": True, "deletes": "mirror", "typed": True, "status": None}
    part = replace(quiet(settings), manual_change=True, scope="selection", edits_before=1)
    return replace(scenario, settings=settings, episodes=(quiet(settings), *[part, part, quiet(settings)] * 4), tiny=6)


def _with_history_of_records_that_move(scenario: Scenario) -> Scenario:
    """Records move between a few imports before and during runs that record versions."""
    settings = {**scenario.settings, "history": True, "deletes": "mirror", "typed": True}
    moving = replace(quiet(settings), edits_before=4, moves_before=2, moves=0.01)
    return replace(scenario, settings=settings, episodes=(quiet(settings), *[moving] * 6), tiny=6, coarse=False)


def _with_rules_that_change_for_records(scenario: Scenario) -> Scenario:
    """Each run has other rules for records, and the same for metadata, which is compared on its own."""
    rules: list[dict[str, dict[str, str]]] = [{}, {"*": {"row": "drop", "a": "drop"}}]
    episodes = [quiet({**scenario.settings, "typed": True, "privacy": rules[n % 2]}) for n in range(4)]
    settings = {**scenario.settings, "typed": True, "privacy": rules[1]}
    return replace(scenario, settings=settings, episodes=tuple(episodes), tiny=6)


def _with_history_under_changing_rules(scenario: Scenario) -> Scenario:
    """Runs that record versions die while they load under other rules; then a part is read, and then the rest."""
    dice = Random(scenario.seed)
    rules: list[dict[str, dict[str, str]]] = [{}, {"*": {"row": "drop", "a": "drop"}, "metadata": {"n": "drop"}}]
    settings = {**scenario.settings, "history": True, "deletes": "mirror", "typed": True, "batch_rows": 1}
    episodes = [replace(quiet({**settings, "privacy": rules[0]}), moves_before=2)]
    for n in range(1, 5):
        ruled = replace(quiet({**settings, "privacy": rules[n % 2]}), edits_before=2, moves_before=2)
        dying = replace(ruled, kill=("commit", dice.randint(1, 80)))
        episodes += [dying, replace(ruled, scope="selection", edits_before=0), ruled]
    settings["privacy"] = rules[0]
    return replace(scenario, settings=settings, episodes=tuple(episodes), tiny=6, coarse=False)


def _with_renamed_templates(scenario: Scenario) -> Scenario:
    """Templates that have rules by their names are renamed."""
    named = {name: {"row": "drop", "a": "null"} for name in ("customers", "orders", "stock")}
    settings = {**scenario.settings, "privacy": named}
    renaming = replace(quiet(settings), renames_before=1, edits_before=4)
    switches = replace(scenario.switches, template="object")
    return replace(scenario, settings=settings, episodes=(quiet(settings), *[renaming] * 3), switches=switches, tiny=4)


# -- listing -------------------------------------------------------------------------------------------------------


@mutation(first=18)
def take_a_short_page_of_imports_as_the_last() -> AbstractContextManager[Any]:
    async def naive(self: Lister[Any]) -> Listing[Any]:
        page = 1
        while True:
            rows = await self._fetch(page, MAX_PER_PAGE)
            self._note(rows)
            if len(rows) < MAX_PER_PAGE:
                return self._listing(None)
            page += 1

    return mock.patch.object(Lister, "all", naive)


@mutation()
def take_an_empty_page_of_imports_as_the_end() -> AbstractContextManager[Any]:
    async def naive(self: Lister[Any]) -> Listing[Any]:
        page = 1
        while rows := await self._fetch(page, MAX_PER_PAGE):
            self._note(rows)
            page += 1
        return self._listing(None)

    return mock.patch.object(Lister, "all", naive)


@mutation(first=54)
def skip_the_sweeps_after_movement() -> AbstractContextManager[Any]:
    async def satisfied(self: Lister[Any]) -> None:
        await self._plain_sweep(self._sizes.size)

    return mock.patch.object(Lister, "_agree", satisfied)


@mutation(40, first=5, likely=_with_pages_of_imports_that_shift)
def overlap_no_pages() -> AbstractContextManager[Any]:
    def apart(size: int) -> Iterator[Segment]:
        page = 1
        while True:
            yield Segment(page, size)
            page += 1

    return mock.patch.object(listing, "overlapping_segments", apart)


@mutation(first=19)
def ask_no_proof_of_the_end_of_a_listing() -> AbstractContextManager[Any]:
    def unproven(self: Any) -> bool:
        return bool(self.consistent)

    return mock.patch.object(Positions, "proven", unproven)


@mutation(600)
def take_a_page_that_is_refused_for_an_error() -> AbstractContextManager[Any]:
    return mock.patch.object(listing, "means_no_such_page", return_value=False)


@mutation(600, first=7)
def give_up_a_service_that_restarts_after_six_attempts() -> AbstractContextManager[Any]:
    return mock.patch.object(Outage, "failed", return_value=None)


@mutation(600, first=1)
def take_a_404_for_the_records_of_an_empty_import_for_an_error() -> AbstractContextManager[Any]:
    async def strict(client: Any, import_: Import) -> bool:
        return False

    return mock.patch.object(records, "_has_no_records", strict)


# -- reading records -----------------------------------------------------------------------------------------------


@mutation()
def take_a_short_page_of_records_as_the_last() -> AbstractContextManager[Any]:
    async def naive(client: Any, import_: Import, convention: PageConvention) -> ImportRead:
        records: dict[str, Any] = {}
        asked_at = client.service_time()
        page = 1
        while True:
            reply = await client.list_records(import_.slug, convention.number(page), MAX_PER_PAGE)
            records.update({record.slug: record for record in reply.records})
            if reply.size < MAX_PER_PAGE:
                return ImportRead(import_, Verdict.complete, tuple(records.values()), asked_at=asked_at)
            page += 1

    return mock.patch.object(reader, "read_import", naive)


@mutation()
def accept_any_number_of_records() -> AbstractContextManager[Any]:
    return mock.patch.object(records, "_is_complete", return_value=True)


@mutation(40, first=9, likely=_with_pages_of_records_that_shift)
def skip_the_fingerprint_after_reading() -> AbstractContextManager[Any]:
    original = records.read_import

    class Blind:
        def __init__(self, client: Any, import_: Import) -> None:
            self.list_records, self.service_time = client.list_records, client.service_time
            self.largest_page, self.largest_page_of_records = client.largest_page, client.largest_page_of_records
            self._import = import_

        async def get_import(self, slug: str) -> Import:
            return self._import

    async def blind(client: Any, import_: Import, convention: PageConvention) -> ImportRead:
        return await original(Blind(client, import_), import_, convention)

    return mock.patch.object(reader, "read_import", blind)


# -- deciding ------------------------------------------------------------------------------------------------------


@mutation()
def trust_a_scalar_watermark() -> AbstractContextManager[Any]:
    original = plan.make_plan

    def bounded(listed: Any, ledger: Any, rules: Any) -> Plan[Any]:
        plan = original(listed, ledger, rules)
        times = [known.updated_at for known in ledger.values() if known.updated_at and known.state is State.synced]
        if not times:
            return plan
        return replace(plan, read=tuple(p for p in plan.read if p.import_.updated_at > max(times)))

    return mock.patch.object(decision, "make_plan", bounded)


@mutation(first=14)
def compare_everything_but_updated_at() -> AbstractContextManager[Any]:
    original = plan.make_plan

    def careless(listed: Any, ledger: Any, rules: Any) -> Plan[Any]:
        rows = list(listed)
        now = {row.slug: row for row in rows}
        lenient = {
            slug: structs.replace(known, updated_at=now[slug].updated_at) if slug in now and known.trusted else known
            for slug, known in ledger.items()
        }
        return original(rows, lenient, rules)

    return mock.patch.object(decision, "make_plan", careless)


@mutation(first=5, varied=True)
def read_nothing_again_for_a_table_that_was_not_written() -> AbstractContextManager[Any]:
    def written(*args: Any, **more: Any) -> plan.Rules:
        return replace(plan.Rules(*args, **more), raw=False, typed=False)

    return mock.patch.object(decision, "Rules", written)


@mutation(first=22)
def delete_what_is_not_listed_without_asking_for_it() -> AbstractContextManager[Any]:
    async def hasty(self: Any, suspects: list[str], **_: Any) -> tuple[list[Import], tuple[str, ...]]:
        return [], tuple(suspects)

    return mock.patch.object(discover.Discovery, "_request_unlisted", hasty)


@mutation(first=2)
def never_delete() -> AbstractContextManager[Any]:
    async def timid(self: Any, suspects: list[str], **_: Any) -> tuple[list[Import], tuple[str, ...]]:
        return [], ()

    return mock.patch.object(discover.Discovery, "_request_unlisted", timid)


@mutation(first=18)
def pass_over_listed_imports_that_answer_404() -> AbstractContextManager[Any]:
    async def credulous(self: Any, slugs: Sequence[str]) -> frozenset[str]:
        return frozenset(slugs)

    return mock.patch.object(discover.Discovery, "confirm_deleted", credulous)


@mutation(first=17)
def ignore_the_limit_of_deletes() -> AbstractContextManager[Any]:
    return mock.patch.object(delete_limit, "too_many_vanished", return_value=False)


# -- the columns of typed tables -----------------------------------------------------------------------------------


@mutation(first=3)
def give_every_field_a_column() -> AbstractContextManager[Any]:
    return mock.patch.object(Width, "room", return_value=UNBOUNDED)


@mutation(first=3)
def lose_what_has_no_column() -> AbstractContextManager[Any]:
    return mock.patch.object(Overflow, "column", return_value=None)


@mutation(first=10)
def forget_which_fields_have_no_column() -> AbstractContextManager[Any]:
    original = stored_fields.schemas_of

    def forgetful(*known: Any) -> dict[str, TableSchema]:
        found = original(*known)
        return {table: replace(schema, overflowed=frozenset(), closed=False) for table, schema in found.items()}

    return mock.patch.object(state, "schemas_of", forgetful)


@mutation(first=49)
def leave_out_whatever_was_under_way_at_a_death() -> AbstractContextManager[Any]:
    return mock.patch.object(CrashSuspects, "killed_twice", lambda self, import_: self.is_suspect(import_.slug))


# -- the ledger and what crashed runs leave ---------------------------------------------------------------------------


@mutation(first=60, likely=_with_deaths_while_loading)
def trust_the_ledger_of_loads_that_never_completed() -> AbstractContextManager[Any]:
    original = stored_imports.ledger_rows

    def trusting(connection: Connection, dataset: Dataset) -> dict[str, LedgerRow]:
        return {slug: structs.replace(known, trusted=True) for slug, known in original(connection, dataset).items()}

    return mock.patch.object(state, "ledger_rows", trusting)


@mutation(first=71)
def skip_the_audit_after_a_crashed_run() -> AbstractContextManager[Any]:
    return mock.patch.object(state, "_audited_state", lambda connection, unaudited: replace(unaudited, audited=True))


@mutation(600, first=214)
def believe_the_counts_of_tables_that_a_crashed_run_changed() -> AbstractContextManager[Any]:
    original = state._audited_state

    def believing(connection: Connection, unaudited: state.WarehouseState) -> state.WarehouseState:
        found = original(connection, unaudited)
        return replace(found, miscounted=unaudited.miscounted, totals=unaudited.totals)

    return mock.patch.object(state, "_audited_state", believing)


@mutation(first=1)
def forget_the_values_that_a_package_replaces() -> AbstractContextManager[Any]:
    return mock.patch.object(package, "replaced_totals", return_value=TableTotals())


@mutation(40, first=5, likely=_with_stops_after_deaths)
def audit_once_only() -> AbstractContextManager[Any]:
    original = state._audited_state

    def once(connection: Connection, unaudited: state.WarehouseState) -> state.WarehouseState:
        return replace(original(connection, unaudited), consistent=True)

    return mock.patch.object(state, "_audited_state", once)


@mutation(600, likely=_with_deaths_while_loading)
def forget_imports_of_loads_that_never_completed() -> AbstractContextManager[Any]:
    original = stored_imports.imports_and_templates

    def forgetful(connection: Connection, dataset: Dataset) -> Any:
        found = original(connection, dataset)
        return found._replace(seen={s: seen for s, seen in found.seen.items() if seen.content_hash is not None})

    return mock.patch.object(state, "imports_and_templates", forgetful)


@mutation(40, likely=_with_packages_left_pending)
def leave_pending_packages_to_dlt() -> AbstractContextManager[Any]:
    return mock.patch.object(sync, "rebuild_working_directory", return_value=None)


@mutation()
def forget_crashed_runs() -> AbstractContextManager[Any]:
    return mock.patch.object(opening, "fail_crashed_runs", return_value=[])


# -- loading -------------------------------------------------------------------------------------------------------


@mutation(first=2)
def replace_rows_without_clearing_the_import() -> AbstractContextManager[Any]:
    """Only upsert: rows that an import lost, or all of them, stay."""

    def no_placeholders(self: Any, slug: str, known: LedgerRow | None, table: str | None) -> None:
        return None

    return mock.patch.object(package.Package, "_clear_rows", no_placeholders)


@mutation(first=14)
def leave_the_rows_in_the_table_of_the_old_template() -> AbstractContextManager[Any]:
    original = package.Package._clear_rows

    def only_here(self: Any, slug: str, known: LedgerRow | None, table: str | None) -> None:
        tables_by_import, self._state = self._state.tables_by_import, replace(self._state, tables_by_import={})
        original(self, slug, structs.replace(known, table_name=table or known.table_name) if known else None, table)
        self._state = replace(self._state, tables_by_import=tables_by_import)

    return mock.patch.object(package.Package, "_clear_rows", only_here)


@mutation(first=13)
def keep_nothing_that_vanished() -> AbstractContextManager[Any]:
    return mock.patch.object(KeptDeletes, "_vanished_rows", return_value={})


@mutation(40, likely=_with_moved_records)
def keep_a_record_that_moved_beside_itself() -> AbstractContextManager[Any]:
    """Carry over a vanished row although its record comes with another import of the package."""
    return mock.patch.object(KeptDeletes, "rows", lambda self, incoming: iter(self._carried))


@mutation(40, likely=_with_records_of_failing_imports_that_moved)
def replace_rows_by_their_import_alone() -> AbstractContextManager[Any]:
    """Leave the row of a record that moved in the import that it left."""

    def of_imports(record_key: str, import_key: str) -> dict[str, Any]:
        scope = f"{import_key} IN (SELECT {import_key} FROM {{staging_table}})"
        return {**replacing(record_key, import_key), "destination_scope": scope}

    replacing = table_rows._replacing
    return mock.patch.object(table_rows, "_replacing", of_imports)


@mutation()
def credit_all_rows_of_a_batch_to_its_first_import() -> AbstractContextManager[Any]:
    def first(values: Sequence[str | None], built: BuiltImports, n: int) -> Any:
        return pa.repeat(pa.scalar(values[0], pa.string()), n)

    return mock.patch.object(package, "_of_imports", first)


@mutation(first=43)
def count_text_conflicts_of_a_batch_for_its_first_import() -> AbstractContextManager[Any]:
    original = package._count_text_conflicts

    def first(rows: Any, sizes: Sequence[int], counts: Any) -> None:
        original(rows, sizes[:1], counts)

    return mock.patch.object(package, "_count_text_conflicts", first)


@mutation(first=1)
def take_what_a_batch_needs_for_what_its_table_has() -> AbstractContextManager[Any]:
    """Build imports together although one of them needs a missing column, type or variant."""
    original = Builder._flattened_as_known

    def hasty(self: Any, texts: Any, schema: TableSchema) -> Any:
        found = original(self, texts, schema)
        if found is not None:
            return found
        made = self._flatten(texts, schema, {}, nul_safe=self._nul_safe)
        return replace(made, schema=schema, columns={k: v for k, v in made.columns.items() if k in _columns(schema)})

    def _columns(schema: TableSchema) -> set[str]:
        return {name for known in schema.fields.values() for name in known.columns()}

    return mock.patch.object(Builder, "_flattened_as_known", hasty)


@mutation(first=5)
def count_fields_of_this_package_only() -> AbstractContextManager[Any]:
    @contextmanager
    def patched() -> Iterator[None]:
        def none_before(connection: Connection, schema: Any, without: Sequence[str]) -> tuple[int, dict[Any, Any]]:
            return 0, {}

        with mock.patch.object(package, "totals", none_before):
            yield

    return patched()


# -- settled -------------------------------------------------------------------------------------------------------


@mutation(40, first=17, likely=_with_edits_within_a_second)
def call_whatever_was_read_settled() -> AbstractContextManager[Any]:
    return mock.patch.object(reader, "may_change_unseen", return_value=False)


@mutation(first=82)
def let_an_unfinished_import_lose_its_rows() -> AbstractContextManager[Any]:
    return mock.patch.object(reader, "lost_rows", return_value=0)


@mutation(first=82)
def let_a_completed_import_lose_its_rows() -> AbstractContextManager[Any]:
    original = plan.lost_rows

    def finished(import_: Any, *known: Any, **more: Any) -> int:
        return 0 if import_.status == "completed" else original(import_, *known, **more)

    return mock.patch.object(reader, "lost_rows", finished)


@mutation(first=33)
def take_an_earlier_format_for_the_one_of_now() -> AbstractContextManager[Any]:
    return mock.patch.object(upgrades, "STEPS", ())


@mutation(first=17)
@contextmanager
def forget_what_a_backfill_asked_for() -> Iterator[None]:
    with mock.patch.object(opening, "mark_backfill_due"), mock.patch.object(reader, "mark_due"):
        yield


@mutation(40, first=20, likely=_with_imports_that_answer_for_unlisted_ones)
def take_another_import_for_one_that_is_not_listed() -> AbstractContextManager[Any]:
    """Accept whatever answers: an import of another status seems to be none that a run with `status` is about.

    Without `status`, a run is partial whichever import answers, because the one asked for is not listed.
    """
    return mock.patch.object(discover, "request_import", _request_unchecked)


@mutation(40, first=2, likely=_with_imports_that_answer_for_read_ones)
def take_another_import_for_the_one_that_is_read() -> AbstractContextManager[Any]:
    return mock.patch.object(records, "request_import", _request_unchecked)


async def _request_unchecked(client: Any, slug: str) -> Import:
    found: Import = await client.get_import(slug)
    return found


# -- history -------------------------------------------------------------------------------------------------------


@mutation(first=40)
def record_nothing_of_what_a_crashed_run_loaded() -> AbstractContextManager[Any]:
    return mock.patch.object(sync, "versions_are_due", return_value=False)


@mutation()
def keep_no_version_of_what_changed() -> AbstractContextManager[Any]:
    """Act as if an existing record never changed."""
    same = history_tables.same_content
    nothing = lambda connection, each: same(connection, replace(each, columns=()))  # noqa: E731
    return mock.patch.object(history, "same_content", nothing)


@mutation()
def leave_versions_of_what_was_erased() -> AbstractContextManager[Any]:
    return mock.patch.object(erased_versions, "_erase", return_value=([], False))


@mutation(40, likely=_with_history_of_records_that_moved)
def erase_versions_of_records_that_may_have_moved() -> AbstractContextManager[Any]:
    return mock.patch.object(session.RunSession, "is_whole", True)


@mutation(40, first=35, likely=_with_history_of_records_that_moved)
def erase_versions_of_records_of_imports_that_are_not_listed() -> AbstractContextManager[Any]:
    whole = decision.Discovered
    return mock.patch.object(decision, "Discovered", lambda *args, **more: replace(whole(*args, **more), complete=True))


@mutation(40, likely=_with_history_of_records_that_move)
def erase_versions_of_records_that_moved_during_a_run() -> AbstractContextManager[Any]:
    return mock.patch.object(session.RunSession, "is_undisturbed", return_value=True)


@mutation(first=18)
def leave_in_versions_what_a_later_rule_is_about() -> AbstractContextManager[Any]:
    return mock.patch.object(versions, "apply_changed_rules")


@mutation(40, first=6, likely=_with_history_under_changing_rules)
def take_each_version_for_one_under_the_rules_of_now() -> AbstractContextManager[Any]:
    stale = ruled_versions._is_stale
    none = lambda connection, alias, now: "1 = 0" if alias == history_tables.V else stale(connection, alias, now)  # noqa: E731
    return mock.patch.object(ruled_versions, "_is_stale", none)


@mutation(first=18, varied=True)
def end_versions_of_rows_that_are_not_typed_for_a_while() -> AbstractContextManager[Any]:
    original = Settings.keeps_history_of

    def always(self: Settings, slug: str | None, names: Collection[str]) -> bool:
        return original(self.model_copy(update={"typed": True}), slug, names)

    return mock.patch.object(Settings, "keeps_history_of", always)


@mutation(first=52057)
def end_versions_of_imports_that_are_under_earlier_rules() -> AbstractContextManager[Any]:
    return mock.patch.object(waiting_versions, "is_under_others", return_value=None)


@mutation(first=52145)
@contextmanager
def end_versions_of_imports_that_could_not_be_read() -> Iterator[None]:
    with (
        mock.patch.object(history, "gather_waiting", return_value=waiting_versions.Waiting()),
        mock.patch.object(history, "awaits_reading", return_value="(1 = 0)"),
    ):
        yield


@mutation(first=18, likely=_with_history_after_changes_by_hand)
@contextmanager
def end_versions_of_imports_that_lost_their_row() -> Iterator[None]:
    """Act as if imports were gone that the ledger alone has, and as if each run knew all."""

    def lost(connection: Connection, each: history_tables.Versioned) -> str:
        versions = f"FROM {connection.name(each.history)} WHERE {connection.column(history_tables.VALID_TO)} IS NULL"
        return f"SELECT slug AS k {versions} AND slug NOT IN (SELECT slug FROM {connection.name(each.table)})"

    with mock.patch.object(history, "_lost_imports", lost), mock.patch.object(session.RunSession, "knows_all", True):
        yield


@mutation(first=51, varied=True)
def leave_all_versions_while_history_is_off() -> AbstractContextManager[Any]:
    return mock.patch.object(versions, "histories", return_value={})


@mutation(40, likely=_with_renamed_templates)
def read_renamed_templates_without_their_rules() -> AbstractContextManager[Any]:
    return mock.patch.object(choice.Choice, "suspect_rules", return_value=choice.SuspectRules({}, {}, frozenset()))


@mutation(first=2, likely=_with_rules_that_change_for_records)
def keep_reading_by_older_privacy_rules() -> AbstractContextManager[Any]:
    """Act as if changed rules applied only to new imports."""
    reason = plan.Rules._reason

    def by_its_own(self: plan.Rules, import_: Any, known: LedgerRow | None) -> plan.Reason | None:
        return reason(replace(self, privacy=lambda _: None if known is None else known.rules), import_, known)

    return mock.patch.object(plan.Rules, "_reason", by_its_own)
