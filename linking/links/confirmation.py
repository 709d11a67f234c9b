"""Confirm links: use the token and create the link in one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import structlog
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models.functions import Now

from linking import selectors, signals
from linking.errors import LinkAlreadyExists, LinkFlowMismatch, LinkNotFound, LinkTokenExpired
from linking.links import services as links
from linking.links.services import ServerSettings
from linking.links.tokens import hash_token
from linking.models import LinkToken, PlatformLink, PlatformUserLink
from linking.models.fields import clean_name

audit = structlog.get_logger("linking.audit")

UNIQUE_VIOLATION = "23505"
LinkKind = Literal["server", "user"]


def confirm_server_link(
    user: User, token: str, server_settings: ServerSettings | None = None
) -> PlatformLink:
    """Link a server to an account, with the owner's first settings; its conversations with the bot then run as `user`."""
    links.validate_server_settings(server_settings)
    with _atomic_confirmation():
        row = _use_token(user, token, "server")
        link = PlatformLink(
            platform=row.platform,
            bot_account=row.bot_account,
            server_id=row.subject_id,
            server_name=clean_name(row.subject_name),
            owner=user,
        )
        for field, value in (server_settings or ServerSettings()).items():
            setattr(link, field, value)
        link.save(force_insert=True)
        _announce_on_commit(row, user, link)
    link.refresh_from_db()
    return link


def confirm_user_link(user: User, token: str) -> PlatformUserLink:
    """Link a chat account, which then acts as `user` in direct messages to the bot."""
    with _atomic_confirmation():
        row = _use_token(user, token, "user")
        link = PlatformUserLink.objects.create(
            platform=row.platform,
            bot_account=row.bot_account,
            platform_user_id=row.subject_id,
            display_name=clean_name(row.subject_name),
            user=user,
        )
        _announce_on_commit(row, user, link)
    link.refresh_from_db()
    return link


@contextmanager
def _atomic_confirmation() -> Iterator[None]:
    """Raise LinkAlreadyExists, leaving the token unused, if somebody else linked the subject in the meantime."""
    try:
        with transaction.atomic():
            yield
    except IntegrityError as problem:
        if getattr(problem.__cause__, "sqlstate", "") == UNIQUE_VIOLATION:
            raise LinkAlreadyExists from problem
        raise


def _use_token(user: User, token: str, kind: LinkKind) -> LinkToken:
    """Check the token and mark it as used. If a check fails, the token stays unchanged.

    The row lock makes a concurrent confirmation wait, so that it finds the token used.
    """
    row = LinkToken.objects.select_for_update().filter(digest=hash_token(token)).first()
    if row is None:
        raise LinkNotFound
    if row.kind != kind:
        raise LinkFlowMismatch
    if not selectors.is_token_pending(row):
        raise LinkTokenExpired
    subject = (kind, row.platform, row.bot_account, row.subject_id)
    if selectors.is_linked(*subject):
        raise LinkAlreadyExists(yours=selectors.is_linked(*subject, to=user.pk))
    links.revoke_dead_links(*subject)
    unused = LinkToken.objects.pending().filter(pk=row.pk)
    if not unused.update(used_at=Now(), used_by=user):
        raise LinkTokenExpired
    return row


def _announce_on_commit(row: LinkToken, user: User, link: PlatformLink | PlatformUserLink) -> None:
    def announce() -> None:
        audit.info("link_confirmed", kind=row.kind, link_id=link.pk, user_ref=str(user.pk)[-8:])
        signals.link_confirmed.send_robust(sender=LinkToken, token_id=row.pk)

    transaction.on_commit(announce)
