"""What a command loads before it does anything, counted in modules: a start is nearly all of what `status` costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from connector.cli import main

PROGRAM = """
import sys
from connector.cli.main import invoke
try:
    invoke(sys.argv[1:])
finally:
    print("\\n".join(sys.modules), file=sys.stderr)
"""
LATER = """
import sys
from connector.startup import defer_parts_of_dlt
defer_parts_of_dlt()
import dlt
assert "dlt.destinations.impl.snowflake.factory" not in sys.modules
assert "requests" not in sys.modules
from dlt.destinations import snowflake
from dlt.sources.helpers import requests
from connector.cli.configuration import prepare_environment
assert snowflake is sys.modules["dlt.destinations.impl.snowflake.factory"].snowflake
assert dlt.destinations.duckdb is sys.modules["dlt.destinations.impl.duckdb.factory"].duckdb
assert "athena" in dlt.destinations.__all__
dlt.config  # dlt configures its HTTP client when it reads its own configuration
dlt.config.get("x")
assert requests.get is requests.client.get
assert not hasattr(requests, "nonsense")
print(sorted(name for name in ("init", "Client", "__path__", "__file__", "__spec__") if hasattr(requests, name)))
"""
# What only other commands use, or nobody: dlt's other destinations, its HTTP client, what serves, draws or validates.
NEVER = {
    "dlt.destinations.impl.snowflake.factory", "requests", "urllib3", "pandas", "numpy", "aiohttp", "httpx", "jinja2",
    "pydantic", "rich", "shtab", "starlette", "uvicorn",
}  # fmt: skip


def loaded(*arguments: str) -> set[str]:
    ended = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False)
    return {*ended.stderr.splitlines()}


@pytest.mark.parametrize(
    ("arguments", "most"),
    [(("status", "--json"), 870), (("query", "SELECT 1", "--json"), 870), (("preview",), 1150)],
    ids=lambda case: case[0] if isinstance(case, tuple) else "",
)
def test_a_command_that_only_asks_loads_no_more_than_it_uses(arguments: tuple[str, ...], most: int) -> None:
    found = loaded(*arguments)
    assert found >= {"dlt", "duckdb"}
    assert found & NEVER <= ({"pydantic", "aiohttp", "numpy"} if "preview" in arguments else set())
    assert len(found) <= most


@pytest.mark.parametrize("command", ["status", "run", "query"])
def test_only_the_module_of_the_command_is_loaded(command: str) -> None:
    found = loaded("--json", command, "--help")
    others = {f"connector.cli.commands.{name}" for name in main.COMMANDS} - {f"connector.cli.commands.{command}"}
    assert f"connector.cli.commands.{command}" in found
    assert found & others == set()


def test_what_dlt_leaves_out_is_there_once_it_is_used() -> None:
    ended = subprocess.run([sys.executable, "-c", LATER], capture_output=True, text=True, check=False)
    assert ended.stderr == ""
    assert ended.stdout == "['Client', '__file__', '__path__', '__spec__', 'init']\n"
