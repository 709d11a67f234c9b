"""Admin page for the price catalogue. Rows are added and superseded, and models without a price are listed."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from django.contrib import admin
from django.db import transaction
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from billing import policies, pricing
from billing.admin.base import ReasonedChangeAdmin, format_microdollars
from billing.models import ModelPrice, UsageRecord
from billing.selectors import unpriced_models

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
            "unpriced": unpriced_models.list_unpriced_models(since),
            "unknown": unpriced_models.list_models_of_unknown_cost(since),
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
