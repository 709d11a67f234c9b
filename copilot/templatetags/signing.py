"""Template tag for sign-in pages."""

from __future__ import annotations

from django import template
from django.conf import settings

register = template.Library()


@register.simple_tag
def others_vouch() -> bool:
    """Tell whether people can sign in with another provider's account, without a database query."""
    return bool(settings.SOCIALACCOUNT_PROVIDERS)
