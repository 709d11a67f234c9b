"""Admin pages for the limit policy and the tiers. Price ids are checked against Stripe."""

from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.db import transaction
from django.db.models import Model
from django.forms import ModelForm
from django.http import HttpRequest

from billing import plans, policies
from billing.admin.base import ReasonedChangeAdmin, ReasonModelForm, format_microdollars
from billing.errors import BillingRequestRefused
from billing.models import LimitPolicy, Subscription, TierPolicy
from billing.stripe import api_client, objects, payment_api
from billing.subscriptions.stripe_sync import ENDED_STATUS

PRICE_LOOKUP_TIMEOUT_SECONDS = 10.0


class FixedRowsAdmin(ReasonedChangeAdmin):
    """Rows that always exist: they can be changed but not added or deleted."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Model, form: ModelForm[Model], change: bool) -> None:
        super().save_model(request, obj, form, change)
        policies.clear_policy_cache()
        self.message_user(request, f"Limits now: {_describe_limits()}.", messages.INFO)
        transaction.on_commit(policies.clear_policy_cache)


@admin.register(LimitPolicy)
class LimitPolicyAdmin(FixedRowsAdmin):
    list_display = ["__str__", "daily_base", "weekly_base", "unknown_cost", "payments_enabled"]

    @admin.display(description="daily base")
    def daily_base(self, row: LimitPolicy) -> str:
        return format_microdollars(row.daily_base_microdollars)

    @admin.display(description="weekly base")
    def weekly_base(self, row: LimitPolicy) -> str:
        return format_microdollars(row.weekly_base_microdollars)


class TierPolicyForm(ReasonModelForm):
    """Check the price id at Stripe and take the monthly amount from there."""

    class Meta:
        model = TierPolicy
        exclude = ()

    def clean_stripe_price_id(self) -> str | None:
        wanted: str | None = self.cleaned_data["stripe_price_id"] or None
        before = self.instance.stripe_price_id
        if wanted == before:
            return wanted
        running = Subscription.objects.filter(price_id=before).exclude(status=ENDED_STATUS)
        if before and running.exists():
            raise forms.ValidationError(
                f"{running.count()} subscriptions still use {before}, so it can't be changed."
            )
        return wanted

    def clean(self) -> dict[str, Any] | None:
        cleaned = super().clean()
        price_id = self.cleaned_data.get("stripe_price_id")
        if price_id and settings.STRIPE_SECRET_KEY and not self.errors:
            self._check_price(price_id)
        return cleaned

    def _check_price(self, price_id: str) -> None:
        try:
            price = payment_api.get_price(
                api_client.start_request_deadline(PRICE_LOOKUP_TIMEOUT_SECONDS), price_id
            )
        except BillingRequestRefused as problem:
            self.add_error("stripe_price_id", problem.message)
            return
        problem_text = _find_price_problem(price)
        if problem_text or price is None:
            self.add_error("stripe_price_id", problem_text)
        else:
            self.cleaned_data["monthly_cents"] = price.unit_amount_cents


def _find_price_problem(price: objects.StripePrice | None) -> str:
    if price is None:
        return "Stripe doesn't know this price ID."
    if not price.active:
        return "This price isn't active at Stripe."
    if not price.is_monthly or price.unit_amount_cents is None:
        return "Use a price with one fixed amount per month."
    if price.currency != settings.BILLING_CURRENCY:
        return f"This price is in {price.currency}, not in {settings.BILLING_CURRENCY}."
    return ""


@admin.register(TierPolicy)
class TierPolicyAdmin(FixedRowsAdmin):
    form = TierPolicyForm
    list_display = ["tier", "multiplier", "turns_at_once", "monthly_cents", "trial_days", "selectable"]
    readonly_fields = ["tier"]
    ordering = ["multiplier"]


def _describe_limits() -> str:
    rules = policies.get_rules()
    pairs = {tier: rules.get_limits_microdollars(plans.Entitlement(tier=tier)) for tier in plans.TIERS}
    return "; ".join(
        f"{tier} {' / '.join(format_microdollars(limit) if limit else 'no limit' for limit in pair)}"
        for tier, pair in pairs.items()
    )
