"""Who pays: customers, their saved cards, and the page on which they look after both themselves."""

from __future__ import annotations

from billing.errors import GatewayMissing
from billing.gateway import reading
from billing.gateway.client import Deadline, calling
from billing.gateway.shapes import Card, Customer, Price

PAGE = 100  # as many as Stripe gives at once


def create_customer(deadline: Deadline, *, email: str, account_id: int, user_id: int) -> Customer:
    """Any number of times for one account, one customer (B15.5)."""
    with calling("customer_create", deadline) as call:
        about = {"account_id": str(account_id), "user_id": str(user_id)}
        made = call.client.v1.customers.create(
            {"email": email, "metadata": about} if email else {"metadata": about},
            call.options(f"customer:{account_id}"),
        )
        return reading.customer_of(made)


def get_customer(deadline: Deadline, customer_id: str) -> Customer | None:
    """None when Stripe has no such customer, or no longer."""
    try:
        with calling("customer_get", deadline) as call:
            found = call.client.v1.customers.retrieve(customer_id, {}, call.options())
            return None if getattr(found, "deleted", False) else reading.customer_of(found)
    except GatewayMissing:
        return None


def list_cards(deadline: Deadline, customer_id: str) -> list[Card]:
    """Saved ones, the newest first."""
    with calling("card_list", deadline) as call:
        page = call.client.v1.customers.payment_methods.list(
            customer_id, {"type": "card", "limit": PAGE}, call.options()
        )
        cards = [reading.card_of(found) for found in page.auto_paging_iter()]
    return sorted(cards, key=lambda card: card.created_at, reverse=True)


def get_price(deadline: Deadline, price_id: str) -> Price | None:
    try:
        with calling("price_get", deadline) as call:
            return reading.price_of(call.client.v1.prices.retrieve(price_id, {}, call.options()))
    except GatewayMissing:
        return None


def open_portal(deadline: Deadline, *, customer_id: str, return_url: str) -> str:
    """Where the customer sees invoices and changes his card."""
    with calling("portal_create", deadline) as call:
        made = call.client.v1.billing_portal.sessions.create(
            {"customer": customer_id, "return_url": return_url}, call.options()
        )
        return made.url
