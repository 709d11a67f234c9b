"""Staff pages for how people sign in. They show that a second factor exists, never secrets, codes or tokens."""

from __future__ import annotations

from allauth.mfa import admin as mfa_admin  # noqa: F401 - registers its page, which would show the seed of every code
from allauth.mfa.models import Authenticator
from allauth.socialaccount import admin as social_admin  # noqa: F401 - registers its pages, which would show keys and tokens
from allauth.socialaccount.models import SocialApp, SocialToken
from allauth.usersessions import admin as sessions_admin  # noqa: F401 - registers its page, which would change sessions
from allauth.usersessions.models import UserSession
from django import forms
from django.contrib import admin
from django.contrib.auth.models import User
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from config.core.admin import ReadOnlyAdmin, TypedModelAdmin
from config.core.errors import NotFound
from copilot.accounts import api_keys, invitations, sign_up
from copilot.models import AccountDeletion, ApiKey, Invitation, SignUpRequest


@admin.register(AccountDeletion)
class AccountDeletionAdmin(ReadOnlyAdmin):
    list_display = [
        "id",
        "user",
        "requested_at",
        "due_at",
        "phase",
        "error",
        "next_try_at",
        "cancelled_at",
        "finished_at",
    ]
    list_select_related = ["user"]
    found_by_id = ("id",)
    search_fields = ["=user__username", "=user__email"]
    search_help_text = "Exact deletion id, user name or email."
    ordering = ["-requested_at"]


@admin.register(ApiKey)
class ApiKeyAdmin(ReadOnlyAdmin):
    list_display = [
        "prefix",
        "user",
        "name",
        "scopes",
        "created_at",
        "last_used_at",
        "expires_at",
        "revoked_at",
    ]
    list_select_related = ["user"]
    search_fields = ["=prefix", "=user__username", "=user__email"]
    search_help_text = "Exact key prefix, user name or email."
    ordering = ["-created_at"]
    readonly_fields = ["prefix", "last_used_at", "revoked_at"]
    actions = ["revoke"]

    @admin.action(description="Revoke", permissions=["revoke"])
    def revoke(self, request: HttpRequest, keys: QuerySet[ApiKey]) -> None:
        revoked = 0
        for key in keys:
            try:
                api_keys.revoke_api_key(key.user_id, key.pk)
            except NotFound:
                continue  # revoked by somebody else in the meantime
            self.log_change(request, key, "Revoked.")
            revoked += 1
        self.message_user(request, f"Revoked: {revoked}.")

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        """Require the change permission: revoking takes more than viewing."""
        return request.user.has_perm("copilot.change_apikey")


# The models that allauth registered above; provider keys are settings.
for model in (Authenticator, SocialApp, SocialToken, UserSession):
    if admin.site.is_registered(model):
        admin.site.unregister(model)


@admin.register(Authenticator)
class AuthenticatorAdmin(TypedModelAdmin):
    """Staff may remove an authenticator for somebody who lost their device; only its owner creates and changes it."""

    list_display = ["user", "type", "created_at", "last_used_at"]
    list_filter = ["type"]
    list_select_related = ["user"]
    search_fields = ["=user__username", "=user__email"]
    fields = ("user", "type", "created_at", "last_used_at")
    readonly_fields = ("user", "type", "created_at", "last_used_at")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False


class InvitationForm(forms.ModelForm):  # type: ignore[type-arg]  # Django's class is not generic at run time
    days = forms.IntegerField(
        min_value=1,
        max_value=invitations.MAX_LIFETIME_DAYS,
        initial=invitations.DEFAULT_LIFETIME_DAYS,
        help_text="Days until the invitation expires.",
    )

    class Meta:
        model = Invitation
        fields = ("email",)


@admin.register(Invitation)
class InvitationAdmin(TypedModelAdmin):
    """Create and mail invitations; the link is shown once."""

    form = InvitationForm
    list_display = ["__str__", "invited_by", "created_at", "expires_at", "used_at", "used_by", "revoked_at"]
    list_filter = [("used_at", admin.EmptyFieldListFilter), ("revoked_at", admin.EmptyFieldListFilter)]
    list_select_related = ["invited_by", "used_by"]
    search_fields = ["=email"]
    search_help_text = "Exact email address."
    ordering = ["-created_at"]
    fields = ("email", "days")
    actions = ["revoke"]

    def save_model(self, request: HttpRequest, obj: Model, form: forms.Form, change: bool) -> None:
        assert isinstance(obj, Invitation)
        assert isinstance(request.user, User)
        created = invitations.create_invitation(
            email=form.cleaned_data["email"], days=form.cleaned_data["days"], invited_by=request.user
        )
        obj.pk = created.row.pk
        obj.__dict__.update(
            {field: getattr(created.row, field) for field in ("email", "expires_at", "token_hash")}
        )
        note = (
            "Invitation mailed." if invitations.send_invitation_email(created) else "Invitation not mailed."
        )
        self.message_user(request, f"{note} The link is shown only once: {created.url}")

    @admin.action(description="Revoke", permissions=["revoke"])
    def revoke(self, request: HttpRequest, rows: QuerySet[Invitation]) -> None:
        assert isinstance(request.user, User)
        revoked = [row for row in rows if invitations.revoke_invitation(row, actor=request.user)]
        self.message_user(request, f"Revoked: {len(revoked)}.")

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("copilot.delete_invitation")

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


@admin.register(SignUpRequest)
class SignUpRequestAdmin(ReadOnlyAdmin):
    """Accounts that wait for approval (`SIGNUP=approval`)."""

    list_display = ["user", "email", "created_at", "approved_at", "approved_by"]
    list_filter = [("approved_at", admin.EmptyFieldListFilter)]
    list_select_related = ["user", "approved_by"]
    search_fields = ["=user__username", "=user__email"]
    search_help_text = "Exact user name or email."
    ordering = ["-created_at"]
    actions = ["approve", "reject"]

    @admin.display(ordering="user__email")
    def email(self, row: SignUpRequest) -> str:
        return row.user.email

    @admin.action(description="Approve", permissions=["decide"])
    def approve(self, request: HttpRequest, rows: QuerySet[SignUpRequest]) -> None:
        assert isinstance(request.user, User)
        approved = [row for row in rows if sign_up.approve_sign_up(row, approved_by=request.user)]
        self.message_user(request, f"Approved: {len(approved)}.")

    @admin.action(description="Reject and remove the account", permissions=["decide"])
    def reject(self, request: HttpRequest, rows: QuerySet[SignUpRequest]) -> None:
        assert isinstance(request.user, User)
        rejected = [row for row in rows if sign_up.reject_sign_up(row, rejected_by=request.user)]
        self.message_user(request, f"Rejected: {len(rejected)}.")

    def has_decide_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("copilot.change_signuprequest")
