"""Verify finds each way in which a warehouse can differ from its service, and nothing where they are equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from connector.errors import AuthError, ConnectorError
from connector.maintain.verify import VerifyReport, verify
from connector.sandbox import Faults, Request, Service, Switches
from connector.settings import RunScope, Selection, Settings
from connector.warehouse import Connection
from connector.warehouse import state as loading
from connector.warehouse.state import WarehouseState

from .conftest import Place, pipeline_at

pytestmark = pytest.mark.thorough


def kinds(report: VerifyReport) -> dict[str, int]:
    return dict(Counter(str(d.kind) for d in report.differences))


@pytest.mark.parametrize("deep", [False, True])
def test_equal_is_equal(place: Place, deep: bool) -> None:
    report = place.verify(deep)
    assert (report.differences, report.moved, report.unchecked, report.exit_code) == ([], [], [], 0)
    assert report.imports == 5
    assert report.records == (265 if deep else 0)


def test_it_writes_nothing(place: Place) -> None:
    before = (place.folder / "warehouse.duckdb").read_bytes()
    place.verify(deep=True)
    assert (place.folder / "warehouse.duckdb").read_bytes() == before


def test_without_a_warehouse_it_says_so_and_makes_no_file(fresh: Callable[[str], Place]) -> None:
    empty = fresh("empty")
    with pytest.raises(ConnectorError, match="no warehouse to verify"):
        empty.verify()
    assert not (empty.folder / "warehouse.duckdb").exists()


def test_it_cannot_be_done_without_a_valid_token(place: Place) -> None:
    place.service.token = "another"
    good = Settings.load(base_url="http://127.0.0.1:9", access_token="t")
    assert good.access_token.get_secret_value() == "t"
    with pytest.raises(AuthError):
        _verify_with(place, "wrong")


def _verify_with(place: Place, token: str) -> VerifyReport:
    from connector.sandbox import serve

    with serve(place.service) as url:
        return verify(pipeline_at(place.folder), Settings.load(base_url=url, access_token=token))


def test_a_broken_database_file_is_a_sentence(place: Place) -> None:
    (place.folder / "warehouse.duckdb").write_bytes(b"not a database" * 1000)
    with pytest.raises(ConnectorError, match="is not a DuckDB database"):
        place.verify()


# -- imports -----------------------------------------------------------------------------------------------------------


def test_an_import_that_was_never_synced_is_missing(place: Place) -> None:
    slug = place.service.add_import("customers", [{"name": "late"}])
    assert kinds(place.verify()) == {"import_missing": 1}
    assert kinds(place.verify(deep=True)) == {"import_missing": 1, "count_differs": 1}
    assert place.verify().differences[0].import_slug == slug
    assert place.verify().exit_code == 3


def test_an_import_the_service_lost_is_extra(place: Place) -> None:
    slug = place.imports_of("mixed")[0]
    place.service.delete_import(slug)
    report = place.verify()
    assert kinds(report) == {"import_extra": 1}
    assert "4 rows in records" in report.differences[0].sentence


def test_a_wrong_tombstone(place: Place) -> None:
    slug = place.imports_of("mixed")[0]
    place.execute("UPDATE imports SET _deleted_at = now() WHERE slug = ?", slug)
    assert kinds(place.verify()) == {"import_tombstoned": 1}


def test_rows_of_an_unknown_import_are_extra(place: Place) -> None:
    place.execute("UPDATE records SET import_slug = 'nobody' WHERE data LIKE '%Ada%' AND data LIKE '%deep%'")
    assert kinds(place.verify()) == {"count_differs": 1, "import_extra": 1}


def test_each_field_of_an_import_is_compared(place: Place) -> None:
    slug = place.imports_of("mixed")[0]
    changes = {
        "row_count": "row_count + 1",
        "created_at": "NULL",
        "updated_at": "updated_at + INTERVAL 1 MICROSECOND",
        "status": "'created'",
        "template__slug": "'other'",
        "template__name": "'other'",
        "metadata": "metadata || ' '",
        "metadata__size": "5",
    }
    place.execute(f"UPDATE imports SET {', '.join(f'{c} = {v}' for c, v in changes.items())} WHERE slug = ?", slug)
    (difference,) = place.verify().differences
    assert difference.kind == "import_differs"
    assert set((difference.column or "").split(", ")) == set(changes)


def test_changed_upstream_since_the_sync_is_stale(place: Place) -> None:
    slug = place.imports_of("mixed")[0]
    place.service.append_rows(slug, [{"name": "Dee"}])
    assert kinds(place.verify()) == {"stale": 1, "import_differs": 1}
    assert kinds(place.verify(deep=True)) == {"stale": 1, "import_differs": 1, "record_missing": 1}


def test_a_failed_import_is_not_synced(place: Place) -> None:
    slug = place.imports_of("mixed")[0]
    place.execute("UPDATE sync_imports SET state = 'failed' WHERE slug = ?", slug)
    assert kinds(place.verify()) == {"not_synced": 1}


def test_a_load_that_never_completed_is_not_trusted(place: Place) -> None:
    place.execute("UPDATE _dlt_loads SET status = 1")
    assert kinds(place.verify())["not_synced"] == 5


def test_counts_of_other_values_are_found(place: Place) -> None:
    place.execute("UPDATE sync_fields SET value_count = 3, null_count = 1 WHERE path = 'score'")
    assert kinds(place.verify()) == {}
    [found] = place.verify(deep=True).differences
    assert (str(found.kind), found.table) == ("counts_differ", "records_mixed")
    place.sync(RunScope(selection=Selection(template="mixed"), force=True))
    assert kinds(place.verify(deep=True)) == {}


def test_counts_are_not_compared_while_a_run_loads(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes the rows of a table before the counts."""
    load_state = loading.load_state

    def once_it_loads(connection: Connection, *, force_audit: bool = False) -> WarehouseState:
        if force_audit:
            connection.execute("UPDATE importer_data.records_mixed SET score = NULL, _dlt_load_id = 'begun'")
        return load_state(connection, force_audit=force_audit)

    monkeypatch.setattr("connector.maintain.verify.load_state", once_it_loads)
    assert kinds(place.verify(deep=True)) == {}


# -- rows --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["records", "records_mixed"])
def test_a_lost_row_changes_the_count(place: Place, table: str) -> None:
    key = "slug" if table == "records" else "_record_slug"
    slug = next(iter(place.service.record_slugs(place.imports_of("mixed")[0])))
    place.execute(f"DELETE FROM {table} WHERE {key} = ?", slug)
    assert kinds(place.verify()) == {"count_differs": 1}
    found = kinds(place.verify(deep=True))
    assert found.pop("count_differs") == 1
    assert found == ({"record_missing": 1, "typed_differs": 1} if table == "records" else {"typed_differs": 1})


def test_rows_in_a_table_that_is_not_the_imports(place: Place) -> None:
    place.execute("INSERT INTO records_untemplated (_record_slug, _import_slug, _dlt_load_id) VALUES ('x', ?, 'y')",
                  place.imports_of("mixed")[0])  # fmt: skip
    assert kinds(place.verify()) == {"count_differs": 1}


RAW_CHANGES = {
    "template_slug = 'another'": "record_differs",
    "data = data || ' '": "record_differs",
    "data = regexp_replace(data, '[0-9]', '10')": "record_differs",
    "data = 'null and void'": "record_differs",
    "data = NULL": "record_differs",
    "sort = sort + 100": "record_differs",
    "sort = NULL": "record_differs",
    "created_at = created_at + INTERVAL 1 MICROSECOND": "record_differs",
    "updated_at = NULL": "record_differs",
    "slug = 'another'": "record_extra",
    "_deleted_at = now()": "record_missing",
}


def test_deep_sees_any_change_of_a_raw_row(place: Place) -> None:
    """Each change spoils a row of its own; all are found in one look, and none in any other row."""
    import_slug = place.imports_of("customers")[0]
    slugs = list(place.service.record_slugs(import_slug))
    for slug, change in zip(slugs, RAW_CHANGES, strict=False):
        place.execute(f"UPDATE records SET {change} WHERE slug = ?", slug)
    report = place.verify(deep=True)
    found = {(d.record_slug, str(d.kind)) for d in report.differences}
    for slug, (change, kind) in zip(slugs, RAW_CHANGES.items(), strict=False):
        assert ("another" if kind == "record_extra" else slug, kind) in found, change
        named = [d.column for d in report.differences if d.record_slug == slug and d.kind == "record_differs"]
        assert named == ([change.split()[0]] if kind == "record_differs" else []), change
    assert {slug for slug, _ in found} <= {*slugs[: len(RAW_CHANGES)], "another", None}


def test_sentences_do_not_repeat_what_people_wrote(place: Place) -> None:
    place.execute("UPDATE records SET data = replace(data, 'Ada', 'Adb') WHERE data LIKE '%\"Ada\"%'")
    told = str(place.verify(deep=True).as_json())
    assert "content hash" in told
    assert "Ada" not in told
    assert "Adb" not in told


TYPED_CHANGES = {
    "name = 'Adb'": "name",
    "name = NULL": "name",
    "name__v_text = 'x'": "name",
    "name__v_text = name, name = NULL": "name",
    "score = score + 1e-9": "score",
    "score__v_text = score::VARCHAR, score = NULL": "score",
    "deep__a = 0": "deep__a",
    "deep__b = '[1,2 ]'": "deep__b",
    "_sort = 999": "_sort",
    "_updated_at = NULL": "_updated_at",
    "_record_slug = 'z'": None,
}


def test_deep_sees_any_change_of_a_typed_cell(place: Place) -> None:
    rows = [{"name": "Ada", "score": 1.5, "deep": {"a": 1, "b": [1, 2]}} for _ in TYPED_CHANGES]
    place.service.add_import("mixed", [{"name": ["in the variant"]}])
    slug = place.service.add_import("mixed", rows)
    assert place.sync() == "succeeded"
    slugs = list(place.service.record_slugs(slug))
    for record, change in zip(slugs, TYPED_CHANGES, strict=True):
        place.execute(f"UPDATE records_mixed SET {change} WHERE _record_slug = ?", record)
    place.execute("UPDATE records_mixed SET name = '8' WHERE name = '7'")
    place.execute("UPDATE records_mixed SET score__v_text = '12345678901234567891' WHERE score__v_text LIKE '%67890'")
    report = place.verify(deep=True)
    assert set(kinds(report)) == {"typed_differs"}
    found = {(d.record_slug, d.column) for d in report.differences}
    assert {(record, column) for record, column in zip(slugs, TYPED_CHANGES.values(), strict=True)} <= found
    assert len(found) == len(slugs) + 1 + 2, "the row of another slug is one too many, and two variants differ"
    assert place.verify().exit_code == 0, "only --deep looks into rows"


def test_a_column_of_ours_that_no_field_explains(place: Place) -> None:
    slug = place.service.add_import("mixed", [{"passing": "x"}])
    assert place.sync() == "succeeded"
    place.service.edit_row(slug, next(place.service.record_slugs(slug)), {"name": "kept"})
    assert place.sync() == "succeeded"
    place.execute("DELETE FROM sync_fields WHERE column_name = 'passing'")
    assert place.verify(deep=True).exit_code == 0
    place.execute("UPDATE records_mixed SET passing = 'x' WHERE name = 'Ada'")
    assert [d.column for d in place.verify(deep=True).differences] == ["passing"]


def test_a_column_of_the_user_is_no_difference(place: Place) -> None:
    place.execute("ALTER TABLE records_mixed ADD COLUMN stray VARCHAR")
    place.execute("UPDATE records_mixed SET stray = 'x' WHERE name = 'Ada'")
    assert place.verify(deep=True).exit_code == 0


def test_a_row_that_is_there_twice(place: Place) -> None:
    place.execute("INSERT INTO records SELECT * FROM records WHERE data LIKE '%\"Ada\"%' AND data LIKE '%deep%'")
    assert kinds(place.verify(deep=True))["record_twice"] == 1


def test_an_edit_that_moves_nothing_shows_only_deep(place: Place) -> None:
    place.service.switches = Switches(edit_moves_import=False)
    slug = place.imports_of("mixed")[0]
    place.service.edit_row(slug, next(iter(place.service.record_slugs(slug))), {"name": "Eve"})
    assert place.verify().exit_code == 0
    assert kinds(place.verify(deep=True)) == {"record_differs": 1}


# -- settings ----------------------------------------------------------------------------------------------------------


def test_kept_deletes_are_no_differences(place: Place) -> None:
    mixed, customers = place.imports_of("mixed")[0], place.imports_of("customers")[0]
    place.service.delete_import(mixed)
    place.service.delete_row(customers, next(iter(place.service.record_slugs(customers))))
    assert place.sync(deletes="keep") == "succeeded"
    assert place.execute("SELECT count(*) FROM records WHERE _deleted_at IS NOT NULL") == [(5,)]
    assert place.verify(deep=True, deletes="keep").differences == []


@pytest.mark.parametrize("settings", [{"raw": False}, {"typed": False}])
def test_half_a_warehouse_is_verified_for_what_it_has(fresh: Callable[[str], Place], settings: dict[str, Any]) -> None:
    half = fresh("half")
    assert half.sync(**settings) == "succeeded"
    assert half.verify(deep=True, **settings).differences == []
    if settings == {"raw": False}:
        half.execute("UPDATE records_mixed SET name = 'Adb' WHERE name = 'Ada'")
        half.execute("UPDATE records_mixed SET _sort = 77 WHERE score = 2.5")
        assert kinds(half.verify(deep=True, **settings)) == {"record_differs": 1, "typed_differs": 1}


def test_a_status_filter_leaves_the_rest_alone(place: Place) -> None:
    gone = place.service.add_import("customers", [{"name": "x"}], status="submitting")
    assert place.sync() == "succeeded"
    place.service.delete_import(gone)
    place.service.add_import("customers", [{"name": "y"}], status="submitting")
    assert place.verify(deep=True, status="completed").differences == []
    assert kinds(place.verify()) == {"import_extra": 1, "import_missing": 1}
    place.service.set_status(place.imports_of("mixed")[0], "submitted")
    assert place.verify(status="completed").differences == []
    place.service.delete_import(place.imports_of("customers")[0])
    assert kinds(place.verify(status="completed")) == {"import_extra": 1}


def test_rows_from_before_and_after_a_hint_are_no_difference(place: Place) -> None:
    hints = {"records_mixed": {"name": "text", "when": "date", "score": "text"}}
    assert place.verify(deep=True, hints=hints).differences == []
    place.service.add_import("mixed", [{"name": 8, "score": 1}])
    assert place.sync(hints=hints) == "succeeded"
    assert place.execute("SELECT count(*) FROM records_mixed WHERE name = '8'") == [(1,)]
    assert place.verify(deep=True, hints=hints).differences == []
    assert place.verify(deep=True).differences == [], "the columns keep the types that the hints gave them"


def test_a_rejected_record_is_told_and_not_missing(place: Place) -> None:
    slug = place.imports_of("mixed")[0]
    place.service.add_raw_record(slug, '{"slug": "bad-1", "data": 5}')
    assert place.sync() == "partial"
    assert kinds(place.verify()) == {"record_rejected": 1}
    report = place.verify(deep=True)
    assert kinds(report)["record_rejected"] == 1
    assert "record_missing" not in kinds(report)
    assert any(d.record_slug == "bad-1" and "is in sync_rejects" in d.sentence for d in report.differences)


def test_an_import_that_does_not_reconcile(place: Place) -> None:
    slug = place.imports_of("mixed")[0]
    place.service.set_row_count(slug, 9)
    assert place.sync() == "partial"
    assert set(kinds(place.verify())) == {"not_reconciled"}
    assert kinds(place.verify(deep=True)) == {"not_reconciled": 1}


def test_an_import_that_never_rested_is_no_count_to_be_tolerated(place: Place) -> None:
    slug = place.imports_of("customers")[0]

    def touch(request: Request) -> None:
        if request.path.endswith(f"{slug}/records"):
            place.service.append_rows(slug, [{"n": 1}])

    place.service.append_rows(slug, [{"n": n} for n in range(200)])
    place.service.on_request = touch
    assert place.sync(reconcile="off") == "partial"
    place.service.on_request = None
    assert kinds(place.verify(reconcile="off"))["not_reconciled"] == 1


# -- a service that moves ----------------------------------------------------------------------------------------------


def test_what_changes_meanwhile_has_moved_and_does_not_differ(place: Place) -> None:
    slug = place.imports_of("customers")[0]
    edits = iter(range(3))

    def edit(request: Request) -> None:
        if request.path.endswith(f"{slug}/records") and next(edits, None) is not None:
            place.service.append_rows(slug, [{"name": "meanwhile"}])

    place.service.on_request = edit
    report = place.verify(deep=True)
    assert (report.differences, report.moved, report.exit_code) == ([], [slug], 0)


def test_an_import_deleted_meanwhile_has_moved(place: Place) -> None:
    slug = place.imports_of("customers")[0]

    def delete(request: Request) -> None:
        if request.path.endswith(f"{slug}/records") and slug in place.service.slugs():
            place.service.delete_import(slug)

    place.service.on_request = delete
    report = place.verify(deep=True)
    assert (report.differences, report.moved, report.exit_code) == ([], [slug], 0)


def test_what_differed_before_it_moved_still_differs(place: Place) -> None:
    slug = place.imports_of("customers")[0]
    place.service.append_rows(slug, [{"name": "before"}])

    def edit(request: Request) -> None:
        if request.path.endswith(f"{slug}/records"):
            place.service.append_rows(slug, [{"name": "meanwhile"}])

    place.service.on_request = edit
    report = place.verify(deep=True)
    assert "stale" in kinds(report)
    assert report.records < 2 * 265, "a second look counts no record twice"


def test_an_import_that_cannot_be_read_is_unchecked(place: Place) -> None:
    slug = place.imports_of("mixed")[0]
    place.service.faults = Faults(failing_imports={slug})
    report = _without_waiting(place)
    assert report.differences == []
    assert len(report.unchecked) == 1
    assert report.exit_code == 1
    assert (report.imports, report.records) == (4, 261), "what could not be read is not called compared"


def test_an_import_that_cannot_be_read_is_named_once_however_often_it_is_looked_at(place: Place) -> None:
    slug = place.imports_of("mixed")[0]
    place.execute("DELETE FROM records_mixed WHERE name = 'Bob'")
    place.service.faults = Faults(failing_imports={slug})
    report = _without_waiting(place)
    assert {d.import_slug for d in report.differences} == {slug}
    [sentence] = report.unchecked
    assert sentence.startswith(f"Import {slug} could not be read: ")
    assert (report.imports, report.records) == (4, 261)


@pytest.mark.parametrize("deep", [False, True])
def test_a_listed_import_that_answers_404_did_not_move(place: Place, deep: bool) -> None:
    lost = place.service.add_import("customers", [{"name": "x"}])
    gone = place.service.add_import("customers", [{"name": "y"}])
    place.service.faults = Faults(misrouted_imports={lost})

    def delete(request: Request) -> None:
        if request.path.endswith(gone):
            place.service.on_request = None
            place.service.delete_import(gone)

    place.service.on_request = delete
    report = place.verify(deep=deep)
    assert {d.import_slug for d in report.differences} == {lost}
    assert report.unchecked == [f"Import {lost}: the service lists it but answers 404 for it."]
    assert report.moved == [gone]
    assert report.exit_code == 3


@pytest.mark.parametrize(
    ("imports", "largest"),
    [(60, 25), *(pytest.param(imports, 100, marks=pytest.mark.long) for imports in (1, 3, 230))],
)
def test_pages_counted_from_zero(fresh: Callable[[str], Place], imports: int, largest: int) -> None:
    place = fresh("zero")
    place.service = Service(switches=Switches(page_zero="counts", max_per_page=largest))
    place.service.add_generated("customers", imports=1, rows=120)
    place.service.add_generated("customers", imports=imports - 1, rows=2)
    assert place.sync() == "succeeded"
    report = place.verify(deep=True)
    assert (report.exit_code, report.imports, report.records) == (0, imports, 118 + 2 * imports)


def _without_waiting(place: Place) -> VerifyReport:
    from connector.run.ports import Ports
    from connector.sandbox import serve
    from connector.service.client import ServiceClient

    async def at_once(_: float) -> None:
        return None

    real = Ports.real()
    with serve(place.service) as url:
        settings = Settings.load(base_url=url, access_token=place.service.token)
        world = Ports(
            lambda s: ServiceClient(url, place.service.token, sleep=at_once),
            real.open_loop,
            real.now,
            real.run_in_background,
        )
        return verify(pipeline_at(place.folder), settings, True, ports=world)
