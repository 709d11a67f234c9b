"""Money that two hands reach for at once, fifty times each (B20.7): credited once, taken back once, bought once."""

from __future__ import annotations

from functools import partial

import pytest

from billing import accounts
from billing.models import Account, AutoTopUp, StripeEvent, TopUp
from billing.stripe import api_client, checkout_api, event_handlers
from billing.top_ups import auto_top_ups, purchases
from tests.stripe_fake import Fake
from tests.support import factories
from tests.support.race_repeats import rounds
from tests.support.turn_engine import together

pytestmark = pytest.mark.django_db(transaction=True)


@rounds(3, 50)
def test_an_event_that_two_workers_take_is_applied_once(stripe: Fake, rounds: int) -> None:
    """B14.c2: double webhook, and two events about one purchase, each round."""
    ada = factories.ada().pk
    purchase = purchases.TopUpPurchase(amount_cents=1_000, success_url="https://x", cancel_url="https://x")
    for number in range(1, rounds + 1):
        top_up = purchases.start_top_up(ada, purchase, key=None)
        stripe.webhooks.take()
        stripe.pay(top_up.checkout_session_id)
        (completed,) = [one for one in stripe.webhooks.take() if one["type"].endswith("session.completed")]
        stripe.webhooks.deliver([completed, {**completed, "id": f"evt_second{number}"}])
        rows = list(StripeEvent.objects.filter(state="RECEIVED").values_list("pk", flat=True))
        together(*(partial(event_handlers.apply_stripe_event, pk) for pk in rows * 2))
        assert Account.objects.get(user=ada).credit_balance_cents == 1_000 * number
    assert set(StripeEvent.objects.values_list("state", "attempts")) == {("DONE", 1)}


@rounds(3, 50)
def test_a_refund_and_a_dispute_that_meet_never_take_more_than_was_bought(stripe: Fake, rounds: int) -> None:
    """B10.5, B10.6: refund events and a dispute's, on two workers at once, each round."""
    ada = factories.ada().pk
    purchase = purchases.TopUpPurchase(amount_cents=1_000, success_url="https://x", cancel_url="https://x")
    for _ in range(rounds):
        top_up = purchases.start_top_up(ada, purchase, key=None)
        stripe.pay(top_up.checkout_session_id)
        purchases.fulfil_checkout(
            checkout_api.get_checkout(api_client.start_task_deadline(), top_up.checkout_session_id)
        )
        stripe.webhooks.take()
        top_up.refresh_from_db()
        stripe.refund(top_up.payment_intent_id, 700)
        stripe.dispute(top_up.payment_intent_id, 1_000)
        stripe.webhooks.deliver()
        rows = list(StripeEvent.objects.filter(state="RECEIVED").values_list("pk", flat=True))
        together(*(partial(event_handlers.apply_stripe_event, pk) for pk in rows))
        top_up.refresh_from_db()
        assert top_up.state == TopUp.State.REVERSED
        account = Account.objects.get(user=ada)
        assert (account.credit_balance_cents, account.debt_cents) == (0, 0)


@rounds(3, 50)
def test_spends_that_cross_the_threshold_together_buy_once(stripe: Fake, rounds: int) -> None:
    """B10.c4: auto top-up trigger, each round one AUTO top-up."""
    account = accounts.get_or_create_account(factories.ada().pk)
    stripe.save_card(accounts.ensure_stripe_customer(account, api_client.start_task_deadline()))
    AutoTopUp.objects.create(account=account, enabled=True, threshold_cents=500, amount_cents=500)
    for number in range(rounds):
        TopUp.objects.all().delete()
        together(*[partial(auto_top_ups.top_up_if_low, account.pk)] * 3)
        assert TopUp.objects.filter(kind="AUTO").count() == 1
        assert len(stripe.all("payment_intent")) == number + 1


@rounds(3, 50)
def test_first_purchases_that_race_end_with_one_customer(stripe: Fake, rounds: int) -> None:
    """B15.5: customer creation, and the account itself, each round a new user's."""
    for number in range(rounds):
        user_id = factories.user(f"new{number}").pk

        def first(user_id: int = user_id) -> str:
            return accounts.ensure_stripe_customer(
                accounts.get_or_create_account(user_id), api_client.start_request_deadline()
            )

        found = together(first, first, first)
        assert set(found) == {Account.objects.get(user=user_id).stripe_customer_id}
        assert len(stripe.all("customer")) == number + 1
