"""Admin pages for accounts, with the actions staff can take on them; every action asks for a reason."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, time
from typing import TYPE_CHECKING, Any
from uuid import uuid4, uuid5

from django import forms
from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from billing import accounts, ledger, plans, policies
from billing.admin.base import (
    FastListAdmin,
    ReasonedActionAdmin,
    ReasonForm,
    format_cents,
    format_microdollars,
)
from billing.models import TIER_CHOICES, Account, PlanChange, Subscription, UsageReset, UsageWindow
from billing.selectors import plan_status
from billing.stripe import api_client
from billing.subscriptions import account_tiers, stripe_sync
from billing.usage import resets

if TYPE_CHECKING:  # these classes are not generic at runtime
    TypedAccountForm = forms.ModelForm[Account]
    TypedInline = admin.TabularInline[Any, Account]
else:
    TypedAccountForm, TypedInline = forms.ModelForm, admin.TabularInline

SYNC_TIMEOUT_SECONDS = 10.0  # per account, because staff wait for the page
MAX_ID_DIGITS = 9
MAX_LIMIT_MICRODOLLARS = 2**53  # nine billion dollars; the largest integer that Lua in Redis stores exactly
RECENT_ROWS = 10  # per inline on the account page


class SetTierForm(ReasonForm):
    tier = forms.ChoiceField(choices=TIER_CHOICES)
    field_order = ["tier", "reason"]


class LimitOverridesForm(ReasonForm):
    daily_limit_microdollars = forms.IntegerField(
        min_value=0,
        max_value=MAX_LIMIT_MICRODOLLARS,
        required=False,
        help_text="Empty = by tier, 0 = unlimited.",
    )
    weekly_limit_microdollars = forms.IntegerField(
        min_value=0,
        max_value=MAX_LIMIT_MICRODOLLARS,
        required=False,
        help_text="Empty = by tier, 0 = unlimited.",
    )
    field_order = ["daily_limit_microdollars", "weekly_limit_microdollars", "reason"]


class GrantCreditsForm(ReasonForm):
    cents = forms.IntegerField(min_value=1, max_value=10_000_000)
    expires_on = forms.DateField(
        required=False, widget=forms.DateInput(attrs={"type": "date"}), help_text="Empty = never."
    )
    key = forms.UUIDField(
        widget=forms.HiddenInput, initial=uuid4
    )  # submitting the same form twice grants once
    field_order = ["cents", "expires_on", "reason"]


class AccountForm(TypedAccountForm):
    reason = forms.CharField(max_length=500, required=False, help_text="Required when you change a limit.")

    class Meta:
        model = Account
        fields = ["daily_limit_override_microdollars", "weekly_limit_override_microdollars"]

    def clean(self) -> dict[str, Any] | None:
        cleaned = super().clean()
        if set(self.changed_data) - {"reason"} and not self.cleaned_data.get("reason"):
            self.add_error("reason", "Enter a reason.")
        return cleaned


class ReadOnlyInline(TypedInline):
    extra = 0
    can_delete = False
    show_change_link = False

    def has_add_permission(self, request: HttpRequest, obj: Account | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Account | None = None) -> bool:
        return False


class SubscriptionInline(ReadOnlyInline):
    model = Subscription
    readonly_fields = [
        "status",
        "tier",
        "period_end",
        "cancel_at_period_end",
        "schedule_id",
        "trial_end",
        "grace_until",
    ]
    fields = [*readonly_fields]


class RecentRowsInline(ReadOnlyInline):
    """Show only the most recent rows of the account."""

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request)
        match = request.resolver_match
        of_account = rows.filter(account=match.kwargs.get("object_id") if match else None)
        return rows.filter(pk__in=of_account.order_by("-created_at").values("pk")[:RECENT_ROWS])


class UsageResetInline(RecentRowsInline):
    model = UsageReset
    ordering = ["-created_at"]
    verbose_name_plural = "last resets"
    readonly_fields = [
        "created_at",
        "kind",
        "state",
        "daily_forgiven_microdollars",
        "weekly_forgiven_microdollars",
        "actor",
        "reason",
    ]
    fields = [*readonly_fields]


class PlanChangeInline(RecentRowsInline):
    model = PlanChange
    ordering = ["-created_at"]
    verbose_name_plural = "last plan changes"
    readonly_fields = ["created_at", "kind", "from_tier", "to_tier", "state", "error", "actor", "reason"]
    fields = [*readonly_fields]


@admin.register(Account)
class AccountAdmin(ReasonedActionAdmin, FastListAdmin):
    form = AccountForm
    list_display = [
        "user", "tier", "granted_tier", "day_use", "week_use", "balance", "subscription_status", "grace",
    ]  # fmt: skip
    list_filter = ["tier"]
    list_select_related = ["user", "subscription"]
    search_fields = ["user__email", "user__username"]
    search_help_text = "Part of an email address or username, or a full user ID or customer ID."
    readonly_fields = [
        "user", "tier", "granted_tier", "day_use", "week_use", "balance", "debt", "stripe_customer_id",
        "trial_used_at", "pending_change", "created_at",
    ]  # fmt: skip
    fields = [
        "daily_limit_override_microdollars", "weekly_limit_override_microdollars", "reason", *readonly_fields
    ]  # fmt: skip
    inlines = [SubscriptionInline, UsageResetInline, PlanChangeInline]
    actions = ["set_tier", "set_overrides", "reset_day", "reset_day_and_week", "grant_credits", "sync_now"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Account]:
        now = timezone.now()
        used = {
            name: Subquery(
                UsageWindow.objects.filter(
                    account=OuterRef("pk"), kind=window.kind, starts_on=window.starts_on
                ).values("used_microdollars")
            )
            for name, window in (
                ("day_used", plans.get_day_window(now)),
                ("week_used", plans.get_week_window(now)),
            )
        }
        rows: QuerySet[Account] = super().get_queryset(request).annotate(**used)
        return rows

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Look up full ids by index, and create the account of a user found by full id or email."""
        term = search_term.strip()
        if term.startswith("cus_"):
            return queryset.filter(stripe_customer_id=term), False
        if term.isdecimal() and len(term) <= MAX_ID_DIGITS:
            accounts.create_missing_accounts(User.objects.filter(pk=int(term)))
            return queryset.filter(user_id=int(term)), False
        if "@" in term:
            accounts.create_missing_accounts(User.objects.filter(email__iexact=term))
        return super().get_search_results(request, queryset, term)

    @admin.display(description="today")
    def day_use(self, account: Account) -> str:
        return _format_usage(account, 0)

    @admin.display(description="this week")
    def week_use(self, account: Account) -> str:
        return _format_usage(account, 1)

    @admin.display(description="credits", ordering="credit_balance_cents")
    def balance(self, account: Account) -> str:
        return format_cents(account.credit_balance_cents)

    @admin.display(description="debt")
    def debt(self, account: Account) -> str:
        return format_cents(account.debt_cents)

    @admin.display(description="subscription")
    def subscription_status(self, account: Account) -> str:
        return account.subscription.status if hasattr(account, "subscription") else "-"

    @admin.display(description="grace until")
    def grace(self, account: Account) -> datetime | None:
        return account.subscription.grace_until if hasattr(account, "subscription") else None

    @admin.display(description="pending change")
    def pending_change(self, account: Account) -> str:
        status = plan_status.get_subscription_status(account.user_id)
        if status.pending_unknown:
            return "unknown (Stripe did not answer)"
        return f"{status.pending_tier} on {status.pending_tier_effective_at}" if status.pending_tier else "-"

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Account | None = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Account, form: Any, change: bool) -> None:
        accounts.set_limit_overrides(
            obj.pk,
            daily_limit_microdollars=obj.daily_limit_override_microdollars,
            weekly_limit_microdollars=obj.weekly_limit_override_microdollars,
        )

    def construct_change_message(
        self, request: HttpRequest, form: Any, formsets: Any, add: bool = False
    ) -> Any:
        return f"Limits: {form.instance.daily_limit_override_microdollars} a day, " + (
            f"{form.instance.weekly_limit_override_microdollars} a week. {form.cleaned_data.get('reason', '')}"
        )

    # --- Actions ---

    @admin.action(description="Set tier…", permissions=["change"])
    def set_tier(self, request: HttpRequest, chosen: QuerySet[Account]) -> HttpResponse | None:
        def act(account: Account, form_data: dict[str, Any]) -> str:
            account_tiers.grant_tier(
                account.pk, form_data["tier"], actor_id=_get_staff_id(request), reason=form_data["reason"]
            )
            return f"Tier {form_data['tier']}."

        return self.run_with_reason(request, chosen, act, SetTierForm)

    @admin.action(description="Set or clear limits…", permissions=["change"])
    def set_overrides(self, request: HttpRequest, chosen: QuerySet[Account]) -> HttpResponse | None:
        def act(account: Account, form_data: dict[str, Any]) -> str:
            limits = {name: form_data[f"{name}_limit_microdollars"] for name in ("daily", "weekly")}
            accounts.set_limit_overrides(
                account.pk,
                daily_limit_microdollars=limits["daily"],
                weekly_limit_microdollars=limits["weekly"],
            )
            return f"Limits: {limits['daily']} a day, {limits['weekly']} a week."

        return self.run_with_reason(request, chosen, act, LimitOverridesForm)

    @admin.action(description="Reset day…", permissions=["change"])
    def reset_day(self, request: HttpRequest, chosen: QuerySet[Account]) -> HttpResponse | None:
        return self.run_with_reason(request, chosen, self._build_reset_action(request, weekly=False))

    @admin.action(description="Reset day and week…", permissions=["change"])
    def reset_day_and_week(self, request: HttpRequest, chosen: QuerySet[Account]) -> HttpResponse | None:
        return self.run_with_reason(request, chosen, self._build_reset_action(request, weekly=True))

    def _build_reset_action(
        self, request: HttpRequest, *, weekly: bool
    ) -> Callable[[Account, dict[str, Any]], str]:
        def act(account: Account, form_data: dict[str, Any]) -> str:
            published = resets.reset_usage_as_staff(
                account.user_id, weekly=weekly, actor_id=_get_staff_id(request), reason=form_data["reason"]
            )
            if not published:
                messages.warning(
                    request,
                    f"Redis is unavailable. The reset takes effect for {account.user} within a minute.",
                )
            return f"Reset of the day{' and the week' if weekly else ''}."

        return act

    @admin.action(description="Grant credits…", permissions=["change"])
    def grant_credits(self, request: HttpRequest, chosen: QuerySet[Account]) -> HttpResponse | None:
        def act(account: Account, form_data: dict[str, Any]) -> str:
            expires_on = form_data["expires_on"]
            ledger.grant_credits(
                account.user_id,
                form_data["cents"],
                key=f"grant:{uuid5(form_data['key'], str(account.pk))}",
                reason=form_data["reason"],
                expires_at=datetime.combine(expires_on, time.max, tzinfo=UTC) if expires_on else None,
                actor_id=_get_staff_id(request),
            )
            return f"Granted {form_data['cents']} cents."

        return self.run_with_reason(request, chosen, act, GrantCreditsForm)

    @admin.action(description="Sync from Stripe now…", permissions=["change"])
    def sync_now(self, request: HttpRequest, chosen: QuerySet[Account]) -> HttpResponse | None:
        def act(account: Account, form_data: dict[str, Any]) -> str:
            stripe_sync.sync_subscription(
                account.pk, deadline=api_client.start_request_deadline(SYNC_TIMEOUT_SECONDS)
            )
            return "Synced from Stripe."

        return self.run_with_reason(request, chosen, act)


def _format_usage(account: Account, window: int) -> str:
    """Format as `used / limit`. An account without a window row has used nothing."""
    used: int = getattr(account, ("day_used", "week_used")[window]) or 0
    limit = policies.get_rules().get_limits_microdollars(policies.build_entitlement(account))[window]
    return f"{format_microdollars(used)} / {format_microdollars(limit) if limit else 'no limit'}"


def _get_staff_id(request: HttpRequest) -> int:
    assert isinstance(request.user, User)
    return request.user.pk
