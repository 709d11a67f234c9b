"""What is done at Stripe about a running subscription: released, cancelled, raised, lowered, kept (B11.5 to B11.8).

Each step may be repeated: a request that failed half-way is simply made again, and finds less to do.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import datetime

from billing import gateway
from billing.errors import GatewayError, GatewayRefusal
from billing.gateway import Phase, Subscription
from billing.models import PlanChange

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Errand:
    """One attempt at Stripe: the time it has, and the name from which every write takes its key (B11.10)."""

    change: PlanChange
    deadline: gateway.Deadline
    done: list[str] = field(default_factory=list)  # for the log, if it ends too early

    def key(self, step: str) -> str:
        return f"plan:{self.change.pk}:{step}"


def keep(errand: Errand, one: Subscription) -> None:
    """Nothing is to come any more: no schedule, no end, no upgrade that waits to be paid (B11.8)."""
    _release(errand, one)
    _uncancel(errand, one)
    _void_upgrade(errand, one)


def cancel_later(errand: Errand, one: Subscription) -> None:
    """With the period. Stripe refuses that on a scheduled subscription, so the schedule goes first (B11.7)."""
    _release(errand, one)
    _void_upgrade(errand, one)
    if not one.cancel_at_period_end:
        gateway.set_cancel_at_period_end(errand.deadline, one.id, cancel=True, key=errand.key("cancel"))
        errand.done.append("cancel")


def cancel_now(errand: Errand, one: Subscription) -> None:
    gateway.cancel_subscription(errand.deadline, one.id, key=errand.key("cancel"))
    errand.done.append("cancel")


def upgrade(
    errand: Errand, one: Subscription, price_id: str, *, proration_date: datetime | None
) -> Subscription:
    """At once and charged at once; unpaid, Stripe keeps the old price and the answer has a pending update (B11.5)."""
    waits = one.pending_update is not None and one.pending_update.price_id == price_id
    _release(errand, one)
    _uncancel(errand, one)
    if waits and one.latest_invoice is not None and one.latest_invoice.status == "open":
        return one  # asked for again: the same invoice is to be paid, not a second one
    _void_upgrade(errand, one)
    raised = gateway.change_price(
        errand.deadline, one, price_id, key=errand.key("price"), proration_date=proration_date
    )
    errand.done.append("price")
    return raised


def downgrade(errand: Errand, one: Subscription, price_id: str) -> None:
    """With the next period, by a schedule; whatever fails, no half-made one stays (B11.6)."""
    _release(errand, one)
    _uncancel(errand, one)
    _void_upgrade(errand, one)
    try:
        made = gateway.create_schedule(errand.deadline, one.id, key=errand.key("schedule"))
        errand.done.append("schedule")
        gateway.plan_price_change(
            errand.deadline, made.id, current=_current(one, made), price_id=price_id, key=errand.key("phases")
        )
    except GatewayError:
        _drop_schedule(errand, one)
        raise


def _current(one: Subscription, made: gateway.Schedule) -> Phase:
    """The phase that runs, exactly as Stripe has it."""
    running = made.phases[0]
    return Phase(
        price_id=one.price_id,
        starts_at=made.current_starts_at or running.starts_at,
        ends_at=made.current_ends_at or running.ends_at,
        trial_ends_at=one.trial_end if one.status == "trialing" else None,
    )


def _drop_schedule(errand: Errand, one: Subscription) -> None:
    """Also one of whose making we never heard. If this fails too, the next attempt releases it first."""
    try:
        now = gateway.get_subscription(errand.deadline, one.id)
        if now is not None and now.schedule_id:
            gateway.release_schedule(errand.deadline, now.schedule_id, key=errand.key("undo"))
    except GatewayError:
        logger.warning("A half-made schedule of %s may be attached; it changes nothing.", one.id)


# --- one by one -----------------------------------------------------------------------------------------


def _release(errand: Errand, one: Subscription) -> None:
    """A refusal is read again: what is over already counts as done."""
    if not one.schedule_id or (one.schedule is not None and one.schedule.is_over):
        return
    try:
        gateway.release_schedule(errand.deadline, one.schedule_id, key=errand.key("release"))
    except GatewayRefusal:
        again = gateway.get_schedule(errand.deadline, one.schedule_id)
        if again is not None and not again.is_over:
            raise
    errand.done.append("release")


def _uncancel(errand: Errand, one: Subscription) -> None:
    if one.cancel_at_period_end or one.cancel_at is not None:
        gateway.set_cancel_at_period_end(errand.deadline, one.id, cancel=False, key=errand.key("uncancel"))
        errand.done.append("uncancel")


def _void_upgrade(errand: Errand, one: Subscription) -> None:
    """The open invoice of an upgrade that was not paid; without it Stripe forgets the upgrade."""
    invoice = one.latest_invoice
    if one.pending_update is None or invoice is None or invoice.status != "open":
        return
    try:
        gateway.void_invoice(errand.deadline, invoice.id, key=errand.key("void"))
    except GatewayRefusal:
        again = gateway.get_invoice(errand.deadline, invoice.id)
        if again is not None and again.status == "open":
            raise
    errand.done.append("void")
