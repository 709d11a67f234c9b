"""Base classes of the REST views: authentication, content negotiation, errors, and views that wait or stream."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Annotated

from django.contrib.auth.models import User
from django.core.exceptions import BadRequest, PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, UnreadablePostError
from django.http.multipartparser import MultiPartParserError
from django.http.response import HttpResponseBase
from pydantic import AfterValidator
from rest_framework import exceptions as rest
from rest_framework.parsers import JSONParser
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.schemas.inspectors import ViewInspector
from rest_framework.views import APIView

from billing import errors
from config.core.api import errors as api_errors
from config.core.api.errors import OUTAGE_EXCEPTIONS, convert_framework_exception, render_refusal
from config.core.api.schema import ApiSchema
from config.core.api.views import AcceptHeaderNegotiation, ScopedViewMixin
from config.core.db import run_in_thread
from config.core.errors import (
    Forbidden,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    RequestRefused,
    ServiceUnavailable,
)
from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot.api.authentication import (
    ApiKeyAuthentication,
    CallerThrottle,
    HasScope,
    SessionCookieAuthentication,
    get_credential,
)
from copilot.chat.commands import clean_text
from copilot.chat.permissions import Permissions, permissions_for_scopes
from copilot.models import ApiKey
from copilot.realtime import payloads
from copilot.realtime.connections import OpenConnection, open_connection
from copilot.realtime.fanout import FeedRevoked


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


# Text that can be stored: no NUL, no lone surrogates, no server tags.
CleanText = Annotated[str, AfterValidator(clean_text)]


class BaseApiView(APIView):
    """Render every error in the API's own form, and answer no OPTIONS requests."""

    http_method_names = ["get", "head", "post", "patch", "delete"]
    content_negotiation_class = AcceptHeaderNegotiation
    renderer_classes = [JSONRenderer]
    parser_classes = [JSONParser]
    schema: ViewInspector | None = ApiSchema()

    def get_exception_handler(self) -> Callable[[Exception, object], HttpResponse | None]:
        return handle_exception


class AuthenticatedApiView(ScopedViewMixin, BaseApiView):
    """Require a session cookie or an API key."""

    authentication_classes = [ApiKeyAuthentication, SessionCookieAuthentication]
    permission_classes = [HasScope]
    throttle_classes = [CallerThrottle]

    @property
    def caller(self) -> User:
        user = self.request.user
        assert isinstance(user, User)  # HasScope admits nobody else
        return user

    @property
    def caller_id(self) -> int:
        return self.caller.pk

    @property
    def caller_scopes(self) -> frozenset[str] | None:
        """Return the scopes of the caller's key, or None for a signed-in person, who has them all."""
        key = self.request.auth
        return frozenset(key.scopes) if isinstance(key, ApiKey) else None

    @property
    def turn_permissions(self) -> Permissions:
        return permissions_for_scopes(self.caller_scopes)


class AsyncApiView(AuthenticatedApiView):
    """Run the same checks on a thread, then a coroutine that holds no thread."""

    async def dispatch(  # type: ignore[override]
        self, request: HttpRequest, *args: object, **kwargs: object
    ) -> HttpResponseBase:
        self.args, self.kwargs, self.headers = args, kwargs, self.default_response_headers
        self.request = self.initialize_request(request, *args, **kwargs)
        try:
            response = await self._respond(
                await run_in_thread(self._authenticate_and_connect, *args, **kwargs), **kwargs
            )
        except FeedRevoked:
            response = self.handle_exception(api_errors.Unauthenticated())
        except HANDLED_EXCEPTIONS as problem:
            response = self.handle_exception(problem)
        return self.finalize_response(self.request, response, *args, **kwargs)  # type: ignore[arg-type]

    def _authenticate_and_connect(self, *args: object, **kwargs: object) -> OpenConnection | None:
        self.initial(self.request, *args, **kwargs)
        if not self._handler_name:
            self.http_method_not_allowed(self.request)
        return None

    async def _respond(self, connection: OpenConnection | None, **kwargs: object) -> HttpResponseBase:
        response: HttpResponseBase = await getattr(self, self._handler_name)(self.request, **kwargs)
        return response

    @property
    def _handler_name(self) -> str:
        name = (self.request.method or "").lower()
        return name if name in self.http_method_names else ""


class StreamApiView(AsyncApiView):
    """Keep a GET request open for as long as the caller stays."""

    http_method_names = ["get"]
    # Counts as one of the account's open streams, and ends with the caller's login or key.
    connection: OpenConnection

    def _authenticate_and_connect(self, *args: object, **kwargs: object) -> OpenConnection:
        """Return the connection instead of storing it on the view.

        A cancelled request would otherwise keep it counted until the view is garbage-collected.
        """
        super()._authenticate_and_connect(*args, **kwargs)
        address = str(self.request.META.get("REMOTE_ADDR", ""))
        return open_connection("streams", get_credential(self.request), address)

    async def _respond(self, connection: OpenConnection | None, **kwargs: object) -> HttpResponseBase:
        assert connection is not None  # _authenticate_and_connect opened it
        self.connection = connection
        with ExitStack() as stack:
            stack.callback(connection.close)
            response = await self.get(self.request, **kwargs)
            connection.close_with(response)
            stack.pop_all()
        return response

    async def get(self, request: Request, **kwargs: object) -> HttpResponseBase:
        raise NotImplementedError


class NotFoundView(AuthenticatedApiView):
    """Answer any unknown path, including malformed ids, with the same 404 for every method."""

    schema = None

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        super().initial(request, *args, **kwargs)
        raise NotFound


def format_instant_or_none(moment: datetime | None) -> str | None:
    return payloads.format_timestamp(moment) if moment is not None else None
