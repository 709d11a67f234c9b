"""Time of the fake: nothing happens by itself until somebody advances it; then everything due happens in its order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.stripe_fake import checkouts, invoices, schedules, subscriptions
from tests.stripe_fake.shapes import Obj
from tests.stripe_fake.subscriptions import item
from tests.stripe_fake.world import DAY, MONTH, World

WARNED_DAYS = 3  # ahead of the end of a trial
Due = tuple[int, Callable[[], None]]


def advance(world: World, seconds: int) -> None:
    with world.lock:
        until = world.now + seconds
        while True:
            due = min(_dues(world), key=lambda one: one[0], default=None)
            if due is None or due[0] > until:
                break
            world.now = max(world.now, due[0])
            due[1]()
        world.now = until


def _dues(world: World) -> Iterator[Due]:
    for session in world.all("checkout.session", status="open"):
        yield session["expires_at"], lambda one=session: checkouts.expire(world, one)  # type: ignore[misc]
    for subscription in world.all("subscription"):
        yield from _of_subscription(world, subscription)
    for invoice in world.all("invoice", status="open"):
        if invoice["next_payment_attempt"]:
            yield invoice["next_payment_attempt"], lambda one=invoice: _retry(world, one)  # type: ignore[misc]


def _of_subscription(world: World, subscription: Obj) -> Iterator[Due]:
    status, end = subscription["status"], item(subscription)["current_period_end"]
    if status in ("canceled", "incomplete_expired"):
        return
    if status == "incomplete":
        lapses = subscription["created"] + subscriptions.UNPAID_HOURS * 3600
        yield lapses, lambda: _lapse(world, subscription)
        return
    update = subscription["pending_update"]
    if update and world.keeps("pending_updates_expire"):
        yield update["expires_at"], lambda: subscriptions.drop_pending_update(world, subscription)
    if status == "trialing" and "warned" not in subscription["metadata"]:
        yield end - WARNED_DAYS * DAY, lambda: _warn(world, subscription)
    if subscription["cancel_at"]:
        yield subscription["cancel_at"], lambda: subscriptions.end(world, subscription)
    yield end, lambda: _renew(world, subscription)


def _warn(world: World, subscription: Obj) -> None:
    subscription["metadata"]["warned"] = "yes"
    world.emit("customer.subscription.trial_will_end", subscription)


def _lapse(world: World, subscription: Obj) -> None:
    subscription.update(status="incomplete_expired", ended_at=world.now)
    for invoice in invoices.open_ones(world, subscription):
        invoices.void(world, invoice)
    world.emit("customer.subscription.updated", subscription, {"status": "incomplete"})


def _renew(world: World, subscription: Obj) -> None:
    """A period or a trial is over."""
    was = subscription["status"]
    missing = subscription["trial_settings"]["end_behavior"]["missing_payment_method"]
    if was == "trialing" and not world.card_of(subscription["customer"]) and missing == "cancel":
        subscriptions.end(world, subscription)
        return
    price_id = schedules.next_price(world, subscription)
    if subscription["cancel_at_period_end"]:
        subscriptions.end(world, subscription)
        return
    now = item(subscription)
    before = {"status": was, "items": {"data": [dict(now)]}}
    if price_id and price_id != now["price"]["id"]:
        subscriptions.set_price(subscription, world.get(price_id, "price"))
    now.update(current_period_start=world.now, current_period_end=world.now + MONTH)
    if was == "unpaid":
        world.emit("customer.subscription.updated", subscription, before)
        return
    invoice = invoices.make(
        world, subscription, amount=now["price"]["unit_amount"], reason="subscription_cycle"
    )
    if invoices.attempt(world, invoice):
        if was == "trialing":
            subscription["status"] = "active"
        world.emit("customer.subscription.updated", subscription, before)
    else:
        subscriptions.fall_behind(world, subscription, invoice)


def _retry(world: World, invoice: Obj) -> None:
    subscription = world.get(invoices.subscription_id(invoice), "subscription")
    if invoices.attempt(world, invoice):
        subscriptions.invoice_paid(world, invoice)
    elif subscription["status"] == "past_due":
        subscriptions.fall_behind(world, subscription, invoice)
