"""Changing the service: by its Python API, and by a seeded script of edits."""

from __future__ import annotations

import json
import uuid

import pytest

from connector.sandbox import STATUSES, Service, Template

EXACT_ROWS = [
    '{"n": 0.10}',
    '{"n":123456789012345678901234567890}',
    '{"n":1e-300, "m":1E400}',
    '{"s":"\\ud800"}',
    '{"a":1,"a":2}',
    '{ "space" :\t[1 ,2]\n}',
]


@pytest.fixture
def service() -> Service:
    return Service(seed=6)


def shown(service, slug):
    return next(row for row in service.imports() if row["slug"] == slug)


def test_rows_given_as_text_are_sent_byte_for_byte(service, ask):
    slug = service.add_import("exact", EXACT_ROWS[:3])
    service.append_rows(slug, EXACT_ROWS[3:])
    body = ask(service, f"/imports/{slug}/records").body
    for row in EXACT_ROWS:
        assert b'"data":' + row.encode() + b',"created_at"' in body


def test_rows_given_as_dicts(service):
    rows = [{"ü": "ß", "nested": {"a": [1, None]}}, {"lone": "\ud800"}]
    slug = service.add_import("dicts", rows)
    assert [record["data"] for record in service.records(slug)] == rows
    with pytest.raises(ValueError, match="JSON"):
        service.append_rows(slug, [{"nan": float("nan")}])


RAW = ['{"data":{}}', '{"slug":"x","data":[1],"created_at":"yesterday"}', "7", "null", '"text"', "{not json"]


def test_raw_records_need_not_be_legal(service, ask):
    slug = service.add_import("raw", [{"a": 1}])
    handles = [service.add_raw_record(slug, text) for text in RAW]
    assert shown(service, slug)["row_count"] == 1 + len(RAW)
    assert list(service.record_texts(slug))[1:] == RAW
    assert list(service.records(slug))[1:] == [*map(json.loads, RAW[:5]), RAW[5]]
    assert ",".join(RAW).encode() in ask(service, f"/imports/{slug}/records").body
    service.delete_row(slug, handles[5])
    assert len(ask(service, f"/imports/{slug}/records").json()["data"]) == 6


def test_append_edit_delete(service):
    slug = service.add_import("t", [{"n": n} for n in range(3)])
    before = shown(service, slug)
    added = service.append_rows(slug, [{"n": 3}, {"n": 4}])
    after = shown(service, slug)
    assert (before["row_count"], after["row_count"]) == (3, 5)
    assert before["created_at"] == after["created_at"]
    assert before["updated_at"] < after["updated_at"]
    service.edit_row(slug, added[0], {"n": 30})
    service.delete_row(slug, next(service.record_slugs(slug)))
    service.append_rows(slug, [{"n": 5}])
    records = list(service.records(slug))
    assert [record["data"]["n"] for record in records] == [1, 2, 30, 4, 5]
    assert [record["sort"] for record in records] == [1, 2, 3, 4, 5], "a position is never given twice"
    assert records[2]["slug"] == added[0]
    assert records[2]["created_at"] < records[2]["updated_at"]
    assert records[0]["created_at"] == records[0]["updated_at"]


def test_deleting_all_rows_then_appending(service, ask):
    slug = service.add_generated("orders", rows=5)[0]
    for record_slug in list(service.record_slugs(slug)):
        service.delete_row(slug, record_slug)
    assert ask(service, f"/imports/{slug}/records").json()["data"] == []
    assert shown(service, slug)["row_count"] == 0
    service.append_rows(slug, [{"n": 1}])
    assert [record["data"] for record in service.records(slug)] == [{"n": 1}]


def test_the_life_of_an_import(service):
    slug = service.add_import("t", status="created")
    seen = [shown(service, slug)]
    for status in STATUSES[1:]:
        service.append_rows(slug, [{"n": 1}])
        service.set_status(slug, status)
        seen.append(shown(service, slug))
    assert [row["status"] for row in seen] == ["created", "submitting", "submitted", "completed"]
    assert [row["row_count"] for row in seen] == [0, 1, 2, 3]
    assert len({row["updated_at"] for row in seen}) == 4
    assert sorted(seen, key=lambda row: row["updated_at"]) == seen
    with pytest.raises(ValueError, match="status"):
        service.set_status(slug, "finished")


def test_deleted_and_restored(service, ask):
    keep, slug = service.add_generated("orders", imports=2, rows=4)
    service.append_rows(slug, [{"n": 1}])
    before, records = shown(service, slug), list(service.records(slug))
    service.delete_import(slug)
    assert service.slugs() == [keep]
    assert ask(service, f"/imports/{slug}").status == 404
    assert ask(service, f"/imports/{slug}/records").status == 404
    with pytest.raises(KeyError):
        service.append_rows(slug, [{"n": 2}])
    service.restore_import(slug)
    assert service.slugs() == [keep, slug]
    assert shown(service, slug) == before
    assert list(service.records(slug)) == records


def test_templates_and_metadata(service):
    one, two = service.add_generated("orders", imports=2, rows=1)
    before = shown(service, two)
    template_slug = before["template"]["slug"]
    service.rename_template(template_slug, "Bestellungen")
    assert shown(service, one)["template"] == {"name": "Bestellungen", "slug": template_slug}
    assert shown(service, two)["updated_at"] == before["updated_at"], "a template's name is not its imports'"
    service.add_generated("orders", rows=1)
    assert {row["template"]["name"] for row in service.imports()} == {"Bestellungen"}
    other = Template("Other", str(uuid.UUID(int=9)))
    service.set_template(two, other)
    assert shown(service, two)["template"] == {"name": "Other", "slug": other.slug}
    assert shown(service, two)["updated_at"] > before["updated_at"]
    service.set_template(two, None)
    assert shown(service, two)["template"] is None
    service.set_metadata(two, {"deep": {"er": [1]}})
    assert shown(service, two)["metadata"] == {"deep": {"er": [1]}}
    service.set_metadata(two, None)
    assert shown(service, two)["metadata"] is None


def test_a_row_count_that_is_wrong(service, ask):
    slug = service.add_generated("orders", rows=4)[0]
    service.set_row_count(slug, 9)
    assert shown(service, slug)["row_count"] == 9
    assert len(ask(service, f"/imports/{slug}/records").json()["data"]) == 4
    service.set_row_count(slug, None)
    assert shown(service, slug)["row_count"] == 4


def test_own_slugs(service):
    slug = str(uuid.UUID(int=77))
    assert service.add_import("t", [], slug=slug) == slug
    with pytest.raises(ValueError, match=slug):
        service.add_import("t", [], slug=slug)


def whole(service):
    return service.imports(), [list(service.record_texts(slug)) for slug in service.slugs()]


def scripted(service_seed, script_seed, edits=120):
    service = Service(seed=service_seed)
    service.add_generated("customers", imports=3, rows=20)
    service.add_import("own", ['{"n":1e999,"x":0.10}', "[1]", "broken"])
    return service, service.edit_randomly(edits, seed=script_seed)


def test_a_script_is_reproducible():
    one, lines = scripted(1, 7)
    two, again = scripted(1, 7)
    assert lines == again
    assert whole(one) == whole(two)
    assert len(lines) == 120
    other, others = scripted(1, 8)
    assert lines != others
    assert whole(one) != whole(other)


def test_a_script_does_everything():
    _, lines = scripted(3, 7, edits=400)
    text = "\n".join(lines)
    for kind in (
        "appended ",
        "edited record",
        "deleted record",
        "added import",
        "deleted import",
        "is now submitting",
        "is now submitted",
        "is now completed",
    ):
        assert kind in text


def test_a_script_tells_what_it_did():
    service, _ = scripted(1, 7, edits=0)
    for _ in range(150):
        before = {row["slug"]: row for row in service.imports()}
        [line] = service.edit_randomly()
        after = {row["slug"]: row for row in service.imports()}
        changed = {slug for slug in before.keys() | after.keys() if before.get(slug) != after.get(slug)}
        assert len(changed) == 1
        assert changed.pop() in line
    for slug in service.slugs():
        for text in service.record_texts(slug):
            assert "Infinity" not in text


def test_scripts_without_a_seed_differ_from_one_another():
    one, two = scripted(1, 7, edits=0)[0], scripted(1, 7, edits=0)[0]
    first = one.edit_randomly(5)
    assert first == two.edit_randomly(5)
    assert first != one.edit_randomly(5)


def test_a_script_begins_with_nothing(ask):
    service = Service(seed=1)
    assert "added import" in service.edit_randomly()[0]
    assert ask(service, "/imports").json()["data"][0]["status"] == "created"


def test_a_record_moves_to_another_import_under_its_slug(service):
    here, there = service.add_import("one", [{"n": 1}, {"n": 2}]), service.add_import("two", [{"n": 3}])
    moved, stays = service.record_slugs(here)
    service.move_row(here, moved, there)
    assert list(service.record_slugs(here)) == [stays]
    assert [(r["slug"], r["data"], r["sort"]) for r in service.records(there)][1:] == [(moved, {"n": 1}, 1)]
    assert [shown(service, slug)["row_count"] for slug in (here, there)] == [1, 2]
    assert shown(service, here)["updated_at"] == shown(service, there)["updated_at"]
    service.edit_row(there, moved, {"n": 4})
    service.move_row(there, moved, here)
    assert [(r["slug"], r["data"], r["sort"]) for r in service.records(here)] == [
        (stays, {"n": 2}, 1),
        (moved, {"n": 4}, 2),
    ]
    with pytest.raises(KeyError):
        service.delete_row(there, moved)
    service.delete_row(here, moved)
    with pytest.raises(ValueError, match="whole text"):
        service.move_row(here, service.add_raw_record(here, "7"), there)
