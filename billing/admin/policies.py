"""Admin pages for the limit policy, the tiers and the prices of models. Price ids are checked against Stripe."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.db import transaction
from django.db.models import Model
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from billing import plans, policies, pricing
from billing.admin.base import ReasonedChangeAdmin, ReasonModelForm, format_microdollars
from billing.errors import BillingRequestRefused
from billing.models import LimitPolicy, ModelPrice, Subscription, TierPolicy, UsageRecord
from billing.stripe import api_client, objects, payment_api
from billing.subscriptions.stripe_sync import ENDED_STATUS
from config.core.db import fetch_all


@dataclass(frozen=True)
class UsedModel:
    provider: str
    model: str


# Skips from one name to the next in the partial index, so that it takes one step per model, not per call.
_USED_MODELS_SQL = """
    WITH RECURSIVE name AS (
        (SELECT provider, model FROM billing_usagerecord WHERE {condition} ORDER BY provider, model LIMIT 1)
        UNION ALL
        SELECT following.provider, following.model FROM name CROSS JOIN LATERAL (
            SELECT provider, model FROM billing_usagerecord
            WHERE {condition} AND (provider, model) > (name.provider, name.model)
            ORDER BY provider, model LIMIT 1
        ) AS following
    )
    SELECT provider, model FROM name WHERE EXISTS (
        SELECT FROM billing_usagerecord AS record
        WHERE {condition} AND record.provider = name.provider AND record.model = name.model
          AND record.occurred_at >= %s
    )
"""


def list_models_of_unknown_cost(since: datetime) -> list[UsedModel]:
    return _list_used_models("cost_source = 'UNKNOWN'", since)


def list_unpriced_models(since: datetime) -> list[UsedModel]:
    """List models that were recently used without a price and still have none."""
    now, prices = timezone.now(), policies.get_prices()
    return [
        used
        for used in _list_used_models("price_id IS NULL", since)
        if used.model and pricing.find_price_in_force(prices, used.provider, used.model, now) is None
    ]


def _list_used_models(condition: str, since: datetime) -> list[UsedModel]:
    return fetch_all(UsedModel, _USED_MODELS_SQL.format(condition=condition), [since])


if TYPE_CHECKING:  # this class is not generic at runtime
    TypedPriceAdmin = admin.ModelAdmin[ModelPrice]
else:
    TypedPriceAdmin = admin.ModelAdmin

RECENT_PERIOD = timedelta(days=7)
PREVIEW_TOKENS = pricing.TokenCounts(input=1_000, output=1_000)


@admin.register(ModelPrice)
class ModelPriceAdmin(ReasonedChangeAdmin, TypedPriceAdmin):
    """A price that was used is superseded by a new row, never edited, so that old calls keep theirs."""

    list_display = ["provider", "model", "kind", "input_price", "output_price", "preview", "effective_from"]
    list_filter = ["provider", "kind"]
    search_fields = ["provider", "model"]
    ordering = ["provider", "model", "-effective_from"]
    readonly_fields = ["preview"]
    save_as = True
    change_list_template = "admin/billing/modelprice/change_list.html"

    @admin.display(description="1M input tokens")
    def input_price(self, row: ModelPrice) -> str:
        return format_microdollars(row.input_per_million_microdollars)

    @admin.display(description="1M output tokens")
    def output_price(self, row: ModelPrice) -> str:
        return format_microdollars(row.output_per_million_microdollars)

    @admin.display(description="1,000 in / 1,000 out")
    def preview(self, row: ModelPrice) -> str:
        if row.kind == ModelPrice.Kind.FLAT_RATE:
            return format_microdollars(0)
        return format_microdollars(
            pricing.compute_catalogue_microdollars(PREVIEW_TOKENS, policies.build_price(row))
        )

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, object] | None = None
    ) -> HttpResponse:
        since = timezone.now() - RECENT_PERIOD
        context = {
            "unpriced": list_unpriced_models(since),
            "unknown": list_models_of_unknown_cost(since),
            **(extra_context or {}),
        }
        return super().changelist_view(request, context)

    def has_change_permission(self, request: HttpRequest, obj: ModelPrice | None = None) -> bool:
        return super().has_change_permission(request, obj) and not _is_price_in_use(obj)

    def has_delete_permission(self, request: HttpRequest, obj: ModelPrice | None = None) -> bool:
        return False

    def save_model(
        self, request: HttpRequest, obj: ModelPrice, form: ModelForm[ModelPrice], change: bool
    ) -> None:
        super().save_model(request, obj, form, change)
        transaction.on_commit(policies.clear_policy_cache)


def _is_price_in_use(price: ModelPrice | None) -> bool:
    return price is not None and UsageRecord.objects.filter(price=price).exists()


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
