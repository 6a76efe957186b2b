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
from connector.startup import prepare_imports
prepare_imports()
import dlt
assert "requests" not in sys.modules
from dlt.sources.helpers import requests
dlt.config  # dlt configures its HTTP client when it reads its own configuration
dlt.config.get("x")
assert requests.get is requests.client.get
assert not hasattr(requests, "nonsense")
print(sorted(name for name in ("init", "Client", "__path__", "__file__", "__spec__") if hasattr(requests, name)))
"""
# What only other commands use, or nobody: dlt's HTTP client, what serves, draws or validates.
NEVER = {
    "requests", "urllib3", "pandas", "aiohttp", "httpx", "jinja2",
    "pydantic", "rich", "shtab", "starlette", "uvicorn",
}  # fmt: skip


def loaded(*arguments: str) -> set[str]:
    ended = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False)
    return {*ended.stderr.splitlines()}


@pytest.mark.parametrize(
    ("arguments", "most"),
    [(("status", "--json"), 960), (("query", "SELECT 1", "--json"), 960), (("preview",), 1180)],
    ids=lambda case: case[0] if isinstance(case, tuple) else "",
)
def test_a_command_that_only_asks_loads_no_more_than_it_uses(arguments: tuple[str, ...], most: int) -> None:
    optional = {"numpy", "sqlalchemy"}  # which pyarrow and dlt load where they are installed
    found = {name for name in loaded(*arguments) if name.partition(".")[0] not in optional}
    assert found >= {"dlt", "duckdb"}
    assert found & NEVER <= ({"pydantic", "aiohttp"} if "preview" in arguments else set())
    assert len(found) <= most


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("nonsense",), ()])
def test_no_command_is_loaded_for_the_help(arguments: tuple[str, ...]) -> None:
    found = loaded(*arguments)
    assert "connector.cli.main" in found
    assert not {name for name in found if name.startswith(("dlt", "pyarrow", "connector.cli.commands."))}


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
