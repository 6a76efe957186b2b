"""Test that the simulation detects broken guarantees; `--mutations` runs these tests, which take minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.machines import ModelMachine
from tests.simulation.mutations import MUTATIONS, Mutation
from tests.simulation.world import World


@pytest.mark.timeout(0)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_broken_guarantee_is_noticed(mutation: Mutation, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--mutations", default=False):
        pytest.skip("--mutations runs it")
    for tried, seed in enumerate(dict.fromkeys((mutation.first, *range(mutation.seeds))), start=1):
        why = _broken_by(mutation, seed, tmp_path / str(seed))
        if why:
            print(f"{mutation.name}: noticed by seed {seed}, the {tried}. of them: {why[:200]}")
            return
    pytest.fail(f"{mutation.name}: not noticed within {mutation.seeds} seeds")


def _broken_by(mutation: Mutation, seed: int, folder: Path) -> str | None:
    folder.mkdir()
    machine = ModelMachine(folder)
    with mutation.patch():  # a mutation that cannot be applied proves nothing
        try:
            World(mutation.scenario(seed), machine).live()
        except Exception as broken:
            return f"{type(broken).__name__}: {broken}"
        finally:
            machine.close()
    return None


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_can_be_applied(mutation: Mutation) -> None:
    with mutation.patch():
        pass
