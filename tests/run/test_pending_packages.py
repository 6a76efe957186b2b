"""dlt alone loads no outdated package that another process left, and loads this source's only as the only writer."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import dlt
import pytest
from dlt.load.load import Load
from dlt.pipeline.pipeline import Pipeline

from connector import ConfigError, ConnectorError, LockedError, importer_source
from connector.sandbox import Service, serve
from connector.warehouse import Warehouse as Opened
from connector.warehouse.lock import sole_writer

from .conftest import Warehouse, service_token
from .test_guarantees import assert_equal

# dlt warns in a way that Python deprecates
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore:The 'warn' method is deprecated:DeprecationWarning"),
]


class World:
    """A service with one record, in a warehouse, and a package with its next value that was left at some step."""

    def __init__(self, warehouse: Warehouse) -> None:
        self.warehouse = warehouse
        self.service = Service(seed=1)
        self.slug = self.service.add_import("t", [{"n": 1}])
        assert warehouse.run(self.service).status == "succeeded"

    @property
    def folder(self) -> Path:
        return self.warehouse.folder / "pipelines"

    def edit(self, n: int) -> None:
        [record] = self.service.record_slugs(self.slug)
        self.service.edit_row(self.slug, record, {"n": n})

    def leave(self, *, normalized: bool) -> None:
        """Extract, as a process does that is killed before it loads."""
        with serve(self.service) as url:
            pipeline = self.warehouse.pipeline()
            pipeline.extract(importer_source(base_url=url, access_token=service_token(self.service)))
            if normalized:
                pipeline.normalize()

    def left(self) -> list[Path]:
        return [*self.folder.glob("importer/load/normalized/*"), *self.folder.glob("importer/normalize/extracted/*")]

    def run_dlt(self) -> None:
        with serve(self.service) as url:
            source = importer_source(base_url=url, access_token=service_token(self.service))
            self.warehouse.pipeline().run(source)

    def run_elsewhere(self) -> None:
        """Run in another working directory, as another machine does."""
        aside = self.folder.with_name("aside")
        self.folder.rename(aside)
        assert self.warehouse.run(self.service).status == "succeeded"
        shutil.rmtree(self.folder)
        aside.rename(self.folder)

    def other(self, dataset_name: str = "importer_data") -> Pipeline:
        """Return a pipeline into the same database, as of another machine."""
        destination = self.warehouse.pipeline().destination
        folder = str(self.folder.with_name("other"))
        return dlt.pipeline("other", folder, destination=destination, dataset_name=dataset_name)

    def values(self) -> list[tuple[int]]:
        return self.warehouse.query("SELECT n FROM records_t")


@pytest.fixture
def world(warehouse: Warehouse) -> World:
    return World(warehouse)


@contextmanager
def killed_behind(table: str) -> Iterator[None]:
    """The load dies once the file of this table is loaded; dlt knows nothing of it."""

    class KilledError(BaseException):
        pass

    def dying(*_: object) -> None:
        pipeline = dlt.current.pipeline()
        [file] = Path(pipeline.working_dir).glob(f"load/normalized/*/new_jobs/{table}.*")
        with pipeline.sql_client() as client:
            client.execute_sql(f"INSERT INTO {table} BY NAME SELECT * FROM read_parquet('{file}')")
        raise KilledError

    with mock.patch.object(Load, "run", dying), pytest.raises(KilledError):
        yield


@pytest.mark.parametrize("normalized", [False, True])
def test_a_run_first_loads_what_was_left_if_nothing_was_loaded_since(world: World, normalized: bool) -> None:
    world.edit(2)
    world.leave(normalized=normalized)
    world.edit(3)
    world.run_dlt()
    assert world.values() == [(2,)]
    assert not world.left()
    assert not world.warehouse.needs_audit()
    world.run_dlt()
    assert_equal(world.service, world.warehouse)


@pytest.mark.parametrize("normalized", [False, True])
def test_what_is_outdated_is_refused_until_it_is_given_up(world: World, normalized: bool) -> None:
    world.edit(2)
    world.leave(normalized=normalized)
    world.edit(3)
    world.run_elsewhere()
    world.edit(4)
    for go in (world.run_dlt, world.warehouse.pipeline().load):
        with pytest.raises(ConfigError, match="is outdated: something was loaded into dataset 'importer_data'"):
            go()
    assert world.values() == [(3,)]
    world.warehouse.pipeline().abort_packages()
    assert not world.left()
    world.run_dlt()
    assert_equal(world.service, world.warehouse)


def test_only_sync_goes_on_after_a_sync_that_failed(world: World) -> None:
    world.edit(2)
    with mock.patch.object(Load, "run", side_effect=OSError("lost")):
        assert world.warehouse.run(world.service).status == "failed"
    assert world.left()
    with pytest.raises(ConfigError, match="or to a sync that did not end"):
        world.run_dlt()
    world.edit(3)
    assert world.warehouse.run(world.service).status == "succeeded"
    assert not world.left()
    assert_equal(world.service, world.warehouse)


def test_the_next_run_checks_all_rows_if_a_package_is_loaded_in_part(world: World) -> None:
    """No ledger row tells of its new import. The row of its run says that it failed and that all is repaired."""
    new = world.service.add_import("t", [{"n": 2}])
    world.leave(normalized=True)
    with Opened(world.warehouse.pipeline()).connect() as connection:
        connection.execute(
            f"UPDATE {connection.name('sync_runs')} SET status = 'failed', error_kind = 'Repaired' "
            "WHERE status = 'running'"
        )
    assert not world.warehouse.needs_audit()
    with killed_behind("records_t"):
        world.run_dlt()
    assert len(world.values()) > 1
    world.service.delete_import(new)
    world.run_elsewhere()
    assert_equal(world.service, world.warehouse)


@pytest.mark.parametrize("step", ["run", "load"])
def test_nothing_is_loaded_while_another_run_is_under_way(world: World, step: str) -> None:
    world.edit(2)
    world.leave(normalized=True)
    go = world.run_dlt if step == "run" else world.warehouse.pipeline().load
    with sole_writer(world.other()), pytest.raises(LockedError, match="under way"):
        go()
    assert world.values() == [(1,)]
    assert world.left()


def test_the_dataset_may_be_named_only_when_it_is_loaded(world: World) -> None:
    """The lock and the number of packages are those of the dataset which dlt loads into."""
    world.edit(2)
    world.leave(normalized=True)
    pipeline = world.warehouse.pipeline()
    with sole_writer(world.other(dataset_name="second")), pytest.raises(LockedError, match="'second'"):
        pipeline.load(dataset_name="second")
    with pytest.raises(ConfigError, match="into dataset 'second'"):
        world.warehouse.pipeline().load(dataset_name="second")
    assert world.values() == [(1,)]


def test_a_run_that_lost_its_lock_loads_nothing(world: World) -> None:
    """The session that held it in the database may end after the extraction."""
    world.edit(2)
    with serve(world.service) as url:
        pipeline = world.warehouse.pipeline()
        pipeline.extract(importer_source(base_url=url, access_token=service_token(world.service)))
    pipeline.normalize()
    lost = mock.patch("connector.load.pending_packages.check_lock_held", side_effect=ConnectorError("was lost"))
    with lost, pytest.raises(ConnectorError, match="was lost"):
        pipeline.load()
    assert world.values() == [(1,)]


def test_a_package_of_the_user_is_loaded_as_ever(world: World) -> None:
    pipeline = world.warehouse.pipeline()
    pipeline.extract([{"n": 1}], table_name="of_the_user")
    pipeline.normalize()
    world.run_elsewhere()
    with sole_writer(world.other()):
        world.warehouse.pipeline().run([{"n": 2}], table_name="of_the_user")
    assert world.warehouse.query("SELECT n FROM of_the_user") == [(1,)]
