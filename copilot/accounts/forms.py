"""Forms and messages of the sign-in and password pages: allauth's fields with our texts."""

from __future__ import annotations

from typing import Any

from allauth.account.forms import AddEmailForm as AllauthAddEmailForm
from allauth.account.forms import ChangePasswordForm, ResetPasswordForm, ResetPasswordKeyForm, SetPasswordForm
from allauth.account.forms import LoginForm as AllauthLoginForm
from allauth.account.forms import ReauthenticateForm as AllauthReauthenticateForm
from allauth.account.internal.userkit import filter_users_by_email
from allauth.mfa.base.forms import AuthenticateForm as AllauthCodeForm
from allauth.mfa.base.forms import ReauthenticateForm as AllauthConfirmCodeForm
from allauth.mfa.totp.forms import ActivateTOTPForm as AllauthActivateTOTPForm
from allauth.mfa.webauthn.forms import AddWebAuthnForm
from django import forms
from django.contrib.auth.models import User
from django.db import transaction
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from copilot.accounts import api_keys, deletion
from copilot.models import ApiKey

PASSWORD_HINT = _("At least 8 characters, nothing easy to guess.")
_WRONG_LOGIN = _("Wrong email or password.")
ERROR_MESSAGES = {
    "account_inactive": _("This account isn't active."),
    "cannot_remove_primary_email": _("You can't remove your main email address."),
    "duplicate_email": _("This address is already on your account."),
    "email_password_mismatch": _WRONG_LOGIN,
    "email_taken": _("There's already an account with this email."),
    "enter_current_password": _("That isn't your current password."),
    "incorrect_code": _("Wrong code. Try the newest one."),
    "incorrect_password": _("Wrong password."),
    "invalid_login": _WRONG_LOGIN,
    "invalid_or_expired_key": _("This link doesn't work any more."),
    "invalid_password_reset": _("This link doesn't work any more."),
    "max_email_addresses": _("You can have up to %d email addresses."),
    "rate_limited": _("Too many requests. Wait a moment, then try again."),
    "same_as_current": _("That's the same as before."),
    "too_many_login_attempts": _("Too many failed attempts. Wait a few minutes, then try again."),
    "unverified_primary_email": _("Confirm your main email address first."),
    "username_password_mismatch": _WRONG_LOGIN,
}
MFA_ERROR_MESSAGES = {
    "add_email_blocked": _("Turn off two-step sign-in before you add an email address."),
    "cannot_delete_authenticator": _("Your account needs two-step sign-in."),
    "cannot_generate_recovery_codes": _("Turn on two-step sign-in before you create recovery codes."),
    "incorrect_code": _("Wrong code. Try the newest one."),
    "unverified_email": _("Confirm your email address before you turn on two-step sign-in."),
}


class PlainForm(forms.Form):
    """Remove placeholders that repeat a label, and shorten the password rules to one line."""

    labels: dict[str, Any] = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, field in self.fields.items():
            field.widget.attrs.pop("placeholder", None)
            field.label = self.labels.get(name, field.label)
        if "password1" in self.fields:
            self.fields["password1"].help_text = PASSWORD_HINT


class LoginForm(PlainForm, AllauthLoginForm):  # type: ignore[misc]  # allauth ships no types
    labels = {"login": _("Email"), "password": _("Password"), "remember": _("Keep me signed in")}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["login"].widget.attrs["autocomplete"] = "username"  # user names are accepted too


class ReauthenticateForm(PlainForm, AllauthReauthenticateForm):  # type: ignore[misc]  # allauth ships no types
    pass


class CodeForm(PlainForm, AllauthCodeForm):  # type: ignore[misc]  # allauth ships no types
    pass


class ConfirmCodeForm(PlainForm, AllauthConfirmCodeForm):  # type: ignore[misc]  # allauth ships no types
    pass


class ActivateTOTPForm(PlainForm, AllauthActivateTOTPForm):  # type: ignore[misc]  # allauth ships no types
    labels = {"code": _("Code")}


class AddEmailForm(PlainForm, AllauthAddEmailForm):  # type: ignore[misc]  # allauth ships no types
    pass


_NEW_PASSWORD = {"password1": _("New password"), "password2": _("Repeat new password")}


class RevokeApiKeysMixin(PlainForm):
    """Add a checkbox that revokes all API keys, as somebody with a stolen password may have created some."""

    user: User | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.api_keys: list[ApiKey] = api_keys.list_api_keys(self.user.pk) if self.user is not None else []
        if self.api_keys:
            count = len(self.api_keys)
            label = ngettext("Also revoke my API key", "Also revoke all my {count} API keys", count)
            self.fields["revoke_api_keys"] = forms.BooleanField(
                label=label.format(count=count), required=False
            )

    def save(self) -> None:
        with transaction.atomic():
            super().save()  # type: ignore[misc]  # defined by the form this is mixed into
            if self.user is not None and self.cleaned_data.get("revoke_api_keys"):
                api_keys.revoke_all_api_keys(self.user.pk)


class PasswordChangeForm(RevokeApiKeysMixin, ChangePasswordForm):  # type: ignore[misc]  # allauth ships no types
    labels = {"oldpassword": _("Current password"), **_NEW_PASSWORD}


class PasswordSetForm(RevokeApiKeysMixin, SetPasswordForm):  # type: ignore[misc]  # allauth ships no types
    labels = {"password1": _("Password"), "password2": _("Repeat password")}


class PasswordResetForm(RevokeApiKeysMixin, ResetPasswordKeyForm):  # type: ignore[misc]  # allauth ships no types
    labels = _NEW_PASSWORD


class RequestPasswordResetForm(PlainForm, ResetPasswordForm):  # type: ignore[misc]  # allauth ships no types
    """allauth's form, which also mails owners of accounts that are scheduled for deletion, so that they can
    come back."""

    users: list[User]

    def clean_email(self) -> str:
        address: str = super().clean_email()
        closed_users = filter_users_by_email(
            address.lower(), is_active=False, prefer_verified=True, for_login=True
        )
        self.users = [*self.users, *(user for user in closed_users if deletion.can_cancel_deletion(user.pk))]
        return address


class PasskeyForm(AddWebAuthnForm):  # type: ignore[misc]  # allauth ships no types
    """allauth's form, with signing in without a password as the default."""

    name = forms.CharField(
        label=_("Name"),
        required=False,
        max_length=100,
        widget=forms.TextInput(attrs={"autocomplete": "off", "placeholder": _("Where is it kept?")}),
    )
    passwordless = forms.BooleanField(
        label=_("Use it to sign in without a password"), required=False, initial=True
    )
