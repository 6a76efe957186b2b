"""What is tested is what is shipped: the built wheel, whole, current, typed, and with the right metadata."""

from __future__ import annotations

import ast
import itertools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import Distribution, distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import connector

CHECKOUT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel() -> Distribution:
    return distribution("importer-connector")


def shipped(wheel: Distribution) -> set[str]:
    return {path.as_posix() for path in wheel.files or () if "__pycache__" not in path.parts}


def test_the_tests_import_the_installed_wheel() -> None:
    assert Path(connector.__file__).parent == Path(sysconfig.get_path("purelib")) / "connector"
    assert str(CHECKOUT) not in sys.path
    assert "" not in sys.path


def test_the_wheel_holds_the_checkout_as_it_is(wheel: Distribution) -> None:
    sources = {
        prefix + path.relative_to(CHECKOUT).as_posix(): path.read_bytes()
        for prefix, top in (("", "connector"), ("connector/", "sql"))
        for path in (CHECKOUT / top).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packaged = {
        name: Path(str(wheel.locate_file(name))).read_bytes()
        for name in shipped(wheel)
        if name.startswith("connector/")
    }
    assert packaged == sources


def test_the_wheel_is_typed(wheel: Distribution) -> None:
    assert "connector/py.typed" in shipped(wheel)


def test_the_wheel_holds_nothing_else(wheel: Distribution) -> None:
    tops = {name.split("/")[0] for name in shipped(wheel) if not name.startswith("..")}
    assert tops == {"connector", f"importer_connector-{wheel.version}.dist-info"}


def test_metadata(wheel: Distribution) -> None:
    metadata = wheel.metadata
    assert metadata["Name"] == "importer-connector"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "MIT"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload() == (CHECKOUT / "README.md").read_text(encoding="utf-8")  # type: ignore[attr-defined]


def test_the_wheel_is_built_byte_for_byte_anew(tmp_path: Path) -> None:
    """Whoever builds the same sources elsewhere, later and with other permissions gets the same file."""
    pytest.importorskip("hatchling")
    built = []
    for name, mask in (("here", 0o022), ("elsewhere", 0o077)):
        sources = tmp_path / name
        before = os.umask(mask)
        try:
            for top in ("connector", "sql"):
                shutil.copytree(
                    CHECKOUT / top,
                    sources / top,
                    ignore=shutil.ignore_patterns("__pycache__"),
                    copy_function=shutil.copyfile,
                )
            for beside in ("pyproject.toml", "README.md", "LICENSE"):
                shutil.copyfile(CHECKOUT / beside, sources / beside)
            subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel"], cwd=sources, check=True)
        finally:
            os.umask(before)
        [file] = (sources / "dist").glob("*.whl")
        built.append((file.name, file.read_bytes()))
    assert built[0] == built[1]


def test_the_command_starts(wheel: Distribution) -> None:
    commands = {entry.name: entry for entry in wheel.entry_points if entry.group == "console_scripts"}
    assert set(commands) == {"importer-sync"}
    assert callable(commands["importer-sync"].load())


def test_what_is_imported_is_what_is_declared(wheel: Distribution) -> None:
    declared, with_extras = (
        {
            canonicalize_name(requirement.name)
            for requirement in map(Requirement, wheel.requires or ())
            if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras)
        }
        for extras in ([""], ["", "postgres", "sqlite", "mysql", "delta", "s3"])
    )
    owners = packages_distributions()
    imported = {
        canonicalize_name(owners[top][0]): top
        for path in (CHECKOUT / "connector").rglob("*.py")
        for top in imported_packages(path)
        if top not in sys.stdlib_module_names and top != "connector"
    }
    assert declared <= set(imported) <= with_extras
    assert set(imported) - declared == {"psycopg2-binary", "sqlalchemy", "deltalake", "obstore", "fsspec"}


def test_each_requirement_has_its_reason(wheel: Distribution) -> None:
    text = (CHECKOUT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    [table] = re.findall(r"^\| package \| what for \|\n(.*?)\n\n", text, re.MULTILINE | re.DOTALL)
    rows = [re.findall(r"`([^`]+)`", line.split("|")[1]) for line in table.splitlines()[1:]]
    assert sorted(itertools.chain.from_iterable(rows)) == sorted(
        {Requirement(each).name for each in wheel.requires or ()}
    )
    assert all(line.split("|")[2].strip() for line in table.splitlines())


def imported_packages(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def test_tests_of_other_sources_than_the_installed_ones_end_with_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    shutil.copy(CHECKOUT / "tests" / "conftest.py", tmp_path / "tests")
    (tmp_path / "connector").mkdir()
    (tmp_path / "connector" / "__init__.py").write_text("changed = True\n")
    (tmp_path / "tests" / "test_it.py").write_text("def test_it():\n    assert False\n")
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests"],
        cwd=tmp_path,
        env=own,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr.startswith("The installed wheel is not of this checkout, connector/__init__.py differs: `make")
    assert len(ended.stderr.splitlines()) == 1
