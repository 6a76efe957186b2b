"""The type lattice: how types are read, chosen and kept, and what a crash's left-over columns mean."""

import itertools
import random

import pyarrow as pa
import pytest
from msgspec import Raw

from connector.transform.casting import choose_kind
from connector.transform.json_rows import JsonText, Value
from connector.transform.schema import Field, Kind, TableSchema, arrow_type, parse_type


@pytest.mark.parametrize(
    ("text", "normal", "arrow"),
    [
        ("bigint", "bigint", pa.int64()),
        ("double", "double", pa.float64()),
        ("bool", "bool", pa.bool_()),
        ("text", "text", pa.string()),
        ("json", "json", pa.string()),
        ("date", "date", pa.date32()),
        ("timestamp", "timestamp", pa.timestamp("us", tz="UTC")),
        (" Decimal( 10 , 2 ) ", "decimal(10,2)", pa.decimal128(10, 2)),
        ("decimal", "decimal(38,9)", pa.decimal128(38, 9)),
    ],
)
def test_types(text: str, normal: str, arrow: pa.DataType) -> None:
    assert str(parse_type(text)) == normal
    assert arrow_type(normal) == arrow


@pytest.mark.parametrize("text", ["", "int", "varchar", "decimal(39,2)", "decimal(2,3)", "decimal(0,0)", "text(1,1)"])
def test_what_is_no_type_is_refused_with_its_name(text: str) -> None:
    with pytest.raises(ValueError, match=r"column type|decimal"):
        parse_type(text)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2], Kind.BIGINT),
        ([1, Raw("1.5")], Kind.DOUBLE),
        ([Raw("1.0")], Kind.DOUBLE),
        ([2**70], Kind.BIGINT),
        ([Raw("9" * 5000)], Kind.BIGINT),
        ([True], Kind.BOOL),
        (["x"], Kind.TEXT),
        ([[1]], Kind.JSON),
        ([{}], Kind.JSON),
        ([JsonText("[1]")], Kind.JSON),
        (["", ""], Kind.TEXT),
        (["", "", 1], Kind.BIGINT),
        (["a", 1], Kind.TEXT),
        ([1, True], Kind.BIGINT),
        (["a", []], Kind.JSON),
        (["a", "b", []], Kind.TEXT),
        ([1, 1, "n/a"], Kind.BIGINT),
        ([True, True, Raw("0.5"), "x"], Kind.BOOL),
    ],
)
def test_the_majority_chooses_the_type_in_any_order(values: list[Value], kind: Kind) -> None:
    orders = list(itertools.islice(itertools.permutations(values), 30))
    assert {choose_kind(order) for order in orders} == {kind}


def test_new_paths_are_named_alike_in_any_order() -> None:
    paths = [("a_b",), ("a-b",), ("a b",), ("A_B",), ("a", "b"), ("a__b",), ("",), (" ",)]
    named = TableSchema("t").with_paths(paths)
    for seed in range(10):
        shuffled = random.Random(seed).sample(paths, len(paths))
        assert TableSchema("t").with_paths(shuffled).fields == named.fields
    assert named.fields["a_b",].column == "a_b"
    assert named.fields["a", "b"].column == "a__b"
    assert len({field.column for field in named.fields.values()}) == len(paths)


def test_known_paths_keep_their_names() -> None:
    first = TableSchema("t").with_paths([("a-b",)])
    second = first.with_paths([("a_b",), ("a-b",)])
    assert first.fields["a-b",].column == "a_b"
    assert second.fields["a-b",] == first.fields["a-b",]
    assert second.fields["a_b",].column.startswith("a_b_")


def test_a_schema_is_a_value() -> None:
    physical = {"x": "text"}
    schema = TableSchema("t", {}, physical)
    schema.with_paths([("a",)])
    physical["y"] = "text"
    assert not schema.fields
    assert "y" not in schema.physical
    with pytest.raises(TypeError):
        schema.fields["a",] = Field(("a",), "a")  # type: ignore[index]


def test_a_left_over_column_gives_its_type_to_the_field_of_that_name() -> None:
    left = {"price": "decimal(10, 2)", "price__v_text": "text", "n": "bigint", "n__v_double": "double"}
    named = TableSchema("t", {}, left).with_paths([("price",), ("n",)]).fields
    assert named["price",] == Field(("price",), "price", "decimal(10,2)", has_text=True)
    assert named["n",] == Field(("n",), "n", "bigint", has_double=True)


@pytest.mark.parametrize("left", [{"a": "binary"}, {"a__v_text": "bigint"}, {"a__v_double": "text"}])
def test_a_left_over_column_of_no_type_of_ours_is_avoided(left: dict[str, str]) -> None:
    assert TableSchema("t", {}, left).with_paths([("a",)]).fields["a",].column.startswith("a_")


def test_a_column_of_a_known_field_is_not_left_over() -> None:
    known = Field(("a-b",), "a_b", "text")
    schema = TableSchema("t", {known.keys: known}, {"a_b": "text"}).with_paths([("a_b",)])
    assert schema.fields["a_b",].column != "a_b"


def test_a_rebuild_keeps_the_names_and_opens_the_types() -> None:
    known = [Field(("d",), "d", "text", has_text=True), Field(("n",), "n", "bigint"), Field(("z",), "z")]
    schema = TableSchema("t", {each.keys: each for each in known}, {"d": "text"})
    rebuilt = schema.retyped()
    assert rebuilt.fields["d",] == Field(("d",), "d")
    assert rebuilt.physical == {}


def test_the_columns_of_a_field() -> None:
    assert Field(("a",), "a").columns() == {}
    assert Field(("a",), "a", "bigint", has_text=True, has_double=True).columns() == {
        "a": "bigint",
        "a__v_text": "text",
        "a__v_double": "double",
    }
