"""Names: readable, distinct, stable, never renamed by dlt, never a system column or a variant."""

import json
import re
import subprocess
import sys

import pytest
from dlt.common.normalizers.naming.snake_case import NamingConvention
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.transform.naming import (
    SYSTEM_COLUMNS,
    VARIANTS,
    VERSION_COLUMNS,
    column_name,
    decode_keys,
    display_path,
    encode_keys,
    table_name,
)

KEYS = st.lists(
    st.one_of(
        st.text(max_size=12),
        st.text(st.characters(categories=["Cs", "Cc", "Zs", "So", "Lo", "Pc", "Nd"]), max_size=4),
        st.sampled_from(["", " ", "_", "__", "a", "A", "a_b", "a__b", "a-b", "v_text", "x__v_text", "1", "_dlt_id"]),
        st.text("aB_ 9", min_size=40, max_size=80),
    ),
    min_size=1,
    max_size=3,
).map(tuple)
DLT = NamingConvention(max_length=63)
HASH = r"_[0-9a-f]{8}"


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        (("email",), "email"),
        (("Full Name",), "full_name"),
        (("camelCase",), "camel_case"),
        (("HTTPServer",), "http_server"),
        (("价格",), "jia_ge"),
        (("Größe (cm)",), "grosse_cm"),
        (("имя",), "imya"),
        (("😀",), "grinning"),
        (("2024",), "_2024"),
        (("_id",), "_id"),
        (("trailing_",), "trailing"),
        (("select",), "select"),
        (("a.b-c/d",), "a_b_c_d"),
        (("%",), "percent_sign"),
        (("address", "city"), "address__city"),
        (("a", "2024", "Q1"), "a___2024__q1"),
        (("a__b",), "a_b"),
        (("_dlt_load",), "dlt_load"),
    ],
)
def test_readable(keys: tuple[str, ...], name: str) -> None:
    assert column_name(keys, set()) == name
    assert DLT.normalize_path(name) == name


@pytest.mark.parametrize("key", ["", " ", "\t\n", "___", "\x00", "\ud800", "\u200b\u0300"])
def test_nothing_to_read_still_has_a_name(key: str) -> None:
    name = column_name((key,), set())
    assert name[:1].isalpha()
    assert name == column_name((key,), set())


@pytest.mark.parametrize("keys", [("x", "was_1"), ("x", "v_text"), ("was_12", "was_12")])
def test_no_column_is_called_like_another_form_of_one(keys: tuple[str, ...]) -> None:
    """History tables keep values of earlier types in `x__was_1`, and take a column of that name for it."""
    assert re.fullmatch(f".*{HASH}", column_name(keys, set()))


def test_blank_keys_differ() -> None:
    names = [column_name((key,), set()) for key in ("", " ", "  ", "\t")]
    assert len(set(names)) == 4
    assert all(name.startswith("blank_") for name in names)


def test_a_taken_name_gets_a_hash_of_the_exact_keys() -> None:
    second, third = column_name(("a-b",), {"a_b"}), column_name(("a b",), {"a_b"})
    assert second.startswith("a_b_")
    assert third.startswith("a_b_")
    assert second != third
    assert column_name(("a b",), {"a_b", third}) not in {"a_b", third}


@pytest.mark.parametrize("system", sorted({*SYSTEM_COLUMNS, *VERSION_COLUMNS}))
def test_system_columns_cannot_be_taken(system: str) -> None:
    assert column_name((system,), set()) != system
    assert column_name((system.upper(),), set()) != system


@pytest.mark.parametrize("keys", [("price__v_text",), ("price", "v_text"), ("p", "v_double"), ("a", "_v_text")])
def test_no_field_looks_like_a_variant(keys: tuple[str, ...]) -> None:
    assert not column_name(keys, set()).endswith(VARIANTS)


def test_a_name_whose_variant_is_taken_is_not_used() -> None:
    assert column_name(("price",), {"price__v_text"}) != "price"


def test_long_keys_keep_room_for_the_variants() -> None:
    keys = [("customer " * 40 + end,) for end in "ab"]
    names = [column_name(each, set()) for each in keys]
    assert names[0] != names[1]
    assert all(len(name) + len("__v_double") <= 63 for name in names)
    assert all(name.startswith("customer_customer_") for name in names)


@settings(deadline=None, max_examples=200)
@given(st.lists(KEYS, max_size=12, unique=True))
def test_any_keys_have_distinct_names_that_dlt_leaves_alone(paths: list[tuple[str, ...]]) -> None:
    taken: set[str] = set()
    for keys in paths:
        name = column_name(keys, taken)
        assert name == column_name(keys, set(taken))
        for physical in (name, *(name + variant for variant in VARIANTS)):
            assert DLT.normalize_path(physical) == physical
            assert physical not in SYSTEM_COLUMNS
            assert physical not in taken
            taken.add(physical)


@settings(deadline=None, max_examples=100)
@given(KEYS)
def test_keys_have_one_exact_text(keys: tuple[str, ...]) -> None:
    assert decode_keys(encode_keys(keys)) == keys
    assert encode_keys(keys).isascii()
    display_path(keys).encode()


def test_display_path() -> None:
    assert display_path(("address", "city")) == "address.city"
    assert display_path(("\ud800",)) == "\\ud800"


def test_names_are_the_same_on_another_machine() -> None:
    keys = [("",), ("价" * 60, "x"), ("_sort",)]
    script = (
        "import json; from connector.transform.naming import column_name;"
        f"print(json.dumps([column_name(tuple(k), set()) for k in json.loads({json.dumps(keys)!r})]))"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, env={"PYTHONHASHSEED": "7"})
    assert json.loads(out.stdout) == [column_name(each, set()) for each in keys]


def test_tables() -> None:
    taken = {"records_customers": "t-1"}
    assert table_name("Customers", "t-1", {}) == "records_customers"
    assert table_name("Renamed", "t-1", taken) == "records_customers"
    other = table_name("customers", "t-2", taken)
    assert other.startswith("records_customers_")
    assert table_name(None, None, taken) == "records_untemplated"
    assert table_name(None, "t-3", taken) == "records_t_3"
    foreign = {"records_orders", "records_untemplated"}
    assert table_name("Orders", "t-4", taken, foreign).startswith("records_orders_")
    untemplated = table_name(None, None, taken, foreign)
    assert untemplated.startswith("records_untemplated_")
    assert table_name(None, None, {untemplated: ""}, foreign) == untemplated


@pytest.mark.parametrize("name", ["untemplated", "Untemplated!", "", "😀", "价格" * 50, "imports", "3D Models", "a__b"])
def test_any_template_name_gives_a_table(name: str) -> None:
    table = table_name(name, "slug-1", {})
    assert table != "records_untemplated"
    assert table.startswith("records_")
    assert len(table) <= 50
    assert DLT.normalize_table_identifier(table) == table
    assert table_name(name, "slug-2", {table: "slug-1"}) != table
