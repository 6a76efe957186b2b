"""Propose hints for text columns from the loaded values, without a request; write nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dlt.pipeline.pipeline import Pipeline

from connector.transform.guessing import FEWEST, LONGEST, SHARE, guess, share
from connector.transform.schema import Kind
from connector.warehouse import Connection, Warehouse
from connector.warehouse.busy import when_free
from connector.warehouse.destination import no_warehouse
from connector.warehouse.ownership import inspect_dataset
from connector.warehouse.tables import FIELDS, IMPORTS

ROWS_AT_ONCE = 10_000
COLUMNS_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A hint for a column.

    Attributes:
        table: The typed table.
        column: Its text column.
        hint: The type, and behind a colon the format of the values.
        share: Share of the non-blank texts that fit, from 0 to 1.
        values: Number of these texts.
    """

    table: str
    column: str
    hint: str
    share: float
    values: int


def suggest(pipeline: Pipeline, hints: Mapping[str, Mapping[str, str]]) -> list[Suggestion]:
    """Return the hints that fit nearly all live texts of a column that `hints` does not name, by table.

    Raises ConfigError if there is no warehouse yet, and DatabaseBusyError if another program has its file open.
    """
    warehouse = Warehouse(pipeline)
    warehouse.check_supported()

    def ask() -> list[Suggestion]:
        if not warehouse.exists():
            raise no_warehouse(pipeline)
        with warehouse.connect() as connection:
            return list(_suggestions(connection, hints))

    return when_free(ask)


def _suggestions(connection: Connection, hints: Mapping[str, Mapping[str, str]]) -> Iterator[Suggestion]:
    for table, columns in sorted(_texts(connection, hints).items()):
        for start in range(0, len(columns), COLUMNS_AT_ONCE):
            for column, values in _promising(connection, table, columns[start : start + COLUMNS_AT_ONCE]):
                hint = guess(text for text, _ in _counted(connection, table, column))
                if hint is None:
                    continue
                fitting, _ = share(hint, _counted(connection, table, column))
                if fitting >= SHARE * values:
                    yield Suggestion(table, column, hint, fitting / values, values)


def _texts(connection: Connection, hints: Mapping[str, Mapping[str, str]]) -> dict[str, list[str]]:
    """Return the text columns without a hint, by typed table."""
    dataset, columns = inspect_dataset(connection), connection.columns()
    if FIELDS not in dataset.ours:
        return {}
    rows = connection.query(
        f"SELECT table_name, column_name, path FROM {connection.name(FIELDS)} WHERE data_type = %s "
        "ORDER BY table_name, column_name",
        Kind.TEXT.value,
    ).to_pylist()
    found: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        table, column = row["table_name"], row["column_name"]
        hinted = hints.get(table, {})
        if table == IMPORTS or table not in dataset.ours or column not in columns.get(table, {}):
            continue
        if column not in hinted and row["path"] not in hinted:
            found[table].append(column)
    return found


def _promising(connection: Connection, table: str, columns: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield the columns whose texts are nearly all short enough, each with the number of its texts."""
    names = [connection.column(column) for column in columns]
    counts = ", ".join(  # without FILTER, which MySQL does not have
        f"count(CASE WHEN {name} <> '' THEN 1 END) AS a{n}, "
        f"count(CASE WHEN {name} <> '' AND length({name}) <= {LONGEST} THEN 1 END) AS s{n}"
        for n, name in enumerate(names)
    )
    row = connection.query(
        f"SELECT {counts} FROM {connection.name(table)} WHERE {connection.column('_deleted_at')} IS NULL"
    ).to_pylist()[0]
    for n, column in enumerate(columns):
        values = int(row[f"a{n}"])
        if values >= FEWEST and int(row[f"s{n}"]) >= SHARE * values:
            yield column, values


def _counted(connection: Connection, table: str, column: str) -> Iterator[tuple[str, int]]:
    """Yield each distinct text that is short enough, with the number of its live rows."""
    name = connection.column(column)
    sql = (
        f"SELECT {name}, count(*) FROM {connection.name(table)} WHERE {connection.column('_deleted_at')} IS NULL "
        f"AND {name} <> '' AND length({name}) <= {LONGEST} GROUP BY 1"
    )
    with connection.client.execute_query(sql) as cursor:
        while rows := cursor.fetchmany(ROWS_AT_ONCE):
            yield from rows
