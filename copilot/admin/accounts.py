"""How people sign in, as staff may see it: that there is a second factor, never its secret, its codes or anybody's tokens (D13)."""

from __future__ import annotations

from allauth.mfa import admin as mfa_admin  # noqa: F401 - registers its page, which shows the seed of every code
from allauth.mfa.models import Authenticator
from allauth.socialaccount import admin as social_admin  # noqa: F401 - and this one keys and tokens
from allauth.socialaccount.models import SocialApp, SocialToken
from allauth.usersessions import admin as sessions_admin  # noqa: F401 - and this one would change sessions
from allauth.usersessions.models import UserSession
from django import forms
from django.contrib import admin
from django.contrib.auth.models import User
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from config.core.admin import ReadOnlyAdmin, TypedModelAdmin
from config.core.errors import NotFound
from copilot.accounts import api_keys, invitations, sign_up
from copilot.models import ApiKey, ErasureJob, Invitation, SignUpRequest


@admin.register(ErasureJob)
class ErasureJobAdmin(ReadOnlyAdmin):
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
    search_help_text = "Erasure id, user name or e-mail, in full."
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
    search_help_text = "The key's prefix, user name or e-mail, in full."
    ordering = ["-created_at"]
    exclude = ["secret_hash"]
    actions = ["revoke"]

    @admin.action(description="Revoke", permissions=["revoke"])
    def revoke(self, request: HttpRequest, keys: QuerySet[ApiKey]) -> None:
        revoked = 0
        for key in keys:
            try:
                api_keys.revoke_api_key(key.user_id, key.pk)
            except NotFound:
                continue  # somebody was faster
            self.log_change(request, key, "Revoked.")
            revoked += 1
        self.message_user(request, f"Revoked: {revoked}.")

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        """Looking takes the right to view, revoking the right to change."""
        return request.user.has_perm("copilot.change_apikey")


for shown in (Authenticator, SocialApp, SocialToken, UserSession):  # the keys of providers are settings
    if admin.site.is_registered(shown):
        admin.site.unregister(shown)


@admin.register(Authenticator)
class AuthenticatorAdmin(TypedModelAdmin):
    """Removed for somebody who has lost his phone and his codes; made and changed by nobody but himself."""

    list_display = ["user", "type", "created_at", "last_used_at"]
    list_filter = ["type"]
    list_select_related = ["user"]
    search_fields = ["=user__username", "=user__email"]
    fields = ("user", "type", "created_at", "last_used_at")
    readonly_fields = ("user", "type", "created_at", "last_used_at")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False


class InvitationForm(forms.ModelForm):  # type: ignore[type-arg]  # Django's own class takes no parameter when it runs
    days = forms.IntegerField(
        min_value=1,
        max_value=invitations.MAX_LIFETIME_DAYS,
        initial=invitations.DEFAULT_LIFETIME_DAYS,
        help_text="Until it expires.",
    )

    class Meta:
        model = Invitation
        fields = ("email",)


@admin.register(Invitation)
class InvitationAdmin(TypedModelAdmin):
    """Created and mailed here; the link is shown once."""

    form = InvitationForm
    list_display = ["__str__", "invited_by", "created_at", "expires_at", "used_at", "used_by", "revoked_at"]
    list_filter = [("used_at", admin.EmptyFieldListFilter), ("revoked_at", admin.EmptyFieldListFilter)]
    list_select_related = ["invited_by", "used_by"]
    search_fields = ["=email"]
    search_help_text = "E-mail address, in full."
    ordering = ["-created_at"]
    fields = ("email", "days")
    actions = ["revoke"]

    def save_model(self, request: HttpRequest, obj: Model, form: forms.Form, change: bool) -> None:
        assert isinstance(obj, Invitation)
        assert isinstance(request.user, User)
        made = invitations.create_invitation(
            email=form.cleaned_data["email"], days=form.cleaned_data["days"], invited_by=request.user
        )
        obj.pk = made.row.pk
        obj.__dict__.update(
            {field: getattr(made.row, field) for field in ("email", "expires_at", "token_hash")}
        )
        told = "It was mailed." if invitations.send_invitation_email(made) else "It was not mailed."
        self.message_user(request, f"{told} The link is shown only now: {made.url}")

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
    search_help_text = "User name or e-mail, in full."
    ordering = ["-created_at"]
    actions = ["approve", "reject"]

    @admin.display(ordering="user__email")
    def email(self, waiting: SignUpRequest) -> str:
        return waiting.user.email

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
