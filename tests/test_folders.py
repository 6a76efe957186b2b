"""dlt reads settings and packages from folders of this user alone; anybody may run it, with or without a home."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

import connector
from connector.errors import ConfigError
from connector.folders import check_folder, use_private_folders
from connector.sandbox import Service, serve

pytestmark = pytest.mark.thorough

posix = pytest.mark.skipif(os.name != "posix", reason="folders have owners on POSIX")
root = pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root may become another user")
become = pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv (util-linux) is not installed")
STRANGER, SOMEBODY = 4002, 4001


@posix
@pytest.mark.parametrize("mode", [0o777, 0o702])
def test_a_folder_that_others_write_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "dlt"
    folder.mkdir()
    check_folder(folder)
    check_folder(tmp_path / "not there")
    folder.chmod(mode)
    with pytest.raises(ConfigError, match=r"Other users can write to the folder .*chmod go-w"):
        check_folder(folder)


@root
def test_a_folder_of_a_stranger_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, STRANGER, STRANGER)
    with pytest.raises(ConfigError, match=r"belongs to another user \(uid 4002\)"):
        check_folder(tmp_path)
    check_folder(tmp_path, STRANGER)


@posix
@pytest.mark.parametrize("variable", ["DLT_DATA_DIR", "settings"])
def test_the_folders_of_a_command_are_looked_at(tmp_path: Path, variable: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(0o777)
    settings = folder if variable == "settings" else tmp_path / ".dlt"
    environment = {} if variable == "settings" else {"DLT_DATA_DIR": str(folder)}
    with pytest.raises(ConfigError, match="Other users can write"):
        use_private_folders(settings, {"HOME": str(tmp_path), **environment})


@pytest.fixture
def somebodys() -> Iterator[Path]:
    """A project of theirs, in a place that they can reach, beside a folder that a stranger prepared for dlt."""
    place = Path(tempfile.mkdtemp(prefix="importer-", dir="/tmp"))
    place.chmod(0o755)
    project, temporary = place / "project", place / "tmp"
    for folder, owner, mode in ((project, SOMEBODY, 0o700), (temporary, 0, 0o1777)):
        folder.mkdir()
        os.chown(folder, owner, owner)
        folder.chmod(mode)
    yield project
    shutil.rmtree(place)


def environment(project: Path, home: str | None) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DLT_", "XDG_", "HOME"))}
    source = str(Path(connector.__file__).parent.parent)
    kept |= {"TMPDIR": str(project.parent / "tmp"), "PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1"}
    return kept if home is None else {**kept, "HOME": home}


# They may read the installed package wherever it is, and write nothing that is not theirs.
BECOME = (
    "setpriv", f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", "--clear-groups",
    "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search",
)  # fmt: skip


def start(project: Path, *arguments: str, home: str | None, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*BECOME, sys.executable, "-P", *arguments],
        cwd=project, env={**environment(project, home), **more}, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip


@root
@become
@pytest.mark.parametrize("home", [None, "/nonexistent", "/"])
def test_a_user_without_home_and_name_believes_no_shared_folder(somebodys: Path, home: str | None) -> None:
    shared = somebodys.parent / "tmp" / "dlt"
    shared.mkdir()
    (shared / "secrets.toml").write_text('[destination.duckdb]\ncredentials = "/nonexistent/stolen.duckdb"\n')
    os.chown(shared, STRANGER, STRANGER)
    service = Service(seed=1)
    service.add_import("T", [{"a": 1}])
    with serve(service) as url:
        ran = start(somebodys, "-m", "connector", "run", "--json", home=home, SOURCES__IMPORTER__BASE_URL=url,
                    SOURCES__IMPORTER__ACCESS_TOKEN=service.token)  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert (somebodys / "importer.duckdb").exists()
    data = somebodys / ".dlt" / "data"
    assert data.stat().st_mode & 0o777 == 0o700
    assert list(data.glob("pipelines/*/importer/state.json"))
    assert [path.name for path in shared.iterdir()] == ["secrets.toml"]


@root
@become
def test_settings_in_a_home_that_cannot_be_written_still_count(somebodys: Path) -> None:
    """dlt reads no settings there, so rules of privacy would not apply."""
    home = somebodys.parent / "home"
    (home / ".dlt").mkdir(parents=True)
    (home / ".dlt" / "config.toml").write_text('[sources.importer.privacy."*"]\na = "drop"\n')
    service = Service(seed=1)
    service.add_import("T", [{"a": "in clear text", "b": 1}])
    with serve(service) as url:
        for _ in range(2):
            ran = start(somebodys, "-m", "connector", "run", home=str(home), SOURCES__IMPORTER__BASE_URL=url,
                        SOURCES__IMPORTER__ACCESS_TOKEN=service.token)  # fmt: skip
            assert ran.returncode == 0, ran.stderr
    with duckdb.connect(str(somebodys / "importer.duckdb"), read_only=True) as connection:
        assert connection.execute("SELECT data FROM importer_data.records").fetchall() == [('{"b":1}',)]


@root
@become
def test_a_folder_of_a_stranger_is_refused_in_one_sentence(somebodys: Path) -> None:
    (somebodys / ".dlt").mkdir()
    os.chown(somebodys / ".dlt", STRANGER, STRANGER)
    for home in (None, str(somebodys)):
        ran = start(somebodys, "-m", "connector", "status", "--json", home=home)
        assert ran.returncode == 2
        assert json.loads(ran.stdout)["error"].endswith("or remove what does not belong to you.")


@root
@become
def test_dlt_alone_is_refused_where_its_folder_is_a_strangers(somebodys: Path) -> None:
    shared = somebodys.parent / "tmp" / "dlt"
    shared.mkdir()
    os.chown(shared, STRANGER, STRANGER)
    program = "from connector import importer_source; importer_source('https://service.example', 'token')"
    ran = start(somebodys, "-c", program, home=None)
    assert "ConfigError: The folder" in ran.stderr
    assert start(somebodys, "-c", program, home=str(somebodys)).returncode == 0
