"""Apply stored Stripe events, each by the handler of its type. The payload is only a hint: handlers fetch the current state.

A handler returns True if the event concerned us (it becomes DONE), else False (IGNORED).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import structlog
from django.conf import settings
from django.db import transaction

from billing import metrics, notices
from billing.errors import BillingRequestRefused
from billing.models import Account
from billing.stripe import api_client, checkout_api, objects, payment_api, subscription_api, webhook_events
from billing.stripe.webhook_events import ClaimedEvent, EventClaimLost
from billing.subscriptions import grace_period, plan_checkouts, stripe_sync
from billing.top_ups import auto_top_ups, purchases, refunds

log = structlog.get_logger(__name__)
EventHandler = Callable[[ClaimedEvent, api_client.StripeDeadline], bool]


def apply_stripe_event(pk: int) -> timedelta | None:
    """Claim and apply one event. Return the delay until its next attempt, or None if there is none."""
    event = webhook_events.claim_event(pk)
    if event is None:
        return None
    try:
        return _try_event(event)
    except EventClaimLost:
        log.warning("stripe_event_claim_lost", event_id=event.event_id)
        return None


def _try_event(event: ClaimedEvent) -> timedelta | None:
    """Apply the event and mark it in one transaction, so that a crashed worker has done both or neither."""
    if event.attempt > webhook_events.MAX_ATTEMPTS:
        _fail_and_alert(event, "every attempt crashed its worker")
        return None
    try:
        with transaction.atomic():
            done = _run_handler(event)
            webhook_events.finish_event(event, "DONE" if done else "IGNORED")
    except EventClaimLost:
        raise
    except BillingRequestRefused as problem:
        if not problem.retryable and problem.code != "payments_off":
            _fail_and_alert(event, type(problem).__name__)
            return None
        return _postpone_or_alert(event, type(problem).__name__)
    except Exception as problem:  # a bug or outage on our side: retry later
        log.exception("stripe_event_failed", event_id=event.event_id)
        return _postpone_or_alert(event, type(problem).__name__)
    _count_event(event, "done" if done else "ignored")
    return None


def _run_handler(event: ClaimedEvent) -> bool:
    handler = EVENT_HANDLERS.get(event.type)
    if handler is None or event.livemode != settings.STRIPE_SECRET_KEY.startswith(("sk_live_", "rk_live_")):
        return False
    return handler(event, api_client.start_task_deadline())


def _postpone_or_alert(event: ClaimedEvent, error: str) -> timedelta | None:
    wait = webhook_events.postpone_event(event, error)
    if wait is None:
        _alert_event_failed(event, error)
    return wait


def _fail_and_alert(event: ClaimedEvent, error: str) -> None:
    webhook_events.fail_event(event, error)
    _alert_event_failed(event, error)


def _alert_event_failed(event: ClaimedEvent, error: str) -> None:
    _count_event(event, "failed")
    metrics.alert_staff("event_failed", error, stripe_event=event.event_id, type=event.type)


def _count_event(event: ClaimedEvent, state: str) -> None:
    metrics.stripe_events.labels(event.type if event.type in EVENT_HANDLERS else "other", state).inc()


# --- Credits ---


def _handle_checkout_paid(event: ClaimedEvent, deadline: api_client.StripeDeadline) -> bool:
    session = checkout_api.get_checkout(deadline, event.get_id("id"))
    if session is None:
        return False
    if session.mode == "payment":
        return purchases.fulfil_checkout(session)
    return _sync_customer(session.customer_id)


def _handle_checkout_ended(event: ClaimedEvent, deadline: api_client.StripeDeadline) -> bool:
    session = checkout_api.get_checkout(deadline, event.get_id("id"))
    if session is None:
        return False
    if session.mode == "payment":
        return purchases.end_checkout(session)
    if _find_account(session.customer_id) is None:
        return False
    plan_checkouts.fail_checkout(session.id)
    return True


def _handle_payment_intent(event: ClaimedEvent, deadline: api_client.StripeDeadline) -> bool:
    intent = payment_api.get_payment_intent(deadline, event.get_id("id"))
    return intent is not None and auto_top_ups.apply_payment_intent(intent)


def _handle_refund(event: ClaimedEvent, deadline: api_client.StripeDeadline) -> bool:
    intent_id = event.get_id("payment_intent")  # both refunds and charges name it
    return bool(intent_id) and refunds.apply_refunds(intent_id, deadline)


def _handle_dispute(event: ClaimedEvent, deadline: api_client.StripeDeadline) -> bool:
    dispute = payment_api.get_dispute(deadline, event.get_id("id"))
    if dispute is None:
        return False
    reinstated = event.type == "charge.dispute.funds_reinstated"
    applied = refunds.apply_dispute(dispute, deadline, reinstated=reinstated)
    if event.type == "charge.dispute.created":  # last, so that a retry does not alert staff each time
        metrics.alert_staff("dispute", "A payment is disputed.", dispute=dispute.id, charge=dispute.charge_id)
    return applied


# --- Plans ---


def _find_account(customer_id: str) -> Account | None:
    """Return the account, or None for customers of another system that shares the Stripe account."""
    return Account.objects.filter(stripe_customer_id=customer_id).first() if customer_id else None


def _sync_customer(customer_id: str) -> bool:
    account = _find_account(customer_id)
    if account is None:
        return False
    stripe_sync.sync_subscription(account.pk)
    return True


def _handle_subscription_change(event: ClaimedEvent, deadline: api_client.StripeDeadline) -> bool:
    return _sync_customer(event.get_id("customer"))


def _handle_trial_ending(event: ClaimedEvent, deadline: api_client.StripeDeadline) -> bool:
    account = _find_account(event.get_id("customer"))
    subscription = subscription_api.get_subscription(deadline, event.get_id("id")) if account else None
    if account is None or subscription is None:
        return False
    notices.post_notice(
        account.user_id,
        "trial_ends",
        dedupe_key=f"trial_ends:{subscription.id}",
        data={
            "trial_ends_at": f"{subscription.trial_end:%Y-%m-%dT%H:%M:%SZ}" if subscription.trial_end else ""
        },
        mail=True,
    )
    return True


def _handle_renewal_failed(event: ClaimedEvent, deadline: api_client.StripeDeadline) -> bool:
    account = _find_account(event.get_id("customer"))
    invoice = subscription_api.get_invoice(deadline, event.get_id("id")) if account else None
    if account is None or invoice is None:
        return False
    grace_period.handle_failed_renewal(
        account.pk, invoice, attempt=_get_attempt(event, invoice), attempted_at=_get_event_time(event)
    )
    return True


def _get_attempt(event: ClaimedEvent, invoice: objects.StripeInvoice) -> int:
    """Return the attempt the event reports; the invoice may count further while the event waits."""
    counted = event.event_object.get("attempt_count")
    return (
        counted
        if isinstance(counted, int) and 0 < counted <= invoice.attempt_count
        else invoice.attempt_count
    )


def _handle_customer_deleted(event: ClaimedEvent, deadline: api_client.StripeDeadline) -> bool:
    account = _find_account(event.get_id("id"))
    if account is None:
        return False
    stripe_sync.handle_deleted_customer(account.pk, event.get_id("id"))
    return True


def _get_event_time(event: ClaimedEvent) -> datetime:
    return datetime.fromtimestamp(int(event.payload["created"]), UTC)


# `subscription_schedule.created`, `.updated` and `.expiring` are left out on purpose, because our own calls cause them.
EVENT_HANDLERS: dict[str, EventHandler] = {
    "checkout.session.completed": _handle_checkout_paid,
    "checkout.session.async_payment_succeeded": _handle_checkout_paid,
    "checkout.session.async_payment_failed": _handle_checkout_ended,
    "checkout.session.expired": _handle_checkout_ended,
    "payment_intent.succeeded": _handle_payment_intent,
    "payment_intent.payment_failed": _handle_payment_intent,
    "customer.subscription.created": _handle_subscription_change,
    "customer.subscription.updated": _handle_subscription_change,
    "customer.subscription.deleted": _handle_subscription_change,
    "customer.subscription.paused": _handle_subscription_change,
    "customer.subscription.resumed": _handle_subscription_change,
    "customer.subscription.pending_update_applied": _handle_subscription_change,
    "customer.subscription.pending_update_expired": _handle_subscription_change,
    "customer.subscription.trial_will_end": _handle_trial_ending,
    "subscription_schedule.released": _handle_subscription_change,
    "subscription_schedule.completed": _handle_subscription_change,
    "subscription_schedule.canceled": _handle_subscription_change,
    "subscription_schedule.aborted": _handle_subscription_change,
    "invoice.paid": _handle_subscription_change,
    "invoice.payment_failed": _handle_renewal_failed,
    "invoice.payment_action_required": _handle_renewal_failed,
    "refund.created": _handle_refund,
    "refund.updated": _handle_refund,
    "refund.failed": _handle_refund,
    "charge.refunded": _handle_refund,
    "charge.dispute.created": _handle_dispute,
    "charge.dispute.updated": _handle_dispute,
    "charge.dispute.closed": _handle_dispute,
    "charge.dispute.funds_withdrawn": _handle_dispute,
    "charge.dispute.funds_reinstated": _handle_dispute,
    "customer.deleted": _handle_customer_deleted,
}
