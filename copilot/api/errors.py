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
    """What billing refuses, in the same form (B16.3)."""

    def __init__(self, refusal: errors.BillingRequestRefused) -> None:
        super().__init__(
            refusal.message,
            code=refusal.code,
            retry_after_seconds=refusal.retry_after_seconds(datetime.now(UTC)),
        )
        self.details = {**refusal.details()}
        self.status = refusal.status


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
)  # what refusal_for can name; anything else is a bug and is raised as one


def to_refusal(problem: Exception) -> RequestRefused | None:
    """Who must act, in our own words; None for what is no refusal but a bug."""
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
            return Forbidden("This is not allowed.")
        case RequestDataTooBig():
            return PayloadTooLarge("The request body is too large.")
        case SuspiciousOperation() | BadRequest() | MultiPartParserError() | UnreadablePostError():
            return InvalidRequest("The request body could not be read.")
        case _:
            return ServiceUnavailable() if isinstance(problem, OUTAGE_EXCEPTIONS) else None


def handle_exception(problem: Exception, _context: object) -> HttpResponse | None:
    """The framework's exception handler for every view of this package."""
    refusal = to_refusal(problem)
    return render_refusal(refusal) if refusal is not None else None
