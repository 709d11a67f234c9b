"""Every request gets an id and one log line; every error that a program meets has the wire's form (D19, E3)."""

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

from config import metrics
from config.core.client_address import bound_address
from config.core.staff_access import explain_problem, second_factor_problem
from config.logs import UNLOGGED_PATHS
from copilot import traces

log = structlog.get_logger("http")
PROGRAMS = ("/api/", "/v1/")  # where a page would help nobody

_ERRORS = {
    400: ("invalid_request", "The request is malformed."),
    403: ("forbidden", "This is not allowed."),
    404: ("not_found", "Not found."),
    405: ("method_not_allowed", "This method is not allowed here."),
    413: ("too_large", "The request body is too large."),
    503: ("unavailable", "The service is unavailable for a moment. Please try again."),
}
_INTERNAL = ("internal_error", "Something went wrong here. Please try again.")

Handler = Callable[[HttpRequest], HttpResponseBase]
AsyncHandler = Callable[[HttpRequest], Awaitable[HttpResponseBase]]


@sync_and_async_middleware
def request_id(get_response: Handler | AsyncHandler) -> Handler | AsyncHandler:
    if iscoroutinefunction(get_response):

        async def handle_async(request: HttpRequest) -> HttpResponseBase:
            began, name = time.perf_counter(), _name(request)
            with _bound(request, name), _span(request) as span:
                response = await get_response(request)
                span.note(route=metrics.route_of(request), status=response.status_code)
                return _finished(request, response, began=began)

        return handle_async

    def handle(request: HttpRequest) -> HttpResponseBase:
        began, name = time.perf_counter(), _name(request)
        with _bound(request, name), _span(request) as span:
            response = get_response(request)
            assert isinstance(response, HttpResponseBase)
            span.note(route=metrics.route_of(request), status=response.status_code)
            return _finished(request, response, began=began)

    return handle


@contextmanager
def _bound(request: HttpRequest, name: str) -> Iterator[None]:
    address = str(request.META.get("REMOTE_ADDR", ""))
    with structlog.contextvars.bound_contextvars(request_id=name), bound_address(address):
        yield


@sync_and_async_middleware
def api_errors(get_response: Handler | AsyncHandler) -> Handler | AsyncHandler:
    """A page where a program expects JSON helps nobody: unknown addresses, bugs, refused CSRF tokens."""
    if iscoroutinefunction(get_response):

        async def handle_async(request: HttpRequest) -> HttpResponseBase:
            return _in_wire_form(request, await get_response(request))

        return handle_async

    def handle(request: HttpRequest) -> HttpResponseBase:
        response = get_response(request)
        assert isinstance(response, HttpResponseBase)
        return _in_wire_form(request, response)

    return handle


STAFF_PAGES, STAFF_PAGES_FOR_ALL = "/admin/", ("/admin/login/", "/admin/logout/", "/admin/jsi18n/")


@sync_and_async_middleware
def staff_second_factor(get_response: Handler | AsyncHandler) -> Handler | AsyncHandler:
    """Send staff who have not used a second factor to where they add or use one, before any staff page."""
    if iscoroutinefunction(get_response):

        async def handle_async(request: HttpRequest) -> HttpResponseBase:
            refused = await sync_to_async(_factor_demanded)(request) if _is_staff_page(request) else None
            return refused or await get_response(request)

        return handle_async

    def handle(request: HttpRequest) -> HttpResponseBase:
        response = (_factor_demanded(request) if _is_staff_page(request) else None) or get_response(request)
        assert isinstance(response, HttpResponseBase)
        return response

    return handle


def _is_staff_page(request: HttpRequest) -> bool:
    return request.path.startswith(STAFF_PAGES) and not request.path.startswith(STAFF_PAGES_FOR_ALL)


def _factor_demanded(request: HttpRequest) -> HttpResponseBase | None:
    if settings.STAFF_MFA != "required":
        return None
    try:
        problem = second_factor_problem(request.user, request) if request.user.is_staff else ""
    except (OperationalError, InterfaceError):
        return None  # nobody can be recognised now; the page says so itself
    if not problem:
        return None
    if problem == "no_factor":
        messages.warning(request, explain_problem(problem))
        return HttpResponseRedirect(reverse("mfa_index"))
    return redirect_to_login(request.get_full_path(), reverse("mfa_reauthenticate"))


def _in_wire_form(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    page = response.headers.get("Content-Type", "").startswith("text/html")
    if response.status_code < 400 or not page or not request.path.startswith(PROGRAMS):
        return response
    known = (
        response.status_code
        if response.status_code in _ERRORS
        else 500
        if response.status_code >= 500
        else 400
    )
    code, message = _ERRORS.get(known, _INTERNAL)
    answer = JsonResponse({"error": {"code": code, "message": message}}, status=response.status_code)
    if (wait := response.headers.get("Retry-After")) is not None:
        answer.headers["Retry-After"] = wait
    return answer


def _name(request: HttpRequest) -> str:
    """As the outermost door named it (config.arrivals)."""
    return request.headers.get("X-Request-ID") or uuid.uuid4().hex


def _span(request: HttpRequest) -> AbstractContextManager[traces.Span]:
    """Probes make no traces; a proxy of ours may have begun one."""
    if request.path in UNLOGGED_PATHS:
        return traces.nothing()
    return traces.span("request", parent=request.headers.get("traceparent", ""), method=request.method or "")


def _ids(request: HttpRequest) -> dict[str, str]:
    """Whom and what it was about, as far as that is known without asking anybody."""
    kwargs = request.resolver_match.kwargs if request.resolver_match else {}
    ids = {name: str(kwargs[name]) for name in ("session_id", "turn_id") if name in kwargs}
    user = getattr(request, "_cached_user", None) or getattr(request, "_acached_user", None)
    return ids | ({"user_ref": str(user.pk)[-8:]} if user is not None and user.pk else {})


def _finished(request: HttpRequest, response: HttpResponseBase, *, began: float) -> HttpResponseBase:
    if request.path not in UNLOGGED_PATHS and not request.path.startswith(settings.STATIC_URL):
        seconds = time.perf_counter() - began
        metrics.count_request(request, response.status_code, seconds)
        log.info(
            "request",
            method=request.method,
            route=metrics.route_of(request),
            status=response.status_code,
            duration_ms=round(seconds * 1000, 1),
            **_ids(request),
        )
    return response
