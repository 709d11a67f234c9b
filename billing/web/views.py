"""Billing's pages: usage, plan, history and top-ups. All of them work without JavaScript."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Literal
from urllib.parse import urlencode
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from billing import plans, redirects
from billing.errors import RESET_REFUSAL_MESSAGES, BillingRequestRefused
from billing.models import LedgerEntry, TopUp
from billing.selectors import credit_statements, plan_status, usage_status
from billing.selectors.credit_statements import StatementFilters
from billing.selectors.plan_status import PlanOffer, PlanPageState
from billing.selectors.usage_status import UsageStatus, WindowView
from billing.subscriptions import plan_changes, plan_checkouts
from billing.subscriptions.plan_changes import PlanChangeRequest
from billing.subscriptions.plan_checkouts import CheckoutUrls
from billing.top_ups import auto_top_ups, purchases
from billing.usage import resets
from billing.web.forms import AutoTopUpForm, KeyForm, PlanForm, TopUpForm


def get_user_id(request: HttpRequest) -> int:
    assert isinstance(request.user, User)  # guaranteed by login_required
    return request.user.pk


# --- Usage and history ---


@dataclass(frozen=True, kw_only=True)
class UsageBar:
    """A window as shown by its bar; `view` is None without a limit."""

    name: str
    view: WindowView | None


@login_required
@never_cache
@require_safe
def usage_page(request: HttpRequest) -> HttpResponse:
    now = timezone.now()
    status = usage_status.get_usage_status(get_user_id(request), now)
    shown = usage_status.build_usage_view(status, now)
    refusal = usage_status.find_reset_refusal(status, now)
    context = {
        "page": "usage",
        "tier": shown.tier.title(),
        "bars": [
            UsageBar(name=_("Today"), view=shown.daily),
            UsageBar(name=_("This week"), view=shown.weekly),
        ],
        "exhausted": status.daily.is_exhausted,
        "reset_cost_cents": shown.reset_cost_cents,
        "resets_left": shown.resets_left_today,
        "balance_cents": status.balance_cents,
        "left_cents": status.balance_cents - shown.reset_cost_cents,
        "can_reset": not refusal,
        "why_not": _explain_reset_refusal(refusal, status),
        "form": KeyForm(),
        "currency": settings.BILLING_CURRENCY,
    }
    return render(request, "billing/usage.html", context)


def _explain_reset_refusal(refusal: str, status: UsageStatus) -> str:
    """Return a sentence only where users would look for the button."""
    if not status.daily.is_exhausted or refusal in ("", "reset_not_available"):
        return ""
    if refusal == "insufficient_credits":
        return _("You don't have enough credits to reset it.")
    return str(RESET_REFUSAL_MESSAGES[refusal][1])


@login_required
@require_POST
def reset_usage(request: HttpRequest) -> HttpResponse:
    form = KeyForm.from_request(request)
    key = form.cleaned_data["key"] if form.is_valid() else ""
    try:
        resets.buy_usage_reset(get_user_id(request), key=key or None)
    except BillingRequestRefused as refusal:
        messages.error(request, refusal.message)
    else:
        messages.success(request, _("Daily limit reset. Waiting messages are being sent now."))
    return redirect("billing_usage")


@login_required
@never_cache
@require_safe
def history_page(request: HttpRequest) -> HttpResponse:
    user_id = get_user_id(request)
    filters = _parse_filters(request)
    filter_params = {
        name: value
        for name, value in (
            ("kind", filters.kind),
            ("since", filters.since and filters.since.isoformat()),
            ("until", filters.until and filters.until.isoformat()),
        )
        if value
    }
    try:
        page = credit_statements.get_statement(
            user_id, filters=filters, cursor=request.GET.get("cursor", "")[:100]
        )
    except BillingRequestRefused:
        return redirect("billing_history")
    context = {
        "page": "history",
        "credits": credit_statements.get_credits(user_id),
        "statement": page,
        "filters": filters,
        "kinds": LedgerEntry.Kind.choices,
        "asked": urlencode(filter_params),
        "older": urlencode({**filter_params, "cursor": page.next}) if page.next else "",
        "top_ups": credit_statements.list_top_ups(user_id),
        "has_portal": plan_status.has_portal_access(user_id),
        "currency": settings.BILLING_CURRENCY,
    }
    return render(request, "billing/history.html", context)


def _parse_filters(request: HttpRequest) -> StatementFilters:
    """Ignore values that are not valid."""
    kind = request.GET.get("kind", "")
    return StatementFilters(
        kind=kind if kind in LedgerEntry.Kind.values else "",
        since=_parse_day(request.GET.get("since", "")),
        until=_parse_day(request.GET.get("until", "")),
    )


def _parse_day(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


# --- Plan ---

PlanButton = Literal["", "keep", "checkout", "upgrade", "downgrade", "cancel"]


@dataclass(frozen=True, kw_only=True)
class PlanCard:
    """One plan on the page, and what its button does ("" if it has none)."""

    offer: PlanOffer
    current: bool
    does: PlanButton
    held: bool  # a pending change must be resolved first


@login_required
@never_cache
@require_safe
def plan_page(request: HttpRequest) -> HttpResponse:
    return _render_plan(request)


def _render_plan(
    request: HttpRequest, *, top_up: TopUpForm | None = None, auto: AutoTopUpForm | None = None
) -> HttpResponse:
    user_id = get_user_id(request)
    state = plan_status.get_plan_state(user_id)
    offers = [
        offer
        for offer in plan_status.list_plan_offers()
        if offer.selectable or offer.tier == state.status.tier
    ]
    cards = [_build_plan_card(offer, state) for offer in offers]
    context = {
        "page": "plan",
        "state": state,
        "status": state.status,
        "cards": cards,
        "acts": any(card.does for card in cards),
        "changes": bool(state.status.pending_tier or state.unpaid_upgrade_url),
        "waits": "paid" in request.GET and state.checkout_open,
        "credits": credit_statements.get_credits(user_id),
        "currency": settings.BILLING_CURRENCY,
        **_build_top_up_context(request, top_up, auto),
    }
    refused = top_up or auto
    return render(request, "billing/plan.html", context, status=refused.status if refused else 200)


def _build_top_up_context(
    request: HttpRequest, top_up: TopUpForm | None, auto: AutoTopUpForm | None
) -> dict[str, object]:
    automatic = auto_top_ups.get_auto_top_up(get_user_id(request))
    return {
        "payments": plan_status.are_payments_enabled(),
        "top_up_form": top_up or TopUpForm(),
        "automatic": automatic,
        "auto_form": auto or AutoTopUpForm(saved=automatic),
        "bought": _find_returned_top_up(request),
    }


def _find_returned_top_up(request: HttpRequest) -> TopUp | None:
    """Return the top-up whose checkout the browser returns from."""
    try:
        top_up_id = UUID(request.GET.get("top_up", ""))
    except ValueError:
        return None
    return credit_statements.get_top_up(get_user_id(request), top_up_id)


def _build_plan_card(offer: PlanOffer, state: PlanPageState) -> PlanCard:
    status = state.status
    waiting = bool(status.pending_tier or state.unpaid_upgrade_url)
    current = offer.tier == status.tier
    return PlanCard(
        offer=offer,
        current=current,
        does=_choose_button(offer, state) if not current else "keep" if waiting else "",
        held=waiting and not current,
    )


def _choose_button(offer: PlanOffer, state: PlanPageState) -> PlanButton:
    """Predict what choosing this plan would do; the server decides when it is clicked."""
    status = state.status
    subscribed = status.status in ("active", "trialing", "past_due", "unpaid")
    if status.tier == "ENTERPRISE" or offer.tier not in plans.REQUESTABLE_TIERS:
        return ""
    if offer.tier == "FREE":
        return "cancel"
    granted = state.granted_tier
    if not subscribed and granted and plans.get_tier_rank(offer.tier) <= plans.get_tier_rank(granted):
        return (
            "upgrade" if plans.get_tier_rank(offer.tier) > plans.get_tier_rank(status.tier) else "downgrade"
        )
    if not status.payments_enabled or status.status in ("past_due", "unpaid") or offer.tier not in state.sold:
        return ""
    if not subscribed:
        return "checkout"
    return "upgrade" if plans.get_tier_rank(offer.tier) > plans.get_tier_rank(status.tier) else "downgrade"


@login_required
@require_POST
def submit_plan_change(request: HttpRequest) -> HttpResponse:
    """Change the plan and redirect back to the page, whatever the outcome."""
    form = PlanForm.from_request(request)
    if not form.is_valid():
        return redirect("billing_plan")
    try:
        status = plan_changes.change_plan(
            get_user_id(request), PlanChangeRequest(tier=form.cleaned_data["tier"], urls=build_own_urls())
        )
    except BillingRequestRefused as refusal:
        messages.error(request, refusal.message)
        return redirect("billing_plan")
    if status.url:
        return render(request, "billing/onward.html", {"url": status.url, "action": status.action})
    if not status.pending_tier:  # otherwise the banner shows it
        messages.success(request, _("You're on the %(tier)s plan.") % {"tier": status.tier.title()})
    return redirect("billing_plan")


def build_own_urls() -> CheckoutUrls:
    page = redirects.get_plan_page_url()
    return CheckoutUrls(success_url=f"{page}?paid", cancel_url=page)


@login_required
@never_cache
@require_http_methods(["GET", "POST"])
def redirect_to_portal(request: HttpRequest) -> HttpResponse:
    """Open Stripe's portal, from a button or an email link. Our link stays valid while Stripe's expire."""
    try:
        url = plan_checkouts.open_portal(get_user_id(request), return_url=redirects.get_plan_page_url())
    except BillingRequestRefused as refusal:
        messages.error(request, refusal.message)
        return redirect("billing_plan")
    return render(request, "billing/onward.html", {"url": url, "action": "portal"})


# --- Top-ups ---


@login_required
@require_POST
def buy_credits(request: HttpRequest) -> HttpResponse:
    form = TopUpForm.from_request(request)
    if form.is_valid():
        with form.refusals_as_errors():
            top_up = _start_top_up(request, form)
            if not top_up.checkout_url:  # an old page, submitted before: show what became of that top-up
                return redirect(f"{reverse('billing_plan')}?top_up={top_up.pk}#credits")
            return render(request, "billing/onward.html", {"url": top_up.checkout_url, "action": "checkout"})
    return _render_plan(request, top_up=form)


def _start_top_up(request: HttpRequest, form: TopUpForm) -> TopUp:
    page, key, cents = redirects.get_plan_page_url(), form.cleaned_data["key"], form.get_amount_cents()
    purchase = purchases.TopUpPurchase(
        amount_cents=cents,
        success_url=f"{page}?top_up={{top_up}}#credits",
        cancel_url=page,
        save_card=form.cleaned_data["save_card"],
    )
    return purchases.start_top_up(get_user_id(request), purchase, key=f"page:{key}:{cents}" if key else None)


@login_required
@require_POST
def save_auto_top_up(request: HttpRequest) -> HttpResponse:
    user_id = get_user_id(request)
    form = AutoTopUpForm.from_request(request, saved=auto_top_ups.get_auto_top_up(user_id))
    if form.is_valid():
        with form.refusals_as_errors():
            enabled = auto_top_ups.configure_auto_top_up(user_id, form.build_request()).enabled
            messages.success(
                request, _("Automatic top-ups are on.") if enabled else _("Automatic top-ups are off.")
            )
            return redirect("billing_plan")
    return _render_plan(request, auto=form)
