"""Notify a webhook or Slack when a run does not succeed, or when one succeeds again.

The last notice to each recipient is recorded in dlt's data folder, so that a schedule that fails every quarter of an
hour sends only one.

A notice that cannot be delivered is only a warning. The warning does not show the URL, because anyone who knows it can
write to the channel behind it.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from socket import gethostname
from typing import Any

import dlt
import httpx
from dlt.common.pipeline import get_dlt_pipelines_dir

from connector.errors import ConfigError
from connector.files import write_note
from connector.text import for_chat

SECTION = "importer_sync"
SLACK = "Slack"
LIMIT_S = 10.0
LOCKED = 4  # the exit code
STATUSES = ("succeeded", "partial", "failed", "interrupted", "locked")
BAD = ("partial", "failed")  # after these, a run that succeeds is reported
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
    """Where notices go, and for which outcomes."""

    webhook: str | None
    slack: str | None
    statuses: frozenset[str]
    schema: bool = False  # also of a run that finds new fields
    notes: Path | None = None  # the folder for the last notices; None: send each time

    @property
    def secrets(self) -> tuple[str, ...]:
        return tuple(address for address in (self.webhook, self.slack) if address)


def addresses() -> Addresses:
    """Read them from `[importer_sync]` and dlt's own `[runtime] slack_incoming_hook`. Raises ConfigError if wrong."""

    def setting(key: str) -> Any:
        found: Any = dlt.secrets.get(key)
        return dlt.config.get(key) if found is None else found

    return Addresses(
        _address(f"{SECTION}.notify_url", setting(f"{SECTION}.notify_url")),
        _address("runtime.slack_incoming_hook", setting("runtime.slack_incoming_hook")),
        _statuses(setting(f"{SECTION}.notify_on")),
        _switch(setting(f"{SECTION}.notify_schema")),
        Path(get_dlt_pipelines_dir()),
    )


def _address(key: str, value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value.startswith(("http://", "https://"))):
        return value
    section, _, name = key.partition(".")
    raise ConfigError(
        f"{name} under [{section}] must be an http:// or https:// address: correct it in .dlt/secrets.toml or "
        f"{section.upper()}__{name.upper()}; its value is secret, and therefore not shown."
    )


def _switch(given: Any) -> bool:
    if isinstance(given, bool) or given is None:
        return bool(given)
    if str(given).lower() in ("true", "false"):
        return str(given).lower() == "true"
    raise ConfigError(
        f"notify_schema under [{SECTION}] is {given!r}, but has to be true or false (IMPORTER_SYNC__NOTIFY_SCHEMA)."
    )


def _statuses(given: Any) -> frozenset[str]:
    if given is None:
        return frozenset(STANDARD)
    names = given.split(",") if isinstance(given, str) else given
    found = [str(name).strip().strip("[]\"' ") for name in names]
    unknown = [name for name in found if name not in STATUSES]
    if unknown:
        raise ConfigError(
            f"notify_on under [{SECTION}] contains {unknown[0]!r}, but takes only some of {', '.join(STATUSES)}, "
            "separated by commas (IMPORTER_SYNC__NOTIFY_ON)."
        )
    return frozenset(found)


def notify(
    to: Addresses,
    document: Mapping[str, Any],
    exit_code: int,
    pipeline: str,
    warehouse: str = "",
    named: Sequence[str | None] = (),
) -> list[str]:
    """Notify the recipients in `to` how a run ended, if that changed; return a sentence for each failed delivery.

    `named` is how the command line names the warehouse, which is known also if a run fails before it has opened it. It
    takes little more than LIMIT_S and raises nothing.
    """
    status = "locked" if exit_code == LOCKED else str(document.get("status"))
    changed = to.schema and bool(document.get("schema_changes"))
    pending: list[tuple[_Delivery, LastNotice]] = []
    for recipient, address in ((f"The webhook of [{SECTION}] notify_url", to.webhook), (SLACK, to.slack)):
        if address is None:
            continue
        last = LastNotice.read(to.notes, pipeline, str(document.get("mode")), [*named, recipient])
        recovered = status == "succeeded" and last.status in BAD
        if recovered or changed or (status in to.statuses and not (status in BAD and last.status == status)):
            body = notice(document, exit_code, pipeline, warehouse, last.since if recovered else None)
            sent = {"text": body["text"], "mrkdwn": False} if recipient == SLACK else body
            pending.append((_Delivery(recipient, partial(_post, address, sent)), last))
    for delivery, _ in pending:
        delivery.start()
    until = time.monotonic() + LIMIT_S
    for delivery, last in pending:
        delivery.join(max(0.0, until - time.monotonic()))
        if status in (*BAD, "succeeded") and delivery.trouble is None:
            last.record(status)
    return [f"{each.recipient} was not notified of this run: it {each.trouble}." for each, _ in pending if each.trouble]


def notice(
    document: Mapping[str, Any], exit_code: int, pipeline: str, warehouse: str = "", bad_since: str | None = None
) -> dict[str, Any]:
    """Return what the webhook receives; `text` is what most chat programs show of it."""
    error, changes = document.get("error"), list(document.get("schema_changes") or ())
    counts = {name: document.get(name, 0) for name in COUNTS}
    where = f" into {warehouse}" if warehouse else ""
    text = f"importer-sync on {gethostname()}: {document.get('mode')} run of pipeline {pipeline}{where}"
    text += f" {document.get('status')}" + (f" again; it had not since {bad_since} UTC" if bad_since else "")
    if document.get("run_id"):
        text += f" ({counts['imports_changed']:,} imports read, {counts['imports_failed']:,} failed,"
        text += f" {counts['records_loaded']:,} records loaded)"
    return {
        "text": for_chat(". ".join([f"{text}: {error}" if error else text, *changes])),
        "pipeline": pipeline,
        "host": gethostname(),
        "warehouse": warehouse,
        "run_id": document.get("run_id"),
        "mode": document.get("mode"),
        "status": document.get("status"),
        "recovered": bad_since is not None,
        "exit_code": exit_code,
        "error": error,
        "schema_changes": changes,
        "started_at": document.get("started_at"),
        "finished_at": document.get("finished_at"),
        "counts": counts,
    }


@dataclass(frozen=True, slots=True)
class LastNotice:
    """The last notice to one recipient on runs of one mode into one warehouse: the status, and since when it is so."""

    file: Path | None
    status: str | None = None
    since: str | None = None

    @classmethod
    def read(cls, folder: Path | None, pipeline: str, mode: str, named: Sequence[str | None]) -> LastNotice:
        """Read the record in `folder`; if there is none, nothing was sent before."""
        if folder is None:
            return cls(None)
        # two projects may give their pipelines the same name
        key = hashlib.sha256(json.dumps([str(Path.cwd()), pipeline, mode, *named]).encode()).hexdigest()[:16]
        file = folder / f".told-{key}.json"
        with suppress(OSError, ValueError, TypeError, KeyError):
            found = json.loads(file.read_text(encoding="utf-8"))
            return cls(file, str(found["status"]), str(found["since"]))
        return cls(file)

    def record(self, status: str) -> None:
        """Record that `status` was sent; if that fails, the next run sends it again."""
        if self.file is None or status == self.status:
            return
        since = self.since if self.status in BAD and status in BAD else f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
        with suppress(OSError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_note(self.file, json.dumps({"status": status, "since": since}).encode())


class _Delivery(threading.Thread):
    """A delivery in a thread, because a server may reply byte by byte."""

    def __init__(self, recipient: str, deliver: Callable[[], None]) -> None:
        super().__init__(name="notice", daemon=True)
        self.recipient = recipient
        self.trouble: str | None = f"did not answer within {LIMIT_S:g} s"
        self._deliver = deliver

    def run(self) -> None:
        try:
            self._deliver()
            self.trouble = None
        except Exception as error:
            self.trouble = _words(error)


def _words(error: Exception) -> str:
    """Describe the error without its own text, which may hold the URL."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return f"answered {status}" if status is not None else f"could not be reached ({type(error).__name__})"


def _post(url: str, body: Mapping[str, Any]) -> None:
    # without redirects: whoever is named by one would learn the notice
    httpx.post(url, json=body, timeout=LIMIT_S / 2).raise_for_status()
