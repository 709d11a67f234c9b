"""Admin pages for Stripe events, which can be replayed, and for top-ups, which can be refunded."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from billing.admin.base import (
    USER_SEARCH_FIELDS,
    AccountRowsAdmin,
    BillingReadOnlyAdmin,
    ReasonedActionAdmin,
    format_cents,
)
from billing.errors import BillingRequestRefused
from billing.models import AutoTopUp, StripeEvent, TopUp
from billing.stripe import event_handlers, webhook_events
from billing.top_ups import refunds

OTHER_TYPES = "other"


class EventNotReplayed(BillingRequestRefused):
    def __init__(self) -> None:
        super().__init__(
            "This event is being applied right now, or its payload has been deleted.", code="not_replayed"
        )


class EventTypeFilter(admin.SimpleListFilter):
    """Offer the event types we handle, instead of querying the distinct types of all events."""

    title = "type"
    parameter_name = "type"

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:
        return [*((kind, kind) for kind in sorted(event_handlers.EVENT_HANDLERS)), (OTHER_TYPES, "any other")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Model]) -> QuerySet[Model]:
        if self.value() == OTHER_TYPES:
            return queryset.exclude(type__in=event_handlers.EVENT_HANDLERS)
        return queryset.filter(type=self.value()) if self.value() else queryset


@admin.register(StripeEvent)
class StripeEventAdmin(ReasonedActionAdmin, BillingReadOnlyAdmin):
    list_display = ["received_at", "type", "state", "tries", "event_id", "processed_at"]
    list_filter = ["state", EventTypeFilter]
    search_fields = ["=event_id"]
    ordering = ["-id"]
    actions = ["replay"]
    readonly_fields = [
        "event_id", "type", "api_version", "livemode", "created", "received_at", "state", "attempts", "due_at",
        "claimed_until", "last_error", "processed_at", "said",
    ]  # fmt: skip
    fields = [*readonly_fields]

    def get_queryset(self, request: HttpRequest) -> QuerySet[StripeEvent]:
        rows: QuerySet[StripeEvent] = (
            super().get_queryset(request).defer("payload")
        )  # large, and not in the list
        return rows

    def tries(self, event: StripeEvent) -> str:
        return f"{event.attempts}: {event.last_error}" if event.last_error else str(event.attempts)

    @admin.display(description="payload")
    def said(self, event: StripeEvent) -> SafeString:
        return format_html("<pre>{}</pre>", json.dumps(event.payload, indent=2) if event.payload else "-")

    def has_replay_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("billing.change_stripeevent")

    @admin.action(description="Apply again…", permissions=["replay"])
    def replay(self, request: HttpRequest, queryset: QuerySet[StripeEvent]) -> HttpResponse | None:
        """Apply the events again. Handlers are idempotent, so this is safe for any event at any time."""

        def act(event: StripeEvent, form_data: dict[str, Any]) -> str:
            if not webhook_events.replay_events([event.pk]):
                raise EventNotReplayed
            webhook_events.enqueue_event(event.pk)
            return "Applied again."

        return self.run_with_reason(request, queryset, act)


@admin.register(TopUp)
class TopUpAdmin(ReasonedActionAdmin, AccountRowsAdmin):
    list_display = ["created_at", "user", "kind", "amount", "state", "payment_intent_id"]
    list_filter = ["state", "kind"]
    list_select_related = ["account__user"]
    search_fields = [*USER_SEARCH_FIELDS, "=id", "=payment_intent_id", "=checkout_session_id"]
    ordering = ["-created_at"]
    actions = ["refund"]

    def user(self, top_up: TopUp) -> str:
        return top_up.account.user.get_username()

    def amount(self, top_up: TopUp) -> str:
        return format_cents(top_up.amount_cents)

    def has_refund_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("billing.change_topup")

    @admin.action(description="Refund the remaining amount at Stripe…", permissions=["refund"])
    def refund(self, request: HttpRequest, queryset: QuerySet[TopUp]) -> HttpResponse | None:
        """Request the refund at Stripe. The ledger follows when its webhook event arrives."""

        def act(top_up: TopUp, form_data: dict[str, Any]) -> str:
            refunds.refund_top_up(top_up)
            return "Refund requested."

        return self.run_with_reason(request, queryset, act)


@admin.register(AutoTopUp)
class AutoTopUpAdmin(AccountRowsAdmin):
    list_display = ["user", "enabled", "threshold", "amount", "failures", "disabled_reason"]
    list_filter = ["enabled"]
    list_select_related = ["account__user"]
    search_fields = USER_SEARCH_FIELDS

    def user(self, row: AutoTopUp) -> str:
        return row.account.user.get_username()

    def threshold(self, row: AutoTopUp) -> str:
        return format_cents(row.threshold_cents)

    def amount(self, row: AutoTopUp) -> str:
        return format_cents(row.amount_cents)
