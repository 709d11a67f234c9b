"""Change a running subscription at Stripe: keep, cancel, upgrade or downgrade it.

Every step is repeatable: a request that failed half-way is made again and finds less to do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

import structlog

from billing.errors import PaymentServiceError, PaymentServiceRefusal
from billing.models import PlanChange
from billing.stripe import api_client, objects, subscription_api
from billing.stripe.objects import SchedulePhase, StripeSubscription

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class PlanChangeAttempt:
    """One attempt at Stripe: its deadline, and the plan change that all idempotency keys derive from."""

    change: PlanChange
    deadline: api_client.StripeDeadline
    completed_steps: list[str] = field(default_factory=list)  # recorded if the attempt fails

    def build_key(self, step: str) -> str:
        return f"plan:{self.change.pk}:{step}"


def keep_plan(attempt: PlanChangeAttempt, subscription: StripeSubscription) -> None:
    """Undo every pending change: schedule, cancellation and unpaid upgrade."""
    _release_schedule(attempt, subscription)
    _undo_cancellation(attempt, subscription)
    _void_pending_upgrade(attempt, subscription)


def cancel_at_period_end(attempt: PlanChangeAttempt, subscription: StripeSubscription) -> None:
    """Cancel at the end of the period. The schedule goes first, because Stripe refuses this on scheduled subscriptions."""
    _release_schedule(attempt, subscription)
    _void_pending_upgrade(attempt, subscription)
    if not subscription.cancel_at_period_end:
        subscription_api.set_cancel_at_period_end(
            attempt.deadline, subscription.id, cancel=True, key=attempt.build_key("cancel")
        )
        attempt.completed_steps.append("cancel")


def cancel_immediately(attempt: PlanChangeAttempt, subscription: StripeSubscription) -> None:
    subscription_api.cancel_subscription(attempt.deadline, subscription.id, key=attempt.build_key("cancel"))
    attempt.completed_steps.append("cancel")


def upgrade_subscription(
    attempt: PlanChangeAttempt,
    subscription: StripeSubscription,
    price_id: str,
    *,
    proration_date: datetime | None,
) -> StripeSubscription:
    """Raise the price and charge at once. If unpaid, Stripe keeps the old price and returns a pending update."""
    is_pending = subscription.pending_update is not None and subscription.pending_update.price_id == price_id
    _release_schedule(attempt, subscription)
    _undo_cancellation(attempt, subscription)
    if (
        is_pending
        and subscription.latest_invoice is not None
        and subscription.latest_invoice.status == "open"
    ):
        return subscription  # a repeated request pays the same invoice, not a second one
    _void_pending_upgrade(attempt, subscription)
    raised = subscription_api.change_subscription_price(
        attempt.deadline,
        subscription,
        price_id,
        key=attempt.build_key("price"),
        proration_date=proration_date,
    )
    attempt.completed_steps.append("price")
    return raised


def downgrade_subscription(
    attempt: PlanChangeAttempt, subscription: StripeSubscription, price_id: str
) -> None:
    """Lower the price with the next period by a schedule, and leave no half-made schedule on failure."""
    _release_schedule(attempt, subscription)
    _undo_cancellation(attempt, subscription)
    _void_pending_upgrade(attempt, subscription)
    try:
        schedule = subscription_api.create_schedule(
            attempt.deadline, subscription.id, key=attempt.build_key("schedule")
        )
        attempt.completed_steps.append("schedule")
        subscription_api.schedule_price_change(
            attempt.deadline,
            schedule.id,
            current=_build_current_phase(subscription, schedule),
            price_id=price_id,
            key=attempt.build_key("phases"),
        )
    except PaymentServiceError:
        _drop_schedule(attempt, subscription)
        raise


def _build_current_phase(
    subscription: StripeSubscription, schedule: objects.SubscriptionSchedule
) -> SchedulePhase:
    """Return the running phase exactly as Stripe has it."""
    first_phase = schedule.phases[0]
    return SchedulePhase(
        price_id=subscription.price_id,
        starts_at=schedule.current_starts_at or first_phase.starts_at,
        ends_at=schedule.current_ends_at or first_phase.ends_at,
        trial_ends_at=subscription.trial_end if subscription.status == "trialing" else None,
    )


def _drop_schedule(attempt: PlanChangeAttempt, subscription: StripeSubscription) -> None:
    """Release the schedule, even one whose creation we never heard of. If this fails, the next attempt releases it."""
    try:
        current = subscription_api.get_subscription(attempt.deadline, subscription.id)
        if current is not None and current.schedule_id:
            subscription_api.release_schedule(
                attempt.deadline, current.schedule_id, key=attempt.build_key("undo")
            )
    except PaymentServiceError:
        log.warning("schedule_release_failed", subscription_id=subscription.id)


# --- Steps ---


def _release_schedule(attempt: PlanChangeAttempt, subscription: StripeSubscription) -> None:
    """Release the schedule. After a refusal, check whether it is already over, which counts as done."""
    if not subscription.schedule_id or (subscription.schedule is not None and subscription.schedule.is_over):
        return
    try:
        subscription_api.release_schedule(
            attempt.deadline, subscription.schedule_id, key=attempt.build_key("release")
        )
    except PaymentServiceRefusal:
        schedule = subscription_api.get_schedule(attempt.deadline, subscription.schedule_id)
        if schedule is not None and not schedule.is_over:
            raise
    attempt.completed_steps.append("release")


def _undo_cancellation(attempt: PlanChangeAttempt, subscription: StripeSubscription) -> None:
    if subscription.cancel_at_period_end or subscription.cancel_at is not None:
        subscription_api.set_cancel_at_period_end(
            attempt.deadline, subscription.id, cancel=False, key=attempt.build_key("uncancel")
        )
        attempt.completed_steps.append("uncancel")


def _void_pending_upgrade(attempt: PlanChangeAttempt, subscription: StripeSubscription) -> None:
    """Void the open invoice of an unpaid upgrade, which makes Stripe drop the upgrade."""
    invoice = subscription.latest_invoice
    if subscription.pending_update is None or invoice is None or invoice.status != "open":
        return
    try:
        subscription_api.void_invoice(attempt.deadline, invoice.id, key=attempt.build_key("void"))
    except PaymentServiceRefusal:
        current = subscription_api.get_invoice(attempt.deadline, invoice.id)
        if current is not None and current.status == "open":
            raise
    attempt.completed_steps.append("void")
