"""Forms and messages of the sign-in pages: allauth's fields with our words."""

from __future__ import annotations

from typing import Any

from allauth.account.forms import AddEmailForm as AllauthAddEmailForm
from allauth.account.forms import LoginForm as AllauthLoginForm
from allauth.account.forms import ReauthenticateForm as AllauthReauthenticateForm
from allauth.mfa.base.forms import AuthenticateForm as AllauthCodeForm
from allauth.mfa.base.forms import ReauthenticateForm as AllauthConfirmCodeForm
from allauth.mfa.totp.forms import ActivateTOTPForm as AllauthActivateTOTPForm
from django import forms
from django.utils.translation import gettext_lazy as _

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
    """Leave out the placeholders that repeat a label, and shorten the rules for a new password to one line."""

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
        self.fields["login"].widget.attrs["autocomplete"] = "username"  # user names are taken too


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
