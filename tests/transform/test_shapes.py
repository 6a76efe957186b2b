"""The fast way of reading rows and the general one agree, and the fast one is what regular rows take."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from connector.transform import flatten as flattening
from connector.transform.flatten import flatten
from connector.transform.schema import Keys, TableSchema
from connector.transform.struct_decoder import MOST_LEAVES, shape_of
from tests.transform.test_flatten_properties import HINTS, ROWS, encode

PLAIN: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(["a", "b", "ä"]),
    st.one_of(
        st.none(),
        st.booleans(),
        st.text(max_size=3),
        st.integers(),
        st.dictionaries(st.sampled_from(["x", "y"]), st.one_of(st.none(), st.integers(0, 9), st.just({})), max_size=2),
    ),
)


def columns(rows: list[bytes], schema: TableSchema, hints: dict[str, str]) -> tuple[pa.Table, TableSchema, Any]:
    found = flatten(rows, schema, hints)
    counts = {keys: (count.values, count.conflicts) for keys, count in found.counts.items() if count.values}
    return pa.table(dict(sorted(found.columns.items()))), found.schema, counts


@given(st.lists(PLAIN, min_size=1, max_size=5) | ROWS, st.lists(PLAIN, min_size=1, max_size=5) | ROWS, HINTS)
def test_both_ways_of_reading_agree(before: list[Any], rows: list[Any], hints: dict[str, str]) -> None:
    schema = flatten([encode(row) for row in before], TableSchema("records_t"), hints).schema
    some = [encode(row) for row in rows]

    fast, fast_schema, fast_counts = columns(some, schema, hints)
    with mock.patch.object(flattening, "shape_of", return_value=None):
        general, general_schema, general_counts = columns(some, schema, hints)

    assert fast.equals(general)
    assert fast_counts == general_counts
    assert dict(fast_schema.fields) == dict(general_schema.fields)


def paths(*names: str) -> tuple[Keys, ...]:
    return tuple(tuple(name.split(".")) for name in names)


def test_regular_rows_take_the_fast_way() -> None:
    shape = shape_of(paths("a", "b", "c.x", "c.d.y"))
    assert shape is not None

    leaves = shape.read([b'{"a":1,"b":"t","c":{"x":null,"d":{"y":[1.50]}}}', b'{"b":null}', b'{"c":{"x":null}}'])

    assert leaves is not None
    assert [(leaf.keys, leaf.kinds) for leaf in leaves] == [
        (("a",), {int}), (("b",), {str}), (("c", "d", "y"), {list}),
    ]  # fmt: skip


def test_rows_of_another_shape_are_left_to_the_general_way() -> None:
    shape = shape_of(paths("a", "c.x"))
    assert shape is not None

    for row in (
        b'{"z":1}',
        b'{"c":1}',
        b'{"c":null}',
        b'{"a":{"m":1}}',
        b'{"c":{}}',
        b'{"c":{"z":1}}',
        b'{"a":"\\ud800"}',
        b"[]",
    ):
        assert shape.read([b'{"a":1}', row]) is None, row


def test_an_object_that_is_null_in_some_rows_keeps_the_fast_way() -> None:
    shape = shape_of(paths("a", "a.b"))
    assert shape is not None

    leaves = shape.read([b'{"a":null}', b"{}", b'{"a":{"b":1}}'])

    assert leaves is not None
    assert [(leaf.keys, list(leaf.cells)) for leaf in leaves] == [(("a", "b"), [None, None, 1])]


def test_some_tables_have_no_shape() -> None:
    assert shape_of(()) is None
    assert shape_of((('5"',),)) is None
    assert shape_of(tuple((f"f{n}",) for n in range(MOST_LEAVES + 1))) is None
