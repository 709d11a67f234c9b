"""B13.4: a Stripe that hangs or is down, in every call there is: nobody waits longer than he must, and nothing is half done."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from billing import effects, gateway, inbox, payments, tasks
from billing.errors import GatewayDown
from billing.gateway import Deadline, client
from billing.models import PlanChange, StripeEvent, TopUp
from tests import make
from tests.paying import stripe
from tests.rest import JSON, code_of, person
from tests.shop import API, Shop
from tests.shop import shop_fixture as shop_fixture
from tests.shop import start_fixture as start_fixture
from tests.stripe_fake import Fake
from tests.stripe_fake.faults import FaultKind

__all__ = ["stripe"]
NOW = datetime(2026, 11, 16, tzinfo=UTC)


def _subscription(deadline: Deadline, stripe: Fake) -> gateway.Subscription:
    customer = gateway.create_customer(deadline, email="ada@example.com", account_id=7, user_id=3)
    stripe.subscribe(customer.id, stripe.price(1_000))
    return gateway.list_subscriptions(deadline, customer.id)[0]


CREDIT = gateway.CreditPurchase(
    customer_id="cus_1", top_up_id="t", amount_cents=500, currency="usd", save_card=False,
    success_url="https://x", cancel_url="https://x", expires_at=NOW + timedelta(hours=1),
)  # fmt: skip
PLAN = gateway.PlanPurchase(
    customer_id="cus_1", price_id="price_1", user_id=1, plan_change_id="c", trial_days=0,
    success_url="https://x", cancel_url="https://x",
)  # fmt: skip
PHASE = gateway.Phase(price_id="price_1", starts_at=NOW, ends_at=NOW + timedelta(days=30))
Act = Callable[[Deadline, gateway.Subscription], object]
ACTS: dict[str, Act] = {
    "cancel_subscription": lambda d, s: gateway.cancel_subscription(d, s.id, key="k"),
    "change_price": lambda d, s: gateway.change_price(d, s, "price_2", key="k"),
    "charge_card": lambda d, s: gateway.charge_card(
        d, customer_id="cus_1", card_id="pm_1", amount_cents=5, currency="usd", top_up_id="t"
    ),
    "create_customer": lambda d, s: gateway.create_customer(d, email="", account_id=8, user_id=4),
    "create_schedule": lambda d, s: gateway.create_schedule(d, s.id, key="k"),
    "expire_checkout": lambda d, s: gateway.expire_checkout(d, "cs_1", key="k"),
    "get_charges_intent_id": lambda d, s: gateway.get_charges_intent_id(d, "ch_1"),
    "get_checkout": lambda d, s: gateway.get_checkout(d, "cs_1"),
    "get_customer": lambda d, s: gateway.get_customer(d, "cus_1"),
    "get_dispute": lambda d, s: gateway.get_dispute(d, "dp_1"),
    "get_intent": lambda d, s: gateway.get_intent(d, "pi_1"),
    "get_invoice": lambda d, s: gateway.get_invoice(d, "in_1"),
    "get_price": lambda d, s: gateway.get_price(d, "price_1"),
    "get_schedule": lambda d, s: gateway.get_schedule(d, "sub_sched_1"),
    "get_subscription": lambda d, s: gateway.get_subscription(d, s.id),
    "list_cards": lambda d, s: gateway.list_cards(d, "cus_1"),
    "list_refunds": lambda d, s: gateway.list_refunds(d, "pi_1"),
    "list_subscriptions": lambda d, s: gateway.list_subscriptions(d, "cus_1"),
    "open_portal": lambda d, s: gateway.open_portal(d, customer_id="cus_1", return_url="https://x"),
    "plan_price_change": lambda d, s: gateway.plan_price_change(
        d, "sub_sched_1", current=PHASE, price_id="price_2", key="k"
    ),
    "preview_price": lambda d, s: gateway.preview_price(d, s, "price_2", at=NOW),
    "refund": lambda d, s: gateway.refund(d, "pi_1", amount_cents=5, key="k"),
    "release_schedule": lambda d, s: gateway.release_schedule(d, "sub_sched_1", key="k"),
    "sell_credit": lambda d, s: gateway.sell_credit(d, CREDIT, key="k"),
    "sell_plan": lambda d, s: gateway.sell_plan(d, PLAN, key="k"),
    "set_cancel_at_period_end": lambda d, s: gateway.set_cancel_at_period_end(d, s.id, cancel=True, key="k"),
    "void_invoice": lambda d, s: gateway.void_invoice(d, "in_1", key="k"),
}
NO_CALL = {"in_request", "in_task", "verified"}


def test_every_call_is_tried_below() -> None:
    """B13.4: whatever the gateway offers"""
    offered = {name for name in gateway.__all__ if inspect.isfunction(getattr(gateway, name))}
    assert set(ACTS) == offered - NO_CALL


def test_no_call_waits_for_a_stripe_that_hangs_or_is_down(
    stripe: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B13.4: each gives up by itself though no answer ever comes, and says that it may work later"""
    subscription = _subscription(gateway.in_request(), stripe)
    monkeypatch.setattr(client, "CALL_SECONDS", 0.05)
    faults: tuple[FaultKind, ...] = ("hang", "drip", "error")
    for fault in faults:
        stripe.faults.add(fault, times=10_000)
        for act in ACTS.values():
            with pytest.raises(GatewayDown):
                act(gateway.in_request(), subscription)
        stripe.faults.clear()


# --- the doors ------------------------------------------------------------------------------------------


@pytest.fixture(params=["hang", "reset"])
def away(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Fake], None]:
    monkeypatch.setattr(client, "CALL_SECONDS", 0.05)
    return lambda fake: fake.faults.add(request.param, times=10_000)


@pytest.mark.django_db
def test_every_door_answers_though_stripe_does_not(shop: Shop, away: Callable[[Fake], None]) -> None:
    """B13.4, B16: 502 where Stripe must act, the known part where it only tells; nothing is left half done"""
    shop.subscribe("PRO")
    away(shop.fake)
    ada = person(shop.user)
    for path, body in (
        ("subscription", {"tier": "BUSINESS"}),
        ("subscription", {"tier": "FREE"}),
        ("subscription", {"tier": "PRO"}),
        ("subscription/preview", {"tier": "BUSINESS"}),
        ("portal", {}),
        ("top-ups", {"amount_cents": 500}),
    ):
        answer = ada.post(f"{API}/{path}", body, content_type=JSON)
        assert (answer.status_code, code_of(answer)) == (502, "stripe_unavailable"), path
    assert shop.status()["pending_unknown"] is True
    assert ada.get(reverse("billing_plan")).status_code == 200
    assert (shop.tier, shop.account.change_token) == ("PRO", None)
    left = PlanChange.objects.order_by("created_at").values_list("kind", "state")
    assert list(left) == [("UPGRADE", "FAILED"), ("CANCEL", "FAILED"), ("KEEP", "FAILED")]  # B11.4, step 11
    assert [top_up.state for top_up in TopUp.objects.all()] == ["CREATED"]


@pytest.mark.django_db
def test_staff_and_tasks_go_on_though_stripe_does_not(shop: Shop, away: Callable[[Fake], None]) -> None:
    """B15.4, B14.3: an event waits for its next attempt, staff are told, the drift check harms nobody"""
    shop.subscribe("PRO")
    purchase = payments.Purchase(amount_cents=500, success_url="https://x", cancel_url="https://x")
    top_up = payments.buy(shop.user.pk, purchase, key=None)
    shop.fake.pay(top_up.checkout_session_id or "")
    shop.fake.webhooks.deliver()
    away(shop.fake)
    paid = StripeEvent.objects.get(type="checkout.session.completed", state="RECEIVED")
    assert effects.apply(paid.pk) == inbox.FIRST_WAIT
    tasks.check_drift(shop.account.pk)
    tasks.reconcile()
    tasks.reconcile_top_ups()
    asked = {
        "action": "sync_now", "_selected_action": [shop.account.pk], "apply": "yes", "reason": "Is it up?"
    }  # fmt: skip
    told = person(make.grace()).post(reverse("admin:billing_account_changelist"), asked, follow=True)
    assert "contact support" in told.content.decode()
    assert not LogEntry.objects.exists()
    shop.fake.faults.clear()
    StripeEvent.objects.update(due_at=NOW)
    effects.apply(paid.pk)
    assert TopUp.objects.get().state == "PAID"
