"""What the benchmark prints can be believed: lost rows show, and nothing but its own lines in a file changes."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import duckdb
import psycopg2
import pytest

from tests.benchmarks.contest import BEGIN, END, Standing, table, write_between_markers
from tests.benchmarks.measuring import IDEAL, TUNED, US, US_POSTGRES, Measured, count_rows, middle
from tests.benchmarks.postgres import postgres_server
from tests.benchmarks.workload import Shape


def measured(rows: int, wall_s: float = 2.0, code: int = 0) -> Measured:
    return Measured(wall_s, cpu_s=1.0, peak_mb=100.0, requests=10, code=code, rows=rows)


def test_a_peer_that_lost_rows_is_reported() -> None:
    shape = Shape(imports=1, rows=1_000)
    good = measured(1_000)
    standings = [
        Standing(US, shape, good, good, good),
        Standing(IDEAL, shape, measured(1_000, 0.5), good, measured(990)),
    ]
    lines = table("some imports", standings).splitlines()
    assert lines[0].startswith("| some imports | CPU s |")
    assert "lost" not in lines[2]
    assert "| 1.0 | 1.0 | 1000.00 | 500 |" in lines[2]
    assert "**10 rows lost**" in lines[3]
    assert "| 2,000 |" in lines[3]


def test_a_part_is_compared_by_its_rows_and_a_database_counts() -> None:
    shape, good = Shape(imports=10, rows=100), measured(1_000)
    standings = [
        Standing(US, shape, good, good, good),
        Standing(US_POSTGRES, shape, replace(good, database_cpu_s=0.5), good, good),
        Standing(TUNED, shape.divided(5), replace(good, rows=200), None, None, part=5),
    ]
    lines = table("some imports", standings).splitlines()
    assert "| 1.0 + 0.5 | 1.5 | 150.00 |" in lines[3]
    assert "1/5 of the imports | 1.0 | 5.0 | 500.00 | 100 |" in lines[4]
    assert "all again" in lines[4]
    assert "lost" not in "".join(lines)


def test_one_bad_run_shows_in_the_median() -> None:
    runs = [measured(1_000, 1.0), measured(999, 2.0), measured(1_000, 9.0, code=3)]
    assert middle(runs) == measured(999, 2.0, code=3)


@pytest.mark.parametrize(("schema", "key"), [("main", "_slug"), ("importer_data", "_record_slug")])
def test_rows_count_once_and_in_every_table(tmp_path: Path, schema: str, key: str) -> None:
    file = tmp_path / "peer.duckdb"
    assert count_rows(file) == 0
    with duckdb.connect(str(file)) as connection:
        connection.execute("CREATE SCHEMA importer_data; CREATE SCHEMA importer_staging")
        connection.execute(f"CREATE TABLE {schema}.records AS SELECT range % 90 AS slug FROM range(100)")
        connection.execute("CREATE TABLE importer_staging.records AS SELECT range AS slug FROM range(5000)")
    assert count_rows(file) == 90
    with duckdb.connect(str(file)) as connection:
        for template in (0, 1):
            connection.execute(
                f"CREATE TABLE {schema}.records_template_{template} AS SELECT range {key} FROM range(40)"
            )
    assert count_rows(file) == 80


def test_rows_and_processor_time_of_postgresql_are_counted(tmp_path: Path) -> None:
    with postgres_server(tmp_path) as server, closing(psycopg2.connect(server.uri)) as connection:
        started_s = server.cpu_s()
        with connection, connection.cursor() as cursor:
            cursor.execute("CREATE SCHEMA bench")
            cursor.execute("CREATE TABLE bench.records AS SELECT n % 90 AS slug FROM generate_series(1, 200000) n")
            for template in (0, 1):
                cursor.execute(
                    f"CREATE TABLE bench.records_template_{template} AS SELECT n + {template} AS _record_slug "
                    "FROM generate_series(1, 79) n"
                )
        assert server.count_rows("bench") == 80
        assert server.cpu_s() > started_s


def test_only_what_is_between_the_markers_is_written(tmp_path: Path) -> None:
    file = tmp_path / "performance.md"
    file.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_between_markers(file, "new")
    assert file.read_text() == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    file.write_text("no markers")
    with pytest.raises(SystemExit):
        write_between_markers(file, "new")
