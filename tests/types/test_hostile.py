"""Hostile keys and values, cell by cell, over three runs in which the types evolve."""

from __future__ import annotations

import json
import random

import pytest

from connector.sandbox import Service
from tests.types.conftest import Warehouse
from tests.types.hostile import CONTAINERS, FRACTIONS, KEYS, STRINGS, WHOLE
from tests.types.reader import assert_rows, dictionary

pytestmark = pytest.mark.thorough


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


@pytest.mark.dialect
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


LONGEST = random.Random(1).randbytes(1000).hex()  # not one letter over and over: PostgreSQL compresses keys, too
REJECTED = {
    '{"slug":"nul\\u0000","data":{"a":1}}': "slug holds a NUL character",
    f'{{"slug":"{"s" * 3000}","data":{{"a":1}}}}': "slug is longer than 2,000 bytes",
    '{"slug":"lone\\ud800","data":{"a":1}}': "slug holds half a surrogate pair",
    '{"slug":"big","sort":99999999999999999999,"data":{"a":1}}': "sort does not fit into 64 bits",
    '{"slug":"late","created_at":"9999-12-31T23:59:59-12:00","data":{"a":1}}': "created_at is not a date-time",
    '{"slug":"raw nul","data":{"a":"\x00"}}': "the record is not JSON",
    '"nul\\u0000"': "the record is not an object",
    "[" * 500 + "]" * 500: "the record is not an object",
}


def test_records_that_no_warehouse_could_hold_are_rejected_and_stop_nobody(warehouse: Warehouse) -> None:
    service = Service(seed=1)
    slug = service.add_import(template="t", rows=['{"a":1}'])
    for text in REJECTED:
        service.add_raw_record(slug, text)
    extreme = '"created_at":"0001-01-01T00:00:00Z","updated_at":"9999-12-31T23:59:59.999999Z"'
    service.add_raw_record(slug, f'{{"slug":"{LONGEST}","sort":-9223372036854775808,{extreme},"data":{{"a":2}}}}')

    tally = warehouse.run(service)

    assert (tally.status, tally.records_loaded, tally.records_rejected) == ("partial", 2, len(REJECTED))
    reasons = warehouse.tuples("SELECT reason FROM sync_rejects")
    assert sorted(reason for (reason,) in reasons) == sorted(REJECTED.values())
    years = "extract(year FROM _created_at) AS c, extract(year FROM _updated_at) AS u"
    assert warehouse.tuples(f"SELECT _sort, {years} FROM records_t WHERE a = 2") == [(-(2**63), 1, 9999)]
    assert not warehouse.pending()
