"""Authenticate REST callers by session cookie with CSRF or by API key, check scopes, and throttle."""

from __future__ import annotations

from django.contrib.auth import SESSION_KEY
from django.contrib.auth.models import User
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import PermissionDenied
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

from config.core import rate_limits
from config.core.api.errors import Unauthenticated
from config.core.api.schema import SchemaFragment
from config.core.api.views import RequiresScopes
from config.core.errors import Forbidden, TooManyRequests
from copilot.accounts import api_keys
from copilot.models import ApiKey
from copilot.realtime.connections import ConnectionCredential


class ApiKeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "copilot.api.authentication.ApiKeyAuthentication"
    name = "apiKey"

    def get_security_definition(self, auto_schema: AutoSchema) -> SchemaFragment:
        return {"type": "http", "scheme": "bearer", "bearerFormat": "ph_user_…"}


class SessionCookieScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "copilot.api.authentication.SessionCookieAuthentication"
    name = "sessionCookie"

    def get_security_definition(self, auto_schema: AutoSchema) -> SchemaFragment:
        from django.conf import settings

        return {"type": "apiKey", "in": "cookie", "name": settings.SESSION_COOKIE_NAME}


CALLS_PER_MINUTE = 600  # per key, or per user with a cookie


class ApiKeyAuthentication(BaseAuthentication):
    """Authenticate by `Authorization: Bearer ph_user_…`.

    A bad key is refused even when the request has a valid session cookie.
    """

    def authenticate(self, request: Request) -> tuple[User, ApiKey] | None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        key = api_keys.verify_api_key(token.strip())
        if key is None:
            raise Unauthenticated
        if not key.user.is_active:
            raise build_inactive_account_refusal()
        return key.user, key

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="api"'


class SessionCookieAuthentication(SessionAuthentication):
    """Authenticate by the session cookie of the pages; writes need the CSRF token."""

    def authenticate(self, request: Request) -> tuple[User, None] | None:
        django_request = request._request
        user = django_request.user
        if not isinstance(user, User):
            _refuse_inactive(django_request.session.get(SESSION_KEY))
            return None
        if not user.is_active:
            raise build_inactive_account_refusal()
        self.enforce_csrf(request)
        return user, None

    def enforce_csrf(self, request: Request) -> None:
        """Check Django's own request: the framework's would parse the whole body to look for a form token."""
        try:
            super().enforce_csrf(request._request)  # type: ignore[arg-type]
        except PermissionDenied:
            raise Forbidden("The CSRF token is missing or wrong.", code="csrf_failed") from None


def get_credential(request: Request) -> ConnectionCredential:
    """Return what authenticated the caller, so that open connections can end together with it."""
    if isinstance(request.auth, ApiKey):
        return ConnectionCredential(request.auth.user_id, key_id=request.auth.pk)
    assert isinstance(request.user, User)
    return ConnectionCredential.from_login(request.user, request._request.session.session_key or "")


def _refuse_inactive(user_id: object) -> None:
    """Refuse a deactivated account. Django treats it as anonymous, but the session still holds its id."""
    if isinstance(user_id, str) and User.objects.filter(pk=user_id, is_active=False).exists():
        raise build_inactive_account_refusal()


def build_inactive_account_refusal() -> Forbidden:
    return Forbidden("This account is not active.", code="account_inactive")


class HasScope(BasePermission):
    """Let a cookie do what its user may do, and an API key only what its scopes allow as well."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        if not isinstance(request.user, User):
            raise Unauthenticated
        if isinstance(request.auth, ApiKey) and isinstance(view, RequiresScopes):
            _check_key_scopes(request.auth, request.method or "", view)
        return True


def _check_key_scopes(key: ApiKey, method: str, view: RequiresScopes) -> None:
    if not view.keys_may_write and method not in SAFE_METHODS:
        raise Forbidden(
            "An API key cannot do this.", code="session_required", hint="Sign in on the web and do it there."
        )
    for scope in view.scopes_for(method):
        if scope not in key.scopes:
            raise Forbidden(f"This API key needs the {scope} scope.", code="insufficient_scope", scope=scope)


class CallerThrottle(BaseThrottle):
    """Count requests per API key, or per user for cookies. Without Redis, nobody is refused."""

    def allow_request(self, request: Request, view: APIView) -> bool:
        caller = (
            f"key:{request.auth.prefix}" if isinstance(request.auth, ApiKey) else f"user:{request.user.pk}"
        )
        retry_after_seconds = rate_limits.count_request("api", caller, limit=CALLS_PER_MINUTE, seconds=60)
        if retry_after_seconds is not None:
            raise TooManyRequests(
                "Too many requests. Please slow down.", retry_after_seconds=retry_after_seconds
            )
        return True
