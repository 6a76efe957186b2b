"""Imports that are built together give the tables, the schemas and the ledger of imports built one at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from connector.extract.records import ImportRead, Verdict
from connector.ledger import LedgerRow
from connector.load.batches import Builder, BuiltImports
from connector.load.data_dictionary import Catalogue, FieldTotals
from connector.load.package import Package
from connector.load.table_rows import TableRows
from connector.models import Import, Record, Template
from connector.settings import Settings
from connector.transform.row_limits import Limits
from connector.transform.schema import Keys, TableSchema
from connector.transform.width import Width
from connector.warehouse import Warehouse
from connector.warehouse.adapters.duck import Duck
from connector.warehouse.state import WarehouseState

AT = datetime(2026, 1, 1, tzinfo=UTC)
DEEP = b'{"a":' + b"[" * 5_000 + b"]" * 5_000 + b"}"
SPACED = b'{"a":[1, 2]}'  # an array that is written back without its blank

CELLS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 2**63),
    st.sampled_from([0.5, 1e300, "", "x", "7", "\0", [], [1], {}, {"b": 1}, {"b": {"c": {"d": 1}}}]),
)
ROWS = st.one_of(
    st.dictionaries(st.sampled_from("abc"), CELLS, max_size=3).map(lambda row: json.dumps(row).encode()),
    st.sampled_from([b'{"a":1}', b'{"a":1}', b'{"a":2}', b'{"a":-0}', b'{"a":"x"}', b'{"a":"x","b":5}', DEEP, SPACED]),
)
IMPORTS = st.lists(st.tuples(st.sampled_from(["s", "t", None]), st.lists(ROWS, max_size=3)), max_size=12)
WIDTHS = st.builds(Width, columns=st.integers(1, 6), new_fields=st.integers(1, 3), listed=st.integers(1, 3))


def reads_of(imports: Sequence[tuple[str | None, Sequence[bytes]]]) -> list[ImportRead]:
    found = []
    for n, (template, rows) in enumerate(imports):
        named = None if template is None else Template(name=template, slug=template)
        import_ = Import(
            slug=f"i{n}", row_count=len(rows), created_at=AT, updated_at=AT, status="completed", template=named
        )
        records = tuple(
            Record(f"r{n}-{at}", row, at, at + n, at, b'{"x":1}' if at else None) for at, row in enumerate(rows)
        )
        found.append(ImportRead(import_, Verdict.complete, records))
    return found


@dataclass
class Loaded:
    """What a package has of imports: cells that are not null by table and row, ledger rows, and what was learnt."""

    rows: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    ledger: list[LedgerRow] = field(default_factory=list)
    schemas: Mapping[str, TableSchema] = field(default_factory=dict)
    counts: dict[tuple[str, Keys], FieldTotals] = field(default_factory=dict)
    conflicts: Mapping[str, object] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)


def loaded(all_built: Iterable[BuiltImports], builder: Builder, settings: Settings) -> Loaded:
    catalogue = Catalogue.of(WarehouseState())
    nowhere = cast("Warehouse", SimpleNamespace(traits=Duck.traits))
    package = Package("load", "run", AT, settings, WarehouseState(), catalogue, nowhere)
    found = Loaded()
    parts: list[TableRows] = []
    for built in all_built:
        parts += package.add(built, [None] * len(built.reads), [None] * len(built.reads))
    for part in [*parts, *package._flush()]:
        for row in part.rows.to_pylist():
            cells = {name: value for name, value in row.items() if value is not None}
            found.rows[part.table, row.get("slug") or row["_record_slug"]] = cells
    found.ledger = sorted(package._ledger, key=lambda row: row.slug)
    for table, typed in package._typed.items():
        found.counts |= {(table, keys): count for keys, count in typed.counts.items() if count != FieldTotals()}
    found.schemas = {table: schema for table, schema in builder._schemas.items() if schema.fields}
    found.conflicts = catalogue.text_conflicts
    found.refusals = sorted(package.refusals)
    return found


@given(IMPORTS, st.one_of(st.none(), WIDTHS), st.booleans(), st.booleans(), st.booleans())
@example([("t", [b'{"a":[1]}']), ("t", [SPACED]), ("t", [DEEP])], None, False, False, True)
@example(
    [("t", [b'{"a":"x"}']), ("t", [b'{"a":7}']), ("t", []), ("t", [b'{"a":8}', b'{"a":9}'])], None, False, False, True
)
@example(
    [("t", [b'{"a":1}']), ("t", [b'{"a":0.5}']), ("t", [b'{"a":"x"}']), ("t", [b'{"b":1}'])],
    Width(2, 1, 2),
    False,
    False,
    True,
)
@example([("t", [b'{"a":1}']), ("t", [b'{"a":2,"b":3}']), ("t", [b'{"a":2,"c":3}'])], None, True, False, False)
def test_together_is_as_one_at_a_time(
    imports: list[tuple[str | None, list[bytes]]], width: Width | None, narrow: bool, nul_safe: bool, raw: bool
) -> None:
    settings = Settings.load(base_url="http://localhost", access_token="t", raw=raw)
    limits = Limits("a narrow one", columns=9, row_bytes=8_000) if narrow else None
    one, all_ = (Builder(settings, {}, {}, limits=limits, nul_safe=nul_safe, width=width) for _ in range(2))
    expected = loaded((one.build(read) for read in reads_of(imports)), one, settings)
    assert loaded(all_.build_all(reads_of(imports)), all_, settings) == expected
    assert len(expected.ledger) == len(imports)


def test_imports_of_a_known_shape_are_one_batch() -> None:
    settings = Settings.load(base_url="http://localhost", access_token="t")
    calls: list[int] = []
    builder = Builder(settings, {}, {}, limits=None, nul_safe=False)
    flatten = builder._flatten

    def counting(texts: Any, *arguments: Any, **options: Any) -> Any:
        calls.append(len(texts.rows))
        return flatten(texts, *arguments, **options)

    builder._flatten = counting
    first = list(builder.build_all(reads_of([(template, [b'{"a":1}'] * 5) for template in "stu" * 100])))
    assert [len(built.reads) for built in first] == [1, 99] * 3
    calls.clear()
    again = list(builder.build_all(reads_of([(template, [b'{"a":2}'] * 5) for template in "stu" * 100])))
    assert [len(built.reads) for built in again] == [100] * 3
    assert calls == [500] * 3


@pytest.mark.parametrize("odd", [b'{"b":1}', b'{"a":"text"}', b'{"a":0.5}'])
def test_an_import_that_brings_something_new_splits_the_batch_by_halves(odd: bytes) -> None:
    settings = Settings.load(base_url="http://localhost", access_token="t")
    builder = Builder(settings, {}, {}, limits=None, nul_safe=False)
    list(builder.build_all(reads_of([("t", [b'{"a":1}'])])))
    plain = [("t", [b'{"a":1}'])] * 64
    found = list(builder.build_all(reads_of([*plain, ("t", [odd]), *plain[1:]])))
    assert len(found) <= 8
    assert sum(len(built.reads) for built in found) == 128
