"""Require a second factor of staff before they reach staff pages and calls (`STAFF_MFA`)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Literal

from allauth.account.authentication import get_authentication_records
from allauth.mfa.utils import is_mfa_enabled
from django.conf import settings
from django.contrib.admin import AdminSite
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.sessions.backends.base import SessionBase
from django.http import HttpRequest
from django.utils import timezone

SecondFactorProblem = Literal["", "no_factor", "factor_not_used"]


def find_second_factor_problem(
    user: User | AnonymousUser, request: HttpRequest | None
) -> SecondFactorProblem:
    """Return what is missing. Without a request (an API key) it is enough that the account has a factor."""
    if settings.STAFF_MFA != "required" or not isinstance(user, User):
        return ""
    if not is_mfa_enabled(user):
        return "no_factor"
    if request is not None and not any(
        record.get("method") == "mfa" for record in get_authentication_records(request, user)
    ):
        return "factor_not_used"
    return ""


def explain_second_factor_problem(problem: SecondFactorProblem) -> str:
    if problem == "no_factor":
        return "Staff need a second factor. Add a passkey or an authenticator app to your account first."
    return "Staff need a second factor. Sign in on the web with yours first."


VIEW_DIAGNOSTICS = "diagnostics.view"
REPAIR_DIAGNOSTICS = "diagnostics.repair"
RESET_USAGE = "diagnostics.reset_usage"
SEE_EMAIL = "diagnostics.see_email"
SEE_AUDIT = "diagnostics.see_audit"

StaffAct = Literal["diagnostics.read", "diagnostics.repair", "audit.export", "limits.read", "limits.reset"]

STAFF_PERMISSIONS: Mapping[StaffAct, tuple[str, ...]] = {
    "diagnostics.read": (VIEW_DIAGNOSTICS,),
    "diagnostics.repair": (VIEW_DIAGNOSTICS, REPAIR_DIAGNOSTICS),
    "audit.export": (VIEW_DIAGNOSTICS, SEE_AUDIT),
    "limits.read": (VIEW_DIAGNOSTICS,),
    "limits.reset": (VIEW_DIAGNOSTICS, RESET_USAGE),
}

CHANGE_LOGIN_MAX_AGE = timedelta(hours=12)  # how old a login may be for a change


def can_perform_staff_act(user: User | AnonymousUser, act: StaffAct) -> bool:
    """Return whether the user is active staff and has every right the act needs."""
    return user.is_active and user.is_staff and user.has_perms(STAFF_PERMISSIONS[act])


def require_admin_action_permissions(site: AdminSite) -> None:
    """Require the change permission for admin actions that declare none.

    Some third-party apps declare none, and Django would run their actions for everybody who may view the rows: for
    example to start or disable periodic tasks, or to mark an email address as verified.
    """
    for model_admin in site._registry.values():
        for name in model_admin.actions or ():
            action = getattr(type(model_admin), name, None) if isinstance(name, str) else name
            if action is not None and not getattr(action, "allowed_permissions", None):
                action.allowed_permissions = ("change",)  # type: ignore[union-attr]


def get_login_time(user: User, session: SessionBase) -> float:
    """Return when this session signed in, as recorded by allauth, else the account's last login."""
    records = session.get("account_authentication_methods", [])
    moments = [float(record.get("at", 0)) for record in records if isinstance(record, dict)]
    if moments:
        return max(moments)
    return user.last_login.timestamp() if user.last_login is not None else 0.0


def is_login_recent(user: User, session: SessionBase) -> bool:
    """Return whether this login is recent enough for changes; with an older one staff may only look."""
    return get_login_time(user, session) >= timezone.now().timestamp() - CHANGE_LOGIN_MAX_AGE.total_seconds()


def mask_email(email: str) -> str:
    """Mask an address for staff without the right to see it, so that they can only recognise the account."""
    name, at, host = email.partition("@")
    return f"{name[:1]}***{at}{host}" if email else ""
