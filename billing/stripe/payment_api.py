"""Customers, saved cards, prices, charges, refunds and disputes at Stripe."""

from __future__ import annotations

from billing.errors import PaymentResourceMissing
from billing.stripe import converters
from billing.stripe.api_client import StripeDeadline, call_stripe
from billing.stripe.objects import (
    PaymentIntent,
    SavedCard,
    StripeCustomer,
    StripeDispute,
    StripePrice,
    StripeRefund,
)

CARD_PAGE_SIZE = 100  # Stripe's maximum


def create_customer(deadline: StripeDeadline, *, email: str, account_id: int, user_id: int) -> StripeCustomer:
    """Create the account's customer. The idempotency key makes repeated calls return the same one."""
    with call_stripe("customer_create", deadline) as call:
        metadata = {"account_id": str(account_id), "user_id": str(user_id)}
        made = call.client.v1.customers.create(
            {"email": email, "metadata": metadata} if email else {"metadata": metadata},
            call.build_options(f"customer:{account_id}"),
        )
        return converters.convert_customer(made)


def get_customer(deadline: StripeDeadline, customer_id: str) -> StripeCustomer | None:
    """Return the customer, or None if it does not exist or was deleted."""
    try:
        with call_stripe("customer_get", deadline) as call:
            found = call.client.v1.customers.retrieve(customer_id, {}, call.build_options())
            return None if getattr(found, "deleted", False) else converters.convert_customer(found)
    except PaymentResourceMissing:
        return None


def list_saved_cards(deadline: StripeDeadline, customer_id: str) -> list[SavedCard]:
    """List saved cards, newest first."""
    with call_stripe("card_list", deadline) as call:
        page = call.client.v1.customers.payment_methods.list(
            customer_id, {"type": "card", "limit": CARD_PAGE_SIZE}, call.build_options()
        )
        cards = [converters.convert_card(found) for found in page.auto_paging_iter()]
    return sorted(cards, key=lambda card: card.created_at, reverse=True)


def get_price(deadline: StripeDeadline, price_id: str) -> StripePrice | None:
    try:
        with call_stripe("price_get", deadline) as call:
            return converters.convert_price(
                call.client.v1.prices.retrieve(price_id, {}, call.build_options())
            )
    except PaymentResourceMissing:
        return None


def create_portal_session(deadline: StripeDeadline, *, customer_id: str, return_url: str) -> str:
    """Return the URL of Stripe's portal, where the customer sees invoices and changes cards."""
    with call_stripe("portal_create", deadline) as call:
        made = call.client.v1.billing_portal.sessions.create(
            {"customer": customer_id, "return_url": return_url}, call.build_options()
        )
        return made.url


# --- Charges, refunds and disputes ---

REFUND_PAGE_SIZE = 100


def charge_saved_card(
    deadline: StripeDeadline,
    *,
    customer_id: str,
    card_id: str,
    amount_cents: int,
    currency: str,
    top_up_id: str,
) -> PaymentIntent:
    """Charge a card off-session, once per top-up. Raises CardDeclined if the bank declines or needs the customer."""
    with call_stripe("charge", deadline) as call:
        made = call.client.v1.payment_intents.create(
            {
                "amount": amount_cents,
                "currency": currency,
                "customer": customer_id,
                "payment_method": card_id,
                "allowed_payment_method_types": ["card"],
                "confirm": True,
                "off_session": True,
                "metadata": {"top_up": top_up_id},
            },
            call.build_options(f"topup:{top_up_id}"),
        )
        return converters.convert_payment_intent(made)


def get_payment_intent(deadline: StripeDeadline, intent_id: str) -> PaymentIntent | None:
    try:
        with call_stripe("intent_get", deadline) as call:
            return converters.convert_payment_intent(
                call.client.v1.payment_intents.retrieve(intent_id, {}, call.build_options())
            )
    except PaymentResourceMissing:
        return None


def list_refunds(deadline: StripeDeadline, intent_id: str) -> list[StripeRefund]:
    with call_stripe("refund_list", deadline) as call:
        page = call.client.v1.refunds.list(
            {"payment_intent": intent_id, "limit": REFUND_PAGE_SIZE}, call.build_options()
        )
        return [converters.convert_refund(found) for found in page.auto_paging_iter()]


def create_refund(deadline: StripeDeadline, intent_id: str, *, amount_cents: int, key: str) -> StripeRefund:
    with call_stripe("refund_create", deadline) as call:
        made = call.client.v1.refunds.create(
            {"payment_intent": intent_id, "amount": amount_cents}, call.build_options(key)
        )
        return converters.convert_refund(made)


def get_dispute(deadline: StripeDeadline, dispute_id: str) -> StripeDispute | None:
    try:
        with call_stripe("dispute_get", deadline) as call:
            return converters.convert_dispute(
                call.client.v1.disputes.retrieve(dispute_id, {}, call.build_options())
            )
    except PaymentResourceMissing:
        return None


def get_charge_payment_intent_id(deadline: StripeDeadline, charge_id: str) -> str:
    """Return the payment intent of a charge, or ""."""
    try:
        with call_stripe("charge_get", deadline) as call:
            found = call.client.v1.charges.retrieve(charge_id, {}, call.build_options())
            intent = found.payment_intent
            return (intent if isinstance(intent, str) else intent.id) if intent else ""
    except PaymentResourceMissing:
        return ""
