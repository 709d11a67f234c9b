"""The stand-in for Stripe keeps to Stripe's rules (B20.3): each is proved, and each proof fails once its rule is broken."""

from __future__ import annotations

import io
import json
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, get_args

import pytest
import stripe
from django.core.management import call_command
from stripe import InvalidRequestError, StripeClient

from billing.management.commands.fake_stripe import Command
from billing.models import TierPolicy
from tests import stripe_fake
from tests.stripe_fake import Fake
from tests.stripe_fake.shapes import Drift, check
from tests.stripe_fake.world import Rule
from tests.support.turn_engine import until

Proof = Callable[[Fake, StripeClient], None]
PROOFS: dict[Rule, Proof] = {}


@pytest.fixture
def fake() -> Iterator[Fake]:
    with stripe_fake.running() as running:
        yield running


def client_of(fake: Fake, *, key: str = stripe_fake.SECRET_KEY, version: str | None = None) -> StripeClient:
    return StripeClient(
        key, stripe_version=version, base_addresses={"api": fake.address}, max_network_retries=0
    )


def proves(rule: Rule) -> Callable[[Proof], Proof]:
    def kept(proof: Proof) -> Proof:
        PROOFS[rule] = proof
        return proof

    return kept


@pytest.mark.parametrize("rule", get_args(Rule))
def test_a_rule_of_stripes_is_kept_and_its_loss_noticed(fake: Fake, rule: Rule) -> None:
    """B20.c2, B20.3: with the rule the proof passes; with the rule switched off it fails."""
    PROOFS[rule](fake, client_of(fake))
    with stripe_fake.running() as lax:
        lax.world.broken_rules.add(rule)
        with pytest.raises((AssertionError, pytest.fail.Exception, AttributeError, stripe.APIError)):
            PROOFS[rule](lax, client_of(lax))


def refused(act: Callable[[], Any]) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as raised:
        act()
    return raised.value


def subscribed(fake: Fake, client: StripeClient) -> stripe.Subscription:
    """To a plan of 1,000 a month."""
    customer = client.v1.customers.create({})
    made = fake.subscribe(customer.id, fake.price(1_000))
    return client.v1.subscriptions.retrieve(made["id"])


@proves("keys_repeat_answers")
def _repeated(fake: Fake, client: StripeClient) -> None:
    first = client.v1.customers.create({}, {"idempotency_key": "a"})
    assert client.v1.customers.create({}, {"idempotency_key": "a"}).id == first.id
    fake.faults.add("stored_error", "POST", "/v1/customers")
    for _ in range(2):
        with pytest.raises(stripe.APIError):
            client.v1.customers.create({}, {"idempotency_key": "b"})


@proves("keys_belong_to_one_request")
def _one_request(fake: Fake, client: StripeClient) -> None:
    client.v1.customers.create({"email": "ada@example.com"}, {"idempotency_key": "a"})
    with pytest.raises(stripe.IdempotencyError):
        client.v1.customers.create({"email": "eve@example.com"}, {"idempotency_key": "a"})


@proves("bearer_is_checked")
def _bearer(fake: Fake, client: StripeClient) -> None:
    with pytest.raises(stripe.AuthenticationError):
        client_of(fake, key="sk_test_other").v1.customers.create({})


@proves("version_is_checked")
def _version(fake: Fake, client: StripeClient) -> None:
    refused(lambda: client_of(fake, version="2020-08-27").v1.customers.create({}))


@proves("no_cancellation_while_scheduled")
def _no_cancellation(fake: Fake, client: StripeClient) -> None:
    subscription = subscribed(fake, client)
    client.v1.subscription_schedules.create({"from_subscription": subscription.id})
    problem = refused(lambda: client.v1.subscriptions.update(subscription.id, {"cancel_at_period_end": True}))
    assert "managed by the subscription schedule" in str(problem)


@proves("nothing_else_with_from_subscription")
def _nothing_else(fake: Fake, client: StripeClient) -> None:
    subscription = subscribed(fake, client)
    refused(
        lambda: client.v1.subscription_schedules.create(
            {"from_subscription": subscription.id, "end_behavior": "release"}
        )
    )


@proves("few_parameters_with_pending_updates")
def _few_parameters(fake: Fake, client: StripeClient) -> None:
    subscription = subscribed(fake, client)
    refused(
        lambda: client.v1.subscriptions.update(
            subscription.id, {"payment_behavior": "pending_if_incomplete", "metadata": {"a": "b"}}
        )
    )


@proves("no_release_of_what_is_over")
def _no_release(fake: Fake, client: StripeClient) -> None:
    schedule = client.v1.subscription_schedules.create({"from_subscription": subscribed(fake, client).id})
    released = client.v1.subscription_schedules.release(schedule.id)
    assert (released.subscription, released.status) == (None, "released")
    assert released.released_subscription
    refused(lambda: client.v1.subscription_schedules.release(schedule.id))


@proves("pages_stay_open_half_an_hour_to_a_day")
def _expiry(fake: Fake, client: StripeClient) -> None:
    customer = client.v1.customers.create({})

    def opened(seconds: int) -> stripe.checkout.Session:
        return client.v1.checkout.sessions.create(
            {
                "mode": "subscription",
                "customer": customer.id,
                "line_items": [{"price": price_id, "quantity": 1}],
                "success_url": "https://example.com",
                "expires_at": int(time.time()) + seconds,
            }
        )

    price_id = fake.price(1_000)
    assert opened(3_600).status == "open"
    refused(lambda: opened(600))
    refused(lambda: opened(2 * 86_400))


@proves("periods_are_on_items")
def _periods(fake: Fake, client: StripeClient) -> None:
    subscription = subscribed(fake, client)
    item = subscription.items.data[0]
    assert item.current_period_end - item.current_period_start == 30 * 86_400
    assert "current_period_end" not in subscription


@proves("pending_updates_expire")
def _pending(fake: Fake, client: StripeClient) -> None:
    subscription = subscribed(fake, client)
    fake.card("decline")
    changed = client.v1.subscriptions.update(
        subscription.id,
        {
            "items": [{"id": subscription.items.data[0].id, "price": fake.price(3_000)}],
            "payment_behavior": "pending_if_incomplete",
            "proration_behavior": "always_invoice",
        },
    )
    assert changed.pending_update
    assert changed.items.data[0].price.id == subscription.items.data[0].price.id
    fake.advance(seconds=24 * 3_600)
    later = client.v1.subscriptions.retrieve(subscription.id, {"expand": ["latest_invoice"]})
    assert later.pending_update is None
    assert later.latest_invoice.status == "void"


@proves("lists_come_in_pages")
def _pages(fake: Fake, client: StripeClient) -> None:
    customer = client.v1.customers.create({})
    saved = [fake.save_card(customer.id) for _ in range(12)]
    page = client.v1.customers.payment_methods.list(customer.id)
    assert (len(page.data), page.has_more) == (10, True)
    assert [one.id for one in page.auto_paging_iter()] == saved[::-1]


@proves("every_change_is_told")
def _told(fake: Fake, client: StripeClient) -> None:
    subscription = subscribed(fake, client)
    fake.webhooks.take()
    client.v1.subscriptions.update(subscription.id, {"cancel_at_period_end": True})
    assert [one["type"] for one in fake.webhooks.take()] == ["customer.subscription.updated"]
    fake.advance(days=31)
    assert "customer.subscription.deleted" in [one["type"] for one in fake.webhooks.take()]


def test_an_object_that_stripe_would_not_send_is_noticed(fake: Fake) -> None:
    """B20.2: what is emitted is checked against the SDK's own annotations, so the fake cannot drift from it."""
    good = client_of(fake).v1.customers.create({}).to_dict()
    check(fake.world.get(good["id"], "customer"))
    for wrong in ({"nickname": "x"}, {"created": "today"}, {"tax_exempt": "perhaps"}, {"id": None}):
        with pytest.raises(Drift):
            check(fake.world.get(good["id"], "customer") | wrong)
    missing = dict(fake.world.get(good["id"], "customer"))
    del missing["created"]
    with pytest.raises(Drift):
        check(missing)


@pytest.mark.django_db
def test_the_command_creates_plans_and_continues_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B20.2: for development: plans without a price get one, the site's variables are printed, state outlives a stop."""
    state, seen, said = tmp_path / "state.json", [], io.StringIO()

    def clicked_through(_: object) -> None:
        address = re.findall(r"STRIPE_API_BASE=(\S+)", said.getvalue())[-1]
        client = StripeClient(stripe_fake.SECRET_KEY, base_addresses={"api": address})
        seen.append(len(client.v1.prices.retrieve("price_fake_pro").id))
        customer = client.v1.customers.create({"email": "ada@example.com"})
        portal = client.v1.billing_portal.sessions.create(
            {"customer": customer.id, "return_url": "https://x"}
        )
        for page in (portal.url, f"{address}/control/panel"):
            with urllib.request.urlopen(page) as answer:
                assert b"stand-in for Stripe" in answer.read()
        with urllib.request.urlopen(f"{address}/control/panel/month", data=b"") as answer:
            assert answer.status == 200

    monkeypatch.setattr(Command, "_wait_for_interrupt", clicked_through)
    for _ in range(2):
        call_command("fake_stripe", port=0, site="http://127.0.0.1:1", state=state, stdout=said)
    assert len(seen) == 2
    assert TierPolicy.objects.get(tier="PRO").stripe_price_id == "price_fake_pro"
    customers = [
        one for one in json.loads(state.read_text())["objects"].values() if one["object"] == "customer"
    ]
    assert len(customers) == 2


def test_pages_of_the_stand_in_do_what_their_buttons_say(fake: Fake) -> None:
    """B20.2: a person pays an invoice that was declined, and ends and keeps a plan in the portal."""
    client = client_of(fake)
    subscription = subscribed(fake, client)
    fake.card("decline")
    fake.advance(days=30)
    assert client.v1.subscriptions.retrieve(subscription.id).status == "past_due"
    invoice = fake.all("invoice")[0]

    def press(path: str) -> int:
        try:
            with urllib.request.urlopen(f"{fake.address}{path}", data=b"") as answer:
                return int(answer.status)
        except urllib.error.HTTPError as problem:
            return problem.code

    assert press(f"/i/{invoice['id']}/decline") == 402
    assert press(f"/i/{invoice['id']}/pay") == 200
    assert client.v1.subscriptions.retrieve(subscription.id).status == "active"
    portal = client.v1.billing_portal.sessions.create({"customer": subscription.customer})
    assert press(f"/p/{portal.id}/end") == 200
    assert client.v1.subscriptions.retrieve(subscription.id).cancel_at_period_end
    assert press(f"/p/{portal.id}/keep") == 200
    assert not client.v1.subscriptions.retrieve(subscription.id).cancel_at_period_end
    assert press("/nowhere") == 404


def test_a_postman_brings_everything_and_tries_again(fake: Fake) -> None:
    """B20.2: signed webhooks go to a running site by themselves; what is refused comes again."""
    came: list[tuple[str, bytes]] = []

    class Door(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            came.append((self.headers["Stripe-Signature"], body))
            self.send_response(500 if len(came) == 1 else 200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Door) as door:
        threading.Thread(target=door.serve_forever, args=(0.02,), daemon=True).start()
        with fake.delivering_to(f"http://127.0.0.1:{door.server_address[1]}"):
            client_of(fake).v1.customers.create({})
            until(lambda: len(came) == 2)
        door.shutdown()
    assert came[0][1] == came[1][1]
    assert stripe.WebhookSignature.verify_header(came[1][1], came[1][0], stripe_fake.WEBHOOK_SECRET)
