"""For pages about signing in."""

from __future__ import annotations

from django import template
from django.conf import settings

register = template.Library()


@register.simple_tag
def others_vouch() -> bool:
    """Whether people may sign in by an account elsewhere; no question to the database."""
    return bool(settings.SOCIALACCOUNT_PROVIDERS)
