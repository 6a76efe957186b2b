"""What the benchmark prints can be believed: lost rows show, and nothing but its own lines in a file changes."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from tests.benchmarks.contest import BEGIN, END, Standing, table, write_between_markers
from tests.benchmarks.measuring import IDEAL, US, Measured, count_rows, middle
from tests.benchmarks.workload import Shape


def measured(rows: int, wall_s: float = 2.0, code: int = 0) -> Measured:
    return Measured(wall_s, cpu_s=1.0, peak_mb=100.0, requests=10, code=code, rows=rows)


def test_a_peer_that_lost_rows_is_reported() -> None:
    shape = Shape(imports=1, rows=1_000)
    good, bad = Standing(US, measured(1_000), measured(1_000)), Standing(IDEAL, measured(1_000, 0.5), measured(990))
    lines = table([good, bad], shape).splitlines()
    assert "lost" not in lines[2]
    assert "500 | 1.0 | 1000 |" in lines[2]
    assert "**10 rows lost**" in lines[3]
    assert "| 0.5 | 2,000 | 0.2 |" in lines[3]


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


def test_only_what_is_between_the_markers_is_written(tmp_path: Path) -> None:
    file = tmp_path / "performance.md"
    file.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_between_markers(file, "new")
    assert file.read_text() == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    file.write_text("no markers")
    with pytest.raises(SystemExit):
        write_between_markers(file, "new")
