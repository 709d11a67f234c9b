"""Who knocks at the socket: a session cookie with a fitting origin, an API key, or a one-use ticket (E2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from importlib import import_module
from urllib.parse import parse_qs

from django.conf import settings
from django.contrib.auth import HASH_SESSION_KEY, SESSION_KEY, get_user_model
from django.utils.crypto import constant_time_compare

from config.core.urls import host_and_port
from copilot import api_keys
from copilot.connections import Credential, revoked_among
from copilot.live import tickets
from copilot.permissions import Permissions, permissions_for_scopes


@dataclass(frozen=True)
class Knock:
    """What a socket's opening request says about itself."""

    headers: dict[str, str]
    query: str

    @classmethod
    def of(cls, scope: Mapping[str, object]) -> Knock:
        pairs = scope.get("headers") or []
        assert isinstance(pairs, list)
        query = scope.get("query_string") or b""
        assert isinstance(query, bytes)
        return cls(
            {name.decode("latin-1"): value.decode("latin-1") for name, value in pairs},
            query.decode("latin-1"),
        )


@dataclass(frozen=True, slots=True)
class Visitor:
    user_id: int
    origin: str  # the channel: web or api
    scopes: frozenset[str] | None  # None: a person, who may do everything of theirs
    credential: Credential

    @property
    def permissions(self) -> Permissions:
        """What a turn may do that the visitor starts."""
        return permissions_for_scopes(self.scopes)


def identify(knock: Knock, *, by_ticket: bool = True) -> Visitor | None:
    """Return who opens a socket or sends a body; None for a stranger."""
    authorization = knock.headers.get("authorization", "")
    if authorization:
        return _by_key(authorization)
    if by_ticket and (ticket := parse_qs(knock.query).get("ticket", [""])[0]):
        return _by_ticket(ticket)
    return _by_cookie(knock)


def _by_key(authorization: str) -> Visitor | None:
    scheme, _, secret = authorization.partition(" ")
    key = api_keys.verify(secret.strip()) if scheme.lower() == "bearer" else None
    if key is None or not key.user.is_active:
        return None
    credential = Credential(key.user_id, key_id=key.pk)
    return Visitor(key.user_id, "api", frozenset(key.scopes), credential)


def _by_cookie(knock: Knock) -> Visitor | None:
    if not _origin_fits(knock):
        return None
    try:
        cookie = SimpleCookie(knock.headers.get("cookie", "")).get(settings.SESSION_COOKIE_NAME)
    except CookieError:
        return None
    if cookie is None:
        return None
    session = import_module(settings.SESSION_ENGINE).SessionStore(cookie.value)
    user_id = session.get(SESSION_KEY)
    user = get_user_model().objects.filter(pk=user_id, is_active=True).first() if user_id else None
    if user is None or not constant_time_compare(
        session.get(HASH_SESSION_KEY, ""), user.get_session_auth_hash()
    ):
        return None
    return Visitor(user.pk, "web", None, Credential.of_login(user, cookie.value))


def _by_ticket(text: str) -> Visitor | None:
    """A ticket is worth no more than what it was bought with: it has a key's scopes, and is refused once that is."""
    ticket = tickets.redeem(text)
    if ticket is None:
        return None
    credential = Credential.of_proof(ticket.proof, ticket.user_id)
    user = get_user_model().objects.filter(pk=ticket.user_id, is_active=True).first()
    if user is None or revoked_among([credential]):
        return None
    return Visitor(user.pk, "web", ticket.scopes, credential)


def _origin_fits(knock: Knock) -> bool:
    """A browser always names the page that opens a socket; only our own pages may use our cookie."""
    origin = knock.headers.get("origin")
    if origin is None:
        return True
    return host_and_port(origin) == knock.headers.get("host") or origin in settings.CSRF_TRUSTED_ORIGINS
