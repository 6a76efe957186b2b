"""`plan` says beforehand what a run then does, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import dlt
import pytest
from dlt.pipeline.pipeline import Pipeline

from connector.errors import TransientError
from connector.maintain.planning import RunPlan, plan
from connector.run.sync import sync
from connector.runs import Tally
from connector.sandbox import Service, serve
from connector.settings import Settings

pytestmark = pytest.mark.thorough


@pytest.fixture
def pipeline(tmp_path: Path) -> Callable[[], Pipeline]:
    def made() -> Pipeline:
        destination = dlt.destinations.duckdb(str(tmp_path / "w.duckdb"))
        return dlt.pipeline("p", destination=destination, dataset_name="d", pipelines_dir=str(tmp_path / "dlt"))

    return made


def foreseen(pipeline: Callable[[], Pipeline], service: Service) -> tuple[RunPlan, Tally]:
    """Return the plan, and what the run after it did."""
    with serve(service) as url:
        settings = Settings.load(base_url=url, access_token=service.token)
        return plan(pipeline(), settings), sync(pipeline(), settings)


def agree(found: RunPlan, did: Tally) -> None:
    assert did.status == "succeeded"
    assert found.imports_listed == did.imports_listed
    assert found.imports_new + found.imports_changed == did.imports_changed
    assert found.imports_deleted == did.imports_deleted
    assert abs(found.requests - did.requests) <= max(2, 0.1 * did.requests), (found, did.requests)
    assert abs(found.bytes_received - did.bytes_received) <= 0.25 * did.bytes_received
    assert found.packages == len(did.load_ids)
    assert found.problems == ()


def _exact(found: RunPlan) -> RunPlan:
    return replace(found, seconds=0, requests=0, bytes_received=0)


@pytest.mark.parametrize("rows", [3, 99, 100, 250])
def test_a_first_run_costs_what_was_said(rows: int, pipeline: Callable[[], Pipeline], tmp_path: Path) -> None:
    service = Service(seed=1)
    service.add_generated("customers", imports=130, rows=rows)
    with serve(service) as url:
        found = plan(pipeline(), Settings.load(base_url=url, access_token=service.token))
    assert not (tmp_path / "w.duckdb").exists()
    assert (found.imports_new, found.imports_changed, found.records) == (130, 0, 130 * rows)
    assert found.seconds > 0
    again, did = foreseen(pipeline, service)
    assert _exact(again) == _exact(found)
    agree(again, did)


def test_changes_deletions_and_an_idle_run(pipeline: Callable[[], Pipeline]) -> None:
    service = Service(seed=2)
    slugs = service.add_generated("customers", imports=6, rows=120)
    agree(*foreseen(pipeline, service))
    service.append_rows(slugs[0], [{"a": 1}])
    service.delete_import(slugs[1])
    service.add_generated("orders", imports=2, rows=10)
    found, did = foreseen(pipeline, service)
    agree(found, did)
    assert (found.imports_new, found.imports_changed, found.imports_deleted, found.records) == (2, 1, 1, 141)
    found, did = foreseen(pipeline, service)
    agree(found, did)
    assert (found.imports_new, found.imports_changed, found.imports_deleted, found.records) == (0, 0, 0, 0)


def test_a_service_that_is_away_is_told_at_once(pipeline: Callable[[], Pipeline]) -> None:
    with serve(Service(seed=1)) as url:
        settings = Settings.load(base_url=url, access_token="x")
    with pytest.raises(TransientError, match=r"after 3 attempts; nothing listens there: base_url may name the wrong"):
        plan(pipeline(), settings)


def test_a_ceiling_on_the_rate_decides_how_long_it_takes(pipeline: Callable[[], Pipeline]) -> None:
    service = Service(seed=1)
    service.add_generated("customers", imports=40, rows=10)
    with serve(service) as url:
        settings = Settings.load(base_url=url, access_token=service.token, requests_per_second=100)
        found = plan(pipeline(), settings)
    assert found.seconds >= 0.4
