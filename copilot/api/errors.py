"""Convert exceptions of the REST views to error answers."""

from __future__ import annotations

from datetime import UTC, datetime

from django.core.exceptions import BadRequest, PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpResponse, UnreadablePostError
from django.http.multipartparser import MultiPartParserError
from rest_framework import exceptions as rest

from billing import errors
from config.core.api.errors import OUTAGE_EXCEPTIONS, convert_framework_exception, render_refusal
from config.core.errors import (
    Forbidden,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    RequestRefused,
    ServiceUnavailable,
)
from config.core.redis import REDIS_OUTAGE_ERRORS


class BillingRefusal(RequestRefused):
    """Carry a refusal by billing in the form of the other errors."""

    def __init__(self, refusal: errors.BillingRequestRefused) -> None:
        super().__init__(
            refusal.message,
            code=refusal.code,
            retry_after_seconds=refusal.retry_after_seconds(datetime.now(UTC)),
        )
        self.details = {**refusal.details()}
        self.status = refusal.status


# The exceptions that to_refusal can convert. Anything else is a bug and is raised as one.
HANDLED_EXCEPTIONS = (
    RequestRefused,
    errors.BillingRequestRefused,
    rest.APIException,
    Http404,
    PermissionDenied,
    SuspiciousOperation,
    BadRequest,
    MultiPartParserError,
    UnreadablePostError,
    OperationalError,
    InterfaceError,
    *REDIS_OUTAGE_ERRORS,
)


def to_refusal(problem: Exception) -> RequestRefused | None:
    """Convert an exception to a refusal; return None for bugs."""
    match problem:
        case RequestRefused():
            return problem
        case errors.BillingRequestRefused():
            return BillingRefusal(problem)
        case rest.APIException():
            return convert_framework_exception(problem)
        case Http404():
            return NotFound()
        case PermissionDenied():
            return Forbidden("You don't have access to this.")
        case RequestDataTooBig():
            return PayloadTooLarge("The request body is too large.")
        case SuspiciousOperation() | BadRequest() | MultiPartParserError() | UnreadablePostError():
            return InvalidRequest("The request body could not be read.")
        case _:
            return ServiceUnavailable() if isinstance(problem, OUTAGE_EXCEPTIONS) else None


def handle_exception(problem: Exception, _context: object) -> HttpResponse | None:
    """Handle exceptions of every view in this package, as the framework's exception handler."""
    refusal = to_refusal(problem)
    return render_refusal(refusal) if refusal is not None else None
