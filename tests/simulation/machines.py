"""The machines that the simulation runs on: dlt itself, or the model of it; DuckDB is real on both."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Protocol
from unittest import mock

import duckdb
from dlt.common.storages.file_storage import FileStorage
from dlt.destinations.impl.duckdb.sql_client import DuckDbSqlClient
from dlt.load.load import Load
from dlt.pipeline.pipeline import Pipeline

from connector.load.dlt_bridge import LoadPackage, load_package
from connector.load.emission import Emission
from connector.warehouse import Connection
from tests.simulation.holdings import Holdings
from tests.simulation.kill_switch import KillSwitch
from tests.simulation.manual_changes import change_manually, go_back_to_the_first_version
from tests.simulation.model import ModelPipeline, Ways, real_pipeline

FILE_STEPS = (
    "save",
    "save_atomic",
    "move_atomic_to_folder",
    "move_atomic_to_file",
    "copy_atomic_to_file",
    "delete",
    "delete_folder",
    "create_folder",
    "link_hard",
    "atomic_rename",
    "rename_tree",
    "rename_tree_files",
    "atomic_import",
    "touch_file",
)  # fmt: skip


class Machine(Protocol):
    """Where the connector runs: how a process sees its pipeline, how packages are loaded, and what a death leaves."""

    load: LoadPackage

    def process(self, kill_switch: KillSwitch, dice: Random) -> AbstractContextManager[Any]: ...
    def lose_directory(self) -> None: ...
    def disk_at_death(self) -> None: ...
    def died(self) -> None: ...
    def holdings(self) -> Holdings: ...
    def change_manually(self, dice: Random) -> str: ...
    def close(self) -> None: ...


class _Machine:
    """A DuckDB in memory, which a process reaches by connections of its own, and a directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "disk"
        self._folder.mkdir()
        self._saved = folder / "disk at death"
        self._database = duckdb.connect(":memory:", config={"threads": 1})
        self._database.execute("SET GLOBAL TimeZone = 'UTC'")
        self._process: duckdb.DuckDBPyConnection | None = None
        self._opened = 0

    def _connect(self) -> duckdb.DuckDBPyConnection:
        self._process = self._database.cursor()
        self._process.execute("SET TimeZone = 'UTC'")
        self._opened += 1
        if self._opened % 5:  # of so few rows it only takes time; every fifth process has it all the same
            self._process.execute("PRAGMA disable_optimizer")
        return self._process

    def lose_directory(self) -> None:
        shutil.rmtree(self._folder / "pipelines", ignore_errors=True)

    def disk_at_death(self) -> None:
        """Called at the very moment: what is unwound after it must not tidy up."""
        shutil.copytree(self._folder, self._saved)

    def died(self) -> None:
        assert self._process is not None
        self._process.close()  # DuckDB rolls back what was not committed
        self._database.execute("RESET memory_limit")
        self._database.execute("SET threads = 1")
        shutil.rmtree(self._folder)
        self._saved.rename(self._folder)

    def holdings(self) -> Holdings:
        return Holdings.of(self._database)

    def change_manually(self, dice: Random) -> str:
        """A user's hand in the warehouse; or an earlier version wrote it, with nothing of a later one on the disk.

        The first version wrote no history, so no warehouse with one is as it left it.
        """
        history = "FROM information_schema.tables WHERE table_name LIKE '%!_history' ESCAPE '!'"
        if dice.random() < 0.2 and not self._database.execute(f"SELECT 1 {history} LIMIT 1").fetchall():
            self.lose_directory()
            return go_back_to_the_first_version(self._database)
        return change_manually(self._database, dice)

    def close(self) -> None:
        self._database.close()


def _load_by_model(
    pipeline: Any, tables: Callable[[str], Iterator[Emission]], ways: Callable[[], Ways] = dict, /
) -> str | None:
    loaded: str | None = pipeline.load(tables, ways)
    return loaded


class ModelMachine(_Machine):
    """dlt's part is played by the model."""

    load = staticmethod(_load_by_model)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._packages: dict[str, list[Emission]] = {}
        self.clock: Callable[[], datetime] = lambda: datetime.now(UTC)

    @contextmanager
    def process(self, kill_switch: KillSwitch, dice: Random) -> Iterator[ModelPipeline]:
        pipeline = ModelPipeline(self._connect(), self._folder, kill_switch, dice, self._packages, self.clock)
        with counted_queries(kill_switch):
            yield pipeline


class DltMachine(_Machine):
    """dlt itself, every statement, every commit and every change of a file a step of the kill switch."""

    load = staticmethod(load_package)

    @contextmanager
    def process(self, kill_switch: KillSwitch, dice: Random) -> Iterator[Pipeline]:
        connection = self._connect()
        with ExitStack() as patched:
            patched.enter_context(counted_queries(kill_switch))
            patched.enter_context(_counted(DuckDbSqlClient, "execute_query", kill_switch, "sql", after=False))
            patched.enter_context(_counted(DuckDbSqlClient, "commit_transaction", kill_switch, "commit", after=True))
            for name in FILE_STEPS:
                patched.enter_context(_counted(FileStorage, name, kill_switch, "file", after=False))
            # a dead thread of the loader would be waited for
            patched.enter_context(_counted(Load, "complete_jobs", kill_switch, "file", after=False))
            # directories are listed in an order of no meaning, which differs between two runs of a seed
            listed = FileStorage.list_folder_files
            patched.enter_context(
                mock.patch.object(FileStorage, "list_folder_files", lambda *args, **kw: sorted(listed(*args, **kw)))
            )
            yield real_pipeline(connection, self._folder)

    def died(self) -> None:
        gc.collect()
        super().died()


@contextmanager
def _counted(owner: type, name: str, kill_switch: KillSwitch, kind: str, *, after: bool) -> Iterator[None]:
    """The original between two steps; static methods stay so."""
    raw = owner.__dict__[name]
    original = raw.__func__ if isinstance(raw, staticmethod) else raw

    def counted(*args: Any, **kwargs: Any) -> Any:
        kill_switch.step(kind, f"before {name}" if after else name)
        result = original(*args, **kwargs)
        if after:
            kill_switch.step(kind, f"after {name}")
        return result

    with mock.patch.object(owner, name, staticmethod(counted) if isinstance(raw, staticmethod) else counted):
        yield


@contextmanager
def counted_queries(kill_switch: KillSwitch) -> Iterator[None]:
    """What the connector asks goes past dlt's client, so it is counted here."""
    with ExitStack() as patched:
        for name in ("query", "rows"):
            patched.enter_context(mock.patch.object(Connection, name, _asking(getattr(Connection, name), kill_switch)))
        yield


def _asking(ask: Callable[..., Any], kill_switch: KillSwitch) -> Callable[..., Any]:
    def counted(self: Connection, sql: str, *args: Any) -> Any:
        kill_switch.step("sql", "SELECT")
        return ask(self, sql, *args)

    return counted
