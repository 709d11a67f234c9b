"""Calls of Stripe through its own SDK, to a server on this machine: what comes back, and what goes wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from django.test import override_settings

from billing.errors import (
    CardDeclined,
    PaymentsDisabled,
    PaymentServiceError,
    PaymentServiceRefusal,
    PaymentServiceUnavailable,
)
from billing.stripe import api_client, checkout_api, objects, payment_api, subscription_api
from tests.stripe_fake import Fake
from tests.stripe_fake.faults import FaultKind


def ada(seconds: float = 30.0) -> objects.StripeCustomer:
    return payment_api.create_customer(
        api_client.start_request_deadline(seconds), email="ada@example.com", account_id=7, user_id=3
    )


@pytest.mark.parametrize("fault", ["error", "hang_after", "reset", "reset_after", "hang", "drip"])
def test_a_create_that_the_sdk_repeats_makes_one_object(
    stripe: Fake, fault: FaultKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B13.c1: time-out, reset after commit, 500 then 200."""
    monkeypatch.setattr(api_client, "CALL_TIMEOUT_SECONDS", 0.5)
    stripe.faults.add(fault, "POST", "/v1/customers")
    assert ada().id == stripe.all("customer")[0]["id"]
    assert len(stripe.all("customer")) == 1


@pytest.mark.parametrize(
    ("fault", "error", "retryable"),
    [
        ("error", PaymentServiceUnavailable, True),
        ("stored_error", PaymentServiceUnavailable, True),
        ("reset", PaymentServiceUnavailable, True),
        ("limit", PaymentServiceUnavailable, True),
        ("unauthorised", PaymentServiceRefusal, False),
    ],
)
def test_what_goes_wrong_is_named(
    stripe: Fake,
    fault: FaultKind,
    error: type[PaymentServiceError],
    retryable: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """B13.c1: errors map as stated; a refused key calls staff, and no log shows it."""
    stripe.faults.add(fault, "POST", "/v1/customers", times=5)
    with caplog.at_level(logging.DEBUG), pytest.raises(error) as raised:
        ada()
    assert raised.value.retryable is retryable
    assert ("billing_alert" in caplog.text) == (fault == "unauthorised")
    assert "sk_test" not in caplog.text
    assert "ada@example.com" not in caplog.text


def test_a_sequence_ends_at_its_deadline(stripe: Fake) -> None:
    """B13.4: a deadline bounds a sequence; when it is over, nothing is sent."""
    stripe.faults.add("hang", times=9)
    deadline = api_client.start_request_deadline(0.2)
    with pytest.raises(PaymentServiceUnavailable):
        payment_api.get_customer(deadline, "cus_1")
    with pytest.raises(PaymentServiceUnavailable):
        payment_api.get_customer(deadline, "cus_2")
    assert deadline.get_seconds_left() < 0
    assert stripe.calls == []


def test_an_answer_that_drips_in_is_given_up_at_the_same_time(stripe: Fake) -> None:
    """B13.4: a time-out per call, not per byte"""
    stripe.faults.add("drip", times=9)
    deadline = api_client.start_request_deadline(0.5)
    with pytest.raises(PaymentServiceUnavailable):
        payment_api.get_customer(deadline, "cus_1")
    assert deadline.get_seconds_left() < 0


@pytest.mark.parametrize(
    ("deadline", "tries"), [(api_client.start_request_deadline, 2), (api_client.start_task_deadline, 3)]
)
def test_later_pages_of_a_list_are_tried_as_often_as_the_first(
    stripe: Fake, deadline: Callable[[], api_client.StripeDeadline], tries: int
) -> None:
    """B13.4: 1 network retry in requests, 2 in tasks"""
    customer = ada()
    for _ in range(120):
        stripe.save_card(customer.id)
    stripe.faults.add("error", "GET", "/v1/customers", times=tries - 1, after=1)
    assert len(payment_api.list_saved_cards(deadline(), customer.id)) == 120
    stripe.faults.add("error", "GET", "/v1/customers", times=tries, after=1)
    with pytest.raises(PaymentServiceUnavailable):
        payment_api.list_saved_cards(deadline(), customer.id)


def test_a_used_key_with_another_body_is_refused(stripe: Fake) -> None:
    """B13.4: other 4xx are not retryable."""
    ada()
    with pytest.raises(PaymentServiceRefusal) as raised:
        payment_api.create_customer(
            api_client.start_request_deadline(), email="eve@example.com", account_id=7, user_id=3
        )
    assert not raised.value.retryable


def test_without_a_key_nothing_is_tried(stripe: Fake) -> None:
    """B19.1: no network call."""
    with override_settings(STRIPE_SECRET_KEY=""), pytest.raises(PaymentsDisabled):
        ada()
    assert stripe.calls == []


def test_lists_are_read_to_the_end(stripe: Fake) -> None:
    """B13.3: 100 per page."""
    customer = ada()
    for _ in range(120):
        stripe.save_card(customer.id)
    assert len(payment_api.list_saved_cards(api_client.start_task_deadline(), customer.id)) == 120


def test_what_stripe_does_not_have_is_nothing(stripe: Fake) -> None:
    """B14.4: an object that Stripe no longer has counts as ended, and is no error."""
    deadline = api_client.start_task_deadline()
    assert subscription_api.get_subscription(deadline, "sub_none") is None
    assert checkout_api.get_checkout(deadline, "cs_none") is None
    assert subscription_api.get_invoice(deadline, "in_none") is None
    assert payment_api.get_price(deadline, "price_none") is None
    assert payment_api.get_customer(deadline, "cus_none") is None


def test_a_saved_card_is_charged_once_per_top_up(stripe: Fake) -> None:
    """B10.4: with key `topup:<id>`; a bank that wants to see the customer is a decline that says so."""
    customer = ada()
    card_id = stripe.save_card(customer.id)

    def charge(top_up_id: str) -> objects.PaymentIntent:
        return payment_api.charge_saved_card(
            api_client.start_task_deadline(),
            customer_id=customer.id,
            card_id=card_id,
            amount_cents=500,
            currency="usd",
            top_up_id=top_up_id,
        )

    first = charge("one")
    assert (first.status, first.received_cents, first.metadata) == ("succeeded", 500, {"top_up": "one"})
    assert charge("one") == first
    stripe.card("authenticate")
    with pytest.raises(CardDeclined) as raised:
        charge("two")
    assert raised.value.needs_customer
    assert raised.value.payment_intent_id == stripe.all("payment_intent")[0]["id"]


def test_a_plan_goes_up_and_down_at_stripe(stripe: Fake) -> None:
    """B13.2: item-level periods, schedules with durations, pending updates, as the SDK gives them."""
    deadline, customer = api_client.start_task_deadline(), ada()
    pro, business = stripe.price(1000), stripe.price(3000)
    stripe.subscribe(customer.id, pro)
    (subscription,) = subscription_api.list_subscriptions(deadline, customer.id)
    assert (subscription.status, subscription.price_id) == ("active", pro)
    assert subscription.period_start
    assert subscription.period_end
    assert subscription.period_end - subscription.period_start == timedelta(days=30)

    stripe.card("decline")
    waiting = subscription_api.change_subscription_price(deadline, subscription, business, key="plan:1:price")
    assert waiting.price_id == pro
    assert waiting.pending_update
    assert waiting.latest_invoice
    assert waiting.pending_update.price_id == business
    assert (waiting.latest_invoice.status, waiting.latest_invoice.subscription_id) == (
        "open",
        subscription.id,
    )
    subscription_api.void_invoice(deadline, waiting.latest_invoice.id, key="plan:2:void")

    stripe.card("ok")
    shown = subscription_api.preview_price_change(deadline, subscription, business, at=datetime.now(UTC))
    raised = subscription_api.change_subscription_price(deadline, subscription, business, key="plan:3:price")
    assert raised.price_id == business
    assert raised.latest_invoice
    assert abs(shown.due_now_cents - raised.latest_invoice.due_cents) <= 1

    schedule = subscription_api.create_schedule(deadline, subscription.id, key="plan:4:schedule")
    planned = subscription_api.schedule_price_change(
        deadline, schedule.id, current=schedule.phases[0], price_id=pro, key="plan:4:phases"
    )
    assert [phase.price_id for phase in planned.phases] == [business, pro]
    with pytest.raises(PaymentServiceRefusal):
        subscription_api.set_cancel_at_period_end(deadline, subscription.id, cancel=True, key="plan:5:cancel")
    stripe.advance(days=31)
    now = subscription_api.get_subscription(deadline, subscription.id)
    assert now
    assert (now.price_id, now.schedule_id) == (pro, schedule.id)
    subscription_api.release_schedule(deadline, schedule.id, key="plan:6:release")
    ended = subscription_api.cancel_subscription(deadline, subscription.id, key="plan:7:cancel", prorate=True)
    assert ended
    assert ended.is_over
