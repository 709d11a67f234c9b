"""What the REST views of linking share: people's doors as copilot has them, and bots' with keys of their own (L2, L10)."""

from __future__ import annotations

from typing import ClassVar

from django.contrib.auth.models import AnonymousUser
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

from billing.rest import PersonsDoor, Uncached
from copilot.errors import InvalidRequest
from linking import links, pace
from linking.errors import (
    AmbiguousCredentials,
    BotUnauthenticated,
    InsufficientScope,
    PlatformMismatch,
    RateLimited,
)
from linking.models import BotKey

BOT_KEY = "ph_bot_"


# --- people ------------------------------------------------------------------------------------------


class UserDoor(PersonsDoor):
    """For a logged-in person, or a program with the person's key; a bot's key is no credential here (A-L2.1)."""

    http_method_names = ["get", "head", "post", "patch", "delete"]
    write_scopes = ("manage",)

    def get_authenticators(self) -> list[BaseAuthentication]:
        return [NotABotToo(), *super().get_authenticators()]


class NotABotToo(BaseAuthentication):
    """A bot's key beside a person's cookie is a mistake that nobody should guess about (L2)."""

    def authenticate(self, request: Request) -> None:
        if _bearer(request).startswith(BOT_KEY) and _has_login(request):
            raise AmbiguousCredentials


class NotABotTooScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """Nobody comes in by it: the document says nothing of it."""

    target_class = "linking.doors.NotABotToo"
    name: list[str] = []

    def get_security_requirement(self, auto_schema: object) -> list[dict[str, list[object]]]:
        return []

    def get_security_definition(self, auto_schema: object) -> list[dict[str, str]]:
        return []


# --- bots --------------------------------------------------------------------------------------------


class BotAuthentication(BaseAuthentication):
    """`Authorization: Bearer ph_bot_…`, and nothing else: `request.auth` is the BotKey, `request.user` nobody."""

    def authenticate(self, request: Request) -> tuple[AnonymousUser, BotKey]:
        if BOT_KEY in request._request.get_full_path():
            raise InvalidRequest("A key belongs in the Authorization header, never in the address.")
        key = _bearer(request)
        if key.startswith(BOT_KEY) and _has_login(request):
            raise AmbiguousCredentials
        row = links.verify_key(key, str(request.META.get("REMOTE_ADDR", "")))
        if row is None:
            raise BotUnauthenticated
        return AnonymousUser(), row

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="bot"'


class BotScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "linking.doors.BotAuthentication"
    name = "botKey"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "bearerFormat": "ph_bot_…"}


class HasBotScope(BasePermission):
    def has_permission(self, request: Request, view: APIView) -> bool:
        assert isinstance(view, BotDoor)
        for scope in view.scopes_for(request.method or ""):
            if scope not in view.key.scopes:
                raise InsufficientScope(scope)
        return True


class PerBotKey(BaseThrottle):
    def allow_request(self, request: Request, view: APIView) -> bool:
        assert isinstance(view, BotDoor)
        wait = pace.hit("bot-key", view.key.prefix, limit=view.key.rate_per_minute, seconds=60)
        if wait is not None:
            raise RateLimited(retry_after_seconds=wait)
        return True


class BotDoor(Uncached):
    """For a bot with its key. A view says which scope it needs; `""`: any key."""

    http_method_names = ["get", "head", "post", "put", "delete"]
    authentication_classes = [BotAuthentication]
    permission_classes = [HasBotScope]
    throttle_classes = [PerBotKey]
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


def _bearer(request: Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _has_login(request: Request) -> bool:
    return bool(request._request.user.is_authenticated)
