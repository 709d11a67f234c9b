"""B13.4: a Stripe that hangs or is down, in every call there is: nobody waits longer than he must, and nothing is half done."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from billing import tasks
from billing.errors import PaymentServiceUnavailable
from billing.models import PlanChange, StripeEvent, TopUp
from billing.stripe import (
    api_client,
    checkout_api,
    event_handlers,
    objects,
    payment_api,
    subscription_api,
    webhook_events,
)
from billing.stripe.api_client import StripeDeadline
from billing.top_ups import purchases
from tests.stripe_fake import Fake
from tests.stripe_fake.faults import FaultKind
from tests.support import factories
from tests.support.plan_shop import API, Shop
from tests.support.rest_clients import JSON, code_of, person

NOW = datetime(2026, 11, 16, tzinfo=UTC)


def _subscription(deadline: StripeDeadline, stripe: Fake) -> objects.StripeSubscription:
    customer = payment_api.create_customer(deadline, email="ada@example.com", account_id=7, user_id=3)
    stripe.subscribe(customer.id, stripe.price(1_000))
    return subscription_api.list_subscriptions(deadline, customer.id)[0]


CREDIT = checkout_api.CreditPurchase(
    customer_id="cus_1", top_up_id="t", amount_cents=500, currency="usd", save_card=False,
    success_url="https://x", cancel_url="https://x", expires_at=NOW + timedelta(hours=1),
)  # fmt: skip
PLAN = checkout_api.PlanPurchase(
    customer_id="cus_1", price_id="price_1", user_id=1, plan_change_id="c", trial_days=0,
    success_url="https://x", cancel_url="https://x",
)  # fmt: skip
PHASE = objects.SchedulePhase(price_id="price_1", starts_at=NOW, ends_at=NOW + timedelta(days=30))
Act = Callable[[StripeDeadline, objects.StripeSubscription], object]
ACTS: dict[str, Act] = {
    "cancel_subscription": lambda d, s: subscription_api.cancel_subscription(d, s.id, key="k"),
    "change_subscription_price": lambda d, s: subscription_api.change_subscription_price(
        d, s, "price_2", key="k"
    ),
    "charge_saved_card": lambda d, s: payment_api.charge_saved_card(
        d, customer_id="cus_1", card_id="pm_1", amount_cents=5, currency="usd", top_up_id="t"
    ),
    "create_customer": lambda d, s: payment_api.create_customer(d, email="", account_id=8, user_id=4),
    "create_schedule": lambda d, s: subscription_api.create_schedule(d, s.id, key="k"),
    "expire_checkout": lambda d, s: checkout_api.expire_checkout(d, "cs_1", key="k"),
    "get_charge_payment_intent_id": lambda d, s: payment_api.get_charge_payment_intent_id(d, "ch_1"),
    "get_checkout": lambda d, s: checkout_api.get_checkout(d, "cs_1"),
    "get_customer": lambda d, s: payment_api.get_customer(d, "cus_1"),
    "get_dispute": lambda d, s: payment_api.get_dispute(d, "dp_1"),
    "get_payment_intent": lambda d, s: payment_api.get_payment_intent(d, "pi_1"),
    "get_invoice": lambda d, s: subscription_api.get_invoice(d, "in_1"),
    "get_price": lambda d, s: payment_api.get_price(d, "price_1"),
    "get_schedule": lambda d, s: subscription_api.get_schedule(d, "sub_sched_1"),
    "get_subscription": lambda d, s: subscription_api.get_subscription(d, s.id),
    "list_saved_cards": lambda d, s: payment_api.list_saved_cards(d, "cus_1"),
    "list_refunds": lambda d, s: payment_api.list_refunds(d, "pi_1"),
    "list_subscriptions": lambda d, s: subscription_api.list_subscriptions(d, "cus_1"),
    "create_portal_session": lambda d, s: payment_api.create_portal_session(
        d, customer_id="cus_1", return_url="https://x"
    ),
    "schedule_price_change": lambda d, s: subscription_api.schedule_price_change(
        d, "sub_sched_1", current=PHASE, price_id="price_2", key="k"
    ),
    "preview_price_change": lambda d, s: subscription_api.preview_price_change(d, s, "price_2", at=NOW),
    "create_refund": lambda d, s: payment_api.create_refund(d, "pi_1", amount_cents=5, key="k"),
    "release_schedule": lambda d, s: subscription_api.release_schedule(d, "sub_sched_1", key="k"),
    "create_credit_checkout": lambda d, s: checkout_api.create_credit_checkout(d, CREDIT, key="k"),
    "create_plan_checkout": lambda d, s: checkout_api.create_plan_checkout(d, PLAN, key="k"),
    "set_cancel_at_period_end": lambda d, s: subscription_api.set_cancel_at_period_end(
        d, s.id, cancel=True, key="k"
    ),
    "void_invoice": lambda d, s: subscription_api.void_invoice(d, "in_1", key="k"),
}


def test_every_call_is_tried_below() -> None:
    """B13.4: whatever the modules of Stripe's API offer"""
    offered = {
        name
        for module in (checkout_api, payment_api, subscription_api)
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    }
    assert set(ACTS) == offered


def test_no_call_waits_for_a_stripe_that_hangs_or_is_down(
    stripe: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B13.4: each gives up by itself though no answer ever comes, and says that it may work later"""
    subscription = _subscription(api_client.start_request_deadline(), stripe)
    faults: dict[FaultKind, float] = {"hang": 0.02, "drip": 0.02, "error": 5.0}  # and what a call may take
    for fault, seconds in faults.items():
        monkeypatch.setattr(api_client, "CALL_TIMEOUT_SECONDS", seconds)
        stripe.faults.add(fault, times=10_000)
        for act in ACTS.values():
            with pytest.raises(PaymentServiceUnavailable):
                act(api_client.start_request_deadline(), subscription)
        stripe.faults.clear()


# --- endpoints ------------------------------------------------------------------------------------------


@pytest.fixture(params=["hang", "reset"])
def away(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Fake], None]:
    monkeypatch.setattr(api_client, "CALL_TIMEOUT_SECONDS", 0.05)
    return lambda fake: fake.faults.add(request.param, times=10_000)


@pytest.mark.django_db
def test_every_endpoint_answers_while_stripe_does_not(shop: Shop, away: Callable[[Fake], None]) -> None:
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
    purchase = purchases.TopUpPurchase(amount_cents=500, success_url="https://x", cancel_url="https://x")
    top_up = purchases.start_top_up(shop.user.pk, purchase, key=None)
    shop.fake.pay(top_up.checkout_session_id or "")
    shop.fake.webhooks.deliver()
    away(shop.fake)
    paid = StripeEvent.objects.get(type="checkout.session.completed", state="RECEIVED")
    assert event_handlers.apply_stripe_event(paid.pk) == webhook_events.FIRST_RETRY_DELAY
    tasks.check_drift(shop.account.pk)
    tasks.reconcile()
    tasks.reconcile_top_ups()
    asked = {
        "action": "sync_now", "_selected_action": [shop.account.pk], "apply": "yes", "reason": "Is it up?"
    }  # fmt: skip
    told = person(factories.grace()).post(reverse("admin:billing_account_changelist"), asked, follow=True)
    assert "contact support" in told.content.decode()
    assert not LogEntry.objects.exists()
    shop.fake.faults.clear()
    StripeEvent.objects.update(due_at=NOW)
    event_handlers.apply_stripe_event(paid.pk)
    assert TopUp.objects.get().state == "PAID"
