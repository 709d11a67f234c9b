"""Subscriptions of the fake: begun, changed, renewed, fallen behind, ended."""

from __future__ import annotations

from typing import Any

from tests.stripe_fake import invoices
from tests.stripe_fake.forms import flag, integer, only
from tests.stripe_fake.shapes import Obj
from tests.stripe_fake.world import DAY, MONTH, Problem, World, listed

UNPAID_HOURS = 23  # after which a pending update or a first invoice lapses
WITH_PENDING = (
    "items",
    "payment_behavior",
    "proration_behavior",
    "proration_date",
    "billing_cycle_anchor",
    "trial_end",
    "trial_from_plan",
    "add_invoice_items",
    "off_session",
)


def item(subscription: Obj) -> Obj:
    return subscription["items"]["data"][0]  # type: ignore[no-any-return]


def begin(world: World, customer_id: str, price_id: str, *, metadata: Obj, trial: Obj | None = None) -> Obj:
    """As Stripe does at the end of a checkout, or by API: paid → active, not paid → incomplete, a trial → trialing."""
    price = world.get(price_id, "price")
    if not price["active"] or price["recurring"] is None:
        raise Problem("The price specified is inactive or not recurring.", param="items[0][price]")
    days = int(trial["trial_period_days"]) if trial else 0
    end = world.now + (days * DAY if days else MONTH)
    subscription_id = world.new_id("sub")
    subscription = world.make(
        "subscription",
        "sub",
        id=subscription_id,
        automatic_tax={"enabled": False, "disabled_reason": None, "liability": None},
        billing_cycle_anchor=end if days else world.now,
        billing_mode={"type": "flexible", "flexible": None, "updated_at": None},
        billing_schedules=[],
        cancel_at_period_end=False,
        collection_method="charge_automatically",
        currency=price["currency"],
        customer=customer_id,
        discounts=[],
        invoice_settings={"account_tax_ids": None, "issuer": {"type": "self"}},
        items=listed(
            [_item(world, subscription_id, price, end)],
            f"/v1/subscription_items?subscription={subscription_id}",
        ),
        metadata=metadata,
        start_date=world.now,
        status="trialing" if days else "incomplete",
        trial_start=world.now if days else None,
        trial_end=end if days else None,
        trial_settings=(trial or {}).get("trial_settings")
        or {"end_behavior": {"missing_payment_method": "create_invoice"}},
    )
    invoice = invoices.make(
        world, subscription, amount=0 if days else price["unit_amount"], reason="subscription_create"
    )
    paid = invoices.attempt(world, invoice)
    if paid and not days:
        subscription["status"] = "active"
    world.emit("customer.subscription.created", subscription)
    return subscription


def _item(world: World, subscription_id: str, price: Obj, end: int) -> Obj:
    return world.make(
        "subscription_item",
        "si",
        current_period_start=world.now,
        current_period_end=end,
        discounts=[],
        metadata={},
        plan=_plan(price),
        price=price,
        quantity=1,
        subscription=subscription_id,
    )


def _plan(price: Obj) -> Obj:
    """The old form of a price, which items still carry."""
    import stripe

    made: Obj = {name: None for name in stripe.Plan.__annotations__ if name not in ("OBJECT_NAME", "deleted")}
    recurring = price["recurring"]
    return made | {
        "object": "plan",
        "id": price["id"],
        "active": price["active"],
        "amount": price["unit_amount"],
        "billing_scheme": "per_unit",
        "created": price["created"],
        "currency": price["currency"],
        "interval": recurring["interval"],
        "interval_count": recurring["interval_count"],
        "livemode": False,
        "usage_type": "licensed",
    }


def set_price(subscription: Obj, price: Obj) -> None:
    item(subscription).update(price=price, plan=_plan(price))


# --- changed by us --------------------------------------------------------------------------------------


def create(world: World, params: Obj) -> Obj:
    only(params, "customer", "items", "metadata", "trial_period_days", "trial_settings", "payment_behavior")
    customer = world.get(params["customer"], "customer")
    trial = params if params.get("trial_period_days") else None
    return begin(
        world, customer["id"], params["items"][0]["price"], metadata=params.get("metadata", {}), trial=trial
    )


def update(world: World, subscription: Obj, params: Obj) -> Obj:
    only(
        params,
        "items",
        "payment_behavior",
        "proration_behavior",
        "proration_date",
        "cancel_at_period_end",
        "cancel_at",
        "metadata",
        "trial_end",
        "default_payment_method",
    )
    if subscription["status"] in ("canceled", "incomplete_expired"):
        raise Problem("A canceled subscription can only update its cancellation_details and metadata.")
    if params.get("payment_behavior") == "pending_if_incomplete" and world.keeps(
        "few_parameters_with_pending_updates"
    ):
        for name in params:
            if name not in (*WITH_PENDING, "expand"):
                raise Problem(
                    f"{name} is not supported with payment_behavior=pending_if_incomplete.", param=name
                )
    before: Obj = {}
    _change_cancellation(world, subscription, params, before)
    if isinstance(params.get("metadata"), dict):
        subscription["metadata"].update(params["metadata"])
    if params.get("items"):
        _change_price(world, subscription, params, before)
    world.emit("customer.subscription.updated", subscription, before)
    return subscription


def _change_cancellation(world: World, subscription: Obj, params: Obj, before: Obj) -> None:
    if "cancel_at_period_end" not in params and "cancel_at" not in params:
        return
    if subscription["schedule"] and world.keeps("no_cancellation_while_scheduled"):
        raise Problem(
            f"The subscription is managed by the subscription schedule `{subscription['schedule']}`, and updating"
            " any cancelation behavior directly is not allowed. Please update the schedule instead."
        )
    before.update(
        cancel_at_period_end=subscription["cancel_at_period_end"], cancel_at=subscription["cancel_at"]
    )
    at_end = flag(params, "cancel_at_period_end")
    subscription["cancel_at_period_end"] = at_end
    subscription["cancel_at"] = (
        item(subscription)["current_period_end"] if at_end else integer(params, "cancel_at")
    )


def _change_price(world: World, subscription: Obj, params: Obj, before: Obj) -> None:
    wanted = params["items"][0]
    if wanted.get("id") != item(subscription)["id"]:
        raise Problem(f"No such subscription item: '{wanted.get('id')}'", code="resource_missing")
    price = world.get(wanted["price"], "price")
    before["items"] = {"data": [dict(item(subscription))]}
    if subscription["status"] == "trialing" or params.get("proration_behavior") == "none":
        set_price(subscription, price)
        return
    drop_pending_update(world, subscription)
    at = integer(params, "proration_date", world.now)
    amount = prorated(world, subscription, price, at=at or world.now)
    invoice = invoices.make(
        world, subscription, amount=amount, reason="subscription_update", proration_date=at
    )
    if invoices.attempt(world, invoice) or params.get("payment_behavior") != "pending_if_incomplete":
        set_price(subscription, price)
        return
    subscription["pending_update"] = {
        "billing_cycle_anchor": None,
        "expires_at": world.now + UNPAID_HOURS * 3600,
        "subscription_items": [{**item(subscription), "price": price, "plan": _plan(price)}],
        "trial_end": None,
        "trial_from_plan": None,
    }


def prorated(world: World, subscription: Obj, price: Obj, *, at: int) -> int:
    """The rest of the period at the new price, less the rest of it at the old one; less than nothing is credit."""
    now = item(subscription)
    whole = now["current_period_end"] - now["current_period_start"]
    left = max(now["current_period_end"] - at, 0)
    return int((price["unit_amount"] - now["price"]["unit_amount"]) * left // whole)


def cancel(world: World, subscription: Obj, params: Obj | None = None) -> Obj:
    only(params or {}, "prorate", "invoice_now", "cancellation_details")
    if subscription["status"] in ("canceled", "incomplete_expired"):
        raise Problem(
            f"No such subscription: '{subscription['id']}'", status=404, code="resource_missing", param="id"
        )
    end(world, subscription)
    return subscription


def end(world: World, subscription: Obj) -> None:
    """For ever; what hung on it goes with it."""
    drop_pending_update(world, subscription, tell=False)
    if subscription["schedule"]:
        schedule = world.get(subscription["schedule"], "subscription_schedule")
        schedule.update(status="canceled", canceled_at=world.now, current_phase=None)
        subscription["schedule"] = None
        world.emit("subscription_schedule.canceled", schedule)
    subscription.update(status="canceled", canceled_at=world.now, ended_at=world.now)
    world.emit("customer.subscription.deleted", subscription)


# --- payments, and what follows -------------------------------------------------------------------------


def invoice_paid(world: World, invoice: Obj) -> None:
    """By the customer, on the invoice's page or by a later attempt."""
    subscription = world.get(invoices.subscription_id(invoice), "subscription")
    before: dict[str, Any] = {"status": subscription["status"]}
    update_waiting = subscription["pending_update"]
    if update_waiting and invoice["billing_reason"] == "subscription_update":
        set_price(subscription, update_waiting["subscription_items"][0]["price"])
        subscription["pending_update"] = None
        world.emit("customer.subscription.pending_update_applied", subscription)
    owed = [
        one
        for one in invoices.open_ones(world, subscription)
        if one["billing_reason"] != "subscription_update"
    ]
    if subscription["status"] in ("past_due", "unpaid", "incomplete") and not owed:
        subscription["status"] = "active"
    world.emit("customer.subscription.updated", subscription, before)


def drop_pending_update(world: World, subscription: Obj, *, tell: bool = True) -> None:
    """Its time is over, its invoice was voided, or another took its place."""
    if subscription["pending_update"] is None:
        return
    subscription["pending_update"] = None
    for invoice in invoices.open_ones(world, subscription):
        if invoice["billing_reason"] == "subscription_update":
            invoices.void(world, invoice)
    if tell:
        world.emit("customer.subscription.pending_update_expired", subscription)


def fall_behind(world: World, subscription: Obj, invoice: Obj) -> None:
    """A renewal was not paid: Stripe tries again for a while, then does what the account's settings say."""
    before = {"status": subscription["status"]}
    subscription["status"] = "past_due"
    if invoice["next_payment_attempt"] is None and world.dunning_end != "past_due":
        if world.dunning_end == "canceled":
            end(world, subscription)
            return
        subscription["status"] = "unpaid"
    world.emit("customer.subscription.updated", subscription, before)
