"""Hostile keys and values, cell by cell, over three runs in which the types evolve."""

from __future__ import annotations

import json

from connector.sandbox import Service
from tests.types.conftest import Warehouse
from tests.types.hostile import CONTAINERS, FRACTIONS, KEYS, STRINGS, WHOLE
from tests.types.reader import assert_rows, dictionary


def literal(text: str) -> str:
    return json.dumps(text)


def rows_of_keys(value: str) -> list[str]:
    """All keys in one row, at the top and nested, and each in a row of its own."""
    inner = ",".join(f"{literal(key)}:{value}" for key in KEYS)
    return [f"{{{inner}}}", f'{{"top":{{{inner}}}}}'] + [f"{{{literal(key)}:{value}}}" for key in KEYS]


def mixtures() -> list[str]:
    return [*WHOLE, *FRACTIONS, *map(literal, STRINGS), *CONTAINERS, "true", "false", "null"]


def test_hostile_keys_keep_apart_over_three_runs(warehouse: Warehouse) -> None:
    service = Service(seed=1)
    service.add_import(template="keys", rows=rows_of_keys("null"))
    service.add_import(template="keys", rows=rows_of_keys("1"))
    first = warehouse.run(service)
    assert first.status == "succeeded", first.error
    assert_rows(warehouse, service)
    before = {path: row["column_name"] for path, row in dictionary(warehouse, "records_keys").items()}

    for value in ('"text"', "1.5"):
        service.add_import(template="keys", rows=rows_of_keys(value))
        tally = warehouse.run(service)
        assert tally.status == "succeeded", tally.error
        assert_rows(warehouse, service)
        names = {path: row["column_name"] for path, row in dictionary(warehouse, "records_keys").items()}
        assert names == before
    assert max(map(len, before.values())) <= 53
    assert warehouse.run(service).records_loaded == 0


def test_hostile_values_in_every_type_of_column_over_three_runs(warehouse: Warehouse) -> None:
    values = mixtures()
    service = Service(seed=2)
    kinds = {
        "int": "1",
        "float": "1.5",
        "text": '"t"',
        "bool": "true",
        "array": "[1]",
        "object": '{"k":1}',
        "late": "null",
    }
    service.add_import(template="first", rows=[{}, *(f'{{"{kind}":{value}}}' for kind, value in kinds.items())])
    service.add_import(template="mixed", rows=[f'{{"v":{value}}}' for value in values])
    assert warehouse.run(service).status == "succeeded"
    assert_rows(warehouse, service)

    service.add_import(
        template="first", rows=["{" + ",".join(f'"{kind}":{value}' for kind in kinds) + "}" for value in values]
    )
    service.add_import(template="mixed", rows=[f'{{"v":{value},"extra":{value}}}' for value in reversed(values)])
    tally = warehouse.run(service)
    assert tally.status == "succeeded", tally.error
    assert_rows(warehouse, service)

    fresh = service.add_import(
        template="first", rows=[f'{{"new {n}":{value},"late":{value}}}' for n, value in enumerate(values)]
    )
    service.add_import(template="mixed", rows=[f'{{"v":{{"v":{value}}}}}' for value in values])
    tally = warehouse.run(service)
    assert tally.status == "succeeded", tally.error
    assert_rows(warehouse, service)

    service.delete_import(fresh)
    assert warehouse.run(service).status == "succeeded"
    assert_rows(warehouse, service)
