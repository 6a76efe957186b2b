"""OpenTelemetry: what a run tells those who listen, and that it costs nothing where nobody does."""

from __future__ import annotations

import importlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dlt
import pytest
from opentelemetry import metrics, trace
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from connector import telemetry
from connector.run.sync import sync
from connector.runs import Tally
from connector.sandbox import Faults, Service, serve
from connector.settings import Settings
from tests.operations.conftest import Listener

pytestmark = pytest.mark.thorough

TOKEN = "very-secret-token-4711"
OFF = """
import sys
from connector import telemetry
from connector.service.client import ServiceClient
client = ServiceClient("http://127.0.0.1:9", "token-token")
assert telemetry.find() is None and client._instruments is None
with telemetry.exporting(str):
    assert telemetry.find() is None
assert not any(name.startswith("opentelemetry") for name in sys.modules), "imported for nothing"
"""


@dataclass
class Heard:
    exporter: InMemorySpanExporter
    reader: InMemoryMetricReader

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def points(self) -> dict[str, list[Any]]:
        found = self.reader.get_metrics_data()
        assert found is not None
        scopes = [scope for resource in found.resource_metrics for scope in resource.scope_metrics]
        return {metric.name: list(metric.data.data_points) for scope in scopes for metric in scope.metrics}

    def total(self, name: str) -> int:
        return sum(point.value for point in self.points()[name])


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    """As if the program around us had set OpenTelemetry up."""
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers, meters = TracerProvider(shutdown_on_exit=False), MeterProvider([reader], shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", tracers)
    monkeypatch.setattr(importlib.import_module("opentelemetry.metrics._internal"), "_METER_PROVIDER", meters)
    assert metrics.get_meter_provider() is meters
    return Heard(exporter, reader)


@pytest.fixture(scope="module")
def service() -> Service:
    service = Service(seed=3, token=TOKEN)
    service.add_generated("customers", imports=2, rows=120)
    service.add_generated("orders", imports=1, rows=60)
    return service


def run(folder: Path, service: Service, **settings: Any) -> Tally:
    pipeline = dlt.pipeline(
        "importer",
        destination=dlt.destinations.duckdb(str(folder / "warehouse.duckdb")),
        dataset_name="importer_data",
        pipelines_dir=str(folder / "pipelines"),
    )
    with serve(service) as url:
        return sync(pipeline, Settings.load(base_url=url, access_token=service.token, **settings))


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return {name.removeprefix("importer."): value for name, value in (span.attributes or {}).items()}


def test_spans_and_counts_of_a_run(heard: Heard, service: Service, tmp_path: Path) -> None:
    service.faults = Faults(server_error=0.3)
    tally = run(tmp_path, service, batch_rows=130)
    service.faults = Faults()
    assert tally.retries > 0
    [whole] = heard.spans("run")
    assert attributes(whole)["run_id"] == tally.run_id
    assert attributes(whole)["records_loaded"] == tally.records_loaded == 300
    assert whole.status.status_code is StatusCode.UNSET
    packages = heard.spans("package")
    assert sum(attributes(span)["rows"] for span in packages) == 300
    assert [load_id for span in packages for load_id in attributes(span).get("load_ids", ())] == tally.load_ids
    inside = {span.context.span_id for span in [whole, *packages]}
    requests = heard.spans("list_records") + heard.spans("list_imports") + heard.spans("get_import")
    assert all(span.parent is not None and span.parent.span_id in inside for span in requests)
    assert all(span.kind is SpanKind.CLIENT for span in requests)
    assert {(attributes(s)["import_slug"], attributes(s)["page"]) for s in heard.spans("list_records")} >= {
        (slug, 1) for slug in service.slugs()
    }
    assert {attributes(span)["http.response.status_code"] for span in requests} == {200}
    events = [event for span in requests for event in span.events]
    assert [event.name for event in events] == ["retry"] * tally.retries
    assert all((event.attributes or {})["http.response.status_code"] in (500, 502, 503, 504) for event in events)
    assert heard.total("importer.requests") == tally.requests == len(requests) + tally.retries
    assert heard.total("importer.retries") == tally.retries
    assert heard.total("importer.rows") == 300
    assert heard.total("importer.received") == tally.bytes_received
    assert heard.total("importer.imports.failed") == 0
    [point] = heard.points()["importer.run.duration"]
    assert (point.count, dict(point.attributes)["importer.status"]) == (1, "succeeded")


def test_a_failure_is_seen_and_the_token_is_not(heard: Heard, service: Service, tmp_path: Path) -> None:
    bad = service.slugs()[0]
    service.faults = Faults(failing_imports={bad})
    try:
        tally = run(tmp_path, service)
    finally:
        service.faults = Faults()
    assert heard.total("importer.imports.failed") == tally.imports_failed == 1
    [whole] = heard.spans("run")
    assert whole.status.status_code is StatusCode.ERROR
    assert attributes(whole)["status"] == "partial"
    failed = [span for span in heard.exporter.get_finished_spans() if span.status.status_code is StatusCode.ERROR]
    named = {attributes(span).get("import_slug") for span in failed}
    assert named == {None, bad}
    told = [str((s.name, s.attributes, s.events, s.status.description)) for s in heard.exporter.get_finished_spans()]
    assert TOKEN not in "".join(told)


def test_where_nobody_listens_nothing_is_imported() -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", OFF], check=True, timeout=60)


@pytest.mark.parametrize(
    ("environment", "traces", "measures"),
    [
        ({}, False, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, True, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c"}, True, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_METRICS_EXPORTER": "none"}, True, False),
        ({"OTEL_METRICS_EXPORTER": "console"}, False, True),
    ],
)
def test_what_the_environment_asks_for(
    environment: dict[str, str], traces: bool, measures: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert [telemetry._wanted(signal) for signal in telemetry.SIGNALS] == [traces, measures]


def exported(listener: Listener) -> tuple[list[Any], list[Any], set[str]]:
    """The spans and metrics that came over OTLP, and the names of the services they are from."""
    spans: list[Any] = []
    measures: list[Any] = []
    services: set[str] = set()
    for post in listener.posts:
        kind: Any = ExportTraceServiceRequest if post.path == "/v1/traces" else ExportMetricsServiceRequest
        body = kind.FromString(_unpacked(post.body, post.headers))
        for group in body.resource_spans if kind is ExportTraceServiceRequest else body.resource_metrics:
            services |= {a.value.string_value for a in group.resource.attributes if a.key == "service.name"}
            for scope in group.scope_spans if kind is ExportTraceServiceRequest else group.scope_metrics:
                (spans if kind is ExportTraceServiceRequest else measures).extend(
                    scope.spans if kind is ExportTraceServiceRequest else scope.metrics
                )
    return spans, measures, services


def _unpacked(body: bytes, headers: dict[str, str]) -> bytes:
    import gzip

    return gzip.decompress(body) if headers.get("Content-Encoding") == "gzip" else body


def test_the_command_exports_over_http(command_and_listener) -> None:
    command, listener = command_and_listener
    asked = {"OTEL_EXPORTER_OTLP_ENDPOINT": listener.url}
    ended = command("run", "--json", "--log-format", "json", **asked)
    assert ended.code == 0
    spans, measures, services = exported(listener)
    assert services == {"importer-sync"}
    assert {span.name for span in spans} >= {"run", "package", "list_imports", "list_records"}
    assert {metric.name for metric in measures} >= {"importer.requests", "importer.rows", "importer.run.duration"}
    [whole] = [span for span in spans if span.name == "run"]
    assert f'"trace_id": "{whole.trace_id.hex()}"' in ended.err
    assert all(TOKEN.encode() not in post.body for post in listener.posts)

    listener.posts.clear()
    assert command("run", **asked, OTEL_SDK_DISABLED="true").code == 0
    assert listener.posts == []
    ended = command("run", **asked, OTEL_SERVICE_NAME="nightly", OTEL_METRICS_EXPORTER="none")
    spans, measures, services = exported(listener)
    assert (ended.code, services, measures) == (0, {"nightly"}, [])


def test_a_collector_that_is_not_there_changes_nothing(command_and_listener, service: Service) -> None:
    command, _ = command_and_listener
    ended = command("run", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    assert ended.code == 0
    assert "succeeded" in ended.out


@pytest.fixture
def command_and_listener(command, listener: Listener) -> tuple[Any, Listener]:
    return command, listener
