"""Adapt allauth: sign-up policy, login limits, encrypted second factors, and cancelling account deletion by
signing in."""

from __future__ import annotations

from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.auth_backends import AuthenticationBackend
from allauth.core.internal.httpkit import headed_redirect_response
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.models import Authenticator
from django.conf import settings
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _

from config.core import encryption
from copilot.accounts import deletion, login_limits, sign_up
from copilot.accounts.forms import ERROR_MESSAGES, MFA_ERROR_MESSAGES


class AccountAuthenticationBackend(AuthenticationBackend):  # type: ignore[misc]  # allauth ships no types
    """allauth's backend. An inactive person who gives the right password cancels the account deletion."""

    def user_can_authenticate(self, user: User) -> bool:
        return user.is_active or deletion.cancel_deletion(user)

    def get_user(self, user_id: int) -> User | None:
        """Return active users only: an old cookie does not cancel a deletion."""
        return User.objects.filter(pk=user_id, is_active=True).first()


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]  # allauth ships no types
    """allauth's adapter with our policy, also for sign-ins through other sites."""

    error_messages = {**DefaultAccountAdapter.error_messages, **ERROR_MESSAGES}

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return sign_up.is_sign_up_open(request)

    def respond_email_verification_sent(self, request: HttpRequest, user: User | None) -> HttpResponse:
        """Answer a sign-up with a known address like any other, so that it reveals nothing."""
        if user is None and settings.SIGNUP == "approval":
            return self.respond_user_inactive(request, user)
        answer: HttpResponse = super().respond_email_verification_sent(request, user)
        return answer

    def respond_user_inactive(self, request: HttpRequest, user: User | None) -> HttpResponse:
        answer: HttpResponse = headed_redirect_response("account_inactive")
        return answer

    def get_reauthentication_methods(self, user: User) -> list[dict[str, Any]]:
        descriptions = {
            "mfa_reauthenticate": _("Use a code"),
            "mfa_reauthenticate:webauthn": _("Use a passkey"),
        }
        methods = super().get_reauthentication_methods(user)
        return [
            {**method, "description": descriptions.get(method["id"], method["description"])}
            for method in methods
        ]

    def pre_authenticate(self, request: HttpRequest, **credentials: Any) -> None:
        """Count the attempt. allauth takes it back when the password was right."""
        self._login_failed_rl_usage = login_limits.consume_attempt(request, credentials)
        if self._login_failed_rl_usage is None:
            raise self.validation_error("too_many_login_attempts")

    def _delete_login_attempts_cached_email(self, request: HttpRequest, **credentials: Any) -> None:
        login_limits.clear_attempts(request, credentials)

    def pre_login(self, request: HttpRequest, user: User, **fields: object) -> HttpResponse | None:
        if not user.is_active:
            deletion.cancel_deletion(user)
        refused: HttpResponse | None = super().pre_login(request, user, **fields)
        return refused


class EncryptedMfaAdapter(DefaultMFAAdapter):  # type: ignore[misc]  # allauth ships no types
    error_messages = {**DefaultMFAAdapter.error_messages, **MFA_ERROR_MESSAGES}

    def encrypt(self, text: str) -> str:
        return encryption.encrypt_text(text)

    def generate_authenticator_name(self, user: User, type: Authenticator.Type) -> str:  # noqa: A002 - allauth's
        number = Authenticator.objects.filter(user_id=user.pk, type=type).count()
        return str(_("Passkey")) if not number else f"{_('Passkey')} {number + 1}"

    def decrypt(self, encrypted_text: str) -> str:
        return encryption.decrypt_text(encrypted_text)
