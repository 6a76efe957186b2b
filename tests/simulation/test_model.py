"""Test that the model of dlt, on which most seeds run, changes a warehouse as dlt does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulation.machines import DltMachine, ModelMachine
from tests.simulation.scenario import Scenario, make_scenario
from tests.simulation.world import World


@pytest.mark.parametrize("seed", [1, 11, *(pytest.param(seed, marks=pytest.mark.long) for seed in (21, 30))])
def test_the_same_happens_and_the_same_is_loaded(seed: int, tmp_path: Path) -> None:
    """Kills fall on steps, which differ in number; without them every request and every row is the same."""
    scenario = _without_kills(make_scenario(seed))
    worlds = []
    for make in (ModelMachine, DltMachine):
        folder = tmp_path / make.__name__
        folder.mkdir()
        machine = make(folder)
        world = World(scenario, machine)
        world.live()
        worlds.append((world.trace, machine.holdings().fingerprint()))
        machine.close()

    (model_trace, model_rows), (dlt_trace, dlt_rows) = worlds
    assert model_trace == dlt_trace
    assert model_rows == dlt_rows


def _without_kills(scenario: Scenario) -> Scenario:
    return replace(scenario, episodes=tuple(replace(episode, kill=None) for episode in scenario.episodes))
