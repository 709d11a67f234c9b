"""Template tag that counts failed Stripe events, for the admin index."""

from __future__ import annotations

from django import template

from billing.models import StripeEvent

register = template.Library()


@register.simple_tag
def failed_events() -> int:
    return StripeEvent.objects.filter(state=StripeEvent.State.FAILED).count()
