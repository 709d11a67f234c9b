"""Second factors: secrets encrypted at rest, and the form that adds a passkey."""

from __future__ import annotations

from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.models import Authenticator
from allauth.mfa.webauthn.forms import AddWebAuthnForm
from django import forms
from django.contrib.auth.models import User
from django.utils.translation import gettext_lazy as _

from copilot import sealing
from copilot.accounts.forms import MFA_ERROR_MESSAGES


class SealedAdapter(DefaultMFAAdapter):  # type: ignore[misc]  # allauth ships no types
    error_messages = {**DefaultMFAAdapter.error_messages, **MFA_ERROR_MESSAGES}

    def encrypt(self, text: str) -> str:
        return sealing.seal(text)

    def generate_authenticator_name(self, user: User, type: Authenticator.Type) -> str:  # noqa: A002 - allauth's
        number = Authenticator.objects.filter(user_id=user.pk, type=type).count()
        return str(_("Passkey")) if not number else f"{_('Passkey')} {number + 1}"

    def decrypt(self, encrypted_text: str) -> str:
        return sealing.unseal(encrypted_text)


class PasskeyForm(AddWebAuthnForm):  # type: ignore[misc]  # allauth ships no types
    """allauth's form; unless told otherwise the key signs in by itself, which is what people call a passkey."""

    name = forms.CharField(
        label=_("Name"),
        required=False,
        max_length=100,
        widget=forms.TextInput(attrs={"autocomplete": "off", "placeholder": _("Where is it kept?")}),
    )
    passwordless = forms.BooleanField(
        label=_("Use it to sign in without a password"), required=False, initial=True
    )
