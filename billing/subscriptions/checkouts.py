"""A plan is bought on Stripe's page: at most one is open, and the tier changes only when Stripe says so (B11.9)."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import transaction

from billing import accounts, gateway
from billing.errors import GatewayRefusal
from billing.models import Account, PlanChange, TierPolicy


@dataclass(frozen=True, kw_only=True)
class Ways:
    """Where the browser goes after paying, and after leaving."""

    success_url: str
    cancel_url: str


def close_open_one(account: Account, deadline: gateway.Deadline) -> bool:
    """True when it turns out to be paid: then the account is not what it was a moment ago."""
    change = PlanChange.objects.filter(
        account=account, kind=PlanChange.Kind.CHECKOUT, state=PlanChange.State.STARTED
    ).first()
    if change is None:
        return False
    completed = bool(change.checkout_session_id) and _expire(change, deadline) == "complete"
    change.state = PlanChange.State.DONE if completed else PlanChange.State.FAILED
    change.error = "" if completed else "Another was opened."
    change.save(update_fields=["state", "error"])
    return completed


def _expire(change: PlanChange, deadline: gateway.Deadline) -> str:
    session_id = change.checkout_session_id or ""
    try:
        return gateway.expire_checkout(deadline, session_id, key=f"plan:{change.pk}:expire").status
    except GatewayRefusal:  # it is over already: how?
        session = gateway.get_checkout(deadline, session_id)
        return session.status if session else "expired"


def drop_incomplete(found: list[gateway.Subscription], deadline: gateway.Deadline) -> None:
    """What a first payment left unfinished must not be finished beside a new one (B11.2)."""
    for one in found:
        if one.status == "incomplete":
            gateway.cancel_subscription(deadline, one.id, key=f"incomplete:{one.id}")


def open_one(
    change: PlanChange, account: Account, policy: TierPolicy, ways: Ways, deadline: gateway.Deadline
) -> str:
    """Its address. One trial per account, for ever (B15.2)."""
    customer_id = accounts.ensure_customer(account, deadline)
    trial_days = policy.trial_days if account.trial_used_at is None else 0
    purchase = gateway.PlanPurchase(
        customer_id=customer_id,
        price_id=policy.stripe_price_id or "",
        user_id=account.user_id,
        plan_change_id=str(change.pk),
        trial_days=trial_days,
        success_url=ways.success_url,
        cancel_url=ways.cancel_url,
    )
    session = gateway.sell_plan(deadline, purchase, key=f"plan:{change.pk}:checkout")
    change.checkout_session_id = session.id
    change.save(update_fields=["checkout_session_id"])
    return session.url


def checkout_ended(session_id: str) -> None:
    """Stripe says that nobody paid on it."""
    with transaction.atomic():
        PlanChange.objects.filter(checkout_session_id=session_id, state=PlanChange.State.STARTED).update(
            state=PlanChange.State.FAILED, error="It was not paid in time."
        )
