"""Make text from elsewhere (spreadsheets, the service, a database) safe for each place that shows it.

Invariant: all text for a terminal, a log line, a chat, a dbt project or a page passes one of these functions, so that
it cannot move a cursor, change the direction of neighbouring text, begin a line, mention people or be executed.
"""

from __future__ import annotations

import json
import re
import unicodedata

LONGEST_IN_CHAT = 500
_JOINERS = "\u200c\u200d"  # they are part of words and emoji
# Invisible characters that change how neighbouring text looks.
_KINDS = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# A spreadsheet program takes a text that begins so for a formula, which may start programs or fetch addresses.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_JINJA = re.compile(r"\{(?=[{%#])")


def composed(text: str) -> str:
    """Return the text in its composed Unicode form (NFC), in which names are compared: they may come decomposed."""
    return unicodedata.normalize("NFC", text)


def visible(text: str, keep: str = "\t") -> str:
    """Return one line in which each control character is shown by its number, except those in `keep`."""
    return "".join(f"⟨U+{ord(sign):04X}⟩" if _acts(sign, keep) else sign for sign in text) if _may_act(text) else text


def visible_json(text: str) -> str:
    """Return equivalent JSON, with each such character in its strings escaped."""
    return "".join(json.dumps(sign)[1:-1] if _acts(sign, "\n") else sign for sign in text) if _may_act(text) else text


def for_dbt(text: str) -> str:
    """Return a description that dbt shows and does not execute: dbt renders each as a template."""
    return _JINJA.sub("{ ", visible(text))


def for_chat(text: str) -> str:
    """Return text that Slack and similar chats take literally: no mention, no link; cut if it is long."""
    text = visible(text)
    if len(text) > LONGEST_IN_CHAT:
        text = f"{text[: LONGEST_IN_CHAT - 1]}…"
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def for_spreadsheet(text: str) -> str:
    """Return text that a spreadsheet program shows and does not calculate."""
    return f"'{visible(text)}" if text.startswith(_FORMULA) else visible(text, keep="\t\n")


def _may_act(text: str) -> bool:
    return not text.isprintable()


def _acts(sign: str, keep: str) -> bool:
    return sign not in keep and sign not in _JOINERS and unicodedata.category(sign) in _KINDS
