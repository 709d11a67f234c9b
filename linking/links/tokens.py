"""Create, look up and cancel link tokens, of which only a digest is stored."""

from __future__ import annotations

import hashlib
import math
import re
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from django.conf import settings
from django.db import connection, transaction
from django.db.models import DurationField, ExpressionWrapper, F, QuerySet
from django.db.models.functions import Now

from config.core import rate_limits
from config.core.errors import InvalidRequest
from linking import selectors
from linking.errors import LinkAlreadyExists, LinkNotFound, NotServerAdmin, RateLimited
from linking.models import PLATFORM_ID_PATTERN, PLATFORMS, BotKey, LinkToken
from linking.models.fields import clean_name

LinkKind = Literal["server", "user"]
TokenState = Literal["linked", "unlinked", "superseded", "expired", "pending"]
TOKEN_LOCK_SEED = 76  # keeps these advisory locks apart from others
TOKEN_LIFETIME_SECONDS = 1800  # long enough to sign up first
HOUR = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class TokenRequest:
    platform: str
    bot_account: str
    subject_id: str
    subject_name: str = ""
    requester_name: str = ""
    notify_container: str = ""
    key: BotKey | None = None  # None for our own bots


@dataclass(frozen=True, kw_only=True)
class NewToken:
    """A new token in plain text, which is not stored and cannot be shown again."""

    token: str
    link_url: str
    qr_url: str
    expires_at: datetime


@dataclass(frozen=True, kw_only=True)
class TokenStatus:
    status: TokenState
    seconds_left: int


def create_server_token(request: TokenRequest, *, requester_is_admin: bool) -> NewToken:
    """Create a token to link a server. Raise NotServerAdmin, RateLimited or LinkAlreadyExists."""
    if settings.LINK_REQUIRE_SERVER_ADMIN and not requester_is_admin:
        raise NotServerAdmin
    return _create_token("server", request)


def create_user_token(request: TokenRequest) -> NewToken:
    """Create a token to link a chat account. Raise RateLimited or LinkAlreadyExists."""
    return _create_token("user", request)


def get_token_status(platform: str, bot_account: str, token: str) -> TokenStatus:
    """Return what this bot account may know of its token, which never includes who confirmed it."""
    mine = LinkToken.objects.filter(platform=platform, bot_account=bot_account, digest=hash_token(token))
    row = _annotate_time_left(mine).first()
    if row is None:
        raise LinkNotFound
    left: timedelta = row.left
    seconds = math.ceil(left.total_seconds())
    state = _get_token_state(row, left)
    return TokenStatus(status=state, seconds_left=max(1, seconds) if state == "pending" else 0)


def cancel_token(token: str) -> None:
    _pending_tokens().filter(digest=hash_token(token)).update(superseded_at=Now())


def hash_token(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _create_token(kind: LinkKind, request: TokenRequest) -> NewToken:
    _validate_request(request)
    token = secrets.token_urlsafe(32)
    with transaction.atomic():
        _lock_subject(kind, request)
        if selectors.is_linked(kind, request.platform, request.bot_account, request.subject_id):
            raise LinkAlreadyExists
        _check_token_rate(kind, request)
        _subject_tokens(kind, request).filter(used_at=None, superseded_at=None).update(superseded_at=Now())
        row = LinkToken.objects.create(
            digest=hash_token(token),
            kind=kind,
            platform=request.platform,
            bot_account=request.bot_account,
            subject_id=request.subject_id,
            subject_name=clean_name(request.subject_name),
            requester_name=clean_name(request.requester_name),
            notify_container=request.notify_container,
            created_by_key=request.key,
            expires_at=Now() + timedelta(seconds=TOKEN_LIFETIME_SECONDS),
        )
    row.refresh_from_db(fields=["expires_at"])
    url = f"{settings.LINK_BASE_URL}/{token}"
    return NewToken(token=token, link_url=url, qr_url=f"{url}/qr.svg", expires_at=row.expires_at)


def _validate_request(request: TokenRequest) -> None:
    if request.platform not in PLATFORMS:
        raise InvalidRequest("platform: unknown platform.")
    for name in ("bot_account", "subject_id", "notify_container"):
        value: str = getattr(request, name)
        if not re.fullmatch(PLATFORM_ID_PATTERN, value, re.ASCII) and (value or name != "notify_container"):
            raise InvalidRequest(f"{name}: not a valid platform id.")


def _lock_subject(kind: LinkKind, request: TokenRequest) -> None:
    """Serialize token creation per bot and subject, so that only one pending token exists."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s, %s))",
            [f"{request.platform}:{request.bot_account}:{kind}:{request.subject_id}", TOKEN_LOCK_SEED],
        )


def _check_token_rate(kind: LinkKind, request: TokenRequest) -> None:
    if request.key is not None:
        limit = settings.LINK_TOKENS_PER_KEY_MINUTE
        wait = rate_limits.count_in_sliding_window("link-tokens", request.key.prefix, limit=limit, seconds=60)
        if wait is not None:
            raise RateLimited(retry_after_seconds=wait)
    recent = _subject_tokens(kind, request).filter(created_at__gt=Now() - HOUR)
    if recent.count() >= settings.LINK_TOKENS_PER_SUBJECT_HOUR:
        raise RateLimited(retry_after_seconds=600)


def _subject_tokens(kind: LinkKind, request: TokenRequest) -> QuerySet[LinkToken]:
    """Return this bot's tokens only, so that other bots can neither supersede them nor use up their rate limit."""
    return LinkToken.objects.filter(
        platform=request.platform, bot_account=request.bot_account, kind=kind, subject_id=request.subject_id
    )


def _pending_tokens() -> QuerySet[LinkToken]:
    return LinkToken.objects.pending()


def _annotate_time_left(rows: QuerySet[LinkToken]):  # type: ignore[no-untyped-def] # an annotated set has no name
    return rows.annotate(left=ExpressionWrapper(F("expires_at") - Now(), output_field=DurationField()))


def _get_token_state(row: LinkToken, left: timedelta) -> TokenState:
    if row.used_at is not None:
        is_linked = selectors.is_linked(
            row.kind, row.platform, row.bot_account, row.subject_id, to=row.used_by_id
        )
        return "linked" if is_linked else "unlinked"
    if row.superseded_at is not None:
        return "superseded"
    return "expired" if left <= timedelta() else "pending"
