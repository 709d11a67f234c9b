"""Payments of the fake: intents and charges, what is given back, what is fought over."""

from __future__ import annotations

from typing import Any, Literal

from tests.stripe_fake.forms import flag, integer, only
from tests.stripe_fake.shapes import Obj
from tests.stripe_fake.world import Problem, World

NOBODY = {"address": None, "email": None, "name": None, "phone": None, "tax_id": None}


def pay(world: World, *, customer_id: str, amount: int, currency: str, metadata: Obj) -> Obj:
    """An intent that succeeded, or one that shows why it did not."""
    card = world.card_of(customer_id)
    behaviour = world.behaviour(customer_id) if card else "decline"
    intent = world.make(
        "payment_intent",
        "pi",
        amount=amount,
        amount_capturable=0,
        amount_received=0,
        capture_method="automatic",
        confirmation_method="automatic",
        currency=currency,
        customer=customer_id,
        metadata=metadata,
        payment_method=card,
        payment_method_types=["card"],
        status="requires_payment_method",
    )
    world.emit("payment_intent.created", intent)
    if behaviour == "ok":
        _succeed(world, intent)
    else:
        _refuse(world, intent, behaviour)
    return intent


def _succeed(world: World, intent: Obj) -> None:
    charge = _charge(world, intent, status="succeeded", paid=True)
    world.emit("charge.succeeded", charge)
    intent.update(status="succeeded", amount_received=intent["amount"], latest_charge=charge["id"])
    world.emit("payment_intent.succeeded", intent)


def _refuse(world: World, intent: Obj, behaviour: str) -> None:
    charge = _charge(world, intent, status="failed", paid=False)
    world.emit("charge.failed", charge)
    code = "card_declined" if behaviour == "decline" else "authentication_required"
    intent.update(
        latest_charge=charge["id"],
        last_payment_error={"type": "card_error", "code": code, "message": "Your card was declined."},
    )
    world.emit("payment_intent.payment_failed", intent)


def _charge(world: World, intent: Obj, *, status: str, paid: bool) -> Obj:
    return world.make(
        "charge",
        "ch",
        amount=intent["amount"],
        amount_captured=intent["amount"] if paid else 0,
        amount_refunded=0,
        billing_details=NOBODY,
        captured=paid,
        currency=intent["currency"],
        customer=intent["customer"],
        disputed=False,
        metadata={},
        paid=paid,
        payment_intent=intent["id"],
        payment_method=intent["payment_method"],
        refunded=False,
        status=status,
    )


def create_intent(world: World, params: Obj) -> Obj:
    """Off-session and confirmed at once: the only way we use."""
    only(
        params,
        "amount",
        "currency",
        "customer",
        "payment_method",
        "allowed_payment_method_types",
        "confirm",
        "off_session",
        "metadata",
        "description",
    )
    amount = integer(params, "amount")
    if not amount or amount < 50:
        raise Problem("Amount must be at least 50 cents.", code="amount_too_small", param="amount")
    customer = world.get(params["customer"], "customer")
    card = world.get(params.get("payment_method", ""), "payment_method")
    if card["customer"] != customer["id"]:
        raise Problem("The payment method belongs to another customer.", param="payment_method")
    if not (flag(params, "confirm") and flag(params, "off_session")):
        raise Problem("The fake charges off-session and at once.", param="off_session")
    intent = pay(
        world,
        customer_id=customer["id"],
        amount=amount,
        currency=params["currency"],
        metadata=params.get("metadata", {}),
    )
    problem = intent["last_payment_error"]
    if problem:
        raise Problem(
            problem["message"], status=402, kind="card_error", code=problem["code"], payment_intent=intent
        )
    return intent


# --- refunds --------------------------------------------------------------------------------------------


def create_refund(world: World, params: Obj) -> Obj:
    only(params, "payment_intent", "charge", "amount", "reason", "metadata")
    charge = _charge_of(world, params)
    left = charge["amount_captured"] - charge["amount_refunded"]
    if not left:
        raise Problem("The charge has already been refunded.", code="charge_already_refunded")
    amount = integer(params, "amount", left) or left
    if amount > left:
        raise Problem("Refund amount is greater than unrefunded amount on charge.", param="amount")
    return make_refund(world, charge, amount=amount, status="succeeded")


def make_refund(world: World, charge: Obj, *, amount: int, status: str) -> Obj:
    refund = world.make(
        "refund",
        "re",
        amount=amount,
        charge=charge["id"],
        currency=charge["currency"],
        customer=charge["customer"],
        metadata={},
        payment_intent=charge["payment_intent"],
        status=status,
    )
    charge["amount_refunded"] += amount
    charge["refunded"] = charge["amount_refunded"] == charge["amount_captured"]
    world.emit("refund.created", refund)
    world.emit("charge.refunded", charge)
    return refund


def end_refund(world: World, refund: Obj, status: Literal["succeeded", "failed", "canceled"]) -> None:
    """What failed or was taken back lies with the charge again."""
    before = {"status": refund["status"]}
    refund["status"] = status
    if status != "succeeded":
        charge = world.get(refund["charge"], "charge")
        charge["amount_refunded"] -= refund["amount"]
        charge["refunded"] = False
    world.emit("refund.updated", refund, before)
    if status == "failed":
        world.emit("refund.failed", refund, before)


def _charge_of(world: World, params: Obj) -> Obj:
    if params.get("charge"):
        return world.get(params["charge"], "charge")
    intent = world.get(params.get("payment_intent", ""), "payment_intent")
    if intent["status"] != "succeeded":
        raise Problem("This PaymentIntent does not have a successful charge to refund.")
    return world.get(intent["latest_charge"], "charge")


# --- disputes -------------------------------------------------------------------------------------------


def open_dispute(world: World, charge: Obj, *, amount: int) -> Obj:
    dispute = world.make(
        "dispute",
        "dp",
        amount=amount,
        balance_transactions=[],
        charge=charge["id"],
        currency=charge["currency"],
        enhanced_eligibility_types=[],
        evidence=_nulls("Evidence") | {"enhanced_evidence": {}},
        evidence_details={
            "due_by": None,
            "enhanced_eligibility": {},
            "has_evidence": False,
            "past_due": False,
            "submission_count": 0,
            "submission_method": "not_submitted",
        },
        is_charge_refundable=False,
        metadata={},
        payment_intent=charge["payment_intent"],
        reason="fraudulent",
        status="needs_response",
    )
    charge["disputed"] = True
    world.emit("charge.dispute.created", dispute)
    world.emit("charge.dispute.funds_withdrawn", dispute)
    return dispute


def close_dispute(world: World, dispute: Obj, *, won: bool) -> None:
    dispute["status"] = "won" if won else "lost"
    world.emit("charge.dispute.closed", dispute)
    if won:
        world.emit("charge.dispute.funds_reinstated", dispute)


def _nulls(inner: str) -> dict[str, Any]:
    import stripe

    return dict.fromkeys(getattr(stripe.Dispute, inner).__annotations__)
