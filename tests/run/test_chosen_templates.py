"""`templates` and `exclude_templates`: the listing is proven as ever, and imports that are left out are not read.

An excluded import is in `imports` and, as `excluded`, in the ledger; what was loaded of it before stays as it is, and
it is read as new once it is included again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Literal
from unicodedata import normalize
from unittest import mock

import duckdb
import pytest
from msgspec import structs

from connector.errors import AuthError, ConfigError, ContractError
from connector.ledger import INCOMPLETE_ROWS
from connector.maintain.doctor import doctor
from connector.maintain.verify import verify
from connector.models import Import
from connector.run.sync import sync
from connector.sandbox import Faults, Service, Switches, serve
from connector.sandbox.messages import Request
from connector.service.client import ServiceClient
from connector.settings import RunScope, Selection, Settings
from connector.source import importer_source
from connector.warehouse.status import status
from connector.warehouse.templates import templates
from tests.run.conftest import Warehouse

pytestmark = pytest.mark.thorough

LEDGER = "SELECT slug, state, records_loaded, error FROM sync_imports ORDER BY slug"


def make_service() -> tuple[Service, str, str, str]:
    service = Service(seed=5)
    kept = service.add_import("customers", [{"name": "Ada"}, {"name": "Bob"}])
    left = service.add_import("payroll", [{"salary": 1}, {"salary": 2}, {"salary": 3}])
    loose = service.add_import(None, [{"free": True}])
    return service, kept, left, loose


@contextmanager
def hidden_templates() -> Iterator[None]:
    """An import that is asked for by its slug shows no template."""
    get_import = ServiceClient.get_import

    async def bare(client: ServiceClient, slug: str) -> Import:
        return structs.replace(await get_import(client, slug), template=None)

    with mock.patch.object(ServiceClient, "get_import", bare):
        yield


def states(warehouse: Warehouse) -> dict[str, str]:
    return {slug: state for slug, state, *_ in warehouse.query(LEDGER)}


def differences(warehouse: Warehouse, service: Service, **settings: Any) -> list[Any]:
    with serve(service) as url:
        made = Settings.load(base_url=url, access_token=service.token, **settings)
        return verify(warehouse.pipeline(), made, deep=True).differences


@pytest.mark.parametrize(
    ("settings", "included"),
    [
        ({"templates": ["customers"]}, {"customers"}),
        ({"exclude_templates": ["payroll"]}, {"customers", None}),
        ({"templates": ["customers", "payroll"], "exclude_templates": ["x"]}, {"customers", "payroll"}),
    ],
)
def test_only_chosen_templates_are_read(
    settings: dict[str, Any], included: set[str | None], warehouse: Warehouse
) -> None:
    service, *slugs = make_service()
    by_template = dict(zip(("customers", "payroll", None), slugs, strict=True))
    run = warehouse.run(service, **settings)
    assert run.status == "succeeded"
    assert states(warehouse) == {
        slug: "synced" if template in included else "excluded" for template, slug in by_template.items()
    }
    read = {slug for template, slug in by_template.items() if template in included}
    assert {slug for (slug,) in warehouse.query("SELECT DISTINCT import_slug FROM records")} == read
    assert warehouse.query("SELECT count(*) FROM imports WHERE _deleted_at IS NULL") == [(3,)]
    before = service.requests["records"]
    again = warehouse.run(service, **settings)
    assert (again.status, again.records_loaded, again.load_ids) == ("succeeded", 0, [])
    assert service.requests["records"] == before
    assert differences(warehouse, service, **settings) == []


def test_what_was_loaded_before_stays_and_is_read_again_once_included(warehouse: Warehouse) -> None:
    service, kept, left, loose = make_service()
    assert warehouse.run(service).records_loaded == 6
    service.edit_row(left, next(service.record_slugs(left)), {"salary": 9})
    assert warehouse.run(service, exclude_templates=["payroll"]).records_loaded == 0
    assert states(warehouse) == {kept: "synced", left: "excluded", loose: "synced"}
    assert warehouse.query("SELECT sum(salary) FROM records_payroll") == [(6,)]
    found = status(warehouse.pipeline())
    assert (found.standings, found.open) == ({"reconciled": 2, "excluded": 1}, ())
    assert doctor(warehouse.pipeline()).findings == []
    assert differences(warehouse, service, exclude_templates=["payroll"]) == []
    assert "not_synced" in {d.kind for d in differences(warehouse, service)}
    assert warehouse.run(service).records_loaded == 3
    assert states(warehouse) == dict.fromkeys((kept, left, loose), "synced")
    assert differences(warehouse, service) == []


def test_a_template_keeps_its_name_although_an_import_of_it_moves_to_one_left_out(warehouse: Warehouse) -> None:
    service, kept, left, _ = make_service()
    other = service.add_import("customers", [{"name": "Cy"}])
    warehouse.run(service, exclude_templates=["payroll"])
    service.set_template(other, "payroll")
    warehouse.run(service, exclude_templates=["payroll"])
    assert [(each.name, each.table, each.records) for each in templates(warehouse.pipeline())] == [
        ("customers", "records_customers", 3),
        ("payroll", None, 0),
        (None, "records_untemplated", 1),
    ]
    service.set_template(kept, "payroll")  # no import shows the name any more
    warehouse.run(service, exclude_templates=["payroll"])
    found = {each.table: each for each in templates(warehouse.pipeline())}
    assert (found["records_customers"].name, found["records_customers"].records) == (None, 3)
    assert found[None].name == "payroll"
    assert states(warehouse)[left] == "excluded"


def test_an_excluded_import_is_deleted_like_any_other(warehouse: Warehouse) -> None:
    service, _, left, _ = make_service()
    warehouse.run(service)
    warehouse.run(service, exclude_templates=["payroll"])
    service.delete_import(left)
    run = warehouse.run(service, exclude_templates=["payroll"])
    assert (run.status, run.imports_deleted) == ("succeeded", 1)
    assert warehouse.query("SELECT count(*) FROM records_payroll") == [(0,)]
    assert states(warehouse)[left] == "deleted"


def test_a_table_of_an_excluded_template_may_be_dropped(warehouse: Warehouse) -> None:
    service, kept, left, loose = make_service()
    warehouse.run(service)
    warehouse.run(service, exclude_templates=["payroll"])
    with duckdb.connect(str(warehouse.file)) as connection:
        connection.execute("DROP TABLE importer_data.records_payroll")
        connection.execute(f"DELETE FROM importer_data.records WHERE import_slug = '{left}'")
    run = warehouse.run(service, exclude_templates=["payroll"])
    assert (run.status, run.records_loaded) == ("succeeded", 0)
    assert differences(warehouse, service, exclude_templates=["payroll"]) == []
    assert warehouse.run(service).records_loaded == 3
    assert differences(warehouse, service) == []
    assert states(warehouse) == dict.fromkeys((kept, left, loose), "synced")


@pytest.mark.long
def test_rows_that_a_crashed_run_left_elsewhere_are_not_forgotten(warehouse: Warehouse) -> None:
    """A run that moved the import to another table and died: once it is read again, its rows there go."""
    service, _, left, _ = make_service()
    warehouse.run(service)
    with duckdb.connect(str(warehouse.file)) as connection:
        connection.execute("USE importer_data")
        columns = "_record_slug, _import_slug, _sort, _created_at, _updated_at"
        moved = f"SELECT {columns}, 'dead', 'dead' || _record_slug FROM records_payroll"
        connection.execute(f"INSERT INTO records_customers ({columns}, _dlt_load_id, name) {moved}")
        connection.execute("UPDATE sync_runs SET status = 'running'")
    for _ in range(3):
        assert warehouse.run(service, exclude_templates=["payroll"]).status == "partial"
    assert states(warehouse)[left] == "failed"
    assert warehouse.run(service).status == "succeeded"
    assert warehouse.query(f"SELECT count(*) FROM records_customers WHERE _import_slug = '{left}'") == [(0,)]
    assert differences(warehouse, service) == []


@pytest.mark.parametrize("key", ["templates", "exclude_templates"])
@pytest.mark.parametrize(("shown", "written"), [("Lo\u0301n", "L\u00f3n"), ("L\u00f3n", "Lo\u0301n")])
def test_a_name_is_the_same_in_any_unicode_form(key: str, shown: str, written: str, warehouse: Warehouse) -> None:
    service, kept, left, loose = make_service()
    [slug] = {row["template"]["slug"] for row in service.imports() if row["slug"] == left}
    service.rename_template(slug, shown)
    settings: dict[str, Any] = {key: [written], "history": [written]}
    assert warehouse.run(service, **settings).status == "succeeded"
    histories = "SELECT count(*) FROM information_schema.tables WHERE table_name LIKE 'records%history'"
    assert warehouse.query(histories) == [(int(key == "templates"),)]
    read = {left} if key == "templates" else {kept, loose}
    assert {s for s, state in states(warehouse).items() if state == "synced"} == read
    selection = Selection(template=written)
    scope = RunScope(mode="backfill", selection=selection, force=True)
    assert warehouse.run(service, scope=scope).records_loaded == 3
    assert warehouse.query(f"SELECT count(*) FROM records WHERE import_slug = '{left}'") == [(3,)]


def test_names_that_no_import_has(warehouse: Warehouse, caplog: pytest.LogCaptureFixture) -> None:
    service, *_ = make_service()
    wrong = warehouse.run(service, templates=["costumers"])
    assert isinstance(wrong.fatal, ConfigError)
    assert str(wrong.fatal) == "No import has the template 'costumers': did you mean customers?"
    run = warehouse.run(service, templates=["customers"], exclude_templates=["pay"])
    assert run.status == "succeeded"
    assert "exclude_templates names 'pay', and no import has that template" in caplog.text


def test_a_wrong_name_never_ends_green_on_a_loaded_warehouse(warehouse: Warehouse) -> None:
    service, kept, *_ = make_service()
    assert warehouse.run(service).status == "succeeded"
    before = states(warehouse)
    wrong = warehouse.run(service, templates=["costumers"])
    assert isinstance(wrong.fatal, ConfigError)
    assert str(wrong.fatal) == "No import has the template 'costumers': did you mean customers?"
    assert states(warehouse) == before

    half = warehouse.run(service, templates=["customers", "payrol"])
    assert half.status == "partial"
    assert half.problems == ["templates names 'payrol', and no import has that template: did you mean payroll?"]
    assert states(warehouse)[kept] == "synced"
    assert warehouse.run(service, templates=["customers", "payrol"], status="completed").status == "partial"


def test_a_name_whose_imports_are_all_gone_is_right(warehouse: Warehouse) -> None:
    service, kept, _, _ = make_service()
    assert warehouse.run(service).status == "succeeded"
    service.delete_import(kept)
    for _ in range(2):
        assert warehouse.run(service, templates=["customers"]).status == "succeeded"
    assert states(warehouse)[kept] == "deleted"


@pytest.mark.parametrize("key", ["templates", "exclude_templates"])
def test_a_chosen_template_that_is_renamed_is_named(key: str, warehouse: Warehouse) -> None:
    service, _, left, _ = make_service()
    assert warehouse.run(service).status == "succeeded"
    [slug] = {row["template"]["slug"] for row in service.imports() if row["slug"] == left}
    service.rename_template(slug, "wages")
    for _ in range(2):  # after the first, `imports` has the new name alone
        old: dict[str, Any] = {key: ["payroll"]}
        ran = warehouse.run(service, **old)
        assert ran.status == "partial"
        named = f"no import has that template: it is called 'wages' now; use its slug, {slug}."
        assert ran.problems == [f"{key} names 'payroll', and {named}"]
    new: dict[str, Any] = {key: [slug]}
    assert warehouse.run(service, **new).status == "succeeded"


def test_a_backfill_of_what_is_excluded_is_refused(warehouse: Warehouse) -> None:
    service, _, left, _ = make_service()
    warehouse.run(service, exclude_templates=["payroll"])
    for selection in (Selection(template="payroll"), Selection(slugs=frozenset({left}))):
        run = warehouse.run(
            service, RunScope("backfill", selection=selection, force=True), exclude_templates=["payroll"]
        )
        assert isinstance(run.fatal, ConfigError)
        assert "is of the template payroll, and templates or exclude_templates" in str(run.fatal)
    full = warehouse.run(service, RunScope("backfill", force=True), exclude_templates=["payroll"])
    assert (full.status, full.records_loaded) == ("succeeded", 3)


def test_a_template_in_both_lists_is_refused() -> None:
    with pytest.raises(ConfigError, match="both name 'x'"):
        Settings.load(base_url="http://127.0.0.1", access_token="x", templates=["x"], exclude_templates="x")
    with pytest.raises(ConfigError, match="templates"):
        Settings.load(base_url="http://127.0.0.1", access_token="x", templates=[])


def test_an_import_whose_own_address_hides_its_template_is_not_read(warehouse: Warehouse) -> None:
    service, _, left, _ = make_service()
    with serve(service) as url:
        settings = Settings.load(base_url=url, access_token=service.token, exclude_templates=["payroll"])
        with hidden_templates():
            run = sync(
                warehouse.pipeline(), settings, RunScope("backfill", selection=Selection(slugs=frozenset({left})))
            )
    assert isinstance(run.fatal, ConfigError)
    assert service.requests["records"] == 0


def test_an_import_that_was_left_half_loaded_is_not_simply_left_out(warehouse: Warehouse) -> None:
    service, kept, _, _ = make_service()
    assert warehouse.run(service).status == "succeeded"
    with duckdb.connect(str(warehouse.file)) as connection:  # as a run leaves it that dies between two tables
        connection.execute("USE importer_data")
        connection.execute("DELETE FROM records_customers WHERE name = 'Bob'")
        connection.execute("UPDATE sync_imports SET _dlt_load_id = 'dead' WHERE slug = ?", [kept])
        connection.execute("UPDATE sync_runs SET status = 'running'")

    for scope in (None, None, RunScope("backfill", force=True), None):
        ran = warehouse.run(service, scope, exclude_templates=["customers"])
        assert ran.status == "partial"
        assert any(kept in problem and "Run once without that setting" in problem for problem in ran.problems)
        assert states(warehouse)[kept] == "failed"
    assert warehouse.run(service).status == "succeeded"
    assert warehouse.query("SELECT name FROM records_customers ORDER BY 1") == [("Ada",), ("Bob",)]


def test_an_import_whose_rows_lost_values_is_not_simply_left_out(warehouse: Warehouse) -> None:
    service, *_ = make_service()
    assert warehouse.run(service).status == "succeeded"
    with duckdb.connect(str(warehouse.file)) as connection:
        connection.execute("ALTER TABLE importer_data.records_customers DROP COLUMN name")

    assert "Run once without that setting" in warehouse.run(service, exclude_templates=["customers"]).problems[0]
    with mock.patch.object(ServiceClient, "list_records", side_effect=ContractError("unreadable")):
        assert warehouse.run(service).status == "partial"
    assert "Run once without that setting" in warehouse.run(service, exclude_templates=["customers"]).problems[0]
    assert warehouse.run(service).status == "succeeded"
    assert warehouse.query("SELECT name FROM records_customers ORDER BY 1") == [("Ada",), ("Bob",)]


@contextmanager
def unlisted(hidden: str) -> Iterator[None]:
    """An import that exists is in no page of the listing."""
    list_imports = ServiceClient.list_imports

    async def without(client: ServiceClient, *asked: Any) -> Any:
        reply = await list_imports(client, *asked)
        return replace(reply, imports=[i for i in reply.imports if i.slug != hidden])

    with mock.patch.object(ServiceClient, "list_imports", without):
        yield


@pytest.mark.thorough
@pytest.mark.parametrize("named", [True, False])
def test_an_import_whose_template_nobody_tells_is_not_read_without_its_rules(warehouse: Warehouse, named: bool) -> None:
    service, _, left, _ = make_service()
    rules: dict[str, Any] = {"privacy": {"payroll": {"salary": "drop"}}}
    assert warehouse.run(service, **rules).status == "succeeded"
    service.append_rows(left, [{"salary": 777}])
    only = RunScope("backfill", selection=Selection(slugs=frozenset({left})), force=True)
    with hidden_templates(), unlisted(left):
        ran = warehouse.run(service, only if named else None, **rules)
    assert ran.status == "partial"
    said = f"Import {left} is not listed, and its own URL does not say its template, so it is not read."
    assert said in ran.problems
    assert warehouse.query("SELECT data FROM records WHERE import_slug = ?", left) == [("{}",)] * 3
    assert warehouse.query("SELECT template__name FROM imports WHERE slug = ?", left) == [("payroll",)]
    assert warehouse.run(service, **rules).status == "succeeded"
    assert warehouse.query("SELECT data FROM records WHERE import_slug = ?", left) == [("{}",)] * 4


@pytest.mark.thorough
@pytest.mark.parametrize("earlier", [False, True])
def test_a_template_that_is_renamed_is_not_read_without_its_rules(warehouse: Warehouse, earlier: bool) -> None:
    """The ledger of an earlier version has the fingerprint of the rules, and not the names of their sections."""
    service, _, left, _ = make_service()
    rules: dict[str, Any] = {"payroll": {"salary": "drop"}}
    assert warehouse.run(service, privacy=rules).status == "succeeded"
    if earlier:
        with duckdb.connect(str(warehouse.file)) as connection:
            connection.execute("UPDATE importer_data.sync_imports SET privacy = split_part(privacy, ':', 1)")
    [slug] = {row["template"]["slug"] for row in service.imports() if row["slug"] == left}
    service.rename_template(slug, "wages")
    [renamed] = [each for each in service.templates() if each.slug == slug]
    new = service.add_import(renamed, [{"salary": 888}])
    service.append_rows(left, [{"salary": 777}])
    for _ in range(2):
        ran = warehouse.run(service, privacy=rules)
        assert ran.status == "partial"
        assert f"Use its slug as the name of the rules: {slug}." in ran.problems[0]
        assert warehouse.query("SELECT data FROM records WHERE import_slug = ?", left) == [("{}",)] * 3
        assert warehouse.query("SELECT data FROM records WHERE import_slug = ?", new) == []

    assert warehouse.run(service, privacy={slug: rules["payroll"]}).status == "succeeded"
    assert warehouse.query("SELECT data FROM records WHERE import_slug = ?", left) == [("{}",)] * 4
    assert warehouse.query("SELECT data FROM records WHERE import_slug = ?", new) == [("{}",)]
    assert warehouse.run(service).status == "succeeded", "rules that are gone on purpose are gone"
    assert ("777",) in warehouse.query("SELECT salary::VARCHAR FROM records_payroll")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "now",
    [
        {"payroll": {"salary": "drop", "bonus": "drop"}},
        {"payroll": {"salary": "null"}},
        {"payroll": {"salary": "drop"}, "metadata": {"by": "drop"}},
        {"payroll": {"salary": "drop"}, "*": {"bonus": "drop"}},
    ],
    ids=["another rule", "other rules", "rules for metadata", "rules for all"],
)
def test_a_template_that_is_renamed_while_rules_change_is_not_read_without_them(
    warehouse: Warehouse, now: dict[str, Any]
) -> None:
    service, _, left, _ = make_service()
    assert warehouse.run(service, privacy={"payroll": {"salary": "drop"}}).status == "succeeded"
    [slug] = {row["template"]["slug"] for row in service.imports() if row["slug"] == left}
    service.rename_template(slug, "wages")
    for _ in range(2):
        ran = warehouse.run(service, privacy=now)
        assert ran.status == "partial"
        assert any(f"Use its slug as the name of the rules: {slug}." in each for each in ran.problems)
        assert warehouse.query("SELECT data FROM records WHERE import_slug = ?", left) == [("{}",)] * 3
    assert warehouse.run(service, privacy={**now, "wages": now["payroll"]}).status == "succeeded", (
        "a section of its own"
    )


@pytest.mark.thorough
def test_a_rule_for_all_that_becomes_one_for_a_template_leaves_the_others_readable(warehouse: Warehouse) -> None:
    service, *_ = make_service()
    assert warehouse.run(service, privacy={"*": {"salary": "drop"}}).status == "succeeded"
    for _ in range(2):
        assert warehouse.run(service, privacy={"payroll": {"salary": "drop"}}).status == "succeeded"


@pytest.mark.long
def test_a_template_is_not_read_without_its_rules_though_no_import_read_under_them_is_left(
    warehouse: Warehouse,
) -> None:
    service, _, left, _ = make_service()
    rules: dict[str, Any] = {"payroll": {"salary": "drop"}}
    assert warehouse.run(service, privacy=rules).status == "succeeded"
    [template] = [each for each in service.templates() if each.name == "payroll"]
    service.delete_import(left)
    service.rename_template(template.slug, "wages")
    [renamed] = [each for each in service.templates() if each.slug == template.slug]
    new = service.add_import(renamed, [{"salary": 888}])
    for _ in range(2):
        assert warehouse.run(service, RunScope(allow_mass_delete=True), privacy=rules).status == "partial"
        assert warehouse.query("SELECT data FROM records WHERE import_slug = ?", new) == []
    assert warehouse.run(service, privacy={**rules, "wages": {}}).status == "succeeded", "it needs no rules"
    assert warehouse.query("SELECT data FROM records WHERE import_slug = ?", new) == [('{"salary":888}',)]


@pytest.mark.long
def test_two_templates_of_one_name_are_each_known_by_the_rules_they_were_read_under(warehouse: Warehouse) -> None:
    service, other, left, _ = make_service()
    slugs = {row["slug"]: row["template"] for row in service.imports() if row.get("template")}
    service.rename_template(slugs[other]["slug"], "payroll")
    rules: dict[str, Any] = {"payroll": {"salary": "drop"}}
    assert warehouse.run(service, privacy=rules).status == "succeeded"
    service.rename_template(slugs[left]["slug"], "wages")
    service.append_rows(left, [{"salary": 777}])
    service.append_rows(other, [{"salary": 888}])
    before = warehouse.query("SELECT count(*) FROM records WHERE import_slug = ?", other)
    assert warehouse.run(service, privacy=rules).status == "partial"
    assert warehouse.query("SELECT data FROM records WHERE import_slug = ?", left) == [("{}",)] * 3
    assert warehouse.query("SELECT count(*) FROM records WHERE import_slug = ?", other) != before, (
        "it still has its name"
    )


@pytest.mark.long
def test_templates_that_swap_their_names_are_not_read_under_each_others_rules(warehouse: Warehouse) -> None:
    service, other, left, _ = make_service()
    rules: dict[str, Any] = {"payroll": {"salary": "drop"}}
    assert warehouse.run(service, privacy=rules).status == "succeeded"
    slugs = {row["slug"]: row["template"] for row in service.imports() if row.get("template")}
    payroll, orders = slugs[left], slugs[other]
    service.rename_template(payroll["slug"], orders["name"])
    service.rename_template(orders["slug"], "payroll")
    before = warehouse.query("SELECT slug, data FROM records ORDER BY 1")
    service.append_rows(left, [{"salary": 777}])
    service.append_rows(other, [{"salary": 888}])
    for _ in range(3):
        ran = warehouse.run(service, privacy=rules)
        assert ran.status == "partial"
        assert f"Use its slug as the name of the rules: {payroll['slug']}." in ran.problems[0]
        assert warehouse.query("SELECT slug, data FROM records ORDER BY 1") == before

    assert warehouse.run(service, privacy={payroll["slug"]: rules["payroll"]}).status == "succeeded"
    assert warehouse.query("SELECT data FROM records WHERE import_slug = ?", left) == [("{}",)] * 4
    assert ('{"salary":888}',) in warehouse.query("SELECT data FROM records WHERE import_slug = ?", other)


@pytest.mark.thorough
@pytest.mark.parametrize("meanwhile", ["listed", "listed again", "edited", "read twice"])
def test_a_template_that_is_renamed_while_a_run_reads_keeps_its_rules(warehouse: Warehouse, meanwhile: str) -> None:
    service = Service(seed=5)
    slugs = [service.add_import("payroll", [{"salary": 777}] * 3, status="submitted") for _ in range(150)]
    [payroll] = service.templates()
    waited_for = {"listed": (1, "imports"), "listed again": (3, "imports")}.get(meanwhile, (1, "records"))
    if meanwhile == "read twice":
        service.set_row_count(slugs[0], 4)  # as an upload that is not over has it

    def rename(request: Request) -> None:
        seen.append(request.path.rpartition("/")[2])
        if seen.count(waited_for[1]) > waited_for[0] and service.templates() == [payroll]:
            service.rename_template(payroll.slug, "wages")
            if meanwhile == "edited":
                for slug in slugs:
                    service.append_rows(slug, [{"salary": 777}])

    seen: list[str] = []
    service.on_request = rename
    rules: dict[str, Any] = {"privacy": {"payroll": {"salary": "drop"}}}
    assert warehouse.run(service, **rules).status == "succeeded"
    assert service.templates() != [payroll]
    assert warehouse.query("SELECT DISTINCT data FROM records") == [("{}",)]
    ran = warehouse.run(service, **rules)
    assert ran.status == "partial"
    assert f"Use its slug as the name of the rules: {payroll.slug}." in ran.problems[0]
    assert warehouse.query("SELECT DISTINCT data FROM records") == [("{}",)]


@pytest.mark.long
@pytest.mark.parametrize("key", ["templates", "exclude_templates"])
def test_a_template_that_is_renamed_between_two_pages_is_chosen_whole_or_not_at_all(
    warehouse: Warehouse, key: str
) -> None:
    service = Service(seed=5)
    for _ in range(350):  # of the listing, its first page and its end are read twice
        service.add_import("payroll", [{"salary": 1}])
    service.add_import("customers", [{"name": "Ada"}])
    [payroll] = [each for each in service.templates() if each.name == "payroll"]

    def rename(request: Request) -> None:
        seen.append(request.path)
        if len(seen) == 3:
            service.rename_template(payroll.slug, "wages")

    seen: list[str] = []
    chosen: dict[str, Any] = {key: ["payroll"]}
    assert warehouse.run(service, **chosen).status == "succeeded"
    service.on_request = rename
    with suppress(ConfigError):
        warehouse.run(service, **chosen)
    states = warehouse.query("SELECT DISTINCT template_slug, state FROM sync_imports")
    assert len(states) == len({template for template, _ in states}), states


def test_records_are_under_the_rules_of_the_template_that_was_listed(warehouse: Warehouse) -> None:
    service, _, left, _ = make_service()
    service.set_status(left, "submitted")
    service.set_row_count(left, 4)  # it is read twice
    orders = next(each.slug for each in service.templates() if each.name == "customers")
    told = ServiceClient.get_import

    async def get_import(client: ServiceClient, slug: str) -> Import:
        service.find(left).template_slug = orders  # type: ignore[union-attr]
        return await told(client, slug)

    with mock.patch.object(ServiceClient, "get_import", get_import):
        ran = warehouse.run(service, privacy={"payroll": {"salary": "drop"}})

    assert ran.status == "succeeded"
    assert warehouse.query("SELECT DISTINCT data FROM records WHERE import_slug = ?", left) == [("{}",)]


@pytest.mark.long
@pytest.mark.parametrize("left_out", [{"exclude_templates": ["payroll"]}, {"status": "completed"}])
@pytest.mark.parametrize("named", [True, False])
def test_rules_that_do_not_reach_what_is_left_out_make_a_run_partial(
    warehouse: Warehouse, left_out: dict[str, Any], named: bool
) -> None:
    service, _, left, _ = make_service()
    if "status" in left_out:
        service.set_status(left, "submitted")
    rules: dict[str, Any] = {"privacy": {"payroll" if named else "*": {"salary": "drop"}}}
    assert warehouse.run(service).status == "succeeded"
    for _ in range(2):
        ran = warehouse.run(service, **rules, **left_out)
        assert ran.status == "partial"
        assert f"cannot be read again under the current ones ({left}): templates," in ran.problems[0]
    assert warehouse.run(service, **rules).status == "succeeded"
    assert warehouse.query("SELECT data FROM records WHERE import_slug = ?", left) == [("{}",)] * 3
    assert warehouse.run(service, **rules, **left_out).status == "succeeded"


def test_metadata_that_runs_of_imports_alone_loaded_does_not_stay_under_older_rules_unnoticed(
    warehouse: Warehouse,
) -> None:
    service = Service(seed=1)
    service.add_import("t", [{"x": 1}], {"by": "ann"})
    left = service.add_import("t", [{"x": 2}], {"by": "bob"}, status="submitted")

    def run(**settings: Any) -> tuple[str, str | None]:
        with serve(service) as url:
            source = importer_source(base_url=url, access_token=service.token, **settings)
            warehouse.pipeline().run(source.with_resources("imports"))
        return warehouse.query("SELECT status, error FROM sync_runs ORDER BY started_at DESC LIMIT 1")[0]

    assert run() == ("succeeded", None)
    rules: dict[str, Any] = {"privacy": {"metadata": {"by": "drop"}}}
    for _ in range(2):
        status, error = run(**rules, status="completed")
        assert (status, f"under the current ones ({left}):" in (error or "")) == ("partial", True)
    assert run(**rules) == ("succeeded", None)
    assert run(**rules, status="completed") == ("succeeded", None)


@pytest.mark.long
@pytest.mark.parametrize("left_out", [{"status": "completed"}, {"exclude_templates": ("payroll",)}])
def test_metadata_of_an_import_without_records_does_not_stay_under_older_rules_unnoticed(
    warehouse: Warehouse, left_out: dict[str, Any]
) -> None:
    service, _, left, _ = make_service()
    bare = service.add_import("payroll", [], {"by": "Ada"}, "created")
    never = service.add_import("orders", [], {"by": "Bob"}, "created")
    assert warehouse.run(service, exclude_templates=("orders",)).status == "succeeded"
    rules: dict[str, Any] = {"metadata": {"by": "drop"}}
    for _ in range(2):
        ran = warehouse.run(service, privacy=rules, **left_out)
        assert ran.status == "partial"
        assert bare in ran.problems[0]
    assert left in ran.problems[0] or "status" in left_out
    assert warehouse.run(service, privacy=rules, exclude_templates=("orders",)).status == "succeeded"
    assert warehouse.query("SELECT metadata FROM imports WHERE slug IN (?, ?)", bare, never) == [("{}",)] * 2
    assert warehouse.run(service, privacy=rules, exclude_templates=("orders",)).status == "succeeded"
    assert warehouse.run(service, privacy=rules, status="completed").status == "succeeded", "all is under these rules"


def test_an_import_that_gets_another_template_is_read_under_the_rules_of_that(warehouse: Warehouse) -> None:
    service = Service(seed=5)
    slug = service.add_import("payroll", [{"salary": 1}])
    [payroll] = {row["template"]["slug"] for row in service.imports()}
    rules = {payroll: {"salary": "drop"}}
    assert warehouse.run(service, privacy=rules).status == "succeeded"
    service.set_template(slug, "customers")

    assert warehouse.run(service, privacy=rules).status == "succeeded"

    assert warehouse.query("SELECT data FROM records") == [('{"salary":1}',)]


@pytest.mark.parametrize("deletes", ["mirror", "keep"])
def test_what_the_service_erased_at_the_chosen_status_is_gone_here_too(warehouse: Warehouse, deletes: str) -> None:
    service, kept, left, _ = make_service()
    open_ = service.add_import("customers", [{"name": "Eve"}], status="submitted")
    settings: dict[str, Any] = {"deletes": deletes}
    assert warehouse.run(service, **settings).status == "succeeded"
    service.delete_import(left)
    service.delete_import(open_)
    ran = warehouse.run(service, RunScope(allow_mass_delete=True), status="completed", **settings)
    assert (ran.status, ran.imports_deleted) == ("succeeded", 1)
    live = "SELECT DISTINCT import_slug FROM records WHERE _deleted_at IS NULL"
    assert {slug for (slug,) in warehouse.query(live)} >= {kept, open_}, "of another status it is left alone"
    assert (left,) not in warehouse.query(live)
    assert differences(warehouse, service, status="completed", **settings) == []


@pytest.mark.parametrize("before", ["moved", "failed", "miscounted"])
def test_commands_agree_on_an_import_that_left_the_chosen_status(warehouse: Warehouse, before: str) -> None:
    """Its rows are those that were read last, whether or not the service then moved a record or an attempt failed."""
    service, _, left, _ = make_service()
    other = service.add_import("payroll", [{"salary": 4}])
    only: dict[str, Any] = {"status": "completed"}
    assert warehouse.run(service, **only).status == "succeeded"
    count = len(list(service.record_slugs(left)))
    if before == "moved":
        service.move_row(left, next(service.record_slugs(left)), other)
    elif before == "miscounted":
        service.set_row_count(left, count + 1)
        assert warehouse.run(service, **only).status == "partial"
    else:
        service.append_rows(left, [{"salary": 5}])
        service.faults = Faults(failing_imports=frozenset([left]))
        assert warehouse.run(service, **only).status == "partial"
        service.faults = Faults()
    service.set_status(left, "submitting")
    for _ in range(2):
        ran = warehouse.run(service, **only)
        assert (ran.status, ran.problems) == ("succeeded", [])
        assert status(warehouse.pipeline()).open == ()
        assert doctor(warehouse.pipeline()).findings == []
        assert differences(warehouse, service, **only) == []
    assert states(warehouse)[left] == "excluded"
    assert status(warehouse.pipeline()).due == {"status": 1}
    service.set_status(left, "completed")
    if before == "miscounted":
        service.set_row_count(left, count)
    assert warehouse.run(service, **only).status == "succeeded"
    assert states(warehouse)[left] == "synced"
    assert differences(warehouse, service) == []


@pytest.mark.parametrize("loaded", [True, False])
def test_what_was_listed_at_the_chosen_status_and_never_read_at_it_is_gone_too(
    warehouse: Warehouse, loaded: bool
) -> None:
    service, _, left, _ = make_service()
    service.set_status(left, "submitted")
    if loaded:
        assert warehouse.run(service).status == "succeeded"
    service.set_status(left, "completed")
    service.faults = Faults(failing_imports=frozenset([left]))
    assert warehouse.run(service, status="completed").imports_failed == 1
    service.faults = Faults()
    service.delete_import(left)
    ran = warehouse.run(service, RunScope(allow_mass_delete=True), status="completed")
    assert (ran.status, ran.imports_deleted) == ("succeeded", 1)
    for table, key in (("imports", "slug"), ("records", "import_slug")):
        live = f"SELECT count(*) FROM {table} WHERE {key} = ? AND _deleted_at IS NULL"
        assert warehouse.query(live, left) == [(0,)]


def test_what_the_service_has_at_the_chosen_status_and_does_not_list_deletes_nothing(warehouse: Warehouse) -> None:
    service, kept, left, _ = make_service()
    assert warehouse.run(service).status == "succeeded"
    service.delete_import(left)
    with unlisted(kept):
        ran = warehouse.run(service, RunScope(allow_mass_delete=True), status="completed")
    assert (ran.status, ran.imports_deleted) == ("partial", 0)
    assert warehouse.query("SELECT count(*) FROM records WHERE import_slug = ?", left) == [(3,)]


@pytest.mark.thorough
@pytest.mark.parametrize("without", [{"exclude_templates": ["payroll"]}, {"status": "completed"}])
@pytest.mark.parametrize("in_ledger", [True, False])
def test_what_a_dead_run_loaded_in_part_is_named_though_it_is_left_out(
    warehouse: Warehouse, without: dict[str, Any], in_ledger: bool
) -> None:
    service, _, left, _ = make_service()
    service.set_status(left, "submitted")
    assert warehouse.run(service).status == "succeeded"
    assert warehouse.run(service, **without).status == "succeeded"
    with duckdb.connect(str(warehouse.file)) as connection:
        connection.execute("SET schema = 'importer_data'")
        connection.execute("UPDATE records SET _dlt_load_id = '1.5' WHERE import_slug = ?", [left])
        connection.execute(
            "UPDATE sync_runs SET status = 'running', finished_at = NULL "
            "WHERE run_id = (SELECT max(run_id) FROM sync_runs)"
        )
        if not in_ledger:
            connection.execute("DELETE FROM sync_imports WHERE slug = ?", [left])
    for _ in range(2):
        ran = warehouse.run(service, **without)
        assert ran.status == "partial"
        assert ran.problems == [f"Import {left}: {INCOMPLETE_ROWS}"]
    assert warehouse.run(service).status == "succeeded"
    assert differences(warehouse, service) == []
    assert warehouse.run(service, **without).status == "succeeded"


@pytest.mark.long
def test_two_sections_with_the_same_rules_are_told_apart_in_a_ledger_of_before(warehouse: Warehouse) -> None:
    service, *_ = make_service()
    rules: dict[str, Any] = {"payroll": {"salary": "drop"}, "customers": {"salary": "drop"}}
    assert warehouse.run(service, privacy=rules).status == "succeeded"
    with duckdb.connect(str(warehouse.file)) as connection:
        connection.execute("UPDATE importer_data.sync_imports SET privacy = split_part(privacy, ':', 1)")
    assert warehouse.run(service, privacy=rules).status == "succeeded"


@pytest.mark.parametrize("how", ["left out", "status", "rules"])
def test_an_import_that_moves_while_it_is_read_is_left_to_the_next_run(warehouse: Warehouse, how: str) -> None:
    """Where it moved to, the settings leave it out, or its rules are probably not the intended ones."""
    service = Service(seed=5)
    service.add_import("payroll", [{"salary": 1}])
    [payroll] = service.templates()
    settings: dict[str, Any] = {"exclude_templates": ["payroll"]}
    if how == "status":
        settings = {"status": "completed"}
    if how == "rules":
        settings = {"privacy": {"payroll": {"salary": "drop"}}}
        warehouse.run(service, **settings)
        service.rename_template(payroll.slug, "wages")
    moving = service.add_import("customers", [{"salary": 777}] * 150)

    def move(request: Request) -> None:
        if request.path.endswith(f"{moving}/records"):
            service.on_request = None
            if how == "status":
                service.set_status(moving, "submitted")
                service.append_rows(moving, [{"salary": 777}])
            else:
                service.set_template(moving, service.templates()[0])

    service.on_request = move
    for again in range(3):
        ran = warehouse.run(service, **settings)
        assert warehouse.query("SELECT count(*) FROM records WHERE import_slug = ?", moving) == [(0,)]
        told = f"Import {moving} moved while it was read; the next run reads it." in ran.problems
        assert told == (not again and how != "status")
    assert ran.status == ("partial" if how == "rules" else "succeeded")
    assert warehouse.query("SELECT count(*) FROM information_schema.tables WHERE table_name = 'records_customers'") == [
        (0,)
    ]
    if how != "rules":
        assert warehouse.run(service).status == "succeeded"
        assert differences(warehouse, service) == []


@pytest.mark.parametrize("title", ["former", "Slug", "slug", "Name"])
def test_rules_by_a_name_that_is_nearly_or_was_that_of_a_template_are_no_rules_for_nothing(
    warehouse: Warehouse, title: str
) -> None:
    service, _, payroll, _ = make_service()
    [slug] = [each.slug for each in service.templates() if each.name == "payroll"]
    written = {"former": "payroll", "Slug": slug.upper(), "slug": f"{slug[:-1]}x", "Name": "Payroll"}[title]
    if title == "former":
        warehouse.run(service)
        service.rename_template(slug, "wages")
        service.append_rows(payroll, [{"salary": 777}])
    for _ in range(3):
        ran = warehouse.run(service, privacy={written: {"salary": "drop"}})
        assert ran.status == "partial"
        assert written in str(ran.problems[0])
        assert slug in str(ran.problems[0]) or title == "Name"
        assert warehouse.query("SELECT count(*) FROM records WHERE data LIKE '%777%'") == [(0,)]


def test_a_backfill_by_a_name_in_another_unicode_form_is_a_promise(warehouse: Warehouse) -> None:
    service, _, payroll, _ = make_service()
    [slug] = [each.slug for each in service.templates() if each.name == "payroll"]
    service.rename_template(slug, normalize("NFD", "Soci\u00e9t\u00e9"))
    assert warehouse.run(service).status == "succeeded"
    scope = RunScope(mode="backfill", selection=Selection(template="Soci\u00e9t\u00e9"), force=True)
    with mock.patch.object(ServiceClient, "list_imports", side_effect=AuthError("401")):
        assert isinstance(warehouse.run(service, scope).fatal, AuthError)
    assert warehouse.query("SELECT slug FROM sync_imports WHERE due = 'backfill'") == [(payroll,)]
    assert warehouse.run(service).records_loaded == 3


def test_a_name_that_an_earlier_version_noted_in_another_unicode_form_still_leaves_out(warehouse: Warehouse) -> None:
    service, _, left, _ = make_service()
    [slug] = [each.slug for each in service.templates() if each.name == "payroll"]
    name = normalize("NFD", "Soci\u00e9t\u00e9")
    service.rename_template(slug, name)
    settings: dict[str, Any] = {"exclude_templates": [name]}
    assert warehouse.run(service, **settings).status == "succeeded"
    with duckdb.connect(str(warehouse.file)) as connection:
        noted = json.dumps({name: [slug]})
        connection.execute("USE importer_data; UPDATE sync_runs SET left_out_by_name = ?", [noted])
    service.rename_template(slug, "wages")
    for _ in range(2):
        assert warehouse.run(service, **settings).status == "partial"
        assert states(warehouse)[left] == "excluded"


@pytest.mark.parametrize("name", ["caf\u00e9", "\uace0\uac1d", "\u30c7\u30fc\u30bf"])
@pytest.mark.parametrize("shown", ["NFC", "NFD"])
def test_rules_by_a_name_in_another_unicode_form_apply_to_all_templates_of_that_name(
    warehouse: Warehouse, name: str, shown: Literal["NFC", "NFD"]
) -> None:
    service, staff, payroll, _ = make_service()
    by_name = {each.name: each.slug for each in service.templates()}
    service.rename_template(by_name["payroll"], normalize(shown, name))
    service.append_rows(payroll, [{"salary": "in clear text"}])
    other: Literal["NFC", "NFD"] = "NFD" if shown == "NFC" else "NFC"
    rules: dict[str, Any] = {"privacy": {normalize(other, name): {"salary": "drop"}}, "history": True}
    assert warehouse.run(service, **rules).status == "succeeded"
    # one more template of that name, in the other form, and then that one alone
    service.rename_template(by_name["customers"], normalize(other, name))
    service.append_rows(staff, [{"salary": "in clear text"}])
    assert warehouse.run(service, **rules).status == "succeeded"
    service.delete_import(payroll)
    assert warehouse.run(service, **rules).status == "succeeded"
    for table in ("records", "records_customers", "records_customers_history"):
        assert warehouse.query(
            f"SELECT count(*) FROM {table} WHERE CAST({table} AS VARCHAR) LIKE '%in clear text%'"
        ) == [(0,)]
    shown_names = warehouse.query("SELECT DISTINCT template__name FROM imports WHERE slug = ?", staff)
    assert shown_names == [(normalize(other, name),)]


def test_rules_under_a_name_in_two_unicode_forms_are_refused() -> None:
    names = [normalize(form, "caf\u00e9") for form in ("NFC", "NFD")]
    rules = {name: {"salary": "drop"} for name in names}
    with pytest.raises(ConfigError, match="is there twice, in two Unicode forms"):
        Settings.load(base_url="http://127.0.0.1:1", access_token="t", privacy=rules)


def test_a_template_whose_imports_only_failed_keeps_its_rules_when_it_is_renamed(warehouse: Warehouse) -> None:
    service, _, payroll, _ = make_service()
    rules: dict[str, Any] = {"privacy": {"payroll": {"salary": "drop"}}}
    with mock.patch("connector.run.reader.read_import", side_effect=ContractError("unreadable")):
        assert warehouse.run(service, **rules).status == "partial"
    [slug] = [each.slug for each in service.templates() if each.name == "payroll"]
    service.rename_template(slug, "wages")
    ran = warehouse.run(service, **rules)
    assert ran.status == "partial"
    assert slug in ran.problems[0]
    assert warehouse.query("SELECT count(*) FROM records WHERE import_slug = ?", payroll) == [(0,)]


@pytest.mark.parametrize("status", ["completed", "submitted"])
def test_a_record_to_which_new_rules_cannot_be_applied_does_not_keep_the_others_in_clear_text(
    warehouse: Warehouse, status: Any
) -> None:
    deep: Any = 1
    for _ in range(120):
        deep = {"a": deep}
    rows = [{"mail": "a@b.example", "n": 1}, {"mail": "c@d.example", "deep": deep}]
    service = Service(seed=1)
    service.add_import("t", rows, status=status)
    assert warehouse.run(service).status == "succeeded"
    ran = warehouse.run(service, privacy={"*": {"re:(?i)mail": "drop"}})
    assert (ran.status, ran.records_rejected, ran.imports_failed) == ("partial", 1, 0)
    assert warehouse.query("SELECT data FROM records") == [('{"n":1}',)]
    assert "example" not in str(warehouse.query("SELECT * FROM sync_rejects"))


def test_a_status_that_an_earlier_version_stored_as_it_was_written_is_the_same(warehouse: Warehouse) -> None:
    service = Service(seed=7)
    gone = service.add_import("customers", [{"n": 1}])
    service.add_import("customers", [{"n": 2}])
    assert warehouse.run(service).status == "succeeded"
    with duckdb.connect(str(warehouse.file)) as connection:
        for table in "imports", "sync_imports":
            connection.execute(f"UPDATE importer_data.{table} SET status = 'Completed'")
    service.delete_import(gone)
    ran = warehouse.run(service, RunScope(allow_mass_delete=True), status="completed")
    assert (ran.status, ran.imports_deleted) == ("succeeded", 1)


def test_a_status_by_which_the_service_finds_nothing_is_looked_for_in_all_imports(warehouse: Warehouse) -> None:
    service = Service(seed=7, switches=Switches(status_filter="matches_nothing"))
    there = service.add_import("customers", [{"n": n} for n in range(3)])
    service.add_import("customers", [{"n": 9}], status="submitted")
    for changed in (1, 0):
        ran = warehouse.run(service, status="completed")
        assert (ran.status, ran.imports_changed, ran.imports_deleted) == ("succeeded", changed, 0)
        assert warehouse.query("SELECT import_slug, count(*) FROM records GROUP BY 1") == [(there, 3)]
        assert differences(warehouse, service, status="completed") == []
    service.delete_import(there)
    assert warehouse.run(service, RunScope(allow_mass_delete=True), status="completed").imports_deleted == 1
    assert warehouse.query("SELECT count(*) FROM records") == [(0,)]


def test_what_a_service_lists_at_another_status_than_asked_for_is_known_to_be_under_older_rules(
    warehouse: Warehouse,
) -> None:
    service = Service(seed=5, switches=Switches(status_filter="ignored"))
    service.add_import("payroll", [{"salary": 1}])
    other = service.add_import("payroll", [{"salary": 2}], status="submitted")
    warehouse.run(service)
    ran = warehouse.run(service, status="completed", privacy={"*": {"salary": "drop"}})
    assert ran.status == "partial"
    assert other in ran.problems[0]


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("alone", [False, True], ids=["", "seen-first-by-a-run-of-imports-alone"])
def test_a_template_that_is_left_out_by_name_stays_left_out_when_it_is_renamed(
    warehouse: Warehouse, history: bool, taken: bool, alone: bool
) -> None:
    service, kept, payroll, _ = make_service()
    [slug] = [each.slug for each in service.templates() if each.name == "payroll"]
    settings: dict[str, Any] = {"exclude_templates": ["payroll"], "history": history}
    assert warehouse.run(service, **settings).status == "succeeded"
    service.rename_template(slug, "wages")
    if taken:
        [other] = [each.slug for each in service.templates() if each.name == "customers"]
        service.rename_template(other, "payroll")
    if alone:
        with serve(service) as url:
            source = importer_source(base_url=url, access_token=service.token, **settings)
            warehouse.pipeline().run(source.with_resources("imports"))
    for _ in range(3):
        ran = warehouse.run(service, **settings)
        assert ran.status == "partial"
        assert states(warehouse)[kept] == ("excluded" if taken else "synced")
        assert f"template {slug}, which was left out, is called 'wages' now" in ran.problems[0]
        again = RunScope(mode="backfill", force=True, selection=Selection(slugs=frozenset({payroll})))
        assert isinstance(warehouse.run(service, again, **settings).fatal, ConfigError)
        assert warehouse.query("SELECT count(*) FROM records WHERE import_slug = ?", payroll) == [(0,)]
    assert warehouse.run(service, exclude_templates=[slug], history=history).status == "succeeded"
    assert warehouse.run(service, history=history).imports_changed == 1


def test_a_template_that_was_left_out_by_a_former_name_stays_so_after_a_run_that_left_it_out_otherwise(
    warehouse: Warehouse,
) -> None:
    service, *_ = make_service()
    [slug] = [each.slug for each in service.templates() if each.name == "payroll"]
    settings: dict[str, Any] = {"exclude_templates": ["payroll"]}
    assert warehouse.run(service, **settings).status == "succeeded"
    service.rename_template(slug, "wages")
    for otherwise in ({"templates": ["customers"]}, {"exclude_templates": ["payroll", slug]}):
        ran = warehouse.run(service, **{**settings, **otherwise})
        assert not [each for each in ran.problems if "which was left out" in each]
        ran = warehouse.run(service, **settings)
        assert (ran.status, f"template {slug}, which was left out" in ran.problems[0]) == ("partial", True)
    assert warehouse.run(service, RunScope(mode="backfill", selection=Selection(template="customers"))).fatal is None
    with serve(service) as url:
        source = importer_source(base_url=url, access_token=service.token)
        warehouse.pipeline().run(source.with_resources("imports"))
    with mock.patch("connector.run.sync.write_dispositions", side_effect=OSError("full")):
        assert warehouse.run(service).status == "failed"
    assert warehouse.run(service, **settings).status == "partial"
    assert warehouse.query("SELECT count(*) FROM records WHERE template_slug = ?", slug) == [(0,)]
    for _ in range(2):
        assert warehouse.run(service).status == "succeeded"
    assert warehouse.run(service, **settings).status == "succeeded", "runs without the name have read it"


@pytest.mark.parametrize(
    "lost",
    ["DELETE FROM sync_runs", "DROP TABLE sync_runs", "ALTER TABLE sync_runs DROP left_out_by_name"],
    ids=["rows", "table", "column"],
)
def test_a_template_that_is_left_out_by_a_former_name_stays_so_though_the_note_is_lost(
    warehouse: Warehouse, lost: str
) -> None:
    service, *_ = make_service()
    [slug] = [each.slug for each in service.templates() if each.name == "payroll"]
    assert warehouse.run(service, exclude_templates=["payroll"]).status == "succeeded"
    service.rename_template(slug, "wages")
    for _ in range(2):
        assert warehouse.run(service, exclude_templates=["payroll"]).status == "partial"
        with duckdb.connect(str(warehouse.file)) as connection:
            connection.execute(f"USE importer_data; {lost}")
    assert warehouse.run(service, exclude_templates=["payroll"]).status == "partial"
    assert warehouse.query("SELECT count(*) FROM records WHERE template_slug = ?", slug) == [(0,)]


@pytest.mark.parametrize("by", ["slug", "status"])
def test_the_note_is_made_anew_though_a_run_lists_nothing_of_the_template(warehouse: Warehouse, by: str) -> None:
    service = Service(1)
    theirs = service.add_import("customers", [{"name": "Ada"}])
    service.add_import("payroll", [{"salary": 1}], status="submitted")
    [slug] = [each.slug for each in service.templates() if each.name == "payroll"]
    assert warehouse.run(service, exclude_templates=["payroll"]).status == "succeeded"
    service.rename_template(slug, "wages")
    assert warehouse.run(service, exclude_templates=["payroll"]).status == "partial"
    with duckdb.connect(str(warehouse.file)) as connection:
        connection.execute("DELETE FROM importer_data.sync_runs")
    backfill = RunScope(mode="backfill", force=True, selection=Selection(slugs=frozenset({theirs})))
    only: dict[str, Any] = {"status": "completed"} if by == "status" else {}
    warehouse.run(service, backfill if by == "slug" else None, exclude_templates=["payroll"], **only)
    assert warehouse.run(service, exclude_templates=["payroll"]).status == "partial"
    assert warehouse.query("SELECT count(*) FROM records WHERE template_slug = ?", slug) == [(0,)]


@pytest.mark.parametrize("mark", ["renamed", "renamed:payroll"])
def test_what_format_1_left_out_by_a_former_name_stays_left_out(warehouse: Warehouse, mark: str) -> None:
    service, *_ = make_service()
    [slug] = [each.slug for each in service.templates() if each.name == "payroll"]
    assert warehouse.run(service, exclude_templates=["payroll"]).status == "succeeded"
    service.rename_template(slug, "wages")
    assert warehouse.run(service, exclude_templates=["payroll"]).status == "partial"
    with duckdb.connect(str(warehouse.file)) as connection:
        connection.execute("USE importer_data; UPDATE sync_runs SET left_out_by_name = NULL")
        connection.execute("UPDATE sync_imports SET due = ? WHERE state = 'excluded'", [mark])
    if mark != "renamed":
        assert warehouse.run(service, templates=["customers"]).status == "succeeded"
    for _ in range(2):
        assert warehouse.run(service, exclude_templates=["payroll"]).status == "partial"
    assert warehouse.query("SELECT count(*) FROM records WHERE template_slug = ?", slug) == [(0,)]


@pytest.mark.parametrize("by", ["name", "slug"])
def test_what_is_left_out_stays_so_while_it_is_shown_without_its_template(warehouse: Warehouse, by: str) -> None:
    service, *_ = make_service()
    [payroll] = [each for each in service.templates() if each.name == "payroll"]
    left_out = [each["slug"] for each in service.imports() if (each["template"] or {}).get("slug") == payroll.slug]
    settings: dict[str, Any] = {"exclude_templates": ["payroll" if by == "name" else payroll.slug]}
    assert warehouse.run(service, **settings).status == "succeeded"
    before = warehouse.query("SELECT count(*) FROM records")
    for slug in left_out:
        service.set_template(slug, None)
    for _ in range(2):
        ran = warehouse.run(service, **settings)
        assert f"Import {min(left_out)} is shown without a template" in ran.problems[0]
        assert warehouse.query("SELECT count(*) FROM records") == before
    for slug in left_out:
        service.set_template(slug, payroll)
    assert warehouse.run(service, **settings).status == "succeeded"
    assert warehouse.query("SELECT count(*) FROM records") == before


def test_a_name_that_is_left_out_from_now_on_is_known_by_the_imports_that_showed_it_before(
    warehouse: Warehouse,
) -> None:
    service, *_ = make_service()
    assert warehouse.run(service).status == "succeeded"
    [payroll] = [each for each in service.templates() if each.name == "payroll"]
    before = warehouse.query("SELECT slug, data FROM records ORDER BY 1")
    slugs = [each["slug"] for each in service.imports() if (each["template"] or {}).get("slug") == payroll.slug]
    for slug in slugs:
        service.set_template(slug, None)
        service.append_rows(slug, [{"salary": 9}])
    for _ in range(3):
        ran = warehouse.run(service, exclude_templates=["payroll"])
        assert ran.status == "partial"
        assert f"Import {min(slugs)} is shown without a template" in ran.problems[0]
        assert warehouse.query("SELECT slug, data FROM records ORDER BY 1") == before


def test_an_import_that_is_left_out_keeps_the_template_that_only_the_table_of_imports_told(
    warehouse: Warehouse,
) -> None:
    service, *_ = make_service()
    with serve(service) as url:
        source = importer_source(base_url=url, access_token=service.token)
        warehouse.pipeline().run(source.with_resources("imports"))
    for each in service.imports():
        if each["template"] and each["template"]["name"] == "payroll":
            service.set_template(each["slug"], None)
    for _ in range(3):
        assert warehouse.run(service, exclude_templates=["payroll"]).status == "partial"
    assert warehouse.query("SELECT count(*) FROM records WHERE data LIKE '%salary%'") == [(0,)]


@pytest.mark.parametrize("another", [True, False])
def test_an_import_of_a_chosen_template_that_is_shown_without_it_is_missed(warehouse: Warehouse, another: bool) -> None:
    service, kept, *_ = make_service()
    if another:
        service.add_import("customers", [{"name": "Cyd"}])
    [customers] = [each for each in service.templates() if each.name == "customers"]
    assert warehouse.run(service, templates=["customers"]).status == "succeeded"
    service.set_template(kept, None)
    service.append_rows(kept, [{"n": 99}])
    for chosen in "customers", "customers", customers.slug, "customers":
        ran = warehouse.run(service, templates=[chosen, "payroll"])
        assert ran.status == "partial"
        assert f"It had template {customers.slug}, which templates selects" in ran.problems[0]
    service.set_template(kept, customers)
    assert warehouse.run(service, templates=["customers"]).status == "succeeded"
    assert warehouse.query("""SELECT count(*) FROM records WHERE data = '{"n":99}'""") == [(1,)]


def test_an_upgrade_leaves_out_what_deleted_imports_tell_of_a_name(warehouse: Warehouse) -> None:
    """The template's only import was left out and is deleted; a new one comes, and another template gets the name."""
    service, *_ = make_service()
    templates = {each.name: each for each in service.templates()}
    first = [each["slug"] for each in service.imports() if (each["template"] or {}).get("name") == "payroll"]
    warehouse.run(service, exclude_templates=["payroll"])
    for slug in first:
        service.delete_import(slug)
    assert warehouse.run(service, exclude_templates=["payroll"]).imports_deleted == len(first)
    with duckdb.connect(str(warehouse.file)) as connection:
        connection.execute("USE importer_data; UPDATE sync_runs SET left_out_by_name = NULL")
    service.add_import(templates["payroll"], [{"salary": 9}])
    service.rename_template(templates["payroll"].slug, "wages")
    service.rename_template(templates["customers"].slug, "payroll")
    for _ in range(2):
        assert warehouse.run(service, exclude_templates=["payroll"]).status == "partial"
    assert warehouse.query("SELECT count(*) FROM records WHERE template_slug = ?", templates["payroll"].slug) == [(0,)]


def test_a_name_that_left_out_nothing_leaves_out_no_template_that_another_setting_did(warehouse: Warehouse) -> None:
    service, *_ = make_service()
    assert warehouse.run(service, templates=["customers"], exclude_templates=["nothing"]).status == "succeeded"
    assert warehouse.run(service, exclude_templates=["nothing"]).status == "succeeded"
    assert warehouse.query("SELECT DISTINCT state FROM sync_imports") == [("synced",)]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_template_that_is_left_out_by_name_stays_so_when_it_is_renamed_with_other_imports(
    warehouse: Warehouse, at_once: bool
) -> None:
    service, _, payroll, _ = make_service()
    [template] = [each for each in service.templates() if each.name == "payroll"]
    settings: dict[str, Any] = {"exclude_templates": ["payroll"]}
    assert warehouse.run(service, **settings).status == "succeeded"
    service.delete_import(payroll)
    if not at_once:
        assert warehouse.run(service, **settings).status == "succeeded"
    new = service.add_import(template, [{"salary": 4}])
    service.rename_template(template.slug, "wages")
    for _ in range(3):  # each import is replaced by another one, at once or between two runs
        assert warehouse.run(service, **settings).status == "partial"
        assert states(warehouse)[new] == "excluded"
        service.delete_import(new)
        if not at_once:
            warehouse.run(service, **settings)
        new = service.add_import(template, [{"salary": 5}])
        service.rename_template(template.slug, "wages")
    service.delete_import(new)
    warehouse.run(service, **settings)
    service.restore_import(new)
    assert warehouse.run(service, **settings).status == "partial"
    assert warehouse.query("SELECT count(*) FROM records WHERE template_slug = ?", template.slug) == [(0,)]


@pytest.mark.parametrize("ruled", ["before", "later"])
@pytest.mark.parametrize("stored", ["typed", "raw", "in another table", "under another name"])
def test_rules_of_a_template_whose_last_import_moved_to_what_is_left_out(
    warehouse: Warehouse, ruled: str, stored: str
) -> None:
    service = Service(seed=1)
    if stored == "in another table":
        service.add_import("customers", [{"x": 1}])
        warehouse.run(service)
    if stored == "under another name":
        moved = service.add_import("Clients", [{"email": "a@b"}])
        warehouse.run(service)
        [clients] = service.templates()
        service.rename_template(clients.slug, "Customers")
    else:
        moved = service.add_import("Customers", [{"email": "a@b"}])
    service.add_import("Payroll", [{"salary": 1}])
    [payroll] = [each for each in service.templates() if each.name == "Payroll"]
    settings: dict[str, Any] = {"exclude_templates": ["Payroll"], "typed": stored != "raw"}
    rules: dict[str, Any] = {"privacy": {"Customers": {"email": "drop"}}}
    assert warehouse.run(service, **settings, **(rules if ruled == "before" else {})).status == "succeeded"
    service.set_template(moved, payroll)
    warehouse.run(service, **settings, **(rules if ruled == "before" else {}))
    for _ in range(2):
        ran = warehouse.run(service, **settings, **rules)
        if stored != "in another table":  # of a template of nearly that name, which the rules may be meant for
            assert ran.status == ("succeeded" if ruled == "before" else "partial")
        with serve(service) as url:
            made = Settings.load(base_url=url, access_token=service.token, **settings, **rules)
        older = [each.kind for each in doctor(warehouse.pipeline(), privacy=made.protection).findings]
        assert ("older_privacy_rules" in older) == (ruled == "later")


def test_an_import_that_moved_to_a_template_that_is_left_out_says_nothing_about_its_former_one(
    warehouse: Warehouse,
) -> None:
    service, _, payroll, _ = make_service()
    moved = service.add_import("customers", [{"name": "Cy"}])
    settings: dict[str, Any] = {"exclude_templates": ["payroll"]}
    assert warehouse.run(service, **settings).status == "succeeded"
    [template] = [each for each in service.templates() if each.name == "payroll"]
    service.set_template(moved, template)
    assert warehouse.run(service, **settings).status == "succeeded"
    service.rename_template(template.slug, "wages")
    for _ in range(3):
        ran = warehouse.run(service, **settings)
        assert {template.slug in each for each in ran.problems} == {True}
    added = service.add_import("customers", [{"name": "Di"}])
    warehouse.run(service, **settings)
    assert (states(warehouse)[added], states(warehouse)[payroll]) == ("synced", "excluded")


@pytest.mark.parametrize("later", [True, False])
def test_rows_of_an_import_that_moved_to_what_is_left_out_stay_under_the_rules_of_their_template(
    warehouse: Warehouse, later: bool
) -> None:
    """A run is partial if such a rule comes later, because the rows cannot be read again, and only then."""
    service, kept, _, _ = make_service()
    payroll, customers = (
        next(each for each in service.templates() if each.name == name) for name in ("payroll", "customers")
    )
    out: dict[str, Any] = {"exclude_templates": ["payroll"]}
    rules: dict[str, Any] = {"privacy": {customers.slug: {"name": "drop"}}}
    assert warehouse.run(service, **out, **({} if later else rules)).status == "succeeded"
    service.set_template(kept, payroll)
    assert warehouse.run(service, **out, **({} if later else rules)).status == "succeeded"
    for _ in range(2):
        ran = warehouse.run(service, **out, **rules)
        assert (ran.status, kept in str(ran.problems)) == (("partial", True) if later else ("succeeded", False))
        with serve(service) as url:
            made = Settings.load(base_url=url, access_token=service.token, **out, **rules)
        assert len(doctor(warehouse.pipeline(), privacy=made.protection).findings) == later


def test_an_import_that_left_the_chosen_status_does_not_leave_out_its_template(warehouse: Warehouse) -> None:
    service, kept, _, _ = make_service()
    [template] = [each for each in service.templates() if each.name == "customers"]
    assert warehouse.run(service, status="completed").status == "succeeded"
    service.append_rows(kept, [{"name": "Di"}])
    service.faults = Faults(failing_imports=frozenset([kept]))
    assert warehouse.run(service, status="completed").status == "partial"
    service.faults = Faults()
    service.set_status(kept, "submitting")
    assert warehouse.run(service, status="completed").status == "succeeded"
    assert states(warehouse)[kept] == "excluded"
    service.rename_template(template.slug, "clients")
    assert warehouse.run(service, exclude_templates=["payroll", "customers"]).status in ("succeeded", "partial")
    assert states(warehouse)[kept] == "synced"


def test_a_backfill_names_the_imports_that_a_setting_leaves_out(warehouse: Warehouse) -> None:
    service, kept, payroll, loose = make_service()
    service.set_status(loose, "submitted")
    warehouse.run(service)
    scope = RunScope(mode="backfill", force=True, selection=Selection(slugs=frozenset({kept, payroll, loose})))
    ran = warehouse.run(service, scope, exclude_templates=["payroll"], status="completed")
    assert (ran.status, ran.imports_changed) == ("partial", 1)
    assert sorted(ran.problems) == sorted(
        f"Import {slug} is not read: templates, exclude_templates or status leaves it out." for slug in (payroll, loose)
    )


@pytest.mark.thorough
def test_an_import_that_loses_its_template_while_it_is_listed_is_under_the_rules_of_all(warehouse: Warehouse) -> None:
    """The decision goes by the later version, so the rules do, too."""
    service = Service(seed=5)
    slugs = [service.add_import("planets", [{"salary": 777}] * 3) for _ in range(150)]
    seen: list[str] = []

    def lose(request: Request) -> None:
        seen.append(request.path)
        if len(seen) == 2:
            for slug in slugs:
                service.set_template(slug, None)

    service.on_request = lose
    rules: dict[str, Any] = {"privacy": {"payroll": {"salary": "drop"}}}
    assert warehouse.run(service, **rules).status in ("succeeded", "partial")
    assert warehouse.run(service, **rules).status == "succeeded"
    templates = dict(warehouse.query("SELECT DISTINCT template_slug, data FROM records"))
    assert templates == {None: "{}"}
    assert differences(warehouse, service, **rules) == []


@pytest.mark.parametrize("before", ["Archive", "gone", "templates"])
def test_a_template_is_read_once_nothing_leaves_it_out(warehouse: Warehouse, before: str) -> None:
    """Another name under `exclude_templates` that no import has does not concern it."""
    service, _, payroll, _ = make_service()
    archive = service.add_import("Archive", [{"x": 1}])
    first: dict[str, Any] = {"exclude_templates": ["Archive", "payroll"]}
    if before == "templates":
        first = {"templates": ["customers"]}
    warehouse.run(service, **first)
    if before == "gone":
        service.delete_import(archive)
    later = ["Archive"] if before != "templates" else ["Test"]
    ran = warehouse.run(service, exclude_templates=later)
    assert (ran.status, ran.problems) == ("succeeded", [])
    assert warehouse.query("SELECT count(*) FROM records WHERE import_slug = ?", payroll) == [(3,)]
    scope = RunScope(mode="backfill", force=True, selection=Selection(slugs=frozenset({payroll})))
    assert warehouse.run(service, scope, exclude_templates=later).status == "succeeded"
