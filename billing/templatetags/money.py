"""Template filters that format amounts and ledger kinds."""

from __future__ import annotations

from django import template

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
