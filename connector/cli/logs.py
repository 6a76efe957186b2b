"""What goes to the log on stderr: lines for people, or with --log-format json one JSON object a line; no secrets."""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from connector import telemetry
from connector.cli.redaction import scrub, scrubbed
from connector.text import visible, visible_json

if TYPE_CHECKING:
    from connector.cli.output import Output

OWN = "connector"
# Who else speaks on stderr, at a level of its own: through our handler it keeps to the format and gives no secret away.
OTHERS = ("dlt", "opentelemetry", "py.warnings")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def json_line(level: str, event: str, message: str, at: float | None = None, **fields: Any) -> str:
    """One entry of a log for programs."""
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


class _Lines(logging.Formatter):
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


class _Objects(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        event = fields.pop("event", record.name)
        return json_line(record.levelname.lower(), event, record.getMessage(), record.created, **fields)


class _Same(logging.Handler):
    """Passes on to the handler of the log: dlt gives the handlers of its logger a format, and it ends here."""

    def __init__(self, handler: logging.Handler) -> None:
        super().__init__()
        self._handler = handler

    def emit(self, record: logging.LogRecord) -> None:
        self._handler.handle(record)


def start_logging(output: Output, handler: logging.Handler | None = None, *, steps: bool = False) -> None:
    """What is not as it should be, or with `steps` also one line for each step of a run."""
    level = logging.INFO if steps else logging.WARNING
    if output.json and not output.log_json:
        level = logging.ERROR
    handler = handler or logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Objects() if output.log_json else _Lines())
    log = logging.getLogger(OWN)
    log.handlers[:] = [handler]
    log.propagate = False
    log.setLevel(logging.DEBUG if output.verbose else level)
    for name in OTHERS:
        other = logging.getLogger(name)
        other.handlers[:] = [_Same(handler)]
        other.propagate = False
    # its exporter speaks of every attempt; what comes of them in the end is said by connector.telemetry
    logging.getLogger("opentelemetry").setLevel(logging.NOTSET if output.verbose else logging.ERROR)
    logging.captureWarnings(output.log_json)
