"""Escape text so that every destination can hold it and nothing is lost.

Two things in a JSON string cannot be stored everywhere: a lone surrogate (in no UTF-8 text, so nowhere) and the NUL
character (not in PostgreSQL). Only a string that holds one of them is changed: it is written as JSON would escape
it, `\\ud800` or `\\u0000`, with each backslash doubled, so that unescaping it gives the exact string again.
"""

import json
import re

_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED = re.compile("[\ud800-\udfff\\\\]")
_ESCAPED_WITH_NUL = re.compile("[\ud800-\udfff\\\\\0]")
_JSON_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


def storable(text: str, *, nul_safe: bool = False) -> str:
    """Return `text` itself if it can be stored, else escaped; `nul_safe` is for destinations without NUL."""
    if not (nul_safe and "\0" in text) and (text.isascii() or not _SURROGATE.search(text)):
        return text
    return (_ESCAPED_WITH_NUL if nul_safe else _ESCAPED).sub(_escape, text)


def storable_json(text: str, *, nul_safe: bool = False) -> str:
    """Escape the strings inside a JSON text as `storable` does; every other character stays as it is.

    JSON can spell a lone surrogate or NUL with an escape, but DuckDB's and PostgreSQL's JSON types refuse the first and
    PostgreSQL's `jsonb` the second.
    """
    if "\\u" not in text:
        return text

    def replace(found: re.Match[str]) -> str:
        token = found.group()
        if "\\u" not in token:
            return token
        said: str = json.loads(token, strict=False)
        kept = storable(said, nul_safe=nul_safe)
        return token if kept == said else json.dumps(kept, ensure_ascii=False)

    return _JSON_STRING.sub(replace, text)


def _escape(found: re.Match[str]) -> str:
    char = found.group()
    return "\\\\" if char == "\\" else f"\\u{ord(char):04x}"
