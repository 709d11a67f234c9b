"""Staff pages for accounts and how people sign in. They show that a second factor exists, never secrets, codes or tokens.

Anyone who can change how an account signs in can take it over, and its rights with it. So only superusers give rights, and
only superusers change accounts of staff; other staff change those of ordinary people, as far as their rights go.
"""

from __future__ import annotations

from allauth.account import admin as account_admin
from allauth.account.models import EmailAddress
from allauth.mfa import admin as mfa_admin  # noqa: F401 - registers its page, which would show the seed of every code
from allauth.mfa.models import Authenticator
from allauth.socialaccount import admin as social_admin  # noqa: F401 - registers its pages, which would show keys and tokens
from allauth.socialaccount.models import SocialAccount, SocialApp, SocialToken
from allauth.usersessions import admin as sessions_admin  # noqa: F401 - registers its page, which would change sessions
from allauth.usersessions.models import UserSession
from django import forms
from django.contrib import admin
from django.contrib.auth import admin as auth_admin
from django.contrib.auth.models import Group, User
from django.db.models import Model, Q, QuerySet
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


# The models that Django and allauth registered above; provider keys are settings.
for model in (User, Group, EmailAddress, Authenticator, SocialAccount, SocialApp, SocialToken, UserSession):
    if admin.site.is_registered(model):
        admin.site.unregister(model)


class StaffAccountGuard(TypedModelAdmin):
    """Keep staff who are not superusers from changing accounts of staff, or rows by which these sign in."""

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return super().has_change_permission(request, obj) and _can_change_account(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return super().has_delete_permission(request, obj) and _can_change_account(request, obj)


_HAS_RIGHTS = Q(is_staff=True) | Q(is_superuser=True)


def _can_change_account(request: HttpRequest, row: Model | None) -> bool:
    account = row if row is None or isinstance(row, User) else getattr(row, "user", None)
    if account is None or request.user.is_superuser:
        return True
    # Read the row again: a form that is refused has already changed its copy.
    return not User.objects.filter(_HAS_RIGHTS, pk=account.pk).exists()


@admin.register(User)
class UserAdmin(StaffAccountGuard, auth_admin.UserAdmin):  # type: ignore[type-arg]
    ROLE_FIELDS = ("is_staff", "is_superuser", "groups", "user_permissions")

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> tuple[str, ...]:
        fixed = tuple(super().get_readonly_fields(request, obj))
        return fixed if request.user.is_superuser else (*fixed, *self.ROLE_FIELDS)


@admin.register(Group)
class GroupAdmin(auth_admin.GroupAdmin):
    """Only superusers change groups: anyone who edits a group could give themselves every right."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return request.user.is_superuser

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return request.user.is_superuser

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return request.user.is_superuser


@admin.register(EmailAddress)
class EmailAddressAdmin(StaffAccountGuard, account_admin.EmailAddressAdmin):  # type: ignore[misc]
    """A verified address opens its account by a password reset, so no row moves to another account."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return request.user.is_superuser

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> tuple[str, ...]:
        return () if request.user.is_superuser else ("user",)

    @admin.action(description="Mark selected email addresses as verified", permissions=["change"])
    def make_verified(self, request: HttpRequest, queryset: QuerySet[EmailAddress]) -> None:
        if not request.user.is_superuser:
            queryset = queryset.filter(user__is_staff=False, user__is_superuser=False)
        super().make_verified(request, queryset)


@admin.register(SocialAccount)
class SocialAccountAdmin(StaffAccountGuard):
    """Staff may unlink an account elsewhere; only its owner links one, by signing in there."""

    list_display = ["user", "provider", "uid", "last_login", "date_joined"]
    list_filter = ["provider"]
    list_select_related = ["user"]
    search_fields = ["=user__username", "=user__email", "=uid"]
    search_help_text = "Exact user name, email or id at the provider."
    fields = ("user", "provider", "uid", "last_login", "date_joined")
    readonly_fields = ("user", "provider", "uid", "last_login", "date_joined")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False


@admin.register(Authenticator)
class AuthenticatorAdmin(StaffAccountGuard):
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
