"""Apply the sign-up policy (`SIGNUP`), and create accounts from the form or through another site."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from allauth.account.forms import SignupForm
from allauth.account.models import EmailAddress
from allauth.core import context
from allauth.core.exceptions import SignupClosedException
from allauth.core.internal.httpkit import headed_redirect_response
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.models import SocialLogin
from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import ObjectDoesNotExist
from django.db import transaction
from django.db.models.functions import Now
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.module_loading import import_string
from django.utils.translation import gettext as _

from config.core import rate_limits
from config.core.audit import record_audit_event
from config.core.emails import build_site_link, list_staff_addresses, send_email
from copilot.accounts import invitations
from copilot.accounts.forms import PlainForm
from copilot.accounts.invitations import InvitationSpent
from copilot.models import Invitation, SignUpRequest

MAX_UNDECIDED_DAYS = 30
MAX_STAFF_EMAILS_PER_HOUR = 5


def is_sign_up_open(request: HttpRequest) -> bool:
    """Return whether this visitor gets a sign-up form. `find_address_problem` checks the address."""
    if settings.SIGNUP in ("open", "domains", "approval"):
        return True
    invitation = invitations.find_session_invitation(request)
    if invitation is None:
        return False
    return settings.SIGNUP == "invite" or invitation.makes_admin


def find_address_problem(email: str, invitation: Invitation | None) -> str | None:
    if invitation is not None:
        if invitation.email and email.lower() != invitation.email:
            return _("This invitation is for {email}.").format(email=invitation.email)
        return None
    if settings.SIGNUP == "domains" and email.lower().rpartition("@")[2] not in settings.SIGNUP_DOMAINS:
        return describe_allowed_domains()
    return None


def describe_allowed_domains() -> str:
    named = _(" or ").join(f"@{domain}" for domain in settings.SIGNUP_DOMAINS)
    return _("Use an address that ends in {domains}.").format(domains=named)


class SignUpForm(PlainForm, SignupForm):  # type: ignore[misc]  # allauth ships no types
    """allauth's form with the sign-up policy, and the configured captcha if there is one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if settings.SIGNUP_CAPTCHA:
            self.fields["captcha"] = make_captcha_field()

    def clean_email(self) -> str:
        address: str = super().clean_email()
        problem = find_address_problem(address, invitations.find_session_invitation(context.request))
        if problem:
            raise forms.ValidationError(problem)
        return address

    def try_save(self, request: HttpRequest) -> tuple[User | None, HttpResponse | None]:
        try:
            user, response = super().try_save(request)
        except InvitationSpent as refusal:
            messages.error(request, refusal.message)
            return None, headed_redirect_response("account_signup")
        return user, response

    def save(self, request: HttpRequest) -> User:
        with transaction.atomic():
            invitation = _use_invitation(request)
            user: User = super().save(request)
            admit_user(user, invitation)
        return user


class SocialSignUpAdapter(DefaultSocialAccountAdapter):  # type: ignore[misc]  # allauth ships no types
    """Apply the same policy to sign-ups through other sites."""

    def get_app(self, request: HttpRequest, provider: str, client_id: str | None = None) -> object:
        """Answer 404 for a provider that is not configured; allauth would answer 500."""
        try:
            return super().get_app(request, provider, client_id=client_id)
        except ObjectDoesNotExist as problem:
            raise Http404 from problem

    def is_open_for_signup(self, request: HttpRequest, sociallogin: SocialLogin) -> bool:
        if not is_sign_up_open(request):
            return False
        invitation = invitations.find_session_invitation(request)
        verified = [address.email for address in sociallogin.email_addresses if address.verified]
        is_bound = settings.SIGNUP == "domains" if invitation is None else bool(invitation.email)
        return not is_bound or any(find_address_problem(email, invitation) is None for email in verified)

    def save_user(self, request: HttpRequest, sociallogin: SocialLogin, form: Any = None) -> User:
        try:
            with transaction.atomic():
                invitation = _use_invitation(request)
                user: User = super().save_user(request, sociallogin, form)
                admit_user(user, invitation)
        except InvitationSpent as refusal:
            raise SignupClosedException from refusal
        return user


def make_captcha_field() -> forms.Field:
    field = import_string(settings.SIGNUP_CAPTCHA)()
    if not isinstance(field, forms.Field):
        raise TypeError(f"SIGNUP_CAPTCHA={settings.SIGNUP_CAPTCHA} is not a form field")
    return field


def _use_invitation(request: HttpRequest) -> Invitation | None:
    invitation = invitations.find_session_invitation(request)
    if invitation is not None:
        invitations.use_invitation(request, invitation)
    elif not is_sign_up_open(request):
        raise InvitationSpent(_("This invitation was already used."))
    return invitation


def admit_user(user: User, invitation: Invitation | None) -> None:
    """Make a new account administrator, active or waiting for approval, as its way of signing up grants."""
    record_audit_event("account.created", actor=user, target=("user", user.pk), policy=settings.SIGNUP)
    if invitation is not None:
        invitations.record_invited_user(invitation, user)
        if invitation.makes_admin:
            _make_administrator(user)
    elif settings.SIGNUP == "approval":
        user.is_active = False
        user.save(update_fields=["is_active"])
        SignUpRequest.objects.create(user=user)
        transaction.on_commit(lambda: _email_staff(user))


def _make_administrator(user: User) -> None:
    user.is_staff = user.is_superuser = True
    user.save(update_fields=["is_staff", "is_superuser"])
    # The setup link was printed on the server's console, so no mail is needed to verify its user.
    EmailAddress.objects.filter(user=user).update(verified=True)


# --- Approval ----------------------------------------------------------------------------------------


def approve_sign_up(request: SignUpRequest, *, approved_by: User) -> bool:
    with transaction.atomic():
        undecided = SignUpRequest.objects.filter(pk=request.pk, approved_at=None)
        if not undecided.update(approved_at=Now(), approved_by=approved_by):
            return False
        User.objects.filter(pk=request.user_id).update(is_active=True)
        record_audit_event("sign_up.approved", actor=approved_by, target=("user", request.user_id))
    send_email(
        [request.user.email],
        _("Your Pilothouse account is ready"),
        _("Your account was approved. Sign in here:\n\n{url}\n").format(url=build_site_link("account_login")),
    )
    return True


def reject_sign_up(request: SignUpRequest, *, rejected_by: User) -> bool:
    """Delete an account that was never active, so that its address is free again."""
    with transaction.atomic():
        undecided = SignUpRequest.objects.select_for_update().filter(pk=request.pk, approved_at=None).first()
        if undecided is None:
            return False
        record_audit_event("sign_up.rejected", actor=rejected_by, target=("user", undecided.user_id))
        undecided.user.delete()
    return True


def purge_undecided_sign_ups() -> int:
    old = SignUpRequest.objects.filter(
        approved_at=None, user__is_active=False, created_at__lt=Now() - timedelta(days=MAX_UNDECIDED_DAYS)
    )
    removed, _each = User.objects.filter(sign_up_request__in=old).delete()
    return removed


def _email_staff(user: User) -> None:
    if (
        rate_limits.count_request("sign-up-mails", "staff", limit=MAX_STAFF_EMAILS_PER_HOUR, seconds=3600)
        is not None
    ):
        return  # a flood of sign-ups must not become a flood of mails
    send_email(
        list_staff_addresses(),
        _("Someone is waiting for a Pilothouse account"),
        _("{email} signed up and is waiting for approval:\n\n{url}\n").format(
            email=user.email, url=build_site_link("admin:copilot_signuprequest_changelist")
        ),
    )
