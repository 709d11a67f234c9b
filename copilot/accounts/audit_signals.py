"""Record sign-ins, passwords, factors, roles and staff changes in the audit log, as Django and allauth signal them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from allauth.account import signals as account_signals
from allauth.account.internal.flows.login import get_authentication_records, record_authentication
from allauth.mfa import signals as mfa_signals
from allauth.mfa.models import Authenticator
from allauth.socialaccount import signals as social_signals
from axes.signals import user_locked_out
from django.contrib.admin.models import LogEntry, LogEntryManager
from django.contrib.auth.models import Group, User
from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.db.models import Model, Q
from django.db.models.signals import m2m_changed, post_delete, post_save, pre_save
from django.http import HttpRequest

from config.core.audit import record_audit_event

ROLE_FIELDS = ("is_active", "is_staff", "is_superuser")
_ADMIN_ACTIONS = {1: "admin.added", 2: "admin.changed", 3: "admin.deleted"}


def connect_signals() -> None:
    for signal, receiver in (
        (user_logged_in, _on_signed_in),
        (user_logged_out, _on_signed_out),
        (user_login_failed, _on_sign_in_failed),
        (user_locked_out, _on_locked_out),
        (mfa_signals.authentication_failed, _on_factor_failed),
        (mfa_signals.authenticator_added, _on_factor_proved),
        (mfa_signals.authenticator_reset, _on_factor_reset),
        (account_signals.password_changed, _on_password_changed),
        (account_signals.password_set, _on_password_changed),
        (account_signals.password_reset, _on_password_reset),
        (account_signals.email_changed, _on_email_changed),
        (account_signals.email_added, _on_email_added),
        (social_signals.social_account_added, _on_social_added),
        (social_signals.social_account_removed, _on_social_removed),
    ):
        signal.connect(receiver, dispatch_uid=f"audit:{receiver.__name__}")
    post_save.connect(_on_factor_added, sender=Authenticator, dispatch_uid="audit:factor_added")
    post_delete.connect(_on_factor_removed, sender=Authenticator, dispatch_uid="audit:factor_removed")
    pre_save.connect(_on_role_saved, sender=User, dispatch_uid="audit:role_saved")
    post_delete.connect(_on_user_deleted, sender=User, dispatch_uid="audit:user_deleted")
    for relation in (User.groups.through, User.user_permissions.through, Group.permissions.through):
        m2m_changed.connect(_on_rights_changed, sender=relation, dispatch_uid=f"audit:{relation.__name__}")
    post_save.connect(_on_admin_change, sender=LogEntry, dispatch_uid="audit:admin")
    # Django logs deletions from a list page with bulk_create, which sends no signal.
    LogEntryManager.bulk_create = _create_log_entries  # type: ignore[method-assign,assignment]


# --- Sign-ins ----------------------------------------------------------------------------------------


def _on_signed_in(user: User, request: HttpRequest | None = None, **kwargs: object) -> None:
    records = get_authentication_records(request, user) if hasattr(request, "session") else []
    methods = [
        str(record.get("type") or record.get("provider") or record.get("method")) for record in records
    ]
    record_audit_event("sign_in.succeeded", request=request, actor=user, target=("user", user.pk), by=methods)


def _on_signed_out(user: User | None, request: HttpRequest | None = None, **kwargs: object) -> None:
    if user is not None:
        record_audit_event("sign_in.ended", request=request, actor=user, target=("user", user.pk))


def _on_sign_in_failed(
    credentials: dict[str, Any], request: HttpRequest | None = None, **kwargs: object
) -> None:
    """Record which account was tried. Typed text that names no account is not kept: it may be a password."""
    typed = {str(credentials.get(name) or "") for name in ("username", "email")} - {""}
    found = User.objects.filter(Q(username__in=typed) | Q(email__in=typed)).order_by("pk").first()
    target = ("user", found.pk) if found is not None else ("", "")
    record_audit_event(
        "sign_in.failed",
        request=request,
        actor="anonymous",
        target=target,
        outcome="refused",
        account=found.get_username() if found is not None else "unknown",
    )


def _on_locked_out(request: HttpRequest | None = None, username: str = "", **kwargs: object) -> None:
    record_audit_event(
        "sign_in.locked", request=request, actor="anonymous", outcome="refused", account=username
    )


def _on_factor_failed(request: HttpRequest, user: User, **kwargs: object) -> None:
    record_audit_event(
        "factor.failed", request=request, actor="anonymous", target=("user", user.pk), outcome="refused"
    )


# --- Credentials -------------------------------------------------------------------------------------


def _on_factor_added(instance: Authenticator, created: bool, **kwargs: object) -> None:
    """Record in the transaction that stores the factor; allauth's own signal comes after the commit."""
    if created:
        record_audit_event("factor.added", target=("user", instance.user_id), type=instance.type)


def _on_factor_proved(
    request: HttpRequest, user: User, authenticator: Authenticator, **kwargs: object
) -> None:
    """Count adding a factor as using it, so that staff need not use it again at once."""
    if authenticator.type != Authenticator.Type.RECOVERY_CODES:
        record_authentication(request, user, method="mfa", type=str(authenticator.type), id=authenticator.pk)


def _on_factor_reset(
    request: HttpRequest, user: User, authenticator: Authenticator, **kwargs: object
) -> None:
    record_audit_event("factor.reset", request=request, target=("user", user.pk), type=authenticator.type)


def _on_factor_removed(instance: Authenticator, **kwargs: object) -> None:
    record_audit_event("factor.removed", target=("user", instance.user_id), type=instance.type)


def _on_password_changed(request: HttpRequest, user: User, **kwargs: object) -> None:
    record_audit_event("password.changed", request=request, target=("user", user.pk))


def _on_password_reset(request: HttpRequest, user: User, **kwargs: object) -> None:
    record_audit_event("password.reset", request=request, actor=user, target=("user", user.pk))


def _on_email_changed(request: HttpRequest, user: User, **kwargs: object) -> None:
    record_audit_event("email.changed", request=request, target=("user", user.pk))


def _on_email_added(request: HttpRequest, user: User, **kwargs: object) -> None:
    record_audit_event("email.added", request=request, target=("user", user.pk))


def _on_social_added(request: HttpRequest, sociallogin: Any, **kwargs: object) -> None:
    user_id = sociallogin.user.pk
    provider = sociallogin.account.provider
    record_audit_event("connection.added", request=request, target=("user", user_id), provider=provider)


def _on_social_removed(request: HttpRequest, socialaccount: Any, **kwargs: object) -> None:
    user_id, provider = socialaccount.user_id, socialaccount.provider
    record_audit_event("connection.removed", request=request, target=("user", user_id), provider=provider)


# --- Roles and staff changes -------------------------------------------------------------------------


def _on_role_saved(instance: User, update_fields: frozenset[str] | None = None, **kwargs: object) -> None:
    if update_fields is not None and not set(ROLE_FIELDS) & set(update_fields):
        return
    before = User.objects.filter(pk=instance.pk).values(*ROLE_FIELDS).first() if instance.pk else None
    if before is None:
        before = {"is_active": True, "is_staff": False, "is_superuser": False}
    changed = {
        name: getattr(instance, name) for name in ROLE_FIELDS if getattr(instance, name) != before[name]
    }
    if changed:
        target = ("user", instance.pk or instance.get_username())
        record_audit_event("role.changed", target=target, **changed)


def _on_user_deleted(instance: User, **kwargs: object) -> None:
    record_audit_event("account.removed", target=("user", instance.pk), account=instance.get_username())


def _on_rights_changed(
    instance: Model,
    action: str,
    reverse: bool,
    model: type[Model],
    pk_set: set[int] | None = None,
    **kwargs: object,
) -> None:
    if action not in ("post_add", "post_remove", "pre_clear"):
        return
    target = (instance._meta.model_name or "", instance.pk)
    verb = action.partition("_")[2]
    named = [str(row) for row in model._default_manager.filter(pk__in=pk_set or ())[:20]]
    record_audit_event("role.changed", target=target, change=verb, of=model._meta.model_name, named=named)


def _create_log_entries(
    manager: LogEntryManager, entries: Iterable[LogEntry], *args: Any, **kwargs: Any
) -> list[LogEntry]:
    created = manager.get_queryset().bulk_create(entries, *args, **kwargs)
    users = User.objects.in_bulk({entry.user_id for entry in created})
    for entry in created:
        entry.user = users[entry.user_id]
        _on_admin_change(entry, created=True)
    return created


def _on_admin_change(instance: LogEntry, created: bool, **kwargs: object) -> None:
    if not created:
        return
    kind = instance.content_type.model if instance.content_type is not None else ""
    record_audit_event(
        _ADMIN_ACTIONS.get(instance.action_flag, "admin.changed"),
        actor=instance.user,
        target=(kind[:30], instance.object_id or ""),
        change=instance.get_change_message(),
    )
