"""Base views of the bot API: authentication by bot key, scopes, rate limits, and fields that the views share."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from django.contrib.auth.models import AnonymousUser
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from pydantic import Field
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import APIException
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

from config.core import db, rate_limits
from config.core.api.parsing import RequestBody
from config.core.api.views import UncachedApiView
from config.core.errors import InvalidRequest, NotFound, RequestRefused
from copilot.realtime import fanout
from linking.conversations.services import BotAccount, ConversationPlace
from linking.errors import (
    AmbiguousCredentials,
    BotUnauthenticated,
    InsufficientScope,
    PlatformMismatch,
    RateLimited,
)
from linking.links import bot_keys
from linking.models import PLATFORM_ID_PATTERN, BotKey

BOT_KEY_PREFIX = "ph_bot_"


class BotAuthentication(BaseAuthentication):
    """Accept `Authorization: Bearer ph_bot_…` only. `request.auth` is the BotKey and `request.user` is anonymous."""

    def authenticate(self, request: Request) -> tuple[AnonymousUser, BotKey]:
        if BOT_KEY_PREFIX in request._request.get_full_path():
            raise InvalidRequest("Send the key in the Authorization header, never in the URL.")
        key = read_bearer_token(request)
        if key.startswith(BOT_KEY_PREFIX) and has_login_session(request):
            raise AmbiguousCredentials
        row = bot_keys.verify_bot_key(key, str(request.META.get("REMOTE_ADDR", "")))
        if row is None:
            raise BotUnauthenticated
        return AnonymousUser(), row

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="bot"'


class BotKeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "linking.bot_api.views.BotAuthentication"
    name = "botKey"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "bearerFormat": "ph_bot_…"}


def read_bearer_token(request: Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def has_login_session(request: Request) -> bool:
    return bool(request._request.user.is_authenticated)


PlatformId = Annotated[str, Field(pattern=PLATFORM_ID_PATTERN, max_length=64)]
OptionalPlatformId = Annotated[
    str, Field(pattern=PLATFORM_ID_PATTERN.replace("{1,64}", "{0,64}"), max_length=64)
]
DisplayName = Annotated[str, Field(max_length=1000)]  # truncated when stored


class PlaceBody(RequestBody):
    """A place in a chat. `server_id` is required with the scope `server`."""

    platform: str | None = None  # if present, it must be the key's
    scope: Literal["server", "dm"]
    server_id: PlatformId | None = None
    container_id: PlatformId
    thread_id: OptionalPlatformId = ""

    def to_conversation_place(self, key: BotKey) -> ConversationPlace:
        if (self.scope == "server") != (self.server_id is not None):
            raise InvalidRequest("server_id: required with the scope server, and allowed only there.")
        return ConversationPlace(
            platform=key.platform,
            bot_account=key.bot_account,
            scope=self.scope,
            container_id=self.container_id,
            thread_id=self.thread_id,
            server_id=self.server_id or "",
        )


class SpeakerBody(RequestBody):
    """The platform user who acts."""

    platform_user_id: PlatformId


def to_bot_account(key: BotKey) -> BotAccount:
    return BotAccount(platform=key.platform, bot_account=key.bot_account)


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
