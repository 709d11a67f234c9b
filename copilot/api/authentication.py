"""Who is asking, with which scopes, and how often: cookie with CSRF, or a bearer key (E3, A20.6)."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

from django.contrib.auth import SESSION_KEY
from django.contrib.auth.models import User
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import PermissionDenied
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

from copilot import api_keys
from copilot.api.errors import Unauthenticated
from copilot.connections import Credential
from copilot.errors import Forbidden, TooMany
from copilot.live import counters
from copilot.models import ApiKey

CALLS_PER_MINUTE = 600  # per key, or per user with a cookie (L10)


class KeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer ph_user_…`; a bad key is refused even when a good cookie came along."""

    def authenticate(self, request: Request) -> tuple[User, ApiKey] | None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        key = api_keys.verify(token.strip())
        if key is None:
            raise Unauthenticated
        if not key.user.is_active:
            raise inactive()
        return key.user, key

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="api"'


class CookieAuthentication(SessionAuthentication):
    """The session cookie of the pages; writes need the CSRF token."""

    def authenticate(self, request: Request) -> tuple[User, None] | None:
        plain = request._request
        user = plain.user
        if not isinstance(user, User):
            _refuse_inactive(plain.session.get(SESSION_KEY))
            return None
        if not user.is_active:
            raise inactive()
        self.enforce_csrf(request)
        return user, None

    def enforce_csrf(self, request: Request) -> None:
        """By Django's own request: the framework's would read and parse the whole body to look for a form's token."""
        try:
            super().enforce_csrf(request._request)  # type: ignore[arg-type]
        except PermissionDenied:
            raise Forbidden("The CSRF token is missing or wrong.", code="csrf_failed") from None


def credential_of(request: Request) -> Credential:
    """Name what the caller was let in by, so that what stays open can end with it."""
    if isinstance(request.auth, ApiKey):
        return Credential(request.auth.user_id, key_id=request.auth.pk)
    assert isinstance(request.user, User)
    return Credential.of_login(request.user, request._request.session.session_key or "")


def _refuse_inactive(user_id: object) -> None:
    """Django shows a deactivated person as nobody; the cookie still says who it was."""
    if isinstance(user_id, str) and User.objects.filter(pk=user_id, is_active=False).exists():
        raise inactive()


def inactive() -> Forbidden:
    return Forbidden("This account is not active.", code="account_inactive")


@runtime_checkable
class AsksScopes(Protocol):
    """A view that says what it asks of keys; other apps have such views too."""

    write_scopes: ClassVar[tuple[str, ...]]
    keys_may_write: ClassVar[bool]

    def scopes_for(self, method: str) -> tuple[str, ...]: ...


class Scoped:
    """What a view asks of keys; cookies have every scope."""

    write_scopes: ClassVar[tuple[str, ...]] = ("chat",)
    keys_may_write: ClassVar[bool] = True

    def scopes_for(self, method: str) -> tuple[str, ...]:
        return ("read",) if method in SAFE_METHODS else self.write_scopes


class HasScope(BasePermission):
    """A cookie may do what its user may; a key, besides, only what its scopes name."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        if not isinstance(request.user, User):
            raise Unauthenticated
        if isinstance(request.auth, ApiKey) and isinstance(view, AsksScopes):
            _check_key(request.auth, request.method or "", view)
        return True


def _check_key(key: ApiKey, method: str, view: AsksScopes) -> None:
    if not view.keys_may_write and method not in SAFE_METHODS:
        raise Forbidden(
            "A key cannot do this.", code="session_required", hint="Sign in on the web and do it there."
        )
    for scope in view.scopes_for(method):
        if scope not in key.scopes:
            raise Forbidden(f"The key lacks the scope {scope}.", code="insufficient_scope", scope=scope)


class PerCaller(BaseThrottle):
    """One count per key, and one per user for cookies; it fails open with Redis."""

    def allow_request(self, request: Request, view: APIView) -> bool:
        who = f"key:{request.auth.prefix}" if isinstance(request.auth, ApiKey) else f"user:{request.user.pk}"
        wait = counters.hit("api", who, limit=CALLS_PER_MINUTE, seconds=60)
        if wait is not None:
            raise TooMany("Too many requests. Please slow down.", retry_after_seconds=wait)
        return True


@runtime_checkable
class BoundsUsers(Protocol):
    """A view that says how often one user may read and change."""

    reads_per_minute: ClassVar[int]
    writes_per_minute: ClassVar[int]


class PerUser(BaseThrottle):
    """Reads and changes are counted apart, whatever the way in; it fails open with Redis."""

    counted_as: ClassVar[str]

    def allow_request(self, request: Request, view: APIView) -> bool:
        assert isinstance(view, BoundsUsers)
        reads = request.method in SAFE_METHODS
        limit = view.reads_per_minute if reads else view.writes_per_minute
        name = f"{self.counted_as}-{'reads' if reads else 'changes'}"
        wait = counters.hit(name, f"user:{request.user.pk}", limit=limit, seconds=60)
        if wait is not None:
            raise TooMany("Too many requests. Please slow down.", retry_after_seconds=wait)
        return True


class PerAdmin(PerUser):
    """Of diagnostics (D14)."""

    counted_as = "staff"


class PerPayer(PerUser):
    """Of billing (B16.4)."""

    counted_as = "billing"
