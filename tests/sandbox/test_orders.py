"""The orders of lists, against sorting all of it: after any edits, every row once, in the order claimed."""

from __future__ import annotations

from random import Random
from typing import get_args

import pytest

from connector.sandbox import Service, Switches
from connector.sandbox.switches import Order

ORDERS = get_args(Order)


def edited_service(order: Order, rows: int = 90) -> tuple[Service, str]:
    service = Service(seed=11, switches=Switches(record_order=order, import_order=order))
    slug = service.add_generated("stock", rows=rows)[0]
    dice = Random(2)
    for _ in range(60):
        slugs = list(service.record_slugs(slug))
        action = dice.randrange(3)
        if action == 0 or not slugs:
            service.append_rows(slug, [{"added": dice.random()} for _ in range(dice.randrange(3))])
        elif action == 1:
            service.edit_row(slug, dice.choice(slugs), {"edited": dice.random()})
        else:
            service.delete_row(slug, dice.choice(slugs))
    return service, slug


def expected(records: list[dict], order: str) -> list[str]:
    if order == "insertion":
        return [record["slug"] for record in records]
    column, direction = order.split("_")
    in_order = sorted(records, key=lambda record: (record[f"{column}_at"], record["sort"]))
    return [record["slug"] for record in (in_order if direction == "asc" else in_order[::-1])]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("rows", [0, 1, 90])
def test_records_in_order(order, rows, read_all):
    service, slug = edited_service(order, rows)
    truth = list(service.records(slug))
    if order == "random":  # only what one request shows is consistent
        shown = read_all(service, f"/imports/{slug}/records", per_page=100)
    else:
        shown = read_all(service, f"/imports/{slug}/records")
    listed = [record["slug"] for record in shown]
    assert sorted(listed) == sorted(record["slug"] for record in truth)
    if order not in ("random", "arbitrary"):
        assert listed == expected(truth, order)
    elif rows == 90:
        assert listed != [record["slug"] for record in truth]


@pytest.mark.parametrize("order", ORDERS)
def test_imports_in_order(order, read_all):
    service = Service(seed=11, switches=Switches(import_order=order))
    slugs = service.add_generated(imports=30, rows=3)
    for place in (3, 20, 7):
        service.append_rows(slugs[place], [{"x": 1}])
    service.delete_import(slugs[5])
    truth = [{**row, "sort": place} for place, row in enumerate(service.imports())]
    listed = [row["slug"] for row in read_all(service, "/imports", per_page=100)]
    assert sorted(listed) == sorted(row["slug"] for row in truth)
    if order not in ("random", "arbitrary"):
        assert listed == expected(truth, order)
    else:
        assert listed != [row["slug"] for row in truth]


@pytest.mark.parametrize("size", [40, 4000])
def test_random_differs_at_every_request(ask, size):
    def listings(seed):
        service = Service(seed=seed, switches=Switches(record_order="random", import_order="random"))
        slug = service.add_generated(rows=size)[0]
        service.add_generated(imports=20, rows=0)
        return [
            [row["slug"] for row in ask(service, path).json()["data"]]
            for path in ("/imports", "/imports", f"/imports/{slug}/records", f"/imports/{slug}/records")
        ]

    first = listings(1)
    assert first[0] != first[1]
    assert first[2] != first[3]
    assert first == listings(1)


def test_arbitrary_is_stable_until_something_changes(read_all):
    service = Service(seed=1, switches=Switches(record_order="arbitrary", import_order="arbitrary"))
    slugs = service.add_generated(imports=20, rows=50)
    path = f"/imports/{slugs[0]}/records"
    records = [row["slug"] for row in read_all(service, path)]
    imports = [row["slug"] for row in read_all(service, "/imports")]
    assert records == [row["slug"] for row in read_all(service, path)]
    moved = records[25]
    service.edit_row(slugs[0], moved, {"x": 1})
    after = [row["slug"] for row in read_all(service, path)]
    assert after.index(moved) != 25
    assert [slug for slug in after if slug != moved] == [slug for slug in records if slug != moved]
    service.edit_row(slugs[0], moved, {"x": 2})
    again = [row["slug"] for row in read_all(service, path)]
    assert again.index(moved) != after.index(moved), "an edited row moves each time"
    later = [row["slug"] for row in read_all(service, "/imports")]
    assert later != imports
    assert sorted(later) == sorted(imports)


def test_order_of_ten_million_rows_costs_nothing(ask):
    for order in ORDERS:
        service = Service(seed=1, switches=Switches(record_order=order))
        slug = service.add_generated("customers", rows=10**7)[0]
        first = ask(service, f"/imports/{slug}/records?per_page=100").json()["data"][0]["slug"]
        service.edit_row(slug, first, {"x": 1})
        service.delete_row(slug, next(service.record_slugs(slug)))
        for page in (1, 50_000, 100_000):
            shown = ask(service, f"/imports/{slug}/records?per_page=100&page={page}").json()["data"]
            assert len(shown) == (99 if page == 100_000 else 100)
