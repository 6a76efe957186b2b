"""Flattening by example: each rule of the types once, in Arrow, with its counts."""

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from connector.transform.flatten import FieldCount, Flattened, flatten, leaf_values
from connector.transform.json_rows import read_exactly
from connector.transform.members import MOST_WITH_VARIANTS, Members, flatten_members
from connector.transform.row_limits import Limits
from connector.transform.schema import TableSchema, arrow_type

EMPTY = TableSchema("records_t")


def run(*rows: str, schema: TableSchema = EMPTY, hints: Mapping[str, str] = {}, nul: bool = False) -> Flattened:
    return flatten([row.encode() for row in rows], schema, hints, nul_safe=nul)


def cells(flat: Flattened) -> dict[str, list[Any]]:
    return {name: column.to_pylist() for name, column in flat.columns.items()}


def typed(**types: str) -> TableSchema:
    """A schema whose fields have these types already."""
    hints = dict(types)
    sample = {"bigint": "1", "double": "0.5", "bool": "true", "text": '"x"', "json": "[]"}
    row = ",".join(f'"{name}":{sample.get(kind, chr(34) + "?" + chr(34))}' for name, kind in types.items())
    schema = run("{" + row + "}", hints=hints).schema
    assert {field.column: field.type for field in schema.fields.values()} == types
    return schema


def test_plain_values_get_plain_columns() -> None:
    flat = run('{"a":1,"b":0.5,"c":true,"d":"x","e":[1,2]}', '{"a":null,"d":""}')
    assert cells(flat) == {"a": [1, None], "b": [0.5, None], "c": [True, None], "d": ["x", ""], "e": ["[1,2]", None]}
    types = [column.type for column in flat.columns.values()]
    assert types == [pa.int64(), pa.float64(), pa.bool_(), pa.string(), pa.string()]
    assert {field.column: field.type for field in flat.schema.fields.values()} == {
        "a": "bigint",
        "b": "double",
        "c": "bool",
        "d": "text",
        "e": "json",
    }
    assert flat.counts["a",] == FieldCount(1, 0)
    assert flat.counts["d",] == FieldCount(2, 0)


def test_objects_flatten_to_three_levels_of_keys() -> None:
    flat = run('{"a":{"b":{"c":1,"d":{"e":0.10}},"x":"y"}}')
    assert cells(flat) == {"a__b__c": [1], "a__b__d": ['{"e":0.10}'], "a__x": ["y"]}
    assert flat.schema.fields["a", "b", "d"].type == "json"


def test_a_path_can_be_value_and_object() -> None:
    flat = run('{"a":"text"}', '{"a":{"b":1}}', '{"a":{}}', '{"a":null}')
    assert cells(flat) == {"a": ['"text"', None, "{}", None], "a__b": [None, 1, None, None]}
    flat = run('{"a":"text"}', '{"a":{"b":1}}', '{"a":{}}', '{"a":"more"}')
    assert cells(flat) == {
        "a": ["text", None, None, "more"],
        "a__v_text": [None, None, "{}", None],
        "a__b": [None, 1, None, None],
    }


def test_no_rows_and_rows_without_fields() -> None:
    assert cells(run()) == {}
    assert cells(run("{}", "{}")) == {}


def test_a_field_of_nulls_has_a_name_but_no_column() -> None:
    flat = run('{"a":null}', "{}")
    assert cells(flat) == {}
    assert flat.schema.fields["a",].type is None
    assert flat.counts["a",] == FieldCount(0, 0)
    later = run('{"a":7}', schema=flat.schema)
    assert cells(later) == {"a": [7]}


def test_null_where_others_have_an_object() -> None:
    both = run('{"a":null}', '{"a":{"b":1}}')
    assert both.schema.fields["a",].type is None
    assert ("a",) not in run("{}", '{"a":{"b":1}}').schema.fields


@pytest.mark.parametrize(
    ("literal", "stored"),
    [
        ("9223372036854775807", {"n": [9223372036854775807]}),
        ("-9223372036854775808", {"n": [-9223372036854775808]}),
        ("9223372036854775808", {"n": [None], "n__v_text": ["9223372036854775808"]}),
        ("1" + "0" * 30, {"n": [None], "n__v_text": ["1" + "0" * 30]}),
        ("9" * 6000, {"n": [None], "n__v_text": ["9" * 6000]}),
        ("1.5", {"n": [None], "n__v_double": [1.5]}),
        ("1.0", {"n": [None], "n__v_double": [1.0]}),
        ("1e400", {"n": [None], "n__v_text": ["1e400"]}),
        ("1E-400", {"n": [None], "n__v_text": ["1E-400"]}),
        ("0.1234567890123456789", {"n": [None], "n__v_text": ["0.1234567890123456789"]}),
        ('"7"', {"n": [None], "n__v_text": ["7"]}),
        ("true", {"n": [None], "n__v_text": ["true"]}),
        ("[1.10]", {"n": [None], "n__v_text": ["[1.10]"]}),
        ("{}", {"n": [None], "n__v_text": ["{}"]}),
        ('""', {"n": [None]}),
    ],
)
def test_what_meets_a_bigint_column(literal: str, stored: dict[str, list[Any]]) -> None:
    flat = run(f'{{"n":{literal}}}', schema=typed(n="bigint"))
    assert cells(flat) == stored
    conflicts = len(stored) - 1
    assert flat.counts["n",] == FieldCount(0 if literal == '""' else 1, conflicts)
    field = flat.schema.fields["n",]
    assert (field.has_text, field.has_double) == ("n__v_text" in stored, "n__v_double" in stored)


@pytest.mark.parametrize(
    ("literal", "stored"),
    [
        ("1.5", 1.5),
        ("0.10", 0.1),
        ("-0.0", -0.0),
        ("1e-300", 1e-300),
        ("1E5", 1e5),
        ("0.30000000000000004", 0.30000000000000004),
        ("123456789.123456789", None),
        ("0.1000000000000000055511151231257827", None),
        ("1e400", None),
        ("1e99999999999999999999", None),
        ("5", 5.0),
        ("9007199254740992", 2.0**53),
        ("9007199254740993", None),
        ("1152921504606847000", None),
        ("1152921504606846976", 2.0**60),
        ("18446744073709551616", None),
        ('"1.5"', None),
        ("false", None),
    ],
)
def test_what_meets_a_double_column(literal: str, stored: float | None) -> None:
    expected = {"n": [stored]} if stored is not None else {"n": [None], "n__v_text": [literal.strip('"')]}
    for row in (f'{{"n":{literal}}}', f'{{"n":{literal},"s":"\\ud800"}}'):
        assert {k: v for k, v in cells(run(row, schema=typed(n="double"))).items() if k != "s"} == expected
    beside = cells(run(f'{{"n":{literal}}}', '{"n":0.25}', '{"n":3}', "{}", schema=typed(n="double")))
    assert beside["n"] == [stored, 0.25, 3.0, None]


@pytest.mark.parametrize("literal", ["5", "1.50", "-0", "1e400", "true", "12345678901234567890123"])
def test_a_text_column_takes_every_scalar_as_its_json_text(literal: str) -> None:
    flat = run(f'{{"t":{literal}}}', '{"t":""}', schema=typed(t="text"))
    assert cells(flat) == {"t": [literal, ""]}
    assert flat.counts["t",] == FieldCount(2, 1, kept_rows=(0,))


@pytest.mark.parametrize("literal", ["[1,-0]", '{"k":1.50}', "{}"])
def test_arrays_and_objects_beside_text_go_to_its_variant(literal: str) -> None:
    flat = flatten([f'{{"a":{{"b":{{"t":{literal}}}}}}}'.encode(), b'{"a":{"b":{"t":""}}}'], EMPTY, {"a.b.t": "text"})
    assert cells(flat) == {"a__b__t": [None, ""], "a__b__t__v_text": [literal, None]}
    assert flat.counts["a", "b", "t"] == FieldCount(2, 1)


def test_minus_zero_keeps_its_sign() -> None:
    rows = ('{"i":-0,"j":[-0, 0],"d":-0,"s":"-0,"}', '{"i":1,"j":[],"d":0.5,"s":"x"}')
    flat = run(*rows, schema=typed(i="bigint", j="json", d="double", s="text"))
    assert cells(flat)["i"] == [None, 1]
    assert cells(flat)["i__v_text"] == ["-0", None]
    assert cells(flat)["j"] == ["[-0,0]", "[]"]
    assert str(cells(flat)["d"][0]) == "-0.0"
    assert cells(flat)["s"] == ["-0,", "x"]


def test_anything_fits_a_json_column() -> None:
    values = ["[1.10,1e400]", '"x"', "5", "0.10", "true", "{}", "123456789012345678901234567890", '""', '["é\\n"]']
    flat = run(*(f'{{"j":{value}}}' for value in values), '{"j":null}', schema=typed(j="json"))
    assert cells(flat) == {"j": [*values, None]}
    assert flat.counts["j",] == FieldCount(len(values), 0)


def test_key_order_of_deep_objects_stays() -> None:
    assert cells(run('{"j":[{"z":1,"a":2,"m":{"y":0.0,"b":1}}]}')) == {"j": ['[{"z":1,"a":2,"m":{"y":0.0,"b":1}}]']}


def test_the_last_of_equal_keys_counts() -> None:
    assert cells(run('{"a":1,"a":2}', '{"a":1,"a":3,"s":"\\ud800"}'))["a"] == [2, 3]


def test_the_type_of_the_first_batch_stays() -> None:
    first = run('{"a":1}')
    second = run('{"a":"x"}', '{"a":"y"}', schema=first.schema)
    assert cells(second) == {"a": [None, None], "a__v_text": ["x", "y"]}
    assert second.columns["a"].type == pa.int64()
    assert second.counts["a",] == FieldCount(2, 2)
    third = run('{"a":2}', schema=second.schema)
    assert third.schema == second.schema


def test_lone_surrogates_are_escaped_and_reversible() -> None:
    flat = run('{"a":"x\\ud800\\\\y"}', '{"a":"\\ud83d\\ude00"}', '{"a":"\\\\ud800"}', '{"j":["\\udc00",1.10]}')
    assert cells(flat)["a"] == ["x\\ud800\\\\y", "😀", "\\ud800", None]
    stored = cells(flat)["j"][3]
    assert stored == '["\\\\udc00",1.10]'
    assert json.loads(stored)[0] == "\\udc00"


def test_nul_is_kept_or_escaped_as_the_destination_needs() -> None:
    rows = ('{"a":"x\\u0000y","j":["\\u0000"],"n":1}', '{"n":"\\u0000"}')
    assert cells(run(*rows))["a"] == ["x\0y", None]
    assert cells(run(*rows))["j"] == ['["\\u0000"]', None]
    safe = cells(run(*rows, nul=True))
    assert safe["a"] == ["x\\u0000y", None]
    assert safe["j"] == ['["\\\\u0000"]', None]
    assert all("\0" not in (cell or "") for name in ("a", "j", "n__v_text") for cell in safe.get(name, []))


def test_keys_of_any_kind() -> None:
    keys = ["", " ", "A", "a", "价格", "_sort", "\0", "select", "a__v_text", "k" * 300]
    flat = run(json.dumps({key: index for index, key in enumerate(keys)}), '{"\\ud800":99}')
    assert len(flat.columns) == len(keys) + 1
    for index, key in enumerate([*keys]):
        assert cells(flat)[flat.schema.fields[key,].column][0] == index
    assert cells(flat)[flat.schema.fields["\ud800",].column] == [None, 99]


@pytest.mark.parametrize("depths", [range(800, 1001), [50_000]])
def test_depth_costs_no_stack(depths: Sequence[int]) -> None:
    """Among the first are depths that can just be read but not be written back."""
    for depth in depths:
        nested = "[" * depth + "7" + "]" * depth
        assert cells(run(f'{{"a":{nested},"b":1}}')) == {"a": [nested], "b": [1]}


def test_what_is_no_object_is_refused() -> None:
    for row in ("[1]", "{", '{"a":}', '{"a":[}', '{"a":tru}', '{"a" 1}'):
        with pytest.raises(ValueError, match=r"JSON|Expecting"):
            run(row)


@pytest.mark.parametrize(
    ("hint", "literal", "stored"),
    [
        ("date", '"2024-01-31"', dt.date(2024, 1, 31)),
        ("date", '"2024-02-30"', None),
        ("date", '"2024-01-31T00:00:00"', None),
        ("date", '"20240131"', None),
        ("date", '"31.01.2024"', None),
        ("date", "20240131", None),
        ("timestamp", '"2024-01-31T10:00:00Z"', dt.datetime(2024, 1, 31, 10, tzinfo=dt.UTC)),
        ("timestamp", '"2024-01-31 10:00"', dt.datetime(2024, 1, 31, 10, tzinfo=dt.UTC)),
        ("timestamp", '"2024-01-31T10:00:00.5+02:00"', dt.datetime(2024, 1, 31, 8, 0, 0, 500000, tzinfo=dt.UTC)),
        ("timestamp", '"2024-01-31T10:00:00.123456000"', dt.datetime(2024, 1, 31, 10, 0, 0, 123456, tzinfo=dt.UTC)),
        ("timestamp", '"2024-01-31T10:00:00.1234567Z"', None),
        ("timestamp", '"0001-01-01T00:00:00+02:00"', None),
        ("timestamp", '"2024-01-31T25:00:00Z"', None),
        ("timestamp", '"2024-01-31T10:15.5"', None),  # half a minute, not half a second
        ("timestamp", '"2024-01-31"', None),
        ("timestamp", "1706695200", None),
        ("decimal(10,2)", "12.5", Decimal("12.50")),
        ("decimal(10,2)", '"12.50"', Decimal("12.50")),
        ("decimal(10,2)", "1e2", Decimal("100.00")),
        ("decimal(10,2)", "12.505", None),
        ("decimal(10,2)", "12345678901", None),
        ("decimal(10,2)", "1e999999999999999999999", None),
        ("decimal(10,2)", '"1,50"', None),
        ("decimal(10,2)", "true", None),
        ("decimal(38,0)", "9" * 38, Decimal("9" * 38)),
        ("bigint", '"42"', 42),
        ("bigint", '"042"', None),
        ("bigint", '" 42"', None),
        ("bigint", '"-0"', None),
        ("bigint", '"99999999999999999999"', None),
        ("bigint", '"٤"', None),
        ("double", '"1.5"', 1.5),
        ("double", '"5"', 5.0),
        ("double", '"NaN"', None),
        ("double", '"1e400"', None),
        ("bool", '"true"', True),
        ("bool", '"false"', False),
        ("bool", '"True"', None),
        ("bool", "1", None),
        ("text", "0.10", "0.10"),
        ("text", "true", "true"),
        ("text", "123456789012345678901234567890", "123456789012345678901234567890"),
        ("text", "[1]", None),
        ("json", '"x"', '"x"'),
        ("json", "0.10", "0.10"),
    ],
)
def test_hints(hint: str, literal: str, stored: Any) -> None:
    for hints in ({"When_What": hint}, {"when_what": hint}):
        flat = run(f'{{"When_What":{literal}}}', '{"When_What":""}', "{}", hints=hints)
        expected_blank = {"text": "", "json": '""'}.get(hint)
        column = flat.columns["when_what"]
        assert column.type == arrow_type(hint)
        assert column.to_pylist() == [stored, expected_blank, None]
        assert flat.schema.fields["When_What",].type == hint
        blank = expected_blank is not None
        assert flat.counts["When_What",] == FieldCount(1 + blank, stored is None)
        if stored is None:
            assert cells(flat)["when_what__v_text"] == [literal.strip('"'), None, None]
        else:
            assert len(flat.columns) == 1


def test_a_hint_by_path_reaches_a_nested_field() -> None:
    assert cells(run('{"a":{"On":"2024-01-31"}}', hints={"a.On": "date"})) == {"a__on": [dt.date(2024, 1, 31)]}


def test_a_hint_does_not_change_a_stored_type() -> None:
    flat = run('{"d":"2024-01-31"}', schema=typed(d="text"), hints={"d": "date"})
    assert cells(flat) == {"d": ["2024-01-31"]}


def test_without_the_hint_strings_are_not_read_as_numbers_any_more() -> None:
    schema = run('{"n":"42"}', hints={"n": "bigint"}).schema
    assert cells(run('{"n":"43"}', schema=schema)) == {"n": [None], "n__v_text": ["43"]}


def test_a_column_left_by_a_crash_keeps_its_type() -> None:
    left = TableSchema("t", {}, {"a": "bigint", "a__v_text": "text"})
    flat = run('{"a":"x"}', '{"a":"y"}', schema=left)
    assert cells(flat) == {"a": [None, None], "a__v_text": ["x", "y"]}
    named_before = TableSchema("t", run('{"a":null}').schema.fields, {"a": "bigint"})
    assert run('{"a":"x"}', schema=named_before).schema.fields["a",].type == "bigint"


def test_a_thousand_columns() -> None:
    rows = [json.dumps({f"Field {i}": i + row for i in range(1000)}) for row in range(3)]
    flat = run(*rows)
    assert len(flat.columns) == 1000
    assert cells(flat)["field_999"] == [999, 1000, 1001]
    assert run(*rows, schema=flat.schema).schema == flat.schema


def test_values_beside_one_that_is_nested_too_deep_to_parse_are_found() -> None:
    deep = "[" * 200_000 + "]" * 200_000
    found = {keys: list(values) for keys, values in leaf_values([f'{{"a":{deep},"b":1}}'.encode()], EMPTY)}
    assert found[("b",)] == [1]
    assert found[("a",)] == [deep]


@pytest.mark.parametrize("text", ['{"a":[1', '{"a":[1}', '{"a":[{1:2}]}', '{"a":[{"b" 2}]}', '{"a":[tru]}'])
def test_text_that_ends_within_a_container_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not JSON"):
        read_exactly(text.encode())


@pytest.mark.parametrize("most", [None, 1017])
@pytest.mark.parametrize("fits", [True, False])
def test_metadata_gets_a_variant_where_the_table_has_room_for_one(fits: bool, most: int | None) -> None:
    others = (most or MOST_WITH_VARIANTS) - (2 if fits else 1)

    def flat(text: str, known: TableSchema, others: int) -> Members:
        names = {f"c{n}" for n in range(others)}
        rows = [{"metadata": text.encode()}]
        return flatten_members(rows, known, other_columns=names, row_bytes=None, most_columns=most, nul_safe=False)

    found = flat('{"n":"x"}', flat('{"n":1}', EMPTY, 0).flat.schema, others)
    assert set(found.flat.columns) == {"metadata__n", *(["metadata__n__v_text"] if fits else [])}
    assert found.overflowed == frozenset(() if fits else {"metadata"})


@pytest.mark.parametrize(("filled", "refused"), [(10, False), (11, True)])
def test_decimals_count_for_the_width_of_a_row_unless_they_are_null(filled: int, refused: bool) -> None:
    limits = Limits("a destination", columns=2_000, row_bytes=250, system_bytes=0)
    values = [Decimal("1.5")] * filled + [None] * (11 - filled)
    row = {f"c{n}": pa.array([value], pa.decimal128(12, 2)) for n, value in enumerate(values)}
    assert (limits.refusal(EMPTY, [row]) is not None) == refused
