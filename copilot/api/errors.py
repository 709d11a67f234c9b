"""Every refusal of REST, whoever raised it, becomes one form: {"error": {"code", "message", …}} (E3)."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from django.core.exceptions import BadRequest, PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpResponse, UnreadablePostError
from django.http.multipartparser import MultiPartParserError
from rest_framework import exceptions as rest

from billing import errors as billing
from copilot.errors import Forbidden, InvalidRequest, NotFound, Refused, TooLarge, Unavailable
from copilot.live.client import RedisDown


class Unauthenticated(Refused):
    """No credentials or bad ones; which, is nobody's business (L10)."""

    status = 401
    default_code = "unauthenticated"

    def __init__(self) -> None:
        super().__init__(
            "Valid credentials are needed.", hint="Send a session cookie or Authorization: Bearer <api key>."
        )


class MethodNotAllowed(Refused):
    status = 405
    default_code = "method_not_allowed"


class NotAcceptable(Refused):
    status = 406
    default_code = "not_acceptable"


class UnsupportedMediaType(Refused):
    status = 415
    default_code = "unsupported_media_type"


class PaymentRefused(Refused):
    """What billing refuses, in the same form (B16.3)."""

    def __init__(self, refusal: billing.Refused) -> None:
        super().__init__(
            refusal.message,
            code=refusal.code,
            retry_after_seconds=refusal.retry_after_seconds(datetime.now(UTC)),
        )
        self.details = {**refusal.details()}
        self.status = refusal.status


NAMED = (
    Refused,
    billing.Refused,
    rest.APIException,
    Http404,
    PermissionDenied,
    SuspiciousOperation,
    BadRequest,
    MultiPartParserError,
    UnreadablePostError,
    OperationalError,
    InterfaceError,
    *RedisDown,
)  # what refusal_for can name; anything else is a bug and is raised as one
OUTAGES = (Unavailable, OperationalError, InterfaceError, *RedisDown)


def refusal_for(problem: Exception) -> Refused | None:
    """Who must act, in our own words; None for what is no refusal but a bug."""
    match problem:
        case Refused():
            return problem
        case billing.Refused():
            return PaymentRefused(problem)
        case rest.APIException():
            return _of_framework(problem)
        case Http404():
            return NotFound()
        case PermissionDenied():
            return Forbidden("This is not allowed.")
        case RequestDataTooBig():
            return TooLarge("The request body is too large.")
        case SuspiciousOperation() | BadRequest() | MultiPartParserError() | UnreadablePostError():
            return InvalidRequest("The request body could not be read.")
        case _:
            return Unavailable() if isinstance(problem, OUTAGES) else None


def _of_framework(problem: rest.APIException) -> Refused:
    match problem:
        case rest.NotAuthenticated() | rest.AuthenticationFailed():
            return Unauthenticated()
        case rest.PermissionDenied():
            return Forbidden("This is not allowed.")
        case rest.NotFound():
            return NotFound()
        case rest.MethodNotAllowed():
            return MethodNotAllowed("This method is not allowed here.")
        case rest.NotAcceptable():
            return NotAcceptable("None of the accepted media types can be served.")
        case rest.UnsupportedMediaType():
            return UnsupportedMediaType("This media type is not understood here.")
        case _:
            return InvalidRequest("The request is malformed.")


def respond(refusal: Refused) -> HttpResponse:
    """The refusal as an answer; the same refusal always gives the same bytes."""
    body = msgspec.json.encode({"error": refusal.body()})
    response = HttpResponse(body, status=refusal.status, content_type="application/json")
    if refusal.retry_after_seconds is not None:
        response["Retry-After"] = str(refusal.retry_after_seconds)
    if refusal.status == 401:
        response["WWW-Authenticate"] = 'Bearer realm="api"'
    return response


def handle(problem: Exception, _context: object) -> HttpResponse | None:
    """The framework's exception handler for every view of this package."""
    refusal = refusal_for(problem)
    return respond(refusal) if refusal is not None else None
