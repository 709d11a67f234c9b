"""Base views of the bot API with authentication, scopes and rate limits."""

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
    """Base of the views for bots. `scope` is what the key needs; "" allows any key."""

    http_method_names = ["get", "head", "post", "put", "delete"]
    authentication_classes = [BotAuthentication]
    permission_classes = [HasBotScope]
    throttle_classes = [BotKeyThrottle]
    scope: ClassVar[str] = ""

    def scopes_for(self, method: str) -> tuple[str, ...]:
        return (self.scope,) if self.scope else ()

    @property
    def key(self) -> BotKey:
        assert isinstance(self.request.auth, BotKey)  # guaranteed by BotAuthentication
        return self.request.auth

    def check_platform(self, platform: str | None) -> None:
        """Raise PlatformMismatch if a request names another platform than the key's."""
        if platform is not None and platform != self.key.platform:
            raise PlatformMismatch


HANDLED_EXCEPTIONS: tuple[type[Exception], ...] = (
    RequestRefused,
    APIException,
    Http404,
    OperationalError,
    InterfaceError,
    *fanout.LOG_OUTAGE_ERRORS,
)


class AsyncBotAPIView(BotAPIView):
    """Base of views that wait: the checks run on a thread, and then a coroutine that holds no thread."""

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


class BotNotFoundView(BotAPIView):
    """Answer every unknown path, including malformed ids, with the same 404 for every method."""

    schema = None
    http_method_names = ["get", "head", "post", "put", "patch", "delete", "options"]

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        super().initial(request, *args, **kwargs)
        raise NotFound
