"""Django middleware: request logs, metrics and traces, JSON errors for the API, and the second factor of staff."""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import structlog
from asgiref.sync import iscoroutinefunction, sync_to_async
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.views import redirect_to_login
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponseBase, HttpResponseRedirect, JsonResponse
from django.urls import reverse
from django.utils.decorators import sync_and_async_middleware
from prometheus_client import Counter, Histogram

from config.core import trace_context
from config.core.client_address import bind_client_address
from config.core.staff_permissions import explain_second_factor_problem, find_second_factor_problem
from config.logging_config import UNLOGGED_PATHS

KNOWN_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
DURATION_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

http_requests = Counter(
    "pilothouse_http_requests_total",
    "Requests by route (as our URLs are written; unknown ones are other), method and class of status.",
    ["route", "method", "status_class"],
)
http_request_seconds = Histogram(
    "pilothouse_http_request_seconds",
    "From a request's arrival to the head of its answer.",
    buckets=DURATION_BUCKETS,
)


def get_route(request: HttpRequest) -> str:
    """Return the URL pattern rather than the path, so that clients cannot create new metric series."""
    match = request.resolver_match
    return match.route or "/" if match else "other"


def count_request(request: HttpRequest, status: int, seconds: float) -> None:
    method = request.method if request.method in KNOWN_METHODS else "other"
    http_requests.labels(get_route(request), method, f"{status // 100}xx").inc()
    http_request_seconds.observe(seconds)


log = structlog.get_logger("http")
API_PREFIXES = ("/api/", "/v1/")  # clients that expect JSON, not a page

_ERRORS_BY_STATUS = {
    400: ("invalid_request", "The request is malformed."),
    403: ("forbidden", "This is not allowed."),
    404: ("not_found", "Not found."),
    405: ("method_not_allowed", "This method is not allowed here."),
    413: ("too_large", "The request body is too large."),
    503: ("unavailable", "The service is unavailable for a moment. Please try again."),
}
_INTERNAL_ERROR = ("internal_error", "Something went wrong here. Please try again.")

Handler = Callable[[HttpRequest], HttpResponseBase]
AsyncHandler = Callable[[HttpRequest], Awaitable[HttpResponseBase]]


@sync_and_async_middleware
def request_id(get_response: Handler | AsyncHandler) -> Handler | AsyncHandler:
    if iscoroutinefunction(get_response):

        async def handle_async(request: HttpRequest) -> HttpResponseBase:
            began, name = time.perf_counter(), _get_request_id(request)
            with _bind_request_context(request, name), _start_span(request) as span:
                response = await get_response(request)
                span.note(route=get_route(request), status=response.status_code)
                return _log_response(request, response, began=began)

        return handle_async

    def handle(request: HttpRequest) -> HttpResponseBase:
        began, name = time.perf_counter(), _get_request_id(request)
        with _bind_request_context(request, name), _start_span(request) as span:
            response = get_response(request)
            assert isinstance(response, HttpResponseBase)
            span.note(route=get_route(request), status=response.status_code)
            return _log_response(request, response, began=began)

    return handle


@contextmanager
def _bind_request_context(request: HttpRequest, name: str) -> Iterator[None]:
    address = str(request.META.get("REMOTE_ADDR", ""))
    with structlog.contextvars.bound_contextvars(request_id=name), bind_client_address(address):
        yield


@sync_and_async_middleware
def api_errors(get_response: Handler | AsyncHandler) -> Handler | AsyncHandler:
    """Answer API errors as JSON: unknown addresses, bugs and refused CSRF tokens."""
    if iscoroutinefunction(get_response):

        async def handle_async(request: HttpRequest) -> HttpResponseBase:
            return _convert_to_api_error(request, await get_response(request))

        return handle_async

    def handle(request: HttpRequest) -> HttpResponseBase:
        response = get_response(request)
        assert isinstance(response, HttpResponseBase)
        return _convert_to_api_error(request, response)

    return handle


STAFF_PAGES, STAFF_PAGES_FOR_ALL = "/admin/", ("/admin/login/", "/admin/logout/", "/admin/jsi18n/")


@sync_and_async_middleware
def staff_second_factor(get_response: Handler | AsyncHandler) -> Handler | AsyncHandler:
    """Send staff who have not used a second factor to where they add or use one, before any staff page."""
    if iscoroutinefunction(get_response):

        async def handle_async(request: HttpRequest) -> HttpResponseBase:
            refused = await sync_to_async(_demand_second_factor)(request) if _is_staff_page(request) else None
            return refused or await get_response(request)

        return handle_async

    def handle(request: HttpRequest) -> HttpResponseBase:
        response = (_demand_second_factor(request) if _is_staff_page(request) else None) or get_response(
            request
        )
        assert isinstance(response, HttpResponseBase)
        return response

    return handle


def _is_staff_page(request: HttpRequest) -> bool:
    return request.path.startswith(STAFF_PAGES) and not request.path.startswith(STAFF_PAGES_FOR_ALL)


def _demand_second_factor(request: HttpRequest) -> HttpResponseBase | None:
    if settings.STAFF_MFA != "required":
        return None
    try:
        problem = find_second_factor_problem(request.user, request) if request.user.is_staff else ""
    except (OperationalError, InterfaceError):
        return None  # users cannot be identified right now; the page reports it
    if not problem:
        return None
    if problem == "no_factor":
        messages.warning(request, explain_second_factor_problem(problem))
        return HttpResponseRedirect(reverse("mfa_index"))
    return redirect_to_login(request.get_full_path(), reverse("mfa_reauthenticate"))


def _convert_to_api_error(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    page = response.headers.get("Content-Type", "").startswith("text/html")
    if response.status_code < 400 or not page or not request.path.startswith(API_PREFIXES):
        return response
    known = (
        response.status_code
        if response.status_code in _ERRORS_BY_STATUS
        else 500
        if response.status_code >= 500
        else 400
    )
    code, message = _ERRORS_BY_STATUS.get(known, _INTERNAL_ERROR)
    answer = JsonResponse({"error": {"code": code, "message": message}}, status=response.status_code)
    if (wait := response.headers.get("Retry-After")) is not None:
        answer.headers["Retry-After"] = wait
    return answer


def _get_request_id(request: HttpRequest) -> str:
    """Return the id set by config.http.handler."""
    return request.headers.get("X-Request-ID") or uuid.uuid4().hex


def _start_span(request: HttpRequest) -> AbstractContextManager[trace_context.Span]:
    """Start a span, except for probes; a trusted proxy may have started the trace."""
    if request.path in UNLOGGED_PATHS:
        return trace_context.skip_span()
    return trace_context.start_span(
        "request", parent=request.headers.get("traceparent", ""), method=request.method or ""
    )


def _get_log_ids(request: HttpRequest) -> dict[str, str]:
    """Return the ids known without a query."""
    kwargs = request.resolver_match.kwargs if request.resolver_match else {}
    ids = {name: str(kwargs[name]) for name in ("session_id", "turn_id") if name in kwargs}
    user = getattr(request, "_cached_user", None) or getattr(request, "_acached_user", None)
    return ids | ({"user_ref": str(user.pk)[-8:]} if user is not None and user.pk else {})


def _log_response(request: HttpRequest, response: HttpResponseBase, *, began: float) -> HttpResponseBase:
    if request.path not in UNLOGGED_PATHS and not request.path.startswith(settings.STATIC_URL):
        seconds = time.perf_counter() - began
        count_request(request, response.status_code, seconds)
        log.info(
            "request",
            method=request.method,
            route=get_route(request),
            status=response.status_code,
            duration_ms=round(seconds * 1000, 1),
            **_get_log_ids(request),
        )
    return response
