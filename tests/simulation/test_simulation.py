"""Test that the world of every seed ends with a warehouse equal to its service, without violating a guarantee.

A failing seed is printed with its events and the command to run it again. `--simulation-seeds N` sets the number of
seeds, `--simulation-seed S` (or SIMULATION_SEED=S) runs one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.simulation.machines import DltMachine, ModelMachine
from tests.simulation.scenario import make_scenario
from tests.simulation.world import World

MakeMachine = Callable[[Path], "ModelMachine | DltMachine"]


def live(seed: int, folder: Path, make: MakeMachine) -> World:
    """Run a whole world; a violated guarantee reports the events that led to it."""
    folder.mkdir(parents=True)
    machine = make(folder)
    world = World(make_scenario(seed), machine)
    try:
        world.live()
    except Exception as broken:
        for line in world.trace:
            print(line)
        kind = "test_the_same_on_dlt_itself" if make is DltMachine else "test_the_warehouse_ends_equal_to_the_service"
        again = f"pytest tests/simulation/test_simulation.py -k {kind} --simulation-seed {seed}"
        pytest.fail(f"seed {seed}: {type(broken).__name__}: {broken}\nRun it again with: {again}")
    finally:
        machine.close()
    return world


def test_the_warehouse_ends_equal_to_the_service(
    seeds: list[int], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    for seed in seeds:
        world = live(seed, tmp_path / str(seed), ModelMachine)
        if len(seeds) == 1:
            print("\n".join(world.trace))


def test_the_same_on_dlt_itself(seeds: list[int], tmp_path: Path) -> None:
    for seed in seeds:
        live(seed, tmp_path / str(seed), DltMachine)


def test_a_json_column_first_known_by_its_hint_takes_values_later(tmp_path: Path) -> None:
    live(3250, tmp_path / "3250", DltMachine)


test_the_same_on_dlt_itself.every = 50  # type: ignore[attr-defined]


@pytest.mark.parametrize("make", [ModelMachine, pytest.param(DltMachine, marks=pytest.mark.long)])
def test_a_seed_replays_exactly(tmp_path: Path, make: MakeMachine) -> None:
    first, second = (live(7, tmp_path / n, make) for n in ("first", "second"))

    assert first.trace == second.trace
    assert any("killed at" in line for line in first.trace)


@pytest.mark.long
def test_the_seeds_bring_about_everything_they_are_meant_to(tmp_path: Path) -> None:
    """Check that events happen: a simulation without any would pass as well."""
    missing = {
        "killed at http", "killed at sql", "killed at commit", "killed at file", "working directory is lost",
        "status=succeeded", "status=partial", "status=interrupted", " 429", " reset", " cut", " 404", " 500",
        "deleted import", "restored import", "emptied import", "is now of Odd rows", "swapped a row", "claims",
        "spoiled import", "lists imports in order", "run backfill", "'deletes': 'keep'", "imports_deleted=1",
        " 416", " 422", " 502",
        "fields without column",
    }  # fmt: skip
    for seed in range(40):
        happened = "\n".join(live(seed, tmp_path / str(seed), ModelMachine).trace)
        missing = {event for event in missing if event not in happened}
        if not missing:
            return
    pytest.fail(f"40 seeds without {sorted(missing)}")
