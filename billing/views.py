"""Billing's pages: what is used, which plan, and where the credits went (B17). They work without a script."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from urllib.parse import urlencode
from uuid import uuid4

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from billing import queries, usage
from billing.errors import RESET_REFUSALS, Refused
from billing.models import LedgerEntry
from billing.queries import Filters, Standing, WindowView
from billing.visitors import key_of, user_id_of


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A window as its bar shows it; without a limit there is none."""

    name: str
    view: WindowView | None


@login_required
@never_cache
@require_safe
def usage_page(request: HttpRequest) -> HttpResponse:
    now = timezone.now()
    stands = queries.standing(user_id_of(request), now)
    shown = queries.usage_of(stands, now)
    refusal = queries.reset_refusal(stands, now)
    context = {
        "page": "usage",
        "tier": shown.tier.title(),
        "bars": [Bar(name=_("Today"), view=shown.daily), Bar(name=_("This week"), view=shown.weekly)],
        "exhausted": stands.daily.exhausted,
        "reset_cost_cents": shown.reset_cost_cents,
        "resets_left": shown.resets_left_today,
        "balance_cents": stands.balance_cents,
        "left_cents": stands.balance_cents - shown.reset_cost_cents,
        "can_reset": not refusal,
        "why_not": _why_not(refusal, stands),
        "key": uuid4(),
        "currency": settings.BILLING_CURRENCY,
    }
    return render(request, "billing/usage.html", context)


def _why_not(refusal: str, stands: Standing) -> str:
    """Worth a sentence only where somebody would look for the button."""
    if not stands.daily.exhausted or refusal in ("", "reset_not_available"):
        return ""
    if refusal == "insufficient_credits":
        return _("You do not have enough credits to reset it.")
    return str(RESET_REFUSALS[refusal][1])


@login_required
@require_POST
def reset(request: HttpRequest) -> HttpResponse:
    """The button of the usage page, for those without a script."""
    try:
        usage.reset(user_id_of(request), key=key_of(request) or None)
    except Refused as refusal:
        messages.error(request, refusal.message)
    else:
        messages.success(request, _("Your daily limit was reset. Messages that waited go out now."))
    return redirect("billing_usage")


@login_required
@never_cache
@require_safe
def history_page(request: HttpRequest) -> HttpResponse:
    user_id = user_id_of(request)
    filters = _filters(request)
    asked = {
        name: value
        for name, value in (
            ("kind", filters.kind),
            ("since", filters.since and filters.since.isoformat()),
            ("until", filters.until and filters.until.isoformat()),
        )
        if value
    }
    try:
        page = queries.statement(user_id, filters=filters, cursor=request.GET.get("cursor", "")[:100])
    except Refused:
        return redirect("billing_history")
    context = {
        "page": "history",
        "credits": queries.credits(user_id),
        "statement": page,
        "filters": filters,
        "kinds": LedgerEntry.Kind.choices,
        "asked": urlencode(asked),
        "older": urlencode({**asked, "cursor": page.next}) if page.next else "",
        "top_ups": queries.top_ups(user_id),
        "has_portal": queries.has_portal(user_id),
        "currency": settings.BILLING_CURRENCY,
    }
    return render(request, "billing/history.html", context)


def _filters(request: HttpRequest) -> Filters:
    """What is not understood is not asked for."""
    kind = request.GET.get("kind", "")
    return Filters(
        kind=kind if kind in LedgerEntry.Kind.values else "",
        since=_day(request.GET.get("since", "")),
        until=_day(request.GET.get("until", "")),
    )


def _day(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None
