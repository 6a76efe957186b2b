"""The surroundings that conftest.py promises every test."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest


@pytest.mark.parametrize("address", [("192.0.2.1", 80), ("2001:db8::1", 80), ("service.example", 443)])
def test_nothing_beyond_loopback_is_reached(address: tuple[str, int]) -> None:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family) as outside:
        for connect in (outside.connect, outside.connect_ex):
            with pytest.raises(BaseException, match="stay on this machine"):
                connect(address)


def test_loopback_is_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as here, socket.create_connection(here.getsockname()):
        pass


def test_the_home_directory_is_nobodys() -> None:
    assert {path.name for path in Path.home().iterdir()} <= {"dlt", *(p.name for p in Path.home().glob("xdg_*"))}


def test_dlt_keeps_to_the_home_directory_and_to_itself() -> None:
    from dlt.common.configuration.container import Container
    from dlt.common.configuration.specs.pluggable_run_context import PluggableRunContext

    context = Container()[PluggableRunContext].context
    assert Path(context.data_dir).is_relative_to(Path.home())
    assert context.runtime_config.dlthub_telemetry is False


def test_the_working_directory_is_empty(tmp_path: Path) -> None:
    assert Path.cwd() == tmp_path
    assert not list(tmp_path.iterdir())
