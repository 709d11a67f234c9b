"""Template filters that format amounts and ledger kinds, and a tag for the admin index."""

from __future__ import annotations

from django import template

from billing.models import StripeEvent

register = template.Library()


@register.filter
def money(cents: int, currency: str) -> str:
    """Format as `$12.00`, or `12.00 EUR` for other currencies."""
    whole, rest = divmod(abs(cents), 100)
    sign, amount = "−" if cents < 0 else "", f"{whole:,}.{rest:02d}"
    return f"{sign}${amount}" if currency == "usd" else f"{sign}{amount} {currency.upper()}"


@register.filter
def kind_name(kind: str) -> str:
    """Format `TOP_UP` as `Top-up`."""
    return kind.replace("_", "-").capitalize()


@register.simple_tag
def failed_events() -> int:
    """Count the Stripe events that failed."""
    return StripeEvent.objects.filter(state=StripeEvent.State.FAILED).count()
