"""Stripe's own pages for a customer: card, invoices, what is owed (B15.3)."""

from __future__ import annotations

from billing import gateway, queries
from billing.errors import NoCustomer, PaymentsOff
from billing.models import Account

BUDGET_SECONDS = 16.0


def portal(user_id: int, *, return_url: str) -> str:
    if not queries.payments_on():
        raise PaymentsOff
    customer_id = Account.objects.filter(user_id=user_id).values_list("stripe_customer_id", flat=True).first()
    if not customer_id:
        raise NoCustomer
    return gateway.open_portal(
        gateway.in_request(BUDGET_SECONDS), customer_id=customer_id, return_url=return_url
    )
