"""Flattening by property: whatever the objects, keys, hints and batches, every leaf comes back from the columns.

The reference reads the same JSON with the standard library and keeps each number as its literal.
"""

import datetime as dt
import itertools
import json
import random
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.transform.escaping import storable
from connector.transform.flatten import Flattened, flatten
from connector.transform.schema import OVERFLOW_KEYS, Field, Keys, TableSchema, arrow_type, hint_for
from connector.transform.width import UNBOUNDED, Room


class Number(str):
    """A number literal as the row has it."""

    __slots__ = ()


LITERALS = st.one_of(
    st.integers().map(str),
    st.integers(2**52, 2**65).map(str),
    st.integers(0, 5).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(allow_nan=False, allow_infinity=False, places=2).map(lambda d: f"{d:f}"),
    st.sampled_from(["0.10", "1.0", "1E5", "1e400", "-1e-400", "0.1234567890123456789", "1152921504606847000"]),
    st.sampled_from(["-0.0", "-0"]),
).map(Number)
TEXTS = st.one_of(
    st.sampled_from(["", "true", "5", "0.5", "2024-01-31", "2024-01-31T10:00:00Z", "\0", "\ud800", "\\ud800"]),
    st.text(max_size=5),
    st.text(st.characters(categories=["Cs", "Cc", "So", "Po"]), max_size=3),
)
KEYS = st.one_of(st.sampled_from(["a", "b", "A", "a-b", "a_b", "a__b", "", " ", "_sort", "a__v_text", "v_text"]), TEXTS)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), LITERALS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=6,
)
ROWS = st.lists(st.dictionaries(KEYS, VALUES, max_size=4), max_size=8)
HINTS = st.dictionaries(
    st.sampled_from(["a", "b", "a_b", "a__b", "A", "a.b"]),
    st.sampled_from(
        ["date", "timestamp", "decimal(10,2)", "decimal(38,9)", "text", "bigint", "double", "bool", "json"]
    ),
    max_size=3,
)


def dump(value: Any, ascii_only: bool) -> str:
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, dict):
        members = (f"{dump(key, ascii_only)}:{dump(inner, ascii_only)}" for key, inner in value.items())
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(dump(inner, ascii_only) for inner in value) + "]"
    if isinstance(value, str):
        unpaired = any("\ud800" <= char <= "\udfff" for char in value)
        return json.dumps(value, ensure_ascii=ascii_only or unpaired)
    return json.dumps(value)


def encode(row: dict[str, Any], ascii_only: bool = True) -> bytes:
    return dump(row, ascii_only).encode()


def load(text: bytes | str) -> Any:
    """JSON with literals for numbers and pairs for objects."""
    pairs = json.JSONDecoder(parse_int=Number, parse_float=Number, object_pairs_hook=lambda p: {"": p}, strict=False)
    return pairs.decode(text.decode() if isinstance(text, bytes) else text)


def leaves(row: bytes) -> dict[Keys, Any]:
    found: dict[Keys, Any] = {}

    def walk(members: list[tuple[str, Any]], prefix: Keys) -> None:
        for name, value in dict(members).items():
            keys = (*prefix, name)
            if isinstance(value, dict) and value[""] and len(keys) < 3:
                walk(value[""], keys)
            elif value is not None:
                found[keys] = value

    walk(load(row)[""], ())
    return found


def leaves_and_nulls(row: bytes) -> set[Keys]:
    found: set[Keys] = set()

    def walk(members: list[tuple[str, Any]], prefix: Keys) -> None:
        for name, value in dict(members).items():
            keys = (*prefix, name)
            if isinstance(value, dict) and value[""] and len(keys) < 3:
                walk(value[""], keys)
            else:
                found.add(keys)

    walk(load(row)[""], ())
    return found


def escaped(value: Any, nul_safe: bool) -> Any:
    """The value with what no destination holds written as the contract says."""
    if isinstance(value, Number):
        return value
    if isinstance(value, str):
        return storable(value, nul_safe=nul_safe)
    if isinstance(value, list | tuple):
        return type(value)(escaped(inner, nul_safe) for inner in value)
    if isinstance(value, dict):
        return {"": escaped(last_of_equal(value[""]), nul_safe)}
    return value


def last_of_equal(pairs: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return list(dict(pairs).items())


def same_number(text: str, literal: str) -> bool:
    try:
        return Decimal(text) == Decimal(literal)
    except InvalidOperation:
        return False


def says(cell: Any, name: str, field: Field, leaf: Any, nul_safe: bool) -> bool:
    """Whether the cell of one of the field's columns is exactly the leaf."""
    expected = escaped(leaf, nul_safe)
    if name == field.column and field.type == "json":
        return bool(load(cell) == expected)
    if isinstance(cell, bool):
        return leaf is cell or leaf == str(cell).lower()
    if isinstance(cell, int):
        return isinstance(leaf, str) and leaf != "-0" and same_number(str(cell), leaf)
    if isinstance(cell, Decimal):
        return isinstance(leaf, str) and same_number(str(cell), leaf)
    if isinstance(cell, float):
        if leaf == "-0" and str(cell) != "-0.0":
            return False
        return isinstance(leaf, str) and (same_number(repr(cell), leaf) or Decimal(cell) == Decimal(leaf))
    if isinstance(cell, dt.datetime):
        return isinstance(leaf, str) and dt.datetime.fromisoformat(leaf).replace(tzinfo=dt.UTC) == cell
    if isinstance(cell, dt.date):
        return bool(leaf == cell.isoformat())
    if isinstance(expected, str):
        return bool(cell == expected)
    if name == field.column and field.type == "text" and not isinstance(leaf, bool):
        return False
    return bool(load(cell) == expected)


def members_at(path: Keys, rest: Any) -> list[Any]:
    """What the object in `_more` has at a path of the row; an empty object or a null is a value too."""
    for key in path:
        pairs = dict(rest[""]) if isinstance(rest, dict) else {}
        if key not in pairs:
            return []
        rest = pairs[key]
    return [rest]


def paths_of(rest: Any, prefix: Keys = ()) -> set[Keys]:
    """The paths in `_more`, down to the last level that is flattened."""
    found: set[Keys] = set()
    for name, value in rest[""]:
        keys = (*prefix, name)
        inner = isinstance(value, dict) and value[""] and len(keys) < 3
        found |= paths_of(value, keys) if inner else {keys}
    return found


def check_batch(
    rows: list[bytes], schema: TableSchema, hints: dict[str, str], nul_safe: bool, room: Room = UNBOUNDED
) -> TableSchema:
    return check_flat(rows, flatten(rows, schema, hints, nul_safe=nul_safe, room=room), schema, hints, nul_safe)


def check_flat(
    rows: list[bytes], flat: Flattened, schema: TableSchema, hints: dict[str, str], nul_safe: bool
) -> TableSchema:
    """Every leaf of the rows is in exactly one place: its column, a variant of it, or the column `_more`."""
    assert all(len(column) == len(rows) for column in flat.columns.values())
    for known in schema.fields.values():
        now = flat.schema.fields[known.keys]
        assert (now.column, now.type or "") == (known.column, known.type or now.type or "")
        assert now.has_text >= known.has_text
        assert now.has_double >= known.has_double
    types = {name: kind for field in flat.schema.fields.values() for name, kind in field.columns().items()}
    assert {name: column.type for name, column in flat.columns.items()} == {
        name: arrow_type(types[name]) for name in flat.columns
    }
    contents = {name: column.to_pylist() for name, column in flat.columns.items()}
    expected_rows = [leaves(row) for row in rows]
    rest = flat.schema.fields.get(OVERFLOW_KEYS)
    texts = [None] * len(rows) if rest is None or rest.column not in contents else contents[rest.column]
    rests = [load(text) if text is not None else {"": []} for text in texts]
    moved = [paths_of(each) for each in rests]
    for index, expected in enumerate(expected_rows):
        assert moved[index] <= leaves_and_nulls(rows[index])
        for keys in moved[index]:
            (value,) = members_at(keys, rests[index])
            assert value == escaped(expected.pop(keys, None), nul_safe), (keys, value)
    assert set(flat.counts) >= {keys for expected in expected_rows for keys in expected}
    for keys, count in flat.counts.items():
        if keys == OVERFLOW_KEYS:
            assert (count.values, count.conflicts) == (sum(text is not None for text in texts), 0)
            continue
        field = flat.schema.fields[keys]
        hinted = hint_for(field, hints) == "text"
        values = conflicts = 0
        for index, expected in enumerate(expected_rows):
            cells = {name: contents[name][index] for name in field.columns() if name in contents}
            there = {name: cell for name, cell in cells.items() if cell is not None}
            leaf = expected.get(keys)
            if leaf is None or (leaf == "" and field.type not in ("text", "json")):
                assert not there
                continue
            assert len(there) == 1, (keys, leaf, there)
            ((name, cell),) = there.items()
            assert says(cell, name, field, leaf, nul_safe), (keys, leaf, name, cell)
            values += 1
            scalar = isinstance(leaf, bool | Number)
            conflicts += name != field.column or (field.type == "text" and scalar and not hinted)
        assert (count.values, count.conflicts) == (values, conflicts)
    if nul_safe:
        assert not any("\0" in cell for column in contents.values() for cell in column if isinstance(cell, str))
    return flat.schema


@settings(deadline=None, max_examples=250)
@given(ROWS, st.lists(st.integers(0, 8), max_size=3), HINTS, st.booleans(), st.booleans())
def test_every_leaf_comes_back_in_any_split(
    objects: list[dict[str, Any]], cuts: list[int], hints: dict[str, str], nul_safe: bool, ascii_only: bool
) -> None:
    rows = [encode(each, ascii_only) for each in objects]
    bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    schema = TableSchema("records_t")
    for start, end in itertools.pairwise(bounds):
        schema = check_batch(rows[start:end], schema, hints, nul_safe)
    columns = [name for field in schema.fields.values() for name in (field.column, *field.columns())]
    assert len({field.column for field in schema.fields.values()}) == len(schema.fields)
    assert len(set(columns)) == len(schema.fields) + sum(f.has_text + f.has_double for f in schema.fields.values())
    pa.table(flatten(rows, schema, hints).columns)


def counted(flat: Flattened) -> dict[Keys, tuple[int, int, int]]:
    return {keys: (each.values, each.conflicts, each.kept) for keys, each in flat.counts.items()}


@settings(deadline=None, max_examples=120)
@given(ROWS, HINTS, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(
    objects: list[dict[str, Any]], hints: dict[str, str], shuffle: random.Random
) -> None:
    rows = [encode(each) for each in objects]
    order = list(range(len(rows)))
    shuffle.shuffle(order)
    straight = flatten(rows, TableSchema("t"), hints)
    shuffled = flatten([rows[index] for index in order], TableSchema("t"), hints)
    assert shuffled.schema == straight.schema
    assert counted(shuffled) == counted(straight)
    assert {name: column.to_pylist() for name, column in shuffled.columns.items()} == {
        name: [column.to_pylist()[index] for index in order] for name, column in straight.columns.items()
    }


@settings(deadline=None, max_examples=80)
@given(ROWS, st.integers(0, 8))
def test_a_split_finds_the_same_fields(objects: list[dict[str, Any]], cut: int) -> None:
    rows = [encode(each) for each in objects]
    whole = flatten(rows, TableSchema("t")).schema
    split = flatten(rows[cut:], flatten(rows[:cut], TableSchema("t")).schema).schema
    assert set(split.fields) == set(whole.fields)
    assert {k for k, f in split.fields.items() if f.type} == {k for k, f in whole.fields.items() if f.type}


@settings(deadline=None, max_examples=150)
@given(st.lists(st.one_of(LITERALS, st.none()), min_size=1, max_size=12))
def test_columns_of_numbers(numbers: list[str | None]) -> None:
    rows = [encode({"n": number}) for number in numbers]
    for hint in ("bigint", "double", "decimal(20,4)", "text", "json"):
        check_batch(rows, TableSchema("t"), {"n": hint}, False)
    check_batch(rows, TableSchema("t"), {}, False)


@settings(deadline=None, max_examples=200)
@given(TEXTS)
def test_what_is_escaped_can_be_read_back(spelled: str) -> None:
    text = json.loads(json.dumps(spelled))  # JSON has no two surrogates in a row that are not one character
    for nul_safe in (False, True):
        kept = storable(text, nul_safe=nul_safe)
        kept.encode()
        assert not (nul_safe and "\0" in kept)
        if kept != text:
            assert json.loads('"' + kept.replace('"', '\\"') + '"', strict=False) == text


def spelled(value: Any, blank: str, ascii_only: bool) -> str:
    """The JSON of a value with blanks between its tokens."""
    if isinstance(value, Number) or value is None or isinstance(value, bool | str):
        return dump(value, ascii_only)
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    if isinstance(value, dict):
        parts = [f"{dump(key, ascii_only)}{blank}:{blank}{spelled(v, blank, ascii_only)}" for key, v in value.items()]
    else:
        parts = [spelled(inner, blank, ascii_only) for inner in value]
    return opening + blank + f"{blank},{blank}".join(parts) + blank + closing


@given(st.lists(VALUES, max_size=3), st.sampled_from(["", " ", "\n\t"]), st.booleans())
@settings(max_examples=300)
def test_a_value_has_one_text_however_it_is_written_and_whatever_is_beside_it(
    value: list[Any], blank: str, ascii_only: bool
) -> None:
    deep = "[" * 3_000 + "]" * 3_000
    others = ["1", "-0", '"won 2-0 at home"', '"\\ud83d"', "9" * 5_000, deep]
    plain = flatten([f'{{"v":{dump(value, True)},"w":1}}'.encode()], TableSchema("t")).columns["v"].to_pylist()
    for schema in (TableSchema("t"), flatten([b'{"v":[],"w":1}'], TableSchema("t")).schema):
        for other in others:
            row = f'{{"v":{spelled(value, blank, ascii_only)},"w":{other}}}'
            assert flatten([row.encode()], schema).columns["v"].to_pylist() == plain, other
