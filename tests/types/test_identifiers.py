"""Table names: whatever a template is called, within PostgreSQL's 63 bytes, and the same for ever."""

from __future__ import annotations

import json

import pytest

from connector.sandbox import Service
from connector.sandbox.catalogue import Template
from tests.types.conftest import PostgreSQL, Warehouse
from tests.types.reader import assert_cells, assert_rows, dictionary, parse

pytestmark = pytest.mark.thorough

LONGEST = 63
NAMES = [
    "t" * 300,
    "t" * 299 + "u",
    "价" * 300,
    "价格",
    "",
    " ",
    "---",
    "🎉",
    "untemplated",
    "Untemplated",
    "records",
    "Kunden (neu)",
    "kunden-neu",
    "select",
    "1",
    "_dlt_loads",
    "x__y",
    "imports",
    '"; drop table records; --',
    "\x00",
    "lone \ud800",
    "%s",
]


def test_every_template_has_a_table_of_its_own_with_a_name_that_fits(postgres: PostgreSQL) -> None:
    service = Service(seed=1)
    templates = [Template(name, f"slug-{n}") for n, name in enumerate(NAMES)]
    twins = [Template("Twin", "twin-1"), Template("Twin", "twin-2")]
    for n, template in enumerate([*templates, *twins, None]):
        service.add_import(template=template, rows=[{"n": n, "": "x" * n}])

    assert postgres.run(service).status == "succeeded"

    assert_rows(postgres, service)
    owners = postgres.tuples("SELECT DISTINCT table_name, template_slug FROM sync_imports")
    assert len({table for table, _ in owners}) == len(owners) == len(NAMES) + 3
    assert all(len(table.encode()) <= LONGEST for table in postgres.tables(""))
    assert all(len(column.encode()) <= LONGEST for table in postgres.tables() for column in postgres.columns(table))
    by_slug = {slug: table for table, slug in owners}
    assert by_slug[None] == "records_untemplated"
    assert by_slug["slug-11"] == "records_kunden_neu" or by_slug["slug-12"] == "records_kunden_neu"
    assert "records_twin" in (by_slug["twin-1"], by_slug["twin-2"])

    service.rename_template("slug-3", "prices")
    service.rename_template("twin-1", "untemplated")
    for template in (*templates, *twins):
        service.add_import(template=service._templates[template.slug], rows=[{"n": 2.5}])
    postgres.lose_working_directory()
    assert postgres.run(service).status == "succeeded"
    assert_rows(postgres, service)
    assert set(postgres.tuples("SELECT DISTINCT table_name, template_slug FROM sync_imports")) == set(owners)


def test_columns_of_three_hundred_characters_and_three_levels_fit_with_their_variants(postgres: PostgreSQL) -> None:
    service = Service(seed=1)
    path = {letter * 300: {letter * 300: {letter * 300: n}} for n, letter in enumerate("aä价")}
    other = {letter * 300: {letter * 300: {letter * 300: "text", letter * 301: 1.5}} for letter in "aä价"}
    service.add_import(template="deep", rows=[path, path, path, other])
    service.add_import(template="deep", rows=[{"a" * 300: {"a" * 300: {"a" * 300: 0.5}}}])
    assert postgres.run(service).status == "succeeded"
    assert_rows(postgres, service)
    assert all(len(column.encode()) <= LONGEST for column in postgres.columns("records_deep"))


@pytest.mark.dialect
def test_metadata_of_any_shape_is_loaded(warehouse: Warehouse) -> None:
    service = Service(seed=1)
    shapes = [
        {"": 1, "a b": "x", "a-b": "y", "ctid": 5, "x" * 300: True, "slug": "s", "_deleted_at": "no", "n": 10**30},
        {"": "text", "a b": 2, "n": 0.5, "nul": "\x00", "lone": "\ud800", "deep": {"a": {"b": {"c": {"d": 1}}}}},
        None,
        {"n": None, "only_null": None, "list": [1, "\x00"]},
    ]
    slugs = [service.add_import(template="t", rows=[{"n": 1}]) for _ in shapes]
    for slug, metadata in zip(slugs, shapes, strict=True):
        service.set_metadata(slug, metadata)
    assert warehouse.run(service).status == "succeeded"
    assert_metadata(warehouse, service)
    service.set_metadata(slugs[2], {"late": 1, "only_null": 2, "a b": [1]})
    assert warehouse.run(service).status == "succeeded"
    assert_metadata(warehouse, service)
    assert {"metadata__late", "metadata__only_null"} <= set(warehouse.columns("imports"))


def assert_metadata(warehouse: Warehouse, service: Service) -> None:
    fields = dictionary(warehouse, "imports")
    scalar = {keys[1] for keys, known in fields.items() if known["data_type"] != "json"}
    there = {row["slug"]: row for row in warehouse.rows("SELECT * FROM imports")}
    for import_ in service.imports():
        row = there[import_["slug"]]
        exact = import_["metadata"] or {}
        assert (parse(row["metadata"]) if row["metadata"] else {}) == parse(json.dumps(exact))
        columns = {name: cell for name, cell in row.items() if name.startswith("metadata__")}
        flat = {k: v for k, v in exact.items() if k in scalar and not isinstance(v, dict | list)}
        assert_cells(columns, {"metadata": parse(json.dumps(flat))} if flat else {}, fields, warehouse)
