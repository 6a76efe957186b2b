"""Generated uploads: the same for the same seed, any size for nothing, and as untidy as people's are."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
import uuid

import pytest

from connector.sandbox import TEMPLATES, Request, Service

ROWS = 400
CALLS_A_ROW = 200


@pytest.fixture(scope="module", params=sorted(TEMPLATES))
def rows(request):
    service = Service(seed=21)
    slug = service.add_generated(request.param, rows=ROWS)[0]
    return [record["data"] for record in service.records(slug)]


def leaves(value, path=()):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, (*path, "[]"))
    else:
        yield path, value


def test_no_column_is_constant(rows):
    columns: dict[tuple[str, ...], set[str]] = {}
    for row in rows:
        for path, value in leaves(row):
            columns.setdefault(path, set()).add(json.dumps(value))
    for path, values in columns.items():
        nested = any(other[: len(path)] == path and other != path for other in columns)
        assert nested or len(values) > 1 or path[-1] in ("unit", "name"), path


def test_rows_of_a_template_have_the_same_fields(rows):
    assert len({tuple(row) for row in rows}) == 1


def test_all_that_makes_uploads_hard_occurs():
    service = Service(seed=21)
    kinds: dict[object, set[type]] = {}
    values, keys = [], set()
    for template in TEMPLATES:
        for record in service.records(service.add_generated(template, rows=ROWS)[0]):
            keys |= set(record["data"])
            for path, value in leaves(record["data"]):
                values.append(value)
                kinds.setdefault((template, path), set()).add(type(value))
            kinds.setdefault("nested", set()).update(map(type, record["data"].values()))
    assert {"Größe (cm)", "E-mail ", "price €", "Nº", "", "Total", "total"} <= keys
    assert {"", None, "N/A", True} <= set(values)
    assert any({int, str} <= kind or {float, str} <= kind for kind in kinds.values())
    assert {dict, list} <= kinds["nested"]
    assert max(value for value in values if isinstance(value, int)) > 2**64
    assert any(isinstance(value, int) and 2**53 < value < 2**63 for value in values)
    assert any("山" in value for value in values if isinstance(value, str))


def test_a_row_depends_on_seed_import_and_position_only(ask):
    def page(service, slug, number):
        records = ask(service, f"/imports/{slug}/records?page={number}&per_page=50").json()["data"]
        return [record["data"] for record in records]

    one, two, other = Service(seed=1), Service(seed=1), Service(seed=2)
    slugs = one.add_generated("orders", imports=2, rows=500)
    assert slugs == two.add_generated("orders", imports=2, rows=500)
    late = page(one, slugs[1], 9)
    for number in range(1, 9):
        page(two, slugs[1], number)
    assert page(two, slugs[1], 9) == late
    elsewhere = page(other, other.add_generated("orders", imports=2, rows=500)[1], 9)
    for rows in (page(one, slugs[0], 9), elsewhere):
        assert not any(row in late for row in rows)


def test_the_same_in_another_process():
    script = (
        "import hashlib; from connector.sandbox import Service; s = Service(seed=4);"
        "s.add_generated('products', 2, 50); s.edit_randomly(20);"
        "print(hashlib.sha256(repr([s.imports(), *[list(s.record_texts(x)) for x in s.slugs()]]).encode()).hexdigest())"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(filter(None, sys.path))},
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(runs) == 1


def test_ten_million_rows_in_constant_memory_and_time(ask):
    service = Service(seed=1)
    tracemalloc.start()
    try:
        slugs = [service.add_generated(template, rows=10**7)[0] for template in TEMPLATES]
        for slug in slugs:
            for page in (1, 50_000, 99_999, 100_000):
                assert len(ask(service, f"/imports/{slug}/records?page={page}&per_page=100").json()["data"]) == 100
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2_000_000
    assert peak < 5_000_000
    assert service.imports()[0]["row_count"] == 10**7


def calls_of(ask):
    """Returns how many calls, of Python and of C, `ask` made."""
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        ask()
    finally:
        sys.setprofile(before)
    return count


def test_a_page_costs_what_its_rows_cost_wherever_it_is():
    service = Service(seed=1)
    slug = service.add_generated("orders", rows=10**7)[0]

    def cost(page, per_page):
        path = f"/api/v1/imports/{slug}/records?page={page}&per_page={per_page}"
        request = Request.of("GET", path, token="sandbox-token")
        service.handle(request)
        return calls_of(lambda: service.handle(request))

    first, last = cost(1, 100), cost(100_000, 100)
    assert 100 < first < 100 * CALLS_A_ROW
    assert last < first * 1.5
    assert cost(1, 10) < first / 4


def test_slugs_are_uuids_and_lead_back_to_rows():
    service = Service(seed=1)
    slug = service.add_generated("stock", rows=10**7)[0]
    slugs = service.record_slugs(slug)
    seen = {next(slugs) for _ in range(2000)}
    assert len(seen) == 2000
    assert {uuid.UUID(found).version for found in seen} == {4}
    assert {str(uuid.UUID(found)) for found in seen} == seen
    victim = sorted(seen)[7]
    service.delete_row(slug, victim)
    with pytest.raises(KeyError):
        service.delete_row(slug, victim)
    for stranger in (str(uuid.UUID(int=5)), victim[:-12] + "zzzzzzzzzzzz", victim[:-2], ""):
        with pytest.raises(KeyError):
            service.edit_row(slug, stranger, {})


def test_an_unknown_generator():
    with pytest.raises(ValueError, match="customers"):
        Service().add_generated("spaceships")
