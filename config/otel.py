"""Export our spans through OpenTelemetry; a collector that is away costs nothing."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import structlog
from django.conf import settings
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

from config.core import trace_context

log = structlog.get_logger(__name__)

WARNING_INTERVAL_SECONDS = 60.0
DATABASE_SPAN_SAMPLE_RATE = 0.1  # of the statements inside traces: enough to see where time goes
_seed: ContextVar[str] = ContextVar("span_seed", default="")


def build_tracer_provider(part: str, exporter: SpanExporter | None = None) -> TracerProvider:
    resource = Resource.create(
        {"service.name": "pilothouse", "service.version": settings.VERSION, "pilothouse.part": part}
    )
    made = TracerProvider(resource=resource, id_generator=_SeededIdGenerator())
    made.add_span_processor(BatchSpanProcessor(_QuietExporter(exporter or OTLPSpanExporter())))
    return made


class OpenTelemetryTracer:
    def __init__(self, spans: TracerProvider) -> None:
        self.provider = spans
        self._tracer = spans.get_tracer("pilothouse")
        connection_created.connect(self._trace_connection, dispatch_uid="traces")

    @contextmanager
    def span(
        self,
        name: str,
        *,
        parent: str,
        seed: str,
        follows: str,
        attributes: Mapping[str, trace_context.AttributeValue],
    ) -> Iterator[trace_context.Span]:
        above = _extract_parent_context(parent)
        links = [link] if (link := _build_link(above, follows)) else None
        token = _seed.set(seed)
        try:
            begun = self._tracer.start_span(name, above, attributes=dict(attributes), links=links)
        finally:
            _seed.reset(token)
        with trace.use_span(begun, end_on_exit=True, record_exception=False, set_status_on_exception=True):
            yield _OpenTelemetrySpan(begun)

    def past(self, name: str, seconds: float, attributes: Mapping[str, trace_context.AttributeValue]) -> None:
        now = time.time_ns()
        begun = self._tracer.start_span(
            name, attributes=dict(attributes), start_time=now - int(seconds * 1e9)
        )
        begun.end(now)

    def here(self) -> str:
        told: dict[str, str] = {}
        propagate.inject(told)
        return told.get("traceparent", "")

    def _trace_connection(self, connection: BaseDatabaseWrapper, **_: object) -> None:
        connection.execute_wrappers.append(self._trace_statement)

    def _trace_statement(
        self, execute: Callable[..., object], sql: str, params: object, many: bool, context: object
    ) -> object:
        """Trace some statements by their first word, never by their content."""
        if not trace.get_current_span().is_recording() or random.random() > DATABASE_SPAN_SAMPLE_RATE:  # noqa: S311 - a sample
            return execute(sql, params, many, context)
        with self._tracer.start_as_current_span(f"database {sql.split(maxsplit=1)[0].lower()}"):
            return execute(sql, params, many, context)


class _OpenTelemetrySpan:
    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def note(self, **attributes: trace_context.AttributeValue) -> None:
        self._span.set_attributes(dict(attributes))


class _SeededIdGenerator(RandomIdGenerator):
    """Derive the id of a span from its seed, if it has one."""

    def generate_span_id(self) -> int:
        return _derive_span_id(seed) if (seed := _seed.get()) else super().generate_span_id()


def _derive_span_id(seed: str) -> int:
    return int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=8).digest(), "big") or 1


def _extract_parent_context(parent: str) -> Context | None:
    """Return the parent context; None leaves the caller's span the parent."""
    return propagate.extract({"traceparent": parent}) if parent else None


def _build_link(above: Context | None, follows: str) -> trace.Link | None:
    """Link to the earlier span in the same trace whose work this one continues."""
    if not follows:
        return None
    known = trace.get_current_span(above).get_span_context()
    return trace.Link(
        trace.SpanContext(
            trace_id=known.trace_id,
            span_id=_derive_span_id(follows),
            is_remote=True,
            trace_flags=known.trace_flags,
        )
    )


class _QuietExporter(SpanExporter):
    """Log export failures at most once a minute; spans that cannot be sent are dropped."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._warned_at = float("-inf")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if (
            result is not SpanExportResult.SUCCESS
            and time.monotonic() - self._warned_at > WARNING_INTERVAL_SECONDS
        ):
            self._warned_at = time.monotonic()
            log.warning("spans_dropped", count=len(spans))
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)
