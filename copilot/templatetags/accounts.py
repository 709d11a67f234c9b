"""Template tags for sign-up, sign-in and account pages."""

from __future__ import annotations

from django import template
from django.conf import settings
from django.template.context import RequestContext
from django.utils.translation import gettext as _

from copilot.accounts import invitations, sign_up

register = template.Library()


@register.simple_tag(takes_context=True)
def sign_up_is_open(context: RequestContext) -> bool:
    request = context.get("request")
    return request is not None and sign_up.is_sign_up_open(request)


@register.simple_tag(takes_context=True)
def sign_up_note(context: RequestContext) -> str:
    request = context.get("request")
    invitation = invitations.find_session_invitation(request) if request is not None else None
    if invitation is not None and invitation.makes_admin:
        return _("This is the first account. It will be the administrator.")
    if invitation is not None:
        return _("You've been invited.")
    if settings.SIGNUP == "approval":
        return _("An administrator approves new accounts. We'll email you when yours is ready.")
    if settings.SIGNUP == "domains":
        return sign_up.describe_allowed_domains()
    return ""


@register.simple_tag
def accounts_wait_for_approval() -> bool:
    return bool(settings.SIGNUP == "approval")


@register.simple_tag
def sign_up_is_by_invitation() -> bool:
    return bool(settings.SIGNUP == "invite")


@register.simple_tag
def others_vouch() -> bool:
    """Tell whether people can sign in with another provider's account, without a database query."""
    return bool(settings.SOCIALACCOUNT_PROVIDERS)
