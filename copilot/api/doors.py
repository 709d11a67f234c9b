"""What every view of REST shares: who may enter, how it answers, how it refuses; sync and async."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from datetime import datetime

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.parsers import JSONParser
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.schemas.inspectors import ViewInspector
from rest_framework.views import APIView

from copilot import queries
from copilot.api import errors
from copilot.api.authentication import (
    CookieAuthentication,
    HasScope,
    KeyAuthentication,
    PerCaller,
    Scoped,
    credential_of,
)
from copilot.api.schema import Schema
from copilot.bridge import in_thread
from copilot.connections import Connection, open_connection
from copilot.errors import NotFound
from copilot.models import ApiKey
from copilot.permissions import Permissions, permissions_for_scopes
from copilot.readers import Revoked


class ByAccept(DefaultContentNegotiation):
    """By the Accept header alone; `?format=` is a query key like any other."""

    def filter_renderers(self, renderers: Iterable[BaseRenderer], format: str) -> list[BaseRenderer]:  # noqa: A002
        return list(renderers)


class Plain(APIView):
    """Our form of refusals, and no OPTIONS page."""

    http_method_names = ["get", "head", "post", "patch", "delete"]
    content_negotiation_class = ByAccept
    renderer_classes = [JSONRenderer]
    parser_classes = [JSONParser]
    schema: ViewInspector | None = Schema()

    def get_exception_handler(self) -> Callable[[Exception, object], HttpResponse | None]:
        return errors.handle


class Door(Scoped, Plain):
    """A view for a known caller."""

    authentication_classes = [KeyAuthentication, CookieAuthentication]
    permission_classes = [HasScope]
    throttle_classes = [PerCaller]

    @property
    def caller(self) -> User:
        user = self.request.user
        assert isinstance(user, User)  # HasScope let nobody else in
        return user

    @property
    def caller_id(self) -> int:
        return self.caller.pk

    @property
    def caller_scopes(self) -> frozenset[str] | None:
        """Those of the caller's key; None for a person, who has them all."""
        key = self.request.auth
        return frozenset(key.scopes) if isinstance(key, ApiKey) else None

    @property
    def turn_permissions(self) -> Permissions:
        """What a turn may do that the caller starts."""
        return permissions_for_scopes(self.caller_scopes)


class AsyncDoor(Door):
    """A view that waits: the same checks, on a thread; then a coroutine that holds none."""

    async def dispatch(  # type: ignore[override]
        self, request: HttpRequest, *args: object, **kwargs: object
    ) -> HttpResponseBase:
        self.args, self.kwargs, self.headers = args, kwargs, self.default_response_headers
        self.request = self.initialize_request(request, *args, **kwargs)
        try:
            response = await self._respond(await in_thread(self._enter, *args, **kwargs), **kwargs)
        except Revoked:
            response = self.handle_exception(errors.Unauthenticated())
        except errors.NAMED as problem:
            response = self.handle_exception(problem)
        return self.finalize_response(self.request, response, *args, **kwargs)  # type: ignore[arg-type]

    def _enter(self, *args: object, **kwargs: object) -> Connection | None:
        self.initial(self.request, *args, **kwargs)
        if not self._handler_name:
            self.http_method_not_allowed(self.request)
        return None

    async def _respond(self, connection: Connection | None, **kwargs: object) -> HttpResponseBase:
        response: HttpResponseBase = await getattr(self, self._handler_name)(self.request, **kwargs)
        return response

    @property
    def _handler_name(self) -> str:
        name = (self.request.method or "").lower()
        return name if name in self.http_method_names else ""


class StreamDoor(AsyncDoor):
    """A GET that stays open for as long as its caller likes."""

    http_method_names = ["get"]
    connection: Connection  # counted among the account's streams, and ended with the caller's login or key

    def _enter(self, *args: object, **kwargs: object) -> Connection:
        """Return the connection: held by the view, one of a cancelled request would be counted until a collection."""
        super()._enter(*args, **kwargs)
        address = str(self.request.META.get("REMOTE_ADDR", ""))
        return open_connection("streams", credential_of(self.request), address)

    async def _respond(self, connection: Connection | None, **kwargs: object) -> HttpResponseBase:
        assert connection is not None  # _enter opened it
        self.connection = connection
        with ExitStack() as stack:
            stack.callback(connection.close)
            response = await self.get(self.request, **kwargs)
            connection.close_with(response)
            stack.pop_all()
        return response

    async def get(self, request: Request, **kwargs: object) -> HttpResponseBase:
        raise NotImplementedError


class Nowhere(Door):
    """Any path that is no door of ours, malformed ids among them: the same 404 for every method."""

    schema = None

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        super().initial(request, *args, **kwargs)
        raise NotFound


def instant_if(moment: datetime | None) -> str | None:
    return queries.instant(moment) if moment is not None else None
