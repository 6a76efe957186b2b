"""The reference says what the code does: written from it, and the files of settings beside it too."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import connector
from connector import config_keys
from connector.cli import notices
from connector.settings import Settings
from tests.docs.pages import text_of
from tests.docs.reference import PAGES, SOURCE, TABLES, Explained, known_settings

KEYS = known_settings()
TROUBLE = "docs/troubleshooting.md"


@pytest.mark.parametrize("page", PAGES)
def test_the_pages_are_those_that_make_docs_writes(page: str) -> None:
    assert text_of(f"docs/{page}") == PAGES[page](), "run `make docs`"


def test_every_setting_is_explained_where_it_is_set() -> None:
    assert {key for section, key in KEYS if section == SOURCE} == set(Settings.model_fields)
    assert {key for section, key in KEYS if section == notices.SECTION} == config_keys.OWN_KEYS
    assert all(each.meaning.endswith((".", ":")) for each in KEYS.values())


def with_default() -> Iterator[Explained]:
    for (section, key), each in KEYS.items():
        if section == SOURCE and key not in TABLES and Settings.model_fields[key].get_default() is not None:
            yield each


@pytest.mark.parametrize("each", [e for e in with_default() if not Settings.model_fields[e.key].is_required()], ids=str)
def test_config_toml_shows_the_defaults(each: Explained) -> None:
    assert each.shown == Settings.model_fields[each.key].default
    assert type(each.shown) is type(Settings.model_fields[each.key].default)


def test_the_outcomes_that_are_told() -> None:
    assert KEYS[notices.SECTION, "notify_on"].shown == ",".join(notices.STANDARD)
    assert all(status in KEYS[notices.SECTION, "notify_on"].meaning for status in notices.STATUSES)


def sentences() -> Iterator[str]:
    """What the code can say; `…` where it fills something in."""
    for path in Path(connector.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield re.sub(r"%[sdg]", "…", node.value)


def messages() -> list[str]:
    """The first cell of each row of the tables."""
    return [row[1] for row in re.finditer(r"^\| `([^`]+)` \|", text_of(TROUBLE), re.MULTILINE)]


def test_every_message_is_one_that_the_code_can_say() -> None:
    said = [" ".join(sentence.split()) for sentence in sentences()]
    unsaid = [message for message in messages() if not any(in_order(message, sentence) for sentence in said)]
    assert unsaid == []
    assert len(messages()) > 40


def in_order(message: str, sentence: str) -> bool:
    """Whether the parts between `…` stand in the sentence, one behind the other."""
    at = 0
    for part in message.split("…"):
        found = sentence.find(part.strip(), at)
        if found < 0:
            return False
        at = found + len(part.strip())
    return True
