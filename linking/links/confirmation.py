"""A person confirms: the token is used and the link stands, or neither (L5)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models.functions import Now

from linking import selectors, task_registry
from linking.display_names import clean_name
from linking.errors import LinkAlreadyExists, LinkFlowMismatch, LinkNotFound, LinkTokenExpired
from linking.links import services as links
from linking.links.services import ServerSettings
from linking.links.tokens import hash_token
from linking.models import LinkToken, PlatformLink, PlatformUserLink

audit = logging.getLogger("linking.audit")

UNIQUE_VIOLATION = "23505"
LinkKind = Literal["server", "user"]


def confirm_server_link(user: User, token: str, chosen: ServerSettings | None = None) -> PlatformLink:
    """This server's conversations with the bot that asked run as `user` from now on; `chosen` are its first caps (L8)."""
    links.validate_server_settings(chosen)
    with _atomic_confirmation():
        row = _use_token(user, token, "server")
        link = PlatformLink(
            platform=row.platform,
            bot_account=row.bot_account,
            server_id=row.subject_id,
            server_name=clean_name(row.subject_name),
            owner=user,
        )
        for field, value in (chosen or ServerSettings()).items():
            setattr(link, field, value)
        link.save(force_insert=True)
        _notify_on_commit(row, user, f"server link {link.pk}")
    link.refresh_from_db()
    return link


def confirm_user_link(user: User, token: str) -> PlatformUserLink:
    """This chat account acts as `user` in direct messages to the bot that asked, from now on (L9)."""
    with _atomic_confirmation():
        row = _use_token(user, token, "user")
        link = PlatformUserLink.objects.create(
            platform=row.platform,
            bot_account=row.bot_account,
            platform_user_id=row.subject_id,
            display_name=clean_name(row.subject_name),
            user=user,
        )
        _notify_on_commit(row, user, f"user link {link.pk}")
    link.refresh_from_db()
    return link


@contextmanager
def _atomic_confirmation() -> Iterator[None]:
    """A subject that somebody else linked meanwhile leaves the token unused."""
    try:
        with transaction.atomic():
            yield
    except IntegrityError as problem:
        if getattr(problem.__cause__, "sqlstate", "") == UNIQUE_VIOLATION:
            raise LinkAlreadyExists from problem
        raise


def _use_token(user: User, token: str, kind: LinkKind) -> LinkToken:
    """Steps 2 to 6, in their order: the first that fails decides, and the token stays as it was.

    Of two at once the second waits for the first, and finds the token used rather than its subject linked.
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
    unused = LinkToken.objects.filter(pk=row.pk, used_at=None, superseded_at=None, expires_at__gt=Now())
    if not unused.update(used_at=Now(), used_by=user):
        raise LinkTokenExpired
    return row


def _notify_on_commit(row: LinkToken, user: User, what: str) -> None:
    def told() -> None:
        audit.info("%s was confirmed by user %s", what, str(user.pk)[-8:])
        task_registry.enqueue_link_notification(row.pk)

    transaction.on_commit(told)
