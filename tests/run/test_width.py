"""Uploads as wide as anybody makes them, synced for real: bounded tables, nothing lost, and everybody says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest
from dlt.pipeline.pipeline import Pipeline

from connector.maintain.doctor import doctor
from connector.maintain.rebuild import rebuild
from connector.maintain.verify import verify
from connector.reporting.views.applying import apply
from connector.reporting.views.checking import check
from connector.reporting.views.query import ask
from connector.run.sync import sync
from connector.runs import Tally
from connector.sandbox import Service, serve
from connector.settings import Settings
from connector.transform import width
from connector.transform.width import Width

from .conftest import Warehouse, service_token

pytestmark = pytest.mark.thorough


@dataclass
class Place:
    """A service and a warehouse whose typed tables may have four columns, and two new ones per import."""

    service: Service
    warehouse: Warehouse
    url: str

    @property
    def settings(self) -> Settings:
        return Settings.load(base_url=self.url, access_token=service_token(self.service))

    def sync(self) -> Tally:
        tally = sync(self.warehouse.pipeline(), self.settings)
        assert verify(self.warehouse.pipeline(), self.settings, deep=True).differences == []
        return tally

    def column(self, name: str) -> list[Any]:
        return [
            value for (value,) in self.warehouse.query(f"SELECT {name} FROM records_t ORDER BY _import_slug, _sort")
        ]

    def fields(self) -> dict[str, dict[str, Any]]:
        rows = self.warehouse.rows("SELECT * FROM sync_fields WHERE table_name = 'records_t'")
        return {row["column_name"]: row for row in rows}

    def columns(self) -> set[str]:
        found = self.warehouse.query(
            "SELECT column_name FROM information_schema.columns WHERE table_name = 'records_t'"
        )
        return {name for (name,) in found if not name.startswith(("_dlt", "_record_", "_import_"))} - {
            "_sort", "_created_at", "_updated_at", "_deleted_at",
        }  # fmt: skip


@pytest.fixture
def place(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(width, "WIDTH", Width(columns=4, new_fields=2, listed=6))
    service = Service(1)
    with serve(service) as url:
        yield Place(service, warehouse, url)


def test_what_has_no_column_is_whole_in_one_and_everybody_says_so(place: Place) -> None:
    place.service.add_import("T", [{"a": 1, "b": "x"}])
    place.sync()
    place.service.add_import("T", ['{"a":2,"c":1.50,"d":[1,-0],"e":{"f":null,"g":"é"},"_more":7}'])
    tally = place.sync()

    assert (tally.status, tally.problems) == ("succeeded", [])
    assert len(place.columns()) == 5
    assert {"a", "b", "c", "_more"} < place.columns()
    assert place.column("_more") == [None, '{"d":[1,-0],"e":{"f":null,"g":"é"}}']
    overflowed = {row["path"] for row in place.fields().values() if row["data_type"] == "overflowed"}
    assert overflowed == {"d", "e.f", "e.g"}
    assert place.fields()["_more"]["value_count"] == 1

    pipeline = place.warehouse.pipeline()
    found = {each.name: each for each in check(pipeline)}["overflowed_fields"]
    assert found.examples[0][:2] == ("records_t", 3)
    assert any("records_t" in note and "_more" in note for note in doctor(pipeline).notes)
    apply(pipeline)
    with ask(pipeline, 'SELECT "_more" FROM t WHERE "_more" IS NOT NULL') as answer:
        assert len(list(answer.rows)) == 1


def test_a_field_without_a_column_stays_so_until_the_table_is_rebuilt(place: Place) -> None:
    place.service.add_import("T", [{"a": 1}])
    place.sync()
    place.service.add_import("T", [{"b": 1, "c": 1, "often": n} for n in range(3)] + [{"often": 3}] * 2)
    place.sync()
    assert place.columns() == {"a", "often", "b", "_more"}
    place.service.add_import("T", [{"c": 5, "d": 6}])
    place.sync()
    assert place.columns() == {"a", "often", "b", "d", "_more"}
    assert sorted(json.loads(text)["c"] for text in place.column("_more") if text) == [1, 1, 1, 5]

    width.WIDTH = Width(columns=5, new_fields=2, listed=6)
    rebuild(place.warehouse.pipeline(), place.settings)
    assert verify(place.warehouse.pipeline(), place.settings, deep=True).differences == []
    assert place.columns() == {"a", "often", "b", "c", "d"}
    assert "overflowed" not in {row["data_type"] for row in place.fields().values()}
    place.service.add_import("T", [{"a": 1, "e": 1}])
    place.sync()
    assert '{"e":1}' in place.column("_more")


def test_an_upload_of_ever_new_keys_makes_few_rows_in_sync_fields(place: Place) -> None:
    place.service.add_import("T", [{"a": 1}])
    place.sync()
    place.service.add_import("T", [{f"k{n:02}": n for n in range(40)}])
    place.sync()
    place.service.add_import("T", [{f"x{n}": n} for n in range(40)])
    place.sync()
    assert place.columns() == {"a", "k00", "k01", "_more"}
    assert len(place.fields()) == 4 + 6
    assert sum(text is not None for text in place.column("_more")) == 41


def test_a_kept_row_that_was_deleted_keeps_its_rest(place: Place) -> None:
    slug = place.service.add_import("T", [{f"k{n}": n for n in range(6)}])
    with_keep = Settings.load(base_url=place.url, access_token=service_token(place.service), deletes="keep")
    sync(place.warehouse.pipeline(), with_keep)
    before = place.column("_more")
    place.service.delete_import(slug)
    place.service.add_import("T", [{"k0": 1}])
    tally = sync(place.warehouse.pipeline(), with_keep.model_copy(update={"mass_delete_limit": 1.0}))
    assert tally.imports_deleted == 1
    assert before[0] in place.column("_more")


def test_text_takes_numbers_and_counts_them_over_all_imports(place: Place) -> None:
    first = place.service.add_import("T", ['{"zip":"007"}', '{"zip":"x"}', '{"zip":7}', '{"zip":1.50}'])
    place.sync()
    second = place.service.add_import("T", ['{"zip":7}', '{"zip":"7"}', '{"zip":true}', '{"zip":[1]}'])
    place.sync()
    assert sorted(text or "" for text in place.column("zip")) == ["", "007", "1.50", "7", "7", "7", "true", "x"]
    assert [text for text in place.column("zip__v_text") if text] == ["[1]"]
    assert (place.fields()["zip"]["value_count"], place.fields()["zip"]["conflict_count"]) == (8, 5)

    rebuild(place.warehouse.pipeline(), place.settings)
    assert place.fields()["zip"]["conflict_count"] == 5
    place.service.add_import("T", ['{"zip":8}'])
    place.sync()
    assert place.fields()["zip"]["conflict_count"] == 6
    place.service.delete_import(first)
    place.sync()
    assert (place.fields()["zip"]["value_count"], place.fields()["zip"]["conflict_count"]) == (5, 4)
    assert second


def test_rows_that_the_first_version_wrote_are_no_difference(place: Place) -> None:
    """It put a scalar beside text into the column's variant, and read -0 as 0."""
    place.service.add_import("T", ['{"zip":"x","n":5,"j":[1]}', '{"zip":"y"}', '{"zip":7,"n":-0,"j":[-0, 1]}'])
    place.sync()
    pipeline: Pipeline = place.warehouse.pipeline()
    with duckdb.connect(str(place.warehouse.file)) as connection:
        connection.execute("ALTER TABLE importer_data.records_t ADD COLUMN zip__v_text VARCHAR")
        connection.execute("UPDATE importer_data.sync_fields SET has_text = true WHERE column_name = 'zip'")
        connection.execute(
            "UPDATE importer_data.records_t SET zip = NULL, zip__v_text = '7', n = 0, n__v_text = NULL, j = '[0,1]' "
            "WHERE zip = '7'"
        )
        for column in ("text_conflicts", "killed_runs"):
            connection.execute(f"ALTER TABLE importer_data.sync_imports DROP COLUMN {column}")
    assert verify(pipeline, place.settings, deep=True).differences == []
    assert rebuild(pipeline, place.settings)
    assert verify(pipeline, place.settings, deep=True).differences == []
    place.service.add_import("T", ['{"zip":8,"n":1}'])
    place.sync()
    assert sorted(place.column("zip")) == ["7", "8", "x", "y"]
    assert place.fields()["zip"]["conflict_count"] == 2
    with duckdb.connect(str(place.warehouse.file)) as connection:
        connection.execute("UPDATE importer_data.records_t SET zip = 'z' WHERE zip = '7'")
    assert [d.column for d in verify(pipeline, place.settings, deep=True).differences] == ["zip"]


def test_a_template_of_empty_rows_has_its_table(place: Place) -> None:
    place.service.add_import("T", [{}, {}])
    place.sync()
    assert place.columns() == set()
    assert place.warehouse.query("SELECT count(*) FROM records_t") == [(2,)]


def test_a_column_that_the_first_version_gave_to_such_a_key_stays_its(place: Place, tmp_path: Path) -> None:
    place.service.add_import("T", [{"a": 1}])
    place.sync()
    with duckdb.connect(str(place.warehouse.file)) as connection:
        connection.execute("ALTER TABLE importer_data.records_t ADD COLUMN _more VARCHAR")
        row = connection.execute("SELECT * FROM importer_data.sync_fields WHERE column_name = 'a'").fetchone()
        names = [column[0] for column in connection.description or ()]
        assert row is not None
        made = {**dict(zip(names, row, strict=True)), "column_name": "_more", "path": "_more"}
        made |= {"keys": '["_more"]', "data_type": "text", "value_count": 0}
        marks = ", ".join("?" * len(made))
        connection.execute(
            f"INSERT INTO importer_data.sync_fields ({', '.join(made)}) VALUES ({marks})", [*made.values()]
        )
    place.service.add_import("T", [{"_more": "mine", "b": 1, "c": 2, "d": 3, "e": 4}])
    place.sync()
    assert sorted(place.column("_more"), key=str) == [None, "mine"]
    assert sorted(place.column("_more_2"), key=str) == [None, '{"d":3,"e":4}']
