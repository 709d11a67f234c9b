"""Create, read and expire Stripe Checkout sessions for credits and plans."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from django.utils import timezone

from billing.errors import PaymentResourceMissing
from billing.stripe import converters
from billing.stripe.api_client import StripeDeadline, call_stripe
from billing.stripe.objects import CheckoutSession

if TYPE_CHECKING:
    from stripe.params.checkout import SessionCreateParams

CHECKOUT_LIFETIME_SECONDS = 60 * 60  # Stripe allows half an hour to a day


@dataclass(frozen=True, kw_only=True)
class CreditPurchase:
    """A checkout for credits. The card is saved only for automatic top-ups."""

    customer_id: str
    top_up_id: str
    amount_cents: int
    currency: str
    save_card: bool
    success_url: str
    cancel_url: str
    expires_at: datetime


@dataclass(frozen=True, kw_only=True)
class PlanPurchase:
    """A checkout for a plan. A trial that ends without a card ends the subscription."""

    customer_id: str
    price_id: str
    user_id: int
    plan_change_id: str
    trial_days: int
    success_url: str
    cancel_url: str


def create_credit_checkout(
    deadline: StripeDeadline, purchase: CreditPurchase, *, key: str
) -> CheckoutSession:
    metadata = {"top_up": purchase.top_up_id}
    params: SessionCreateParams = {
        "mode": "payment",
        "customer": purchase.customer_id,
        "client_reference_id": purchase.top_up_id,
        "line_items": [
            {
                "quantity": 1,
                "price_data": {
                    "currency": purchase.currency,
                    "unit_amount": purchase.amount_cents,
                    "product_data": {"name": "Credits"},
                },
            }
        ],
        "metadata": metadata,
        "payment_intent_data": {"metadata": metadata, "setup_future_usage": "off_session"}
        if purchase.save_card
        else {"metadata": metadata},
        "success_url": purchase.success_url,
        "cancel_url": purchase.cancel_url,
        "expires_at": int(purchase.expires_at.timestamp()),
    }
    return _create_checkout(deadline, params, key)


def create_plan_checkout(deadline: StripeDeadline, purchase: PlanPurchase, *, key: str) -> CheckoutSession:
    """Create a checkout for cards only. The metadata of both session and subscription name the user."""
    metadata = {"user_id": str(purchase.user_id), "plan_change": purchase.plan_change_id}
    params: SessionCreateParams = {
        "mode": "subscription",
        "customer": purchase.customer_id,
        "client_reference_id": purchase.plan_change_id,
        "allowed_payment_method_types": ["card"],
        "line_items": [{"quantity": 1, "price": purchase.price_id}],
        "metadata": metadata,
        "subscription_data": {"metadata": metadata},
        "success_url": purchase.success_url,
        "cancel_url": purchase.cancel_url,
        "expires_at": int(timezone.now().timestamp()) + CHECKOUT_LIFETIME_SECONDS,
    }
    if purchase.trial_days:
        params["subscription_data"] = {
            "metadata": metadata,
            "trial_period_days": purchase.trial_days,
            "trial_settings": {"end_behavior": {"missing_payment_method": "cancel"}},
        }
        params["payment_method_collection"] = "if_required"
    return _create_checkout(deadline, params, key)


def _create_checkout(deadline: StripeDeadline, params: SessionCreateParams, key: str) -> CheckoutSession:
    with call_stripe("checkout_create", deadline) as call:
        return converters.convert_checkout_session(
            call.client.v1.checkout.sessions.create(params, call.build_options(key))
        )


def get_checkout(deadline: StripeDeadline, session_id: str) -> CheckoutSession | None:
    try:
        with call_stripe("checkout_get", deadline) as call:
            return converters.convert_checkout_session(
                call.client.v1.checkout.sessions.retrieve(session_id, {}, call.build_options())
            )
    except PaymentResourceMissing:
        return None


def expire_checkout(deadline: StripeDeadline, session_id: str, *, key: str) -> CheckoutSession:
    """Expire an open session. Raises PaymentServiceRefusal if it is complete or expired; read it again to know which."""
    with call_stripe("checkout_expire", deadline) as call:
        session = call.client.v1.checkout.sessions.expire(session_id, {}, call.build_options(key))
        return converters.convert_checkout_session(session)
