"""Write the log on stderr: lines for people, or with --log-format json one JSON object a line; no secrets."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import Counter
from copy import copy
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from connector import telemetry
from connector.cli.redaction import scrub, scrubbed
from connector.text import visible, visible_json

if TYPE_CHECKING:
    from connector.cli.output import Output

OWN = "connector"
# Other loggers that write to stderr: they use our handler, with its format and redaction, at these levels.
OTHERS = ("dlt", "opentelemetry", "py.warnings")
LONG_WAIT_S = 30.0  # a person who watches needs an explanation for the pause
REASONS_SHOWN = 4
TRACEBACK = "Traceback (most recent call last):"
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def json_line(level: str, event: str, message: str, at: float | None = None, **fields: Any) -> str:
    """Return one entry of a log for programs."""
    moment = datetime.fromtimestamp(time.time() if at is None else at, UTC)
    entry = {
        "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": level,
        "event": event,
        "message": message,
        "run_id": telemetry.current_run.get(),
        **telemetry.trace_ids(),
        **fields,
    }
    present = {name: value for name, value in entry.items() if value is not None}
    return visible_json(json.dumps(scrubbed(present), ensure_ascii=False, default=lambda value: scrub(str(value))))


class _TextFormatter(logging.Formatter):
    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)sZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = visible(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        return "\n".join(map(visible, super().formatException(ei).splitlines()))

    def format(self, record: logging.LogRecord) -> str:
        return scrub(super().format(record))


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        event = fields.pop("event", record.name)
        return json_line(record.levelname.lower(), event, record.getMessage(), record.created, **fields)


class _Retries(logging.Filter):
    """A filter that counts retried requests, of which there may be hundreds, and passes only long waits."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        fields = vars(record)
        if fields.get("event") != "request.retried":
            return True
        self.reasons[str(fields.get("reason"))] += 1
        return float(fields.get("delay_s", 0)) >= LONG_WAIT_S


_retries = _Retries()


def sum_up_retries() -> None:
    """Log how many requests were repeated since the last call, and why; nothing if none was."""
    reasons = dict(_retries.reasons.most_common())
    _retries.reasons.clear()
    if count := sum(reasons.values()):
        why = ", ".join(f"{n:,} × {reason}" for reason, n in list(reasons.items())[:REASONS_SHOWN])
        more = f" and {len(reasons) - REASONS_SHOWN} other reasons" if len(reasons) > REASONS_SHOWN else ""
        logging.getLogger(OWN).warning(
            "%s repeated; the service %s%s.",
            "1 request was" if count == 1 else f"{count:,} requests were",
            why,
            more,
            extra={"event": "requests.retried", "retries": count, "reasons": reasons},
        )


class _ForwardingHandler(logging.Handler):
    """A handler that passes records on to the log's own handler, because dlt sets a format on handlers of its logger.

    Unless `whole`, a traceback is reduced to its last line, and each is logged once: dlt logs one for each attempt of
    each job, twice.
    """

    def __init__(self, handler: logging.Handler, *, whole: bool) -> None:
        super().__init__()
        self._handler = handler
        self._whole = whole
        self._told: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        message, traced, rest = record.getMessage().partition(TRACEBACK)
        if self._whole or not (traced or record.exc_info):
            self._handler.handle(record)
            return
        trace = rest or logging.Formatter().formatException(record.exc_info or sys.exc_info())
        reason = next((line.strip() for line in reversed(trace.splitlines()) if line.strip()), "")
        if reason in self._told:
            return
        self._told.add(reason)
        short = copy(record)
        short.msg, short.args = f"{message.strip()}: {reason}", ()
        short.exc_info = short.exc_text = None
        self._handler.handle(short)


def start_logging(output: Output, handler: logging.Handler | None = None, *, steps: bool = False) -> None:
    """Log problems, or with `steps` also one line for each step of a run."""
    level = logging.INFO if steps else logging.WARNING
    if output.json and not output.log_json:
        level = logging.ERROR
    if handler is None:
        handler = logging.StreamHandler(sys.stderr)
        if not output.verbose:
            handler.addFilter(_retries)
    handler.setFormatter(_JsonFormatter() if output.log_json else _TextFormatter())
    log = logging.getLogger(OWN)
    log.handlers[:] = [handler]
    log.propagate = False
    log.setLevel(logging.DEBUG if output.verbose else level)
    for name in OTHERS:
        other = logging.getLogger(name)
        other.handlers[:] = [_ForwardingHandler(handler, whole=output.verbose)]
        other.propagate = False
    # its exporter logs every attempt; connector.telemetry logs the final result
    logging.getLogger("opentelemetry").setLevel(logging.NOTSET if output.verbose else logging.ERROR)
    logging.getLogger("sqlglot").setLevel(logging.ERROR)  # it repeats a query that we refuse in one sentence
    logging.lastResort = _ForwardingHandler(handler, whole=output.verbose)  # of every logger without a handler
    logging.lastResort.setLevel(logging.WARNING)
    logging.captureWarnings(output.log_json)
