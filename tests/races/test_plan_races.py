"""Plans changed from two places at once: one wins, nobody pays twice, and what is stored is what Stripe has (B20.7)."""

from __future__ import annotations

import threading

import pytest
from django.db import connection

from billing import accounts
from billing.errors import PlanChangeInProgress
from billing.models import Account, PlanChange
from billing.selectors.plan_status import Status
from billing.stripe import api_client
from billing.subscriptions import plan_changes
from billing.subscriptions.plan_changes import PlanChangeRequest
from billing.subscriptions.plan_checkouts import CheckoutUrls
from tests.support import factories
from tests.support.race_repeats import rounds
from tests.support.turn_engine import together

pytestmark = pytest.mark.django_db(transaction=True)

WAYS = CheckoutUrls(success_url="https://a.test/", cancel_url="https://a.test/")


def asking(shop, tier):
    """A tab: the status, or that another tab is at it."""

    def ask():
        try:
            return plan_changes.change_plan(shop.user.pk, PlanChangeRequest(tier=tier, urls=WAYS))
        except PlanChangeInProgress as refusal:
            return refusal

    return ask


def is_what_stripe_has(shop):
    """One subscription at most, its price is our tier, and at most one change is to come."""
    shop.sync()
    live = shop.live()
    assert len(live) <= 1
    tiers = {price: tier for tier, price in shop.prices.items()}
    for one in live:
        assert shop.tier == tiers[one["items"]["data"][0]["price"]["id"]]
    active = [one for one in shop.fake.all("subscription_schedule") if one["status"] == "active"]
    assert len(active) <= 1
    assert not Account.objects.exclude(change_token=None).exists()


@pytest.mark.parametrize(("first", "second"), [("BUSINESS", "FREE"), ("FREE", "BUSINESS")])
def test_of_two_tabs_one_gets_a_conflict_b11_c4(shop, first, second):
    """B11.c4: one 200, one 409, and the final state is the winner's."""
    shop.subscribe("PRO")
    answers = []

    def tab():
        try:
            answers.append(asking(shop, first)())
        finally:
            connection.close()

    with shop.fake.world.lock:  # Stripe is slow: the first tab waits for it, and holds the lease
        thread = threading.Thread(target=tab)
        thread.start()
        while not Account.objects.exclude(change_token=None).exists():
            pass
        late = asking(shop, second)()
    thread.join(30)
    assert isinstance(late, PlanChangeInProgress)
    [won] = answers
    assert (won.tier, won.pending_tier) == (("BUSINESS", None) if first == "BUSINESS" else ("PRO", "FREE"))
    is_what_stripe_has(shop)


@rounds(4, 50)
def test_two_tabs_at_once(shop, rounds):
    """B20.7: two tabs, and webhooks of our own changes in between."""
    shop.subscribe("PRO")
    wishes = [("BUSINESS", "FREE"), ("PRO", "FREE"), ("FREE", "PRO"), ("PRO", "BUSINESS")]
    for number in range(rounds):
        one, other = wishes[number % len(wishes)]
        answers = together(asking(shop, one), asking(shop, other), shop.sync)
        assert any(isinstance(answer, Status) for answer in answers)
        is_what_stripe_has(shop)


@rounds(3, 50)
def test_two_pages_to_pay_on(shop, rounds):
    """B20.7, B11.c4: double checkout: at most one page is open; both clicks are answered."""
    for _ in range(rounds):
        answers = together(asking(shop, "PRO"), asking(shop, "PRO"))
        assert any(isinstance(answer, Status) for answer in answers)
        assert len([one for one in shop.fake.all("checkout.session") if one["status"] == "open"]) == 1
        assert PlanChange.objects.filter(kind="CHECKOUT", state="STARTED").count() == 1


@rounds(8, 50)
def test_one_customer_for_requests_that_race(shop, rounds):
    """B20.7, B15.5: customer creation, fifty times."""
    for number in range(rounds):
        account = accounts.get_or_create_account(factories.user(f"racer-{number}").pk)

        def ensure(pk=account.pk):
            return accounts.ensure_stripe_customer(
                Account.objects.get(pk=pk), api_client.start_task_deadline()
            )

        assert len(set(together(ensure, ensure))) == 1
    assert len(shop.fake.all("customer")) == rounds
