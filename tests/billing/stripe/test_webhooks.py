"""Stripe's webhook and its events (B14): forged, stale, repeated, reordered, interrupted."""

from __future__ import annotations

import itertools
import json
import time
from functools import partial

import pytest
from celery import current_app
from django.db import transaction
from django.test import Client, override_settings
from django.utils import timezone
from kombu.exceptions import OperationalError

from billing import accounts
from billing.models import Account, LedgerEntry, PlanChange, StripeEvent, TierPolicy, TopUp
from billing.stripe import (
    api_client,
    checkout_api,
    event_handlers,
    objects,
    payment_api,
    subscription_api,
    webhook_events,
)
from billing.stripe.webhook import MAX_BODY_BYTES
from billing.top_ups import purchases
from tests import stripe_fake
from tests.stripe_fake import Fake, signed
from tests.support import factories
from tests.support.stripe_webhooks import WEBHOOK, apply_received, post_webhook, settle
from tests.support.turn_engine import together

State = StripeEvent.State
SECRET = stripe_fake.WEBHOOK_SECRET


def event(kind: str = "charge.succeeded", event_id: str = "evt_1", **obj: object) -> bytes:
    body = {
        "id": event_id,
        "object": "event",
        "type": kind,
        "api_version": api_client.API_VERSION,
        "livemode": False,
        "created": int(time.time()),
        "data": {"object": obj},
    }
    return json.dumps(body).encode()


def bought(stripe: Fake, cents: int = 1_000) -> TopUp:
    """By Ada, paid at Stripe; nothing of it was told to us yet."""
    purchase = purchases.TopUpPurchase(amount_cents=cents, success_url="https://x", cancel_url="https://x")
    top_up = purchases.start_top_up(factories.ada().pk, purchase, key=None)
    stripe.webhooks.take()
    assert top_up.checkout_session_id
    assert stripe.pay(top_up.checkout_session_id)
    return top_up


def balance() -> tuple[int, int]:
    account = Account.objects.get(user=factories.ada())
    return account.credit_balance_cents, account.debt_cents


# --- the endpoint ---------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_what_stripe_did_not_sign_is_refused(stripe: Fake) -> None:
    """B14.c1: a flipped byte, a wrong secret, an old timestamp, an empty or broken header, no text: 400 and no row."""
    body, now = event(), int(time.time())
    forged = [
        (body.replace(b"charge", b"chArge"), signed(body, SECRET)),
        (body, signed(body, "whsec_other")),
        (body, signed(body, SECRET, at=now - 301)),
        (body, ""),
        (body, "t=abc"),
        (body, f"t=abc,v1={'0' * 64}"),
        (b"\xff", f"t={now},v1={'0' * 64}"),
        (b"no json", signed(b"no json", SECRET)),
        (b"[]", signed(b"[]", SECRET)),
        (b'{"id": 5}', signed(b'{"id": 5}', SECRET)),
    ]
    assert [post_webhook(*one) for one in forged] == [400] * len(forged)
    assert not StripeEvent.objects.exists()


@pytest.mark.django_db
def test_either_of_two_secrets_is_accepted(stripe: Fake) -> None:
    """B14.c1: signed with the first or the second secret, then 200; without any, always 503."""
    with override_settings(STRIPE_WEBHOOK_SECRETS=[SECRET, "whsec_next"]):
        assert post_webhook(event(), signed(event(), SECRET)) == 200
        second = event(event_id="evt_2")
        assert post_webhook(second, signed(second, "whsec_next")) == 200
    with override_settings(STRIPE_WEBHOOK_SECRETS=[]):
        assert post_webhook(event(), signed(event(), SECRET)) == 503
    assert StripeEvent.objects.count() == 2


@pytest.mark.django_db
def test_the_webhook_calls_no_server_and_limits_the_body(stripe: Fake) -> None:
    """B14.1, B14.2: 413 past 512 KiB; storing makes no call of Stripe's; a duplicate is 200 too."""
    long = event(filler="x" * MAX_BODY_BYTES)
    assert post_webhook(long, signed(long, SECRET)) == 413
    answers = {post_webhook(event(), signed(event(), SECRET)) for _ in range(3)}
    assert (answers, stripe.calls, StripeEvent.objects.count()) == ({200}, [], 1)
    assert Client(enforce_csrf_checks=True).get(WEBHOOK).status_code == 405


@pytest.mark.django_db(transaction=True)
def test_without_a_broker_the_sweep_applies_it(stripe: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """B14.2: the answer is 200 all the same; what is older than 30 s is picked up."""
    top_up = bought(stripe)

    def refused(*_: object, **__: object) -> None:
        raise OperationalError

    monkeypatch.setattr(current_app, "send_task", refused)
    assert set(stripe.webhooks.deliver()) == {200}
    assert webhook_events.list_overdue_event_ids() == []
    StripeEvent.objects.update(received_at=timezone.now() - webhook_events.SWEEP_AFTER)
    for pk in webhook_events.list_overdue_event_ids():
        event_handlers.apply_stripe_event(pk)
    top_up.refresh_from_db()
    assert (top_up.state, balance()) == (TopUp.State.PAID, (1_000, 0))


# --- applying -------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_ten_deliveries_of_one_event_are_one_effect(stripe: Fake) -> None:
    """B14.c2: in parallel, one row and one effect, also when ten workers take it at once."""
    bought(stripe)
    (completed,) = [one for one in stripe.webhooks.take() if one["type"] == "checkout.session.completed"]
    assert set(together(*[partial(stripe.webhooks.deliver_one, completed)] * 10)) == {200}
    row = StripeEvent.objects.get()
    together(*[partial(event_handlers.apply_stripe_event, row.pk)] * 10)
    row.refresh_from_db()
    assert (row.state, row.attempts, balance()) == (State.DONE, 1, (1_000, 0))


@pytest.mark.django_db
def test_order_does_not_matter(stripe: Fake) -> None:
    """B14.c3: created, updated (PRO to BUSINESS) and deleted, in any of six orders: the same account."""
    pro, business = stripe.price(1_000), stripe.price(3_000)
    for tier, price in (("PRO", pro), ("BUSINESS", business)):
        TierPolicy.objects.filter(tier=tier).update(stripe_price_id=price)
    ends = set()
    for number, order in enumerate(itertools.permutations(("created", "updated", "deleted"))):
        account = accounts.get_or_create_account(factories.user(f"user{number}").pk)
        deadline = api_client.start_task_deadline()
        customer_id = accounts.ensure_stripe_customer(account, deadline)
        stripe.subscribe(customer_id, pro)
        (subscription,) = subscription_api.list_subscriptions(deadline, customer_id)
        subscription_api.change_subscription_price(deadline, subscription, business, key=f"k{number}")
        subscription_api.cancel_subscription(deadline, subscription.id, key=f"c{number}")
        told = {one["type"].rpartition(".")[2]: one for one in stripe.webhooks.take()}
        for name in order:
            stripe.webhooks.deliver_one(told[name])
            apply_received()
        account.refresh_from_db()
        mirror = getattr(account, "subscription", None)
        ends.add((account.tier, mirror.status if mirror else None, mirror.entitles if mirror else False))
    assert len({tier for tier, _, _ in ends}) == 1
    assert not any(entitles for _, _, entitles in ends)


@pytest.mark.django_db(transaction=True)
def test_a_worker_that_dies_has_done_all_or_nothing(stripe: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """B14.c4: killed before commit, the sweep applies it; killed after it, a redelivery changes nothing."""

    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    bought(stripe)
    stripe.webhooks.deliver()
    row = StripeEvent.objects.get(type="checkout.session.completed")
    with monkeypatch.context() as patch:
        patch.setattr(webhook_events, "finish_event", die)
        with pytest.raises(Killed):
            event_handlers.apply_stripe_event(row.pk)
    row.refresh_from_db()
    assert (row.state, balance()) == (State.PROCESSING, (0, 0))
    assert event_handlers.apply_stripe_event(row.pk) is None  # its claim still holds
    assert balance() == (0, 0)
    StripeEvent.objects.filter(pk=row.pk).update(claimed_until=timezone.now())
    assert webhook_events.list_overdue_event_ids() == [row.pk]
    event_handlers.apply_stripe_event(row.pk)
    event_handlers.apply_stripe_event(row.pk)  # redelivered: the ack was lost
    assert (balance(), LedgerEntry.objects.count()) == ((1_000, 0), 1)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "kind",
    ["subscription_schedule.updated", "subscription_schedule.created", "something.new", "charge.succeeded"],
)
def test_what_means_nothing_to_us_is_kept_and_ignored(stripe: Fake, kind: str) -> None:
    """B14.c5: 200, IGNORED, no Stripe call."""
    body = event(kind, customer="cus_1", id="x_1")
    assert post_webhook(body, signed(body, SECRET)) == 200
    apply_received()
    assert StripeEvent.objects.get().state == State.IGNORED
    assert stripe.calls == []


@pytest.mark.django_db
def test_a_replay_adds_nothing(stripe: Fake) -> None:
    """B14.c5, B14.6: a DONE top-up event, replayed."""
    bought(stripe)
    settle(stripe)
    assert webhook_events.replay_events(StripeEvent.objects.values_list("pk", flat=True))
    apply_received()
    assert set(StripeEvent.objects.values_list("state", flat=True)) == {State.DONE, State.IGNORED}
    assert (balance(), LedgerEntry.objects.count()) == ((1_000, 0), 1)


@pytest.mark.django_db
def test_unknown_customers_and_the_other_mode_are_ignored(stripe: Fake) -> None:
    """B14.3: foreign customers and wrong livemode are IGNORED, kept."""
    customer = payment_api.create_customer(
        api_client.start_task_deadline(), email="", account_id=99, user_id=99
    )
    stripe.subscribe(customer.id, stripe.price(900))
    settle(stripe)
    assert set(StripeEvent.objects.values_list("state", flat=True)) == {State.IGNORED}
    body = event("customer.deleted", id=customer.id).replace(b'"livemode": false', b'"livemode": true')
    post_webhook(body, signed(body, SECRET))
    apply_received()
    assert StripeEvent.objects.get(event_id="evt_1").state == State.IGNORED


@pytest.mark.django_db
def test_what_fails_is_tried_twelve_times_and_then_staff_are_called(
    stripe: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    """B14.3: back-off 10 s doubling to an hour, 12 attempts, then FAILED and an alert; replayed, it goes through."""
    bought(stripe)
    stripe.webhooks.deliver()
    row = StripeEvent.objects.get(type="checkout.session.completed")
    stripe.faults.add("error", "GET", "/v1/checkout", times=99)
    waits = []
    for _ in range(webhook_events.MAX_ATTEMPTS):
        wait = event_handlers.apply_stripe_event(row.pk)
        waits.append(int(wait.total_seconds()) if wait else None)
        assert event_handlers.apply_stripe_event(row.pk) is None  # not before its time
        StripeEvent.objects.filter(pk=row.pk).update(due_at=timezone.now())
    assert waits == [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600, None]
    row.refresh_from_db()
    assert (row.state, row.last_error, balance()) == (State.FAILED, "PaymentServiceUnavailable", (0, 0))
    assert "'kind': 'event_failed'" in caplog.text
    stripe.faults.clear()
    webhook_events.replay_events([row.pk])
    apply_received()
    assert balance() == (1_000, 0)


@pytest.mark.django_db
def test_a_bug_of_ours_loses_no_event(stripe: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """B14.3: whatever an effect raises, nothing of it stays and the event waits."""

    def broken(session: object) -> bool:
        with transaction.atomic():
            accounts.get_or_create_account(factories.bob().pk)
        raise KeyError("oops")

    bought(stripe)
    stripe.webhooks.deliver()
    monkeypatch.setattr(purchases, "fulfil_checkout", broken)
    apply_received()
    row = StripeEvent.objects.get(type="checkout.session.completed")
    assert (row.state, row.last_error) == (State.RECEIVED, "KeyError")
    assert not Account.objects.filter(user__username="bob").exists()


@pytest.mark.django_db
def test_a_deleted_customer_is_forgotten(stripe: Fake) -> None:
    """B14.5: `customer.deleted` forgets the id, and the plan goes with it."""
    account = accounts.get_or_create_account(factories.ada().pk)
    customer_id = accounts.ensure_stripe_customer(account, api_client.start_task_deadline())
    body = event("customer.deleted", id=customer_id)
    post_webhook(body, signed(body, SECRET))
    apply_received()
    account.refresh_from_db()
    assert account.stripe_customer_id is None
    assert StripeEvent.objects.get(event_id="evt_1").state == State.DONE


@pytest.mark.django_db
def test_a_plan_follows_what_stripe_says_of_it(stripe: Fake) -> None:
    """B14.5: a checkout that was paid syncs, one that was not ends its change; the end of a trial and a failed renewal are told."""
    price = stripe.price(1_000)
    TierPolicy.objects.filter(tier="PRO").update(stripe_price_id=price)
    account = accounts.get_or_create_account(factories.ada().pk)
    deadline = api_client.start_task_deadline()

    def opened(trial_days: int) -> objects.CheckoutSession:
        change = PlanChange.objects.create(account=account, kind="CHECKOUT", from_tier="FREE", to_tier="PRO")
        purchase = checkout_api.PlanPurchase(
            customer_id=accounts.ensure_stripe_customer(account, deadline),
            price_id=price,
            user_id=account.user_id,
            plan_change_id=str(change.pk),
            trial_days=trial_days,
            success_url="https://x",
            cancel_url="https://x",
        )
        session = checkout_api.create_plan_checkout(deadline, purchase, key=f"plan:{change.pk}:checkout")
        PlanChange.objects.filter(pk=change.pk).update(checkout_session_id=session.id)
        return session

    opened(0)
    stripe.advance(seconds=3_700)
    settle(stripe)
    assert PlanChange.objects.get().state == PlanChange.State.FAILED
    assert stripe.pay(opened(14).id)
    settle(stripe)
    account.refresh_from_db()
    assert (account.tier, account.subscription.status) == ("PRO", "trialing")
    stripe.advance(days=12)
    settle(stripe)
    stripe.card("decline")
    stripe.advance(days=3)
    settle(stripe)
    account = Account.objects.get(pk=account.pk)
    assert account.subscription.status == "past_due"
    assert sorted(account.notices.values_list("kind", flat=True)) == ["payment_failed", "trial_ends"]


@pytest.mark.django_db
def test_a_worker_that_lost_its_claim_leaves_nothing(stripe: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """B14.3: one winner; what the slow one did is undone, and the event stays with the other."""

    def slow(event: webhook_events.ClaimedEvent, deadline: api_client.StripeDeadline) -> bool:
        accounts.get_or_create_account(factories.bob().pk)
        StripeEvent.objects.filter(pk=event.pk).update(attempts=2)
        return True

    body = event("customer.deleted", id="cus_1")
    post_webhook(body, signed(body, SECRET))
    monkeypatch.setitem(event_handlers.EVENT_HANDLERS, "customer.deleted", slow)
    apply_received()
    assert not Account.objects.exists()
    assert StripeEvent.objects.get().state == State.PROCESSING


@pytest.mark.django_db
def test_what_cannot_work_is_for_staff_at_once(stripe: Fake, caplog: pytest.LogCaptureFixture) -> None:
    """B14.3: a refusal of Stripe's is not repeated; an event that kills its workers is taken from them."""
    bought(stripe)
    stripe.webhooks.deliver()
    row = StripeEvent.objects.get(type="checkout.session.completed")
    stripe.faults.add("unauthorised", "GET", "/v1/checkout")
    assert event_handlers.apply_stripe_event(row.pk) is None
    row.refresh_from_db()
    assert (row.state, row.last_error) == (State.FAILED, "PaymentServiceRefusal")
    assert "'kind': 'event_failed'" in caplog.text
    StripeEvent.objects.filter(pk=row.pk).update(
        state=State.PROCESSING, claimed_until=timezone.now(), attempts=webhook_events.MAX_ATTEMPTS
    )
    event_handlers.apply_stripe_event(row.pk)
    row.refresh_from_db()
    assert (row.state, balance()) == (State.FAILED, (0, 0))
    assert webhook_events.get_oldest_event_age_seconds() > 0  # the others of that purchase


@pytest.mark.django_db
def test_what_was_said_is_forgotten_after_half_a_year(stripe: Fake) -> None:
    """B3.2: payloads are emptied after 180 days, the row stays; it cannot be replayed any more."""
    post_webhook(event(), signed(event(), SECRET))
    assert webhook_events.clear_old_payloads() == 0
    StripeEvent.objects.update(received_at=timezone.now() - webhook_events.PAYLOAD_RETENTION)
    assert webhook_events.clear_old_payloads() == 1
    row = StripeEvent.objects.get()
    assert (row.payload, webhook_events.replay_events([row.pk])) == (None, [])
