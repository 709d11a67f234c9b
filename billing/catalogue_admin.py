"""The price catalogue for staff: rows are added and superseded, and models without one are named (B18.2)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from django.contrib import admin
from django.db import transaction
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from billing import policies, pricing, queries
from billing.asking import ReasonedChange
from billing.models import ModelPrice, UsageRecord
from billing.showing import dollars

if TYPE_CHECKING:  # Django's own class takes no parameter when it runs
    PriceAdmin = admin.ModelAdmin[ModelPrice]
else:
    PriceAdmin = admin.ModelAdmin

RECENTLY = timedelta(days=7)
PREVIEW = pricing.Tokens(input=1_000, output=1_000)


@admin.register(ModelPrice)
class ModelPriceAdmin(ReasonedChange, PriceAdmin):
    """A price in use is superseded by a new row, not edited: old calls keep theirs."""

    list_display = ["provider", "model", "kind", "input_price", "output_price", "preview", "effective_from"]
    list_filter = ["provider", "kind"]
    search_fields = ["provider", "model"]
    ordering = ["provider", "model", "-effective_from"]
    readonly_fields = ["preview"]
    save_as = True
    change_list_template = "admin/billing/modelprice/change_list.html"

    @admin.display(description="1M input tokens")
    def input_price(self, row: ModelPrice) -> str:
        return dollars(row.input_per_million_microdollars)

    @admin.display(description="1M output tokens")
    def output_price(self, row: ModelPrice) -> str:
        return dollars(row.output_per_million_microdollars)

    @admin.display(description="1,000 in / 1,000 out")
    def preview(self, row: ModelPrice) -> str:
        if row.kind == ModelPrice.Kind.FLAT_RATE:
            return dollars(0)
        return dollars(pricing.catalogue_microdollars(PREVIEW, policies.price_of(row)))

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, object] | None = None
    ) -> HttpResponse:
        since = timezone.now() - RECENTLY
        context = {
            "unpriced": queries.unpriced_models(since),
            "unknown": queries.models_of_unknown_cost(since),
            **(extra_context or {}),
        }
        return super().changelist_view(request, context)

    def has_change_permission(self, request: HttpRequest, obj: ModelPrice | None = None) -> bool:
        return super().has_change_permission(request, obj) and not _in_use(obj)

    def has_delete_permission(self, request: HttpRequest, obj: ModelPrice | None = None) -> bool:
        """Nobody: a mistake is changed while nothing was priced by it, and superseded afterwards."""
        return False

    def save_model(
        self, request: HttpRequest, obj: ModelPrice, form: ModelForm[ModelPrice], change: bool
    ) -> None:
        super().save_model(request, obj, form, change)
        transaction.on_commit(policies.forget)


def _in_use(price: ModelPrice | None) -> bool:
    return price is not None and UsageRecord.objects.filter(price=price).exists()
