"""Switch tracing on if an OTLP endpoint is configured and the extra `tracing` is installed."""

from __future__ import annotations

import structlog
from django.conf import settings

from config.core import trace_context

log = structlog.get_logger(__name__)


def start_tracing(part: str) -> None:
    """Start tracing once per process. Without an endpoint nothing is imported."""
    if not settings.TRACES:
        return
    try:
        from config import otel
    except ImportError:
        log.warning(
            "tracing_not_installed", fix="install the extra `tracing`, or unset OTEL_EXPORTER_OTLP_ENDPOINT"
        )
        return
    trace_context.bind_tracer(otel.OpenTelemetryTracer(otel.build_tracer_provider(part)))
