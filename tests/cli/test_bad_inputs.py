"""65 bad inputs: none has a wrong answer, and each says what happened, where, and what to do."""

from __future__ import annotations

import pytest

from tests.support.bad_inputs import CASES, Case, filled, grade, prepare

pytestmark = pytest.mark.thorough

WAITING = {"a port nobody listens on"}  # a run waits a minute for a service to come back
PARAMS = [pytest.param(case, id=case.name, marks=pytest.mark.long if case.name in WAITING else ()) for case in CASES]


def test_there_are_65() -> None:
    assert len({case.name for case in CASES}) == 65


@pytest.mark.parametrize("case", PARAMS)
def test_what_the_command_says(command, case: Case) -> None:
    url, folder = command.environment["SOURCES__IMPORTER__BASE_URL"], command.directory / "work"
    folder.mkdir()
    prepare(case, folder)
    command.directory = folder
    for name, value in case.environment.items():
        command.environment[name] = filled(value, url, folder)
    for name in case.unset:
        del command.environment[name]
    for arguments in case.after:
        assert command(*arguments).code == 0
    ended = command(*(filled(each, url, folder) for each in case.arguments))
    found = grade(case, ended.code, ended.out + ended.err)
    assert (found.grade, found.missing) == ("good", ()), found.said
