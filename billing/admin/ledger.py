"""Read-only admin pages for usage, resets, the ledger and plan changes."""

from __future__ import annotations

from uuid import UUID

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from billing import pricing
from billing.admin.base import (
    USER_SEARCH_FIELDS,
    AccountRowsAdmin,
    BillingReadOnlyAdmin,
    format_cents,
    format_microdollars,
)
from billing.models import (
    LedgerAllocation,
    LedgerEntry,
    MonthlyUsage,
    PlanChange,
    UsageRecord,
    UsageReset,
    UsageWindow,
)


class CostSourceFilter(admin.SimpleListFilter):
    """Offer the known sources instead of querying the distinct values of a large table."""

    title = "cost source"
    parameter_name = "cost_source"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        return [(source, source.lower()) for source in pricing.COST_SOURCES]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Model]) -> QuerySet[Model]:
        return queryset.filter(cost_source=self.value()) if self.value() else queryset


@admin.register(UsageRecord)
class UsageRecordAdmin(AccountRowsAdmin):
    list_display = ["occurred_at", "user", "call", "cost", "notes"]
    list_filter = [CostSourceFilter, "aborted", "estimated"]
    list_select_related = ["account__user"]
    search_fields = USER_SEARCH_FIELDS
    search_help_text = "A full call ID, username or email address."
    ordering = ["-occurred_at"]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Model], search_term: str
    ) -> tuple[QuerySet[Model], bool]:
        try:
            return queryset.filter(call_id=UUID(search_term.strip())), False
        except ValueError:
            return super().get_search_results(request, queryset, search_term)

    @admin.display(empty_value="the platform")
    def user(self, record: UsageRecord) -> str | None:
        return record.account.user.get_username() if record.account else None

    def call(self, record: UsageRecord) -> str:
        return f"{record.provider} {record.model}, {record.purpose}"

    def cost(self, record: UsageRecord) -> str:
        return f"{format_microdollars(record.cost_microdollars)}, {record.cost_source.lower()}"

    def notes(self, record: UsageRecord) -> str:
        return ", ".join(name for name in ("estimated", "aborted") if getattr(record, name))


@admin.register(MonthlyUsage)
class MonthlyUsageAdmin(AccountRowsAdmin):
    list_display = ["month", "user", "provider", "model", "calls", "cost"]
    list_select_related = ["account__user"]
    search_fields = USER_SEARCH_FIELDS
    ordering = ["-id"]

    @admin.display(empty_value="the platform")
    def user(self, row: MonthlyUsage) -> str | None:
        return row.account.user.get_username() if row.account else None

    def cost(self, row: MonthlyUsage) -> str:
        return format_microdollars(row.cost_microdollars)


@admin.register(UsageWindow)
class UsageWindowAdmin(AccountRowsAdmin):
    list_display = ["starts_on", "kind", "user", "used", "updated_at"]
    list_filter = ["kind"]
    list_select_related = ["account__user"]
    search_fields = USER_SEARCH_FIELDS
    ordering = ["-starts_on", "-id"]

    def user(self, window: UsageWindow) -> str:
        return window.account.user.get_username()

    def used(self, window: UsageWindow) -> str:
        return format_microdollars(window.used_microdollars)


@admin.register(UsageReset)
class UsageResetAdmin(AccountRowsAdmin):
    list_display = ["created_at", "user", "kind", "state", "day_forgiven", "week_forgiven", "actor", "reason"]
    list_filter = ["kind", "state"]
    list_select_related = ["account__user", "actor"]
    search_fields = USER_SEARCH_FIELDS
    ordering = ["-created_at"]

    def user(self, reset: UsageReset) -> str:
        return reset.account.user.get_username()

    @admin.display(description="of the day")
    def day_forgiven(self, reset: UsageReset) -> str:
        return format_microdollars(reset.daily_forgiven_microdollars)

    @admin.display(description="of the week")
    def week_forgiven(self, reset: UsageReset) -> str:
        return format_microdollars(reset.weekly_forgiven_microdollars)


@admin.register(LedgerEntry)
class LedgerEntryAdmin(AccountRowsAdmin):
    list_display = ["created_at", "user", "kind", "amount", "balance_after", "reason", "expires_at", "actor"]
    list_filter = ["kind"]
    list_select_related = ["account__user", "actor"]
    search_fields = [*USER_SEARCH_FIELDS, "=idempotency_key", "=reference"]
    ordering = ["-id"]

    def user(self, entry: LedgerEntry) -> str:
        return entry.account.user.get_username()

    def amount(self, entry: LedgerEntry) -> str:
        return format_cents(entry.amount_cents)

    def balance_after(self, entry: LedgerEntry) -> str:
        return format_cents(entry.balance_after_cents)


@admin.register(LedgerAllocation)
class LedgerAllocationAdmin(BillingReadOnlyAdmin):
    list_display = ["id", "entry", "lot", "cents", "created_at"]
    list_select_related = ["entry", "lot"]
    search_fields = ["=entry__id", "=lot__id"]
    ordering = ["-id"]


@admin.register(PlanChange)
class PlanChangeAdmin(AccountRowsAdmin):
    list_display = ["created_at", "user", "kind", "from_tier", "to_tier", "state", "actor", "reason"]
    list_filter = ["kind", "state"]
    list_select_related = ["account__user", "actor"]
    search_fields = USER_SEARCH_FIELDS
    ordering = ["-created_at"]

    def user(self, change: PlanChange) -> str:
        return change.account.user.get_username()
