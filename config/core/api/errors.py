"""Render every REST error in one form: {"error": {"code", "message", …}}."""

from __future__ import annotations

import msgspec
from django.db import InterfaceError, OperationalError
from django.http import HttpResponse
from rest_framework import exceptions as rest

from config.core.errors import Forbidden, InvalidRequest, NotFound, RequestRefused, ServiceUnavailable
from config.core.redis import REDIS_OUTAGE_ERRORS


class Unauthenticated(RequestRefused):
    """Raised when credentials are missing or invalid; the response does not say which."""

    status = 401
    default_code = "unauthenticated"

    def __init__(self) -> None:
        super().__init__(
            "Valid credentials are needed.", hint="Send a session cookie or Authorization: Bearer <api key>."
        )


class MethodNotAllowed(RequestRefused):
    status = 405
    default_code = "method_not_allowed"


class NotAcceptable(RequestRefused):
    status = 406
    default_code = "not_acceptable"


class UnsupportedMediaType(RequestRefused):
    status = 415
    default_code = "unsupported_media_type"


OUTAGE_EXCEPTIONS = (ServiceUnavailable, OperationalError, InterfaceError, *REDIS_OUTAGE_ERRORS)


def convert_framework_exception(problem: rest.APIException) -> RequestRefused:
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


def render_refusal(refusal: RequestRefused) -> HttpResponse:
    """Render a refusal; the same refusal always gives the same bytes."""
    body = msgspec.json.encode({"error": refusal.to_body()})
    response = HttpResponse(body, status=refusal.status, content_type="application/json")
    if refusal.retry_after_seconds is not None:
        response["Retry-After"] = str(refusal.retry_after_seconds)
    if refusal.status == 401:
        response["WWW-Authenticate"] = 'Bearer realm="api"'
    return response
