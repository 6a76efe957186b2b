"""Open pipelines and execute SQL on tables in files, for the tests of Delta tables and of plain Parquet."""

from __future__ import annotations

import argparse
from typing import Any

from connector.cli.configuration import open_pipeline
from connector.warehouse.adapters.lake import Lake


def pipeline(to: str, dataset: str = "importer_data") -> Any:
    return open_pipeline(argparse.Namespace(to=to, destination=None, dataset=dataset, pipeline_name="importer"))


def execute(lake: Lake, *statements: str, args: tuple[Any, ...] = ()) -> None:
    """Execute statements in one transaction."""
    connection = lake.connect()
    try:
        with lake.transaction(connection) as transaction:
            for sql in statements:
                transaction.execute(sql, args)
    finally:
        lake.close(connection)
