"""Bounded tables: no upload makes more columns than there is room for, and what has none is whole in `_more`."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.extract.records import ImportRead, Verdict
from connector.load import batches
from connector.load.batches import Builder, BuiltImports
from connector.models import Import, Record, Template
from connector.settings import Settings
from connector.transform import width
from connector.transform.flatten import flatten
from connector.transform.schema import OVERFLOW_KEYS, Field, TableSchema
from connector.transform.width import NewFields, Room, TooWide, Width
from tests.transform.test_flatten_properties import ROWS, check_flat, encode, leaves_and_nulls

AT = datetime(2026, 1, 1, tzinfo=UTC)
SMALL = Width(columns=4, new_fields=2, listed=3)


class Table:
    """One typed table, to which imports come through a real `Builder`."""

    def __init__(self, bounds: Width, schema: TableSchema | None = None) -> None:
        settings = Settings.load(base_url="https://x", access_token="x")
        schemas = {} if schema is None else {"records_t": schema}
        self._builder = Builder(settings, schemas, {"records_t": "t"}, limits=None, nul_safe=False, width=bounds)

    @property
    def schema(self) -> TableSchema:
        return self._builder._schemas.get("records_t", TableSchema("records_t"))

    def take(self, *rows: bytes) -> BuiltImports:
        records = tuple(Record(f"r{n}", row, None, None, n) for n, row in enumerate(rows))
        named = Template(name="t", slug="t")
        read = Import(slug="i", row_count=len(rows), created_at=AT, updated_at=AT, status="completed", template=named)
        return self._builder.build(ImportRead(read, Verdict.complete, records))

    @property
    def columns(self) -> set[str]:
        return {name for known in self.schema.fields.values() for name in known.columns()}


def contents(built: BuiltImports) -> list[dict[str, Any]]:
    """Each row as its cells that are not null."""
    rows: list[dict[str, Any]] = []
    for each in built.rows:
        assert each.flat is not None
        columns = {name: column.to_pylist() for name, column in each.flat.columns.items()}
        rows += [{name: cells[n] for name, cells in columns.items() if cells[n] is not None} for n in range(len(each))]
    return rows


def obj(**members: Any) -> bytes:
    return json.dumps(members, separators=(",", ":")).encode()


def test_an_import_gets_so_many_columns_and_the_rest_is_one_object() -> None:
    table = Table(SMALL)
    (row,) = contents(table.take(b'{"f":1.50,"e":[1,-0],"d":{"x":null,"y":1e2},"c":"t","b":2,"a":1,"g":"\\u00e9"}'))
    assert row == {"a": 1, "b": 2, "c": "t", "d__y": 100.0, "_more": '{"f":1.50,"e":[1,-0],"d":{"x":null},"g":"é"}'}
    assert table.schema.fields[OVERFLOW_KEYS] == Field(OVERFLOW_KEYS, "_more", "json")
    assert table.schema.overflowed == {("e",), ("f",), ("d", "x")}
    assert table.schema.closed


def test_a_field_keeps_its_column_and_one_without_never_gets_any() -> None:
    table = Table(Width(columns=10, new_fields=2, listed=100))
    table.take(obj(a=1))
    table.take(obj(b=1, c=2, d=3))
    assert table.columns == {"a", "b", "c", "_more"}
    (row,) = contents(table.take(obj(a=5, b=6, d=7, e=8)))
    assert row == {"a": 5, "b": 6, "e": 8, "_more": '{"d":7}'}
    assert table.schema.overflowed == {("d",)}


def test_a_table_with_more_such_fields_than_are_remembered_is_closed() -> None:
    table = Table(SMALL)
    table.take(obj(a=1))
    table.take(obj(**{f"k{n}": n for n in range(9)}))
    assert len(table.schema.overflowed) == SMALL.listed
    assert table.columns == {"a", "k0", "k1", "_more"}
    assert contents(table.take(obj(a=1, new=2))) == [{"a": 1, "_more": '{"new":2}'}]
    assert len(table.schema.overflowed) == SMALL.listed


def test_the_fields_of_most_rows_get_the_columns() -> None:
    rows = [obj(**{f"a{n}": n, "z": 1, "y": None}) for n in range(6)]
    for some in (rows, rows[::-1]):
        table = Table(Width(columns=2, new_fields=2, listed=100))
        with mock.patch.object(batches, "MOST_BYTES", 30):  # several batches
            table.take(*some)
        assert table.columns == {"z", "a0", "_more"}


def test_a_variant_without_room_goes_to_the_rest_of_its_row() -> None:
    table = Table(Width(columns=3, new_fields=3, listed=9))
    table.take(obj(a=1, b=2))
    first = contents(table.take(b'{"a":0.5,"b":"x"}', b'{"a":1,"b":[2]}'))
    assert first == [{"a__v_double": 0.5, "_more": '{"b":"x"}'}, {"a": 1, "_more": '{"b":[2]}'}]
    assert contents(table.take(b'{"a":"t","b":3}')) == [{"b": 3, "_more": '{"a":"t"}'}]
    assert table.columns == {"a", "b", "a__v_double", "_more"}


def test_a_variant_of_an_earlier_piece_takes_the_room_of_a_later_field() -> None:
    table = Table(Width(columns=3, new_fields=0, listed=1))
    with mock.patch.object(batches, "MOST_BYTES", 1):
        table.take(b'{"a":{"a":null,"b":{"a":-0}}}', b'{"a":null}')
    assert table.schema.width == 3


def test_a_key_of_that_name_has_a_column_of_another() -> None:
    table = Table(Width(columns=2, new_fields=2, listed=9))
    (row,) = contents(table.take(obj(_more=1, a=2, b=3)))
    assert row["_more"] == '{"b":3}'
    assert row[table.schema.fields["_more",].column] == 1


def test_a_field_that_an_earlier_version_called_so_keeps_its_column() -> None:
    before = TableSchema("records_t", {("_more",): Field(("_more",), "_more", "text")}, {"_more": "text"})
    (row,) = contents(Table(Width(columns=1, new_fields=1, listed=9), before).take(obj(_more="x", b=3)))
    assert row == {"_more": "x", "_more_2": '{"b":3}'}


def test_a_column_that_a_crashed_run_left_is_taken_over() -> None:
    left = TableSchema("t", {}, {"_more": "json"})
    assert left.with_overflow_column().fields[OVERFLOW_KEYS].column == "_more"
    assert TableSchema("t", {}, {"_more": "bigint"}).with_overflow_column().fields[OVERFLOW_KEYS].column == "_more_2"


def test_the_variants_that_a_crashed_run_left_beside_a_column_take_room_too() -> None:
    left = {"a": "bigint", "a__v_text": "text", "a__v_double": "double", "b": "bigint"}
    table = Table(Width(columns=3, new_fields=3, listed=9), TableSchema("records_t", {}, left))
    (row,) = contents(table.take(obj(a=1, b=2, c=3)))
    assert row == {"a": 1, "_more": '{"b":2,"c":3}'}
    assert table.schema.width == 3


def test_a_wider_table_of_an_earlier_version_keeps_all_of_its_columns() -> None:
    before = flatten([obj(**{f"k{n}": n for n in range(9)})], TableSchema("records_t")).schema
    table = Table(SMALL, before)
    (row,) = contents(table.take(obj(k8=1, new=2)))
    assert row == {"k8": 1, "_more": '{"new":2}'}


def test_more_new_fields_than_are_counted_rank_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(width, "MOST_COUNTED", 10)
    rows: list[dict[str, Any]] = [{f"k{n:02}": 1, "z": 1} for n in range(30)]
    found = []
    for some in (rows, rows[::-1]):
        new = NewFields(TableSchema("t"), 4)
        new.add(some)
        found.append(new.ranked())
    assert found == [[("k00",), ("k01",), ("k02",), ("k03",)]] * 2


def test_nothing_is_made_of_rows_that_are_too_wide() -> None:
    with pytest.raises(TooWide):
        flatten([obj(a=1, b=2, c=3)], TableSchema("t"), room=Room(2))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(ROWS, min_size=1, max_size=3),
    st.integers(0, 6),
    st.integers(0, 3),
    st.integers(1, 4),
    st.integers(1, 120),
    st.randoms(use_true_random=False),
)
def test_every_leaf_comes_back_from_a_bounded_table(
    imports: list[list[dict[str, Any]]],
    columns: int,
    new_fields: int,
    listed: int,
    most_bytes: int,
    dice: random.Random,
) -> None:
    """`most_bytes` cuts an import into pieces, or not; types and variants go by the first piece that needs them."""
    bounds, whole = Width(columns, new_fields, listed), most_bytes > 60
    table, other = Table(bounds), Table(bounds)
    for objects in imports:
        rows = [row for row in map(encode, objects) if b"\\ud" not in row]  # two keys may have one escape
        before = table.schema
        with mock.patch.object(batches, "MOST_BYTES", 10_000 if whole else most_bytes):
            built = table.take(*rows)
        at = 0
        for each in built.rows:
            assert each.flat is not None
            check_flat(rows[at : at + len(each)], each.flat, before, {}, False)
            at += len(each)
        assert at == len(rows)
        after = table.schema
        for keys, known in before.fields.items():
            assert after.fields[keys].column == known.column
        assert before.overflowed <= after.overflowed
        assert not set(after.fields) & after.overflowed
        assert len(after.overflowed) <= listed
        assert after.width <= max(columns, before.width)
        new = set(after.fields) - set(before.fields) - {OVERFLOW_KEYS}
        assert len(new) <= (new_fields if before.size else columns)
        known_paths = {keys for row in rows for keys in leaves_and_nulls(row)} | set(before.fields)
        assert set(after.fields) <= known_paths | {OVERFLOW_KEYS}
        other.take(*dice.sample(rows, len(rows)))
        assert not whole or other.schema == after
