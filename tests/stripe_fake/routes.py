"""Which path does what."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.stripe_fake import checkouts, invoices, money, schedules, subscriptions
from tests.stripe_fake.forms import expanded, integer, only
from tests.stripe_fake.shapes import Obj, check
from tests.stripe_fake.world import Problem, World, listed

Handler = Callable[[World, str, Obj], Obj]
ROUTES: list[tuple[str, re.Pattern[str], Handler]] = []
MOST = 100


def route(method: str, path: str) -> Callable[[Handler], Handler]:
    """`{id}` stands for one; the handler gets it, or ""."""
    pattern = re.compile(re.escape(path).replace(r"\{id\}", r"(?P<id>[^/]+)"))

    def added(handler: Handler) -> Handler:
        ROUTES.append((method, pattern, handler))
        return handler

    return added


def answer(world: World, method: str, path: str, params: Obj) -> Obj:
    for wanted, pattern, handler in ROUTES:
        found = pattern.fullmatch(path) if wanted == method else None
        if found:
            paths = params.get("expand", [])
            shown = handler(world, found.groupdict().get("id", ""), params)
            if shown.get("object") != "list" and not shown.get("deleted"):
                check(shown)
            shown = expanded(world, shown, paths)
            if not world.keeps("periods_are_on_items"):
                _as_in_old_times(shown)
            return shown
    raise Problem(f"Unrecognized request URL ({method}: {path}).", status=404)


def _as_in_old_times(shown: Obj) -> None:
    """The period stood on the subscription itself once."""
    if shown.get("object") == "subscription":
        for one in shown["items"]["data"]:
            shown["current_period_start"] = one.pop("current_period_start")
            shown["current_period_end"] = one.pop("current_period_end")


def page(world: World, found: list[Obj], params: Obj, url: str) -> Obj:
    """`starting_after` is the last id of the page before."""
    if not world.keeps("lists_come_in_pages"):
        return listed(found, url)
    limit = integer(params, "limit", 10) or 10
    if not 1 <= limit <= MOST:
        raise Problem("Invalid integer: limit must be 1 to 100.", param="limit")
    if params.get("starting_after"):
        ids = [one["id"] for one in found]
        found = found[ids.index(params["starting_after"]) + 1 :]
    return listed(found[:limit], url, has_more=len(found) > limit)


def _retrieve(path: str, kind: str) -> None:
    @route("GET", f"/v1/{path}/{{id}}")
    def retrieve(world: World, object_id: str, params: Obj) -> Obj:
        return world.get(object_id, kind)


for _path, _kind in (
    ("prices", "price"),
    ("products", "product"),
    ("checkout/sessions", "checkout.session"),
    ("payment_intents", "payment_intent"),
    ("charges", "charge"),
    ("refunds", "refund"),
    ("disputes", "dispute"),
    ("subscriptions", "subscription"),
    ("subscription_schedules", "subscription_schedule"),
    ("invoices", "invoice"),
    ("payment_methods", "payment_method"),
    ("events", "event"),
):
    _retrieve(_path, _kind)


# --- customers ------------------------------------------------------------------------------------------


@route("POST", "/v1/customers")
def create_customer(world: World, _id: str, params: Obj) -> Obj:
    only(params, "email", "name", "metadata")
    customer = world.make(
        "customer",
        "cus",
        email=params.get("email"),
        metadata=params.get("metadata", {}),
        balance=0,
        invoice_settings=dict.fromkeys(
            ("custom_fields", "default_payment_method", "footer", "rendering_options")
        ),
    )
    world.emit("customer.created", customer)
    return customer


@route("GET", "/v1/customers/{id}")
def get_customer(world: World, customer_id: str, params: Obj) -> Obj:
    found = world.get(customer_id, "customer")
    return {"id": customer_id, "object": "customer", "deleted": True} if found.get("deleted") else found


@route("DELETE", "/v1/customers/{id}")
def delete_customer(world: World, customer_id: str, params: Obj) -> Obj:
    customer = world.get(customer_id, "customer")
    for subscription in world.all("subscription", customer=customer_id):
        if subscription["status"] not in ("canceled", "incomplete_expired"):
            subscriptions.end(world, subscription)
    world.emit("customer.deleted", customer)
    customer["deleted"] = True
    return {"id": customer_id, "object": "customer", "deleted": True}


@route("GET", "/v1/customers/{id}/payment_methods")
def list_cards(world: World, customer_id: str, params: Obj) -> Obj:
    get_customer(world, customer_id, {})
    found = world.all("payment_method", customer=customer_id)
    return page(world, found, params, f"/v1/customers/{customer_id}/payment_methods")


@route("POST", "/v1/billing_portal/sessions")
def create_portal(world: World, _id: str, params: Obj) -> Obj:
    only(params, "customer", "return_url")
    customer = world.get(params["customer"], "customer")
    session_id = world.new_id("bps")
    return world.make(
        "billing_portal.session",
        "bps",
        id=session_id,
        configuration="bpc_fake",
        customer=customer["id"],
        return_url=params.get("return_url"),
        url=f"{world.address}/p/{session_id}",
    )


# --- products and prices --------------------------------------------------------------------------------


@route("POST", "/v1/prices")
def create_price(world: World, _id: str, params: Obj) -> Obj:
    only(params, "currency", "unit_amount", "recurring", "product", "product_data", "active")
    recurring: dict[str, Any] | None = None
    if "recurring" in params:
        recurring = {
            "interval": params["recurring"]["interval"],
            "interval_count": integer(params["recurring"], "interval_count", 1),
            "meter": None,
            "trial_period_days": None,
            "usage_type": "licensed",
        }
    return world.make(
        "price",
        "price",
        active=params.get("active", "true") == "true",
        billing_scheme="per_unit",
        currency=params["currency"],
        metadata={},
        product=params.get("product") or world.new_id("prod"),
        recurring=recurring,
        tax_behavior="unspecified",
        type="recurring" if recurring else "one_time",
        unit_amount=integer(params, "unit_amount"),
        unit_amount_decimal=params["unit_amount"],
    )


# --- checkout -------------------------------------------------------------------------------------------


@route("POST", "/v1/checkout/sessions")
def create_checkout(world: World, _id: str, params: Obj) -> Obj:
    return checkouts.create(world, params)


@route("POST", "/v1/checkout/sessions/{id}/expire")
def expire_checkout(world: World, session_id: str, params: Obj) -> Obj:
    only(params)
    return checkouts.expire(world, world.get(session_id, "checkout.session"))


# --- payments -------------------------------------------------------------------------------------------


@route("POST", "/v1/payment_intents")
def create_intent(world: World, _id: str, params: Obj) -> Obj:
    return money.create_intent(world, params)


@route("POST", "/v1/refunds")
def create_refund(world: World, _id: str, params: Obj) -> Obj:
    return money.create_refund(world, params)


@route("GET", "/v1/refunds")
def list_refunds(world: World, _id: str, params: Obj) -> Obj:
    found = world.all("refund")
    if params.get("payment_intent"):
        found = [one for one in found if one["payment_intent"] == params["payment_intent"]]
    return page(world, found, params, "/v1/refunds")


# --- subscriptions --------------------------------------------------------------------------------------


@route("POST", "/v1/subscriptions")
def create_subscription(world: World, _id: str, params: Obj) -> Obj:
    return subscriptions.create(world, params)


@route("GET", "/v1/subscriptions")
def list_subscriptions(world: World, _id: str, params: Obj) -> Obj:
    """Ended ones only when all are asked for."""
    found = world.all("subscription")
    if params.get("customer"):
        found = [one for one in found if one["customer"] == params["customer"]]
    status = params.get("status")
    if status is None:
        found = [one for one in found if one["status"] != "canceled"]
    elif status != "all":
        found = [one for one in found if one["status"] == status]
    return page(world, found, params, "/v1/subscriptions")


@route("POST", "/v1/subscriptions/{id}")
def update_subscription(world: World, subscription_id: str, params: Obj) -> Obj:
    return subscriptions.update(world, world.get(subscription_id, "subscription"), params)


@route("DELETE", "/v1/subscriptions/{id}")
def cancel_subscription(world: World, subscription_id: str, params: Obj) -> Obj:
    return subscriptions.cancel(world, world.get(subscription_id, "subscription"), params)


@route("GET", "/v1/subscription_items")
def list_items(world: World, _id: str, params: Obj) -> Obj:
    found = world.get(params["subscription"], "subscription")["items"]["data"]
    return page(world, found, params, "/v1/subscription_items")


@route("POST", "/v1/subscription_schedules")
def create_schedule(world: World, _id: str, params: Obj) -> Obj:
    return schedules.create(world, params)


@route("POST", "/v1/subscription_schedules/{id}")
def update_schedule(world: World, schedule_id: str, params: Obj) -> Obj:
    return schedules.update(world, world.get(schedule_id, "subscription_schedule"), params)


@route("POST", "/v1/subscription_schedules/{id}/release")
def release_schedule(world: World, schedule_id: str, params: Obj) -> Obj:
    return schedules.release(world, world.get(schedule_id, "subscription_schedule"), params)


# --- invoices -------------------------------------------------------------------------------------------


@route("POST", "/v1/invoices/create_preview")
def preview(world: World, _id: str, params: Obj) -> Obj:
    """Nothing is kept of it."""
    only(params, "customer", "subscription", "subscription_details")
    subscription = world.get(params["subscription"], "subscription")
    details = params.get("subscription_details", {})
    price = world.get(details["items"][0]["price"], "price")
    at = integer(details, "proration_date", world.now) or world.now
    latest, events = subscription["latest_invoice"], len(world.events)
    amount = (
        0
        if subscription["status"] == "trialing"
        else subscriptions.prorated(world, subscription, price, at=at)
    )
    shown = invoices.make(world, subscription, amount=amount, reason="upcoming", proration_date=at)
    del world.objects[shown["id"]], world.events[events:]
    subscription["latest_invoice"] = latest
    return shown


@route("POST", "/v1/invoices/{id}/pay")
def pay_invoice(world: World, invoice_id: str, params: Obj) -> Obj:
    invoice = world.get(invoice_id, "invoice")
    if invoice["status"] != "open":
        raise Problem("Invoice is already paid or no longer open.")
    if not invoices.attempt(world, invoice):
        raise Problem("Your card was declined.", status=402, kind="card_error", code="card_declined")
    subscriptions.invoice_paid(world, invoice)
    return invoice


@route("POST", "/v1/invoices/{id}/void")
def void_invoice(world: World, invoice_id: str, params: Obj) -> Obj:
    """With the invoice of a pending update goes the update."""
    only(params)
    invoice = world.get(invoice_id, "invoice")
    invoices.void(world, invoice)
    subscription = world.get(invoices.subscription_id(invoice), "subscription")
    if invoice["billing_reason"] == "subscription_update":
        subscriptions.drop_pending_update(world, subscription)
    return invoice
