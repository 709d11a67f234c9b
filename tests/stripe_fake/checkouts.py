"""Checkout pages of the fake: opened by us, then paid, declined or left by a person (or a test that plays one)."""

from __future__ import annotations

import time

from tests.stripe_fake import money, subscriptions
from tests.stripe_fake.forms import integer, only
from tests.stripe_fake.shapes import Obj
from tests.stripe_fake.world import DAY, Problem, World

SHORTEST, LONGEST = 30 * 60, DAY  # a page may stay open


class Declined(Exception):
    """The page stays open: another card may do."""


def create(world: World, params: Obj) -> Obj:
    only(
        params,
        "mode",
        "customer",
        "client_reference_id",
        "line_items",
        "metadata",
        "payment_intent_data",
        "subscription_data",
        "allowed_payment_method_types",
        "payment_method_collection",
        "success_url",
        "cancel_url",
        "expires_at",
    )
    customer = world.get(params["customer"], "customer")
    expires_at = integer(params, "expires_at", world.now + DAY) or 0
    asked_at = int(time.time())  # the client has not jumped ahead with us
    bounds = range(asked_at + SHORTEST - 60, asked_at + LONGEST + 1)
    kept = world.keeps("pages_stay_open_half_an_hour_to_a_day")
    if "expires_at" in params and expires_at not in bounds and kept:
        raise Problem("The `expires_at` timestamp must be 30 minutes to 24 hours ahead.", param="expires_at")
    session_id, line = world.new_id("cs_test"), params["line_items"][0]
    amount, currency = _price(world, params["mode"], line)
    session = world.make(
        "checkout.session",
        "cs_test",
        id=session_id,
        amount_subtotal=amount * int(line["quantity"]),
        amount_total=amount * int(line["quantity"]),
        automatic_tax={"enabled": False, "liability": None, "provider": None, "status": None},
        cancel_url=params.get("cancel_url"),
        client_reference_id=params.get("client_reference_id"),
        currency=currency,
        custom_fields=[],
        custom_text=dict.fromkeys(
            ("after_submit", "shipping_address", "submit", "terms_of_service_acceptance")
        ),
        customer=customer["id"],
        expires_at=expires_at,
        metadata=params.get("metadata", {}),
        mode=params["mode"],
        payment_method_collection=params.get("payment_method_collection", "always"),
        payment_method_types=["card"],
        payment_status="unpaid",
        shipping_options=[],
        status="open",
        success_url=params.get("success_url"),
        ui_mode="hosted_page",
        url=f"{world.address}/c/pay/{session_id}",
    )
    world.plans[session_id] = params  # what it sells, for the page and its end
    return session


def _price(world: World, mode: str, line: Obj) -> tuple[int, str]:
    if mode == "subscription":
        price = world.get(line["price"], "price")
        if price["recurring"] is None or not price["active"]:
            raise Problem("A subscription needs an active recurring price.", param="line_items[0][price]")
        return int(price["unit_amount"]), str(price["currency"])
    amount = integer(line["price_data"], "unit_amount") or 0
    if amount < 50:
        raise Problem("The amount is too small.", code="amount_too_small", param="line_items")
    return amount, str(line["price_data"]["currency"])


def expire(world: World, session: Obj) -> Obj:
    if session["status"] != "open":
        raise Problem(
            f'Only Checkout Sessions with a status in ["open"] can be expired. This one is {session["status"]}.'
        )
    session.update(status="expired", url=None)
    world.emit("checkout.session.expired", session)
    return session


def complete(world: World, session: Obj, *, with_card: bool = True, later: bool = False) -> None:
    """The customer pressed the button; raises when his bank says no. `later`: his bank says it in some days."""
    if session["status"] != "open":
        raise Problem("This page is no longer open.", status=410)
    params = world.plans[session["id"]]
    if later:
        pass
    elif session["mode"] == "payment":
        _pay(world, session, params)
    else:
        _subscribe(world, session, params, with_card=with_card)
    session.update(status="complete", url=None)
    world.emit("checkout.session.completed", session)


def settle(world: World, session: Obj) -> None:
    """The bank of a payment that takes days has spoken."""
    try:
        _pay(world, session, world.plans[session["id"]])
    except Declined:
        world.emit("checkout.session.async_payment_failed", session)
    else:
        world.emit("checkout.session.async_payment_succeeded", session)


def _pay(world: World, session: Obj, params: Obj) -> None:
    data = params.get("payment_intent_data", {})
    customer_id, card = session["customer"], world.save_card(session["customer"])
    intent = money.pay(
        world,
        customer_id=customer_id,
        amount=session["amount_total"],
        currency=session["currency"],
        metadata=data.get("metadata", {}),
    )
    if intent["status"] != "succeeded" or data.get("setup_future_usage") != "off_session":
        del world.objects[card]  # it was for once
    if intent["status"] != "succeeded":
        raise Declined
    session.update(payment_status="paid", payment_intent=intent["id"])


def _subscribe(world: World, session: Obj, params: Obj, *, with_card: bool) -> None:
    data = params.get("subscription_data", {})
    trial = data if data.get("trial_period_days") else None
    if with_card:
        if world.behaviour(session["customer"]) == "decline":
            raise Declined
        world.save_card(session["customer"])
    elif not trial or session["payment_method_collection"] != "if_required":
        raise Problem("A card is needed.", status=402)
    made = subscriptions.begin(
        world,
        session["customer"],
        params["line_items"][0]["price"],
        metadata=data.get("metadata", {}),
        trial=trial,
    )
    session.update(
        subscription=made["id"],
        invoice=made["latest_invoice"],
        payment_status="no_payment_required" if trial else "paid",
    )
