"""Choose the seeds to run: `--simulation-seeds N` seeds, or one with `--simulation-seed S`."""

from __future__ import annotations

import logging
import os

import pytest
from dlt.common.configuration.utils import TraceLogContext

from tests.simulation.scenario import records_history

SEEDS_A_TEST = 5


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--simulation-seed", type=int, default=None, help="replay this seed, with all that happens in it")
    parser.addoption("--simulation-from", type=int, default=0, help="the first of the simulation's seeds (0)")
    parser.addoption("--simulation-history", action="store_true", help="of these seeds, those that record history")
    parser.addoption("--mutations", action="store_true", help="break each guarantee on purpose (minutes)")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run several seeds in one test, so that ten thousand seeds do not need the setup of ten thousand tests."""
    if "seeds" not in metafunc.fixturenames:
        return
    config = metafunc.config
    one = config.getoption("--simulation-seed", default=None)
    if one is None and os.environ.get("SIMULATION_SEED"):
        one = int(os.environ["SIMULATION_SEED"])
    first = config.getoption("--simulation-from", default=0) or 0
    last = first + int(config.getoption("--simulation-seeds"))
    every = getattr(metafunc.function, "every", 1)
    step = every * (SEEDS_A_TEST if every == 1 else 2)  # on dlt itself a seed takes seconds
    batches = [list(range(n, min(n + step, last), every)) for n in range(first, last, step)]
    if config.getoption("--simulation-history", default=False):
        batches = list(filter(None, ([n for n in batch if records_history(n)] for batch in batches)))
    if one is not None:
        batches = [[one]]
    metafunc.parametrize("seeds", batches, ids=[f"{batch[0]}-{batch[-1]}" for batch in batches])


@pytest.fixture(autouse=True)
def dlt_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable threads, whose timing would change a seed's run, and the trace file, which only takes time.

    Without a trace dlt keeps every resolved configuration, and some refer to a whole world in their frames, so that ten
    thousand seeds would exhaust the memory.
    """
    monkeypatch.setattr(TraceLogContext, "logging_enabled", False)
    for name, value in {"LOAD__WORKERS": "1", "NORMALIZE__WORKERS": "1", "ENABLE_RUNTIME_TRACE": "false"}.items():
        monkeypatch.setenv(name, value)
    logging.getLogger("connector").setLevel(logging.CRITICAL)
