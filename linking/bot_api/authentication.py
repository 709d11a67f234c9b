"""Authenticate requests to the bot API by bot key."""

from __future__ import annotations

from django.contrib.auth.models import AnonymousUser
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from config.core.errors import InvalidRequest
from linking.errors import AmbiguousCredentials, BotUnauthenticated
from linking.links import bot_keys
from linking.models import BotKey

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
    target_class = "linking.bot_api.authentication.BotAuthentication"
    name = "botKey"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "bearerFormat": "ph_bot_…"}


def read_bearer_token(request: Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def has_login_session(request: Request) -> bool:
    return bool(request._request.user.is_authenticated)
