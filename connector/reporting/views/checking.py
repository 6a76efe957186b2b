"""Run the checks: each returns the violating rows, of which the first few are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dlt.pipeline.pipeline import Pipeline

from connector.errors import ConfigError
from connector.reporting.views.applying import opened
from connector.reporting.views.generated import ready_checks
from connector.reporting.views.layout import read_layout
from connector.reporting.views.statements import Ready
from connector.warehouse import Connection

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of one check: how many rows violate it, and the first of them."""

    name: str
    summary: str
    offending: int
    columns: tuple[str, ...] = ()
    examples: tuple[tuple[Any, ...], ...] = ()

    def as_json(self) -> dict[str, Any]:
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.examples]
        return {"name": self.name, "summary": self.summary, "offending": self.offending, "examples": rows}


def check(pipeline: Pipeline, names: Sequence[str] = ()) -> list[Checked]:
    """Run these checks, or all."""
    warehouse, dialect = opened(pipeline)
    with warehouse.connect() as connection:
        checks = ready_checks(read_layout(connection, dialect))
        unknown = sorted(set(names) - {each.name for each in checks})
        if unknown:
            there = ", ".join(each.name for each in checks)
            raise ConfigError(f"There is no check {', '.join(unknown)}; there are: {there}.")
        return [_checked(connection, each) for each in checks if each.name in names or not names]


def _checked(connection: Connection, each: Ready) -> Checked:
    with connection.client.execute_query(each.sql) as cursor:
        columns = tuple(column[0] for column in cursor.description)
        examples = tuple(tuple(row) for row in cursor.fetchmany(SHOWN))
        offending = len(examples)
        while more := cursor.fetchmany(10_000):
            offending += len(more)
    return Checked(each.name, each.summary, offending, columns, examples)
