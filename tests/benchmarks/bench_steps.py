"""The hot steps one by one, for `make bench`; its name keeps it out of the tests.

Each is timed over what a run does at once: a page to decode, a batch to flatten, a package's rows to turn into Arrow.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import dlt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs
from pytest_benchmark.fixture import BenchmarkFixture

from connector.extract.listing import Lister, Listing
from connector.extract.records import ImportRead, Verdict
from connector.load.batches import Builder, BuiltImports
from connector.load.data_dictionary import Catalogue
from connector.load.package import Package
from connector.load.table_rows import TableRows
from connector.models import Import, Record, Reject, creation_time, key_of, replaces
from connector.run.plan import Rules, make_plan
from connector.service.decode import decode_import_page, decode_record_page
from connector.settings import Settings
from connector.transform.flatten import flatten
from connector.transform.schema import TableSchema
from connector.warehouse import Warehouse
from connector.warehouse.state import WarehouseState
from tests.benchmarks.workload import BLOCK, Shape, Workload
from tests.support.ledger import known

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = 20_000
IMPORTS = 100_000


@pytest.fixture(scope="module")
def workload() -> Workload:
    return Workload(Shape(imports=1, rows=ROWS))


@pytest.fixture(scope="module")
def import_(workload: Workload) -> Import:
    return decode_import_page(workload.listing(1, BLOCK)).imports[0]


@pytest.fixture(scope="module")
def records(workload: Workload, import_: Import) -> tuple[Record, ...]:
    pages = (workload.records(import_.slug, page, BLOCK) for page in range(1, ROWS // BLOCK + 1))
    return tuple(record for page in pages for record in decode_record_page(page).records)


@pytest.fixture(scope="module")
def listed() -> list[Import]:
    workload = Workload(Shape(imports=IMPORTS, rows=10))
    pages = (workload.listing(page, BLOCK) for page in range(1, IMPORTS // BLOCK + 1))
    return [import_ for page in pages for import_ in decode_import_page(page).imports]


def test_decode_a_page_of_100_records(benchmark: BenchmarkFixture, workload: Workload, import_: Import) -> None:
    body = workload.records(import_.slug, 3, BLOCK)
    assert len(benchmark(decode_record_page, body).records) == BLOCK


def test_decode_a_page_of_100_imports(benchmark: BenchmarkFixture) -> None:
    body = Workload(Shape(imports=BLOCK, rows=10)).listing(1, BLOCK)
    assert len(benchmark(decode_import_page, body).imports) == BLOCK


@pytest.mark.parametrize("first", [True, False], ids=["unknown_table", "known_table"])
def test_flatten_2000_rows(benchmark: BenchmarkFixture, records: tuple[Record, ...], first: bool) -> None:
    rows = [record.data for record in records[:2_000]]
    schema = TableSchema("records_template_0")
    if not first:
        schema = flatten(rows, schema).schema
    assert len(benchmark(flatten, rows, schema).columns) == 16


def test_plan_100000_imports(benchmark: BenchmarkFixture, listed: list[Import]) -> None:
    ledger = {import_.slug: known(import_) for import_ in listed}
    for import_ in listed[::1_000]:
        ledger[import_.slug] = structs.replace(ledger[import_.slug], row_count=1)
    plan = benchmark(make_plan, listed, ledger, Rules(NOW))
    assert len(plan.read) == IMPORTS // 1_000


def test_list_10000_imports(benchmark: BenchmarkFixture, listed: list[Import]) -> None:
    """The proof that a listing is complete, without decoding or network."""
    shown = listed[:10_000]

    async def fetch(page: int, per_page: int) -> list[Import | Reject]:
        return list(shown[(page - 1) * per_page : page * per_page])

    def walk() -> Listing[Import | Reject]:
        return asyncio.run(Lister(fetch, key_of, replaces, creation_time, expected=len(shown)).all())

    assert len(benchmark(walk).rows) == len(shown)


def test_arrow_of_20000_records(
    benchmark: BenchmarkFixture, import_: Import, records: tuple[Record, ...], tmp_path: Path
) -> None:
    """Raw and typed tables of a package, flattening included."""
    destination = dlt.destinations.duckdb(str(tmp_path / "warehouse.duckdb"))
    warehouse = Warehouse(dlt.pipeline("steps", destination=destination, pipelines_dir=str(tmp_path)))
    settings = Settings.load(base_url="http://localhost", access_token="benchmark")
    read = ImportRead(import_, Verdict.complete, records)

    def build() -> int:
        package = Package("1", "run", NOW, settings, WarehouseState(), Catalogue.of(WarehouseState()), warehouse)
        built = Builder(settings, {}, {}, limits=None, nul_safe=False).build(read)
        return sum(part.rows.num_rows for part in _emitted(package, built))

    assert benchmark(build) >= 2 * ROWS


def test_parquet_of_20000_records(benchmark: BenchmarkFixture, records: tuple[Record, ...]) -> None:
    """As dlt writes it between us and the warehouse."""
    flat = flatten([record.data for record in records], TableSchema("records_template_0"))
    rows = pa.table(flat.columns)

    def write() -> int:
        file = io.BytesIO()
        pq.write_table(rows, file)
        return file.tell()

    assert benchmark(write) > 0


def _emitted(package: Package, built: BuiltImports) -> Iterator[TableRows]:
    yield from package.add(built, [None], [None])
    yield from package._flush()
