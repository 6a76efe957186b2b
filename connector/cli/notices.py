"""Word of a run that did not go well, to a webhook or to Slack; nobody has to watch a scheduler for it.

A notice that cannot be delivered is a warning and nothing more, and no address shows in it: whoever knows such an
address can write to the channel behind it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import dlt
import httpx

from connector.errors import ConfigError
from connector.text import for_chat

SECTION = "importer_sync"
LIMIT_S = 10.0
LOCKED = 4  # the exit code
STATUSES = ("succeeded", "partial", "failed", "interrupted", "locked")
STANDARD = ("partial", "failed")
COUNTS = (
    "imports_listed",
    "imports_changed",
    "imports_deleted",
    "imports_failed",
    "imports_unreconciled",
    "records_loaded",
    "records_rejected",
    "requests",
    "retries",
)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where notices go, and of which outcomes."""

    webhook: str | None
    slack: str | None
    statuses: frozenset[str]

    @property
    def secrets(self) -> tuple[str, ...]:
        return tuple(address for address in (self.webhook, self.slack) if address)


def addresses() -> Addresses:
    """From `[importer_sync]` and dlt's own `[runtime] slack_incoming_hook`. Raises ConfigError if wrong."""

    def setting(key: str) -> Any:
        found: Any = dlt.secrets.get(key)
        return dlt.config.get(key) if found is None else found

    return Addresses(
        _address(f"{SECTION}.notify_url", setting(f"{SECTION}.notify_url")),
        _address("runtime.slack_incoming_hook", setting("runtime.slack_incoming_hook")),
        _statuses(setting(f"{SECTION}.notify_on")),
    )


def _address(key: str, value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value.startswith(("http://", "https://"))):
        return value
    section, _, name = key.partition(".")
    raise ConfigError(
        f"{name} under [{section}] must be an http:// or https:// address; what is set is not shown here."
    )


def _statuses(given: Any) -> frozenset[str]:
    if given is None:
        return frozenset(STANDARD)
    names = given.split(",") if isinstance(given, str) else given
    found = [str(name).strip().strip("[]\"' ") for name in names]
    unknown = [name for name in found if name not in STATUSES]
    if unknown:
        raise ConfigError(
            f"notify_on under [{SECTION}] cannot be {unknown[0]!r}; it takes some of {', '.join(STATUSES)}, "
            f"separated by commas (IMPORTER_SYNC__NOTIFY_ON)."
        )
    return frozenset(found)


def notify(to: Addresses, document: Mapping[str, Any], exit_code: int, pipeline: str) -> list[str]:
    """Tells everybody in `to` how a run ended; returns a sentence for each who could not be told.

    Takes little more than LIMIT_S and raises nothing.
    """
    status = "locked" if exit_code == LOCKED else str(document.get("status"))
    if status not in to.statuses:
        return []
    body = notice(document, exit_code, pipeline)
    deliveries: list[tuple[str, Callable[[], None]]] = []
    if to.webhook:
        deliveries.append((f"The webhook of [{SECTION}] notify_url", lambda: _post(to.webhook or "", body)))
    if to.slack:
        deliveries.append(("Slack", lambda: _slack(to.slack or "", body["text"])))
    under_way = [_Delivery(whom, deliver) for whom, deliver in deliveries]
    for delivery in under_way:
        delivery.start()
    until = time.monotonic() + LIMIT_S
    for delivery in under_way:
        delivery.join(max(0.0, until - time.monotonic()))
    return [f"{each.whom} was not told of this run: it {each.trouble}." for each in under_way if each.trouble]


def notice(document: Mapping[str, Any], exit_code: int, pipeline: str) -> dict[str, Any]:
    """What the webhook receives; `text` is what most chat programs show of it."""
    error = document.get("error")
    text = f"importer-sync: {document.get('mode')} run of pipeline {pipeline} {document.get('status')}"
    return {
        "text": for_chat(f"{text}: {error}" if error else f"{text}."),
        "pipeline": pipeline,
        "run_id": document.get("run_id"),
        "mode": document.get("mode"),
        "status": document.get("status"),
        "exit_code": exit_code,
        "error": error,
        "started_at": document.get("started_at"),
        "finished_at": document.get("finished_at"),
        "counts": {name: document.get(name, 0) for name in COUNTS},
    }


class _Delivery(threading.Thread):
    """In a thread, because dlt's call to Slack has no time limit and a server may send its reply byte by byte."""

    def __init__(self, whom: str, deliver: Callable[[], None]) -> None:
        super().__init__(name="notice", daemon=True)
        self.whom = whom
        self.trouble: str | None = f"did not answer within {LIMIT_S:g} s"
        self._deliver = deliver

    def run(self) -> None:
        try:
            self._deliver()
            self.trouble = None
        except Exception as error:
            self.trouble = _words(error)


def _words(error: Exception) -> str:
    """Without the error's own text, which may hold the address."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return f"answered {status}" if status is not None else f"could not be reached ({type(error).__name__})"


def _post(url: str, body: Mapping[str, Any]) -> None:
    httpx.post(url, json=body, timeout=LIMIT_S / 2).raise_for_status()


def _slack(hook: str, text: str) -> None:
    # loads the HTTP client that `prepare_imports` defers
    from dlt.common.runtime.slack import send_slack_message

    send_slack_message(hook, text, is_markdown=False)
