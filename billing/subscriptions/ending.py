"""A user goes for good: nothing is charged any more, and nothing that could be (S17, B2.5)."""

from __future__ import annotations

from billing import gateway
from billing.errors import PaymentsOff
from billing.models import Account, Subscription
from billing.subscriptions import checkouts
from billing.subscriptions.decisions import HEALTHS
from billing.subscriptions.syncing import sync


def erase(user_id: int) -> int:
    """Called at the request and again when the erasure begins; what is left to do is nothing the second time.

    It raises when Stripe could not be told: whoever erases tries again. Ledger, use and audit stay (B2.5).
    """
    account = Account.objects.filter(user_id=user_id).first()
    if account is None or not account.stripe_customer_id:
        return 0
    deadline = gateway.in_request()  # at the request somebody waits for it
    try:
        checkouts.close_open_one(account, deadline)
        _cancel_all(account.stripe_customer_id, deadline)
        sync(account.pk, deadline=deadline)
    except PaymentsOff:
        if Subscription.objects.filter(account=account, status__in=HEALTHS).exists():
            raise  # somebody goes on paying, and there is no key to stop it
    return 0


def _cancel_all(customer_id: str, deadline: gateway.Deadline) -> None:
    for one in gateway.list_subscriptions(deadline, customer_id):
        if not one.is_over:
            gateway.cancel_subscription(deadline, one.id, key=f"erase:{one.id}")
