"""The page for what no view could answer: a bug's, or one that comes back by itself while a server is away or its tables are being made."""

from __future__ import annotations

import sys

from django.db import ProgrammingError
from django.http import HttpRequest, HttpResponse
from django.template import loader
from django.views import defaults
from psycopg import errors

from copilot.api.errors import OUTAGES

RETRY_SECONDS = 3
NOT_MIGRATED = (errors.UndefinedTable, errors.UndefinedColumn)


def broken(request: HttpRequest) -> HttpResponse:
    """Django asks it inside of its handling of the exception."""
    if not _is_away(sys.exception()):
        return defaults.server_error(request)
    comes_back = RETRY_SECONDS if request.method in ("GET", "HEAD") else None  # a form is not sent twice
    page = loader.get_template("503.html").render({"comes_back": comes_back})
    return HttpResponse(page, status=503, headers={"Retry-After": str(RETRY_SECONDS)})


def _is_away(problem: BaseException | None) -> bool:
    if isinstance(problem, ProgrammingError):
        return isinstance(problem.__cause__, NOT_MIGRATED)
    return isinstance(problem, OUTAGES)
