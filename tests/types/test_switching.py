"""`raw` and `typed` off, on and changed between runs: after a succeeded run the tables asked for are complete."""

from __future__ import annotations

from typing import Any

import pytest

from connector.sandbox import Service
from tests.types.conftest import DuckDB, Warehouse
from tests.types.reader import assert_rows, raw_rows, service_rows

pytestmark = pytest.mark.thorough


def populated() -> Service:
    service = Service(seed=5)
    service.add_import(template="t", rows=[{"a": 1}, {"a": "x"}])
    service.add_import(template="u", rows=[{"b": [1]}])
    service.add_import(rows=[])
    return service


@pytest.mark.parametrize(("raw", "typed"), [(True, False), (False, True)])
def test_either_half_alone_is_a_complete_sync(duck: DuckDB, raw: bool, typed: bool) -> None:
    service = populated()
    assert duck.run(service, raw=raw, typed=typed).status == "succeeded"
    assert_rows(duck, service, raw=raw, typed=typed)
    assert duck.tables("records") == (["records"] if raw else ["records_t", "records_u"])
    service.append_rows(service.slugs()[0], [{"a": 2.5}])
    assert duck.run(service, raw=raw, typed=typed).imports_changed == 1
    assert_rows(duck, service, raw=raw, typed=typed)
    service.delete_import(service.slugs()[0])
    assert duck.run(service, raw=raw, typed=typed).status == "succeeded"
    assert_rows(duck, service, raw=raw, typed=typed)
    assert duck.run(service, raw=raw, typed=typed).records_loaded == 0


@pytest.mark.parametrize(("destination", "first"), [("postgres", {"typed": False}), ("duck", {"raw": False})])
def test_what_was_off_is_complete_once_it_is_on(
    request: pytest.FixtureRequest, destination: str, first: dict[str, Any]
) -> None:
    warehouse: Warehouse = request.getfixturevalue(destination)
    service = populated()
    warehouse.run(service, **first)
    assert warehouse.run(service).status == "succeeded"
    assert_rows(warehouse, service)
    service.requests.clear()
    assert warehouse.run(service).records_loaded == 0
    assert service.requests["records"] == 0


@pytest.mark.parametrize("second", [{"typed": False}, {"raw": False}])
@pytest.mark.dialect
def test_a_table_that_is_off_for_a_while_never_lies(duck: DuckDB, second: dict[str, Any]) -> None:
    service = populated()
    duck.run(service)
    changed, gone = service.slugs()[:2]
    service.append_rows(changed, [{"a": 3}])
    service.delete_import(gone)
    assert duck.run(service, mass_delete_limit=1, **second).status == "succeeded"
    assert_rows(duck, service, raw=second.get("raw", True), typed=second.get("typed", True))
    kept_out = raw_rows(duck) if "raw" in second else {}
    assert set(kept_out) <= set(service_rows(service)), "a row that is no more"
    assert duck.run(service).status == "succeeded"
    assert_rows(duck, service)
