"""Create, mail and use invitations to sign up, and the setup link for the first administrator."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.contrib.auth.models import User
from django.db import connection, transaction
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils import timezone
from django.utils.crypto import salted_hmac
from django.utils.translation import gettext as _

from config.core.audit import record_audit_event
from config.core.emails import build_site_link, send_email
from config.core.errors import Conflict
from copilot.models import Invitation, KnownDevice, SignUpRequest

DEFAULT_LIFETIME_DAYS = 7
MAX_LIFETIME_DAYS = 90
SETUP_LINK_HOURS = 24
KEPT_AFTER_EXPIRY = timedelta(days=30)  # expired invitations are kept for a while as a record
SESSION_KEY = "invitation_id"
_SALT = "copilot.accounts.invitations"
_SETUP_LOCK = 7_261_403  # advisory lock: only one first administrator can be created


class InvitationSpent(Conflict):
    """The invitation was used, revoked or expired between opening the link and signing up."""


@dataclass(frozen=True, kw_only=True)
class NewInvitation:
    """An invitation at the only moment its link is known."""

    row: Invitation
    url: str


def create_invitation(
    *, email: str = "", days: int = DEFAULT_LIFETIME_DAYS, invited_by: User | None = None
) -> NewInvitation:
    with transaction.atomic():
        invitation = _create_invitation(
            email=email.strip().lower(),
            lifetime=timedelta(days=min(days, MAX_LIFETIME_DAYS)),
            invited_by=invited_by,
        )
        record_audit_event(
            "invitation.created",
            actor=invited_by,
            target=("invitation", invitation.row.pk),
            email=invitation.row.email,
        )
    return invitation


def create_setup_link() -> NewInvitation:
    """Create a link that makes its first visitor the administrator. Earlier setup links are revoked."""
    with transaction.atomic():
        _lock_setup()
        if has_administrator():
            raise Conflict(_("There is already an administrator."), code="already_set_up")
        Invitation.objects.unused().filter(makes_admin=True).update(revoked_at=Now())
        invitation = _create_invitation(
            email="", lifetime=timedelta(hours=SETUP_LINK_HOURS), makes_admin=True
        )
        record_audit_event("setup_link.created", actor="system", target=("invitation", invitation.row.pk))
    return invitation


def has_administrator() -> bool:
    return User.objects.filter(is_superuser=True, is_active=True).exists()


def send_invitation_email(invitation: NewInvitation) -> bool:
    if not invitation.row.email:
        return False
    body = _(
        "You've been invited to Pilothouse. Create your account here:\n\n{url}\n\n"
        "The link works once, until {date} (UTC). If you weren't expecting this, ignore it.\n"
    ).format(url=invitation.url, date=f"{invitation.row.expires_at:%Y-%m-%d %H:%M}")
    return send_email([invitation.row.email], _("Your invitation to Pilothouse"), body)


def find_invitation(token: str) -> Invitation | None:
    if len(token) > 100:
        return None
    return _usable_invitations().filter(token_hash=_hash_token(token)).first()


def remember_invitation(request: HttpRequest, invitation: Invitation) -> None:
    """Remember the invitation in the session. It is used up only by signing up."""
    request.session[SESSION_KEY] = str(invitation.pk)


def find_session_invitation(request: HttpRequest) -> Invitation | None:
    session = getattr(request, "session", None)
    key = session.get(SESSION_KEY) if session is not None else None
    if not isinstance(key, str):
        return None
    try:
        return _usable_invitations().filter(pk=UUID(key)).first()
    except ValueError:
        return None


def use_invitation(request: HttpRequest, invitation: Invitation) -> None:
    """Use it up in the caller's transaction. Raises InvitationSpent when somebody was faster."""
    if invitation.makes_admin:
        _lock_setup()
        if has_administrator():
            raise InvitationSpent(_("There is already an administrator."))
    if not _usable_invitations().filter(pk=invitation.pk).update(used_at=Now()):
        raise InvitationSpent(_("This invitation was already used."))
    request.session.pop(SESSION_KEY, None)


def record_invited_user(invitation: Invitation, user: User) -> None:
    Invitation.objects.filter(pk=invitation.pk).update(used_by=user)
    record_audit_event("invitation.used", actor=user, target=("invitation", invitation.pk))


def revoke_invitation(invitation: Invitation, *, actor: User | None = None) -> bool:
    with transaction.atomic():
        revoked = _usable_invitations().filter(pk=invitation.pk).update(revoked_at=Now())
        if revoked:
            record_audit_event("invitation.revoked", actor=actor, target=("invitation", invitation.pk))
    return bool(revoked)


def purge_invitations() -> int:
    removed, _each = Invitation.objects.filter(expires_at__lt=Now() - KEPT_AFTER_EXPIRY).delete()
    return removed


def erase_invitations_and_devices(user_id: int) -> int:
    """Delete an account's own invitation and devices, and remove its name from what it invited or approved."""
    Invitation.objects.filter(invited_by=user_id).update(invited_by=None)
    SignUpRequest.objects.filter(approved_by=user_id).update(approved_by=None)
    removed = Invitation.objects.filter(used_by=user_id).delete()[0]
    removed += KnownDevice.objects.filter(user=user_id).delete()[0]
    return removed + SignUpRequest.objects.filter(user=user_id).delete()[0]


def _create_invitation(
    *, email: str, lifetime: timedelta, invited_by: User | None = None, makes_admin: bool = False
) -> NewInvitation:
    token = secrets.token_urlsafe(32)
    row = Invitation.objects.create(
        email=email,
        token_hash=_hash_token(token),
        makes_admin=makes_admin,
        invited_by=invited_by,
        expires_at=timezone.now() + lifetime,
    )
    return NewInvitation(row=row, url=build_site_link("invitation", token))


def _usable_invitations() -> QuerySet[Invitation]:
    return Invitation.objects.pending()


def _lock_setup() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_SETUP_LOCK])


def _hash_token(token: str) -> str:
    """Hash without SECRET_KEY: a link outlives its rotation, and 256 random bits need no pepper."""
    return salted_hmac(_SALT, token, secret=_SALT, algorithm="sha256").hexdigest()
