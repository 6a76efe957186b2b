"""What the machine allows: the rows as raw JSON and as flat typed columns into DuckDB, in one transaction.

No guarantee of any kind: no proof that a page is complete, no types that last, nothing a kill would leave in order.
argv: base_url token file.duckdb
"""

from __future__ import annotations

import asyncio
import io
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import Any

import aiohttp
import arro3.io
import duckdb
import msgspec
import pyarrow as pa

PER_PAGE, AT_ONCE = 100, 16
BATCH_ROWS, WRITE_ROWS = 2_000, 122_880  # rows still in the processor's cache; a row group of DuckDB
TABLES = """
CREATE TABLE IF NOT EXISTS imports (slug VARCHAR, updated_at VARCHAR, row_count BIGINT, json JSON);
CREATE TABLE IF NOT EXISTS records (slug UUID, import_slug UUID, created_at TIMESTAMPTZ, updated_at TIMESTAMPTZ,
    sort BIGINT, data JSON USING COMPRESSION zstd);
"""
CASTS = "{0}slug::UUID {0}slug, {0}import_slug::UUID {0}import_slug, {0}created_at::TIMESTAMPTZ {0}created_at, "
CASTS += "{0}updated_at::TIMESTAMPTZ {0}updated_at, {0}sort"


class Row(msgspec.Struct, gc=False):
    slug: str
    data: msgspec.Raw
    created_at: str
    updated_at: str
    sort: int


class Page(msgspec.Struct, gc=False):
    data: list[Row]


DECODE = msgspec.json.Decoder(Page).decode


class Sink:
    """Collects rows by template and writes them from a thread of its own."""

    def __init__(self, file: str) -> None:
        self.db = duckdb.connect(file, config={"threads": 1})
        self.db.execute(TABLES)
        self._thread = ThreadPoolExecutor(1)
        self._writes: list[Future[None]] = []
        self._rows: dict[str, list[tuple[str, Row]]] = defaultdict(list)
        self._batches: dict[str, list[tuple[pa.Table, pa.Table]]] = defaultdict(list)
        self._schemas: dict[str, Any] = {}

    def add(self, import_: dict[str, Any], body: bytes) -> None:
        template, slug = import_["template"]["slug"].replace("-", "_"), import_["slug"]
        rows = self._rows[template]
        rows += [(slug, row) for row in DECODE(body).data]
        if len(rows) >= BATCH_ROWS:
            self._batch(template)
            if sum(raw.num_rows for raw, _ in self._batches[template]) >= WRITE_ROWS:
                self._write(template)

    def _batch(self, template: str) -> None:
        rows = self._rows.pop(template)
        data = [bytes(row.data) for _, row in rows]
        envelope = {
            "slug": [row.slug for _, row in rows],
            "import_slug": [slug for slug, _ in rows],
            "created_at": [row.created_at for _, row in rows],
            "updated_at": [row.updated_at for _, row in rows],
            "sort": [row.sort for _, row in rows],
        }
        text = b"\n".join(data)
        if template not in self._schemas:
            self._schemas[template] = arro3.io.infer_json_schema(io.BytesIO(text))
        flat = pa.table(arro3.io.read_json(io.BytesIO(text), self._schemas[template], batch_size=len(data)).read_all())
        while any(pa.types.is_struct(column.type) for column in flat.schema):
            flat = flat.flatten()
        raw = pa.table(envelope)
        for name in raw.column_names:
            flat = flat.append_column(f"_{name}", raw[name])
        self._batches[template].append((raw.append_column("data", pa.array(data, pa.string())), flat))

    def _write(self, template: str) -> None:
        raw, flat = (pa.concat_tables(tables) for tables in zip(*self._batches.pop(template), strict=True))
        names = ", ".join(f'"{name}"' for name in flat.column_names if not name.startswith("_"))
        self._writes.append(self._thread.submit(self._insert, "records", f"{CASTS.format('')}, data", raw))
        self._writes.append(
            self._thread.submit(self._insert, f"records_{template}", f"{CASTS.format('_')}, {names}", flat)
        )
        if len(self._writes) > 4:
            self._writes.pop(0).result()

    def _insert(self, table: str, columns: str, batch: pa.Table) -> None:
        self.db.register("batch", batch)
        self.db.execute(f"CREATE TABLE IF NOT EXISTS {table} AS SELECT {columns} FROM batch LIMIT 0")
        self.db.execute(f"INSERT INTO {table} SELECT {columns} FROM batch")
        self.db.unregister("batch")

    def close(self, imports: list[dict[str, Any]]) -> None:
        for template in list(self._rows):
            self._batch(template)
        for template in list(self._batches):
            self._write(template)
        for write in self._writes:
            write.result()
        known = [(i["slug"], i["updated_at"], i["row_count"], msgspec.json.encode(i).decode()) for i in imports]
        if known:
            columns = zip(("slug", "updated_at", "row_count", "json"), zip(*known, strict=True), strict=True)
            self.db.register("seen", pa.table({name: list(cells) for name, cells in columns}))
            self.db.execute("INSERT INTO imports SELECT * FROM seen")
        self.db.execute("COMMIT")
        self.db.close()


def urls(imports: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str]]:
    for import_ in imports:
        for page in range(1, -(-import_["row_count"] // PER_PAGE) + 1):
            yield import_, f"imports/{import_['slug']}/records?page={page}&per_page={PER_PAGE}"


async def sync(base_url: str, token: str, sink: Sink) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(f"{base_url}/api/v1/", headers=headers) as http:

        async def get(url: str) -> bytes:
            async with http.get(url, raise_for_status=True) as reply:
                return await reply.read()

        listed: list[dict[str, Any]] = []
        for page in count(1):
            rows = msgspec.json.decode(await get(f"imports?page={page}&per_page={PER_PAGE}"))["data"]
            listed += rows
            if len(rows) < PER_PAGE:
                break
        seen = {slug: known for slug, *known in sink.db.execute("SELECT * EXCLUDE json FROM imports").fetchall()}
        changed = [i for i in listed if seen.get(i["slug"]) != [i["updated_at"], i["row_count"]]]
        sink.db.execute("BEGIN")
        waiting = urls(changed)

        async def worker() -> None:
            for import_, url in waiting:
                sink.add(import_, await get(url))

        await asyncio.gather(*[worker() for _ in range(AT_ONCE)])
        sink.close(changed)


if __name__ == "__main__":
    asyncio.run(sync(sys.argv[1], sys.argv[2], Sink(sys.argv[3])))
