"""A page of the documentation as its reader has it: blocks to carry out in order, and commands named in passing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

CHECKOUT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", *sorted(f"docs/{path.name}" for path in (CHECKOUT / "docs").glob("*.md")))
COMMAND = "importer-sync "


@dataclass(frozen=True, slots=True)
class Block:
    """What stands between two fences; `line` is that of its first line."""

    language: str
    text: str
    line: int


def text_of(page: str) -> str:
    return (CHECKOUT / page).read_text(encoding="utf-8")


def blocks(page: str) -> Iterator[Block]:
    for token in MarkdownIt().parse(text_of(page)):
        if token.type == "fence":
            yield Block(token.info, token.content, (token.map or [0])[0] + 2)


def in_passing(page: str) -> Iterator[str]:
    """Commands in the text and in tables."""
    for token in MarkdownIt().enable("table").parse(text_of(page)):
        for child in token.children or ():
            if child.type == "code_inline" and child.content.startswith(COMMAND):
                yield child.content


def links(page: str) -> Iterator[str]:
    for token in MarkdownIt().enable("table").parse(text_of(page)):
        for child in token.children or ():
            if child.type == "link_open":
                yield str(child.attrGet("href"))


def logical_lines(text: str) -> Iterator[str]:
    """Lines of a shell, one that ends in a backslash joined with the next."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield line.strip()
