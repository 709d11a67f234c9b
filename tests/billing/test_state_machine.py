"""B20.6: any sequence of wishes, payments, staff, clocks, faults and webhooks ends in a state that Stripe shares."""

from __future__ import annotations

import uuid
from datetime import timedelta
from random import Random

import pytest
import time_machine
from django.contrib.auth.models import User
from django.db import transaction
from django.test import override_settings
from django.utils import timezone
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from stripe import HTTPClient

from billing import ledger, plans, policies
from billing.errors import BillingRequestRefused, InsufficientCredits
from billing.models import Account, PlanChange, Subscription, TierPolicy
from billing.selectors import plan_status
from billing.subscriptions import account_tiers, grace_period, plan_changes, stripe_sync
from billing.subscriptions.plan_changes import PlanChangeRequest
from billing.subscriptions.plan_checkouts import CheckoutUrls
from billing.top_ups import purchases
from billing.top_ups.purchases import TopUpPurchase
from tests import stripe_fake
from tests.support.plan_shop import CENTS, START
from tests.support.stripe_webhooks import apply_received, post_webhook

pytestmark = pytest.mark.django_db

WAYS = CheckoutUrls(success_url="https://a.test/", cancel_url="https://a.test/")
DOCUMENTED = {
    400: {"tier_not_available"},
    402: {"payment_overdue", "card_declined"},
    403: {"managed_by_admin"},
    409: {"change_in_progress", "payments_off"},
    502: {"stripe_unavailable"},
}
PATHS = ["/v1/subscriptions", "/v1/subscription_schedules", "/v1/checkout", "/v1/invoices", "/v1/customers"]


class Plans(RuleBasedStateMachine):
    """One account, one Stripe. After each rule everything is told and followed, and the two must agree."""

    @initialize()
    def open_shop(self):
        self.rows = transaction.atomic()
        self.rows.__enter__()  # nothing of one example is left for the next
        self.travel = time_machine.travel(START, tick=True)
        self.clock = self.travel.start()
        self.server = stripe_fake.running()
        self.fake = self.server.__enter__()
        self.fake.world.dunning_end = "past_due"
        self.fake.webhooks.post = post_webhook
        self.random, self.spent_cents = Random(7), 0
        self.settings = override_settings(
            STRIPE_SECRET_KEY=stripe_fake.SECRET_KEY,
            STRIPE_WEBHOOK_SECRETS=[stripe_fake.WEBHOOK_SECRET],
            STRIPE_API_BASE=self.fake.address,
        )
        self.settings.enable()
        self.prices = {tier: self.fake.price(cents) for tier, cents in CENTS.items()}
        for tier, price in self.prices.items():
            TierPolicy.objects.filter(tier=tier).update(stripe_price_id=price, selectable=True, trial_days=14)
        policies.clear_policy_cache()
        self.user = User.objects.create(username=f"user-{uuid.uuid4()}")

    def teardown(self):
        self.settings.disable()
        self.server.__exit__(None, None, None)
        self.travel.stop()
        transaction.set_rollback(True)
        self.rows.__exit__(None, None, None)

    @property
    def account(self):
        return Account.objects.filter(user=self.user).first()

    # --- what people do ---------------------------------------------------------------------------------

    @rule(tier=st.sampled_from(["FREE", "PRO", "BUSINESS"]), fault=st.none() | st.tuples(
        st.sampled_from(["error", "limit", "reset", "reset_after", "stored_error", "unauthorised"]),
        st.sampled_from(PATHS), st.integers(1, 2),
    ), told=st.booleans())  # fmt: skip
    def ask(self, tier, fault, told):
        """Every request ends with a documented code; the next may come before anything is told of this one."""
        if fault:
            kind, path, times = fault
            self.fake.faults.add(kind, "", path, times=times)
        try:
            status = plan_changes.change_plan(self.user.pk, PlanChangeRequest(tier=tier, urls=WAYS))
            assert bool(status.url) == (status.action != "none")
        except BillingRequestRefused as refusal:
            assert refusal.code in DOCUMENTED[refusal.status]
        self.fake.faults.clear()
        if told:
            self.settle()

    @rule(with_card=st.booleans(), told=st.booleans())
    def pay_page(self, with_card, told):
        for session in self.fake.all("checkout.session"):
            trial = self.fake.world.plans[session["id"]].get("subscription_data", {}).get("trial_period_days")
            if session["status"] == "open":
                self.fake.pay(session["id"], with_card=with_card or not trial)
        if told:
            self.settle()

    @rule()
    def pay_invoices(self):
        for invoice in self.fake.all("invoice"):
            if invoice["status"] == "open":
                self.fake.pay_invoice(invoice["id"])
        self.settle()

    @rule(cents=st.sampled_from([500, 2_000]))
    def ask_for_credit(self, cents):
        ways = {"success_url": WAYS.success_url, "cancel_url": WAYS.cancel_url}
        purchases.start_top_up(
            self.user.pk, TopUpPurchase(amount_cents=cents, save_card=False, **ways), key=None
        )
        self.settle()

    @rule(cents=st.sampled_from([100, 700]))
    def spend(self, cents):
        try:
            ledger.spend(self.user.pk, cents, key=f"tool:{uuid.uuid4()}", reason="by chance")
            self.spent_cents += cents
        except InsufficientCredits:
            pass

    @rule()
    def take_back(self):
        """The newest payment for credit, if it was not taken back before."""
        for intent in self._credit_paid()[:1]:
            if not self._refunded(intent):
                self.fake.refund(intent["id"], intent["amount"])
        self.settle()

    @rule(behaviour=st.sampled_from(["ok", "ok", "decline", "authenticate"]))
    def change_card(self, behaviour):
        self.fake.card(behaviour)

    @rule(tier=st.sampled_from(["FREE", "PRO", "BUSINESS", "ENTERPRISE"]))
    def staff_set(self, tier):
        if self.account:
            account_tiers.grant_tier(self.account.pk, tier, actor_id=None, reason="by chance")
            if tier == "ENTERPRISE":
                account_tiers.grant_tier(self.account.pk, "FREE", actor_id=None, reason="and back")
        self.settle()

    @rule(hours=st.sampled_from([1, 24, 10 * 24, 31 * 24]))
    def wait(self, hours):
        self.clock.shift(timedelta(hours=hours))
        self.fake.advance(seconds=hours * 3600)
        self.settle()

    @precondition(lambda self: self.account is not None and self.account.stripe_customer_id)
    @rule(tier=st.sampled_from(["PRO", "BUSINESS"]))
    def somebody_subscribes_at_stripe(self, tier):
        """A second page that was paid all the same, or a click in the dashboard."""
        self.fake.subscribe(self.account.stripe_customer_id, self.prices[tier])
        self.settle()

    # --- what must hold ---------------------------------------------------------------------------------

    def settle(self):
        """Everything is told, twice and in any order; then the hour strikes."""
        account = self.account
        if account is None:
            return
        while told := self.fake.webhooks.take():
            told = [*told, *self.random.sample(told, len(told) // 2)]
            self.random.shuffle(told)
            assert set(self.fake.webhooks.deliver(told)) == {200}
            apply_received()
        if account.stripe_customer_id:
            stripe_sync.reconcile_subscriptions()  # after staff set a tier nothing happens at Stripe: the night follows
        grace_period.lapse_overdue_subscriptions()
        self.holds()

    def holds(self):
        account = self.account
        live = [
            one
            for one in self.fake.all("subscription")
            if one["status"] in ("active", "trialing", "past_due")
        ]
        assert len(live) <= 1, "at most one live subscription"
        self._tier_agrees(account, live)
        self._pending_is_known(live)
        self._nobody_paid_twice()
        paid = sum(intent["amount"] - self._refunded(intent) for intent in self._credit_paid())
        assert account.credit_balance_cents - account.debt_cents == paid - self.spent_cents
        assert account.change_token is None
        assert PlanChange.objects.filter(account=account, kind="CHECKOUT", state="STARTED").count() <= 1

    def _tier_agrees(self, account, live):
        tiers = {price: tier for tier, price in self.prices.items()}
        mirror = Subscription.objects.filter(account=account).first()
        if live and (live[0]["status"] != "past_due" or timezone.now() < mirror.grace_until):
            assert account.tier == tiers[live[0]["items"]["data"][0]["price"]["id"]]
        else:
            assert plans.get_tier_rank(account.tier) <= plans.get_tier_rank(account.granted_tier or "FREE")

    def _pending_is_known(self, live):
        status = plan_status.get_subscription_status(self.user.pk)
        assert not status.pending_unknown
        if not live:
            assert status.pending_tier is None
        elif live[0]["cancel_at_period_end"]:
            assert status.pending_tier == "FREE"
        else:
            assert (status.pending_tier is not None) == bool(self._phase_to_come(live[0]))

    def _phase_to_come(self, one):
        if not one["schedule"]:
            return None
        phases = self.fake.world.get(one["schedule"], "subscription_schedule")["phases"]
        return next((phase for phase in phases if phase["start_date"] > self.fake.world.now), None)

    def _credit_paid(self):
        return [
            one
            for one in self.fake.all("payment_intent")
            if one["status"] == "succeeded" and one["metadata"].get("top_up")
        ]

    def _refunded(self, intent):
        return sum(one["amount"] for one in self.fake.all("refund") if one["payment_intent"] == intent["id"])

    def _nobody_paid_twice(self):
        paid = [
            (one["parent"]["subscription_details"]["subscription"], one["created"])
            for one in self.fake.all("invoice")
            if one["status"] == "paid"
            and one["billing_reason"] in ("subscription_create", "subscription_cycle")
        ]
        assert len(paid) == len(set(paid))


def played(examples: int, steps: int) -> None:
    fast = pytest.MonkeyPatch()
    fast.setattr(HTTPClient, "INITIAL_DELAY", 0.001)
    fast.setattr(HTTPClient, "MAX_DELAY", 0.001)
    try:
        run_state_machine_as_test(
            Plans,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                derandomize=True,
                database=None,
            ),
        )
    finally:
        fast.undo()
        policies.clear_policy_cache()


def test_any_sequence_of_events_ends_where_stripe_is():
    """B20.6"""
    played(examples=4, steps=15)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_sequences_of_events_end_where_stripe_is():
    """B20.6: the same, for longer."""
    played(examples=60, steps=25)
