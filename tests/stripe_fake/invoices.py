"""Invoices of the fake: made, paid or not, tried again, voided."""

from __future__ import annotations

from tests.stripe_fake import money
from tests.stripe_fake.shapes import Obj
from tests.stripe_fake.world import DAY, Problem, World, listed


def make(
    world: World, subscription: Obj, *, amount: int, reason: str, proration_date: int | None = None
) -> Obj:
    """Open at once: Stripe keeps a renewal as a draft for an hour, which changes nothing for us."""
    invoice_id = world.new_id("in")
    item = subscription["items"]["data"][0]
    details = {"metadata": subscription["metadata"], "subscription": subscription["id"]}
    invoice = world.make(
        "invoice",
        "in",
        id=invoice_id,
        amount_due=max(amount, 0),
        amount_paid=0,
        amount_remaining=max(amount, 0),
        attempt_count=0,
        attempted=False,
        billing_reason=reason,
        currency=subscription["currency"],
        customer=subscription["customer"],
        hosted_invoice_url=f"{world.address}/i/{invoice_id}",
        lines=listed([], f"/v1/invoices/{invoice_id}/lines"),
        parent={
            "type": "subscription_details",
            "quote_details": None,
            "subscription_details": {**details, "subscription_proration_date": proration_date},
        },
        period_start=item["current_period_start"],
        period_end=item["current_period_end"],
        status="open",
        status_transitions={
            "finalized_at": world.now,
            "marked_uncollectible_at": None,
            "paid_at": None,
            "voided_at": None,
        },
        subtotal=amount,
        total=amount,
        **_always(),
    )
    subscription["latest_invoice"] = invoice["id"]
    world.emit("invoice.created", invoice)
    world.emit("invoice.finalized", invoice)
    return invoice


def _always() -> Obj:
    """Return the fields that every invoice has, created for each one."""
    return {
        "amount_overpaid": 0,
        "amount_shipping": 0,
        "auto_advance": True,
        "automatic_tax": {
            "enabled": False,
            "disabled_reason": None,
            "liability": None,
            "provider": None,
            "status": None,
        },
        "collection_method": "charge_automatically",
        "default_tax_rates": [],
        "discounts": [],
        "issuer": {"type": "self"},
        "metadata": {},
        "payment_settings": {
            "default_mandate": None,
            "payment_method_options": None,
            "payment_method_types": None,
        },
        "post_payment_credit_notes_amount": 0,
        "pre_payment_credit_notes_amount": 0,
        "starting_balance": 0,
    }


def attempt(world: World, invoice: Obj) -> bool:
    """Tries to collect it; whether it is paid now. What follows for the subscription, its caller decides."""
    invoice["attempted"] = True
    if invoice["amount_due"] == 0:
        _paid(world, invoice)
        return True
    invoice["attempt_count"] += 1
    intent = money.pay(
        world,
        customer_id=invoice["customer"],
        amount=invoice["amount_due"],
        currency=invoice["currency"],
        metadata={},
    )
    if intent["status"] == "succeeded":
        _paid(world, invoice)
        return True
    if invoice["billing_reason"] == "subscription_cycle":
        tried = invoice["attempt_count"] - 1
        days = world.retry_days
        invoice["next_payment_attempt"] = world.now + days[tried] * DAY if tried < len(days) else None
    world.emit("invoice.payment_failed", invoice)
    if intent["last_payment_error"]["code"] == "authentication_required":
        world.emit("invoice.payment_action_required", invoice)
    return False


def _paid(world: World, invoice: Obj) -> None:
    invoice.update(
        status="paid", amount_paid=invoice["amount_due"], amount_remaining=0, next_payment_attempt=None
    )
    invoice["status_transitions"]["paid_at"] = world.now
    world.emit("invoice.paid", invoice)
    world.emit("invoice.payment_succeeded", invoice)


def void(world: World, invoice: Obj) -> None:
    if invoice["status"] != "open":
        raise Problem(f"You can only void open invoices; this one is {invoice['status']}.")
    invoice.update(status="void", next_payment_attempt=None)
    invoice["status_transitions"]["voided_at"] = world.now
    world.emit("invoice.voided", invoice)


def subscription_id(invoice: Obj) -> str:
    return str(invoice["parent"]["subscription_details"]["subscription"])


def open_ones(world: World, subscription: Obj) -> list[Obj]:
    return [one for one in world.all("invoice", status="open") if subscription_id(one) == subscription["id"]]
