"""A run that has taken as long as `max_run_time` allows ends as if it had been stopped, and the next one goes on."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from connector.errors import ConfigError
from connector.run.ports import Ports
from connector.run.sync import sync
from connector.sandbox import Service, serve
from connector.settings import Settings
from tests.run.conftest import Warehouse


@pytest.mark.parametrize("requests", [3, 60])
def test_a_run_ends_in_time_and_loses_nothing(requests: int, warehouse: Warehouse) -> None:
    service = Service(seed=1)
    service.add_generated("customers", imports=90, rows=10)
    real = Ports.real()

    def now() -> datetime:
        return real.now() + timedelta(hours=7 * (service.requests["records"] > requests))

    with serve(service) as url:
        settings = Settings.load(base_url=url, access_token=service.token, max_run_time="6h", max_concurrency=1)
        ended = sync(warehouse.pipeline(), settings, ports=replace(real, now=now))
        assert (ended.status, ended.interrupted_by) == ("interrupted", 15)
        assert "max_run_time" in str(ended.error)
        assert ended.records_loaded < 900
        again = sync(warehouse.pipeline(), settings)
    assert (again.status, again.records_loaded) == ("succeeded", 900 - ended.records_loaded)


@pytest.mark.parametrize("given", ["soon", "0s", "-1h", "6"])
def test_what_is_no_length_of_time_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="max_run_time"):
        Settings.load(base_url="https://x", access_token="x", max_run_time=given)
