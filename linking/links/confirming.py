"""A person confirms: the token is used and the link stands, or neither (L5)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models.functions import Now

from linking import ports, queries
from linking.errors import LinkAlreadyExists, LinkFlowMismatch, LinkNotFound, LinkTokenExpired
from linking.links import owning
from linking.links.owning import ServerSettings
from linking.links.tokens import digest
from linking.models import LinkToken, PlatformLink, PlatformUserLink
from linking.names import clean_name

audit = logging.getLogger("linking.audit")

UNIQUE = "23505"
Kind = Literal["server", "user"]


def confirm_server(user: User, token: str, chosen: ServerSettings | None = None) -> PlatformLink:
    """This server's conversations with the bot that asked run as `user` from now on; `chosen` are its first caps (L8)."""
    owning.check_settings(chosen)
    with _all_or_nothing():
        row = _use(user, token, "server")
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
        _tell(row, user, f"server link {link.pk}")
    link.refresh_from_db()
    return link


def confirm_user(user: User, token: str) -> PlatformUserLink:
    """This chat account acts as `user` in direct messages to the bot that asked, from now on (L9)."""
    with _all_or_nothing():
        row = _use(user, token, "user")
        link = PlatformUserLink.objects.create(
            platform=row.platform,
            bot_account=row.bot_account,
            platform_user_id=row.subject_id,
            display_name=clean_name(row.subject_name),
            user=user,
        )
        _tell(row, user, f"user link {link.pk}")
    link.refresh_from_db()
    return link


@contextmanager
def _all_or_nothing() -> Iterator[None]:
    """A subject that somebody else linked meanwhile leaves the token unused."""
    try:
        with transaction.atomic():
            yield
    except IntegrityError as problem:
        if getattr(problem.__cause__, "sqlstate", "") == UNIQUE:
            raise LinkAlreadyExists from problem
        raise


def _use(user: User, token: str, kind: Kind) -> LinkToken:
    """Steps 2 to 6, in their order: the first that fails decides, and the token stays as it was.

    Of two at once the second waits for the first, and finds the token used rather than its subject linked.
    """
    row = LinkToken.objects.select_for_update().filter(digest=digest(token)).first()
    if row is None:
        raise LinkNotFound
    if row.kind != kind:
        raise LinkFlowMismatch
    if not queries.is_pending(row):
        raise LinkTokenExpired
    subject = (kind, row.platform, row.bot_account, row.subject_id)
    if queries.is_linked(*subject):
        raise LinkAlreadyExists(yours=queries.is_linked(*subject, to=user.pk))
    owning.remove_dead(*subject)
    unused = LinkToken.objects.filter(pk=row.pk, used_at=None, superseded_at=None, expires_at__gt=Now())
    if not unused.update(used_at=Now(), used_by=user):
        raise LinkTokenExpired
    return row


def _tell(row: LinkToken, user: User, what: str) -> None:
    def told() -> None:
        audit.info("%s was confirmed by user %s", what, str(user.pk)[-8:])
        ports.tell_linked(row.pk)

    transaction.on_commit(told)
