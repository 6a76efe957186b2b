"""Redaction in one place: what the command prints goes through `scrub`."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote, unquote, urlsplit

HIDDEN = "***"
SHORTEST = 6  # hiding anything shorter would garble words, and a password that is the user's name hides nothing
_PASSWORD_IN_URL = re.compile(r"(://[^/\s:@]*):[^@\s]+@")
_known: set[str] = set()


def remember(secret: str | None) -> None:
    """From now on `scrub` hides this text, however it is quoted in a URL."""
    if secret and len(secret) >= SHORTEST:
        _known.update({secret, quote(secret, safe=""), unquote(secret)})


def remember_password_of(uri: str) -> None:
    try:
        url = urlsplit(uri)
        remember(None if url.password == url.username else url.password)
    except ValueError:
        return


def scrubbed(value: Any) -> Any:
    """The same for all texts inside a document; its keys stay as they are."""
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, dict):
        return {key: scrubbed(each) for key, each in value.items()}
    return [scrubbed(each) for each in value] if isinstance(value, list | tuple) else value


def scrub(text: str) -> str:
    """For what is printed."""
    for secret in sorted(_known, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return _PASSWORD_IN_URL.sub(rf"\1:{HIDDEN}@", text)
