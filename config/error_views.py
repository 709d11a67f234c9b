"""Serve the page for server errors, which reloads while a service is unavailable or migrations run."""

from __future__ import annotations

import sys

from django.db import ProgrammingError
from django.http import HttpRequest, HttpResponse
from django.template import loader
from django.views import defaults
from psycopg import errors

from config.core.api.errors import OUTAGE_EXCEPTIONS

PAGE_RELOAD_SECONDS = 3
MISSING_SCHEMA_ERRORS = (errors.UndefinedTable, errors.UndefinedColumn)


def show_server_error(request: HttpRequest) -> HttpResponse:
    if not _is_outage(sys.exception()):
        return defaults.server_error(request)
    comes_back = (
        PAGE_RELOAD_SECONDS if request.method in ("GET", "HEAD") else None
    )  # a form is not sent twice
    page = loader.get_template("503.html").render({"comes_back": comes_back})
    return HttpResponse(page, status=503, headers={"Retry-After": str(PAGE_RELOAD_SECONDS)})


def _is_outage(problem: BaseException | None) -> bool:
    if isinstance(problem, ProgrammingError):
        return isinstance(problem.__cause__, MISSING_SCHEMA_ERRORS)
    return isinstance(problem, OUTAGE_EXCEPTIONS)
