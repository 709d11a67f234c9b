"""Template tag for the form that buys credits."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

from django import template
from django.conf import settings
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.template import Context

from billing import policies
from billing.models import TopUp
from billing.selectors import credit_statements, plan_status
from billing.top_ups import auto_top_ups

register = template.Library()
OFFERED_AMOUNTS_CENTS = (500, 1_000, 2_000, 5_000, 10_000)
MAX_SHOWN_AMOUNTS = 4


@register.inclusion_tag("billing/_top_up.html", takes_context=True)
def top_up_form(context: Context) -> dict[str, Any]:
    request: HttpRequest = context["request"]
    assert isinstance(request.user, User)
    policy = policies.get_rules().policy
    least, most = policy.top_up_min_cents, policy.top_up_max_cents
    automatic = auto_top_ups.get_auto_top_up(request.user.pk)
    return {
        "payments": plan_status.are_payments_enabled(),
        "amounts": [cents for cents in OFFERED_AMOUNTS_CENTS if least <= cents <= most][:MAX_SHOWN_AMOUNTS],
        "least": units(least),
        "most": units(most),
        "automatic": automatic,
        "threshold": units(automatic.threshold_cents or 500),
        "amount": units(automatic.amount_cents or max(least, 1_000)),
        "a_day": policy.auto_top_up_max_per_day,
        "bought": _find_returned_top_up(request),
        "key": uuid4(),
        "currency": settings.BILLING_CURRENCY,
        "csrf_token": context.get("csrf_token"),
    }


def _find_returned_top_up(request: HttpRequest) -> TopUp | None:
    """Return the top-up whose checkout the browser returns from."""
    try:
        top_up_id = UUID(request.GET.get("top_up", ""))
    except ValueError:
        return None
    return credit_statements.get_top_up(request.user.pk or 0, top_up_id)


@register.filter
def units(cents: int) -> str:
    """Format cents for a number field, such as `12.50`."""
    return f"{cents // 100}.{cents % 100:02d}" if cents % 100 else str(cents // 100)
