"""The buttons around credit: buy some, let it buy itself (B17.2). Afterwards the page is read anew, whatever came of it."""

from __future__ import annotations

import re
from decimal import Decimal

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from billing import payments, redirects
from billing.errors import Refused
from billing.visitors import key_of, user_id_of

AMOUNT = re.compile(r"[0-9]{1,9}(?:[.,][0-9]{1,4})?")  # no exponents: `1e99999` has a hundred thousand digits


@login_required
@require_POST
def buy(request: HttpRequest) -> HttpResponse:
    """One of the amounts shown, or another one; the page's key makes two clicks one purchase."""
    page = redirects.plan_page()
    purchase = payments.Purchase(
        amount_cents=cents_of(request.POST.get("other") or request.POST.get("amount", "")),
        success_url=f"{page}?top_up={{top_up}}#credits",
        cancel_url=page,
        save_card="save_card" in request.POST,
    )
    key = key_of(request)
    try:
        top_up = payments.buy(
            user_id_of(request), purchase, key=f"page:{key}:{purchase.amount_cents}" if key else None
        )
    except Refused as refusal:
        messages.error(request, refusal.message)
        return redirect("billing_plan")
    if not top_up.checkout_url:  # a page of long ago, used before: it says what became of that
        return redirect(f"{reverse('billing_plan')}?top_up={top_up.pk}#credits")
    return render(request, "billing/onward.html", {"url": top_up.checkout_url, "action": "checkout"})


@login_required
@require_POST
def automate(request: HttpRequest) -> HttpResponse:
    enabled = request.POST.get("enabled") == "yes"
    wish = payments.Wish(
        enabled=enabled,
        threshold_cents=cents_of(request.POST.get("threshold", "")),
        amount_cents=cents_of(request.POST.get("amount", "")),
        consent="consent" in request.POST,
    )
    try:
        payments.configure(user_id_of(request), wish)
    except Refused as refusal:
        messages.error(request, refusal.message)
    else:
        messages.success(
            request, _("Automatic top-ups are on.") if enabled else _("Automatic top-ups are off.")
        )
    return redirect("billing_plan")


def cents_of(text: str) -> int:
    """`12.50` and `12,50` are 1250; what is no amount is 0, which nothing sells."""
    if not AMOUNT.fullmatch(text.strip()):
        return 0
    amount = Decimal(text.strip().replace(",", ".")) * 100
    return int(amount) if amount == amount.to_integral_value() else 0
