"""Credit that is bought, taken back, fought over and bought by itself (B10): through Stripe's own words alone."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest
import time_machine
from django.core import mail
from django.test import override_settings
from django.utils import timezone

from billing import accounts, emails, ledger, policies
from billing.errors import InvalidRequest, NoSavedCard, PaymentsDisabled, PaymentServiceUnavailable
from billing.models import Account, AutoTopUp, BillingNotice, LedgerEntry, LimitPolicy, StripeEvent, TopUp
from billing.stripe import api_client
from billing.top_ups import auto_top_ups, purchases
from tests.stripe_fake import Fake
from tests.support import factories
from tests.support.rest_clients import JSON, V1, code_of, person, program
from tests.support.stripe_webhooks import apply_received, settle
from tests.support.turn_engine import together

pytestmark = pytest.mark.django_db
API = f"{V1}/billing"
State = TopUp.State


def wanted(cents: int = 1_000, *, save_card: bool = False) -> purchases.TopUpPurchase:
    return purchases.TopUpPurchase(
        amount_cents=cents, success_url="https://x", cancel_url="https://x", save_card=save_card
    )


def bought(stripe: Fake, cents: int = 1_000) -> TopUp:
    """By Ada: paid and credited."""
    top_up = purchases.start_top_up(factories.ada().pk, wanted(cents), key=None)
    assert stripe.pay(top_up.checkout_session_id)
    settle(stripe)
    top_up.refresh_from_db()
    assert top_up.state == State.PAID
    return top_up


def money() -> tuple[int, int]:
    """Ada's balance and debt."""
    account = Account.objects.get(user=factories.ada())
    return account.credit_balance_cents, account.debt_cents


def kinds() -> list[str]:
    return list(LedgerEntry.objects.order_by("pk").values_list("kind", flat=True))


# --- by hand --------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_a_paid_page_is_one_credit(stripe: Fake) -> None:
    """B10.c1: `completed` five times, twice in parallel, and `async_payment_succeeded` once: one TOP_UP entry."""
    top_up = purchases.start_top_up(factories.ada().pk, wanted(), key=None)
    assert money() == (0, 0)
    assert stripe.pay(top_up.checkout_session_id)
    (completed,) = [one for one in stripe.webhooks.take() if one["type"] == "checkout.session.completed"]
    others = [{**completed, "id": f"evt_other{number}"} for number in range(4)]
    later = {**completed, "id": "evt_later", "type": "checkout.session.async_payment_succeeded"}
    stripe.webhooks.deliver([completed, later, *others])
    together(apply_received, apply_received)
    assert kinds() == ["TOP_UP"]
    assert LedgerEntry.objects.get().idempotency_key == f"topup:{top_up.pk}"
    assert money() == (1_000, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"amount_subtotal": 100},
        {"currency": "eur"},
        {"customer": None},
        {"payment_status": "no_payment_required"},
    ],
)
def test_what_was_paid_must_be_what_was_asked_for(
    stripe: Fake, change: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    """B10.c2: the fetched session says otherwise: REVIEW, no credit, alert."""
    top_up = purchases.start_top_up(factories.ada().pk, wanted(), key=None)
    assert stripe.pay(top_up.checkout_session_id)
    stripe.world.objects[top_up.checkout_session_id].update(change)
    settle(stripe)
    top_up.refresh_from_db()
    assert (top_up.state, money()) == (State.REVIEW, (0, 0))
    assert "'kind': 'top_up_review'" in caplog.text


def test_a_bank_that_takes_days_is_waited_for(stripe: Fake) -> None:
    """B10.2: unpaid waits; then paid is credited, refused is FAILED."""
    for behaviour, state in (("ok", State.PAID), ("decline", State.FAILED)):
        stripe.card(behaviour)
        top_up = purchases.start_top_up(factories.ada().pk, wanted(), key=None)
        stripe.pay(top_up.checkout_session_id, later=True)
        settle(stripe)
        top_up.refresh_from_db()
        assert top_up.state == State.OPEN
        stripe.settle(top_up.checkout_session_id)
        settle(stripe)
        top_up.refresh_from_db()
        assert top_up.state == state
    assert money() == (1_000, 0)


def test_a_page_nobody_paid_expires_and_a_late_payment_still_counts(stripe: Fake) -> None:
    """B10.3: OPEN to EXPIRED; EXPIRED to PAID is legal."""
    top_up = purchases.start_top_up(factories.ada().pk, wanted(), key=None)
    with_page = stripe.world.objects[top_up.checkout_session_id]
    stripe.advance(seconds=3_700)
    settle(stripe)
    top_up.refresh_from_db()
    assert (top_up.state, top_up.checkout_url) == (State.EXPIRED, "")
    with_page["status"] = "open"
    assert stripe.pay(top_up.checkout_session_id)
    settle(stripe)
    top_up.refresh_from_db()
    assert (top_up.state, money()) == (State.PAID, (1_000, 0))


def test_the_same_key_is_the_same_top_up(stripe: Fake) -> None:
    """B16.1: a double click opens one page; after a fault the key continues where it stopped; another amount is refused."""
    ada = factories.ada().pk
    stripe.faults.add("reset_after", "POST", "/v1/checkout", times=2)
    with pytest.raises(PaymentServiceUnavailable):
        purchases.start_top_up(ada, wanted(), key="click")
    with time_machine.travel(timezone.now() + timedelta(minutes=2)):  # Stripe compares every parameter
        first = purchases.start_top_up(ada, wanted(), key="click")
    assert first.state == State.OPEN
    assert purchases.start_top_up(ada, wanted(), key="click") == first
    assert len(stripe.all("checkout.session")) == 1
    with pytest.raises(InvalidRequest):
        purchases.start_top_up(ada, wanted(2_000), key="click")
    TopUp.objects.update(created_at=timezone.now() - timedelta(hours=25))
    assert purchases.start_top_up(ada, wanted(), key="click") != first


def test_a_purchase_tried_again_much_later_opens_a_page_of_its_own(stripe: Fake) -> None:
    """B10.1: Stripe opens no page for less than half an hour, and a key belongs to one request: a new top-up it is"""
    ada = factories.ada()
    stripe.faults.add("reset", "POST", "/v1/checkout", times=2)
    with pytest.raises(PaymentServiceUnavailable):
        purchases.start_top_up(ada.pk, wanted(), key="click")
    later = timezone.now() + timedelta(minutes=35)
    stripe.advance(seconds=35 * 60)
    with time_machine.travel(later):
        again = purchases.start_top_up(ada.pk, wanted(), key="click")
        assert (again.state, TopUp.objects.count()) == (State.OPEN, 2)
        assert purchases.start_top_up(ada.pk, wanted(), key="click") == again
        assert stripe.pay(again.checkout_session_id)
        settle(stripe)
    assert money() == (1_000, 0)


def test_a_page_of_long_ago_says_what_became_of_its_purchase(stripe: Fake) -> None:
    """B17.2: a tab whose purchase has expired opens nothing and does not stay silent"""
    client = person(factories.ada())
    client.post("/billing/top-up", {"amount": "10", "key": "tab"})
    stripe.advance(seconds=2 * 3600)
    settle(stripe)
    said = client.post("/billing/top-up", {"amount": "10", "key": "tab"}, follow=True).content.decode()
    assert "The payment page expired. You were not charged." in said


def test_amounts_keep_to_the_policy_and_nothing_is_sold_without_payments(stripe: Fake) -> None:
    """B10.1, B19.1: too little, too much, payments off: no row, no call."""
    ada = factories.ada().pk
    for cents in (0, 499, 50_001):
        with pytest.raises(InvalidRequest):
            purchases.start_top_up(ada, wanted(cents), key=None)
    with override_settings(STRIPE_SECRET_KEY=""), pytest.raises(PaymentsDisabled):
        purchases.start_top_up(ada, wanted(), key=None)
    LimitPolicy.objects.update(payments_enabled=False)
    policies.clear_policy_cache()
    with pytest.raises(PaymentsDisabled):
        purchases.start_top_up(ada, wanted(), key=None)
    LimitPolicy.objects.update(payments_enabled=True)
    policies.clear_policy_cache()
    assert (stripe.calls, TopUp.objects.count()) == ([], 0)


@pytest.mark.django_db(transaction=True)
def test_racing_first_purchases_make_one_customer(stripe: Fake) -> None:
    """B15.5: lazily, stored once; any number of first requests end with one id."""
    account_id = accounts.get_or_create_account(factories.ada().pk).pk
    for round_number in range(5):
        Account.objects.update(stripe_customer_id=None)

        def first() -> str:
            return accounts.ensure_stripe_customer(
                Account.objects.get(pk=account_id), api_client.start_request_deadline()
            )

        assert len(set(together(*[first] * 4))) == 1, round_number
    assert len(stripe.all("customer")) == 1


# --- taken back -----------------------------------------------------------------------------------------


def test_a_refund_that_fails_leaves_what_was_bought(stripe: Fake) -> None:
    """B10.c3: also when `failed` comes before `created`; in the order of events it is taken and given back."""
    for reverse in (False, True):
        top_up = bought(stripe)
        before = money()
        refund_id = stripe.refund(top_up.payment_intent_id, 1_000, status="pending")
        if not reverse:
            settle(stripe)
            assert money() == (before[0] - 1_000, before[1])
            top_up.refresh_from_db()
            assert top_up.state == State.REVERSED
        stripe.end_refund(refund_id, "failed")
        stripe.webhooks.deliver(reversed(stripe.webhooks.take()))
        apply_received()
        top_up.refresh_from_db()
        assert (money(), top_up.state) == (before, State.PAID)
    assert kinds() == ["TOP_UP", "REVERSAL", "REINSTATEMENT", "TOP_UP"]


def test_refunds_never_take_more_than_was_bought(stripe: Fake) -> None:
    """B10.5: one REVERSAL per refund, in total at most the top-up, however Stripe counts; what was spent is owed."""
    top_up = bought(stripe)
    ledger.spend(factories.ada().pk, 700, key="tool:1")
    stripe.refund(top_up.payment_intent_id, 400)
    settle(stripe)
    top_up.refresh_from_db()
    assert (top_up.state, money()) == (State.PARTLY_REVERSED, (0, 100))
    stripe.refund(top_up.payment_intent_id, 900)  # with tax, Stripe may give back more than the credit
    settle(stripe)
    top_up.refresh_from_db()
    assert (top_up.state, money()) == (State.REVERSED, (0, 700))


def test_the_event_of_a_refund_waits_for_its_purchase(stripe: Fake) -> None:
    """B14.4: order does not matter."""
    top_up = purchases.start_top_up(factories.ada().pk, wanted(), key=None)
    stripe.pay(top_up.checkout_session_id)
    stripe.refund(stripe.all("payment_intent")[0]["id"], 1_000)
    told = stripe.webhooks.take()
    stripe.webhooks.deliver(one for one in told if one["type"] == "refund.created")
    apply_received()
    assert money() == (0, 0)
    stripe.webhooks.deliver(told)
    apply_received()
    StripeEvent.objects.filter(state="RECEIVED").update(due_at=timezone.now())
    apply_received()
    assert (money(), kinds()) == ((0, 0), ["TOP_UP", "REVERSAL"])
    assert not StripeEvent.objects.exclude(state__in=["DONE", "IGNORED"]).exists()


@pytest.mark.parametrize("won", [True, False])
def test_a_dispute_takes_until_it_is_won(stripe: Fake, won: bool, caplog: pytest.LogCaptureFixture) -> None:
    """B10.c5: on partly spent credit; won: as before; lost: nothing more is taken. Auto top-up goes off, staff know."""
    top_up = bought(stripe)
    ledger.spend(factories.ada().pk, 600, key="tool:1")
    AutoTopUp.objects.create(account=top_up.account, enabled=True, threshold_cents=1, amount_cents=500)
    dispute_id = stripe.dispute(top_up.payment_intent_id, 1_000)
    settle(stripe)
    assert money() == (0, 600)
    assert "'kind': 'dispute'" in caplog.text
    assert (AutoTopUp.objects.get().enabled, AutoTopUp.objects.get().disabled_reason) == (False, "dispute")
    assert BillingNotice.objects.filter(kind="payment_disputed").count() == 1
    stripe.close_dispute(dispute_id, won=won)
    settle(stripe)
    top_up.refresh_from_db()
    assert (money(), top_up.state) == (((400, 0), State.PAID) if won else ((0, 600), State.REVERSED))


def test_a_dispute_told_backwards_ends_the_same(stripe: Fake) -> None:
    """B10.6: the event of a won dispute arrives before the dispute itself."""
    top_up = bought(stripe)
    stripe.close_dispute(stripe.dispute(top_up.payment_intent_id, 1_000), won=True)
    stripe.webhooks.deliver(reversed(stripe.webhooks.take()))
    apply_received()
    assert (money(), kinds()) == ((1_000, 0), ["TOP_UP"])


def test_a_dispute_of_a_plan_only_calls_staff(stripe: Fake, caplog: pytest.LogCaptureFixture) -> None:
    """B10.6: no ledger effect."""
    account = accounts.get_or_create_account(factories.ada().pk)
    stripe.subscribe(
        accounts.ensure_stripe_customer(account, api_client.start_task_deadline()), stripe.price(900)
    )
    stripe.dispute(stripe.all("payment_intent")[0]["id"], 900)
    settle(stripe)
    assert "'kind': 'dispute'" in caplog.text
    assert kinds() == []


# --- by itself ------------------------------------------------------------------------------------------


def automatic_for_ada(stripe: Fake, *, threshold: int = 500, amount: int = 1_000) -> Account:
    account = accounts.get_or_create_account(factories.ada().pk)
    stripe.save_card(accounts.ensure_stripe_customer(account, api_client.start_task_deadline()))
    wish = auto_top_ups.AutoTopUpRequest(
        enabled=True, threshold_cents=threshold, amount_cents=amount, consent=True
    )
    assert auto_top_ups.configure_auto_top_up(account.user_id, wish).enabled
    return account


@pytest.mark.django_db(transaction=True)
def test_ten_spends_across_the_threshold_buy_once(stripe: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """B10.c4: ten parallel spends cross it, one AUTO top-up exists; its payment is credited by webhook."""
    account = automatic_for_ada(stripe)
    ledger.grant_credits(account.user_id, 1_000, key="grant:1")
    sent: list[int] = []
    monkeypatch.setattr(ledger, "_enqueue_auto_top_up", sent.append)
    together(*(partial(ledger.spend, account.user_id, 60, key=f"tool:{number}") for number in range(10)))
    assert sent
    assert set(sent) == {account.pk}
    together(*[partial(auto_top_ups.top_up_if_low, account.pk)] * 10)
    top_up = TopUp.objects.get()
    assert (top_up.kind, top_up.state, money()) == (TopUp.Kind.AUTO, State.OPEN, (400, 0))
    settle(stripe)
    assert money() == (1_400, 0)
    auto_top_ups.top_up_if_low(account.pk)
    assert TopUp.objects.count() == 1


@pytest.mark.parametrize(
    ("card", "reason"), [("decline", "card_declined"), ("authenticate", "authentication_required")]
)
def test_a_refused_card_switches_it_off_and_says_so(stripe: Fake, card: str, reason: str) -> None:
    """B10.4: FAILED, off, one notice and one e-mail."""
    account = automatic_for_ada(stripe)
    stripe.card(card)
    auto_top_ups.top_up_if_low(account.pk)
    settle(stripe)
    assert TopUp.objects.get().state == State.FAILED
    view = auto_top_ups.get_auto_top_up(account.user_id)
    assert (view.enabled, view.disabled_reason) == (False, reason)
    notice = BillingNotice.objects.get(kind="auto_top_up_off")
    assert emails.send_notice_email(notice.pk)
    assert len(mail.outbox) == 1
    auto_top_ups.top_up_if_low(account.pk)
    assert TopUp.objects.count() == 1


def test_an_outcome_nobody_heard_is_charged_once(stripe: Fake) -> None:
    """B10.4: the connection breaks after Stripe charged; tried again with the same key, one charge, one credit."""
    account = automatic_for_ada(stripe)
    stripe.faults.add("reset_after", "POST", "/v1/payment_intents", times=3)
    auto_top_ups.top_up_if_low(account.pk)
    assert TopUp.objects.get().state == State.CREATED
    auto_top_ups.top_up_if_low(account.pk)  # one is open
    TopUp.objects.update(created_at=timezone.now() - auto_top_ups.STUCK_AFTER)
    assert auto_top_ups.retry_stuck_charges() == 1
    settle(stripe)
    assert (TopUp.objects.get().state, money()) == (State.PAID, (1_000, 0))
    assert len(stripe.all("charge")) == 1


def test_at_most_three_a_day(stripe: Fake) -> None:
    """B10.4: then it waits for tomorrow."""
    account = automatic_for_ada(stripe, threshold=50_000)
    for _ in range(5):
        auto_top_ups.top_up_if_low(account.pk)
        settle(stripe)
    assert TopUp.objects.count() == 3
    TopUp.objects.update(created_at=timezone.now() - timedelta(days=1))
    auto_top_ups.top_up_if_low(account.pk)
    assert TopUp.objects.count() == 4


def test_switching_it_on_needs_consent_a_card_and_payments(stripe: Fake) -> None:
    """B10.4, B16.1: refused by name; switching off always works, also without payments."""
    ada = factories.ada()
    client = person(ada)

    def put(**fields: object) -> object:
        body = {"enabled": True, "threshold_cents": 500, "amount_cents": 1_000, "consent": True} | fields
        return client.put(f"{API}/auto-top-up", body, content_type=JSON)

    assert code_of(put(consent=False)) == "invalid_request"
    assert code_of(put(amount_cents=1)) == "invalid_request"
    assert code_of(put(threshold_cents=50_001)) == "invalid_request"
    assert code_of(put()) == "no_saved_card"
    with pytest.raises(NoSavedCard):
        auto_top_ups.configure_auto_top_up(
            ada.pk,
            auto_top_ups.AutoTopUpRequest(enabled=True, threshold_cents=1, amount_cents=500, consent=True),
        )
    automatic_for_ada(stripe)
    assert put().json() == {
        "enabled": True, "threshold_cents": 500, "amount_cents": 1_000, "disabled_reason": "",
    }  # fmt: skip
    with override_settings(STRIPE_SECRET_KEY=""):
        assert code_of(put()) == "payments_off"
        assert put(enabled=False, consent=False).json()["enabled"] is False
    assert auto_top_ups.erase_auto_top_up(ada.pk) == 0


def test_the_chosen_card_is_charged_else_the_newest(stripe: Fake) -> None:
    """B10.4: the customer's default card, else the newest saved one; none at all switches it off."""
    account = automatic_for_ada(stripe)
    (customer,) = stripe.all("customer")
    old = stripe.all("payment_method")[0]["id"]
    stripe.advance(seconds=60)
    newest = stripe.save_card(customer["id"])
    auto_top_ups.top_up_if_low(account.pk)
    customer["invoice_settings"]["default_payment_method"] = old
    settle(stripe)
    ledger.spend(account.user_id, 900, key="tool:1")
    auto_top_ups.top_up_if_low(account.pk)
    assert [one["payment_method"] for one in stripe.all("payment_intent")] == [old, newest]
    settle(stripe)
    ledger.spend(account.user_id, 1_000, key="tool:2")
    for card in (old, newest):
        del stripe.world.objects[card]
    customer["invoice_settings"]["default_payment_method"] = None
    auto_top_ups.top_up_if_low(account.pk)
    assert auto_top_ups.get_auto_top_up(account.user_id).disabled_reason == "no_saved_card"


def test_a_charge_that_is_not_what_was_agreed_is_reviewed(stripe: Fake) -> None:
    """B10.2: for automatic top-ups too; and what Stripe refuses for good is given up."""
    account = automatic_for_ada(stripe)
    auto_top_ups.top_up_if_low(account.pk)
    stripe.all("payment_intent")[0]["amount_received"] = 1
    settle(stripe)
    assert (TopUp.objects.get().state, money()) == (State.REVIEW, (0, 0))
    stripe.faults.add("unauthorised", "POST", "/v1/payment_intents")
    auto_top_ups.top_up_if_low(account.pk)
    assert auto_top_ups.get_auto_top_up(account.user_id).disabled_reason == "refused"


def test_an_outcome_that_nobody_can_learn_is_given_up_and_credited_if_it_was_paid(stripe: Fake) -> None:
    """B10.3: after a day Stripe forgets the key, so it is not tried again; money that came is credited all the same."""
    account = automatic_for_ada(stripe)
    stripe.faults.add("reset_after", "POST", "/v1/payment_intents", times=3)
    auto_top_ups.top_up_if_low(account.pk)
    held = stripe.webhooks.take()
    TopUp.objects.update(created_at=timezone.now() - auto_top_ups.GIVEN_UP_AFTER - timedelta(minutes=1))
    auto_top_ups.retry_stuck_charges()
    assert TopUp.objects.get().state == State.FAILED
    stripe.webhooks.deliver(held)
    apply_received()
    assert (TopUp.objects.get().state, money()) == (State.PAID, (1_000, 0))
    with override_settings(STRIPE_SECRET_KEY=""):
        assert auto_top_ups.retry_stuck_charges() == 0
    assert auto_top_ups.erase_auto_top_up(account.user_id) == 0
    auto_top_ups.configure_auto_top_up(
        account.user_id,
        auto_top_ups.AutoTopUpRequest(enabled=True, threshold_cents=500, amount_cents=500, consent=True),
    )
    assert auto_top_ups.erase_auto_top_up(account.user_id) == 1
    assert not auto_top_ups.get_auto_top_up(account.user_id).enabled


# --- over REST ------------------------------------------------------------------------------------------


def test_a_top_up_over_rest_is_its_owners_alone(stripe: Fake) -> None:
    """B16.c2: another's is 404; B16.2: its shape; `url` is empty once it is not open."""
    client = person(factories.ada())

    def post(body: object, **headers: str) -> object:
        return client.post(f"{API}/top-ups", body, content_type=JSON, headers=headers)

    made = post({"amount_cents": 1_000}, **{"Idempotency-Key": "a"})
    assert made.status_code == 201
    shown = made.json()
    assert set(shown) == {"id", "amount_cents", "state", "created_at", "url"}
    assert shown["url"].startswith(stripe.address)
    session = stripe.all("checkout.session")[0]
    assert session["success_url"].endswith(f"/billing/plan?top_up={shown['id']}")
    assert (session["client_reference_id"], session["metadata"]) == (shown["id"], {"top_up": shown["id"]})
    path = f"{API}/top-ups/{shown['id']}"
    assert person(factories.bob()).get(path).status_code == 404
    assert program(factories.ada(), "read").get(path).json() == shown
    assert (
        code_of(program(factories.ada(), "read").post(f"{API}/top-ups", {}, content_type=JSON))
        == "insufficient_scope"
    )
    stripe.pay(session["id"])
    settle(stripe)
    assert client.get(path).json() == shown | {"state": "PAID", "url": ""}
    for wrong in ({}, {"amount_cents": "1000"}, {"amount_cents": 10.5}, {"amount_cents": 1_000, "x": 1}):
        assert code_of(post(wrong)) == "invalid_request"
    stripe.faults.add("limit", "POST", "/v1/checkout", times=9)
    assert (post({"amount_cents": 1_000}).status_code, code_of(post({"amount_cents": 1_000}))) == (
        502, "stripe_unavailable",
    )  # fmt: skip


def test_stuck_top_ups_are_asked_about(stripe: Fake) -> None:
    """B14.7: when Stripe has stopped telling, it is asked; a page never shown is over."""
    paid = purchases.start_top_up(factories.ada().pk, wanted(), key=None)
    left = purchases.start_top_up(factories.ada().pk, wanted(), key=None)
    never = TopUp.objects.create(account=paid.account, amount_cents=500)
    stripe.pay(paid.checkout_session_id)
    stripe.advance(seconds=4_000)
    stripe.webhooks.take()  # lost
    TopUp.objects.update(created_at=timezone.now() - timedelta(hours=3))
    assert purchases.reconcile_open_top_ups() == 3
    states = [TopUp.objects.get(pk=one.pk).state for one in (paid, left, never)]
    assert states == [State.PAID, State.EXPIRED, State.EXPIRED]
    assert money() == (1_000, 0)


def test_an_automatic_charge_that_nobody_told_of_is_asked_about(stripe: Fake) -> None:
    """B14.7: and while Stripe does not answer it stays open."""
    account = automatic_for_ada(stripe)
    auto_top_ups.top_up_if_low(account.pk)
    stripe.webhooks.take()  # lost
    TopUp.objects.update(created_at=timezone.now() - timedelta(hours=3))
    stripe.faults.add("error", "GET", "/v1/payment_intents", times=3)
    purchases.reconcile_open_top_ups()
    assert TopUp.objects.get().state == State.OPEN
    purchases.reconcile_open_top_ups()
    assert (TopUp.objects.get().state, money()) == (State.PAID, (1_000, 0))
