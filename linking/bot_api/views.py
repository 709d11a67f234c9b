"""What the REST views of linking share: people's doors as copilot has them, and bots' with keys of their own (L2, L10)."""

from __future__ import annotations

from typing import ClassVar

from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from rest_framework.exceptions import APIException
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

from config.core import db, rate_limits
from config.core.api.views import UncachedApiView
from config.core.errors import NotFound, RequestRefused
from copilot.realtime import fanout
from linking.bot_api.authentication import BotAuthentication
from linking.errors import InsufficientScope, PlatformMismatch, RateLimited
from linking.models import BotKey


class HasBotScope(BasePermission):
    def has_permission(self, request: Request, view: APIView) -> bool:
        assert isinstance(view, BotAPIView)
        for scope in view.scopes_for(request.method or ""):
            if scope not in view.key.scopes:
                raise InsufficientScope(scope)
        return True


class BotKeyThrottle(BaseThrottle):
    def allow_request(self, request: Request, view: APIView) -> bool:
        assert isinstance(view, BotAPIView)
        wait = rate_limits.count_in_sliding_window(
            "bot-key", view.key.prefix, limit=view.key.rate_per_minute, seconds=60
        )
        if wait is not None:
            raise RateLimited(retry_after_seconds=wait)
        return True


class BotAPIView(UncachedApiView):
    """For a bot with its key. A view says which scope it needs; `""`: any key."""

    http_method_names = ["get", "head", "post", "put", "delete"]
    authentication_classes = [BotAuthentication]
    permission_classes = [HasBotScope]
    throttle_classes = [BotKeyThrottle]
    scope: ClassVar[str] = ""

    def scopes_for(self, method: str) -> tuple[str, ...]:
        return (self.scope,) if self.scope else ()

    @property
    def key(self) -> BotKey:
        assert isinstance(self.request.auth, BotKey)  # nobody else was let in
        return self.request.auth

    def check_platform(self, platform: str | None) -> None:
        """What a body or a path says of the platform must be what the key says (A-L10.3)."""
        if platform is not None and platform != self.key.platform:
            raise PlatformMismatch


# MERGED bot_api.async_doors: A bot's door that waits: the same checks as the others, on a thread; then a coroutine that holds none.

HANDLED_EXCEPTIONS: tuple[type[Exception], ...] = (
    RequestRefused,
    APIException,
    Http404,
    OperationalError,
    InterfaceError,
    *fanout.LOG_OUTAGE_ERRORS,
)


class AsyncBotAPIView(BotAPIView):
    http_method_names = ["get"]

    async def dispatch(  # type: ignore[override]
        self, request: HttpRequest, *args: object, **kwargs: object
    ) -> HttpResponseBase:
        self.args, self.kwargs, self.headers = args, kwargs, self.default_response_headers
        self.request = self.initialize_request(request, *args, **kwargs)
        try:
            await db.run_in_thread(self.initial, self.request, *args, **kwargs)
            if request.method != "GET":
                self.http_method_not_allowed(self.request)
            response = await self.get(self.request, **kwargs)
        except HANDLED_EXCEPTIONS as problem:
            response = self.handle_exception(problem)
        return self.finalize_response(self.request, response, *args, **kwargs)

    async def get(self, request: Request, **kwargs: object) -> HttpResponseBase:
        raise NotImplementedError


# MERGED bot_api.nowhere: Any path that is no door of ours, malformed ids among them: the same 404 for every method.


class BotNotFoundView(BotAPIView):
    schema = None
    http_method_names = ["get", "head", "post", "put", "patch", "delete", "options"]

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        super().initial(request, *args, **kwargs)
        raise NotFound
