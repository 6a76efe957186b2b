"""Define the machines of the simulation: dlt itself, or a model of it; DuckDB is real on both."""

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
from connector.load.table_rows import TableRows
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
    """The environment of the connector: the pipeline of a process, the loading of packages, and what a kill leaves."""

    load: LoadPackage

    def process(self, kill_switch: KillSwitch, dice: Random) -> AbstractContextManager[Any]: ...
    def lose_directory(self) -> None: ...
    def disk_at_death(self) -> None: ...
    def died(self) -> None: ...
    def holdings(self) -> Holdings: ...
    def change_manually(self, dice: Random) -> str: ...
    def close(self) -> None: ...


class _Machine:
    """A DuckDB in memory, to which each process has its own connections, and a directory."""

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
        if self._opened % 5:  # with so few rows it only takes time; every fifth process uses it anyway
            self._process.execute("PRAGMA disable_optimizer")
        return self._process

    def lose_directory(self) -> None:
        shutil.rmtree(self._folder / "pipelines", ignore_errors=True)

    def disk_at_death(self) -> None:
        """Handle the kill at its moment: code that unwinds afterwards must not clean up."""
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
        """Change the warehouse by hand, or make it one that an earlier version wrote, without files of a later one.

        The first version wrote no history, so a warehouse with history is not changed into one of its own.
        """
        history = "FROM information_schema.tables WHERE table_name LIKE '%!_history' ESCAPE '!'"
        if dice.random() < 0.2 and not self._database.execute(f"SELECT 1 {history} LIMIT 1").fetchall():
            self.lose_directory()
            return go_back_to_the_first_version(self._database)
        return change_manually(self._database, dice)

    def close(self) -> None:
        self._database.close()


def _load_by_model(
    pipeline: Any, tables: Callable[[str], Iterator[TableRows]], dispositions: Callable[[], Ways] = dict, /
) -> str | None:
    loaded: str | None = pipeline.load(tables, dispositions)
    return loaded


class ModelMachine(_Machine):
    """A machine on which the model replaces dlt."""

    load = staticmethod(_load_by_model)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._packages: dict[str, list[TableRows]] = {}
        self.clock: Callable[[], datetime] = lambda: datetime.now(UTC)

    @contextmanager
    def process(self, kill_switch: KillSwitch, dice: Random) -> Iterator[ModelPipeline]:
        pipeline = ModelPipeline(self._connect(), self._folder, kill_switch, dice, self._packages, self.clock)
        with counted_queries(kill_switch):
            yield pipeline


class DltMachine(_Machine):
    """A machine with dlt itself; every statement, commit and change of a file is a step of the kill switch."""

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
            # otherwise it would wait for a dead thread of the loader
            patched.enter_context(_counted(Load, "complete_jobs", kill_switch, "file", after=False))
            # directories are listed in an arbitrary order, which differs between two runs of a seed
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
    """Wrap the original between two steps; static methods stay static."""
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
    """Count the connector's queries here, because they bypass dlt's client."""
    with ExitStack() as patched:
        for name in ("query", "rows"):
            patched.enter_context(mock.patch.object(Connection, name, _asking(getattr(Connection, name), kill_switch)))
        yield


def _asking(ask: Callable[..., Any], kill_switch: KillSwitch) -> Callable[..., Any]:
    def counted(self: Connection, sql: str, *args: Any) -> Any:
        kill_switch.step("sql", "SELECT")
        return ask(self, sql, *args)

    return counted
