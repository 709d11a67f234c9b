"""Link tokens: made for one subject at a time, shown once, kept as a digest (L4)."""

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
from linking.display_names import clean_name
from linking.errors import LinkAlreadyExists, LinkNotFound, NotServerAdmin, RateLimited
from linking.models import PLATFORM_ID_PATTERN, PLATFORMS, BotKey, LinkToken

LinkKind = Literal["server", "user"]
TokenState = Literal["linked", "unlinked", "superseded", "expired", "pending"]
TOKEN_LOCK_SEED = 76  # keeps these advisory locks apart from copilot's
HOUR = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class TokenRequest:
    """What a bot says of who asked; `key` is None for our own bots."""

    platform: str
    bot_account: str
    subject_id: str
    subject_name: str = ""
    requester_name: str = ""
    notify_container: str = ""
    key: BotKey | None = None


@dataclass(frozen=True, kw_only=True)
class NewToken:
    """A token at the only moment it is known."""

    token: str
    link_url: str
    qr_url: str
    expires_at: datetime


@dataclass(frozen=True, kw_only=True)
class TokenStatus:
    status: TokenState
    seconds_left: int


def create_server_token(asked: TokenRequest, *, requester_is_admin: bool) -> NewToken:
    """Refuses NotServerAdmin, RateLimited, LinkAlreadyExists."""
    if settings.LINK_REQUIRE_SERVER_ADMIN and not requester_is_admin:
        raise NotServerAdmin
    return _create_token("server", asked)


def create_user_token(asked: TokenRequest) -> NewToken:
    """Refuses RateLimited, LinkAlreadyExists."""
    return _create_token("user", asked)


def get_token_status(platform: str, bot_account: str, token: str) -> TokenStatus:
    """As this bot account may know it: never who confirmed. By the database's clock. Refuses LinkNotFound."""
    mine = LinkToken.objects.filter(platform=platform, bot_account=bot_account, digest=hash_token(token))
    row = _annotate_time_left(mine).first()
    if row is None:
        raise LinkNotFound
    left: timedelta = row.left
    seconds = math.ceil(left.total_seconds())
    state = _get_token_state(row, left)
    return TokenStatus(status=state, seconds_left=max(1, seconds) if state == "pending" else 0)


def cancel_token(token: str) -> None:
    """The person does not want it: no one can confirm it any more (L6)."""
    _pending_tokens().filter(digest=hash_token(token)).update(superseded_at=Now())


def hash_token(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _create_token(kind: LinkKind, asked: TokenRequest) -> NewToken:
    _validate_request(asked)
    token = secrets.token_urlsafe(32)
    with transaction.atomic():
        _lock_subject(kind, asked)
        if selectors.is_linked(kind, asked.platform, asked.bot_account, asked.subject_id):
            raise LinkAlreadyExists
        _check_token_rate(kind, asked)
        _subject_tokens(kind, asked).filter(used_at=None, superseded_at=None).update(superseded_at=Now())
        row = LinkToken.objects.create(
            digest=hash_token(token),
            kind=kind,
            platform=asked.platform,
            bot_account=asked.bot_account,
            subject_id=asked.subject_id,
            subject_name=clean_name(asked.subject_name),
            requester_name=clean_name(asked.requester_name),
            notify_container=asked.notify_container,
            created_by_key=asked.key,
            expires_at=Now() + timedelta(seconds=settings.LINK_TOKEN_TTL_SECONDS),
        )
    row.refresh_from_db(fields=["expires_at"])
    url = f"{settings.LINK_BASE_URL}/{token}"
    return NewToken(token=token, link_url=url, qr_url=f"{url}/qr.svg", expires_at=row.expires_at)


def _validate_request(asked: TokenRequest) -> None:
    if asked.platform not in PLATFORMS:
        raise InvalidRequest("platform: there is no such platform.")
    for name in ("bot_account", "subject_id", "notify_container"):
        value: str = getattr(asked, name)
        if not re.fullmatch(PLATFORM_ID_PATTERN, value, re.ASCII) and (value or name != "notify_container"):
            raise InvalidRequest(f"{name}: this is no id of a platform.")


def _lock_subject(kind: LinkKind, asked: TokenRequest) -> None:
    """One at a time for each bot and subject: of two pending tokens one would have to go."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s, %s))",
            [f"{asked.platform}:{asked.bot_account}:{kind}:{asked.subject_id}", TOKEN_LOCK_SEED],
        )


def _check_token_rate(kind: LinkKind, asked: TokenRequest) -> None:
    if asked.key is not None:
        limit = settings.LINK_TOKENS_PER_KEY_MINUTE
        wait = rate_limits.count_in_sliding_window("link-tokens", asked.key.prefix, limit=limit, seconds=60)
        if wait is not None:
            raise RateLimited(retry_after_seconds=wait)
    recent = _subject_tokens(kind, asked).filter(created_at__gt=Now() - HOUR)
    if recent.count() >= settings.LINK_TOKENS_PER_SUBJECT_HOUR:
        raise RateLimited(retry_after_seconds=600)


def _subject_tokens(kind: LinkKind, asked: TokenRequest) -> QuerySet[LinkToken]:
    """Those that this bot asked for: another bot can neither supersede them nor use up their rate."""
    return LinkToken.objects.filter(
        platform=asked.platform, bot_account=asked.bot_account, kind=kind, subject_id=asked.subject_id
    )


def _pending_tokens() -> QuerySet[LinkToken]:
    return LinkToken.objects.filter(used_at=None, superseded_at=None, expires_at__gt=Now())


def _annotate_time_left(rows: QuerySet[LinkToken]):  # type: ignore[no-untyped-def] # an annotated set has no name
    return rows.annotate(left=ExpressionWrapper(F("expires_at") - Now(), output_field=DurationField()))


def _get_token_state(row: LinkToken, left: timedelta) -> TokenState:
    if row.used_at is not None:
        standing = selectors.is_linked(
            row.kind, row.platform, row.bot_account, row.subject_id, to=row.used_by_id
        )
        return "linked" if standing else "unlinked"
    if row.superseded_at is not None:
        return "superseded"
    return "expired" if left <= timedelta() else "pending"
