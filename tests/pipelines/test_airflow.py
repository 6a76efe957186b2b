"""The DAGs for Airflow, run by `airflow dags test` on SQLite, with the sandbox for the service.

They run where airflow is installed, which `make airflow` sees to.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from connector.sandbox import Service, serve

if importlib.util.find_spec("airflow") is None:
    pytest.skip("airflow is not installed: `make airflow`", allow_module_level=True)

DAGS = Path(__file__).parents[2] / "pipelines" / "airflow_dag.py"
Run = Callable[..., str]


@pytest.fixture(scope="module")
def airflow_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("airflow")
    (home / "dags").mkdir()
    shutil.copy(DAGS, home / "dags")
    ended = airflow(home, "db", "migrate")
    assert ended.returncode == 0, ended.stderr
    return home


def airflow(home: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        **settings,
    }
    command = [sys.executable, "-m", "airflow", *arguments]
    return subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture
def service() -> Service:
    service = Service(seed=3)
    for template in ("customers", "orders"):
        service.add_generated(template, imports=2, rows=20)
    return service


@pytest.fixture
def place(tmp_path: Path, airflow_home: Path, service: Service) -> Iterator[Callable[..., tuple[int, str]]]:
    """Run a DAG as `airflow dags test` does, in a directory with a warehouse of its own."""
    with serve(service) as url:

        def run(dag: str, *more: str, fails: bool = False) -> tuple[int, str]:
            ended = airflow(
                airflow_home,
                "dags",
                "test",
                dag,
                *more,
                IMPORTER_HOME=str(tmp_path),
                DLT_DATA_DIR=str(tmp_path / "dlt"),
                SOURCES__IMPORTER__BASE_URL=url,
                SOURCES__IMPORTER__ACCESS_TOKEN=service.token,
            )
            return ended.returncode, ended.stdout + ended.stderr

        yield run


def records(folder: Path) -> int:
    with duckdb.connect(str(folder / "importer.duckdb"), read_only=True) as connection:
        return int(connection.execute("SELECT count(*) FROM importer_data.records").fetchall()[0][0])


def test_a_sync_a_comparison_and_a_mapped_backfill(
    place: Callable[..., tuple[int, str]], service: Service, tmp_path: Path
) -> None:
    code, said = place("importer_sync")
    assert (code, records(tmp_path)) == (0, 80), said
    code, said = place("importer_verify")
    assert code == 0, said
    service.requests.clear()
    code, said = place("importer_backfill")
    assert (code, records(tmp_path)) == (0, 80), said
    assert service.requests["records"] >= 4
    with duckdb.connect(str(tmp_path / "importer.duckdb")) as connection:
        sql = "SELECT mode, count(*) FROM importer_data.sync_runs GROUP BY 1 ORDER BY 1"
        assert connection.execute(sql).fetchall() == [("backfill", 2), ("incremental", 1)]
        connection.execute("DELETE FROM importer_data.records WHERE sort = 1")
    code, said = place("importer_verify")
    assert code != 0
    assert "is missing" in said or "record" in said


def test_a_partial_run_fails_the_dag(place: Callable[..., tuple[int, str]], service: Service, tmp_path: Path) -> None:
    service.faults = replace(service.faults, failing_imports=frozenset(service.slugs()[:1]))
    code, said = place("importer_sync")
    assert code != 0
    assert "is partial" in said
    assert records(tmp_path) == 60
