"""Staff pages of billing: policy, tiers and prices are written here; use is only looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from django.contrib import admin
from django.db import transaction
from django.db.models import Model, QuerySet
from django.forms import ModelForm
from django.http import HttpRequest

from billing import accounts, queries
from billing.models import Account, LimitPolicy, ModelPrice, TierPolicy, UsageRecord, UsageWindow

if TYPE_CHECKING:  # Django's own class takes no parameter when it runs
    AnyAdmin = admin.ModelAdmin[Model]
    PriceAdmin = admin.ModelAdmin[ModelPrice]
    UserAccountAdmin = admin.ModelAdmin[Account]
else:
    AnyAdmin = PriceAdmin = UserAccountAdmin = admin.ModelAdmin


def dollars(microdollars: int | None) -> str:
    """`$1.234567 (1,234,567)`: for people first, the stored number beside it."""
    if microdollars is None:
        return "-"
    whole, rest = divmod(microdollars, 1_000_000)
    return f"${whole:,}.{rest:06d} ({microdollars:,})"


class ViewOnly(AnyAdmin):
    """What code alone writes is looked at here, even by superusers (B18.4)."""

    show_full_result_count = False  # counting a large table costs more than it tells

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


class PolicyAdmin(AnyAdmin):
    """Rows that are always there: changed, never added or deleted; this process acts on a change at once."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Model, form: ModelForm[Model], change: bool) -> None:
        super().save_model(request, obj, form, change)
        transaction.on_commit(queries.forget_policy)


@admin.register(LimitPolicy)
class LimitPolicyAdmin(PolicyAdmin):
    list_display = ["__str__", "daily_base", "weekly_base", "unknown_cost", "payments_enabled"]

    @admin.display(description="daily base")
    def daily_base(self, row: LimitPolicy) -> str:
        return dollars(row.daily_base_microdollars)

    @admin.display(description="weekly base")
    def weekly_base(self, row: LimitPolicy) -> str:
        return dollars(row.weekly_base_microdollars)


@admin.register(TierPolicy)
class TierPolicyAdmin(PolicyAdmin):
    list_display = ["tier", "multiplier", "monthly_cents", "trial_days", "selectable"]
    readonly_fields = ["tier"]
    ordering = ["multiplier"]


@admin.register(ModelPrice)
class ModelPriceAdmin(PriceAdmin):
    """A price in use is superseded by a new row, not edited: old calls keep theirs."""

    list_display = ["provider", "model", "kind", "input_price", "output_price", "effective_from"]
    list_filter = ["provider", "kind"]
    search_fields = ["provider", "model"]
    ordering = ["provider", "model", "-effective_from"]
    save_as = True

    @admin.display(description="1M input tokens")
    def input_price(self, row: ModelPrice) -> str:
        return dollars(row.input_per_million_microdollars)

    @admin.display(description="1M output tokens")
    def output_price(self, row: ModelPrice) -> str:
        return dollars(row.output_per_million_microdollars)

    def has_change_permission(self, request: HttpRequest, obj: ModelPrice | None = None) -> bool:
        return super().has_change_permission(request, obj) and not _in_use(obj)

    def has_delete_permission(self, request: HttpRequest, obj: ModelPrice | None = None) -> bool:
        return super().has_delete_permission(request, obj) and not _in_use(obj)

    def save_model(
        self, request: HttpRequest, obj: ModelPrice, form: ModelForm[ModelPrice], change: bool
    ) -> None:
        super().save_model(request, obj, form, change)
        transaction.on_commit(queries.forget_policy)


def _in_use(price: ModelPrice | None) -> bool:
    return price is not None and UsageRecord.objects.filter(price=price).exists()


@admin.register(Account)
class AccountAdmin(UserAccountAdmin):
    """Only the two overrides are set by hand; the rest has writers of its own."""

    list_display = ["user", "tier", "granted_tier", "daily_override", "weekly_override", "created_at"]
    list_filter = ["tier"]
    list_select_related = ["user"]
    search_fields = ["user__email", "user__username", "=user__id", "=stripe_customer_id"]
    readonly_fields = [
        "user",
        "tier",
        "granted_tier",
        "credit_balance_cents",
        "debt_cents",
        "stripe_customer_id",
        "trial_used_at",
        "created_at",
    ]
    fields = ["daily_limit_override_microdollars", "weekly_limit_override_microdollars", *readonly_fields]

    @admin.display(description="daily override")
    def daily_override(self, account: Account) -> str:
        return dollars(account.daily_limit_override_microdollars)

    @admin.display(description="weekly override")
    def weekly_override(self, account: Account) -> str:
        return dollars(account.weekly_limit_override_microdollars)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Account | None = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Account, form: ModelForm[Account], change: bool) -> None:
        accounts.set_overrides(
            obj.pk,
            daily_limit_microdollars=obj.daily_limit_override_microdollars,
            weekly_limit_microdollars=obj.weekly_limit_override_microdollars,
        )


@admin.register(UsageRecord)
class UsageRecordAdmin(ViewOnly):
    list_display = ["occurred_at", "user", "provider", "model", "purpose", "cost", "cost_source", "aborted"]
    list_filter = ["cost_source", "provider", "aborted", "estimated"]
    list_select_related = ["account__user"]
    search_fields = ["=account__user__username", "=account__user__email"]
    search_help_text = "Call id, user name or e-mail, in full."
    ordering = ["-occurred_at"]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Model], search_term: str
    ) -> tuple[QuerySet[Model], bool]:
        """A call id is looked up by its index, which the usual search would not use."""
        try:
            return queryset.filter(call_id=UUID(search_term.strip())), False
        except ValueError:
            return super().get_search_results(request, queryset, search_term)

    @admin.display(empty_value="the platform")
    def user(self, record: UsageRecord) -> str | None:
        return record.account.user.get_username() if record.account else None

    @admin.display(ordering="cost_microdollars")
    def cost(self, record: UsageRecord) -> str:
        return dollars(record.cost_microdollars)


@admin.register(UsageWindow)
class UsageWindowAdmin(ViewOnly):
    list_display = ["starts_on", "kind", "user", "used", "updated_at"]
    list_filter = ["kind"]
    list_select_related = ["account__user"]
    search_fields = ["=account__user__username", "=account__user__email"]
    ordering = ["-starts_on", "kind"]

    def user(self, window: UsageWindow) -> str:
        return window.account.user.get_username()

    @admin.display(ordering="used_microdollars")
    def used(self, window: UsageWindow) -> str:
        return dollars(window.used_microdollars)
