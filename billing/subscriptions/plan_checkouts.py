"""Open and close checkouts for plans, at most one per account, and open Stripe's portal."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import transaction

from billing import accounts
from billing.errors import NoStripeCustomer, PaymentsDisabled, PaymentServiceRefusal
from billing.models import Account, PlanChange, TierPolicy
from billing.selectors import plan_status
from billing.stripe import api_client, checkout_api, objects, payment_api, subscription_api


@dataclass(frozen=True, kw_only=True)
class CheckoutUrls:
    """The pages the browser returns to after paying or cancelling."""

    success_url: str
    cancel_url: str


def close_open_checkout(account: Account, deadline: api_client.StripeDeadline) -> bool:
    """Expire the open checkout. Return True if it turns out to be paid, so that the plan must be loaded again."""
    change = PlanChange.objects.filter(
        account=account, kind=PlanChange.Kind.CHECKOUT, state=PlanChange.State.STARTED
    ).first()
    if change is None:
        return False
    completed = bool(change.checkout_session_id) and _expire_checkout(change, deadline) == "complete"
    change.state = PlanChange.State.DONE if completed else PlanChange.State.FAILED
    change.error = "" if completed else "Another was opened."
    change.save(update_fields=["state", "error"])
    return completed


def _expire_checkout(change: PlanChange, deadline: api_client.StripeDeadline) -> str:
    session_id = change.checkout_session_id or ""
    try:
        return checkout_api.expire_checkout(deadline, session_id, key=f"plan:{change.pk}:expire").status
    except PaymentServiceRefusal:  # already over; read how it ended
        session = checkout_api.get_checkout(deadline, session_id)
        return session.status if session else "expired"


def cancel_incomplete_subscriptions(
    subscriptions: list[objects.StripeSubscription], deadline: api_client.StripeDeadline
) -> None:
    """Cancel subscriptions whose first payment is unfinished, so that nobody pays twice."""
    for subscription in subscriptions:
        if subscription.status == "incomplete":
            subscription_api.cancel_subscription(
                deadline, subscription.id, key=f"incomplete:{subscription.id}"
            )


def open_checkout(
    change: PlanChange,
    account: Account,
    policy: TierPolicy,
    urls: CheckoutUrls,
    deadline: api_client.StripeDeadline,
) -> str:
    """Create the checkout and return its URL. An account gets one trial ever."""
    customer_id = accounts.ensure_stripe_customer(account, deadline)
    trial_days = policy.trial_days if account.trial_used_at is None else 0
    purchase = checkout_api.PlanPurchase(
        customer_id=customer_id,
        price_id=policy.stripe_price_id or "",
        user_id=account.user_id,
        plan_change_id=str(change.pk),
        trial_days=trial_days,
        success_url=urls.success_url,
        cancel_url=urls.cancel_url,
    )
    session = checkout_api.create_plan_checkout(deadline, purchase, key=f"plan:{change.pk}:checkout")
    change.checkout_session_id = session.id
    change.save(update_fields=["checkout_session_id"])
    return session.url


def fail_checkout(session_id: str) -> None:
    with transaction.atomic():
        PlanChange.objects.filter(checkout_session_id=session_id, state=PlanChange.State.STARTED).update(
            state=PlanChange.State.FAILED, error="It was not paid in time."
        )


# --- Portal ---

PORTAL_TIMEOUT_SECONDS = 16.0


def open_portal(user_id: int, *, return_url: str) -> str:
    if not plan_status.are_payments_enabled():
        raise PaymentsDisabled
    customer_id = Account.objects.filter(user_id=user_id).values_list("stripe_customer_id", flat=True).first()
    if not customer_id:
        raise NoStripeCustomer
    return payment_api.create_portal_session(
        api_client.start_request_deadline(PORTAL_TIMEOUT_SECONDS),
        customer_id=customer_id,
        return_url=return_url,
    )
