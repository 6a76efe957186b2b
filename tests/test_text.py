"""Text of others does nothing where it is shown, and nothing is shown past `connector.text`."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import connector
from connector.cli.redaction import scrub
from connector.text import for_chat, for_dbt, for_spreadsheet, visible, visible_json

HOSTILE = "a\x1b]0;x\x07\x9b2J\u202eb\r\n2026-11-23T00:00:00Z ERROR stolen\u2028\ud800\U000e0041"


def test_no_sign_acts_on_a_terminal_or_begins_a_line() -> None:
    shown = visible(HOSTILE)
    assert shown.startswith("a⟨U+001B⟩]0;x⟨U+0007⟩⟨U+009B⟩2J⟨U+202E⟩b⟨U+000D⟩⟨U+000A⟩2026")
    assert shown.isprintable()
    assert visible("Zoë 👩\u200d🔬 नि\u200cक 東京\tx") == "Zoë 👩\u200d🔬 नि\u200cक 東京\tx"


def test_json_keeps_its_meaning() -> None:
    written = visible_json(json.dumps({"k": HOSTILE}, ensure_ascii=False))
    assert written.isprintable()
    assert json.loads(written) == {"k": HOSTILE}


def test_nothing_is_live_in_dbt_or_in_a_chat() -> None:
    shown = for_dbt("{{ env_var('X') }} {{{ a }}} {% raw %} {# c #} {\u202e{")
    assert not any(opening in shown for opening in ("{{", "{%", "{#"))
    assert for_chat("<!channel> <http://evil|click> & x") == "&lt;!channel&gt; &lt;http://evil|click&gt; &amp; x"
    assert len(for_chat("x" * 9_000)) == 500


@pytest.mark.parametrize("begins", ["=", "+", "-", "@", "\t=", "\r=", "\n=", "\uff1d"])
def test_no_text_is_a_formula_of_a_spreadsheet(begins: str) -> None:
    assert for_spreadsheet(f"{begins}cmd|'/C calc'!A0").startswith("'")
    assert for_spreadsheet("a=1\nb\x1b") == "a=1\nb⟨U+001B⟩"


@pytest.mark.parametrize("hostile", ["://:", "a:", "://", "x://u:"])
def test_hiding_secrets_takes_time_in_proportion_to_the_text(hostile: str) -> None:
    """A quadratic pattern needs hours for these, and the limit of a test ends it."""
    assert scrub(hostile * 500_000 + " @").endswith("@")
    assert "hush-hush" not in scrub(f"{hostile * 500_000}/ s://me:hush-hush@h")


# Where text may leave the process, and why it need not pass `Output`.
WAYS_OUT = {
    "cli/bars.py",  # words of ours, and counts
    "cli/output.py",
    "cli/main.py",  # the version, and help
    "cli/signals.py",  # flushes
    "cli/logs.py",  # its formatters show text as `Output` does
    "cli/commands/completion.py",  # a script of ours
    "cli/commands/init.py",  # questions, about the user's own settings
    "cli/commands/query.py",  # CSV: exact, but on a terminal and for a spreadsheet program
    "cli/commands/report.py",  # the page
    "cli/commands/session.py",  # the token that is asked for
    "telemetry.py",  # what OpenTelemetry exports
}


def test_nothing_prints_but_through_the_one_output() -> None:
    root = Path(connector.__file__).parent
    found = {file.relative_to(root).as_posix() for file in root.rglob("*.py") if _prints(ast.parse(file.read_text()))}
    assert {name for name in found if not name.startswith("sandbox/")} <= WAYS_OUT


def _prints(module: ast.Module) -> bool:
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "Console", "os.write", "warnings.warn"):
            return True
        if isinstance(node, ast.Attribute) and ast.unparse(node).replace("_", "") in ("sys.stdout", "sys.stderr"):
            return True
        if isinstance(node, ast.ImportFrom) and node.module in ("sys", "warnings"):
            return True
    return False
