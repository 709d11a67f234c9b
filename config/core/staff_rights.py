"""Say which rights staff need for each act, in one table for pages and REST calls alike.

Django's admin asks for the rights of each model by itself. Everything else that is for staff alone names an act of this
table, so that no call is open to somebody to whom the page is closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Literal

from django.contrib.admin import AdminSite
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.sessions.backends.base import SessionBase
from django.utils import timezone

VIEW = "diagnostics.view"
REPAIR = "diagnostics.repair"
RESET_USAGE = "diagnostics.reset_usage"
SEE_EMAIL = "diagnostics.see_email"
SEE_AUDIT = "diagnostics.see_audit"

StaffAct = Literal["diagnostics.read", "diagnostics.repair", "audit.export", "limits.read", "limits.reset"]

STAFF_RIGHTS: Mapping[StaffAct, tuple[str, ...]] = {
    "diagnostics.read": (VIEW,),
    "diagnostics.repair": (VIEW, REPAIR),
    "audit.export": (VIEW, SEE_AUDIT),
    "limits.read": (VIEW,),
    "limits.reset": (VIEW, RESET_USAGE),
}

LOGIN_LIFE = timedelta(hours=12)  # how old a login may be for a change


def can_perform(user: User | AnonymousUser, act: StaffAct) -> bool:
    """Return whether the user is active staff and has every right the act needs."""
    return user.is_active and user.is_staff and user.has_perms(STAFF_RIGHTS[act])


def require_right_for_actions(site: AdminSite) -> None:
    """Let actions of admin pages that name no right run for who may change the rows.

    Some of third-party apps do not, and Django runs those for whoever may look: to start or switch off periodic tasks, or to
    call an e-mail address verified.
    """
    for model_admin in site._registry.values():
        for name in model_admin.actions or ():
            action = getattr(type(model_admin), name, None) if isinstance(name, str) else name
            if action is not None and not getattr(action, "allowed_permissions", None):
                action.allowed_permissions = ("change",)  # type: ignore[union-attr]


def logged_in_at(user: User, session: SessionBase) -> float:
    """Return when this session signed in, as allauth wrote it down; else the account's last login."""
    records = session.get("account_authentication_methods", [])
    moments = [float(record.get("at", 0)) for record in records if isinstance(record, dict)]
    if moments:
        return max(moments)
    return user.last_login.timestamp() if user.last_login is not None else 0.0


def is_login_recent(user: User, session: SessionBase) -> bool:
    """Return whether staff may change something by this login; with an older one they may only look."""
    return logged_in_at(user, session) >= timezone.now().timestamp() - LOGIN_LIFE.total_seconds()


def mask_email(email: str) -> str:
    """Show staff without the right to see addresses whose account it may be, and no more."""
    name, at, host = email.partition("@")
    return f"{name[:1]}***{at}{host}" if email else ""
