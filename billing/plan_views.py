"""The plan page: what there is, what one has, what is to come, and the way to change it (B17.2, B17.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from billing import plans, queries, redirects, subscriptions
from billing.errors import Refused
from billing.queries import PlanOffer, PlanState
from billing.subscriptions import Ways, Wish
from billing.visitors import user_id_of

Wanted = Literal["", "keep", "checkout", "upgrade", "downgrade", "cancel"]


@dataclass(frozen=True, kw_only=True)
class Card:
    """One plan: whether it is the user's, and what its button does (none: it has no button)."""

    offer: PlanOffer
    current: bool
    does: Wanted
    held: bool  # something is to come already: first decide about that


@login_required
@never_cache
@require_safe
def plan_page(request: HttpRequest) -> HttpResponse:
    user_id = user_id_of(request)
    state = queries.plan_state(user_id)
    offers = [offer for offer in queries.plan_offers() if offer.selectable or offer.tier == state.status.tier]
    cards = [_card(offer, state) for offer in offers]
    context = {
        "page": "plan",
        "state": state,
        "status": state.status,
        "cards": cards,
        "acts": any(card.does for card in cards),
        "changes": bool(state.status.pending_tier or state.unpaid_upgrade_url),
        "waits": "paid" in request.GET and state.checkout_open,
        "credits": queries.credits(user_id),
        "currency": settings.BILLING_CURRENCY,
    }
    return render(request, "billing/plan.html", context)


def _card(offer: PlanOffer, state: PlanState) -> Card:
    status = state.status
    waiting = bool(status.pending_tier or state.unpaid_upgrade_url)
    current = offer.tier == status.tier
    return Card(
        offer=offer,
        current=current,
        does=_does(offer, state) if not current else "keep" if waiting else "",
        held=waiting and not current,
    )


def _does(offer: PlanOffer, state: PlanState) -> Wanted:
    """What asking for another plan would lead to, as far as the page can tell; the answer decides."""
    status = state.status
    subscribed = status.status in ("active", "trialing", "past_due", "unpaid")
    if status.tier == "ENTERPRISE" or offer.tier not in plans.ASKABLE:
        return ""
    if offer.tier == "FREE":
        return "cancel"
    granted = state.granted_tier
    if not subscribed and granted and plans.rank(offer.tier) <= plans.rank(granted):
        return "upgrade" if plans.rank(offer.tier) > plans.rank(status.tier) else "downgrade"
    if not status.payments_enabled or status.status in ("past_due", "unpaid") or offer.tier not in state.sold:
        return ""
    if not subscribed:
        return "checkout"
    return "upgrade" if plans.rank(offer.tier) > plans.rank(status.tier) else "downgrade"


@login_required
@require_POST
def change(request: HttpRequest) -> HttpResponse:
    """A button of the page. Afterwards the page is read anew, whatever came of it."""
    tier = request.POST.get("tier", "")
    if tier not in plans.ASKABLE:
        return redirect("billing_plan")
    try:
        status = subscriptions.change(user_id_of(request), Wish(tier=tier, ways=own_ways()))
    except Refused as refusal:
        messages.error(request, refusal.message)
        return redirect("billing_plan")
    if status.url:
        return render(request, "billing/onward.html", {"url": status.url, "action": status.action})
    if not status.pending_tier:  # else the banner says it
        messages.success(request, _("You are on the plan %(tier)s.") % {"tier": status.tier.title()})
    return redirect("billing_plan")


def own_ways() -> Ways:
    page = redirects.plan_page()
    return Ways(success_url=f"{page}?paid", cancel_url=page)


@login_required
@never_cache
@require_http_methods(["GET", "POST"])
def portal(request: HttpRequest) -> HttpResponse:
    """Cards and invoices are looked after at Stripe (B15.3): by a button, or by the link of an e-mail, which stays good
    while Stripe's own addresses do not."""
    try:
        url = subscriptions.portal(user_id_of(request), return_url=redirects.plan_page())
    except Refused as refusal:
        messages.error(request, refusal.message)
        return redirect("billing_plan")
    return render(request, "billing/onward.html", {"url": url, "action": "portal"})
