"""Short-lived, one-use tickets with which a browser elsewhere may open a socket (E3)."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from importlib import import_module
from urllib.parse import parse_qs

import msgspec
from django.conf import settings
from django.contrib.auth import HASH_SESSION_KEY, SESSION_KEY, get_user_model
from django.utils.crypto import constant_time_compare

from config.core.redis import get_redis
from config.core.url_safety import get_host_and_port
from copilot.accounts import api_keys
from copilot.chat.permissions import Permissions, permissions_for_scopes
from copilot.realtime import redis_keys
from copilot.realtime.connections import ConnectionCredential, list_revoked_credentials

TICKET_LIFETIME_SECONDS = 60


@dataclass(frozen=True)
class RedeemedTicket:
    user_id: int
    scopes: frozenset[str] | None  # of the key that asked for the ticket; None: a person did
    proof: bytes = b""  # of the credential it was bought with: the ticket ends with that


def issue_ticket(user_id: int, scopes: frozenset[str] | None = None, proof: bytes = b"") -> str:
    ticket = secrets.token_urlsafe(32)
    value = msgspec.json.encode((user_id, None if scopes is None else sorted(scopes), proof))
    get_redis().set(redis_keys.ticket_key(_hash_ticket(ticket)), value, ex=TICKET_LIFETIME_SECONDS)
    return ticket


def redeem_ticket(ticket: str) -> RedeemedTicket | None:
    """Who a ticket was issued to; it is spent by asking."""
    value = get_redis().getdel(redis_keys.ticket_key(_hash_ticket(ticket)))
    if value is None:
        return None
    assert isinstance(value, bytes)
    user_id, scopes, proof = msgspec.json.decode(value, type=tuple[int, list[str] | None, bytes])
    return RedeemedTicket(user_id, None if scopes is None else frozenset(scopes), proof)


def _hash_ticket(ticket: str) -> str:
    return hashlib.sha256(ticket.encode()).hexdigest()


# MERGED knocks: Who knocks at the socket: a session cookie with a fitting origin, an API key, or a one-use ticket (E2).


@dataclass(frozen=True)
class HandshakeRequest:
    """What a socket's opening request says about itself."""

    headers: dict[str, str]
    query: str

    @classmethod
    def from_scope(cls, scope: Mapping[str, object]) -> HandshakeRequest:
        pairs = scope.get("headers") or []
        assert isinstance(pairs, list)
        query = scope.get("query_string") or b""
        assert isinstance(query, bytes)
        return cls(
            {name.decode("latin-1"): value.decode("latin-1") for name, value in pairs},
            query.decode("latin-1"),
        )


@dataclass(frozen=True, slots=True)
class Principal:
    user_id: int
    origin: str  # the channel: web or api
    scopes: frozenset[str] | None  # None: a person, who may do everything of theirs
    credential: ConnectionCredential

    @property
    def permissions(self) -> Permissions:
        """What a turn may do that the visitor starts."""
        return permissions_for_scopes(self.scopes)


def authenticate_handshake(knock: HandshakeRequest, *, by_ticket: bool = True) -> Principal | None:
    """Return who opens a socket or sends a body; None for a stranger."""
    authorization = knock.headers.get("authorization", "")
    if authorization:
        return _authenticate_by_key(authorization)
    if by_ticket and (ticket := parse_qs(knock.query).get("ticket", [""])[0]):
        return _authenticate_by_ticket(ticket)
    return _authenticate_by_cookie(knock)


def _authenticate_by_key(authorization: str) -> Principal | None:
    scheme, _, secret = authorization.partition(" ")
    key = api_keys.verify_api_key(secret.strip()) if scheme.lower() == "bearer" else None
    if key is None or not key.user.is_active:
        return None
    credential = ConnectionCredential(key.user_id, key_id=key.pk)
    return Principal(key.user_id, "api", frozenset(key.scopes), credential)


def _authenticate_by_cookie(knock: HandshakeRequest) -> Principal | None:
    if not _is_origin_allowed(knock):
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
    return Principal(user.pk, "web", None, ConnectionCredential.from_login(user, cookie.value))


def _authenticate_by_ticket(text: str) -> Principal | None:
    """A ticket is worth no more than what it was bought with: it has a key's scopes, and is refused once that is."""
    ticket = redeem_ticket(text)
    if ticket is None:
        return None
    credential = ConnectionCredential.from_proof(ticket.proof, ticket.user_id)
    user = get_user_model().objects.filter(pk=ticket.user_id, is_active=True).first()
    if user is None or list_revoked_credentials([credential]):
        return None
    return Principal(user.pk, "web", ticket.scopes, credential)


def _is_origin_allowed(knock: HandshakeRequest) -> bool:
    """A browser always names the page that opens a socket; only our own pages may use our cookie."""
    origin = knock.headers.get("origin")
    if origin is None:
        return True
    return get_host_and_port(origin) == knock.headers.get("host") or origin in settings.CSRF_TRUSTED_ORIGINS
