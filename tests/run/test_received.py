"""Nothing received is dropped: scalars of metadata, fields that the interface does not name, what is beside records."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import duckdb
import pytest
from dlt.common.schema import Schema

from connector.maintain.verify import verify
from connector.sandbox import Service, Switches, serve
from connector.settings import RunScope, Selection, Settings
from connector.source import importer_source
from tests.run.conftest import Warehouse

pytestmark = pytest.mark.thorough


def differences(warehouse: Warehouse, service: Service) -> list[str]:
    with serve(service) as url:
        made = Settings.load(base_url=url, access_token=service.token)
        return [each.sentence for each in verify(warehouse.pipeline(), made, deep=True).differences]


def execute(warehouse: Warehouse, sql: str) -> None:
    with duckdb.connect(str(warehouse.file)) as connection:
        connection.execute("USE importer_data")
        connection.execute(sql)


@pytest.mark.parametrize("other", [[1], {}, [{}], {"a": 1}], ids=json.dumps)
@pytest.mark.parametrize("first", [pytest.param(True, marks=pytest.mark.long), False], ids=["one batch", "array first"])
def test_a_scalar_of_metadata_has_its_column_whatever_came_first(warehouse: Warehouse, other: Any, first: bool) -> None:
    service = Service(seed=1)
    service.add_import("t", [{"a": 1}], metadata={"k": other})
    if not first:
        assert warehouse.run(service).status == "succeeded"
    service.add_import("t", [{"a": 1}], metadata={"k": 5})
    assert warehouse.run(service).status == "succeeded"
    assert warehouse.query("SELECT metadata__k FROM imports ORDER BY created_at") == [(None,), (5,)]
    assert differences(warehouse, service) == []


def test_an_array_beside_a_scalar_is_in_the_json_alone(warehouse: Warehouse) -> None:
    service = Service(seed=1)
    service.add_import("t", [], metadata={"k": 5})
    slug = service.add_import("t", [], metadata={"k": "five"})
    assert warehouse.run(service).status == "succeeded"
    service.set_metadata(slug, {"k": [1]})
    assert warehouse.run(service).status == "succeeded"
    rows = warehouse.query("SELECT metadata, metadata__k FROM imports WHERE slug = ?", slug)
    assert rows == [('{"k": [1]}', None)]
    assert differences(warehouse, service) == []


def test_fields_that_the_interface_does_not_name_are_kept(warehouse: Warehouse) -> None:
    service = Service(seed=2, switches=Switches(extra_fields=True))
    slug = service.add_import("t", [{"a": n} for n in range(3)], metadata={"k": 1})
    plain = service.add_import("t", [{"a": 1}])
    assert warehouse.run(service).status == "succeeded"
    (row,) = warehouse.rows("SELECT * FROM imports WHERE slug = ?", slug)
    assert json.loads(row["extra"]) == {"file_name": f"{slug}.csv", "uploader": {"rows": 3}}
    assert (row["extra__file_name"], row["records_metadata"]) == (f"{slug}.csv", '{"k": 1}')
    assert "extra__uploader" not in row
    extras = [e for (e,) in warehouse.query("SELECT extra FROM records WHERE import_slug = ? ORDER BY sort", slug)]
    named = '{"row_errors":[{"line":%d.10}],"valid":%s}'
    assert extras == [named % (0, "null"), named % (1, "true"), None]
    assert differences(warehouse, service) == []
    columns = warehouse.query("SELECT column_name FROM information_schema.columns WHERE table_name = 'records_t'")
    assert not [name for (name,) in columns if "row_errors" in name]

    execute(warehouse, f"UPDATE records SET extra = NULL WHERE import_slug = '{slug}'")
    execute(warehouse, f"UPDATE imports SET records_metadata = NULL, extra__file_name = 'x' WHERE slug = '{plain}'")
    found = " ".join(differences(warehouse, service))
    assert "records: extra" in found
    assert "extra__file_name" in found
    assert "records_metadata" in found


def test_what_is_not_read_keeps_what_its_records_came_with(warehouse: Warehouse) -> None:
    service = Service(seed=3)
    slug = service.add_import("t", [{"a": 1}], metadata={"k": 1})
    assert warehouse.run(service).status == "succeeded"
    service.switches = replace(service.switches, extra_fields=True)
    assert warehouse.run(service).records_loaded == 0
    (row,) = warehouse.rows("SELECT * FROM imports WHERE slug = ?", slug)
    assert (row["records_metadata"], row["extra__file_name"]) == ('{"k": 1}', f"{slug}.csv")


@pytest.mark.parametrize("order", [("records", "imports"), ("imports", "records")])
def test_half_of_the_source_destroys_nothing(warehouse: Warehouse, order: tuple[str, str]) -> None:
    service = Service(seed=4)
    slug = service.add_import("t", [{"a": 1}], metadata={"k": 1})
    for resource in (*order, *order):
        with serve(service) as url:
            source = importer_source(base_url=url, access_token=service.token).with_resources(resource)
            warehouse.pipeline().run(source)
    assert warehouse.run(service).status == "succeeded"
    assert warehouse.query("SELECT slug, records_metadata FROM imports") == [(slug, '{"k": 1}')]
    assert differences(warehouse, service) == []


def test_a_backfill_writes_the_rows_of_imports_anew(warehouse: Warehouse) -> None:
    service = Service(seed=5)
    slugs = [service.add_import("t", [{"a": 1}], metadata={"k": n}) for n in range(3)]
    assert warehouse.run(service).status == "succeeded"
    execute(warehouse, "UPDATE imports SET metadata__k = NULL, records_metadata = NULL")
    some = RunScope(mode="backfill", selection=Selection(slugs=frozenset(slugs[:1])), force=True)
    assert warehouse.run(service, some).status == "succeeded"
    wanted = [(0, '{"k": 0}'), (None, None), (None, None)]
    query = "SELECT metadata__k, records_metadata FROM imports ORDER BY created_at"
    assert warehouse.query(query) == wanted
    assert warehouse.run(service, RunScope(mode="backfill", force=True)).status == "succeeded"
    assert warehouse.query(query) == [(n, f'{{"k": {n}}}') for n in range(3)]
    assert differences(warehouse, service) == []


def many_keys(service: Service) -> None:
    for n in range(12):
        service.add_import("t", [{"a": n}], metadata={f"key {n} {m}": m for m in range(100)})


@pytest.mark.long
def test_imports_is_no_wider_than_it_may_be(warehouse: Warehouse) -> None:
    service = Service(seed=6)
    many_keys(service)
    assert warehouse.run(service).status == "succeeded"
    service.add_import("t", [], metadata={"key 0 1": "text"})
    assert warehouse.run(service).status == "succeeded"
    columns = warehouse.query(
        "SELECT column_name FROM information_schema.columns WHERE table_name = 'imports' "
        "AND table_schema = 'importer_data'"
    )
    assert len([name for (name,) in columns if "__v_" not in name]) == 1000
    noted = "SELECT column_name, path FROM sync_fields WHERE data_type = 'overflowed'"
    assert warehouse.query(noted) == [("metadata", "metadata")]
    assert warehouse.query("SELECT metadata__key_0_1__v_text FROM imports WHERE metadata LIKE '%text%'") == [("text",)]
    assert differences(warehouse, service) == []


def test_sync_fields_says_when_a_field_of_imports_was_seen(warehouse: Warehouse) -> None:
    service = Service(seed=7)
    service.add_import("t", [], metadata={"old": 1})
    warehouse.run(service)
    query = "SELECT path, last_seen_at FROM sync_fields WHERE table_name = 'imports' ORDER BY path"
    before = warehouse.query(query)
    service.add_import("t", [], metadata={"young": 1})
    warehouse.run(service)
    assert warehouse.query(query)[:1] == before


def test_a_warehouse_of_an_earlier_version_gets_its_columns(warehouse: Warehouse) -> None:
    service = Service(seed=8, switches=Switches(extra_fields=True))
    service.add_import("t", [{"a": 1}], metadata={"k": 1})
    assert warehouse.run(service).status == "succeeded"
    execute(warehouse, "ALTER TABLE imports DROP COLUMN extra")
    execute(warehouse, "ALTER TABLE imports DROP COLUMN records_metadata")
    execute(warehouse, "ALTER TABLE imports DROP COLUMN extra__file_name")
    execute(warehouse, "ALTER TABLE records DROP COLUMN extra")
    execute(warehouse, "DELETE FROM sync_fields WHERE path LIKE 'extra%'")
    execute(warehouse, "UPDATE imports SET _content_hash = 'of the earlier version'")
    execute(warehouse, "DELETE FROM _dlt_version")
    pipeline = warehouse.pipeline()
    pipeline.drop()
    tally = warehouse.run(service)
    assert (tally.status, tally.records_loaded) == ("succeeded", 1)
    (row,) = warehouse.rows("SELECT * FROM imports")
    assert json.loads(row["extra"])["file_name"] == row["extra__file_name"]
    assert differences(warehouse, service) == []
    assert warehouse.run(service).imports_changed == 0


def test_columns_that_an_earlier_version_did_not_create_are_there_without_a_value(warehouse: Warehouse) -> None:
    service = Service(seed=9)
    service.add_import("t", [{"a": 1}])
    warehouse.run(service)
    later = ("extra", "records_metadata")
    text = warehouse.rows('SELECT "schema" FROM _dlt_version ORDER BY inserted_at DESC LIMIT 1')[0]["schema"]
    stored = json.loads(text)
    for name in ("imports", "records"):
        for column in set(stored["tables"][name]["columns"]) & set(later):
            del stored["tables"][name]["columns"][column]
            execute(warehouse, f"ALTER TABLE {name} DROP COLUMN {column}")
    earlier = Schema.from_dict(stored, remove_processing_hints=True)
    text = json.dumps(earlier.to_dict()).replace("'", "''")
    execute(warehouse, f"UPDATE _dlt_version SET version_hash = '{earlier.version_hash}', \"schema\" = '{text}'")
    warehouse.pipeline().drop()
    assert warehouse.run(service).status == "succeeded"
    assert warehouse.rows("SELECT extra, records_metadata FROM imports") == [{"extra": None, "records_metadata": None}]
    assert warehouse.rows("SELECT extra FROM records") == [{"extra": None}]
