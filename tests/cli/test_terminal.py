"""What a person sees: tables as wide as the terminal, colour where it may be, and help with a slip of the pen."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from rich.cells import cell_len
from rich.console import Console

from connector.cli.options import moment
from connector.cli.tables import fitted
from connector.sandbox import Service
from tests.terminals import COLOUR, painted, watched

SENTENCE = "The service answered 500 to GET /imports/records page 3, and went on doing so for an hour and a half"
UUID = "43544e7e-afcc-4da0-9435-b4fccf80d77b"


def lines(columns: list[str], rows: list[list[str]], width: int, numeric: tuple[int, ...] = ()) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(*fitted(columns, rows, [n in numeric for n in range(len(columns))], width), sep="\n")
    return [line.rstrip() for line in captured.get().splitlines()]


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_no_line_is_wider_and_no_word_is_broken(width: int) -> None:
    rows = [[UUID, "failed", "12", "山田 Łukasz", SENTENCE], [UUID.upper(), "ok", "1234567", "", ""]]
    shown = lines(["import", "state", "rows", "uploader", "reason"], rows, width, (2,))
    assert max(map(cell_len, shown)) <= width
    words = set(" ".join(shown).split())
    assert set(SENTENCE.split()) <= words
    assert (UUID in words) == (width >= 200)
    assert UUID[:8] in words or UUID in words


def test_numbers_stand_to_the_right() -> None:
    shown = lines(["name", "rows"], [["a", "7"], ["b", "1234"]], 80, (1,))
    assert [line[-4:] for line in shown[2:]] == ["   7", "1234"]


def test_what_cannot_stand_side_by_side_becomes_blocks() -> None:
    names = [f"column_{n}" for n in range(12)]
    shown = lines(names, [[f"value {n}" for n in range(12)]], 80)
    assert shown[0].split() == ["──", "1", "──"]
    assert shown[1].split() == ["column_0", "value", "0"]


@pytest.mark.thorough
def test_a_terminal_has_its_width_and_colours(command, service: Service) -> None:
    assert command("run").code == 0
    for width in (80, 100):
        for arguments in (
            ["status"],
            ["preview"],
            ["query", "SELECT * FROM v_imports"],
            ["sql", "check"],
            ["templates"],
        ):
            _, shown = watched(command, width, *arguments)
            assert max(map(cell_len, map(str.rstrip, shown.splitlines()))) <= width
    _, shown = painted(command, 100, "status")
    assert "\x1b[32msucceeded" in shown
    assert not COLOUR.search(
        painted(command, 100, "status", NO_COLOR="1")[1]
        .replace("\x1b[1m", "")
        .replace("\x1b[2m", "")
        .replace("\x1b[0m", "")
    )
    assert not COLOUR.search(painted(command, 100, "status", TERM="dumb")[1])
    assert "\x1b" not in command("status").out


def test_the_first_signs_of_a_slug_name_an_import(command, service: Service) -> None:
    assert command("run").code == 0
    slug = service.slugs()[0]
    again = command("backfill", "--import", slug[:8], "--json")
    assert (again.code, again.document["imports_changed"]) == (0, 1)
    assert command("backfill", "--import", "ffffffff", "--json").code != 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rn"], "there is no command 'rn'; did you mean run?"),
        (["run", "--jsn"], "usage: importer-sync run .*there is no option --jsn; did you mean --json?"),
        (["sql", "aply"], "usage: importer-sync sql .*there is no command 'aply'; did you mean apply?"),
        (["sql", "apply", "--drp"], "usage: importer-sync sql apply .*there is no option --drp; did you mean --drop?"),
        (
            ["init", "--token", "abc"],
            "usage: importer-sync init .*there is no option --token; did you mean --token-stdin?",
        ),
        (["run", "--log-format", "jsn"], "argument --log-format: 'jsn' is not one of the choices; did you mean json?"),
        (["run", "now"], "'now' is one argument too many"),
        (["help", "rn"], "there is no command 'rn'"),
    ],
)
def test_a_slip_of_the_pen(command, arguments: list[str], words: str) -> None:
    ended = command(*arguments)
    assert ended.code == 2
    assert re.search(words.replace("?", r"\?").replace(r"\?)", "?)"), ended.err, re.DOTALL), ended.err


def test_help_and_version(command) -> None:
    for arguments in (["help", "run"], ["help", "sql", "apply"]):
        ended = command(*arguments)
        assert (ended.code, ended.out.startswith(f"usage: importer-sync {' '.join(arguments[1:])} ")) == (0, True)
    assert "commands:" in command("help").out
    assert command("-V").out == command("--version").out


def test_moments_as_people_write_them() -> None:
    now = datetime.now(UTC)
    assert timedelta(days=7) <= now + timedelta(seconds=1) - moment("7d") < timedelta(days=7, minutes=1)
    assert moment("yesterday") == moment("today") - timedelta(days=1)
    assert moment("2026-01-31T06:00+01:00") == datetime(2026, 1, 31, 5, tzinfo=UTC)
