"""Switches tracing on where an OTLP endpoint is configured and the extra `tracing` is installed (D18)."""

from __future__ import annotations

import logging

from django.conf import settings

from copilot import traces

log = logging.getLogger(__name__)


def start(part: str) -> None:
    """Once per process. Without an endpoint nothing is imported, and nothing is paid."""
    if not settings.TRACES:
        return
    try:
        from config import otel
    except ImportError:
        log.warning("no traces: install the extra `tracing`, or unset OTEL_EXPORTER_OTLP_ENDPOINT")
        return
    traces.bind(otel.OpenTelemetry(otel.provider(part)))
