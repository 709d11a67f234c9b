"""Money without a page: saved cards charged, payments given back, payments fought over."""

from __future__ import annotations

from billing.errors import GatewayMissing
from billing.gateway import reading
from billing.gateway.client import Deadline, calling
from billing.gateway.shapes import Dispute, PaymentIntent, Refund

PAGE = 100


def charge_card(
    deadline: Deadline,
    *,
    customer_id: str,
    card_id: str,
    amount_cents: int,
    currency: str,
    top_up_id: str,
) -> PaymentIntent:
    """Off-session: a decline or a wish to see the customer is CardDeclined. One top-up, one charge."""
    with calling("charge", deadline) as call:
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
            call.options(f"topup:{top_up_id}"),
        )
        return reading.intent_of(made)


def get_intent(deadline: Deadline, intent_id: str) -> PaymentIntent | None:
    try:
        with calling("intent_get", deadline) as call:
            return reading.intent_of(call.client.v1.payment_intents.retrieve(intent_id, {}, call.options()))
    except GatewayMissing:
        return None


def list_refunds(deadline: Deadline, intent_id: str) -> list[Refund]:
    with calling("refund_list", deadline) as call:
        page = call.client.v1.refunds.list({"payment_intent": intent_id, "limit": PAGE}, call.options())
        return [reading.refund_of(found) for found in page.auto_paging_iter()]


def refund(deadline: Deadline, intent_id: str, *, amount_cents: int, key: str) -> Refund:
    with calling("refund_create", deadline) as call:
        made = call.client.v1.refunds.create(
            {"payment_intent": intent_id, "amount": amount_cents}, call.options(key)
        )
        return reading.refund_of(made)


def get_dispute(deadline: Deadline, dispute_id: str) -> Dispute | None:
    try:
        with calling("dispute_get", deadline) as call:
            return reading.dispute_of(call.client.v1.disputes.retrieve(dispute_id, {}, call.options()))
    except GatewayMissing:
        return None


def get_charges_intent_id(deadline: Deadline, charge_id: str) -> str:
    """Which payment a charge belongs to; "" when none does."""
    try:
        with calling("charge_get", deadline) as call:
            found = call.client.v1.charges.retrieve(charge_id, {}, call.options())
            intent = found.payment_intent
            return (intent if isinstance(intent, str) else intent.id) if intent else ""
    except GatewayMissing:
        return ""
