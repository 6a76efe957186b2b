"""What a good engineer writes in an afternoon: httpx, sixteen requests at a time, orjson, Arrow, DuckDB; no guarantees.

argv: base_url token file.duckdb
"""

from __future__ import annotations

import asyncio
import sys
from itertools import count
from typing import Any

import duckdb
import httpx
import orjson
import pyarrow as pa

PER_PAGE = 100
TABLES = """
CREATE TABLE IF NOT EXISTS imports (slug VARCHAR PRIMARY KEY, row_count BIGINT, created_at TIMESTAMPTZ,
    updated_at VARCHAR, status VARCHAR, template JSON, metadata JSON);
CREATE TABLE IF NOT EXISTS records (slug VARCHAR, import_slug VARCHAR, data JSON, created_at TIMESTAMPTZ,
    updated_at TIMESTAMPTZ, sort BIGINT);
"""
COLUMNS = pa.schema(
    [(name, pa.string()) for name in ("slug", "import_slug", "data", "created_at", "updated_at")]
    + [("sort", pa.int64())]
)


class Service:
    """Pages, with the customary retries."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._places = asyncio.Semaphore(16)

    async def page(self, path: str, page: int) -> list[dict[str, Any]]:
        async with self._places:
            for attempt in range(5):
                reply = await self._http.get(path, params={"page": page, "per_page": PER_PAGE})
                if reply.status_code < 500 and reply.status_code != 429:
                    break
                await asyncio.sleep(2**attempt)
        reply.raise_for_status()
        rows: list[dict[str, Any]] = orjson.loads(reply.content)["data"]
        return rows

    async def imports(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for page in count(1):
            rows = await self.page("imports", page)
            found += rows
            if len(rows) < PER_PAGE:
                break
        return found

    async def records(self, import_: dict[str, Any]) -> list[dict[str, Any]]:
        path, pages = f"imports/{import_['slug']}/records", -(-import_["row_count"] // PER_PAGE)
        replies = await asyncio.gather(*[self.page(path, page) for page in range(1, pages + 1)])
        return [row for rows in replies for row in rows]


def store(db: duckdb.DuckDBPyConnection, import_: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    slug = import_["slug"]
    cells = [{**row, "import_slug": slug, "data": orjson.dumps(row["data"]).decode()} for row in rows]
    db.register("batch", pa.Table.from_pylist(cells, schema=COLUMNS))
    db.execute("BEGIN")
    db.execute("DELETE FROM records WHERE import_slug = ?", [slug])
    db.execute("INSERT INTO records SELECT * FROM batch")
    known = {**import_, **{name: orjson.dumps(import_[name]).decode() for name in ("template", "metadata")}}
    names = ("slug", "row_count", "created_at", "updated_at", "status", "template", "metadata")
    db.execute("INSERT OR REPLACE INTO imports VALUES (?, ?, ?, ?, ?, ?, ?)", [known[name] for name in names])
    db.execute("COMMIT")
    db.unregister("batch")


async def sync(base_url: str, token: str, db: duckdb.DuckDBPyConnection) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=f"{base_url}/api/v1/", headers=headers, timeout=60) as http:
        service = Service(http)
        seen = dict(db.execute("SELECT slug, updated_at FROM imports").fetchall())
        waiting = iter([i for i in await service.imports() if seen.get(i["slug"]) != i["updated_at"]])

        async def worker() -> None:
            for import_ in waiting:
                store(db, import_, await service.records(import_))

        await asyncio.gather(*[worker() for _ in range(4)])


if __name__ == "__main__":
    with duckdb.connect(sys.argv[3]) as connection:
        connection.execute(TABLES)
        asyncio.run(sync(sys.argv[1], sys.argv[2], connection))
