"""Four shards side by side, killed at random while the service is edited, end equal to the service."""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import dlt
import psycopg2
import pytest

from connector.maintain.verify import verify
from connector.sandbox import Faults, Service, serve
from connector.settings import Settings
from tests.processes import Process, start
from tests.types.conftest import postgres_uri

__all__ = ["postgres_uri"]

pytestmark = pytest.mark.long

SHARDS = 4
KILLS = 6
PATIENCE_S = 600
TEMPLATES = ("customers", "orders", "products", "employees")
LARGE = "events"  # so large that all shards share it


class Round:
    """A service, a dataset, and the command on it."""

    def __init__(self, folder: Path, uri: str, seed: int) -> None:
        self.folder = folder
        self.uri = uri
        self.dataset = f"s{uuid.uuid4().hex[:8]}"
        self.dice = Random(seed)
        self.service = Service(seed)
        for name in (*TEMPLATES, "suppliers", "visits"):
            for _ in range(self.dice.randint(1, 4)):
                self._add(name)
        for _ in range(24):
            self._add(LARGE)
        self.service.add_import(None, [{"untemplated": n} for n in range(7)])
        self.service.faults = Faults(latency=(0.0, 0.04))
        self.url = ""

    def _add(self, template: str) -> None:
        rows = [
            {"n": n, "text": f"{self.dice.random()}", "mixed": self.dice.choice([1, 2.5, "x", None, True])}
            for n in range(self.dice.randint(1, 60))
        ]
        metadata = {"source": "desk", self.dice.choice("abc"): self.dice.choice([1, "text", 2.5])}
        self.service.add_import(template, rows, metadata=metadata)

    def edit(self) -> None:
        """What somebody does meanwhile, one thing at a time."""
        slug = self.dice.choice(self.service.slugs())
        what = self.dice.randrange(5)
        if what == 0:
            self.service.append_rows(slug, [{"n": 1, f"new {self.dice.randrange(3)}": self.dice.choice([1, "x"])}])
        elif what == 1:
            self.service.set_metadata(slug, {f"key {self.dice.randrange(3)}": self.dice.choice([1, "x", 2.5])})
        elif what == 2:
            self._add(self.dice.choice((*TEMPLATES, LARGE, "late")))
        elif what == 3 and len(self.service.slugs()) > 8:
            self.service.delete_import(slug)
        else:
            self.service.set_template(slug, self.dice.choice((*TEMPLATES, LARGE)))

    def start(self, *arguments: str) -> Process:
        environment = {
            **os.environ,
            "SOURCES__IMPORTER__BASE_URL": self.url,
            "SOURCES__IMPORTER__ACCESS_TOKEN": self.service.token,
            "SOURCES__IMPORTER__BATCH_ROWS": "40",
            "DLT_DATA_DIR": str(self.folder / "dlt"),
        }
        command = ["--to", self.uri, "--dataset", self.dataset, "--json", *arguments]
        return start(command, cwd=self.folder, env=environment)

    def shard(self, number: int) -> Process:
        return self.start("backfill", "--shard", f"{number}/{SHARDS}")

    def killed(self) -> int:
        """Run the shards until each has ended well, killing some of them; return how many kills met a live one."""
        running = {number: self.shard(number) for number in range(1, SHARDS + 1)}
        kills, deadline = 0, time.monotonic() + PATIENCE_S
        while running:
            assert time.monotonic() < deadline, "the shards came to no end"
            time.sleep(self.dice.uniform(0.05, 0.8))
            if self.dice.random() < 0.4:
                self.edit()
            number = self.dice.choice(sorted(running))
            if kills < KILLS and running[number].poll() is None:
                kills += 1
                running[number].send_signal(signal.SIGKILL)
                running[number].communicate()
                running[number] = self.shard(number)
            for each, process in list(running.items()):
                if process.poll() is not None:
                    out, err = process.communicate()
                    assert process.returncode in (0, 1, 3), err
                    assert process.returncode != 1 or "deadlock" in err, err  # two that crossed: PostgreSQL ends one
                    running.pop(each)
                    if process.returncode == 1:
                        running[each] = self.shard(each)
                    else:
                        assert json.loads(out)["mode"] == f"shard {each}/{SHARDS}"
        return kills

    def run(self) -> dict[str, Any]:
        process = self.start("run", "--allow-mass-delete")
        out, err = process.communicate(timeout=PATIENCE_S)
        assert out, err
        found: dict[str, Any] = json.loads(out)
        return found

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(psycopg2.connect(self.uri)) as connection, connection.cursor() as cursor:
            cursor.execute(f"SET search_path = {self.dataset}")
            cursor.execute(sql)
            return [tuple(row) for row in cursor.fetchall()]

    def check(self) -> None:
        """Compare with the service by two ways: `verify`, and plain SQL against what the sandbox holds."""
        pipeline = dlt.pipeline(
            "verify",
            destination=dlt.destinations.postgres(self.uri),
            dataset_name=self.dataset,
            pipelines_dir=str(self.folder / "verify"),
        )
        settings = Settings.load(base_url=self.url, access_token=self.service.token)
        report = verify(pipeline, settings, deep=True)
        assert [each.sentence for each in report.differences] == []
        shown = {(record["slug"], slug) for slug in self.service.slugs() for record in self.service.records(slug)}
        held = self.rows("SELECT slug, import_slug FROM records")
        assert len(held) == len(set(held)) == len(shown)
        assert set(held) == shown
        typed = [t for (t,) in self.rows("SELECT DISTINCT table_name FROM sync_imports WHERE table_name IS NOT NULL")]
        assert sum(n for table in typed for ((n,),) in [self.rows(f'SELECT count(*) FROM "{table}"')]) == len(shown)
        for table in typed:
            self._check_counts(table)
        assert self.rows("SELECT run_id FROM sync_runs WHERE status = 'running'") == []
        schemas = "SELECT schema_name FROM information_schema.schemata WHERE schema_name LIKE '%s%%shard%%'"
        assert self.rows(schemas % self.dataset) == []
        assert self.rows(f"SELECT to_regclass('{self.dataset}.sync_shards')") == [(None,)]

    def _check_counts(self, table: str) -> None:
        """Compare what `sync_fields` says of the values of each field with the table itself."""
        fields = self.rows(
            "SELECT column_name, has_text, has_double, value_count, null_count FROM sync_fields "
            f"WHERE table_name = '{table}' AND data_type IS NOT NULL"
        )
        for name, has_text, has_double, *counts in fields:
            columns = [name, *[f"{name}__v_text"] * has_text, *[f"{name}__v_double"] * has_double]
            values = " + ".join(f'count("{column}")' for column in columns)
            assert self.rows(f'SELECT {values}, count(*) - ({values}) FROM "{table}"') == [tuple(counts)], (table, name)


def test_four_shards_killed_at_random_end_equal_to_the_service(
    tmp_path: Path, postgres_uri: str, pytestconfig: pytest.Config
) -> None:
    rounds: int = pytestconfig.getoption("--shard-rounds")
    kills = 0
    for seed in range(rounds):
        folder = tmp_path / str(seed)
        folder.mkdir()
        round_ = Round(folder, postgres_uri, seed)
        with serve(round_.service) as round_.url:
            if seed % 2:
                assert round_.run()["status"] == "succeeded"
            kills += round_.killed()
            shared = round_.rows("SELECT template_slug FROM sync_shards WHERE shard = 0 AND template_slug IS NOT NULL")
            assert len(shared) == 1, "no template was shared"
            last = round_.run()
            assert last["status"] == "succeeded", (seed, last)
            round_.check()
        print(f"round {seed}: {kills} kills so far, the last run read {last['imports_changed']} imports", flush=True)
    assert kills >= 2 * rounds, "most shards were over before they could be killed, so little was shown"
