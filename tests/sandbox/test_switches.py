"""Each switch, alone: what it changes, and what it leaves as it was."""

from __future__ import annotations

import gzip
import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from connector.sandbox import Request, Service, Switches

HOURS = re.compile(r"(Z|[+-]\d\d:\d\d)$")


def build(**switches):
    service = Service(seed=5, switches=Switches(**switches))
    service.add_generated("customers", imports=4, rows=60)
    return service


def fractions(texts):
    return {len(match.group(1)) if (match := re.search(r"\.(\d+)", text)) else 0 for text in texts}


def test_default_per_page(ask):
    service = build(default_per_page=9)
    assert len(ask(service, f"/imports/{service.slugs()[0]}/records").json()["data"]) == 9
    assert len(ask(build(default_per_page=3), "/imports").json()["data"]) == 3


@pytest.mark.parametrize(
    ("switches", "per_page", "status", "length"),
    [
        ({}, 60, 200, 60),
        ({}, 1000, 200, 100),
        ({"over_max": "reject"}, 100, 200, 100),
        ({"over_max": "reject"}, 101, 422, None),
        ({"max_per_page": 40}, 100, 200, 40),
        ({"max_per_page": 40}, 30, 200, 30),
        ({"max_per_page": 40, "over_max": "reject"}, 100, 200, 40),
        ({"max_per_page": 10}, None, 200, 10),
    ],
)
def test_long_pages(ask, switches, per_page, status, length):
    service = Service(switches=Switches(**switches))
    slug = service.add_generated(rows=250)[0]
    query = "" if per_page is None else f"?per_page={per_page}"
    reply = ask(service, f"/imports/{slug}/records{query}")
    assert reply.status == status
    if length is not None:
        assert len(reply.json()["data"]) == length


def test_page_zero(ask):
    first = ask(build(), "/imports?page=1").json()
    assert ask(build(page_zero="first"), "/imports?page=0").json() == first
    assert ask(build(page_zero="first"), "/imports?page=-1").status == 422
    assert ask(build(page_zero="counts"), "/imports?page=0").json() == first
    assert ask(build(page_zero="counts"), "/imports?page=1").json() != first
    assert ask(build(page_zero="reject"), "/imports?page=0").status == 422


@pytest.mark.parametrize("status", [400, 404, 410, 416, 422])
def test_pages_past_the_end(ask, status):
    service = build(past_the_end=status)
    records = f"/imports/{service.slugs()[0]}/records"
    for list_ in ("/imports", records):
        rows = len(ask(service, f"{list_}?per_page=100").json()["data"])
        assert ask(service, f"{list_}?page={rows}&per_page=1").status == 200
        assert ask(service, f"{list_}?page={rows + 1}&per_page=1").status == status
        assert ask(build(), f"{list_}?page={rows + 1}&per_page=1").json()["data"] == []
    empty = Service(switches=Switches(past_the_end=status))
    assert ask(empty, "/imports?page=1").status == 200
    assert ask(empty, "/imports?page=2").status == status


def test_no_records(ask):
    service = Service(switches=Switches(no_records=404))
    empty, full = service.add_import("customers", []), service.add_import("customers", [{"a": 1}])
    assert ask(service, f"/imports/{empty}").json()["row_count"] == 0
    assert [ask(service, f"/imports/{slug}/records").status for slug in (empty, full)] == [404, 200]


@pytest.mark.parametrize(("zone", "ends"), [("z", {"Z"}), ("offset", {"+02:00"}), ("naive", {None})])
def test_time_zones(zone, ends):
    reference = build().imports()
    shown = build(time_zone=zone).imports()
    found = {match and match.group() for row in shown if (match := HOURS.search(row["updated_at"])) or True}
    assert found == ends
    for row, other in zip(shown, reference, strict=True):
        instant = datetime.fromisoformat(row["updated_at"])
        if zone == "naive":
            instant = instant.replace(tzinfo=UTC)
        assert instant == datetime.fromisoformat(other["updated_at"])


@pytest.mark.parametrize("digits", [0, 3, 6])
def test_time_fractions(digits):
    service = build(time_fraction=digits)
    rows = [*service.imports(), *service.records(service.slugs()[0])]
    assert fractions(row["created_at"] for row in rows) == {digits}


def test_mixed_times_are_the_same_instants():
    def times(**switches):
        service = Service(seed=5, switches=Switches(**switches))
        service.add_generated(imports=80, rows=0)
        return [row["updated_at"] for row in service.imports()]

    mixed, plain = times(time_zone="mixed", time_fraction="mixed"), times()
    assert [*map(datetime.fromisoformat, mixed)] == [*map(datetime.fromisoformat, plain)]
    assert fractions(mixed) == {0, 3, 6}
    assert {found.group() for text in mixed if (found := HOURS.search(text))} == {"Z", "+02:00", "-05:00", "+05:30"}
    assert mixed == times(time_zone="mixed", time_fraction="mixed")
    by_text = [datetime.fromisoformat(text) for text in sorted(mixed)]
    assert by_text != sorted(by_text), "comparing texts must be a mistake that shows"


@pytest.mark.parametrize("name", ["metadata", "template"])
def test_optional_objects(ask, name):
    assert all(isinstance(row[name], dict) for row in build().imports())
    assert all(name not in row for row in build(**{name: "absent"}).imports())
    assert all(row[name] is None for row in build(**{name: "null"}).imports())
    assert ask(build(**{name: "null"}), "/imports").json()["data"] == build(**{name: "null"}).imports()


@pytest.mark.parametrize(("presence", "shown"), [("absent", {}), ("null", {"metadata": None})])
def test_metadata_of_a_records_reply(ask, presence, shown):
    service = build(records_metadata=presence)
    reply = ask(service, f"/imports/{service.slugs()[0]}/records").json()
    assert {name: value for name, value in reply.items() if name != "data"} == shown


@pytest.mark.parametrize("moves", [True, False])
def test_editing_a_record_moves_its_import(moves):
    service = build(edit_moves_import=moves)
    slug = service.slugs()[0]
    before = service.imports()[0]
    edited = next(iter(service.records(slug)))["slug"]
    service.edit_row(slug, edited, {"now": 1})
    record = next(iter(service.records(slug)))
    assert record["data"] == {"now": 1}
    assert record["updated_at"] > record["created_at"]
    assert (service.imports()[0]["updated_at"] > before["updated_at"]) is moves
    service.append_rows(slug, [{"b": 1}])
    assert service.imports()[0]["updated_at"] > before["updated_at"]


@pytest.mark.parametrize(("matching", "count"), [("exact", 0), ("ignored", 4), ("matches_nothing", 0)])
def test_status_filter(ask, matching, count):
    assert len(ask(build(status_filter=matching), "/imports?status=created").json()["data"]) == count


def test_gzip_only_for_those_who_accept_it():
    service = build(gzip=True)
    bearer = {"Authorization": "Bearer sandbox-token"}
    plain = service.handle(Request("GET", "/api/v1/imports", {}, bearer))
    packed = service.handle(Request("GET", "/api/v1/imports", {}, {**bearer, "Accept-Encoding": "gzip, br"}))
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert len(packed.body) < len(plain.body)
    assert gzip.decompress(packed.body) == plain.body


def page_lengths(ask, service, path, per_page=10, pages=60):
    return [len(ask(service, f"{path}?page={page}&per_page={per_page}").json()["data"]) for page in range(1, pages)]


def test_short_pages_lose_nothing(ask, read_all):
    service = Service(seed=5, switches=Switches(short_pages=0.5))
    slug = service.add_generated(rows=300)[0]
    lengths = page_lengths(ask, service, f"/imports/{slug}/records")
    last = max(place for place, length in enumerate(lengths) if length)
    assert len(set(lengths[:last])) > 3
    assert 0 not in lengths[:last]
    assert [record["sort"] for record in read_all(service, f"/imports/{slug}/records")] == list(range(300))


def test_empty_pages_lose_nothing(ask, read_all):
    service = Service(seed=5, switches=Switches(empty_middle_page=0.4))
    slug = service.add_generated(rows=300)[0]
    lengths = page_lengths(ask, service, f"/imports/{slug}/records")
    last = max(place for place, length in enumerate(lengths) if length)
    assert lengths[0] == 10
    assert lengths[:last].count(0) > 5
    assert all(one or other for one, other in pairwise(lengths[:last])), "never two empty pages in a row"
    assert [record["sort"] for record in read_all(service, f"/imports/{slug}/records")] == list(range(300))


def test_uneven_pages_of_imports(read_all):
    service = Service(seed=5, switches=Switches(empty_middle_page=0.3, short_pages=0.3))
    slugs = service.add_generated(imports=40, rows=0)
    assert [row["slug"] for row in read_all(service, "/imports")] == slugs


@pytest.mark.parametrize(
    "wrong",
    [
        {"import_order": "sideways"},
        {"time_fraction": 4},
        {"default_per_page": 0},
        {"max_per_page": 101},
        {"short_pages": 2.0},
    ],
)
def test_a_switch_that_is_none_of_its_values(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Switches(**wrong)


def test_an_own_clock(ask):
    now = datetime(2030, 1, 1, tzinfo=UTC)
    service = Service(clock=lambda: now)
    slug = service.add_import("a", [{"x": 1}])
    assert service.imports()[0]["updated_at"] == "2030-01-01T00:00:00.000000Z"
    now += timedelta(days=1)
    service.append_rows(slug, [{"x": 2}])
    assert service.imports()[0]["updated_at"] == "2030-01-02T00:00:00.000000Z"
    assert [record["updated_at"][:10] for record in service.records(slug)] == ["2029-12-31", "2030-01-02"]
