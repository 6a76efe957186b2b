"""Report to OpenTelemetry if it is in use: spans of runs, load packages and requests, and counts of what they did.

OpenTelemetry is an extra and slow to import, so none of it is loaded unless the environment asks for an export or
the surrounding program has set it up. If it is not in use, a request costs one comparison with None.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from connector.runs import Tally

log = logging.getLogger("connector.telemetry")

current_run: ContextVar[str | None] = ContextVar("current_run", default=None)

SCOPE = "connector"
SERVICE = "importer-sync"
FLUSH_TIMEOUT_S = 5.0
SIGNALS = ("traces", "metrics")
_PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_scrub: Callable[[str], str] = str


class Request:
    """One request with all its attempts, from the time the first is sent; waiting before that is not included."""

    __slots__ = ("_instruments", "_kind", "_names", "_span")

    def __init__(self, instruments: Instruments, operation: str, names: dict[str, Any]) -> None:
        self._instruments = instruments
        self._kind = {"importer.operation": operation}
        self._names = names
        self._span: Any = None

    def sent(self) -> None:
        self._instruments.requests.add(1, self._kind)
        if self._span is None:
            operation = self._kind["importer.operation"]
            kind = self._instruments.client_kind
            self._span = self._instruments.tracer.start_span(operation, kind=kind, attributes=self._kind | self._names)

    def received(self, size: int) -> None:
        self._instruments.received.add(size, self._kind)

    def answered(self, status: int | None) -> None:
        if status is not None:
            self._span.set_attribute("http.response.status_code", status)

    def repeated(self, reason: str, status: int | None, attempt: int, delay_s: float) -> None:
        self._instruments.retries.add(1, self._kind)
        about: dict[str, Any] = {"reason": reason, "attempt": attempt, "delay_s": round(delay_s, 3)}
        if status is not None:
            about["http.response.status_code"] = status
        self._span.add_event("retry", about)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._span is None:
            return
        if error is not None:
            self._instruments.failed(self._span, type(error).__name__, str(error))
        self._span.end()


@dataclass(frozen=True, slots=True)
class Instruments:
    """The instruments of OpenTelemetry's API, created once for each pair of providers."""

    tracer: Any
    client_kind: Any
    error_code: Any
    requests: Any
    retries: Any
    received: Any
    rows: Any
    failed_imports: Any
    duration: Any

    def request(self, operation: str, fields: dict[str, Any]) -> Request:
        return Request(self, operation, {f"importer.{name}": value for name, value in fields.items()})

    def failed(self, span: Any, kind: str, words: str) -> None:
        span.set_attribute("error.type", kind)
        span.set_status(self.error_code, _scrub(words))


def find() -> Instruments | None:
    """Return the instruments of this process, or None if OpenTelemetry is not in use."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    metrics = importlib.import_module("opentelemetry.metrics")
    tracers, meters = trace.get_tracer_provider(), metrics.get_meter_provider()
    if not (_listens(tracers) or _listens(meters)):
        return None
    return _instruments(tracers, meters)


def _listens(provider: Any) -> bool:
    """Return whether a provider was set; the API's own providers are only placeholders."""
    return not type(provider).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics"))


@lru_cache(maxsize=2)
def _instruments(tracers: Any, meters: Any) -> Instruments:
    trace = importlib.import_module("opentelemetry.trace")
    from connector.runs import connector_version

    meter = meters.get_meter(SCOPE, connector_version())
    return Instruments(
        tracer=tracers.get_tracer(SCOPE, connector_version()),
        client_kind=trace.SpanKind.CLIENT,
        error_code=trace.StatusCode.ERROR,
        requests=meter.create_counter("importer.requests", "{request}", "Requests sent, each attempt counted"),
        retries=meter.create_counter("importer.retries", "{request}", "Requests that were sent once more"),
        received=meter.create_counter("importer.received", "By", "Bytes of replies, as they came"),
        rows=meter.create_counter("importer.rows", "{row}", "Records committed to the warehouse"),
        failed_imports=meter.create_counter("importer.imports.failed", "{import}", "Imports that could not be read"),
        duration=meter.create_histogram("importer.run.duration", "s", "How long runs took"),
    )


def trace_ids() -> dict[str, str]:
    """Return the ids that link a log entry to its span."""
    trace = sys.modules.get("opentelemetry.trace")
    context = trace.get_current_span().get_span_context() if trace is not None else None
    if context is None or not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


@contextmanager
def run(tally: Tally) -> Iterator[None]:
    """Trace everything inside as part of this run; its result is read from the tally at the end."""
    token = current_run.set(tally.run_id)
    instruments = find()
    began = time.monotonic()
    try:
        if instruments is None:
            yield
            return
        names = {"importer.run_id": tally.run_id, "importer.mode": tally.mode}
        with instruments.tracer.start_as_current_span(
            "run", attributes=names, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield
            finally:
                _sum_up(instruments, span, tally, time.monotonic() - began)
    finally:
        current_run.reset(token)


def _sum_up(instruments: Instruments, span: Any, tally: Tally, took_s: float) -> None:
    kind = {"importer.mode": tally.mode, "importer.status": tally.status.value}
    instruments.duration.record(took_s, kind)
    instruments.failed_imports.add(tally.imports_failed, {"importer.mode": tally.mode})
    counts = {name: value for name, value in tally.as_json().items() if type(value) is int}
    span.set_attributes({**kind, **{f"importer.{name}": value for name, value in counts.items()}})
    if tally.status.value in ("failed", "partial"):
        reason = type(tally.fatal).__name__ if tally.fatal is not None else tally.status.value
        instruments.failed(span, reason, tally.error or "")


@contextmanager
def package(tally: Tally) -> Iterator[None]:
    """Trace one load package, from its first record to its proof in the warehouse."""
    instruments = find()
    if instruments is None:
        yield
        return
    rows, packages = tally.records_loaded, len(tally.load_ids)
    with instruments.tracer.start_as_current_span(
        "package", record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield
        except Exception as error:
            instruments.failed(span, type(error).__name__, str(error))
            raise
        finally:
            loaded = tally.records_loaded - rows
            instruments.rows.add(loaded, {"importer.mode": tally.mode})
            span.set_attributes({"importer.rows": loaded, "importer.load_ids": tally.load_ids[packages:]})


# -- export, for the command ---------------------------------------------------------------------------------------


@contextmanager
def exporting(scrub: Callable[[str], str]) -> Iterator[None]:
    """Export within the block, if OpenTelemetry's environment variables ask for it."""
    global _scrub
    wanted = [signal for signal in SIGNALS if _wanted(signal)]
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if disabled or not wanted or find() is not None:
        yield
        return
    _scrub = scrub
    providers = []
    try:
        providers = _providers(wanted)
    except ImportError:
        log.warning(
            "The environment asks for OpenTelemetry (OTEL_…), which is not installed; nothing is exported. "
            "Install it with: pip install 'importer-connector[otel]'"
        )
    try:
        yield
    finally:
        _close(providers)


def _wanted(signal: str) -> bool:
    name = signal.upper()
    if exporters := os.environ.get(f"OTEL_{name}_EXPORTER"):
        return exporters.strip().lower() != "none"
    return any(os.environ.get(key) for key in ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{name}_ENDPOINT"))


def _providers(signals: list[str]) -> list[Any]:
    resources = importlib.import_module("opentelemetry.sdk.resources")
    named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = resources.Resource.create({} if named else {"service.name": SERVICE})
    made: list[Any] = []
    if "traces" in signals:
        sdk = importlib.import_module("opentelemetry.sdk.trace")
        export = importlib.import_module("opentelemetry.sdk.trace.export")
        tracers = sdk.TracerProvider(resource=resource, shutdown_on_exit=False)
        for exporter in _exporters("traces"):
            tracers.add_span_processor(export.BatchSpanProcessor(exporter))
        importlib.import_module("opentelemetry.trace").set_tracer_provider(tracers)
        made.append(tracers)
    if "metrics" in signals:
        sdk = importlib.import_module("opentelemetry.sdk.metrics")
        export = importlib.import_module("opentelemetry.sdk.metrics.export")
        readers = [export.PeriodicExportingMetricReader(exporter) for exporter in _exporters("metrics")]
        meters = sdk.MeterProvider(readers, resource=resource, shutdown_on_exit=False)
        importlib.import_module("opentelemetry.trace")  # marks for find() that telemetry is in use
        importlib.import_module("opentelemetry.metrics").set_meter_provider(meters)
        made.append(meters)
    return made


def _exporters(signal: str) -> Iterator[Any]:
    from importlib.metadata import entry_points

    for given in os.environ.get(f"OTEL_{signal.upper()}_EXPORTER", "otlp").split(","):
        name = given.strip()
        if name == "otlp":
            own, every = f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"
            protocol = os.environ.get(own) or os.environ.get(every) or "http/protobuf"
            name = _PROTOCOLS.get(protocol, protocol)
        found = next(iter(entry_points(group=f"opentelemetry_{signal}_exporter", name=name)), None)
        if found is None:
            log.warning("No OpenTelemetry exporter %s for %s is installed; it is left out.", name, signal)
        elif name == "console":
            yield found.load()(out=sys.stderr)  # standard output is for results
        else:
            yield found.load()()


def _close(providers: list[Any]) -> None:
    """Send what is left. A collector that does not answer must not delay the end of a run."""
    closers = [threading.Thread(target=provider.shutdown, daemon=True) for provider in providers]
    for closer in closers:
        closer.start()
    until = time.monotonic() + FLUSH_TIMEOUT_S
    for closer in closers:
        closer.join(max(0.0, until - time.monotonic()))
    if any(closer.is_alive() for closer in closers):
        log.warning(
            "OpenTelemetry's collector did not take everything within %g s; the rest is not sent.", FLUSH_TIMEOUT_S
        )
