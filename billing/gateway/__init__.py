"""Stripe, and nothing else speaks to it (B13).

Every call takes a deadline first: `in_request()` where somebody waits, `in_task()` where nobody does; one deadline
bounds a sequence. Answers are frozen dataclasses; what goes wrong is a `GatewayError`. A write takes its idempotency
key from the caller, who knows what must not happen twice.
"""

from __future__ import annotations

from billing.gateway.charging import (
    charge_card,
    get_charges_intent_id,
    get_dispute,
    get_intent,
    list_refunds,
    refund,
)
from billing.gateway.checkouts import (
    CreditPurchase,
    PlanPurchase,
    expire_checkout,
    get_checkout,
    sell_credit,
    sell_plan,
)
from billing.gateway.client import API_VERSION, Deadline, in_request, in_task
from billing.gateway.customers import create_customer, get_customer, get_price, list_cards, open_portal
from billing.gateway.shapes import (
    Card,
    CheckoutSession,
    Customer,
    Dispute,
    Event,
    Invoice,
    PaymentIntent,
    PendingUpdate,
    Phase,
    Preview,
    Price,
    Refund,
    Schedule,
    Subscription,
)
from billing.gateway.signatures import verified
from billing.gateway.subscribing import (
    cancel_subscription,
    change_price,
    create_schedule,
    get_invoice,
    get_schedule,
    get_subscription,
    list_subscriptions,
    plan_price_change,
    preview_price,
    release_schedule,
    set_cancel_at_period_end,
    void_invoice,
)

__all__ = [
    "API_VERSION",
    "Card",
    "CheckoutSession",
    "CreditPurchase",
    "Customer",
    "Deadline",
    "Dispute",
    "Event",
    "Invoice",
    "PaymentIntent",
    "PendingUpdate",
    "Phase",
    "PlanPurchase",
    "Preview",
    "Price",
    "Refund",
    "Schedule",
    "Subscription",
    "cancel_subscription",
    "change_price",
    "charge_card",
    "create_customer",
    "create_schedule",
    "expire_checkout",
    "get_charges_intent_id",
    "get_checkout",
    "get_customer",
    "get_dispute",
    "get_intent",
    "get_invoice",
    "get_price",
    "get_schedule",
    "get_subscription",
    "in_request",
    "in_task",
    "list_cards",
    "list_refunds",
    "list_subscriptions",
    "open_portal",
    "plan_price_change",
    "preview_price",
    "refund",
    "release_schedule",
    "sell_credit",
    "sell_plan",
    "set_cancel_at_period_end",
    "verified",
    "void_invoice",
]
