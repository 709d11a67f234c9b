"""What is done at Stripe about a running subscription: released, cancelled, raised, lowered, kept (B11.5 to B11.8).

Each step may be repeated: a request that failed half-way is simply made again, and finds less to do.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import datetime

from billing.errors import PaymentServiceError, PaymentServiceRefusal
from billing.models import PlanChange
from billing.stripe import api_client, objects, subscription_api
from billing.stripe.objects import SchedulePhase, StripeSubscription

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PlanChangeAttempt:
    """One attempt at Stripe: the time it has, and the name from which every write takes its key (B11.10)."""

    change: PlanChange
    deadline: api_client.StripeDeadline
    completed_steps: list[str] = field(default_factory=list)  # for the log, if it ends too early

    def build_key(self, step: str) -> str:
        return f"plan:{self.change.pk}:{step}"


def keep_plan(errand: PlanChangeAttempt, one: StripeSubscription) -> None:
    """Nothing is to come any more: no schedule, no end, no upgrade that waits to be paid (B11.8)."""
    _release_schedule(errand, one)
    _undo_cancellation(errand, one)
    _void_pending_upgrade(errand, one)


def cancel_at_period_end(errand: PlanChangeAttempt, one: StripeSubscription) -> None:
    """With the period. Stripe refuses that on a scheduled subscription, so the schedule goes first (B11.7)."""
    _release_schedule(errand, one)
    _void_pending_upgrade(errand, one)
    if not one.cancel_at_period_end:
        subscription_api.set_cancel_at_period_end(
            errand.deadline, one.id, cancel=True, key=errand.build_key("cancel")
        )
        errand.completed_steps.append("cancel")


def cancel_immediately(errand: PlanChangeAttempt, one: StripeSubscription) -> None:
    subscription_api.cancel_subscription(errand.deadline, one.id, key=errand.build_key("cancel"))
    errand.completed_steps.append("cancel")


def upgrade_subscription(
    errand: PlanChangeAttempt, one: StripeSubscription, price_id: str, *, proration_date: datetime | None
) -> StripeSubscription:
    """At once and charged at once; unpaid, Stripe keeps the old price and the answer has a pending update (B11.5)."""
    waits = one.pending_update is not None and one.pending_update.price_id == price_id
    _release_schedule(errand, one)
    _undo_cancellation(errand, one)
    if waits and one.latest_invoice is not None and one.latest_invoice.status == "open":
        return one  # asked for again: the same invoice is to be paid, not a second one
    _void_pending_upgrade(errand, one)
    raised = subscription_api.change_subscription_price(
        errand.deadline, one, price_id, key=errand.build_key("price"), proration_date=proration_date
    )
    errand.completed_steps.append("price")
    return raised


def downgrade_subscription(errand: PlanChangeAttempt, one: StripeSubscription, price_id: str) -> None:
    """With the next period, by a schedule; whatever fails, no half-made one stays (B11.6)."""
    _release_schedule(errand, one)
    _undo_cancellation(errand, one)
    _void_pending_upgrade(errand, one)
    try:
        made = subscription_api.create_schedule(errand.deadline, one.id, key=errand.build_key("schedule"))
        errand.completed_steps.append("schedule")
        subscription_api.schedule_price_change(
            errand.deadline,
            made.id,
            current=_build_current_phase(one, made),
            price_id=price_id,
            key=errand.build_key("phases"),
        )
    except PaymentServiceError:
        _drop_schedule(errand, one)
        raise


def _build_current_phase(one: StripeSubscription, made: objects.SubscriptionSchedule) -> SchedulePhase:
    """The phase that runs, exactly as Stripe has it."""
    running = made.phases[0]
    return SchedulePhase(
        price_id=one.price_id,
        starts_at=made.current_starts_at or running.starts_at,
        ends_at=made.current_ends_at or running.ends_at,
        trial_ends_at=one.trial_end if one.status == "trialing" else None,
    )


def _drop_schedule(errand: PlanChangeAttempt, one: StripeSubscription) -> None:
    """Also one of whose making we never heard. If this fails too, the next attempt releases it first."""
    try:
        now = subscription_api.get_subscription(errand.deadline, one.id)
        if now is not None and now.schedule_id:
            subscription_api.release_schedule(errand.deadline, now.schedule_id, key=errand.build_key("undo"))
    except PaymentServiceError:
        logger.warning("A half-made schedule of %s may be attached; it changes nothing.", one.id)


# --- one by one -----------------------------------------------------------------------------------------


def _release_schedule(errand: PlanChangeAttempt, one: StripeSubscription) -> None:
    """A refusal is read again: what is over already counts as done."""
    if not one.schedule_id or (one.schedule is not None and one.schedule.is_over):
        return
    try:
        subscription_api.release_schedule(errand.deadline, one.schedule_id, key=errand.build_key("release"))
    except PaymentServiceRefusal:
        again = subscription_api.get_schedule(errand.deadline, one.schedule_id)
        if again is not None and not again.is_over:
            raise
    errand.completed_steps.append("release")


def _undo_cancellation(errand: PlanChangeAttempt, one: StripeSubscription) -> None:
    if one.cancel_at_period_end or one.cancel_at is not None:
        subscription_api.set_cancel_at_period_end(
            errand.deadline, one.id, cancel=False, key=errand.build_key("uncancel")
        )
        errand.completed_steps.append("uncancel")


def _void_pending_upgrade(errand: PlanChangeAttempt, one: StripeSubscription) -> None:
    """The open invoice of an upgrade that was not paid; without it Stripe forgets the upgrade."""
    invoice = one.latest_invoice
    if one.pending_update is None or invoice is None or invoice.status != "open":
        return
    try:
        subscription_api.void_invoice(errand.deadline, invoice.id, key=errand.build_key("void"))
    except PaymentServiceRefusal:
        again = subscription_api.get_invoice(errand.deadline, invoice.id)
        if again is not None and again.status == "open":
            raise
    errand.completed_steps.append("void")
