"""Subscription schedules of the fake: made from a subscription, told what comes, let go."""

from __future__ import annotations

from typing import Any

from tests.stripe_fake.forms import integer, only
from tests.stripe_fake.shapes import Obj
from tests.stripe_fake.subscriptions import item
from tests.stripe_fake.world import DAY, MONTH, Problem, World

LENGTHS = {"day": DAY, "week": 7 * DAY, "month": MONTH, "year": 12 * MONTH}
PHASE = (
    "items",
    "start_date",
    "end_date",
    "duration",
    "trial_end",
    "trial",
    "proration_behavior",
    "metadata",
)


def create(world: World, params: Obj) -> Obj:
    """From a subscription and from nothing else: no other parameter goes with it."""
    for name in params:
        if name not in ("from_subscription", "expand") and world.keeps("nothing_else_with_from_subscription"):
            raise Problem(f"You cannot set `{name}` if `from_subscription` is set.", param=name)
    subscription = world.get(params["from_subscription"], "subscription")
    if subscription["schedule"]:
        raise Problem("You cannot migrate a subscription that is already attached to a schedule.")
    if subscription["status"] in ("canceled", "incomplete_expired", "incomplete"):
        raise Problem(f"A subscription that is {subscription['status']} cannot be put on a schedule.")
    now = item(subscription)
    phase = _phase(
        now["price"]["id"],
        now["current_period_start"],
        now["current_period_end"],
        currency=subscription["currency"],
        trial_end=subscription["trial_end"] if subscription["status"] == "trialing" else None,
    )
    schedule = world.make(
        "subscription_schedule",
        "sub_sched",
        billing_mode={"type": "flexible", "flexible": None, "updated_at": None},
        current_phase={"start_date": phase["start_date"], "end_date": phase["end_date"]},
        customer=subscription["customer"],
        default_settings=_defaults(),
        end_behavior="cancel" if subscription["cancel_at_period_end"] else "release",
        metadata={},
        pause_schedules=[],
        phases=[phase],
        status="active",
        subscription=subscription["id"],
    )
    subscription.update(schedule=schedule["id"], cancel_at_period_end=False, cancel_at=None)
    world.emit("subscription_schedule.created", schedule)
    world.emit("customer.subscription.updated", subscription, {"schedule": None})
    return schedule


def update(world: World, schedule: Obj, params: Obj) -> Obj:
    only(params, "phases", "end_behavior", "proration_behavior", "metadata")
    if schedule["status"] not in ("active", "not_started"):
        raise Problem(f"You cannot update a subscription schedule that is {schedule['status']}.")
    if params.get("phases"):
        schedule["phases"] = _phases(world, schedule, params["phases"])
        first = schedule["phases"][0]
        schedule["current_phase"] = {"start_date": first["start_date"], "end_date": first["end_date"]}
    schedule["end_behavior"] = params.get("end_behavior", schedule["end_behavior"])
    world.emit("subscription_schedule.updated", schedule)
    return schedule


def _phases(world: World, schedule: Obj, wanted: list[Obj]) -> list[Obj]:
    made: list[Obj] = []
    for number, one in enumerate(wanted):
        for name in one:
            if name not in PHASE:
                raise Problem(
                    f"Received unknown parameter: phases[{number}][{name}]", code="parameter_unknown"
                )
        price = world.get(one["items"][0]["price"], "price")
        start = made[-1]["end_date"] if made else integer(one, "start_date")
        if start is None or (not made and start != schedule["phases"][0]["start_date"]):
            raise Problem(
                "You can not modify the start date of the current phase.", param="phases[0][start_date]"
            )
        end = integer(one, "end_date")
        if (end is None) == ("duration" not in one):
            raise Problem("A phase has either an end_date or a duration.", param=f"phases[{number}]")
        if end is None:
            end = start + LENGTHS[one["duration"]["interval"]] * (
                integer(one["duration"], "interval_count", 1) or 1
            )
        phase = _phase(
            price["id"], start, end, currency=price["currency"], trial_end=integer(one, "trial_end")
        )
        made.append(phase | {"proration_behavior": one.get("proration_behavior", "create_prorations")})
    return made


def _phase(price_id: str, start: int, end: int, *, currency: str, trial_end: int | None) -> Obj:
    return {
        "add_invoice_items": [],
        "application_fee_percent": None,
        "billing_cycle_anchor": None,
        "currency": currency,
        "discounts": [],
        "end_date": end,
        "items": [{"discounts": [], "metadata": {}, "plan": price_id, "price": price_id, "quantity": 1}],
        "metadata": {},
        "proration_behavior": "create_prorations",
        "start_date": start,
        "trial_end": trial_end,
    }


def _defaults() -> dict[str, Any]:
    return {
        "application_fee_percent": None,
        "automatic_tax": None,
        "billing_cycle_anchor": "automatic",
        "billing_thresholds": None,
        "collection_method": "charge_automatically",
        "default_payment_method": None,
        "description": None,
        "invoice_settings": {"account_tax_ids": None, "days_until_due": None, "issuer": {"type": "self"}},
        "on_behalf_of": None,
        "transfer_data": None,
    }


def release(world: World, schedule: Obj, params: Obj | None = None) -> Obj:
    only(params or {}, "preserve_cancel_date")
    if schedule["status"] not in ("active", "not_started"):
        if not world.keeps("no_release_of_what_is_over"):
            return schedule
        raise Problem(
            f"You cannot release a subscription schedule that is currently in the `{schedule['status']}` status."
        )
    subscription = world.get(schedule["subscription"], "subscription")
    schedule.update(
        status="released",
        released_at=world.now,
        released_subscription=subscription["id"],
        subscription=None,
        current_phase=None,
    )
    subscription["schedule"] = None
    world.emit("subscription_schedule.released", schedule)
    world.emit("customer.subscription.updated", subscription, {"schedule": schedule["id"]})
    return schedule


def next_price(world: World, subscription: Obj) -> str | None:
    """At the end of a period: the price of the phase that begins now; after the last one the schedule lets go."""
    if not subscription["schedule"]:
        return None
    schedule = world.get(subscription["schedule"], "subscription_schedule")
    for phase in schedule["phases"]:
        if phase["start_date"] <= world.now < phase["end_date"]:
            schedule["current_phase"] = {"start_date": phase["start_date"], "end_date": phase["end_date"]}
            world.emit("subscription_schedule.updated", schedule)
            return str(phase["items"][0]["price"])
    if schedule["end_behavior"] == "release":
        release(world, schedule)
    else:
        schedule.update(status="completed", completed_at=world.now, current_phase=None)
        world.emit("subscription_schedule.completed", schedule)
        subscription.update(schedule=None, cancel_at_period_end=True)
    return None
