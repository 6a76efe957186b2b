"""A sandbox synced into a DuckDB file or a real PostgreSQL, and what the statements say about it."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import psycopg2
import pytest

from connector.reporting.views.applying import Applied, apply
from connector.reporting.views.checking import Checked, check
from connector.reporting.views.query import ask
from connector.sandbox import Service
from tests.types.conftest import DuckDB, PostgreSQL, Warehouse, make_warehouse, postgres_uri, warehouse

__all__ = ["make_warehouse", "postgres_uri", "warehouse"]


class Place:
    """A service, a warehouse of it, and the questions of an analyst."""

    def __init__(self, warehouse: Warehouse) -> None:
        self.warehouse = warehouse
        self.now = datetime.now(UTC)
        self.service = Service(seed=3, clock=self._tick)

    def _tick(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now

    @property
    def is_duckdb(self) -> bool:
        return isinstance(self.warehouse, DuckDB)

    @property
    def views_schema(self) -> str:
        return f"{self.warehouse.dataset}_views"

    def sync(self, **settings: Any) -> str:
        return str(self.warehouse.run(self.service, **settings).status.value)

    def apply(self) -> Applied:
        return apply(self.warehouse.pipeline())

    def check(self, *names: str) -> dict[str, Checked]:
        return {each.name: each for each in check(self.warehouse.pipeline(), names)}

    def offending(self, name: str) -> list[dict[str, Any]]:
        found = self.check(name)[name]
        assert found.offending >= len(found.examples)
        return [dict(zip(found.columns, row, strict=True)) for row in found.examples]

    def ask(self, sql: str) -> list[dict[str, Any]]:
        """One query, names unqualified, as `importer-sync query` runs it."""
        with ask(self.warehouse.pipeline(), sql) as answer:
            return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]

    def tuples(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in self.ask(sql)]

    def execute(self, sql: str) -> None:
        """Changes the warehouse behind the connector's back; tables are those of the dataset."""
        if isinstance(self.warehouse, DuckDB):
            with duckdb.connect(str(self.warehouse.file)) as connection:
                connection.execute(f"SET TimeZone = 'UTC'; USE {self.warehouse.dataset}")
                connection.execute(sql)
            return
        assert isinstance(self.warehouse, PostgreSQL)
        with closing(psycopg2.connect(self.warehouse.uri)) as connection, connection, connection.cursor() as cursor:
            cursor.execute(f"SET search_path = {self.warehouse.dataset}")
            cursor.execute(sql)

    def views(self) -> list[str]:
        sql = "SELECT table_name FROM information_schema.tables WHERE table_schema = %s ORDER BY 1"
        return [name for (name,) in self.warehouse.tuples(sql, self.views_schema)]


@pytest.fixture
def place(warehouse: Warehouse) -> Place:
    return Place(warehouse)


@pytest.fixture
def duck_place(tmp_path: Any) -> Place:
    """For what does not depend on the destination."""
    folder = tmp_path / "duck"
    folder.mkdir()
    return Place(DuckDB(folder))


@pytest.fixture
def postgres_place(tmp_path: Any, postgres_uri: str) -> Place:
    folder = tmp_path / "postgres"
    folder.mkdir()
    return Place(PostgreSQL(folder, postgres_uri))
