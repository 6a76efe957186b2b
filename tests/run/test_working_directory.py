"""No file of dlt's working directory can stop a command, and no lock is narrower than the dataset."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import dlt
import pytest
from dlt.pipeline.pipeline import Pipeline

from connector import ConfigError, LockedError
from connector.cli.configuration import open_pipeline
from connector.load.working_directory import rebuild_working_directory, use_own_working_directory
from connector.maintain.doctor import doctor
from connector.maintain.rebuild import rebuild
from connector.run.sync import sync
from connector.runs import Status, Tally
from connector.sandbox import Service, serve
from connector.settings import Settings
from connector.warehouse import Warehouse
from connector.warehouse.lock import lock_path, sole_writer
from connector.warehouse.status import read_status

pytestmark = pytest.mark.thorough

FILES = ("state.json", "schemas/importer.schema.json", "normalize/.version", "load/.version")


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _half(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


class Project:
    """A data directory of dlt, a DuckDB file, and pipelines as the command opens them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.service = Service(seed=1)
        self.slug = self.service.add_import("T", [{"a": "7"}])

    def pipeline(self, name: str = "importer", dataset: str = "importer_data", file: str = "w.duckdb") -> Pipeline:
        to = f"duckdb:///{self.folder / file}"
        return open_pipeline(argparse.Namespace(pipeline_name=name, dataset=dataset, destination=None, to=to))

    def run(self, pipeline: Pipeline | None = None) -> Tally:
        with serve(self.service) as url:
            settings = Settings.load(base_url=url, access_token=self.service.token)
            return sync(pipeline or self.pipeline(), settings)

    def working_directories(self) -> list[Path]:
        return [path.parent for path in sorted((self.folder / "dlt" / "pipelines").glob("*/*/state.json"))]

    def values(self, dataset: str = "importer_data") -> list[str]:
        with Warehouse(self.pipeline(dataset=dataset)).connect() as connection:
            return sorted(row["data"] for row in connection.query("SELECT data FROM records").to_pylist())


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("DLT_DATA_DIR", str(tmp_path / "dlt"))
    return Project(tmp_path)


def test_a_run_removes_the_working_directory_of_a_killed_shard(project: Project) -> None:
    """Its packages would keep what a privacy rule or a deletion removes from the warehouse."""
    shard = project.pipeline()
    use_own_working_directory(shard, "shard-1-of-2")
    rebuild_working_directory(shard)
    (left := Path(shard.pipelines_dir, "records.parquet")).write_text("of a shard that was killed")
    project.run()
    assert not left.exists()


def test_a_run_that_is_killed_leaves_no_temporary_directory(project: Project) -> None:
    scratch = Path((pipeline := project.pipeline()).pipelines_dir)
    assert scratch.exists()
    with sole_writer(pipeline):
        rebuild_working_directory(pipeline)
        assert not scratch.exists()
    assert project.run(pipeline).status is Status.succeeded


@pytest.mark.parametrize(
    ("file", "tear"),
    [
        *((file, _half) for file in FILES),
        *(("state.json", tear) for tear in (_empty, Path.unlink)),
        *(pytest.param(file, tear, marks=pytest.mark.long) for file in FILES[1:] for tear in (_empty, Path.unlink)),
    ],
)
def test_a_torn_file_stops_no_command_and_is_healed(project: Project, file: str, tear: Callable[[Path], None]) -> None:
    assert project.run().status == "succeeded"
    [working] = project.working_directories()
    tear(working / file)

    with Warehouse(project.pipeline()).connect() as connection:
        assert read_status(connection, 5).imports == {"synced": 1}
    assert doctor(project.pipeline()).findings == []
    project.service.append_rows(project.slug, [{"a": "8"}])
    assert project.run().status == "succeeded"
    assert project.values() == ['{"a":"7"}', '{"a":"8"}']
    assert project.working_directories() == [working]
    assert json.loads((working / "state.json").read_text())


def test_a_package_half_there_is_dropped(project: Project) -> None:
    assert project.run().status == "succeeded"
    [working] = project.working_directories()
    (working / "load" / "normalized" / "1700000000.5" / "new_jobs").mkdir(parents=True)
    (working / "state.json").write_bytes(b"")
    assert [finding.kind for finding in doctor(project.pipeline()).findings] == ["pending_package"]
    assert project.run().status == "succeeded"
    assert doctor(project.pipeline()).findings == []


def test_a_directory_of_the_first_layout_is_taken_over(project: Project) -> None:
    """Its package is of imports that the ledger does not count, so they are read again; another dataset's stays."""
    file = project.folder / "w.duckdb"
    digest = hashlib.blake2b(repr([str(file)]).encode(), digest_size=6).hexdigest()
    working = project.folder / "dlt" / "pipelines" / f"warehouse-{digest}" / "importer"
    working.mkdir(parents=True)
    before = dlt.pipeline("importer", destination=dlt.destinations.duckdb(str(file)), dataset_name="importer_data",
                          pipelines_dir=str(working.parent))  # fmt: skip
    before.extract([{"slug": "stale"}], table_name="records")
    mark = working / "importer_destination.json"

    mark.write_text(json.dumps({"destination": digest, "dataset": "another"}))
    assert doctor(project.pipeline()).findings == []
    assert project.run().status == "succeeded"
    assert mark.exists()

    mark.write_text(json.dumps({"destination": digest, "dataset": "importer_data"}))
    assert [finding.kind for finding in doctor(project.pipeline()).findings] == ["pending_package"]
    assert project.run().status == "succeeded"
    assert not working.exists()
    assert project.values() == ['{"a":"7"}']


def test_two_datasets_have_two_directories(project: Project) -> None:
    """A package of one that waits to be loaded is not touched by a run into the other."""
    one, other = project.pipeline(dataset="tenant_a"), project.pipeline(dataset="tenant_b")
    assert project.run(one).status == "succeeded"
    one.extract([{"slug": "x"}], table_name="records")
    with sole_writer(project.pipeline(dataset="tenant_a")):
        assert project.run(other).status == "succeeded"
    assert one.has_pending_data
    assert len(project.working_directories()) == 2
    assert project.values("tenant_b") == project.values("tenant_a") == ['{"a":"7"}']


def test_the_lock_is_the_datasets_whatever_the_pipeline_is_called(project: Project) -> None:
    (project.folder / "link.duckdb").symlink_to(project.folder / "w.duckdb")
    same = [project.pipeline(), project.pipeline("other")]
    same.append(project.pipeline(file="link.duckdb"))
    assert len({lock_path(pipeline) for pipeline in same}) == 1
    others = [project.pipeline(dataset="other"), project.pipeline(file="other.duckdb")]
    assert len({lock_path(pipeline) for pipeline in [same[0], *others]}) == 3
    with sole_writer(same[0]), pytest.raises(LockedError, match=r"under way \(process \d+"):
        project.run(project.pipeline("other"))
    assert not project.service.requests


def test_two_datasets_with_one_directory_of_a_user_do_not_run_at_once(project: Project) -> None:
    def pipeline(dataset: str) -> Pipeline:
        destination = dlt.destinations.duckdb(str(project.folder / f"{dataset}_.duckdb"))
        return dlt.pipeline("importer", destination=destination, dataset_name=dataset)

    first, second = pipeline("one"), pipeline("two")
    with sole_writer(first), pytest.raises(LockedError, match="working directory"), sole_writer(second):
        pass
    with sole_writer(second):
        pass


@pytest.mark.parametrize("by", ["two", *(pytest.param(name, marks=pytest.mark.long) for name in ("one", "three"))])
def test_a_rebuild_under_one_name_stops_no_run_under_another(project: Project, by: str) -> None:
    assert project.run(project.pipeline("one")).status == "succeeded"
    project.service.append_rows(project.slug, [{"a": "8"}])
    assert project.run(project.pipeline("two")).status == "succeeded"
    hints = {"records_t": {"a": "bigint"}}
    settings = Settings.load(base_url="https://service.example", access_token="x", hints=hints)
    assert rebuild(project.pipeline(by), settings)[0].retyped == (("a", "text", "bigint"),)

    for name in ("one", "two", "three"):
        project.service.append_rows(project.slug, [{"a": "9"}])
        tally = project.run(project.pipeline(name))
        assert (tally.status, tally.fatal) == ("succeeded", None)
    assert len(project.values()) == 5


@pytest.mark.parametrize("dev_mode", [False, True])
def test_the_dataset_keeps_its_name(project: Project, monkeypatch: pytest.MonkeyPatch, dev_mode: bool) -> None:
    """dlt makes it of the one that is given, by a layout, and dev_mode adds the time."""
    monkeypatch.setenv("DATASET_NAME_LAYOUT", "team_%s")
    to = dlt.destinations.duckdb(str(project.folder / "w.duckdb"))
    pipeline = dlt.pipeline(
        "importer",
        str(project.folder / "own"),
        destination=to,
        dataset_name="d",
        dev_mode=dev_mode,
        refresh="drop_data",
    )
    name = pipeline.dataset_name
    assert name.startswith("team_d")
    assert [project.run(pipeline).records_loaded for _ in range(2)] == [1, 0]
    assert pipeline.dataset_name == name
    with Warehouse(pipeline).connect() as connection:
        sql = "SELECT DISTINCT table_schema AS s FROM information_schema.tables WHERE table_name = 'sync_runs'"
        assert {row["s"] for row in connection.rows(sql)} == {name, f"{name}_staging"}


def test_a_warehouse_within_the_working_directory_is_refused(project: Project) -> None:
    place = project.folder / "pipelines"
    file = place / "importer" / "w.duckdb"
    pipeline = dlt.pipeline("importer", destination=dlt.destinations.duckdb(str(file)), pipelines_dir=str(place))
    with pytest.raises(ConfigError, match="give it another path"):
        project.run(pipeline)


def test_a_pipeline_that_restores_nothing_keeps_its_state(project: Project) -> None:
    def pipeline() -> Pipeline:
        destination = dlt.destinations.duckdb(str(project.folder / "w.duckdb"))
        made = dlt.pipeline("importer", destination=destination, dataset_name="importer_data")
        made.config.restore_from_destination = False
        return made

    mine = pipeline()
    mine.set_local_state_val("mine", 1)
    assert project.run(mine).status == "succeeded"
    assert pipeline().get_local_state_val("mine") == 1


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may remove whatever it likes")
def test_a_directory_that_cannot_be_emptied_is_not_used(project: Project) -> None:
    assert project.run().status == "succeeded"
    [working] = project.working_directories()
    working.chmod(0o500)
    try:
        with pytest.raises(OSError):
            project.run()
    finally:
        working.chmod(0o700)
    shutil.rmtree(working)
