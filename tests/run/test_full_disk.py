"""What a full disk costs."""

from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
import sys
from contextlib import closing
from functools import partial

import pytest

from connector.sandbox import Service, serve
from connector.warehouse.failures import explain_failure

from .conftest import Warehouse, service_token
from .test_guarantees import assert_equal

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize(
    "most",
    [pytest.param(200, marks=pytest.mark.long), 1_000, pytest.param(6_000, marks=pytest.mark.long)],
    ids="{} kB".format,
)
def test_a_disk_that_is_full_is_named_and_costs_nothing_but_another_run(warehouse: Warehouse, most: int) -> None:
    """Some files may not grow beyond that: the first tables do not fit, nor do some rows, nor what dlt writes."""
    service = Service(seed=1)
    service.add_generated("customers", 4, 6_000, "completed")
    with serve(service) as url:
        settings = {"BASE_URL": url, "ACCESS_TOKEN": service_token(service), "BATCH_ROWS": "12000"}
        ran = subprocess.run(
            [sys.executable, "-m", "connector", "run", "--to", f"duckdb:{warehouse.file}"],
            env={**os.environ, **{f"SOURCES__IMPORTER__{name}": value for name, value in settings.items()}},
            cwd=warehouse.folder,
            preexec_fn=partial(resource.setrlimit, resource.RLIMIT_FSIZE, (most * 1000, most * 1000)),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert ran.returncode == 1
    last = ran.stderr.strip().splitlines()[-1]
    assert "A disk is full" in last
    assert "free some space and run again" in last
    assert len(last) < 400
    assert "Traceback" not in ran.stderr
    assert warehouse.run(service).status == "succeeded"
    assert_equal(service, warehouse)


def test_sqlite_without_room_is_a_full_disk() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("PRAGMA max_page_count = 2")
        with pytest.raises(sqlite3.OperationalError) as full:
            connection.execute(
                "CREATE TABLE t AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
                "SELECT x FROM n LIMIT 10000"
            )
    assert str(explain_failure(full.value)).startswith("A disk is full")
