"""Without the drivers that load exactly, PostgreSQL is refused before anything is read or written."""

from __future__ import annotations

import pytest
from dlt.common.exceptions import MissingDependencyException
from dlt.pipeline.exceptions import PipelineStepFailed

from connector import ConfigError
from connector.cli.exit_codes import explain
from connector.sandbox import Service
from tests.types.conftest import PostgreSQL

REFUSAL = r"empty texts would become null; install its drivers: pip install 'importer-connector\[postgres\]'"


def test_postgresql_without_adbc_is_refused(postgres: PostgreSQL, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(seed=1)
    service.add_import("people", [{"name": ""}])
    monkeypatch.setenv("DISABLE_ADBC_DETECTION", "true")  # dlt's own switch: as if the drivers were not installed

    with pytest.raises(ConfigError, match=REFUSAL):
        postgres.run(service)
    with pytest.raises(PipelineStepFailed) as refused:
        postgres.run_dlt(service)

    assert "empty texts would become null" in str(refused.value)
    assert not service.requests
    assert postgres.tables("") == []


def test_with_them_an_empty_text_stays_one(postgres: PostgreSQL) -> None:
    service = Service(seed=1)
    service.add_import("people", [{"name": ""}, {"name": None}])

    assert postgres.run(service).status == "succeeded"

    assert set(postgres.tuples("SELECT name FROM records_people")) == {("",), (None,)}


def test_missing_packages_are_named_as_the_extra_that_brings_them_all() -> None:
    problem = explain(MissingDependencyException("destination postgres", ["dlt[postgres]"]))
    assert isinstance(problem, ConfigError)
    assert str(problem).endswith("pip install 'importer-connector[postgres]'.")
