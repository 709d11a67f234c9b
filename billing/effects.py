"""What each of Stripe's events does: one table (B14.5). An event is a hint; what counts is fetched.

An effect answers whether it concerned us: True is DONE, False is IGNORED.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.db import transaction

from billing import alerts, gateway, inbox, metrics, notices, payments, subscriptions
from billing.errors import Refused
from billing.inbox import Claimed, ClaimLost
from billing.models import Account

logger = logging.getLogger(__name__)
Effect = Callable[[Claimed, gateway.Deadline], bool]


def apply(pk: int) -> timedelta | None:
    """One event, by whoever wins it. How long until it should be tried again; None when it should not."""
    event = inbox.claim(pk)
    if event is None:
        return None
    try:
        return _tried(event)
    except ClaimLost:
        logger.warning("Event %s was taken over by another worker.", event.event_id)
        return None


def _tried(event: Claimed) -> timedelta | None:
    """The effect and its mark are one transaction: a worker that dies has done both or neither (B14.3)."""
    if event.attempt > inbox.MOST_ATTEMPTS:
        _give_up(event, "it took every worker down")
        return None
    try:
        with transaction.atomic():
            done = _run(event)
            inbox.finish(event, "DONE" if done else "IGNORED")
    except ClaimLost:
        raise
    except Refused as problem:
        if not problem.retryable and problem.code != "payments_off":
            _give_up(event, type(problem).__name__)
            return None
        return _postpone(event, type(problem).__name__)
    except Exception as problem:  # a bug or a fault of ours: kept, and tried again
        logger.exception("Event %s could not be applied.", event.event_id)
        return _postpone(event, type(problem).__name__)
    _count(event, "done" if done else "ignored")
    return None


def _run(event: Claimed) -> bool:
    effect = EFFECTS.get(event.type)
    if effect is None or event.livemode != settings.STRIPE_SECRET_KEY.startswith(("sk_live_", "rk_live_")):
        return False
    return effect(event, gateway.in_task())


def _postpone(event: Claimed, error: str) -> timedelta | None:
    wait = inbox.postpone(event, error)
    if wait is None:
        _alert(event, error)
    return wait


def _give_up(event: Claimed, error: str) -> None:
    inbox.give_up(event, error)
    _alert(event, error)


def _alert(event: Claimed, error: str) -> None:
    _count(event, "failed")
    alerts.call_staff("event_failed", error, event=event.event_id, type=event.type)


def _count(event: Claimed, state: str) -> None:
    metrics.events.labels(event.type if event.type in EFFECTS else "other", state).inc()


# --- credit ---------------------------------------------------------------------------------------------


def _checkout_paid(event: Claimed, deadline: gateway.Deadline) -> bool:
    session = gateway.get_checkout(deadline, event.id_in("id"))
    if session is None:
        return False
    if session.mode == "payment":
        return payments.fulfil(session)
    return _sync_customer(session.customer_id)


def _checkout_ended(event: Claimed, deadline: gateway.Deadline) -> bool:
    session = gateway.get_checkout(deadline, event.id_in("id"))
    if session is None:
        return False
    if session.mode == "payment":
        return payments.session_ended(session)
    if _account_of(session.customer_id) is None:
        return False
    subscriptions.checkout_ended(session.id)
    return True


def _intent_moved(event: Claimed, deadline: gateway.Deadline) -> bool:
    intent = gateway.get_intent(deadline, event.id_in("id"))
    return intent is not None and payments.intent_moved(intent)


def _refunded(event: Claimed, deadline: gateway.Deadline) -> bool:
    """Of a refund or of a charge: both name the payment."""
    intent_id = event.id_in("payment_intent")
    return bool(intent_id) and payments.follow_refunds(intent_id, deadline)


def _disputed(event: Claimed, deadline: gateway.Deadline) -> bool:
    dispute = gateway.get_dispute(deadline, event.id_in("id"))
    if dispute is None:
        return False
    reinstated = event.type == "charge.dispute.funds_reinstated"
    followed = payments.follow_dispute(dispute, deadline, reinstated=reinstated)
    if event.type == "charge.dispute.created":  # last: what is tried again must not call staff each time
        alerts.call_staff("dispute", "A payment is disputed.", dispute=dispute.id, charge=dispute.charge_id)
    return followed


# --- plans ----------------------------------------------------------------------------------------------


def _account_of(customer_id: str) -> Account | None:
    """None for customers of somebody else who uses the same Stripe account."""
    return Account.objects.filter(stripe_customer_id=customer_id).first() if customer_id else None


def _sync_customer(customer_id: str) -> bool:
    account = _account_of(customer_id)
    if account is None:
        return False
    subscriptions.sync(account.pk)
    return True


def _sync(event: Claimed, deadline: gateway.Deadline) -> bool:
    return _sync_customer(event.id_in("customer"))


def _trial_ends(event: Claimed, deadline: gateway.Deadline) -> bool:
    account = _account_of(event.id_in("customer"))
    subscription = gateway.get_subscription(deadline, event.id_in("id")) if account else None
    if account is None or subscription is None:
        return False
    notices.post(
        account.user_id,
        "trial_ends",
        dedupe_key=f"trial_ends:{subscription.id}",
        data={
            "trial_ends_at": f"{subscription.trial_end:%Y-%m-%dT%H:%M:%SZ}" if subscription.trial_end else ""
        },
        mail=True,
    )
    return True


def _renewal_failed(event: Claimed, deadline: gateway.Deadline) -> bool:
    account = _account_of(event.id_in("customer"))
    invoice = gateway.get_invoice(deadline, event.id_in("id")) if account else None
    if account is None or invoice is None:
        return False
    subscriptions.renewal_failed(
        account.pk, invoice, attempt=_attempt_of(event, invoice), attempted_at=_happened_at(event)
    )
    return True


def _attempt_of(event: Claimed, invoice: gateway.Invoice) -> int:
    """Which one it tells of: the invoice counts on while the event waits."""
    counted = event.object.get("attempt_count")
    return (
        counted
        if isinstance(counted, int) and 0 < counted <= invoice.attempt_count
        else invoice.attempt_count
    )


def _customer_deleted(event: Claimed, deadline: gateway.Deadline) -> bool:
    account = _account_of(event.id_in("id"))
    if account is None:
        return False
    subscriptions.customer_gone(account.pk, event.id_in("id"))
    return True


def _happened_at(event: Claimed) -> datetime:
    return datetime.fromtimestamp(int(event.payload["created"]), UTC)


# `subscription_schedule.created`, `.updated` and `.expiring` are left out on purpose: our own calls cause them.
EFFECTS: dict[str, Effect] = {
    "checkout.session.completed": _checkout_paid,
    "checkout.session.async_payment_succeeded": _checkout_paid,
    "checkout.session.async_payment_failed": _checkout_ended,
    "checkout.session.expired": _checkout_ended,
    "payment_intent.succeeded": _intent_moved,
    "payment_intent.payment_failed": _intent_moved,
    "customer.subscription.created": _sync,
    "customer.subscription.updated": _sync,
    "customer.subscription.deleted": _sync,
    "customer.subscription.paused": _sync,
    "customer.subscription.resumed": _sync,
    "customer.subscription.pending_update_applied": _sync,
    "customer.subscription.pending_update_expired": _sync,
    "customer.subscription.trial_will_end": _trial_ends,
    "subscription_schedule.released": _sync,
    "subscription_schedule.completed": _sync,
    "subscription_schedule.canceled": _sync,
    "subscription_schedule.aborted": _sync,
    "invoice.paid": _sync,
    "invoice.payment_failed": _renewal_failed,
    "invoice.payment_action_required": _renewal_failed,
    "refund.created": _refunded,
    "refund.updated": _refunded,
    "refund.failed": _refunded,
    "charge.refunded": _refunded,
    "charge.dispute.created": _disputed,
    "charge.dispute.updated": _disputed,
    "charge.dispute.closed": _disputed,
    "charge.dispute.funds_withdrawn": _disputed,
    "charge.dispute.funds_reinstated": _disputed,
    "customer.deleted": _customer_deleted,
}
