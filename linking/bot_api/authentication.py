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


# --- bots --------------------------------------------------------------------------------------------


class BotAuthentication(BaseAuthentication):
    """`Authorization: Bearer ph_bot_…`, and nothing else: `request.auth` is the BotKey, `request.user` nobody."""

    def authenticate(self, request: Request) -> tuple[AnonymousUser, BotKey]:
        if BOT_KEY_PREFIX in request._request.get_full_path():
            raise InvalidRequest("A key belongs in the Authorization header, never in the address.")
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
