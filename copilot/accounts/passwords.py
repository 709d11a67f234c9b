"""Forms that change a password; each offers to revoke the account's API keys with it."""

from __future__ import annotations

from typing import Any

from allauth.account.forms import ChangePasswordForm, ResetPasswordKeyForm, SetPasswordForm
from django import forms
from django.contrib.auth.models import User
from django.db import transaction
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from copilot import api_keys
from copilot.accounts.forms import PlainForm
from copilot.models import ApiKey

_NEW_PASSWORD = {"password1": _("New password"), "password2": _("Repeat new password")}


class RevokesKeys(PlainForm):
    """One box that revokes all API keys, where there are any; a stolen password may have made some."""

    user: User | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.api_keys: list[ApiKey] = api_keys.of_user(self.user.pk) if self.user is not None else []
        if self.api_keys:
            count = len(self.api_keys)
            label = ngettext("Also revoke my API key", "Also revoke all my {count} API keys", count)
            self.fields["revoke_api_keys"] = forms.BooleanField(
                label=label.format(count=count), required=False
            )

    def save(self) -> None:
        with transaction.atomic():
            super().save()  # type: ignore[misc]  # of the form that this one is mixed into
            if self.user is not None and self.cleaned_data.get("revoke_api_keys"):
                api_keys.revoke_all(self.user.pk)


class ChangeForm(RevokesKeys, ChangePasswordForm):  # type: ignore[misc]  # allauth ships no types
    labels = {"oldpassword": _("Current password"), **_NEW_PASSWORD}


class SetForm(RevokesKeys, SetPasswordForm):  # type: ignore[misc]  # allauth ships no types
    labels = {"password1": _("Password"), "password2": _("Repeat password")}


class ResetForm(RevokesKeys, ResetPasswordKeyForm):  # type: ignore[misc]  # allauth ships no types
    labels = _NEW_PASSWORD
