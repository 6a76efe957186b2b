"""`importer-sync report` as a person runs it."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from connector.cli import main, redaction
from tests.cli.conftest import TOKEN, command, service
from tests.reporting.html.conftest import Troubled, execute
from tests.types.conftest import DuckDB

__all__ = ["command", "service"]


@pytest.mark.thorough
def test_from_an_empty_directory_to_a_page(command: Any) -> None:
    ended = command("report", "--json", "--out", "early.html")
    assert ended.code == 2
    assert "There is no warehouse at importer.duckdb" in ended.document["error"]
    assert not list(command.directory.glob("*.html"))
    assert not list(command.directory.glob("*.duckdb"))

    assert command("run").code == 0
    ended = command("report", "--json", "--out", "page.html")
    assert ended.code == 0
    told = ended.document
    assert (told["path"], told["verdict"], told["imports"], told["records"]) == ("page.html", "good", 4, 360)
    assert told["bytes"] == (command.directory / "page.html").stat().st_size
    assert told["fresh_as_of"] < told["made_at"]

    ended = command("report")
    assert "Everything is loaded and reconciled." in ended.out
    page = (command.directory / "report.html").read_text(encoding="utf-8")
    assert "importer.duckdb" in page
    assert str(command.directory) not in page

    for out in ("-", "/dev/stdout"):
        ended = command("report", "--out", out)
        assert (ended.code, ended.out.splitlines()[0], ended.err) == (0, "<!doctype html>", "")
        assert ended.out.rstrip().endswith("</html>")
    ended = command("report", "--out", "/dev/full")
    assert (ended.code, "cannot be written to /dev/full (No space left on device)" in ended.err) == (1, True)

    ended = command("report", "--dataset", "elsewhere", "--out", "empty.html")
    assert ended.code == 0
    assert "Nothing has been loaded yet." in ended.out
    assert "How to begin" in (command.directory / "empty.html").read_text(encoding="utf-8")


def test_a_database_that_is_not_there(command: Any) -> None:
    ended = command("report", "--to", "postgresql://nobody:pass-word-1@127.0.0.1:9/none")
    assert ended.code in (1, 2)
    assert re.search(r"refused", ended.err)
    assert "pass-word-1" not in ended.err


def test_a_token_in_the_warehouse_does_not_reach_the_page(
    troubled: tuple[DuckDB, Troubled], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, _ = troubled
    execute(place, "UPDATE sync_runs SET error = %s", f"Bearer {TOKEN} was sent")
    monkeypatch.setenv("SOURCES__IMPORTER__BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("SOURCES__IMPORTER__ACCESS_TOKEN", TOKEN)
    monkeypatch.setattr(redaction, "_known", set())
    monkeypatch.setattr(main, "prepare_environment", lambda **_: None)
    code = main.invoke(["report", "--to", f"duckdb:{place.file}", "--dataset", place.dataset, "--out", "page.html"])
    assert code == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert TOKEN not in page
    assert "Bearer *** was sent" in page


def test_it_waits_for_whoever_has_the_file(troubled: tuple[DuckDB, Troubled], command: Any) -> None:
    import subprocess
    import sys

    place, _ = troubled
    holding = f"import duckdb, time; c = duckdb.connect({str(place.file)!r}); print('open', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", holding], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        asked = command.start("report", "--to", f"duckdb:{place.file}", "--dataset", place.dataset)
        time.sleep(3)
        holder.kill()
    assert command.end(asked).code == 0
