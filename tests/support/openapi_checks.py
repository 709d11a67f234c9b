"""Settings and checks for comparing REST with its OpenAPI document."""

from __future__ import annotations

from functools import cache
from typing import Any

from django.core.wsgi import get_wsgi_application
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def make_bounded_settings(examples: int) -> hypothesis_settings:
    """Generate the same cases in every run."""
    return hypothesis_settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


application = cache(
    get_wsgi_application
)  # one for all requests, because each would search all static files first


def serve_whole_response(environ: Any, start_response: Any) -> list[bytes]:
    """Read every response to its end and close it and its files, as a server does."""
    response: Any = application()(environ, start_response)
    try:
        return [b"".join(response)]
    finally:
        response.close()
