"""Authenticate WebSocket handshakes by session cookie, API key or one-use ticket."""

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


# --- Tickets -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RedeemedTicket:
    user_id: int
    scopes: frozenset[str] | None  # of the API key that requested the ticket; None for a signed-in person
    proof: bytes = b""  # of the credential that requested it: the ticket is revoked together with that


def issue_ticket(user_id: int, scopes: frozenset[str] | None = None, proof: bytes = b"") -> str:
    ticket = secrets.token_urlsafe(32)
    value = msgspec.json.encode((user_id, None if scopes is None else sorted(scopes), proof))
    get_redis().set(redis_keys.ticket_key(_hash_ticket(ticket)), value, ex=TICKET_LIFETIME_SECONDS)
    return ticket


def redeem_ticket(ticket: str) -> RedeemedTicket | None:
    """Return whom a ticket was issued to, and delete it."""
    value = get_redis().getdel(redis_keys.ticket_key(_hash_ticket(ticket)))
    if value is None:
        return None
    assert isinstance(value, bytes)
    user_id, scopes, proof = msgspec.json.decode(value, type=tuple[int, list[str] | None, bytes])
    return RedeemedTicket(user_id, None if scopes is None else frozenset(scopes), proof)


def _hash_ticket(ticket: str) -> str:
    return hashlib.sha256(ticket.encode()).hexdigest()


# --- Handshakes --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HandshakeRequest:
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
    origin: str  # "web" or "api"
    scopes: frozenset[str] | None  # None for a signed-in person, who has no scopes to check
    credential: ConnectionCredential

    @property
    def permissions(self) -> Permissions:
        return permissions_for_scopes(self.scopes)


def authenticate_handshake(request: HandshakeRequest, *, by_ticket: bool = True) -> Principal | None:
    """Return who opens a socket or uploads a file; None when no credential is valid."""
    authorization = request.headers.get("authorization", "")
    if authorization:
        return _authenticate_by_key(authorization)
    if by_ticket and (ticket := parse_qs(request.query).get("ticket", [""])[0]):
        return _authenticate_by_ticket(ticket)
    return _authenticate_by_cookie(request)


def _authenticate_by_key(authorization: str) -> Principal | None:
    scheme, _, secret = authorization.partition(" ")
    key = api_keys.verify_api_key(secret.strip()) if scheme.lower() == "bearer" else None
    if key is None or not key.user.is_active:
        return None
    credential = ConnectionCredential(key.user_id, key_id=key.pk)
    return Principal(key.user_id, "api", frozenset(key.scopes), credential)


def _authenticate_by_cookie(request: HandshakeRequest) -> Principal | None:
    if not _is_origin_allowed(request):
        return None
    try:
        cookie = SimpleCookie(request.headers.get("cookie", "")).get(settings.SESSION_COOKIE_NAME)
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
    """Accept a ticket with the scopes of the credential that requested it, unless that has been revoked since."""
    ticket = redeem_ticket(text)
    if ticket is None:
        return None
    credential = ConnectionCredential.from_proof(ticket.proof, ticket.user_id)
    user = get_user_model().objects.filter(pk=ticket.user_id, is_active=True).first()
    if user is None or list_revoked_credentials([credential]):
        return None
    return Principal(user.pk, "web", ticket.scopes, credential)


def _is_origin_allowed(request: HandshakeRequest) -> bool:
    """Let only our own pages use the session cookie. Browsers always send an Origin header when they open a socket."""
    origin = request.headers.get("origin")
    if origin is None:
        return True
    return get_host_and_port(origin) == request.headers.get("host") or origin in settings.CSRF_TRUSTED_ORIGINS
