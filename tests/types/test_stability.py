"""The same names after a restart without a working directory, and in another warehouse that read in another order."""

from __future__ import annotations

from pathlib import Path

from connector.sandbox import Service, Switches
from connector.sandbox.catalogue import Template
from tests.types.conftest import DuckDB, Warehouse
from tests.types.reader import assert_rows

KEYS = ["a b", "a-b", "a_b", "A B", "", " ", "价格", "价 格", "x" * 80, "x" * 81, "ctid", "_sort", "k__v_text", "k"]


def names(warehouse: Warehouse) -> set[tuple[str, str, str]]:
    return set(warehouse.tuples("SELECT table_name, keys, column_name FROM sync_fields"))


def populated(**switches: object) -> Service:
    service = Service(seed=4, switches=Switches(**switches))  # type: ignore[arg-type]
    for n, keys in enumerate((KEYS, KEYS[::-1], KEYS[::2], KEYS[1::2])):
        template = Template("Kunden (neu)", f"template-{n % 2}")
        service.add_import(template=template, rows=[{key: n} for key in keys])
        service.add_import(template=template, rows=[dict.fromkeys(keys, n)])
    return service


def test_a_lost_working_directory_changes_no_name(duck: DuckDB) -> None:
    service = populated()
    assert duck.run(service).status == "succeeded"
    before = names(duck)
    duck.lose_working_directory()
    for key in ("a.b", "A_B", "ctid ", "k"):
        service.append_rows(service.slugs()[0], [{key: "text"}])
    assert duck.run(service).status == "succeeded"
    assert before < names(duck)
    assert_rows(duck, service)
    again = names(duck)
    duck.lose_working_directory()
    assert duck.run(service).records_loaded == 0
    assert names(duck) == again


def test_another_warehouse_gets_the_same_names_from_another_order(duck: DuckDB, tmp_path: Path) -> None:
    """As far as names may depend on nothing else: all keys of a table that want one name come in one batch."""
    other_duck = DuckDB(tmp_path)
    service = Service(seed=4)
    for _ in range(3):
        service.add_import(template="t", rows=[dict.fromkeys(KEYS, 1), dict.fromkeys(KEYS[::-1], 2)])
    other = Service(seed=4, switches=Switches(import_order="random", record_order="random", max_per_page=1))
    for _ in range(3):
        other.add_import(template="t", rows=[dict.fromkeys(KEYS[::-1], 2), dict.fromkeys(KEYS, 1)])
    assert duck.run(service).status == other_duck.run(other, batch_rows=2).status == "succeeded"
    assert names(duck) == names(other_duck)
