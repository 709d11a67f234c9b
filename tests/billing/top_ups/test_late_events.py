"""What is heard late, asked for late, or wanted no more by then: money follows what is true, not what was first."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from django.test import Client
from django.utils import timezone

from billing import accounts
from billing.models import Account, AutoTopUp, BillingNotice, StripeEvent, TierPolicy, TopUp
from billing.stripe import api_client, subscription_api
from billing.top_ups import auto_top_ups, purchases
from tests import stripe_fake
from tests.stripe_fake import Fake, deliveries
from tests.support import factories
from tests.support.plan_shop import Shop
from tests.support.rest_clients import V1, person
from tests.support.stripe_webhooks import WEBHOOK, apply_received, settle

pytestmark = pytest.mark.django_db
API = f"{V1}/billing"


def test_a_charge_that_waits_is_not_made_once_its_owner_switched_it_off(stripe: Fake) -> None:
    """B10.4: it could not be made at once, and he has changed his mind since."""
    account = accounts.get_or_create_account(factories.ada().pk)
    stripe.save_card(accounts.ensure_stripe_customer(account, api_client.start_task_deadline()))
    AutoTopUp.objects.create(account=account, enabled=True, threshold_cents=500, amount_cents=1_000)
    stripe.faults.add("error", "POST", "/v1/payment_intents", times=3)
    auto_top_ups.top_up_if_low(account.pk)
    off = auto_top_ups.AutoTopUpRequest(enabled=False, threshold_cents=500, amount_cents=1_000, consent=False)
    auto_top_ups.configure_auto_top_up(account.user_id, off)
    TopUp.objects.update(created_at=timezone.now() - auto_top_ups.STUCK_AFTER)
    auto_top_ups.retry_stuck_charges()
    assert (TopUp.objects.get().state, stripe.all("payment_intent")) == (TopUp.State.FAILED, [])


def test_a_dispute_of_what_was_refunded_stops_automatic_charges_all_the_same(stripe: Fake) -> None:
    """B10.6: nothing is left to take back; auto top-up is off and its owner told, once."""
    purchase = purchases.TopUpPurchase(amount_cents=1_000, success_url="https://x", cancel_url="https://x")
    top_up = purchases.start_top_up(factories.ada().pk, purchase, key=None)
    stripe.pay(top_up.checkout_session_id)
    settle(stripe)
    top_up.refresh_from_db()
    AutoTopUp.objects.create(account=top_up.account, enabled=True, threshold_cents=1, amount_cents=500)
    stripe.refund(top_up.payment_intent_id, 1_000)
    dispute_id = stripe.dispute(top_up.payment_intent_id, 1_000)
    settle(stripe)
    assert (AutoTopUp.objects.get().enabled, AutoTopUp.objects.get().disabled_reason) == (False, "dispute")
    assert BillingNotice.objects.filter(kind="payment_disputed").count() == 1
    AutoTopUp.objects.update(enabled=True)
    stripe.close_dispute(dispute_id, won=False)
    settle(stripe)
    assert AutoTopUp.objects.get().enabled


def test_attempts_found_together_are_reported_one_by_one(shop: Shop) -> None:
    """B15.1: a notice for each, and the grace runs from the first, though Stripe counts two by then."""
    shop.subscribe("PRO")
    shop.fake.card("decline")
    shop.pass_time(days=30, hours=1)
    first_failed = timezone.now()
    shop.pass_time(days=3)
    shop.fake.webhooks.deliver(
        one for one in shop.fake.webhooks.take() if one["type"] == "invoice.payment_failed"
    )
    apply_received()
    assert StripeEvent.objects.filter(state="DONE").count() == 2
    told = BillingNotice.objects.filter(kind="payment_failed").order_by("pk")
    assert [one.data["attempt"] for one in told] == [1, 2]
    due = first_failed + timedelta(days=7)
    assert abs(shop.mirror.grace_until - due) < timedelta(hours=2)


def test_a_plan_that_has_ended_can_be_kept_without_keys(shop: Shop, settings: pytest.FixtureRequest) -> None:
    """B11.8, B19.1: its subscription was to end with its period, and has: nothing is left to be taken back."""
    shop.subscribe("PRO")
    shop.ask("FREE")
    shop.pass_time(days=31)
    shop.sync()
    assert shop.tier == "FREE"
    settings.STRIPE_SECRET_KEY = ""
    assert shop.ask("FREE").status_code == 200


def test_a_trial_that_ended_before_its_event_arrived_is_used(shop: Shop) -> None:
    """B15.2, B15.c4: ended at Stripe at once, and its webhooks are late: there is no second one."""
    TierPolicy.objects.filter(tier="PRO").update(trial_days=14)
    begun = shop.fake.subscribe(shop.customer(), shop.prices["PRO"], trial_days=14)
    subscription_api.cancel_subscription(
        api_client.start_task_deadline(), begun["id"], key="by himself, in the portal"
    )
    assert shop.ask("PRO").json()["action"] == "checkout"
    [made] = shop.fake.calls_of("POST", "/v1/checkout/sessions")
    assert "trial_period_days" not in made.params["subscription_data"]
    assert shop.account.trial_used_at is not None


def test_a_lease_that_a_dead_process_left_costs_no_look_up(shop: Shop) -> None:
    """B12.4, B11.4: the process that held the lease on the plan is gone; the pending change is kept."""
    shop.subscribe("PRO")
    over = timezone.now() - timedelta(seconds=1)
    Account.objects.update(change_token=uuid4(), change_lease_until=over)
    _, made = shop.calls(lambda: [shop.status() for _ in range(3)])
    assert made == ["get"]


@pytest.mark.parametrize("day", ["9999-12-31", "0001-01-01"])
def test_a_statement_may_be_asked_for_to_the_end_of_time(day: str) -> None:
    """B9.9: the last day that a calendar has is a day like any other."""
    ada = person(factories.ada())
    asked = {"since": "0001-01-01", "until": day}
    assert ada.get(f"{API}/credits/statement", asked).status_code == 200
    assert ada.get(f"{API}/credits/statement.csv", asked).status_code == 200
    assert ada.get("/billing/history", asked).status_code == 200


def test_without_a_key_stripe_is_asked_to_come_again(stripe: Fake, settings: pytest.FixtureRequest) -> None:
    """B19.1: nothing could be looked up; he repeats himself for three days, and meanwhile nothing is given up."""
    settings.STRIPE_SECRET_KEY = ""
    signature = deliveries.signed(b"{}", stripe_fake.WEBHOOK_SECRET)
    sent = Client().post(
        WEBHOOK, data=b"{}", content_type="application/json", headers={"Stripe-Signature": signature}
    )
    assert (sent.status_code, StripeEvent.objects.count()) == (503, 0)
