"""Sell plans through the fake Stripe: accounts in every state, and the requests that Stripe received."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import time_machine
from django.contrib.auth.models import User

from billing import accounts, policies
from billing.models import Account, Subscription, TierPolicy
from billing.stripe import api_client
from billing.subscriptions import stripe_sync
from tests.stripe_fake import Fake, Obj, server
from tests.support import factories
from tests.support.rest_clients import JSON, V1, person

CENTS = {"PRO": 2_000, "BUSINESS": 10_000}
START = datetime(2027, 3, 1, 9, tzinfo=UTC)  # later than the rows' own timestamps
API = f"{V1}/billing"

WORDS = [
    ("POST", r"/v1/customers$", "customer"),
    ("GET", r"/v1/subscriptions$", "list"),
    ("GET", r"/v1/subscriptions/", "get"),
    ("DELETE", r"/v1/subscriptions/", "cancel now"),
    ("POST", r"/v1/subscription_schedules$", "schedule"),
    ("POST", r"/v1/subscription_schedules/[^/]+$", "phases"),
    ("POST", r"/v1/subscription_schedules/[^/]+/release", "release"),
    ("GET", r"/v1/subscription_schedules/", "get schedule"),
    ("POST", r"/v1/invoices/create_preview", "preview"),
    ("POST", r"/v1/invoices/[^/]+/void", "void"),
    ("GET", r"/v1/invoices/", "get invoice"),
    ("POST", r"/v1/checkout/sessions$", "checkout"),
    ("POST", r"/v1/checkout/sessions/[^/]+/expire", "expire"),
    ("GET", r"/v1/checkout/sessions/", "get checkout"),
    ("POST", r"/v1/billing_portal/sessions", "portal"),
]


def word_of(call: server.Seen) -> str:
    """Name a request; `cancel later`, `uncancel` and `price` share one path and differ in their body."""
    if call.method == "POST" and re.match(r"/v1/subscriptions/[^/]+$", call.path):
        if "items" in call.params:
            return "price"
        return "cancel later" if call.params.get("cancel_at_period_end") == "true" else "uncancel"
    return next(word for method, path, word in WORDS if call.method == method and re.match(path, call.path))


@dataclass
class Shop:
    """One customer, Ada, and two clocks: ours and Stripe's."""

    fake: Fake
    clock: time_machine.Traveller
    prices: dict[str, str]
    user: User

    # --- asking -----------------------------------------------------------------------------------------

    def ask(self, tier: str, **more: Any) -> Any:
        return person(self.user).post(f"{API}/subscription", {"tier": tier, **more}, content_type=JSON)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = person(self.user).get(f"{API}/subscription").json()
        return found

    def calls(self, act: Callable[[], Any]) -> tuple[Any, list[str]]:
        """Return the response, and the requests that Stripe received for it."""
        before = len(self.fake.calls)
        answer = act()
        return answer, [word_of(call) for call in self.fake.calls[before:]]

    # --- what is known ----------------------------------------------------------------------------------

    @property
    def account(self) -> Account:
        return accounts.get_or_create_account(self.user.pk)

    @property
    def tier(self) -> str:
        return self.account.tier

    @property
    def mirror(self) -> Subscription:
        return Subscription.objects.get(account=self.account)

    def live(self) -> list[Obj]:
        return [
            one
            for one in self.fake.all("subscription")
            if one["status"] in ("active", "trialing", "past_due")
        ]

    # --- what happens -----------------------------------------------------------------------------------

    def sync(self) -> None:
        stripe_sync.sync_subscription(self.account.pk)

    def pass_time(self, *, days: float = 0, hours: float = 0) -> None:
        """Advance both clocks; webhooks of what Stripe did meanwhile are not delivered by this."""
        self.clock.shift(timedelta(days=days, hours=hours))
        self.fake.advance(days=days + hours / 24)

    def customer(self) -> str:
        return accounts.ensure_stripe_customer(self.account, api_client.start_task_deadline())

    def subscribe(self, tier: str, *, trial_days: int = 0) -> None:
        self.fake.subscribe(self.customer(), self.prices[tier], trial_days=trial_days)
        if trial_days:
            self.fake.save_card(self.customer())
        self.sync()

    def fail_renewal(self) -> None:
        """End the month with a declined payment."""
        self.fake.card("decline")
        self.pass_time(days=30, hours=1)
        self.sync()


def schedule_downgrade_to_pro(shop: Shop) -> None:
    shop.subscribe("BUSINESS")
    assert shop.ask("PRO").status_code == 200


def start_unpaid_upgrade(shop: Shop) -> None:
    shop.subscribe("PRO")
    shop.fake.card("decline")
    assert shop.ask("BUSINESS").json()["action"] == "pay_invoice"


@contextlib.contextmanager
def open_shop(fake: Fake, clock: time_machine.Traveller) -> Iterator[Shop]:
    """Offer both plans at the fake Stripe."""
    fake.world.dunning_end = "past_due"
    prices = {tier: fake.price(cents) for tier, cents in CENTS.items()}
    for tier, price in prices.items():
        TierPolicy.objects.filter(tier=tier).update(
            stripe_price_id=price, monthly_cents=CENTS[tier], selectable=True, trial_days=0
        )
    policies.clear_policy_cache()
    yield Shop(fake=fake, clock=clock, prices=prices, user=factories.ada())
    policies.clear_policy_cache()
