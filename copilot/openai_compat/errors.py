"""Render errors of the OpenAI-compatible API in OpenAI's own envelope."""

from __future__ import annotations

import msgspec
from django.core.exceptions import RequestDataTooBig
from django.db import InterfaceError, OperationalError
from django.http import HttpResponse, UnreadablePostError

from config.core.errors import InvalidRequest, PayloadTooLarge, RequestRefused, ServiceUnavailable
from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot.chat.turn_results import TurnResultError

HANDLED_EXCEPTIONS = (
    RequestRefused,
    RequestDataTooBig,
    UnreadablePostError,
    OperationalError,
    InterfaceError,
    *REDIS_OUTAGE_ERRORS,
)
_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class InvalidApiKey(RequestRefused):
    # A missing key and a wrong one get the same answer, so that nobody can probe for keys.
    status = 401
    default_code = "invalid_api_key"

    def __init__(self) -> None:
        super().__init__("Send a valid API key: Authorization: Bearer <api key>.")


class ModelNotFound(RequestRefused):
    status = 404
    default_code = "model_not_found"


class CompatMethodNotAllowed(RequestRefused):
    status = 405
    default_code = "method_not_allowed"


class TurnEndedWithoutAnswer(RequestRefused):
    """The turn ended without an answer. Clients must not retry by themselves: a retry is a new turn at a new cost."""

    status = 500
    default_code = "turn_failed"


class ContextLengthExceeded(TurnEndedWithoutAnswer):
    status = 400
    default_code = "context_length_exceeded"


class ModelRateLimited(TurnEndedWithoutAnswer):
    status = 429
    default_code = "rate_limit_exceeded"


class ModelOverloaded(TurnEndedWithoutAnswer):
    status = 503
    default_code = "overloaded"


# The vendor's own statuses and codes for what went wrong at the model.
_FAILURES: dict[str, type[TurnEndedWithoutAnswer]] = {
    "context_overflow": ContextLengthExceeded,
    "context_full": ContextLengthExceeded,
    "rate_limited": ModelRateLimited,
    "quota_exhausted": ModelRateLimited,
    "limit_reached": ModelRateLimited,
    "overloaded": ModelOverloaded,
}
DEFAULT_RETRY_AFTER_SECONDS = 20


def build_failure(error: TurnResultError | None) -> TurnEndedWithoutAnswer:
    """Build the refusal for a turn that ended without an answer."""
    if error is None:
        return TurnEndedWithoutAnswer("The turn was stopped.", code="cancelled")
    kind = _FAILURES.get(error.code, TurnEndedWithoutAnswer)
    if kind is TurnEndedWithoutAnswer:
        return kind(error.message, code=error.code, hint=error.hint)
    retry_after = error.retry_after_seconds or DEFAULT_RETRY_AFTER_SECONDS
    return kind(
        error.message, hint=error.hint, retry_after_seconds=retry_after if kind.status >= 429 else None
    )


class TurnTimedOut(RequestRefused):
    status = 504
    default_code = "timeout"


def to_refusal(problem: BaseException) -> RequestRefused:
    match problem:
        case RequestRefused():
            return problem
        case RequestDataTooBig():
            return PayloadTooLarge("The request body is too large.")
        case UnreadablePostError():
            return InvalidRequest("The request body could not be read.")
        case _:
            return ServiceUnavailable()


def build_error_envelope(refusal: RequestRefused) -> dict[str, object]:
    kind = _ERROR_TYPES.get(
        refusal.status, "server_error" if refusal.status >= 500 else "invalid_request_error"
    )
    message = f"{refusal.message} {refusal.hint}".strip()
    param = refusal.details.get("param")
    return {"error": {"message": message, "type": kind, "param": param, "code": refusal.code}}


def render_refusal(refusal: RequestRefused) -> HttpResponse:
    content = msgspec.json.encode(build_error_envelope(refusal))
    response = HttpResponse(content, status=refusal.status, content_type="application/json")
    if refusal.retry_after_seconds is not None:
        response["Retry-After"] = str(refusal.retry_after_seconds)
    retryable = isinstance(refusal, ModelRateLimited | ModelOverloaded)
    if isinstance(refusal, TurnEndedWithoutAnswer | TurnTimedOut) and not retryable:
        response["x-should-retry"] = "false"  # the official clients would retry twice and pay again
    if refusal.status == 401:
        response["WWW-Authenticate"] = 'Bearer realm="api"'
    return response
