"""Redact secrets in one place: what the command prints goes through `scrub`."""

from __future__ import annotations

import json
import os
import re
import tomllib
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

HIDDEN = "***"
SHORTEST = 6  # characters; if shorter texts were hidden, parts of words would be
SHORTEST_IN_DATA = 16  # there, a password may be a word like any other
# Both take linear time: a run of characters is matched as a whole, and no position in it is tried twice.
_RUN = re.compile(r"[^@\s]++@?")
_PASSWORD = re.compile(r"(://[^/\s:@]*+):(?=[^@])[\s\S]++")
# Parts of names of secret keys and variables: the connector's own, and those of destinations.
_SECRETS = ("access_token", "privacy_key", "notify_url", "slack_incoming_hook", "password")
_known: set[str] = set()


def add_secret(secret: str | None) -> None:
    """Make `scrub` hide this text from now on, however it is quoted in a URL."""
    if secret and len(secret) >= SHORTEST:
        plain = secret.encode("utf-8", "replace")
        _known.update({secret, quote(secret, safe=""), unquote(secret), json.dumps(secret)[1:-1]})
        _known.add(quote(unquote(secret), safe=" +"))  # as SQLAlchemy writes it in an address
        _known.update(encode(plain).decode().rstrip("=") for encode in (b64encode, urlsafe_b64encode))


def add_password_of(uri: str) -> None:
    try:
        url = urlsplit(uri)
        add_secret(None if url.password == url.username else url.password)
    except ValueError:
        return


def add_configured_secrets(files: Iterable[Path]) -> None:
    """Hide the secrets of these TOML files and of the environment, whether or not a command uses them."""
    for file in files:
        with suppress(OSError, ValueError):  # dlt itself reports what is wrong with a file
            _add_all(tomllib.loads(file.read_text(encoding="utf-8")))
    _add_all({name: value for name, value in os.environ.items() if "__" in name or name == "PGPASSWORD"})


def _add_all(given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if isinstance(value, Mapping):
            if value.get("password") != value.get("username"):
                _add_all(value)
        elif isinstance(value, str) and name.lower().endswith(_SECRETS):
            add_secret(value.strip())
        elif isinstance(value, str) and "://" in value:
            add_password_of(value)


def scrubbed(value: Any, hide: Callable[[str], str] | None = None) -> Any:
    """Apply `hide`, or `scrub`, to all texts inside a document; its keys stay as they are."""
    if isinstance(value, str):
        return (hide or scrub)(value)
    if isinstance(value, dict):
        return {key: scrubbed(each, hide) for key, each in value.items()}
    return [scrubbed(each, hide) for each in value] if isinstance(value, list | tuple) else value


def scrub_data(text: str) -> str:
    """Hide known secrets in a text of the warehouse or the service, which is otherwise printed exactly."""
    for secret in sorted(_known, key=len, reverse=True):
        if len(secret) >= SHORTEST_IN_DATA:
            text = text.replace(secret, HIDDEN)
    return text


def scrub(text: str) -> str:
    """Hide known secrets, and passwords in URLs, in a text to print."""
    for secret in sorted(_known, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return _RUN.sub(_without_password, text) if "@" in text and "://" in text else text


def _without_password(run: re.Match[str]) -> str:
    found = run.group()
    return _PASSWORD.sub(rf"\1:{HIDDEN}@", found) if found.endswith("@") and "://" in found else found
