from __future__ import annotations

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from config.core.api.views import UserApiView
from linking.bot_api.authentication import BOT_KEY_PREFIX, has_login_session, read_bearer_token
from linking.errors import AmbiguousCredentials

# --- people ------------------------------------------------------------------------------------------


class LinkingAPIView(UserApiView):
    """For a logged-in person, or a program with the person's key; a bot's key is no credential here."""

    http_method_names = ["get", "head", "post", "patch", "delete"]
    write_scopes = ("manage",)

    def get_authenticators(self) -> list[BaseAuthentication]:
        return [BotKeyConflictCheck(), *super().get_authenticators()]


class BotKeyConflictCheck(BaseAuthentication):
    """A bot's key beside a person's cookie is a mistake that nobody should guess about."""

    def authenticate(self, request: Request) -> None:
        if read_bearer_token(request).startswith(BOT_KEY_PREFIX) and has_login_session(request):
            raise AmbiguousCredentials


class BotKeyConflictScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """Nobody comes in by it: the document says nothing of it."""

    target_class = "linking.api.base.BotKeyConflictCheck"
    name: list[str] = []

    def get_security_requirement(self, auto_schema: object) -> list[dict[str, list[object]]]:
        return []

    def get_security_definition(self, auto_schema: object) -> list[dict[str, str]]:
        return []
