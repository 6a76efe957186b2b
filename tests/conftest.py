"""What every test runs in: an empty home and working directory, no telemetry, no proxy, nothing beyond loopback."""

from __future__ import annotations

import atexit
import importlib.util
import logging
import os
import shutil
import signal
import socket
import sys
import sysconfig
import tempfile
from collections import defaultdict
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
INSTALLED = Path(sysconfig.get_path("purelib"), "connector")
NEEDED = ("hypothesis", "xdist", "pytest_timeout")
FIX = "`make unit PYTEST_ARGS='tests/transform -k name'` builds and installs it and runs these tests."


def remove_checkout_from_path() -> None:
    """Import `connector` as it is installed, however pytest was started, here and in child processes."""
    sys.path[:] = [place for place in sys.path if Path(place or ".").resolve() != CHECKOUT]
    places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if kept := [place for place in places if place and Path(place).resolve() != CHECKOUT]:
        os.environ["PYTHONPATH"] = os.pathsep.join(kept)
    else:
        os.environ.pop("PYTHONPATH", None)


def why_not() -> str | None:
    """Say in one sentence why tests here would not be tests of the built wheel; None if they are."""
    if not (INSTALLED / "__init__.py").exists():
        return f"The wheel of importer-connector is not installed for {sys.executable}: {FIX}"
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        return f"The tests need {', '.join(missing)}, which {sys.executable} does not have: {FIX}"
    for prefix, top in (("", "connector"), ("connector", "sql")):
        for path in sorted((CHECKOUT / top).rglob("*")):
            if "__pycache__" in path.parts or not path.is_file():
                continue
            built = INSTALLED.parent / prefix / path.relative_to(CHECKOUT)
            if not built.is_file() or built.read_bytes() != path.read_bytes():
                return f"The installed wheel is not of this checkout, {path.relative_to(CHECKOUT)} differs: {FIX}"
    return None


remove_checkout_from_path()
if "PYTEST_XDIST_WORKER" not in os.environ and (reason := why_not()) is not None:
    sys.exit(reason)

from hypothesis import settings  # noqa: E402

SESSION = pytest.StashKey[tuple[Path, pytest.MonkeyPatch]]()
ENDED = pytest.StashKey[int]()
PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy")
# A developer's own settings of the connector or of dlt must not decide what a test sees.
FOREIGN_PREFIXES = (
    "SOURCES__",
    "DESTINATION__",
    "CREDENTIALS",
    "RUNTIME__",
    "LOAD__",
    "NORMALIZE__",
    "EXTRACT__",
    "DLT_",
)

# What every change waits for takes the same examples each time; `make fuzz` looks for new ones.
settings.register_profile("same", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("long", deadline=None, print_blob=True)
LONG_FACTOR = 100
# Destinations other than DuckDB: tests that are the same on each run there with --long, those marked `dialect` on one.
OTHERS = {"postgres", "sqlite", "mysql", "delta", "parquet", "s3"}
WITHOUT_WAREHOUSE = {"extract", "service", "transform", "sandbox"}  # folders of tests that take milliseconds


class NetworkRefused(BaseException):
    """A test reached for something that is not on this machine; no `except Exception` may take it for an outage."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--simulation-seeds", type=int, default=10, help="how many seeds the simulation runs (10)")
    parser.addoption("--fuzz-seeds", type=int, default=1_000, help="how many spoilt replies are read (1000)")
    parser.addoption("--shard-rounds", type=int, default=2, help="how often shards are killed side by side (2)")
    parser.addoption("--kills", type=int, default=8, help="how often the command is killed in a row (8)")
    parser.addoption("--long", action="store_true", help="run what is marked long, too (minutes)")
    parser.addoption("--share", type=int, default=1, help="of the thorough tests, run one of so many by name (all)")


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--hypothesis-profile", default=None):
        settings.load_profile("same")
    atexit.register(_exit_without_finalizing, config)  # first, and so called last
    # A shell starts what runs in the background with SIGINT ignored, and so would every process that a test interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Short, for a PostgreSQL socket's path may have 107 bytes.
    home = Path(tempfile.mkdtemp(prefix="importer-"))
    patch = pytest.MonkeyPatch()
    config.stash[SESSION] = (home, patch)
    _isolate(home, patch)
    _stay_on_loopback(patch)
    if runs_tests(config):
        from tests.support.speedups import apply_speedups

        apply_speedups()


def runs_tests(config: pytest.Config) -> bool:
    """Tell a worker, or the one process where there are none, from the process that hands tests out to workers."""
    return hasattr(config, "workerinput") or not config.getoption("numprocesses", default=None)


def pytest_collection_finish(session: pytest.Session) -> None:
    if runs_tests(session.config):
        from tests.support.speedups import exempt_loaded_objects

        exempt_loaded_objects()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The long profile multiplies the number of examples, also where a test states its own."""
    skip_combinations(items)
    leave_out_of_share(items, config.getoption("--share"))
    if settings.get_current_profile_name() != "long":
        return
    properties = {getattr(item, "function", None) for item in items}
    for function in properties:
        own = getattr(function, "_hypothesis_internal_use_settings", None)
        if own is not None:
            longer = settings(own, max_examples=own.max_examples * LONG_FACTOR)
            function._hypothesis_internal_use_settings = longer  # type: ignore[union-attr]


def skip_combinations(items: list[pytest.Item]) -> None:
    """Mark as long, of the cases of a test with a warehouse, those that only combine parameters anew.

    Each value of each parameter keeps a case, except OTHERS: a test marked `dialect` keeps one of them, which follows
    from its name, or all of them in the folder `destinations`; any other test keeps none. Of a thorough test, only one
    case is kept outside that folder, which follows from its name, too.
    """
    cases: dict[str, list[pytest.Function]] = defaultdict(list)
    others: dict[str, set[str]] = defaultdict(set)
    quick: set[str] = set()
    for item in items:
        test = item.nodeid.partition("[")[0]
        if not item.get_closest_marker("long"):
            others[test] |= _others(item)
        if not item.get_closest_marker("thorough"):
            quick.add(test)
    for item in items:
        folders = item.path.relative_to(CHECKOUT / "tests").parts
        if item.get_closest_marker("long") or WITHOUT_WAREHOUSE.intersection(folders):
            continue
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            test = item.nodeid.partition("[")[0]
            chosen = set()
            if item.get_closest_marker("dialect"):
                one = test in quick and "destinations" not in folders
                chosen = _one(others[test], test) if one else others[test]
            if _others(item) <= chosen:
                cases[test].append(item)
            else:
                item.add_marker("long")
    for test, waiting in cases.items():
        if test not in quick and "/destinations/" not in test:
            everywhere = [
                case for case in waiting if "mysql" not in _others(case)
            ] or waiting  # it may not be installed
            waiting.remove(sorted(everywhere, key=lambda case: case.nodeid)[crc32(test.encode()) % len(everywhere)])
            for case in waiting:
                case.add_marker("long")
            continue
        missing = set().union(*map(_values, waiting))
        while missing:
            taken = max(waiting, key=lambda case: len(missing & _values(case)))
            missing -= _values(taken)
            waiting.remove(taken)
        for case in waiting:
            case.add_marker("long")


def leave_out_of_share(items: list[pytest.Item], share: int) -> None:
    """Skip all cases of thorough tests but one in `share`, which follow from their names."""
    for item in items:
        if item.get_closest_marker("thorough") and crc32(item.nodeid.encode()) % share:
            item.add_marker(pytest.mark.skip(reason="`make thorough` runs it, without --share"))


def _others(item: pytest.Item) -> set[str]:
    return OTHERS.intersection(map(str, item.callspec.params.values())) if hasattr(item, "callspec") else set()


def _one(others: set[str], test: str) -> set[str]:
    return {sorted(others)[crc32(test.encode()) % len(others)]} if others else set()


def _values(case: pytest.Function) -> set[tuple[str, str]]:
    return {(name, repr(value)) for name, value in case.callspec.params.items()}


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("long") and not item.config.getoption("--long"):
        pytest.skip("`make long` runs it, or --long")


def _exit_without_finalizing(config: pytest.Config) -> None:
    """End before extension modules list, line by line, what was alive: that would hide what failed."""
    sys.stdout.flush()
    sys.stderr.flush()
    if hasattr(config, "workerinput"):
        os._exit(0)
    if ENDED in config.stash:
        os._exit(config.stash[ENDED])


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[ENDED] = exitstatus


def pytest_unconfigure(config: pytest.Config) -> None:
    home, patch = config.stash[SESSION]
    patch.undo()
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(autouse=True)
def empty_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """dlt reads `.dlt/` of the working directory and puts its default DuckDB file there."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def logger_as_imported() -> None:
    """A command that was run in this process, or the simulation, left the package's logger as it wanted it."""
    logger = logging.getLogger("connector")
    logger.handlers[:] = []
    logger.propagate = True
    logger.setLevel(logging.NOTSET)


def _isolate(home: Path, patch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower() in PROXIES or name.startswith(FOREIGN_PREFIXES):
            patch.delenv(name)
    for name in ("HOME", "USERPROFILE"):
        patch.setenv(name, str(home))
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        patch.setenv(name, str(home / name.lower()))
        (home / name.lower()).mkdir(mode=0o700)
    patch.setenv("DLT_DATA_DIR", str(home / "dlt"))
    patch.setenv("RUNTIME__DLTHUB_TELEMETRY", "false")
    patch.setenv("NO_PROXY", "*")
    # Widths and colours of what is printed must not depend on the terminal that the tests were started from.
    patch.setenv("COLUMNS", "120")
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        patch.delenv(name, raising=False)


def _stay_on_loopback(patch: pytest.MonkeyPatch) -> None:
    for name in ("connect", "connect_ex"):
        patch.setattr(socket.socket, name, _guarded(getattr(socket.socket, name)))


def _guarded(connect: Any) -> Any:
    def guarded(self: socket.socket, address: Any) -> Any:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_loopback(address[0]):
            raise NetworkRefused(f"tests stay on this machine, and this one wanted {address[0]!r} port {address[1]}")
        return connect(self, address)

    return guarded


def _is_loopback(host: Any) -> bool:
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return bool(host == "localhost")
