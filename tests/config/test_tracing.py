"""Traces: one turn is one trace, wherever it runs; a collector that is away costs nobody anything (D18)."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from django.db.backends.signals import connection_created
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from config import otel
from config.core import trace_context
from config.dev.servers import find_free_port
from copilot.models import Turn
from copilot.providers.scripted import ScriptedCall, ScriptedText
from copilot.worker import liveness, recovery
from tests.support import factories
from tests.support.paths import ROOT
from tests.support.rest_clients import JSON, V1, person
from tests.support.turn_engine import Errand, add_tools, cue, ended, start, until

WORDS = "the-words-of-a-person"
PATIENCE_SECONDS = 0.2  # of an exporter, with a collector


class Collector:
    """Takes OTLP over HTTP, as a real one does, and remembers the spans."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        spans = self.spans

        class Door(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    for scope in resource.scope_spans:
                        spans.extend(scope.spans)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return None

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1/traces"

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    tracer = otel.OpenTelemetryTracer(
        otel.build_tracer_provider("test", OTLPSpanExporter(endpoint=collector.url))
    )
    trace_context.bind_tracer(tracer)
    collector.flush = tracer.provider.force_flush
    yield collector
    trace_context.bind_tracer(None)
    connection_created.disconnect(dispatch_uid="traces")
    tracer.provider.shutdown()
    collector.close()


def test_one_turn_is_one_trace_from_the_request_to_the_last_tool(rig, model, collector, monkeypatch):
    """A-D18.1: and no word of anybody's is in it"""
    errand = Errand("fetch_paper")
    add_tools(monkeypatch, errand)
    model.will(ScriptedCall("fetch_paper", {"note": WORDS}))
    session = factories.session(factories.ada())
    answer = person(session.owner).post(
        f"{V1}/sessions/{session.pk}/messages", {"text": WORDS}, content_type=JSON
    )
    assert answer.status_code == 201, answer.content
    ended(Turn.objects.get(session=session).pk)
    until(lambda: collector.flush() and collector.named("turn"))
    [request], [dispatched], [turn] = (collector.named(name) for name in ("request", "dispatch", "turn"))
    [tool] = collector.named("tool")
    calls = collector.named("provider")
    assert len(calls) == 2
    assert {span.trace_id for span in (request, dispatched, turn, tool, *calls)} == {request.trace_id}
    assert (dispatched.parent_span_id, turn.parent_span_id) == (request.span_id, dispatched.span_id)
    assert {span.parent_span_id for span in (tool, *calls)} == {turn.span_id}
    assert WORDS not in repr(collector.spans)
    assert session.owner.email not in repr(collector.spans)


def test_a_turn_taken_over_is_in_the_same_trace_and_names_the_run_it_continues(rig, model, collector):
    """A-D18.1"""
    model.will(ScriptedText("Half an "), cue(1), ScriptedText("answer"))
    session = factories.session(factories.ada())
    with trace_context.start_span("request"):
        turn_id = start(session)
    model.reaches(1)
    fence = Turn.objects.get(pk=turn_id).fence
    rig.worker.kill()
    rig.start_worker()
    [suspect] = liveness.list_turn_evidence()
    assert recovery.take_over_turn(suspect)
    ended(turn_id)
    until(lambda: collector.flush() and collector.named("turn") and collector.named("request"))
    [turn], [request] = collector.named("turn"), collector.named("request")
    assert turn.trace_id == request.trace_id
    [link] = turn.links
    lost = otel._derive_span_id(f"{turn_id}:{fence}").to_bytes(8, "big")
    assert (link.trace_id, link.span_id) == (turn.trace_id, lost)


def test_a_collector_that_is_away_costs_nothing_and_is_one_line_a_minute(caplog: pytest.LogCaptureFixture):
    """A-D18.2"""
    away = OTLPSpanExporter(
        endpoint=f"http://127.0.0.1:{find_free_port()}/v1/traces", timeout=PATIENCE_SECONDS
    )
    tracer = otel.OpenTelemetryTracer(otel.build_tracer_provider("test", away))
    trace_context.bind_tracer(tracer)
    try:
        took = []
        for _ in range(200):
            began = time.perf_counter()
            with trace_context.start_span("turn", seed="x", turn_id="x"):
                trace_context.record_past_span("provider", 0.1)
            took.append(time.perf_counter() - began)
        with caplog.at_level(logging.WARNING, logger="config.otel"):
            for _ in range(2):
                tracer.provider.force_flush(5_000)
                with trace_context.start_span("turn"):
                    pass
            tracer.provider.force_flush(5_000)
    finally:
        trace_context.bind_tracer(None)
        connection_created.disconnect(dispatch_uid="traces")
        tracer.provider.shutdown()
    assert sorted(took)[len(took) // 2] < PATIENCE_SECONDS  # nobody waits for it
    logged = [record.msg for record in caplog.records if record.name == "config.otel"]
    assert [event["event"] for event in logged] == ["spans_dropped"]


def test_without_an_endpoint_nothing_of_it_is_loaded():
    """D18: zero cost"""
    asked = "import config.asgi, sys; print([n for n in ('config.otel', 'opentelemetry.exporter') if n in sys.modules])"
    told = subprocess.run([sys.executable, "-c", asked], cwd=ROOT, capture_output=True, text=True, check=True)
    assert told.stdout.strip().splitlines()[-1] == "[]"
    assert trace_context.start_span("turn") is trace_context.start_span("tool")
    assert trace_context.get_traceparent() == ""
